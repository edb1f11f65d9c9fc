"""The findings of a detector in a collection of exams, and the two kinds of file that hold them.

- CSV as in the DBTex challenge: one row for each finding. Columns are found by name and may be in any order.
- Our JSON: it also has the scores of views and breasts, the slice weights, and what made the predictions.

Boxes are xyxy in stored pixels. Slices are 0-based indices into the stored volume. Scores may have any scale.
docs/evaluation.md describes both formats for users.
"""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from mm3d.data.datasets.assemble import read_rows
from mm3d.data.records import KEY, Key, Laterality, Modality, Position
from mm3d.shared.config import from_dict, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

VERSION = 1  # of the JSON
NUMBERS = ("X", "Width", "Y", "Height", "Z", "Depth", "Score")
COLUMNS = (*KEY, *NUMBERS)  # in DBTex's own order


@dataclass(frozen=True)
class Finding:
    """What a detector found in one place of one view.

    Parameters
    ----------
    box : x1, y1, x2, y2 in stored pixels.
    score : how suspicious it is, on any scale; mm3d's own scores are from 0 to 1.
    slice : the most suspicious slice, or the middle of `depth` slices; None in a mammogram.
    depth : DBTex's Depth: how many slices it spans; 0 or -1: it is on one slice.
    slice_weights : the weight w of each of the model's S slices, from the first to the last.
    lesion : findings of a breast with the same number are one lesion; not written to files of predictions.
    """

    box: tuple[float, ...]
    score: float
    slice: float | None = None
    depth: float = 0.0
    slice_weights: tuple[float, ...] | None = None
    lesion: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise InputError(f"the score {self.score} is not a finite number")
        if len(self.box) != 4 or not all(map(math.isfinite, self.box)):
            raise InputError(f"the box {list(self.box)} is not four finite numbers")
        x1, y1, x2, y2 = self.box
        if x1 > x2 or y1 > y2:
            raise InputError(f"the box {list(self.box)} has a negative size")
        if self.slice is not None and not math.isfinite(self.slice):
            raise InputError(f"the slice {self.slice} is not a finite number")
        if not -1 <= self.depth < math.inf:
            raise InputError(f"the depth {self.depth} is not a number of slices")

    @property
    def first_slice(self) -> float | None:
        """DBTex's Z."""
        return None if self.slice is None else self.slice - (max(self.depth, 1.0) - 1) / 2

    @property
    def has_area(self) -> bool:
        x1, y1, x2, y2 = self.box
        return x1 < x2 and y1 < y2


@dataclass(frozen=True)
class ViewPrediction:
    """The findings of one view, in any order, and the view's own score if the detector gives one."""

    view: str  # lcc, lmlo, rcc or rmlo; a repeated view has a number behind it, such as lcc1
    findings: tuple[Finding, ...]
    modality: Modality = "DBT"
    score: float | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch("(l|r)(cc|mlo)[0-9]*", self.view):
            raise InputError(f"the view {self.view!r} is none of lcc, lmlo, rcc and rmlo")
        if self.modality not in get_args(Modality):
            raise InputError(f"the modality {self.modality!r} is neither DBT nor FFDM")
        if self.score is not None and not math.isfinite(self.score):
            raise InputError(f"the score {self.score} of the view is not a finite number")

    @property
    def laterality(self) -> Laterality:
        return "L" if self.view[0] == "l" else "R"

    @property
    def position(self) -> Position:
        return "MLO" if "mlo" in self.view else "CC"

    def marked(self, threshold: float) -> list[Finding]:
        """The findings that reach the operating point, the highest score first. A box without area cannot be shown."""
        marked = [finding for finding in self.findings if finding.score >= threshold and finding.has_area]
        return sorted(marked, key=lambda finding: -finding.score)


@dataclass(frozen=True)
class BreastPrediction:
    """One breast in one exam."""

    patient: str
    exam: str
    laterality: Laterality
    views: tuple[ViewPrediction, ...]
    score: float | None = None

    def __post_init__(self) -> None:
        if any(view.view[0].upper() != self.laterality for view in self.views):
            raise InputError(f"{self.patient} {self.exam}: a view is not of the side {self.laterality}")
        if self.score is not None and not math.isfinite(self.score):
            raise InputError(f"the score {self.score} of the breast is not a finite number")
        for key, count in Counter(self.view_keys()).items():
            if count > 1:
                raise InputError(f"the view {key.name} is there twice; keep one.")

    def view_keys(self) -> list[Key]:
        return [Key(self.patient, self.exam, view.view, view.modality) for view in self.views]


@dataclass(frozen=True)
class Predictions:
    """The findings of one detector in a collection of exams."""

    breasts: tuple[BreastPrediction, ...]
    model: dict[str, str] = field(default_factory=dict)  # what made them: name, weights, version, …
    places: Mapping[Key, str] = field(default_factory=dict, compare=False)  # file and row of each view, for messages

    def __post_init__(self) -> None:
        seen: set[tuple[str, ...]] = set()
        for breast in self.breasts:
            name = (breast.patient, breast.exam, breast.laterality)
            if name in seen:
                place = next((self.places[key] for key in breast.view_keys() if key in self.places), "predictions")
                raise InputError(f"{place}: the breast {' '.join(name)} is there twice; put its views together.")
            seen.add(name)

    def views(self) -> Iterator[tuple[Key, ViewPrediction]]:
        for breast in self.breasts:
            yield from zip(breast.view_keys(), breast.views, strict=True)


def read(path: Path) -> Predictions:
    """Read a file of predictions, .json or .csv."""
    if not path.is_file():
        wrong = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {wrong}; give a file of predictions (.csv as in DBTex, or our .json).")
    if path.suffix.lower() == ".json":
        return read_json(path)
    if path.suffix.lower() == ".csv":
        return read_dbtex(path)
    raise InputError(f"{path} is neither .csv nor .json; give predictions as in DBTex, or our JSON.")


def read_dbtex(path: Path) -> Predictions:
    """Read DBTex's CSV. A column Modality may be there (default: DBT). Z may be empty: no slice is predicted."""
    views: dict[Key, list[Finding]] = {}
    places: dict[Key, str] = {}
    for number, row in enumerate(read_rows(path, COLUMNS), 2):  # as spreadsheets count: the header is row 1
        key = Key(row["PatientID"], row["StudyUID"], row["View"].lower(), row.get("Modality", "").upper() or "DBT")
        try:
            finding = _finding(row, key.modality)
            _view(key, [finding])  # checks view and modality
        except InputError as error:
            raise InputError(f"{path}, row {number}: {error}; mend or remove the row.") from error
        places.setdefault(key, f"{path}, row {number}")
        views.setdefault(key, []).append(finding)
    breasts: dict[tuple[str, str, Laterality], list[ViewPrediction]] = {}
    for key, findings in views.items():
        view = _view(key, findings)
        breasts.setdefault((key.patient, key.study, view.laterality), []).append(view)
    return Predictions(tuple(BreastPrediction(*name, tuple(own)) for name, own in breasts.items()), places=places)


def _view(key: Key, findings: Sequence[Finding]) -> ViewPrediction:
    return ViewPrediction(key.view, tuple(findings), cast(Modality, key.modality))


def _finding(row: Mapping[str, str], modality: str) -> Finding:
    given = {column: _number(column, row[column]) for column in NUMBERS if column != "Z"}
    x, y, width, height, depth = (given[column] for column in ("X", "Y", "Width", "Height", "Depth"))
    middle = None
    if row["Z"] and modality == "DBT":
        middle = _number("Z", row["Z"]) + (max(depth, 1.0) - 1) / 2
    return Finding((x, y, x + width, y + height), given["Score"], middle, depth)


def _number(column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{column} {text!r} is not a number")
    return number


def write_dbtex(predictions: Predictions, path: Path) -> None:
    """Write DBTex's CSV: the findings, without the scores of views and breasts. Mammograms add a column Modality."""
    flat = any(key.modality == "FFDM" for key, _ in predictions.views())
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*COLUMNS, "Modality") if flat else COLUMNS)
        for key, view in predictions.views():
            for finding in view.findings:
                x1, y1, x2, y2 = finding.box
                numbers = (x1, x2 - x1, y1, y2 - y1, finding.first_slice, finding.depth, finding.score)
                writer.writerow((*key[:3], *map(_text, numbers), *([key.modality] if flat else [])))


def _text(number: float | None) -> str:
    if number is None:
        return ""
    return str(int(number)) if float(number).is_integer() else repr(float(number))


def read_json(path: Path) -> Predictions:
    """Read our JSON."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); write it again.") from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise InputError(f"{path} has no 'version': {VERSION}; it is not a file of predictions that this mm3d reads.")
    predictions = from_dict(_Content, content, str(path))
    breasts = enumerate(predictions.breasts)
    places = {key: f"{path}: 'breasts'[{i}]" for i, breast in breasts for key in breast.view_keys()}
    return Predictions(predictions.breasts, predictions.model, places)


def write_json(predictions: Predictions, path: Path) -> None:
    """Write our JSON; what is None is left out."""
    content = to_dict(_Content(VERSION, predictions.breasts, predictions.model))
    with replacing(path) as partial:
        partial.write_text(json.dumps(_stored(content), indent=1, allow_nan=False), encoding="utf-8")


@dataclass(frozen=True)
class _Content:
    """All of our JSON."""

    version: int
    breasts: tuple[BreastPrediction, ...]
    model: dict[str, str] = field(default_factory=dict)


def _stored(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stored(item) for key, item in value.items() if item is not None and key != "lesion"}
    return [_stored(item) for item in value] if isinstance(value, list) else value
