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

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import NamedTuple, cast

from mm3d.data.datasets.assemble import SEVERITY, CohortBuilder, Entry, keys_of_rows, read_columns, reporting
from mm3d.data.records import (
    KEY,
    Annotation,
    Breast,
    Cohort,
    Key,
    Label,
    Laterality,
    Modality,
    Problem,
    View,
    is_view,
    keys_of,
)
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

# Labels of BCS-DBT, from harmless to worst. Actionable was recalled, but neither biopsied nor annotated.
LABEL_OF: dict[str, Label] = {"Normal": "negative", "Actionable": "negative", "Benign": "benign", "Cancer": "malignant"}
GRADES = tuple(LABEL_OF)
DISTORTION = "architectural distortion"

FILE_PATHS = (*KEY, "descriptive_path", "classic_path")
LABELS = (*KEY, *GRADES)
BOXES = (*KEY, "Subject", "Slice", "X", "Y", "Width", "Height", "Class", "AD", "VolumeSlices")
BOXES_READ = tuple(column for column in BOXES if column not in ("Subject", "VolumeSlices"))  # v1 lacks VolumeSlices

PATH_CELLS = ("classic_path", "descriptive_path", "Name", "Split", "Annotated")  # what is read of a row of file-paths
NO_PATH = ("",) * len(PATH_CELLS)
NOT_ATTRIBUTES = {"", *LABELS, "Modality"}  # columns of the labels; any other column is an attribute of the breast
GRADE_OF = {tuple(str(int(column == grade)) for column in GRADES): grade for grade in GRADES}  # by the cells of a label

Row = Mapping[str, str]
Columns = Mapping[str, Sequence[str]]
NO_ROWS: Columns = dict.fromkeys(KEY, ())


class TableView(NamedTuple):
    """What the tables say of one view, before its file is looked for."""

    key: Key
    name: str
    grade: str  # the label's column
    annotations: tuple[Annotation, ...] | None
    slices: int | None  # of the volume, if a box says so
    paths: tuple[str, ...]  # as in the table, the classic one first; empty if the view has a label only
    split: str
    attributes: dict[str, str]

    @property
    def breast(self) -> tuple[str, str, Laterality]:
        return self.key.patient, self.key.study, self.key.laterality


# Reading


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
        read_columns(folder / "file-paths.csv", FILE_PATHS),
        read_columns(folder / "labels.csv", LABELS),
        read_columns(folder / "boxes.csv", BOXES_READ),
    )


def join(file_paths: Columns, labels: Columns, boxes: Columns) -> tuple[list[TableView], list[Problem]]:
    """Join the three tables, view by view.

    A repeat such as lcc2 has its own label if there is one, otherwise the label of lcc. Boxes of lcc are on lcc, not on
    a repeat. Only if no table has a view lcc, and lcc2 is its only repeat, they are on lcc2.
    """
    attributes = tuple(name for name in labels if name not in NOT_ATTRIBUTES)
    paths_of, several_paths = _rows_by_key(file_paths, PATH_CELLS)
    labels_of, several_labels = _rows_by_key(labels, GRADES + attributes)
    boxes_of: dict[Key, list[Row]] = {}
    for key, cells in zip(keys_of_rows(boxes), zip(*boxes.values(), strict=True), strict=True):
        boxes_of.setdefault(key, []).append(dict(zip(boxes, cells, strict=True)))
    labels_of_repeats = {key.stem for key in paths_of if key not in labels_of}
    keys = dict.fromkeys([*paths_of, *(key for key in labels_of if key not in labels_of_repeats)])
    repeats = Counter(key.stem for key in paths_of if key.stem != key)
    views: list[TableView] = []
    problems: list[Problem] = []
    used_boxes: set[Key] = set()
    for key in keys:
        label_key = key if key in labels_of else key.stem
        only_repeat = key in paths_of and key.stem not in keys and repeats[key.stem] == 1
        box_key = key.stem if only_repeat and key not in boxes_of else key
        used_boxes.add(box_key)
        rows = boxes_of.get(box_key, [])
        slices, drawn = None, None
        try:
            slices = _whole_number(rows[0], "VolumeSlices") if rows else None
            drawn = [_read_box(row, key.modality) for row in rows]
        except InputError as error:
            problems.append(Problem(key.name, f"Its boxes are left out, it counts as not annotated: {error}."))
        try:
            _check_key(key, several=key in several_paths or label_key in several_labels)
            path, label = paths_of.get(key, NO_PATH), labels_of.get(label_key, ())
            views.append(_join_view(key, path, label, attributes, drawn, slices))
        except InputError as error:
            problems.append(Problem(key.name, str(error)))
    unused = [key for key in boxes_of if key not in used_boxes]
    return views, problems + [Problem(key.name, "It has boxes, but no other table names this view.") for key in unused]


def _rows_by_key(table: Columns, names: Sequence[str]) -> tuple[dict[Key, tuple[str, ...]], set[Key]]:
    """The cells of the named columns for each view, and the views with several rows. A column may be missing."""
    keys = keys_of_rows(table)
    nothing = [""] * len(keys)
    rows = dict(zip(keys, zip(*(table.get(name, nothing) for name in names), strict=True), strict=True))
    return rows, {key for key, count in Counter(keys).items() if count > 1} if len(rows) < len(keys) else set()


def _check_key(key: Key, several: bool) -> None:
    if not key.patient or not key.study:
        raise InputError("It has no PatientID or no StudyUID.")
    if not is_view(key.view):
        raise InputError(f"The view {key.view!r} is none of lcc, lmlo, rcc and rmlo.")
    if key.modality not in ("DBT", "FFDM"):
        raise InputError(f"The modality {key.modality!r} is neither DBT nor FFDM.")
    if several:
        raise InputError("It has several rows in one table, and nothing says which is right.")


def _join_view(
    key: Key,
    path: tuple[str, ...],  # PATH_CELLS
    label: tuple[str, ...],  # GRADES and attributes
    attributes: tuple[str, ...],
    drawn: list[Annotation] | None,
    slices: int | None,
) -> TableView:
    if not label:
        raise InputError("It has no row in the labels.")
    grade = GRADE_OF.get(label[: len(GRADES)])
    if grade is None:
        raise InputError(f"Its label is not exactly one of {', '.join(GRADES)}.")
    classic, descriptive, name, split, annotated = path
    values = zip(attributes, label[len(GRADES) :], strict=True) if attributes else ()
    return TableView(
        key=key,
        name=name or key.name,
        grade=grade,
        annotations=_decide_annotations(grade, annotated, drawn),
        slices=slices,
        paths=tuple(filter(None, dict.fromkeys((classic, descriptive)))),
        split=split,
        attributes={attribute: value for attribute, value in values if value},
    )


def _decide_annotations(grade: str, annotated: str, drawn: list[Annotation] | None) -> tuple[Annotation, ...] | None:
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
        return tuple(drawn)
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
    """The worst label that the tables have for each breast, whether or not that view's file is there."""
    worst: dict[tuple[str, str, str], str] = {}
    for view in views:
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
        label = LABEL_OF[worst[view.breast]]
        entries.append(Entry(view.key.patient, view.key.study, record, label, view.split, view.attributes))
    return entries, problems


def _check_paths(view: TableView) -> None:
    for path in view.paths:
        if _leaves_folder(path):
            raise InputError(f"Its path {path!r} leaves the folder.")
    if not view.paths:
        raise InputError(
            "It is in the labels, but file-paths does not name its file; take the table of the same version."
        )


def _leaves_folder(path: str) -> bool:
    """Whether a path of a table may lead out of its folder, on any system: a table may come from anywhere."""
    parsed = PureWindowsPath(path)  # knows drives and both slashes
    return bool(parsed.anchor) or ".." in parsed.parts


# Writing


def write(cohort: Cohort, folder: Path, volume_slices: Mapping[str, int]) -> None:
    """Write the tables of a cohort, so that `read` gives its breasts back.

    Parameters
    ----------
    cohort : its files lie in the folder.
    folder : where the tables go.
    volume_slices : by the view's name, how many slices each tomosynthesis view with annotations has.
    """
    names = Counter(breast.name for breast in cohort.breasts)
    if names and max(names.values()) > 1:
        raise InputError(f"{names.most_common(1)[0][0]} is twice in the cohort, and would become one breast.")
    file_paths: list[dict[str, str]] = []
    labels: list[dict[str, str]] = []
    boxes: list[dict[str, str]] = []
    attributes = dict.fromkeys(name for breast in cohort.breasts for name in breast.attributes)
    for name in attributes:
        if name in NOT_ATTRIBUTES:
            raise InputError(f"An attribute cannot be called {name!r} in the tables; rename it.")
    for breast in cohort.breasts:
        for view, key, grade in zip(breast.views, keys_of(breast), _grade_views(breast), strict=True):
            ids = dict(zip(KEY, key[:3], strict=True)) | {"Modality": view.modality}
            path = _relative_path(folder, view)
            file_paths.append(
                ids
                | {"descriptive_path": path, "classic_path": path, "Split": breast.split}
                | {"Name": "" if view.name == key.name else view.name, "Annotated": _annotated_cell(grade, view)}
            )
            labels.append(ids | {column: str(int(column == grade)) for column in GRADES} | breast.attributes)
            boxes += [ids | _box_cells(view, annotation, volume_slices) for annotation in view.annotations or ()]
    for row in (*file_paths, *labels, *boxes):
        for column, value in row.items():
            if value != value.strip() or not value.isprintable():
                raise InputError(f"{column} {value!r} cannot be written to a table: it would not come back the same.")
    # The file paths come last: without them an interrupted first run leaves nothing that looks like a cohort.
    _write_table(folder / "boxes.csv", BOXES, ("FirstSlice", "LastSlice", "Kind", "Modality"), boxes)
    _write_table(folder / "labels.csv", LABELS, ("Modality", *attributes), labels)
    _write_table(folder / "file-paths.csv", FILE_PATHS, ("Modality", "Split", "Name", "Annotated"), file_paths)


def _grade_views(breast: Breast) -> list[str]:
    """A label for each view: what its annotations say if that adds up to the breast's label, otherwise the breast's."""
    if breast.label is None:
        raise InputError(f"{breast.name} has no label, and the tables need one.")
    own: list[Label] = []
    for view in breast.views:
        if view.annotations is None:
            own.append(breast.label)
        elif any(annotation.malignant for annotation in view.annotations):
            own.append("malignant")
        else:
            own.append("benign" if view.annotations else "negative")
    if max(own, key=SEVERITY.__getitem__) != breast.label:
        own = [breast.label] * len(own)
    # Actionable and normal are both negative. Our reader of BCS-DBT keeps the difference in an attribute.
    negative = "Actionable" if breast.attributes.get("bcs_dbt") == "actionable" else "Normal"
    return [{"negative": negative, "benign": "Benign", "malignant": "Cancer"}[label] for label in own]


def _annotated_cell(grade: str, view: View) -> str:
    """The cell that `_decide_annotations` needs to come to the same result; empty if the rule of BCS-DBT does."""
    negative = LABEL_OF[grade] == "negative"
    if negative == (view.annotations == ()):
        return ""
    return "0" if view.annotations is None else "1"


def _relative_path(folder: Path, view: View) -> str:
    if len(view.files) != 1:
        raise InputError(f"{view.name}: the tables hold one file per view, this one has {len(view.files)}.")
    if view.picture is not None:
        raise InputError(f"{view.name}: the tables hold DICOM files, and this is a picture.")
    if view.upright != (view.modality == "DBT"):
        raise InputError(f"{view.name}: the tables hold upright tomosynthesis and mammograms as stored, nothing else.")
    try:
        path = view.files[0].absolute().relative_to(folder.absolute()).as_posix()
    except ValueError:
        path = ".."
    if _leaves_folder(path):
        raise InputError(f"{view.name}: {view.files[0]} is not in {folder}; write the tables where the files are.")
    return path


def _box_cells(view: View, annotation: Annotation, volume_slices: Mapping[str, int]) -> dict[str, str]:
    x1, y1, x2, y2 = annotation.box
    indices = (annotation.slice, annotation.first_slice, annotation.last_slice)
    if view.modality == "FFDM":
        if indices != (None, None, None):
            raise InputError(f"{view.name}: a mammogram has no slices, but an annotation of it is on one.")
        slices, indices = 1, (0, None, None)
    elif view.name in volume_slices:
        slices = volume_slices[view.name]
    else:
        raise InputError(f"{view.name}: the number of its slices is needed, because it has annotations.")
    if any(index is not None and not 0 <= index < slices for index in indices):
        raise InputError(f"{view.name}: an annotation is on slices {indices}, the volume has {slices}.")
    columns = ("Slice", "FirstSlice", "LastSlice")
    cells = {column: "" if index is None else str(index) for column, index in zip(columns, indices, strict=True)}
    for column, number in (("X", x1), ("Y", y1), ("Width", x2 - x1), ("Height", y2 - y1)):
        cells[column] = str(int(number)) if float(number).is_integer() else repr(float(number))
    return cells | {
        "Subject": "0",  # BCS-DBT does not say what it means; nearly always it is 0
        "Class": "cancer" if annotation.malignant else "benign",
        "AD": str(int(annotation.kind == DISTORTION)),
        "VolumeSlices": str(slices),
        "Kind": annotation.kind,
    }


def _write_table(path: Path, columns: Sequence[str], optional: Sequence[str], rows: Sequence[Row]) -> None:
    used = [*columns, *(column for column in optional if any(row.get(column) for row in rows))]
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, used, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
