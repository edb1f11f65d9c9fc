"""CBIS-DDSM: scanned films, with a table row and a mask for each abnormality, proven by pathology.

MALIGNANT is malignant, BENIGN and BENIGN_WITHOUT_CALLBACK are benign; there are no negative breasts. The boxes are the
bounds of the masks, so this is the only reader that decodes pixels. The columns of the mask and of the cropped image
are exchanged in many rows; the mask is the one that has the size of the whole image. Some images are in the mass tables
and in the calcification tables: each becomes one view with all of its annotations.
"""

from pathlib import Path

import numpy as np
import pydicom

from mm3d.data.datasets.assemble import POSITIONS, SIDES, CohortBuilder, Entry, find_file, read_rows, reporting
from mm3d.data.dicom.header import read_dataset
from mm3d.data.records import Annotation, Cohort, Label, View
from mm3d.shared.errors import InputError

COLUMNS = (
    "patient_id", "left or right breast", "image view", "abnormality type", "assessment", "pathology",
    "image file path", "cropped image file path", "ROI mask file path",
)  # fmt: skip
MALIGNANT = {"MALIGNANT": True, "BENIGN": False, "BENIGN_WITHOUT_CALLBACK": False}
TAGS = ("SeriesInstanceUID", "Rows", "Columns")


Row = dict[str, str]  # an abnormality: a row of a table, with the name of its view and its split


def read_tables(folder: Path) -> list[Row]:
    """All rows of the four tables, with the split of the table they are in; needs no images."""
    rows = []
    for kind, split in (("mass", "train"), ("mass", "test"), ("calc", "train"), ("calc", "test")):
        table = find_file(folder, f"*{kind}_case_description_{split}_set.csv")
        for row in read_rows(table, COLUMNS):
            side, position = row["left or right breast"], row["image view"]
            name = f"{row['patient_id']}_{side}_{position}"
            if side not in SIDES or position not in POSITIONS or row["pathology"] not in MALIGNANT:
                raise InputError(f"{table}: {name} {row['pathology']} is not a row of CBIS-DDSM; download it again.")
            density = row.get("breast_density") or row.get("breast density") or ""
            rows.append(row | {"view": name, "split": split, "density": density})
    return rows


def in_both_splits(rows: list[Row]) -> set[str]:
    """The patients who are in a training table and in a test table."""
    train, test = ({row["patient_id"] for row in rows if row["split"] == split} for split in ("train", "test"))
    return train & test


def read(folder: Path) -> Cohort:
    cohort = CohortBuilder("CBIS-DDSM")
    rows = read_tables(folder)
    shared = in_both_splits(rows)
    folders = {path.name: path for kind in ("Mass", "Calc") for path in folder.rglob(f"{kind}-T*_P_*") if path.is_dir()}
    views: dict[str, list[Row]] = {}
    birads: dict[tuple[str, str], str] = {}
    for row in rows:
        views.setdefault(row["view"], []).append(row)
        breast = row["patient_id"], row["left or right breast"]
        birads[breast] = max(birads.get(breast, ""), row["assessment"])
    for name, abnormalities in views.items():
        first = abnormalities[0]
        patient, side = first["patient_id"], first["left or right breast"]
        with reporting(cohort.problems, name):
            file = next((path for row in abnormalities for path in _locate(folders, row["image file path"])), None)
            if file is None:
                raise InputError(f"Its file {first['image file path']} is missing.")
            annotations = cohort.try_annotations(name, _annotations, folders, abnormalities, _size(file))
            view = View(name, SIDES[side], POSITIONS[first["image view"]], "FFDM", (file,), annotations)
            label: Label = "malignant" if any(MALIGNANT[row["pathology"]] for row in abnormalities) else "benign"
            attributes = {"birads": birads[patient, side], "density": first["density"]}
            split = "test" if patient in shared else first["split"]
            cohort.entries.append(Entry(patient, "1", view, label, split, attributes))
    if shared:
        note = f"{len(shared)} patients are in a training and in a test table; all of their images are test."
        cohort.notes.append(note)
    return cohort.assemble()


def _locate(folders: dict[str, Path], written: str) -> list[Path]:
    """The file at the path of the table, or, where the downloader renamed folders and files, those of its series."""
    top, *rest = written.split("/")
    if top not in folders or len(rest) < 2:
        return []
    exact = folders[top].joinpath(*rest)
    if exact.is_file():
        return [exact]
    files = sorted(folders[top].rglob("*.dcm"))
    return [file for file in files if read_dataset(file, TAGS).get("SeriesInstanceUID") == rest[-2]]


def _size(file: Path) -> tuple[int, int]:
    header = read_dataset(file, TAGS)
    return int(header.get("Rows") or 0), int(header.get("Columns") or 0)


def _annotations(folders: dict[str, Path], rows: list[Row], size: tuple[int, int]) -> tuple[Annotation, ...]:
    return tuple(
        Annotation(_box(folders, row, size), MALIGNANT[row["pathology"]], kind=row["abnormality type"]) for row in rows
    )


def _box(folders: dict[str, Path], row: Row, size: tuple[int, int]) -> tuple[float, float, float, float]:
    mask, crop = row["ROI mask file path"], row["cropped image file path"]  # or the other way round
    files = {file for written in (mask, crop) for file in _locate(folders, written)}
    if not files:
        raise InputError(f"its mask {mask} is missing")
    boxes = {box for file in sorted(files) if _size(file) == size and (box := _bounds(file)) is not None}
    if len(boxes) != 1:
        raise InputError(f"{mask.split('/')[0]} has {len(boxes)} masks of the size of the image where one is expected")
    return boxes.pop()


def _bounds(file: Path) -> tuple[float, float, float, float] | None:
    """The bounds of what is above zero in a mask; None for what has not exactly two values, one of them zero."""
    try:
        pixels = pydicom.dcmread(file).pixel_array
    except Exception as error:
        raise InputError(f"{file} cannot be decoded; download it again") from error
    inside = pixels > 0
    if inside.all() or not inside.any() or (pixels[inside] != pixels.max()).any():
        return None
    ys, xs = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    return float(xs[0]), float(ys[0]), float(xs[-1] + 1), float(ys[-1] + 1)
