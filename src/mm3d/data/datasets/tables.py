"""Our interchange format: the three tables of BCS-DBT beside the files, with columns for what BCS-DBT cannot say.

What is in brackets may be left out, a column or a cell; everything that reads BCS-DBT's tables reads these, too.

- file-paths.csv: PatientID, StudyUID, View, descriptive_path, classic_path
  [Modality: DBT or FFDM, DBT if not given] [Split] [Name: the view's name, if not "PatientID StudyUID View"]
  [Annotated: 0 or 1, where it does not follow from the labels as it does in BCS-DBT, see `_findings`]
- labels.csv: PatientID, StudyUID, View, Normal, Actionable, Benign, Cancer; one of the four is 1, the others are 0
  [Modality] [any further column is an attribute of the breast]
- boxes.csv: PatientID, StudyUID, View, Subject, Slice, X, Y, Width, Height, Class, AD, VolumeSlices
  [FirstSlice, LastSlice] [Kind] [Modality]

A view is lcc, lmlo, rcc or rmlo, with a number behind it if there are several of a kind. Paths are relative to the
folder. Tomosynthesis is in BCS-DBT's corrected frame (`View.upright`), mammograms are as stored, with Slice 0 of 1.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath
from typing import cast

from mm3d.data.datasets.assemble import SEVERITY, Entry, assemble, read_rows
from mm3d.data.datasets.keys import KEY, Key, keys_of
from mm3d.data.records import Annotation, Breast, Cohort, Label, Laterality, Modality, Position, Problem, View
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

# Labels of BCS-DBT, from harmless to worst. Actionable was recalled, but neither biopsied nor marked.
LABEL_OF: dict[str, Label] = {"Normal": "negative", "Actionable": "negative", "Benign": "benign", "Cancer": "malignant"}
GRADES = tuple(LABEL_OF)
DISTORTION = "architectural distortion"

FILE_PATHS = (*KEY, "descriptive_path", "classic_path")
LABELS = (*KEY, *GRADES)
BOXES = (*KEY, "Subject", "Slice", "X", "Y", "Width", "Height", "Class", "AD", "VolumeSlices")
BOXES_READ = tuple(column for column in BOXES if column not in ("Subject", "VolumeSlices"))  # v1 lacks VolumeSlices

Row = Mapping[str, str]


@dataclass(frozen=True)
class TableView:
    """What the tables say of one view, before anybody has looked for its file."""

    key: Key
    name: str
    laterality: Laterality
    position: Position
    modality: Modality
    grade: str  # the label's column
    findings: tuple[Annotation, ...] | None
    paths: tuple[str, ...]  # as written, the classic one first; none where there is a label only
    split: str
    attributes: dict[str, str]
    slices: int | None = None  # of the volume, where a box says so

    @property
    def breast(self) -> tuple[str, str, str]:
        return self.key.patient, self.key.study, self.laterality


def read(folder: Path) -> Cohort:
    """A folder with file-paths.csv, labels.csv and boxes.csv."""
    if (folder / "trial.json").is_file() and not (folder / "file-paths.csv").is_file():
        raise InputError(f"{folder} is a virtual trial that is not finished; give its 'mm3d phantom' command again.")
    views, problems = read_views(folder)

    def find(view: TableView) -> Path | None:
        return next((folder / path for path in view.paths if (folder / path).is_file()), None)

    entries, lost = locate(views, find, folder)
    return assemble(folder.resolve().name, entries, [*problems, *lost])


def read_views(folder: Path) -> tuple[list[TableView], list[Problem]]:
    """What the three tables of a folder say, and what is wrong with them; no image is looked for."""
    return join(
        read_rows(folder / "file-paths.csv", FILE_PATHS),
        read_rows(folder / "labels.csv", LABELS),
        read_rows(folder / "boxes.csv", BOXES_READ),
    )


def join(
    file_paths: Iterable[Row], labels: Iterable[Row], boxes: Iterable[Row]
) -> tuple[list[TableView], list[Problem]]:
    """The rows of the three tables, view by view; no file is looked at.

    A repeat such as lcc2 is joined by its own name where the labels have that, otherwise it has the label of lcc. Boxes
    of lcc were drawn on lcc and not on a repeat of it; only where no table has a view called lcc, and lcc2 is its only
    repeat, they are those of lcc2.
    """
    paths_of, labels_of, boxes_of = _by_key(file_paths), _by_key(labels), _by_key(boxes)
    lent = {key.stem for key in paths_of if key not in labels_of}
    keys = dict.fromkeys([*paths_of, *(key for key in labels_of if key not in lent)])
    repeats = Counter(key.stem for key in paths_of)
    views: list[TableView] = []
    problems: list[Problem] = []
    boxed: set[Key] = set()
    for key in keys:
        label_key = key if key in labels_of else key.stem
        alone = key in paths_of and key.stem not in keys and repeats[key.stem] == 1
        box_key = key.stem if alone and key not in boxes_of else key
        boxed.add(box_key)
        marks: list[Annotation] | None = None
        slices: int | None = None
        try:
            marks = [_finding(row, key.modality) for row in boxes_of.get(box_key, [])]
            slices = next((_whole(row, "VolumeSlices") for row in boxes_of.get(box_key, [])), None)
        except InputError as error:
            problems.append(Problem(key.name, f"Its boxes are left out, it counts as not annotated: {error}."))
        try:
            view = _view(key, paths_of.get(key, []), labels_of.get(label_key, []), marks)
            views.append(replace(view, slices=slices))
        except InputError as error:
            problems.append(Problem(key.name, str(error)))
    unused = [key for key in boxes_of if key not in boxed]
    return views, problems + [Problem(key.name, "It has boxes, but no other table names this view.") for key in unused]


def _by_key(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    result: dict[Key, list[Row]] = {}
    for row in rows:
        key = Key(row["PatientID"], row["StudyUID"], row["View"].lower(), row.get("Modality", "").upper() or "DBT")
        result.setdefault(key, []).append(row)
    return result


def _view(key: Key, paths: Sequence[Row], labels: Sequence[Row], marks: list[Annotation] | None) -> TableView:
    view = re.fullmatch("(l|r)(cc|mlo)[0-9]*", key.view)
    if not key.patient or not key.study:
        raise InputError("It has no PatientID or no StudyUID.")
    if not view:
        raise InputError(f"The view {key.view!r} is none of lcc, lmlo, rcc and rmlo.")
    if key.modality not in ("DBT", "FFDM"):
        raise InputError(f"The modality {key.modality!r} is neither DBT nor FFDM.")
    if len(paths) > 1 or len(labels) > 1:
        raise InputError("It has several rows in one table, and nothing says which is right.")
    if not labels:
        raise InputError("It has no row in the labels.")
    path = paths[0] if paths else {}
    ones = [grade for grade in GRADES if labels[0][grade] == "1"]
    if len(ones) != 1 or any(labels[0][grade] not in ("0", "1") for grade in GRADES):
        raise InputError(f"Its label is not exactly one of {', '.join(GRADES)}.")
    (grade,) = ones
    return TableView(
        key=key,
        name=path.get("Name") or key.name,
        laterality=cast(Laterality, view[1].upper()),
        position=cast(Position, view[2].upper()),
        modality=cast(Modality, key.modality),
        grade=grade,
        findings=_findings(grade, path.get("Annotated", ""), marks),
        paths=tuple(dict.fromkeys(path[column] for column in ("classic_path", "descriptive_path") if path.get(column))),
        split=path.get("Split", ""),
        attributes={
            column: value
            for column, value in labels[0].items()
            if column and value and column not in (*LABELS, "Modality")
        },
    )


def _findings(grade: str, annotated: str, marks: list[Annotation] | None) -> tuple[Annotation, ...] | None:
    """The rule of BCS-DBT, where Annotated does not overrule it: everything that was biopsied is marked, so a Benign or
    Cancer view without boxes is one that nobody annotated, and in all others there is nothing."""
    if annotated not in ("", "0", "1"):
        raise InputError(f"Annotated is {annotated!r}, neither 0 nor 1.")
    if marks is None:  # they could not be read
        return None
    negative = LABEL_OF[grade] == "negative"
    if marks and (annotated == "0" or (annotated == "" and negative)):
        raise InputError(f"It has boxes, but its label is {grade}{' and it is not annotated' * (annotated == '0')}.")
    if grade != "Cancer" and any(mark.malignant for mark in marks):
        raise InputError(f"It has a cancer box, but its label is {grade}.")
    if marks or annotated == "1" or (annotated == "" and negative):
        return tuple(marks)
    return None


def _finding(row: Row, modality: str) -> Annotation:
    x, y, width, height = (_number(row, column) for column in ("X", "Y", "Width", "Height"))
    chosen, first, last = (_whole(row, column) for column in ("Slice", "FirstSlice", "LastSlice"))
    slices = 1 if modality == "FFDM" else _whole(row, "VolumeSlices")
    for index in (chosen, first, last):
        if index is not None and not 0 <= index < (math.inf if slices is None else slices):
            raise InputError(f"a box is on slice {index}, which is not one of {slices} slices")
    if row["Class"].lower() not in ("benign", "cancer"):
        raise InputError(f"a box's class {row['Class']!r} is neither benign nor cancer")
    if modality == "FFDM":
        chosen = first = last = None
    return Annotation(
        box=(x, y, x + width, y + height),
        malignant=row["Class"].lower() == "cancer",
        slice=chosen,
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


def _whole(row: Row, column: str) -> int | None:
    if not row.get(column):
        return None
    number = _number(row, column)  # pandas writes 16.0 where a column has empty cells, too
    if not number.is_integer():
        raise InputError(f"a box's {column} {row[column]!r} is not a whole number")
    return int(number)


def worst_grades(views: Iterable[TableView]) -> dict[tuple[str, str, str], str]:
    """The worst label that the tables have for each breast, whether or not that view's file is there."""
    worst: dict[tuple[str, str, str], str] = {}
    for view in views:
        worst[view.breast] = max(worst.get(view.breast, GRADES[0]), view.grade, key=GRADES.index)
    return worst


def locate(
    views: Sequence[TableView], find: Callable[[TableView], Path | None], folder: Path
) -> tuple[list[Entry], list[Problem]]:
    """The views whose files `find` has. A breast's label is that of the tables: a cancer does not become a negative
    because the view that shows it was not downloaded."""
    files: dict[Key, Path] = {}
    problems, missing = [], 0
    for view in views:
        leaving = next((path for path in view.paths if _leaves(path)), None)
        if leaving is not None:
            problems.append(Problem(view.name, f"Its path {leaving!r} leaves the folder."))
            continue
        if not view.paths:
            problems.append(
                Problem(
                    view.name,
                    "It is in the labels, but file-paths does not name its file; take the table of the same version.",
                )
            )
            continue
        try:
            file = find(view)
        except InputError as error:
            problems.append(Problem(view.name, str(error)))
            continue
        if file is None:
            missing += 1
            problems.append(Problem(view.name, f"Its file {view.paths[0]} is not downloaded."))
        else:
            files[view.key] = file
    if missing and not files:
        raise InputError(f"{folder} has none of the {missing} files that its tables name; download the images into it.")
    owners, worst, entries = Counter(files.values()), worst_grades(views), []
    for view in views:
        if view.key not in files:
            continue
        file = files[view.key]
        if owners[file] > 1:
            problems.append(Problem(view.name, f"Its file {file} is also the file of another view."))
            continue
        entries.append(
            Entry(
                patient=view.key.patient,
                exam=view.key.study,
                view=View(
                    name=view.name,
                    laterality=view.laterality,
                    position=view.position,
                    modality=view.modality,
                    files=(file,),
                    annotations=view.findings,
                    upright=view.modality == "DBT",
                ),
                label=LABEL_OF[worst[view.breast]],
                split=view.split,
                attributes=view.attributes,
            )
        )
    return entries, problems


def _leaves(path: str) -> bool:
    """Whether a path of a table may lead out of its folder, on any system: a table may come from anywhere."""
    parsed = PureWindowsPath(path)  # knows drives and both slashes
    return bool(parsed.anchor) or ".." in parsed.parts


def write(cohort: Cohort, folder: Path, volume_slices: Mapping[str, int]) -> None:
    """Writes the tables of a cohort whose files lie under the folder, so that `read` gives its breasts back.

    `volume_slices`: how many slices each tomosynthesis view with findings has, by the view's name.
    """
    names = Counter((breast.patient, breast.exam, breast.laterality) for breast in cohort.breasts)
    if names and max(names.values()) > 1:
        raise InputError(f"{' '.join(names.most_common(1)[0][0])} is twice in the cohort, and would become one breast.")
    file_paths: list[dict[str, str]] = []
    labels: list[dict[str, str]] = []
    boxes: list[dict[str, str]] = []
    attributes = dict.fromkeys(name for breast in cohort.breasts for name in breast.attributes)
    for name in attributes:
        if not name or name in (*LABELS, "Modality"):
            raise InputError(f"An attribute cannot be called {name!r} in the tables; rename it.")
    for breast in cohort.breasts:
        for view, key, grade in zip(breast.views, keys_of(breast), _grades_of(breast), strict=True):
            ids = dict(zip(KEY, key[:3], strict=True)) | {"Modality": view.modality}
            path = _path_in(folder, view)
            file_paths.append(
                ids
                | {"descriptive_path": path, "classic_path": path, "Split": breast.split}
                | {"Name": "" if view.name == key.name else view.name, "Annotated": _annotated(grade, view)}
            )
            labels.append(ids | {column: str(int(column == grade)) for column in GRADES} | breast.attributes)
            boxes += [ids | _box(view, finding, volume_slices) for finding in view.annotations or ()]
    for row in (*file_paths, *labels, *boxes):
        for column, value in row.items():
            if value != value.strip() or not value.isprintable():
                raise InputError(f"{column} {value!r} cannot be written to a table: it would not come back the same.")
    # The file paths come last: without them an interrupted first run leaves nothing that looks like a cohort.
    _write_table(folder / "boxes.csv", BOXES, ("FirstSlice", "LastSlice", "Kind", "Modality"), boxes)
    _write_table(folder / "labels.csv", LABELS, ("Modality", *attributes), labels)
    _write_table(folder / "file-paths.csv", FILE_PATHS, ("Modality", "Split", "Name", "Annotated"), file_paths)


def _grades_of(breast: Breast) -> list[str]:
    """A label for each view: what its findings say, if that adds up to the breast's label, otherwise the breast's."""
    if breast.label is None:
        raise InputError(f"{breast.name} has no label, and the tables need one.")
    own: list[Label] = []
    for view in breast.views:
        if view.annotations is None:
            own.append(breast.label)
        elif any(finding.malignant for finding in view.annotations):
            own.append("malignant")
        else:
            own.append("benign" if view.annotations else "negative")
    if max(own, key=SEVERITY.__getitem__) != breast.label:
        own = [breast.label] * len(own)
    # Actionable and normal are both negative; only the attribute that our reader of BCS-DBT gives tells them apart.
    negative = "Actionable" if breast.attributes.get("bcs_dbt") == "actionable" else "Normal"
    return [{"negative": negative, "benign": "Benign", "malignant": "Cancer"}[label] for label in own]


def _annotated(grade: str, view: View) -> str:
    """The cell that `_findings` needs to come to the same result, empty where the rule of BCS-DBT does."""
    negative = LABEL_OF[grade] == "negative"
    if negative == (view.annotations == ()):
        return ""
    return "0" if view.annotations is None else "1"


def _path_in(folder: Path, view: View) -> str:
    if len(view.files) != 1:
        raise InputError(f"{view.name}: the tables hold one file per view, this one has {len(view.files)}.")
    if view.upright != (view.modality == "DBT"):
        raise InputError(f"{view.name}: the tables hold upright tomosynthesis and mammograms as stored, nothing else.")
    try:
        path = view.files[0].absolute().relative_to(folder.absolute()).as_posix()
    except ValueError:
        path = ".."
    if _leaves(path):
        raise InputError(f"{view.name}: {view.files[0]} is not in {folder}; write the tables where the files are.")
    return path


def _box(view: View, finding: Annotation, volume_slices: Mapping[str, int]) -> dict[str, str]:
    x1, y1, x2, y2 = finding.box
    marks = (finding.slice, finding.first_slice, finding.last_slice)
    if view.modality == "FFDM":
        if marks != (None, None, None):
            raise InputError(f"{view.name}: a mammogram has no slices, but a finding of it is on one.")
        slices, marks = 1, (0, None, None)
    elif view.name in volume_slices:
        slices = volume_slices[view.name]
    else:
        raise InputError(f"{view.name}: the number of its slices is needed, because it has findings.")
    if any(mark is not None and not 0 <= mark < slices for mark in marks):
        raise InputError(f"{view.name}: a finding is on slices {marks}, the volume has {slices}.")
    columns = ("Slice", "FirstSlice", "LastSlice")
    row = {column: "" if mark is None else str(mark) for column, mark in zip(columns, marks, strict=True)}
    for column, number in (("X", x1), ("Y", y1), ("Width", x2 - x1), ("Height", y2 - y1)):
        row[column] = str(int(number)) if float(number).is_integer() else repr(float(number))
    return row | {
        "Subject": "0",  # BCS-DBT does not say what it means; nearly always it is 0
        "Class": "cancer" if finding.malignant else "benign",
        "AD": str(int(finding.kind == DISTORTION)),
        "VolumeSlices": str(slices),
        "Kind": finding.kind,
    }


def _write_table(path: Path, columns: Sequence[str], optional: Sequence[str], rows: Sequence[Row]) -> None:
    used = [*columns, *(column for column in optional if any(row.get(column) for row in rows))]
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, used, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
