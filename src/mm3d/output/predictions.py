"""The findings of a detector in a collection of exams, and the kinds of file that hold them.

- CSV as in the DBTex challenge: one row for each finding. Columns are found by name and may be in any order.
- Our JSON: it also has the scores of views and breasts, the slice weights, and what made the predictions.
- COCO (`coco.py`), with the same in fields of its own.

Boxes are xyxy in stored pixels. Slices are 0-based indices into the stored volume. Scores may have any scale.
docs/evaluation.md describes both formats for users.
"""

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from mm3d.data.datasets.assemble import keys_of_rows, read_blocks, read_rows
from mm3d.data.records import KEY, Key, Laterality, Modality, Position, is_view
from mm3d.output.coco import Size, from_coco, is_coco, to_coco
from mm3d.shared.collector import paused_collector
from mm3d.shared.config import from_dict, parse_json, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing
from mm3d.shared.spreadsheet import write_rows

VERSION = 1  # of the JSON
NESTED = 0.7  # share of a box inside another one from which both are one lesion
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
        if not is_view(self.view):
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
        """The findings that reach the operating point, the highest score first, each lesion once. A box without area
        cannot be shown."""
        found = (self.findings[number] for number in choose_distinct(self.findings))
        return [finding for finding in found if finding.score >= threshold and finding.has_area]


def choose_distinct(findings: Sequence[Finding]) -> list[int]:
    """The numbers of findings of a view that are taken for lesions of their own, the highest score first.

    A box around a box, or in one, is the same lesion twice: of two of which one lies by at least `NESTED` of its area
    in the other, the one with the higher score counts. The depth is not asked, as in non-maximum suppression.
    """
    kept: list[int] = []
    for number in sorted(range(len(findings)), key=lambda n: -findings[n].score):
        if not any(_is_nested(findings[number].box, findings[other].box) for other in kept):
            kept.append(number)
    return kept


def _is_nested(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return min(width, height) > 0 and width * height >= NESTED * smaller


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
class PredictionTable:
    """The findings of one detector as columns, which evaluation computes with: P views with F findings."""

    keys: tuple[Key, ...]  # P
    view_scores: NDArray[np.float64]  # (P,) the views' own, NaN where there is none
    breast_scores: Mapping[tuple[str, str, str], float | None]  # by patient, exam and laterality; a CSV has none
    view: NDArray[np.int64]  # (F,) number of the view of each finding
    boxes: NDArray[np.float64]  # (F, 4) xyxy, stored pixels
    slices: NDArray[np.float64]  # (F,) predicted slice, NaN where there is none
    depths: NDArray[np.float64]  # (F,)
    scores: NDArray[np.float64]  # (F,)

    @classmethod
    def of(cls, breasts: Sequence[BreastPrediction]) -> "PredictionTable":
        """The table of records; slice weights are not in it."""
        views = [pair for breast in breasts for pair in zip(breast.view_keys(), breast.views, strict=True)]
        found = [(number, finding) for number, (_, view) in enumerate(views) for finding in view.findings]
        return cls(
            keys=tuple(key for key, _ in views),
            view_scores=np.array([view.score for _, view in views], dtype=float),  # None becomes NaN
            breast_scores={(breast.patient, breast.exam, breast.laterality): breast.score for breast in breasts},
            view=np.array([number for number, _ in found], dtype=np.int64),
            boxes=np.array([finding.box for _, finding in found], dtype=float).reshape(-1, 4),
            slices=np.array([finding.slice for _, finding in found], dtype=float),
            depths=np.array([finding.depth for _, finding in found], dtype=float),
            scores=np.array([finding.score for _, finding in found], dtype=float),
        )

    def records(self) -> tuple[BreastPrediction, ...]:
        findings: list[list[Finding]] = [[] for _ in self.keys]
        columns = (self.view, self.boxes, self.slices, self.depths, self.scores)
        for view, box, z, depth, score in zip(*(column.tolist() for column in columns), strict=True):
            findings[view].append(Finding(tuple(box), score, None if math.isnan(z) else z, depth))
        views_of: dict[tuple[str, str, Laterality], list[ViewPrediction]] = {}
        for key, own, score in zip(self.keys, findings, self.view_scores.tolist(), strict=True):
            own_score = None if math.isnan(score) else score
            view = ViewPrediction(key.view, tuple(own), cast(Modality, key.modality), own_score)
            views_of.setdefault((key.patient, key.study, key.laterality), []).append(view)
        return tuple(
            BreastPrediction(*breast, tuple(views), self.breast_scores.get(breast))
            for breast, views in views_of.items()
        )


@dataclass(frozen=True, eq=False)
class Predictions:
    """The findings of one detector in a collection of exams, as records and as a table.

    It is made of either, and the other is made when it is asked for: a file of 100,000 rows is measured without a
    record for each row.
    """

    source: tuple[BreastPrediction, ...] | PredictionTable
    model: dict[str, str] = field(default_factory=dict)  # what made them: name, weights, version, …
    place: Callable[[Key], str] = lambda _: "predictions"  # file and row of a view, for messages

    def __post_init__(self) -> None:
        seen: set[tuple[str, ...]] = set()
        for breast in () if isinstance(self.source, PredictionTable) else self.source:
            name = (breast.patient, breast.exam, breast.laterality)
            if name in seen:
                place = next(map(self.place, breast.view_keys()), "predictions")
                raise InputError(f"{place}: the breast {' '.join(name)} is there twice; put its views together.")
            seen.add(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predictions) and (self.breasts, self.model) == (other.breasts, other.model)

    @cached_property
    def breasts(self) -> tuple[BreastPrediction, ...]:
        return self.source.records() if isinstance(self.source, PredictionTable) else self.source

    @cached_property
    def table(self) -> PredictionTable:
        return self.source if isinstance(self.source, PredictionTable) else PredictionTable.of(self.source)

    def views(self) -> Iterator[tuple[Key, ViewPrediction]]:
        for breast in self.breasts:
            yield from zip(breast.view_keys(), breast.views, strict=True)


def read(path: Path) -> Predictions:
    """Read a file of predictions, .json or .csv."""
    if not path.is_file():
        wrong = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {wrong}; give a file of predictions (.csv as in DBTex, our .json, or COCO).")
    if path.suffix.lower() == ".json":
        return read_json(path)
    if path.suffix.lower() == ".csv":
        return read_dbtex(path)
    raise InputError(f"{path} is neither .csv nor .json; give predictions as in DBTex, our JSON, or COCO.")


@paused_collector()
def read_dbtex(path: Path) -> Predictions:
    """Read DBTex's CSV. A column Modality may be there (default: DBT). Z may be empty: no slice is predicted."""
    number_of: dict[Key, int] = defaultdict(itertools.count().__next__)  # numbers views as they come
    numbers_of_views: list[int] = []
    blocks: list[NDArray[np.float64]] = []
    for columns in read_blocks(path, COLUMNS):
        numbers_of_views += map(number_of.__getitem__, keys_of_rows(columns))
        has_z = np.fromiter(map(bool, columns["Z"]), bool, len(columns["Z"]))
        blocks.append(np.stack([*(_numbers(columns[column]) for column in NUMBERS), has_z]))
    keys, view = tuple(number_of), np.array(numbers_of_views, dtype=np.int64)
    x, width, y, height, first, depth, score, has_slice = np.concatenate(blocks, axis=1)
    has_slice = (has_slice > 0) & np.array([key.modality == "DBT" for key in keys], dtype=bool)[view]
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        boxes = np.column_stack([x, y, x + width, y + height])
        slices = np.where(has_slice, first + (np.maximum(depth, 1.0) - 1) / 2, np.nan)
    modalities = get_args(Modality)
    good = np.array([is_view(key.view) and key.modality in modalities for key in keys], dtype=bool)[view]
    good &= np.isfinite(boxes).all(axis=1) & (boxes[:, :2] <= boxes[:, 2:]).all(axis=1)
    good &= (depth >= -1) & (depth < np.inf) & np.isfinite(score) & (np.isfinite(slices) | ~has_slice)
    if not good.all():
        _check_rows(path)
    return Predictions(
        PredictionTable(keys, np.full(len(keys), np.nan), {}, view, boxes, slices, depth, score),
        place=lambda key: _place(path, int(np.argmax(view == number_of[key]))),
    )


def _check_rows(path: Path) -> None:
    """Make a record of each row, which says in a sentence what it refuses."""
    for number, row in enumerate(read_rows(path, COLUMNS)):
        modality = cast(Modality, row.get("Modality", "").upper() or "DBT")
        try:
            ViewPrediction(row["View"].lower(), (_finding(row, modality),), modality)
        except InputError as error:
            raise InputError(f"{_place(path, number)}: {error}; mend or remove the row.") from error


def _place(path: Path, row: int) -> str:
    return f"{path}, row {row + 2}"  # as spreadsheets count: the header is row 1


def _numbers(cells: Sequence[str]) -> NDArray[np.float64]:
    """The numbers in the cells (n,); NaN in a cell that has none."""
    try:
        return np.fromiter(map(float, cells), float, len(cells))
    except ValueError:
        return np.fromiter(map(_to_float, cells), float, len(cells))


def _to_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _finding(row: Mapping[str, str], modality: str) -> Finding:
    given = {column: _number(column, row[column]) for column in NUMBERS if column != "Z"}
    x, y, width, height, depth = (given[column] for column in ("X", "Y", "Width", "Height", "Depth"))
    middle = None
    if row["Z"] and modality == "DBT":
        middle = _number("Z", row["Z"]) + (max(depth, 1.0) - 1) / 2
    return Finding((x, y, x + width, y + height), given["Score"], middle, depth)


def _number(column: str, text: str) -> float:
    number = _to_float(text)
    if not math.isfinite(number):
        raise InputError(f"{column} {text!r} is not a number")
    return number


def write_dbtex(predictions: Predictions, path: Path) -> None:
    """Write DBTex's CSV: the findings, without the scores of views and breasts. Mammograms add a column Modality."""
    flat = any(key.modality == "FFDM" for key, _ in predictions.views())
    rows: list[tuple[str, ...]] = [(*COLUMNS, "Modality") if flat else COLUMNS]
    for key, view in predictions.views():
        for finding in view.findings:
            x1, y1, x2, y2 = finding.box
            numbers = (x1, x2 - x1, y1, y2 - y1, finding.first_slice, finding.depth, finding.score)
            rows.append((*key[:3], *map(_text, numbers), *([key.modality] if flat else [])))
    write_rows(path, rows)


def _text(number: float | None) -> str:
    if number is None:
        return ""
    return str(int(number)) if float(number).is_integer() else repr(float(number))


def read_json(path: Path) -> Predictions:
    """Read our JSON, or a COCO file of findings."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); write it again.") from error
    if is_coco(content):
        content = from_coco(content, path)
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise InputError(f"{path} has no 'version': {VERSION}; it is not a file of predictions that this mm3d reads.")
    predictions = from_dict(_Content, content, str(path))
    breasts = enumerate(predictions.breasts)
    places = {key: f"{path}: 'breasts'[{i}]" for i, breast in breasts for key in breast.view_keys()}
    return Predictions(predictions.breasts, predictions.model, places.__getitem__)


def write_json(predictions: Predictions, path: Path) -> None:
    """Write our JSON; what is None is left out."""
    content = to_dict(_Content(VERSION, predictions.breasts, predictions.model))
    with replacing(path) as partial:
        partial.write_text(json.dumps(_stored(content), indent=1, allow_nan=False), encoding="utf-8")


def write_coco(predictions: Predictions, path: Path, sizes: Mapping[Key, Size] | None = None) -> None:
    """Write a COCO file. Views that have no `sizes` are without width and height."""
    content = to_dict(_Content(VERSION, predictions.breasts, predictions.model))
    with replacing(path) as partial:
        partial.write_text(json.dumps(to_coco(content, sizes or {}), indent=1, allow_nan=False), encoding="utf-8")


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
