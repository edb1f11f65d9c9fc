"""The rules of docs/evaluation.md on a cohort small enough to count: a wrong one is a wrong figure in a paper."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.counted_cohort import COHORT, ROWS, recall, system, write_rows
from support.csv_files import write_csv

from mm3d.data.datasets import tables
from mm3d.output import predictions as records
from mm3d.output.predictions import BreastPrediction, Finding, Predictions, ViewPrediction
from mm3d.shared.errors import InputError


def test_recall_on_a_cohort_that_can_be_counted(cohort: Path, tmp_path: Path) -> None:
    """8 volumes are judged. False positives: 0.85 (benign), 0.4, 0.2; findings are found at 0.9, 0.7 and 0.3."""
    found = system(cohort, write_rows(tmp_path / "p.csv"), rates=(0.0, 0.125, 0.25, 0.375))
    assert found["counts"] == {
        "patients": 5,
        "breasts": 7,
        "malignant_breasts": 3,
        "volumes": 10,
        "volumes_in_froc": 8,
        "findings": 4,
        "malignant_findings": 3,
        "proposals": 8,
    }
    assert recall(found) == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert recall(found, level="lesion") == [0.5, 0.5, 1, 1]  # P1's two views show one lesion
    assert recall(found, level="breast") == [0.5, 0.5, 1, 1]
    # In 3D the proposal at 0.7 is a false positive, so there are 0.85, 0.7, 0.4, 0.2.
    assert recall(found, "3D") == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert recall(found, "3D", "lesion") == [0.5, 0.5, 0.5, 1]
    assert any("2 volumes are not annotated" in note for note in found["notes"])


def test_benign_volumes_can_be_left_out(cohort: Path, tmp_path: Path) -> None:
    """7 volumes and the false positives 0.4, 0.2 are left."""
    found = system(cohort, write_rows(tmp_path / "p.csv"), rates=(0.0, 0.15), leave_out_benign=True)
    assert found["counts"]["volumes_in_froc"] == 7
    assert recall(found) == pytest.approx([2 / 3, 1])
    assert any("1 benign volumes are left out" in note for note in found["notes"])


def test_the_tolerance_and_the_overlap_can_be_chosen(cohort: Path, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "p.csv")
    wide = system(cohort, file, rates=(0.125,), slice_tolerance=15.0)
    assert recall(wide, "3D") == pytest.approx([2 / 3])
    assert wide["depth"]["visible"] == 1.0
    # The box at 10, 10 overlaps by 0.68. Alone, it hits at 0.5 and not at 0.7.
    file = write_rows(tmp_path / "one.csv", ROWS[1:2])
    assert recall(system(cohort, file, iou=0.5), "2D") == pytest.approx([1 / 3, 1 / 3])
    assert recall(system(cohort, file, iou=0.7), "2D") == [0, 0]


def test_areas_on_a_cohort_that_can_be_counted(cohort: Path, tmp_path: Path) -> None:
    found = system(cohort, write_rows(tmp_path / "p.csv"))
    # Breasts: malignant P1 L 0.9, P3 R 0.99, P4 R 0.3; others P2 L 0.85, P5 L 0.4, P1 R and P4 L nothing.
    assert found["auc"]["breast"] | {"standard_error": 0, "interval": 0} == {
        "auc": pytest.approx((4 + 4 + 2) / 12),
        "standard_error": 0,
        "interval": 0,
        "malignant": 3,
        "others": 4,
    }
    # Images: malignant 0.9, 0.7, 0.3 and, not annotated in a malignant breast, 0.99 and nothing.
    # Others: 0.85, 0.4, and three without anything.
    assert found["auc"]["image"]["auc"] == pytest.approx((5 + 4 + 3 + 5 + 1.5) / 25)
    # Cases: P1 0.9, P3 0.99, P4 0.3 against P2 0.85, P5 0.4.
    assert found["auc"]["case"]["auc"] == pytest.approx((2 + 2 + 0) / 6)


def test_slice_errors_by_hand(cohort: Path, tmp_path: Path) -> None:
    found = system(cohort, write_rows(tmp_path / "p.csv"))["depth"]
    assert (found["findings"], found["median_slices"], found["mean_slices"]) == (3, 0, 5)
    assert found["visible"] == pytest.approx(2 / 3)
    assert found["findings_mm"] == 0  # tables do not know millimetres


def test_given_scores_of_views_and_breasts_are_used(cohort: Path, tmp_path: Path) -> None:
    def view(name: str, score: float) -> ViewPrediction:
        return ViewPrediction(name, (Finding((0, 0, 9, 9), 0.5, 1),), score=score)

    found = []
    for high in (0.9, 0.1):
        breasts = tuple(
            BreastPrediction(
                patient, f"S{patient}", "L", (view("lcc", 1 - high),), score=high if patient == "P1" else 0.5
            )
            for patient in ("P1", "P2", "P4", "P5")
        )
        records.write_json(Predictions(breasts), tmp_path / "p.json")
        found.append(system(cohort, tmp_path / "p.json")["auc"]["breast"]["auc"])
    assert found[0] > found[1]
    mixed = (
        BreastPrediction("P1", "SP1", "L", (view("lcc", 0.5),), score=0.5),
        BreastPrediction("P2", "SP2", "L", (view("lcc", 0.5),)),
    )
    records.write_json(Predictions(mixed), tmp_path / "p.json")
    with pytest.raises(InputError, match="p: some breasts have a score of their own and some have not"):
        system(cohort, tmp_path / "p.json")


def test_a_dbtex_score_on_small_images_is_called_what_it_is(cohort: Path, tmp_path: Path) -> None:
    assert not any("says little" in note for note in system(cohort, write_rows(tmp_path / "p.csv"))["notes"])
    path = cohort / "boxes.csv"
    path.write_text(path.read_text().replace(",100,100,", ",20,20,"))
    assert any("says little" in note for note in system(cohort, write_rows(tmp_path / "p.csv"))["notes"])


def test_no_predictions_and_no_findings(cohort: Path, tmp_path: Path) -> None:
    found = system(cohort, write_rows(tmp_path / "empty.csv", []))
    assert recall(found) == [0, 0]
    assert found["auc"]["breast"]["auc"] == 0.5
    assert found["calibration"] == {"breast": None, "image": None}
    assert found["dbtex"]["mean_sensitivity_positive"] == 0
    assert any("10 of 10 volumes have no prediction" in note for note in found["notes"])
    write_csv(cohort / "boxes.csv", tables.BOXES)
    found = system(cohort, write_rows(tmp_path / "p.csv"))
    assert np.isnan(recall(found)).all()
    assert found["dbtex"] is None


def test_operating_points_keep_to_what_is_wanted(cohort: Path, tmp_path: Path) -> None:
    points = system(cohort, write_rows(tmp_path / "p.csv"), rates=(0.125,), specificities=(0.75,))["operating_points"]
    flat = next(point for point in points if point.get("rule") == "2D")
    assert (flat["threshold"], flat["recall"], flat["fp_per_volume"]) == pytest.approx((0.7, 2 / 3, 0.125))
    breasts = points[-1]
    assert (breasts["threshold"], breasts["sensitivity"], breasts["specificity"]) == pytest.approx((0.85, 2 / 3, 0.75))


# Invariances


def ranked_figures(found: dict[str, Any]) -> dict[str, Any]:
    """All that only depends on the order of the scores."""
    recalls = {
        (rule, level): [(row["recall"], row["standard_error"], row["interval"]) for row in rows]
        for rule, levels in found["recall"].items()
        for level, rows in levels.items()
    }
    return {"recall": recalls, "auc": found["auc"], "depth": found["depth"]}


@st.composite
def any_rows(draw: st.DrawFn) -> list[tuple[str, str, int, int, float]]:
    places = [(patient, view) for patient, view, _, _ in COHORT]
    rows = []
    for _ in range(draw(st.integers(0, 25))):
        patient, view = draw(st.sampled_from(places))
        x, z = draw(st.sampled_from([0, 40, 480, 500])), draw(st.sampled_from([10, 20, 30]))
        rows.append((patient, view, x, z, draw(st.integers(0, 6)) / 8))
    return rows


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=any_rows(), seed=st.integers(0, 1000))
def test_neither_the_order_of_rows_nor_the_scale_of_scores_matters(cohort: Path, rows: Any, seed: int) -> None:
    first = system(cohort, write_rows(cohort / "p.csv", rows))
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    assert json.dumps(system(cohort, write_rows(cohort / "p.csv", shuffled))) == json.dumps(first)
    grown = [(patient, view, x, z, 100 * score**3 - 7) for patient, view, x, z, score in rows]
    other = system(cohort, write_rows(cohort / "p.csv", grown))
    assert str(ranked_figures(other)) == str(ranked_figures(first))


def test_the_order_of_the_cohorts_rows_does_not_matter(cohort: Path, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "p.csv")
    first = system(cohort, file, by=("density",))
    for name in ("labels", "boxes", "file-paths"):
        header, *lines = (cohort / f"{name}.csv").read_text().splitlines()
        (cohort / f"{name}.csv").write_text("\n".join([header, *reversed(lines)]) + "\n")
    assert json.dumps(system(cohort, file, by=("density",))) == json.dumps(first)
