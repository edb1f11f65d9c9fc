"""What the DBTex score and the bootstrap of R@X cost."""

import csv
import json
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from timing import Row, in_its_own_process, seconds_of_each

from mm3d.data.datasets import tables
from mm3d.evaluate.match import EvaluateSettings, MatchedPredictions, match_predictions
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.dbtex import dbtex
from mm3d.evaluate.metrics.froc import FrocScores, recall_at
from mm3d.evaluate.truth import read_truth
from mm3d.output.predictions import COLUMNS, read_dbtex

# As many as in the train tables of BCS-DBT.
VOLUMES, PATIENTS, BOXED, BOXES = 19_148, 4_362, 200, 224
PREDICTIONS = 20_000
GROWTH = (1_000, 3_000, 10_000, 30_000, 100_000)  # predictions
REPLICATES = 1000


def rows() -> list[Row]:
    found = in_its_own_process(__file__)
    return [
        Row(
            f"DBTex score of {PREDICTIONS:,} predictions on {VOLUMES:,} volumes, against row by row with pandas",
            f"{found['pandas'] / found['ours']:.0f}x faster",
            "at least 50x",
            "from arrays, against from data frames; the results agree to 1e-9",
        ),
        Row(
            "The same from records in memory, joining them with the cohort included",
            f"{found['pandas'] / found['ours_join']:.0f}x faster",
            "reported",
        ),
        Row(
            "The same from the CSV files on",
            f"{found['pandas_files'] / found['ours_files']:.0f}x faster",
            "at least 20x",
            "ours checks every row and joins by patient, study, view and modality",
        ),
        Row(
            f"Growth of the time with the predictions, {GROWTH[0]:,} to {GROWTH[-1]:,} on {VOLUMES:,} volumes",
            ", ".join(f"{part} N^{exponent:.2f}" for part, exponent in found["growth"].items()),
            "none above 1.1",
            "exponents fitted to five sizes; the truth is read once for each, which does not grow",
        ),
        Row(
            f"{REPLICATES:,} bootstrap replicates of R@0.25 and R@0.5 on 2,000 volumes",
            f"{found['bootstrap']:.2f} s",
            "below 10 s",
            "500 patients, 20,000 false positives, with drawing",
        ),
    ]


def measure() -> dict[str, Any]:
    import pandas as pd  # not above: against.py needs only the tables, and pandas is in the extra mm3d[bench]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        predicted = write_tables(folder)
        labels, boxes, table = (pd.read_csv(path) for path in (folder / "labels.csv", folder / "boxes.csv", predicted))
        matched = _match(folder, predicted)
        slices = matched.of_views("slice_count")

        def ours(matched: MatchedPredictions = matched) -> dict[str, float]:
            return dbtex(matched.findings, matched.annotations, slices, len(matched.views))

        expected = plain_dbtex(labels, boxes, table)
        assert all(abs(value - expected[name]) < 1e-9 for name, value in ours().items()), (ours(), expected)
        predictions, truth = read_dbtex(predicted), read_truth(folder)
        fast, fast_join, slow = seconds_of_each(
            ours,
            lambda: ours(match_predictions("predictions", predictions, truth, EvaluateSettings())),
            lambda: plain_dbtex(labels, boxes, table),
            rounds=2,
            clock=time.process_time,
        )
        fast_files, slow_files = seconds_of_each(
            lambda: _score_files(folder, predicted),
            lambda: plain_dbtex(
                *(pd.read_csv(path) for path in (folder / "labels.csv", folder / "boxes.csv", predicted))
            ),
            rounds=2,
            clock=time.process_time,
        )
    (replicates,) = seconds_of_each(_bootstrap, rounds=3, clock=time.process_time)
    return {
        "ours": fast,
        "ours_join": fast_join,
        "pandas": slow,
        "ours_files": fast_files,
        "pandas_files": slow_files,
        "bootstrap": replicates,
        "growth": _growth(),
    }


def _growth() -> dict[str, float]:
    """The exponent of the time of each part in the number of predictions."""
    seconds: dict[str, list[float]] = {}
    for number in GROWTH:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            path = write_tables(folder, number)
            truth, predictions, matched = read_truth(folder), read_dbtex(path), _match(folder, path)
            slices = matched.of_views("slice_count")
            parts: dict[str, Callable[[], object]] = {
                "reading the CSV": partial(read_dbtex, path),
                "joining with the cohort": partial(
                    match_predictions, "predictions", predictions, truth, EvaluateSettings()
                ),
                "the score": partial(dbtex, matched.findings, matched.annotations, slices, len(matched.views)),
                "all, from the CSV files on": partial(_score_files, folder, path),
            }
            for part, best in zip(
                parts, seconds_of_each(*parts.values(), rounds=5, clock=time.process_time), strict=True
            ):
                seconds.setdefault(part, []).append(best)
    return {part: float(np.polyfit(np.log(GROWTH), np.log(times), 1)[0]) for part, times in seconds.items()}


def _score_files(folder: Path, predicted: Path) -> dict[str, float]:
    matched = _match(folder, predicted)
    return dbtex(matched.findings, matched.annotations, matched.of_views("slice_count"), len(matched.views))


def _match(folder: Path, predicted: Path) -> MatchedPredictions:
    return match_predictions("predictions", read_dbtex(predicted), read_truth(folder), EvaluateSettings())


def write_tables(folder: Path, number: int = PREDICTIONS) -> Path:
    """Tables of the real size and predictions on them: one near every box, some near it again, the others anywhere."""
    random = np.random.default_rng(0)
    kinds = ("lcc", "lmlo", "rcc", "rmlo")
    keys = []
    for volume in range(VOLUMES):
        exam, view = divmod(volume, 4)
        keys.append((f"DBT-P{exam % PATIENTS:05}", f"DBT-S{exam:05}", kinds[view]))
    boxed = random.choice(VOLUMES, BOXED, replace=False)
    owners = np.concatenate([boxed, boxed[: BOXES - BOXED]])
    corners, sizes = random.integers(0, 1500, (BOXES, 2)), random.integers(60, 450, (BOXES, 2))
    slices = random.integers(5, 60, BOXES)
    box_rows = [
        (*keys[owner], 0, z, x, y, w, h, "cancer", 0, 66)
        for owner, (x, y), (w, h), z in zip(owners, corners, sizes, slices, strict=True)
    ]
    near = np.concatenate([np.arange(BOXES), random.integers(0, BOXES, BOXES)])
    predictions = []
    for i in near:
        x, y = corners[i] + random.integers(-60, 60, 2)
        predictions.append((*keys[owners[i]], x, sizes[i][0], y, sizes[i][1], slices[i], 0, random.normal(1)))
    for owner in random.integers(0, VOLUMES, number - len(near)):
        x, y, z = random.integers(0, (1500, 1500, 60))
        predictions.append((*keys[owner], x, 150, y, 150, z, 5, random.normal()))
    _table(folder / "file-paths.csv", tables.FILE_PATHS, [(*key, "a", "a") for key in keys])
    cancers = set(owners.tolist())
    labels = [(*key, *((0, 0, 0, 1) if number in cancers else (1, 0, 0, 0))) for number, key in enumerate(keys)]
    _table(folder / "labels.csv", tables.LABELS, labels)
    _table(folder / "boxes.csv", tables.BOXES, box_rows)
    return _table(folder / "predictions.csv", COLUMNS, predictions)


def _table(path: Path, columns: tuple[str, ...], table: list[tuple[Any, ...]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *table])
    return path


def plain_dbtex(labels: Any, boxes: Any, predictions: Any) -> dict[str, float]:
    """The rules of DBTex with data frames, a row and a threshold at a time, as one would write them down."""
    key = ["StudyUID", "View"]
    labels, boxes = labels.set_index(key).sort_index(), boxes.reset_index().set_index(key).sort_index()
    predictions = predictions.reset_index().set_index(key).sort_index()
    predictions["hit"], predictions["box"] = 0, -1
    thresholds = [predictions["Score"].max() + 1]
    for one in predictions.itertuples():
        if one.Index not in boxes.index:
            continue
        there = boxes.loc[[one.Index]]
        centre = (one.X + one.Width / 2, one.Y + one.Height / 2, one.Z + one.Depth / 2)
        near = []
        for box in there.itertuples():
            other = (box.X + box.Width / 2, box.Y + box.Height / 2, box.Slice)
            radius = max(math.hypot(box.Width, box.Height) / 2, 100)
            if math.dist(centre[:2], other[:2]) <= radius and abs(centre[2] - other[2]) <= box.VolumeSlices / 4:
                near.append((math.dist(centre, other), box.index))
        if near:
            predictions.loc[predictions["index"] == one.index, ["hit", "box"]] = (1, min(near)[1])
            thresholds.append(one.Score)
    thresholds.append(predictions["Score"].min() - 1)

    def curve(kept: Any, volumes: int, rates: tuple[int, ...]) -> list[float]:
        false, sensitivity = [], []
        for threshold in sorted(thresholds, reverse=True):
            called = kept[kept["Score"] >= threshold]
            once = called.reset_index().drop_duplicates(subset=[*key, "hit", "box"])
            sensitivity.append(once["hit"].sum() / len(boxes))
            false.append((called["hit"] == 0).sum() / volumes)
            if false[-1] > max(rates):
                break
        return [float(np.interp(rate, false, sensitivity)) for rate in rates]

    result = {"sensitivity_at_2_fps_all": curve(predictions, len(labels), (2,))[0]}
    positive = labels[labels.index.isin(boxes.index)]
    found = curve(predictions[predictions.index.isin(boxes.index)], len(positive), (1, 2, 3, 4))
    for rate, value in zip((1, 2, 3, 4), found, strict=True):
        result[f"sensitivity_at_{rate}_fps_positive"] = value
    return result | {"mean_sensitivity_positive": float(np.mean(found))}


def _bootstrap() -> None:
    random = np.random.default_rng(0)
    volumes = np.repeat(np.arange(500), 4)
    scores = FrocScores(
        hit=random.normal(1, 1, 300),
        false=random.normal(0, 1, 20_000),
        hit_patient=random.integers(0, 500, 300),
        false_patient=random.integers(0, 500, 20_000),
        volume_patient=volumes,
    )
    rates = (0.25, 0.5)
    replicates = bootstrap.recalls_at(scores, np.array(rates), bootstrap.draw(500, REPLICATES, 0))
    for rate, drawn in zip(rates, replicates.T, strict=True):
        recall_at(scores, rate), bootstrap.standard_error(drawn), bootstrap.interval(drawn)


if __name__ == "__main__":
    print(json.dumps(measure()))
