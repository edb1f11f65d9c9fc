"""A cohort small enough to count, predictions of it, and what `mm3d evaluate` says of them."""

from pathlib import Path
from typing import Any

from support.bcs_dbt_download import ONE_HOT
from support.csv_files import write_csv

from mm3d.data.datasets import tables
from mm3d.evaluate.match import EvaluateSettings
from mm3d.evaluate.run import evaluate
from mm3d.output.predictions import COLUMNS

# patient, view, label, box (slice, x, y, class) or none; boxes are 100 x 100 in volumes of 40 slices.
# 10 volumes. Malignant findings: P1 lcc, P1 lmlo (one lesion), P4 rcc. P3 is malignant, and nobody marked where.
COHORT: list[tuple[str, str, str, tuple[int, int, int, str] | None]] = [
    ("P1", "lcc", "Cancer", (20, 0, 0, "cancer")),
    ("P1", "lmlo", "Cancer", (20, 0, 0, "cancer")),
    ("P1", "rcc", "Normal", None),
    ("P2", "lcc", "Benign", (10, 0, 0, "benign")),
    ("P2", "lmlo", "Normal", None),
    ("P3", "rcc", "Cancer", None),
    ("P3", "rmlo", "Cancer", None),
    ("P4", "rcc", "Cancer", (30, 500, 500, "cancer")),
    ("P4", "lcc", "Normal", None),
    ("P5", "lcc", "Actionable", None),
]
SPLIT = {"P5": "test"}
DENSITY = {"P1": "a", "P2": "b", "P3": "b", "P4": "b", "P5": "a"}

# patient, view, x (a box of 100 x 100 at x, x), slice, score
ROWS: list[tuple[str, str, int, int, float]] = [
    ("P1", "lcc", 0, 20, 0.9),  # hit
    ("P1", "lcc", 10, 21, 0.8),  # the same finding again: no false positive
    ("P1", "lmlo", 0, 35, 0.7),  # hit in 2D, but 15 slices away: the tolerance is 10
    ("P1", "lmlo", 700, 20, 0.2),  # false
    ("P2", "lcc", 0, 10, 0.85),  # on a benign finding: false
    ("P3", "rcc", 0, 10, 0.99),  # cannot be judged
    ("P4", "rcc", 500, 30, 0.3),  # hit
    ("P5", "lcc", 0, 10, 0.4),  # false
]


def write_cohort(folder: Path) -> Path:
    """The tables; no image is there."""
    paths, labels, boxes = [], [], []
    for patient, view, label, box in COHORT:
        paths.append(f"{patient},S{patient},{view},gone.dcm,gone.dcm,{SPLIT.get(patient, 'train')}")
        labels.append(f"{patient},S{patient},{view},{ONE_HOT[label]},{DENSITY[patient]}")
        if box:
            z, x, y, kind = box
            boxes.append(f"{patient},S{patient},{view},0,{z},{x},{y},100,100,{kind},0,40")
    write_csv(folder / "file-paths.csv", (*tables.FILE_PATHS, "Split"), *paths)
    write_csv(folder / "labels.csv", (*tables.LABELS, "density"), *labels)
    write_csv(folder / "boxes.csv", tables.BOXES, *boxes)
    return folder


def write_rows(path: Path, rows: list[tuple[str, str, int, int, float]] = ROWS) -> Path:
    """Predictions as DBTex has them."""
    lines = [f"{patient},S{patient},{view},{x},100,{x},100,{z},0,{score!r}" for patient, view, x, z, score in rows]
    return write_csv(path, COLUMNS, *lines)


def figures(cohort: Path, *files: Path, **changes: Any) -> dict[str, Any]:
    """Of several systems, with few replicates and these settings."""
    return evaluate(list(files), cohort, EvaluateSettings(**({"replicates": 50} | changes)))[0]


def system(cohort: Path, file: Path, **changes: Any) -> dict[str, Any]:
    return figures(cohort, file, **changes)["systems"][0]


def recall(found: dict[str, Any], rule: str = "2D", level: str = "finding") -> list[float]:
    """At each rate, of one system."""
    return [row["recall"] for row in found["recall"][rule][level]]
