"""DICOM exams of small breasts, and weights that can predict them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from pydicom import Dataset
from pydicom.uid import generate_uid
from support.dicom_files import breast, mammogram, tomosynthesis, write
from support.examples import build

from mm3d.cli import main
from mm3d.model import weights
from mm3d.output.predictions import Predictions

PREPARE = {"width": 48, "length": 96, "slices": 4}
FRAMES = 9
FILES = {"predictions.json", "predictions.csv", "report.html", "run.json", "sr/measurements.dcm", "sr/cad.dcm"}


def write_weights(path: Path, **provenance: Any) -> Path:
    """A tiny detector with random weights."""
    weights.save(build(), path, {"input": "volume", "prepare": PREPARE} | provenance, "For tests only.")
    return path


def image(kind: str, side: str, position: str, seed: int = 0) -> Dataset:
    """kind: DBT or FFDM."""
    if kind == "FFDM":
        return mammogram(breast(120, 90, side, seed), side, position)
    return tomosynthesis(np.stack([breast(120, 90, side, seed + z) for z in range(FRAMES)]), side, position)


def write_exam(folder: Path, *views: str, study: str | None = None, **fields: Any) -> list[Path]:
    """Views such as "DBT L CC"; a number behind tells repeats apart. All are of one study, with these fields."""
    study = study or generate_uid()
    paths = []
    for number, name in enumerate(views):
        kind, side, position, *_ = name.split()
        ds = image(kind, side, position, seed=10 * number)
        ds.StudyInstanceUID = study
        for field, value in fields.items():
            setattr(ds, field, value)
        paths.append(write(ds, folder / f"{number}.dcm"))
    return paths


def damage(path: Path) -> None:
    """Leave a header that promises pixels in JPEG 2000, and none that can be decoded."""
    from pydicom import dcmread
    from support.dicom_files import compressed

    ds = dcmread(path)
    frames = int(ds.get("NumberOfFrames", 1))
    write(compressed(ds, "1.2.840.10008.1.2.4.90", [b"no pixels at all" * 200] * frames), path)


def predict(*arguments: str | Path, jobs: int = 1) -> int:
    """`mm3d predict`; its exit code."""
    return main(["predict", *map(str, arguments), "--jobs", str(jobs)])


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def by_view(predictions: Predictions) -> dict[tuple[str, str], Any]:
    return {(view.view, view.modality): view for _, view in predictions.views()}
