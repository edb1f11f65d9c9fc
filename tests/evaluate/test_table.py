"""A metric is added with a line of the table; without one of its places, a reader would think it was not measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.counted_cohort import ROWS, write_rows

from mm3d.cli import main
from mm3d.evaluate import table
from mm3d.evaluate.metrics.bootstrap import Draws, recalls_at
from mm3d.evaluate.metrics.froc import FrocScores
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray
from mm3d.evaluate.metrics.roc import Estimates
from mm3d.evaluate.table import FrocMetric, Summary, UnitMetric


def mean_recall(scores: FrocScores, _: FloatArray, draws: Draws) -> FloatArray:
    """The mean recall at 1/8, 1/4 and 1/2 false positives per volume."""
    return recalls_at(scores, np.array([0.125, 0.25, 0.5]), draws).mean(axis=1, keepdims=True)


def brier(scores: FloatArray, positive: BoolArray) -> Estimates:
    """The mean squared error of scores that are probabilities."""
    errors = (np.maximum(scores, 0) - positive) ** 2
    return Estimates(errors.mean(axis=1), np.atleast_2d(np.cov(errors)) / len(positive))


def test_a_line_of_the_table_is_all_that_a_metric_needs(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        FrocMetric("mean_recall", "mean recall", mean_recall, at_rates=False),
        UnitMetric("brier", "Brier score", brier, higher_is_better=False),
        Summary(
            "highest", lambda matched, *_: matched.view_scores.max(), lambda score: {"highest score ↑": str(score)}
        ),
    )
    monkeypatch.setattr(table, "METRICS", (*table.METRICS, *lines))
    monkeypatch.setenv("COLUMNS", "160")
    files = [write_rows(tmp_path / "mine.csv"), write_rows(tmp_path / "theirs.csv", ROWS[:3])]
    out = tmp_path / "evaluation"
    arguments = ["--truth", str(cohort), "-o", str(out), "--replicates", "50", "--by", "density"]
    assert main(["evaluate", *map(str, files), *arguments]) == 0
    result = json.loads((out / "metrics.json").read_text())
    mine = result["systems"][0]
    (recall,) = mine["mean_recall"]["2D"]["finding"]
    assert recall["mean_recall"] == pytest.approx((2 / 3 + 1 + 1) / 3)
    assert recall["interval"][0] <= recall["mean_recall"] <= recall["interval"][1]
    assert mine["brier"]["breast"]["standard_error"] > 0
    assert mine["highest"] == 0.99
    for name in ("mean_recall", "brier"):
        rows = [row for row in result["comparisons"] if row["metric"] == name]
        assert rows
        assert all(0 < row["p"] <= 1 for row in rows)
        assert all(name in group for group in mine["subgroups"]["density"])
    printed = capsys.readouterr().out
    for words in ("mean recall of lesions, 3D ↑", "Brier score of cases ↓", "highest score ↑", "mean recall, 2D ↑"):
        assert words in printed
