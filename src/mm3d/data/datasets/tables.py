"""Our interchange format: the three tables of BCS-DBT beside the files, with columns for what BCS-DBT cannot say.

Columns and cells in brackets may be left out. Everything that reads BCS-DBT's tables also reads these.

- file-paths.csv: PatientID, StudyUID, View, descriptive_path, classic_path
  [Modality: DBT or FFDM, DBT if not given] [Split] [Name: the view's name, if not "PatientID StudyUID View"]
  [Annotated: 0 or 1, where it does not follow from the labels as it does in BCS-DBT, see `_decide_annotations`]
- labels.csv: PatientID, StudyUID, View, Normal, Actionable, Benign, Cancer; one of the four is 1, the others are 0
  [Modality] [any further column is an attribute of the breast]
- boxes.csv: PatientID, StudyUID, View, Subject, Slice, X, Y, Width, Height, Class, AD, VolumeSlices
  [FirstSlice, LastSlice] [Kind] [Modality]

A view is lcc, lmlo, rcc or rmlo, with a number behind it if there are several of a kind. Paths are relative to the
folder. Tomosynthesis is in BCS-DBT's corrected frame (`View.upright`), mammograms are as stored, with Slice 0 of 1.

The tables are joined with dictionaries, not with pandas or polars: a repeat such as lcc2 takes the label of lcc only if
it has none of its own, and each bad row is reported in a sentence. Both take more lines there, and a heavy import.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import repeat
from operator import itemgetter
from pathlib import Path, PureWindowsPath
from typing import NamedTuple, cast

from mm3d.data.datasets.assemble import (
    CohortBuilder,
    Columns,
    Entry,
    keys_of_rows,
    make_records,
    read_blocks,
    reporting,
)
from mm3d.data.records import (
    KEY,
    Annotation,
    Cohort,
    Key,
    Label,
    Laterality,
    Modality,
    Problem,
    View,
    is_view,
    stem_of_view,
)
from mm3d.shared.errors import InputError

# Labels of BCS-DBT, from harmless to worst. Actionable was recalled, but neither biopsied nor annotated.
LABEL_OF: dict[str, Label] = {"Normal": "negative", "Actionable": "negative", "Benign": "benign", "Cancer": "malignant"}
GRADES = tuple(LABEL_OF)
DISTORTION = "architectural distortion"

FILE_PATHS = (*KEY, "descriptive_path", "classic_path")
LABELS = (*KEY, *GRADES)
BOXES = (*KEY, "Subject", "Slice", "X", "Y", "Width", "Height", "Class", "AD", "VolumeSlices")
BOXES_READ = tuple(column for column in BOXES if column not in ("Subject", "VolumeSlices"))  # v1 lacks VolumeSlices

PATH_CELLS = ("Name", "classic_path", "descriptive_path", "Split", "Annotated")  # what is read of a row of file-paths
NO_PATH = ("",) * len(PATH_CELLS)
NOT_ATTRIBUTES = {"", *LABELS, "Modality"}  # columns of the labels; any other column is an attribute of the breast
GRADE_OF = {tuple(str(int(column == grade)) for column in GRADES): grade for grade in GRADES}  # by the cells of a label

Row = Mapping[str, str]


class TableView(NamedTuple):
    """What the tables say of one view, before its file is looked for."""

    key: Key
    grade: str  # the label's column
    annotations: tuple[Annotation, ...] | None
    slices: int | None  # of the volume, if a box says so
    split: str
    attributes: dict[str, str]
    path_cells: tuple[str, ...]  # of its row in file-paths; empty if the view has a label only

    @property
    def name(self) -> str:
        return self.path_cells[0] or self.key.name

    @property
    def paths(self) -> tuple[str, ...]:
        """As in the table, the classic one first."""
        return tuple(filter(None, dict.fromkeys(self.path_cells[1:3])))

    @property
    def breast(self) -> tuple[str, str, Laterality]:
        return self.key.patient, self.key.study, self.key.laterality


def read(folder: Path) -> Cohort:
    """Read a folder with file-paths.csv, labels.csv and boxes.csv."""
    if (folder / "trial.json").is_file() and not (folder / "file-paths.csv").is_file():
        raise InputError(f"{folder} is a virtual trial that is not finished; give its 'mm3d phantom' command again.")
    views, problems = read_views(folder)

    def find(view: TableView) -> Path | None:
        return next((folder / path for path in view.paths if (folder / path).is_file()), None)

    entries, missing = locate_files(views, find, folder)
    return CohortBuilder(folder.resolve().name, entries=entries, problems=problems + missing).assemble()


def read_views(folder: Path) -> tuple[list[TableView], list[Problem]]:
    """What the three tables of a folder say, and what is wrong with them. No image is looked for."""
    return join(
        read_blocks(folder / "file-paths.csv", FILE_PATHS),
        read_blocks(folder / "labels.csv", LABELS),
        read_blocks(folder / "boxes.csv", BOXES_READ),
    )


def join(
    file_paths: Iterable[Columns], labels: Iterable[Columns], boxes: Iterable[Columns], split: str = ""
) -> tuple[list[TableView], list[Problem]]:
    """Join the three tables, which come in blocks of rows. All views are of `split`, if it is given.

    A repeat such as lcc2 has its own label if there is one, otherwise the label of lcc. Boxes of lcc are on lcc, not on
    a repeat. Only if no table has a view lcc, and lcc2 is its only repeat, they are on lcc2.

    All views are joined at once, column by column, because a loop over 20,000 views takes three times as long.
    """
    paths_of, several_paths, _ = _rows_by_key(file_paths, PATH_CELLS)
    labels_of, several_labels, attributes = _rows_by_key(labels, GRADES, NOT_ATTRIBUTES)
    boxes_of: dict[Key, list[Row]] = {}
    for block in boxes:
        for key, cells in zip(keys_of_rows(block), zip(*block.values(), strict=True), strict=True):
            boxes_of.setdefault(key, []).append(dict(zip(block, cells, strict=True)))

    repeats = [key for key in paths_of if key.view != stem_of_view(key.view)]
    unlabelled = [key for key in repeats if key not in labels_of]
    several = several_paths | several_labels | {key for key in unlabelled if key.stem in several_labels}
    lenders = {key.stem for key in unlabelled}
    labels_of |= {key: labels_of[key.stem] for key in unlabelled if key.stem in labels_of}
    label_cells = list(map(labels_of.get, paths_of))
    more: list[Key] = []  # views with a label only
    if len(label_cells) - label_cells.count(None) < len(labels_of):
        more = [key for key in labels_of if key not in paths_of and key not in lenders]
    label_cells += [labels_of[key] for key in more]
    rows = paths_of | dict.fromkeys(more, NO_PATH)

    count_of = Counter(key.stem for key in repeats)
    only_repeat = {key.stem: key for key in repeats if count_of[key.stem] == 1 and key.stem not in rows}
    unused = [key for key in boxes_of if key not in rows and only_repeat.get(key, key) in boxes_of]
    boxes_of |= {key: boxes_of[stem] for stem, key in only_repeat.items() if stem in boxes_of and key not in boxes_of}
    slices_of, drawn_of, unread = _read_boxes({key: own for key, own in boxes_of.items() if key in rows})

    annotated, drawn = map(itemgetter(-1), rows.values()), map(drawn_of.get, rows, repeat(()))
    read_label = cache(partial(_read_label, attributes))  # tables have few different labels
    labelled = map(read_label, label_cells, annotated, drawn)
    grades, annotations, values, reasons = zip(*labelled, strict=True) if rows else [()] * 4
    splits = [split] * len(rows) if split else map(itemgetter(-2), rows.values())
    columns = (grades, annotations, map(slices_of.get, rows), splits, values, rows.values())
    views = list(make_records(TableView, rows, *columns))

    refused = {key: reason for key, reason in zip(rows, reasons, strict=True) if reason} if any(reasons) else {}
    refused |= _check_keys(rows, several)
    if refused:
        views = [view for view in views if view.key not in refused]
    wrong = [key for key in rows if key in unread or key in refused] if unread or refused else []
    problems = [Problem(key.name, found[key]) for key in wrong for found in (unread, refused) if key in found]
    return views, problems + [Problem(key.name, "It has boxes, but no other table names this view.") for key in unused]


def _rows_by_key(
    table: Iterable[Columns], wanted: Sequence[str], known: Collection[str] = ()
) -> tuple[dict[Key, tuple[str, ...]], set[Key], tuple[str, ...]]:
    """The cells of the wanted columns for each view, the views with several rows, and further columns.

    A wanted column may be missing. If there are `known` columns, the cells of all others follow those of the wanted.
    """
    rows: dict[Key, tuple[str, ...]] = {}
    keys: list[Key] = []
    others: tuple[str, ...] = ()
    for block in table:
        if known:
            others = tuple(name for name in block if name not in known)
        own = keys_of_rows(block)
        nothing = [""] * len(own)
        rows.update(zip(own, zip(*(block.get(name, nothing) for name in (*wanted, *others)), strict=True), strict=True))
        keys += own
    several = {key for key, count in Counter(keys).items() if count > 1} if len(rows) < len(keys) else set()
    return rows, several, others


def _read_boxes(
    boxes_of: Mapping[Key, list[Row]],
) -> tuple[dict[Key, int | None], dict[Key, tuple[Annotation, ...] | None], dict[Key, str]]:
    """The slices and the annotations of each view with boxes, and what is wrong with those that cannot be read."""
    slices_of: dict[Key, int | None] = {}
    drawn_of: dict[Key, tuple[Annotation, ...] | None] = dict.fromkeys(boxes_of)
    unread: dict[Key, str] = {}
    for key, rows in boxes_of.items():
        try:
            slices_of[key] = _whole_number(rows[0], "VolumeSlices")
            drawn_of[key] = tuple(_read_box(row, key.modality) for row in rows)
        except InputError as error:
            unread[key] = f"Its boxes are left out, it counts as not annotated: {error}."
    return slices_of, drawn_of, unread


def _check_keys(keys: Collection[Key], several: set[Key]) -> dict[Key, str]:
    """What is wrong with keys; `several` are there several times."""
    patients, studies, names, modalities = map(set, zip(*keys, strict=True)) if keys else [set()] * 4
    if not several and "" not in patients | studies and all(map(is_view, names)) and modalities <= {"DBT", "FFDM"}:
        return {}
    wrong: dict[Key, str] = {}
    for key in keys:
        try:
            _check_key(key, several)
        except InputError as error:
            wrong[key] = str(error)
    return wrong


def _check_key(key: Key, several: set[Key]) -> None:
    if not key.patient or not key.study:
        raise InputError("It has no PatientID or no StudyUID.")
    if not is_view(key.view):
        raise InputError(f"The view {key.view!r} is none of lcc, lmlo, rcc and rmlo.")
    if key.modality not in ("DBT", "FFDM"):
        raise InputError(f"The modality {key.modality!r} is neither DBT nor FFDM.")
    if key in several:
        raise InputError("It has several rows in one table, and nothing says which is right.")


def _read_label(
    attributes: tuple[str, ...], cells: tuple[str, ...] | None, annotated: str, drawn: tuple[Annotation, ...] | None
) -> tuple[str, tuple[Annotation, ...] | None, dict[str, str], str]:
    """The grade, the annotations and the attributes of a view, from the cells of GRADES and of the attributes. The last
    is what is wrong, if something is."""
    if cells is None:
        return "", None, {}, "It has no row in the labels."
    grade = GRADE_OF.get(cells[: len(GRADES)])
    if grade is None:
        return "", None, {}, f"Its label is not exactly one of {', '.join(GRADES)}."
    values = {name: value for name, value in zip(attributes, cells[len(GRADES) :], strict=True) if value}
    try:
        return grade, _decide_annotations(grade, annotated, drawn), values, ""
    except InputError as error:
        return grade, None, values, str(error)


def _decide_annotations(
    grade: str, annotated: str, drawn: tuple[Annotation, ...] | None
) -> tuple[Annotation, ...] | None:
    """The rule of BCS-DBT, unless Annotated overrules it: everything that was biopsied has a box. So a Benign or Cancer
    view without boxes was not annotated, and in all other views there is nothing to annotate."""
    if annotated not in ("", "0", "1"):
        raise InputError(f"Annotated is {annotated!r}, neither 0 nor 1.")
    if drawn is None:  # the boxes could not be read
        return None
    negative = LABEL_OF[grade] == "negative"
    if drawn and (annotated == "0" or (annotated == "" and negative)):
        raise InputError(f"It has boxes, but its label is {grade}{' and it is not annotated' * (annotated == '0')}.")
    if grade != "Cancer" and any(annotation.malignant for annotation in drawn):
        raise InputError(f"It has a cancer box, but its label is {grade}.")
    if drawn or annotated == "1" or (annotated == "" and negative):
        return drawn
    return None


def _read_box(row: Row, modality: str) -> Annotation:
    x, y, width, height = (_number(row, column) for column in ("X", "Y", "Width", "Height"))
    best, first, last = (_whole_number(row, column) for column in ("Slice", "FirstSlice", "LastSlice"))
    slices = 1 if modality == "FFDM" else _whole_number(row, "VolumeSlices")
    for index in (best, first, last):
        if index is not None and not 0 <= index < (math.inf if slices is None else slices):
            raise InputError(f"a box is on slice {index}, which is not one of {slices} slices")
    if row["Class"].lower() not in ("benign", "cancer"):
        raise InputError(f"a box's class {row['Class']!r} is neither benign nor cancer")
    if modality == "FFDM":
        best = first = last = None
    return Annotation(
        box=(x, y, x + width, y + height),
        malignant=row["Class"].lower() == "cancer",
        slice=best,
        first_slice=first,
        last_slice=last,
        kind=row.get("Kind") or (DISTORTION if row["AD"] == "1" else ""),
    )


def _number(row: Row, column: str) -> float:
    try:
        number = float(row[column])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"a box's {column} {row[column]!r} is not a number")
    return number


def _whole_number(row: Row, column: str) -> int | None:
    if not row.get(column):
        return None
    number = _number(row, column)  # pandas writes 16.0 if the column has empty cells, too
    if not number.is_integer():
        raise InputError(f"a box's {column} {row[column]!r} is not a whole number")
    return int(number)


def worst_grades(views: Iterable[TableView]) -> dict[tuple[str, str, str], str]:
    """The worst label that the tables have for each breast, whether or not that view's file is there. Breasts that are
    Normal are not in it."""
    worst: dict[tuple[str, str, str], str] = {}
    for view in views:
        if view.grade != GRADES[0]:
            worst[view.breast] = max(worst.get(view.breast, GRADES[0]), view.grade, key=GRADES.index)
    return worst


def locate_files(
    views: Sequence[TableView], find: Callable[[TableView], Path | None], folder: Path
) -> tuple[list[Entry], list[Problem]]:
    """Look for the views' files with `find`. A breast's label is that of the tables: a cancer does not become a
    negative because the view that shows it was not downloaded."""
    files: dict[Key, Path] = {}
    problems: list[Problem] = []
    missing = 0
    for view in views:
        with reporting(problems, view.name):
            _check_paths(view)
            file = find(view)
            if file is None:
                missing += 1
                raise InputError(f"Its file {view.paths[0]} is not downloaded.")
            files[view.key] = file
    if missing and not files:
        raise InputError(f"{folder} has none of the {missing} files that its tables name; download the images into it.")
    owners, worst, entries = Counter(files.values()), worst_grades(views), []
    for view in views:
        file = files.get(view.key)
        if file is None:
            continue
        if owners[file] > 1:
            problems.append(Problem(view.name, f"Its file {file} is also the file of another view."))
            continue
        record = View(
            name=view.name,
            laterality=view.key.laterality,
            position=view.key.position,
            modality=cast(Modality, view.key.modality),
            files=(file,),
            annotations=view.annotations,
            upright=view.key.modality == "DBT",
        )
        label = LABEL_OF[worst.get(view.breast, GRADES[0])]
        entries.append(Entry(view.key.patient, view.key.study, record, label, view.split, view.attributes))
    return entries, problems


def _check_paths(view: TableView) -> None:
    for path in view.paths:
        if leaves_folder(path):
            raise InputError(f"Its path {path!r} leaves the folder.")
    if not view.paths:
        raise InputError(
            "It is in the labels, but file-paths does not name its file; take the table of the same version."
        )


def leaves_folder(path: str) -> bool:
    """Whether a path of a table may lead out of its folder, on any system: a table may come from anywhere."""
    parsed = PureWindowsPath(path)  # knows drives and both slashes
    return bool(parsed.anchor) or ".." in parsed.parts
