"""CBIS-DDSM: scanned films, with a table row and a mask for each abnormality, proven by pathology.

MALIGNANT is malignant, BENIGN and BENIGN_WITHOUT_CALLBACK are benign; there are no negative breasts. The boxes are the
bounds of the masks, so this is the only reader that decodes pixels. The columns of the mask and of the cropped image
are exchanged in many rows; the mask is the one that has the size of the whole image. Some images are in the mass tables
and in the calcification tables: each becomes one view with all of its annotations.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pydicom

from mm3d.data.datasets.assemble import POSITIONS, SIDES, Entry, assemble, find_file, read_rows, try_annotations
from mm3d.data.dicom.header import read_dataset
from mm3d.data.records import Annotation, Cohort, Label, Laterality, Position, Problem, View
from mm3d.shared.errors import InputError

COLUMNS = (
    "patient_id", "left or right breast", "image view", "abnormality type", "assessment", "pathology",
    "image file path", "cropped image file path", "ROI mask file path",
)  # fmt: skip
MALIGNANT = {"MALIGNANT": True, "BENIGN": False, "BENIGN_WITHOUT_CALLBACK": False}
TAGS = ("SeriesInstanceUID", "Rows", "Columns")


@dataclass(frozen=True)
class Abnormality:
    """A row of a table."""

    view: str  # P_00001_LEFT_CC
    patient: str
    laterality: Laterality
    position: Position
    malignant: bool
    kind: str
    density: str
    birads: str
    split: str
    image: str  # paths as the table has them
    rois: tuple[str, str]  # mask and crop, in either order


def read_tables(folder: Path) -> list[Abnormality]:
    """All rows of the four tables, with the split of the table they are in; needs no images."""
    rows = []
    for kind, split in (("mass", "train"), ("mass", "test"), ("calc", "train"), ("calc", "test")):
        table = find_file(folder, f"*{kind}_case_description_{split}_set.csv")
        for row in read_rows(table, COLUMNS):
            side, position = SIDES.get(row["left or right breast"]), POSITIONS.get(row["image view"])
            malignant = MALIGNANT.get(row["pathology"])
            name = f"{row['patient_id']}_{row['left or right breast']}_{row['image view']}"
            if side is None or position is None or malignant is None:
                raise InputError(f"{table}: {name} {row['pathology']} is not a row of CBIS-DDSM; download it again.")
            rows.append(
                Abnormality(
                    view=name,
                    patient=row["patient_id"],
                    laterality=side,
                    position=position,
                    malignant=malignant,
                    kind=row["abnormality type"],
                    density=row.get("breast_density") or row.get("breast density") or "",
                    birads=row["assessment"],
                    split=split,
                    image=row["image file path"],
                    rois=(row["ROI mask file path"], row["cropped image file path"]),
                )
            )
    return rows


def in_both_splits(rows: list[Abnormality]) -> set[str]:
    """The patients who are in a training table and in a test table."""
    train, test = ({row.patient for row in rows if row.split == split} for split in ("train", "test"))
    return train & test


def read(folder: Path) -> Cohort:
    rows = read_tables(folder)
    shared = in_both_splits(rows)
    folders = {path.name: path for kind in ("Mass", "Calc") for path in folder.rglob(f"{kind}-T*_P_*") if path.is_dir()}
    views: dict[str, list[Abnormality]] = {}
    birads: dict[tuple[str, str], str] = {}
    for row in rows:
        views.setdefault(row.view, []).append(row)
        breast = row.patient, row.laterality
        birads[breast] = max(birads.get(breast, ""), row.birads)
    entries: list[Entry] = []
    problems: list[Problem] = []
    for name, abnormalities in views.items():
        first = abnormalities[0]
        try:
            file = next((path for row in abnormalities for path in _locate(folders, row.image)), None)
            if file is None:
                raise InputError(f"Its file {first.image} is missing")
            size = _size(file)
        except InputError as error:
            problems.append(Problem(name, f"{error}."))
            continue
        annotations = try_annotations(name, problems, _annotations, folders, abnormalities, size)
        view = View(name, first.laterality, first.position, "FFDM", (file,), annotations)
        label: Label = "malignant" if any(row.malignant for row in abnormalities) else "benign"
        attributes = {"birads": birads[first.patient, first.laterality], "density": first.density}
        split = "test" if first.patient in shared else first.split
        entries.append(Entry(first.patient, "1", view, label, split, attributes))
    notes = []
    if shared:
        notes.append(f"{len(shared)} patients are in a training and in a test table; all of their images are test.")
    return assemble("CBIS-DDSM", entries, problems, notes)


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


def _annotations(folders: dict[str, Path], rows: list[Abnormality], size: tuple[int, int]) -> tuple[Annotation, ...]:
    return tuple(Annotation(_box(folders, row, size), row.malignant, kind=row.kind) for row in rows)


def _box(folders: dict[str, Path], row: Abnormality, size: tuple[int, int]) -> tuple[float, float, float, float]:
    files = {file for written in row.rois for file in _locate(folders, written)}
    if not files:
        raise InputError(f"its mask {row.rois[0]} is missing")
    boxes = {box for file in sorted(files) if _size(file) == size and (box := _bounds(file)) is not None}
    if len(boxes) != 1:
        name = row.rois[0].split("/")[0]
        raise InputError(f"{name} has {len(boxes)} masks of the size of the image where one is expected")
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
