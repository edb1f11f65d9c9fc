"""Pictures (JPEG, PNG, TIFF) and arrays (NIfTI, NRRD, npy) with a table that says what they show.

The table is a CSV file with a row for each image, or for each box, or a COCO file (JSON) whose images have the same
fields, or a JSON file with a list of such rows; or beside each image, there is a JSON file of its name with its row.
Columns in brackets may be left out; --columns gives them other names.

    file            path of the image from the table's folder, or its name, if there is only one such file below it
    patient         a code; splits are by patient; in a JSON file beside the image: not given, it is the folder's name
    [exam]          a code; not given: each patient has one exam
    side, view      L, R, LEFT or RIGHT; CC or MLO; or both in the view, as in rmlo
    [label]         malignant or cancer, benign or benign_without_callback, negative or normal
    [boxes]         [[x1, y1, x2, y2], ...] in pixels of the file; or x1, y1, x2, y2, or x, y, w, h: a box for each row
    [pathologies]   of the boxes, in their order, with ';' between them; not given: the label
    [kind]          what the boxes show, such as mass
    [modality]      FFDM, film or DBT; not given: an array with several slices is DBT
    [slice, first_slice, last_slice]  of the boxes of a volume, from 0
    [pixel_spacing, slice_spacing]  in mm, from left to right and from slice to slice
    [width, height] of the image in pixels: an image of another size is refused, because its boxes would be wrong
    [split]         train, validation or test
"""

import json
import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from mm3d.data.datasets.assemble import POSITIONS, SEVERITY, SIDES, CohortBuilder, Entry, decode, read_rows, reporting
from mm3d.data.picture import SUFFIXES
from mm3d.data.records import (
    Annotation,
    Cohort,
    ImageKind,
    Label,
    Laterality,
    Modality,
    Picture,
    Position,
    View,
    is_view,
)
from mm3d.data.volume_file import SUFFIXES as ARRAYS
from mm3d.data.volume_file import is_array, read_layout
from mm3d.shared.config import parse_json
from mm3d.shared.errors import InputError

Row = dict[str, str]

SLICES = ("slice", "first_slice", "last_slice")
NEEDED = ("file", "patient", "view")
OPTIONAL = (
    *("exam", "side", "label", "boxes", "x1", "y1", "x2", "y2", "x", "y", "w", "h", "pathologies", "kind"),
    *("modality", "pixel_spacing", "slice_spacing", "width", "height", "split"),
    *SLICES,
)
CORNERS = (("x1", "y1", "x2", "y2"), ("x", "y", "w", "h"))
LABELS: dict[str, Label] = {
    "malignant": "malignant", "cancer": "malignant",
    "benign": "benign", "benign_without_callback": "benign",
    "negative": "negative", "normal": "negative",
}  # fmt: skip
MODALITIES: dict[str, Modality] = {"FFDM": "FFDM", "FILM": "FFDM", "DBT": "DBT"}


def read(
    folder: Path,
    table: Path | None = None,
    columns: Mapping[str, str] | None = None,
    modality: Literal["FFDM", "film", "DBT"] = "FFDM",
    stretch: float = 1.0,
    only: Container[Path] | None = None,
) -> Cohort:
    """Read a folder of pictures and arrays.

    Parameters
    ----------
    folder : the folder of the table and the images.
    table : the table; not given: the only CSV file of the folder, or a JSON file beside each image.
    columns : names of columns in the table, by the names above.
    modality : what the images are, where the table does not say it.
    stretch : height over width of the pixels, for pictures that were squashed.
    only : the files that are wanted; not given: all that the table names.
    """
    files: dict[str, list[Path]] = {}
    for path in find_images(folder):
        files.setdefault(path.name, []).append(path)
    cohort = CohortBuilder(folder.resolve().name)
    table = table or _find_table(folder)
    if table is None:
        rows = _read_sidecars(cohort, folder, [path for own in files.values() for path in own], columns or {})
    else:
        rows = _read_table(table, columns or {})
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["file"], []).append(row)
    for name, own in groups.items():
        with reporting(cohort.problems, name or "a row without a file"):
            file = _find_image(folder, table.parent if table else folder, files, name)
            if only is None or file.resolve() in only:
                cohort.entries.append(_read_image(cohort, file, name, own, modality, stretch))
    return cohort.assemble()


def is_image(path: Path) -> bool:
    """Whether a file is a picture or an array, by its name."""
    return path.suffix.lower() in SUFFIXES or is_array(path)


def find_images(folder: Path) -> list[Path]:
    """All pictures and arrays below a folder."""
    return sorted(path for path in folder.rglob("*") if is_image(path) and path.is_file())


def _find_table(folder: Path) -> Path | None:
    """The only CSV file of a folder; None if each image has a JSON file of its own."""
    tables = sorted(folder.glob("*.csv"))
    if not tables and any(_sidecar(path).is_file() for path in find_images(folder)):
        return None
    if len(tables) != 1:
        raise InputError(
            f"{folder} has {len(tables)} CSV files; name the one that describes the images with --table, or put a JSON "
            "file with side and view beside each image."
        )
    return tables[0]


def _sidecar(image: Path) -> Path:
    """The JSON file beside an image: scan.json for scan.nii.gz."""
    name = image.name
    suffix = next(suffix for suffix in (*ARRAYS, *SUFFIXES) if name.lower().endswith(suffix))
    return image.with_name(f"{name[: -len(suffix)]}.json")


def _read_sidecars(cohort: CohortBuilder, folder: Path, files: Sequence[Path], columns: Mapping[str, str]) -> list[Row]:
    """A row for each image, from the JSON file beside it. An image without one is a problem."""
    rows = []
    for file in files:
        name = file.relative_to(folder).as_posix()
        with reporting(cohort.problems, name):
            beside = _sidecar(file)
            if not beside.is_file():
                raise InputError(f"There is no {beside.name} beside it that says its side and view.")
            content = _parse_json_file(beside)
            if not isinstance(content, dict):
                raise InputError(f"{beside} is not a table of side, view and others; write it so.")
            row = {"patient": file.resolve().parent.name} | _to_row(content) | {"file": name}
            rows.append(_rename(row, columns))
    return rows


def _to_row(content: Mapping[str, Any]) -> Row:
    """A row of JSON as one of a CSV file."""
    return {
        str(name): json.dumps(value) if isinstance(value, list) else str(value)
        for name, value in content.items()
        if value is not None
    }


def _rename(row: Row, columns: Mapping[str, str]) -> Row:
    """A row under our names of its columns, without others."""
    names = {columns.get(name, name): name for name in (*OPTIONAL, *NEEDED)}
    return {names[name]: cell for name, cell in row.items() if name in names}


def _parse_json_file(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not JSON ({error}); write it again.") from error


def _read_table(path: Path, columns: Mapping[str, str]) -> list[Row]:
    """The rows of a table under our names of its columns."""
    for name in columns:
        if name not in (*NEEDED, *OPTIONAL):
            raise InputError(f"--columns: {name!r} is none of {', '.join((*NEEDED, *OPTIONAL))}.")
    needed = [columns.get(name, name) for name in NEEDED] + [columns[name] for name in columns if name in OPTIONAL]
    rows = _read_json_table(path, needed) if path.suffix.lower() == ".json" else read_rows(path, needed)
    read = [_rename(row, columns) for row in rows]
    there = {name for row in read for name in row}
    for first, *others in CORNERS:
        missing = [columns.get(name, name) for name in others if name not in there]
        if first in there and missing:
            raise InputError(
                f"{path} has no column {', '.join(missing)}, which its boxes need; name it with --columns."
            )
    return read


def _find_image(folder: Path, beside: Path, files: Mapping[str, list[Path]], name: str) -> Path:
    """The file at the path that the table gives, or the only one of this name below the folder."""
    candidates = files.get(Path(name).name, [])
    found = [path for path in candidates if path in (beside / name, folder / name)][:1]
    if not found and Path(name).name == name:
        found = candidates
    if len(found) != 1:
        raise InputError(f"There are {len(found)} such files; the table must give the path of one.")
    return found[0]


def _read_image(cohort: CohortBuilder, file: Path, name: str, rows: list[Row], default: str, stretch: float) -> Entry:
    """An image and what its rows say of it; the first row speaks for all, but for labels and boxes."""
    shape = read_layout(file).shape if is_array(file) else None
    slices = 1 if shape is None else shape[0]
    first = rows[0] | {"modality": (rows[0].get("modality") or ("DBT" if slices > 1 else default)).upper()}
    if not first.get("patient"):
        raise InputError("Its patient is missing.")
    side, position = _which_view(first)
    modality = decode(first, "modality", MODALITIES)
    labels = [_read_label(row["label"]) if row.get("label") else None for row in rows]
    label = max(labels, key=SEVERITY.__getitem__)
    spacings = (_number(first[name]) if first.get(name) else None for name in ("pixel_spacing", "slice_spacing"))
    picture = Picture(stretch, *spacings)
    _check_size(file, first, shape)
    only = 0 if modality == "DBT" and slices == 1 else None  # the slice of the boxes, if the table has none
    annotations = cohort.try_annotations(name, _read_annotations, rows, label, slices, only)
    kind: ImageKind = "DBT" if modality == "DBT" else "film" if first["modality"] == "FILM" else "FFDM"
    kind = "DBT slice" if only == 0 else kind
    stem = str(Path(name).with_suffix(""))
    view = View(stem, side, position, modality, (file,), annotations, picture=picture, kind=kind)
    attributes = {"film": "yes"} if first["modality"] == "FILM" else {}
    return Entry(first["patient"], first.get("exam") or "1", view, label, first.get("split", ""), attributes)


def _which_view(row: Row) -> tuple[Laterality, Position]:
    view = row["view"].lower()
    if is_view(view):
        row = row | {"side": view[0], "view": view[1:].rstrip("0123456789")}
    if not row.get("side"):
        raise InputError(f"Its side is missing, and its view {row['view']!r} does not say it.")
    upper = {"side": row["side"].upper(), "view": row["view"].upper()}
    return decode(upper, "side", SIDES), decode(upper, "view", POSITIONS)


def _read_label(text: str) -> Label:
    return decode({"label": text.lower().replace(" ", "_")}, "label", LABELS)


def _check_size(file: Path, row: Row, shape: tuple[int, int, int] | None) -> None:
    if row.get("width") and row.get("height"):
        try:
            if shape is None:
                with Image.open(file) as image:
                    size = image.size
            else:
                size = (shape[2], shape[1])
        except Exception as error:  # Pillow's decoders raise whatever they like
            raise InputError(f"{file} cannot be read as a picture; it is damaged.") from error
        if size != (_number(row["width"]), _number(row["height"])):
            raise InputError(
                f"It has {size[0]} x {size[1]} pixels, and the table says {row['width']} x {row['height']}; its boxes "
                "were drawn on another image."
            )


def _read_annotations(
    rows: list[Row], label: Label | None, slices: int, only: int | None
) -> tuple[Annotation, ...] | None:
    """All boxes of an image. A malignant or benign image without any counts as not annotated, as in BCS-DBT."""
    annotations = []
    for row in rows:
        boxes = _read_boxes(row)
        words = [word.strip() for word in row.get("pathologies", "").split(";") if word.strip()] or [
            row.get("label", "")
        ]
        if len(words) == 1:
            words *= len(boxes)
        if len(words) != len(boxes):
            raise InputError(f"it has {len(boxes)} boxes and {len(words)} pathologies")
        for box, word in zip(boxes, words, strict=True):
            meaning = _read_label(word) if word else None
            if meaning not in ("malignant", "benign"):
                raise InputError("it has a box that is neither malignant nor benign")
            said = row if slices > 1 else {}  # of a single slice, they are of the volume that it was taken from
            z, first, last = (int(_number(said[name])) if said.get(name) else None for name in SLICES)
            where = only if z is None else z
            annotations.append(Annotation(box, meaning == "malignant", where, first, last, row.get("kind", "")))
    return tuple(annotations) if annotations or label == "negative" else None


def _read_boxes(row: Row) -> list[tuple[float, float, float, float]]:
    """The boxes of a row, x1, y1, x2, y2."""
    boxes: list[Any] = _parse_list(row["boxes"]) if row.get("boxes") else []
    corners, sizes = ([row.get(name, "") for name in names] for names in CORNERS)
    if any(corners):
        boxes.append(corners)
    if any(sizes):
        x, y, w, h = map(_number, sizes)
        boxes.append([x, y, x + w, y + h])
    read = []
    for box in boxes:
        x1, y1, x2, y2 = map(_number, box)
        read.append((x1, y1, x2, y2))
    return read


def _parse_list(text: str) -> list[Any]:
    try:
        boxes = parse_json(text)
    except ValueError as error:
        raise InputError(f"its boxes are not JSON ({error})") from error
    if not isinstance(boxes, list) or not all(isinstance(box, list) and len(box) == 4 for box in boxes):
        raise InputError("its boxes are not a list of boxes [x1, y1, x2, y2]")
    return boxes


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{value!r} in the table is not a number")
    return number


def _read_json_table(path: Path, needed: Sequence[str]) -> list[Row]:
    """The rows of a JSON file: a list of rows, or a COCO file."""
    content = _parse_json_file(path)
    if not isinstance(content, list):
        return _read_coco(path, content)
    if not all(isinstance(row, dict) for row in content):
        raise InputError(f"{path} is a list of something else than rows; write a table for each image.")
    rows = list(map(_to_row, content))
    missing = [name for name in needed if any(name not in row for row in rows)]
    if missing:
        raise InputError(f"{path}: its rows have no {' and no '.join(missing)}; add these fields to each of them.")
    return rows


def _read_coco(path: Path, content: Any) -> list[Row]:
    """The rows that a COCO file stands for: one for each box, and one for each image without a box.

    Where a category is called malignant, benign or cancer, this is the box's pathology; it always is the box's kind.
    """
    try:
        categories = {entry["id"]: str(entry["name"]) for entry in content.get("categories", [])}
        boxes: dict[Any, list[Row]] = {}
        for entry in content.get("annotations", []):
            word = categories.get(entry.get("category_id"), "")
            row = dict(zip("xywh", map(str, entry["bbox"]), strict=True)) | {"kind": word}
            row |= {name: str(entry[name]) for name in SLICES if entry.get(name) is not None}
            row["pathologies"] = word if word.lower().replace(" ", "_") in LABELS else ""
            boxes.setdefault(entry["image_id"], []).append(row)
        rows: list[Row] = []
        for image in content["images"]:
            fields = {name: str(value) for name, value in image.items()} | {"file": str(image["file_name"])}
            for row in boxes.get(image["id"], [{}]):
                pathology = {"label": row["pathologies"]} if row.get("pathologies") and "label" not in fields else {}
                rows.append(fields | row | pathology)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a COCO file ({error!r}); it needs images, annotations, categories.") from error
    missing = [name for name in ("patient", "view") if any(name not in row for row in rows)]
    if missing:
        raise InputError(f"{path}: its images have no {' and no '.join(missing)}; add these fields to each of them.")
    return rows
