"""Write a cohort in our interchange format; `tables.py` says what is in it, and reads it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from mm3d.data.datasets.assemble import SEVERITY
from mm3d.data.datasets.tables import (
    BOXES,
    DISTORTION,
    FILE_PATHS,
    GRADES,
    LABEL_OF,
    LABELS,
    NOT_ATTRIBUTES,
    Row,
    leaves_folder,
)
from mm3d.data.records import KEY, Annotation, Breast, Cohort, Label, View, keys_of
from mm3d.shared.errors import InputError
from mm3d.shared.spreadsheet import write_rows


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
    if leaves_folder(path):
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
    write_rows(path, [used, *([row.get(column, "") for column in used] for row in rows)])
