"""JPEG, PNG and TIFF files with a table that says what they show, as researchers keep them.

The table is a CSV file with a row for each image, or for each box, or a COCO file (JSON) whose images have the same
fields. Columns in brackets may be left out; --columns gives them other names.

    file            path of the image from the table's folder, or its name, if there is only one such file below it
    patient         a code; splits are by patient
    [exam]          a code; not given: each patient has one exam
    side, view      L, R, LEFT or RIGHT; CC or MLO; or both in the view, as in rmlo
    [label]         malignant or cancer, benign or benign_without_callback, negative or normal
    [boxes]         [[x1, y1, x2, y2], ...] in pixels of the file; or x1, y1, x2, y2, or x, y, w, h: a box for each row
    [pathologies]   of the boxes, in their order, with ';' between them; not given: the label
    [kind]          what the boxes show, such as mass
    [modality]      FFDM, film or DBT (one slice of a volume)
    [pixel_spacing] in mm, from left to right
    [width, height] of the image in pixels: an image of another size is refused, because its boxes would be wrong
    [split]         train, validation or test
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from mm3d.data.datasets.assemble import POSITIONS, SEVERITY, SIDES, CohortBuilder, Entry, decode, read_rows, reporting
from mm3d.data.picture import SUFFIXES
from mm3d.data.records import Annotation, Cohort, Label, Laterality, Modality, Picture, Position, View, is_view
from mm3d.shared.config import parse_json
from mm3d.shared.errors import InputError

Row = dict[str, str]

NEEDED = ("file", "patient", "view")
OPTIONAL = (
    *("exam", "side", "label", "boxes", "x1", "y1", "x2", "y2", "x", "y", "w", "h", "pathologies", "kind"),
    *("modality", "pixel_spacing", "width", "height", "split"),
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
) -> Cohort:
    """Read a folder of pictures.

    Parameters
    ----------
    folder : the folder of the table and the images.
    table : the table; not given: the only CSV file of the folder.
    columns : names of columns in the table, by the names above.
    modality : what the images are, where the table does not say it.
    stretch : height over width of the pixels, for pictures that were squashed.
    """
    table = table or _find_table(folder)
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES:
            files.setdefault(path.name, []).append(path)
    cohort = CohortBuilder(folder.resolve().name)
    groups: dict[str, list[Row]] = {}
    for row in _read_table(table, columns or {}):
        groups.setdefault(row["file"], []).append(row)
    for name, rows in groups.items():
        with reporting(cohort.problems, name or "a row without a file"):
            file = _find_image(folder, table, files, name)
            first = rows[0] | {"modality": (rows[0].get("modality") or modality).upper()}
            cohort.entries.append(_read_image(cohort, file, name, first, rows, stretch))
    return cohort.assemble()


def _find_table(folder: Path) -> Path:
    tables = sorted(folder.glob("*.csv"))
    if len(tables) != 1:
        raise InputError(f"{folder} has {len(tables)} CSV files; name the one that describes the images with --table.")
    return tables[0]


def _read_table(path: Path, columns: Mapping[str, str]) -> list[Row]:
    """The rows of a table under our names of its columns."""
    for name in columns:
        if name not in (*NEEDED, *OPTIONAL):
            raise InputError(f"--columns: {name!r} is none of {', '.join((*NEEDED, *OPTIONAL))}.")
    needed = [columns.get(name, name) for name in NEEDED] + [columns[name] for name in columns if name in OPTIONAL]
    rows = _read_coco(path) if path.suffix.lower() == ".json" else read_rows(path, needed)
    names = {columns.get(name, name): name for name in (*OPTIONAL, *NEEDED)}
    read = [{names[name]: cell for name, cell in row.items() if name in names} for row in rows]
    there = {name for row in read for name in row}
    for first, *others in CORNERS:
        missing = [columns.get(name, name) for name in others if name not in there]
        if first in there and missing:
            raise InputError(
                f"{path} has no column {', '.join(missing)}, which its boxes need; name it with --columns."
            )
    return read


def _find_image(folder: Path, table: Path, files: Mapping[str, list[Path]], name: str) -> Path:
    """The file at the path that the table gives, or the only one of this name below the folder."""
    candidates = files.get(Path(name).name, [])
    found = [path for path in candidates if path in (table.parent / name, folder / name)][:1]
    if not found and Path(name).name == name:
        found = candidates
    if len(found) != 1:
        raise InputError(f"There are {len(found)} such files; the table must give the path of one.")
    return found[0]


def _read_image(cohort: CohortBuilder, file: Path, name: str, first: Row, rows: list[Row], stretch: float) -> Entry:
    """An image and what its rows say of it; the first row speaks for all, but for labels and boxes."""
    if not first["patient"]:
        raise InputError("Its patient is missing.")
    side, position = _which_view(first)
    modality = decode(first, "modality", MODALITIES)
    labels = [_read_label(row["label"]) if row.get("label") else None for row in rows]
    label = max(labels, key=SEVERITY.__getitem__)
    picture = Picture(stretch, _number(first["pixel_spacing"]) if first.get("pixel_spacing") else None)
    _check_size(file, first)
    annotations = cohort.try_annotations(name, _read_annotations, rows, label, modality)
    view = View(str(Path(name).with_suffix("")), side, position, modality, (file,), annotations, picture=picture)
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


def _check_size(file: Path, row: Row) -> None:
    if row.get("width") and row.get("height"):
        try:
            with Image.open(file) as image:
                size = image.size
        except Exception as error:  # Pillow's decoders raise whatever they like
            raise InputError(f"{file} cannot be read as a picture; it is damaged.") from error
        if size != (_number(row["width"]), _number(row["height"])):
            raise InputError(
                f"It has {size[0]} x {size[1]} pixels, and the table says {row['width']} x {row['height']}; its boxes "
                "were drawn on another image."
            )


def _read_annotations(rows: list[Row], label: Label | None, modality: Modality) -> tuple[Annotation, ...] | None:
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
            where = 0 if modality == "DBT" else None
            annotations.append(Annotation(box, meaning == "malignant", slice=where, kind=row.get("kind", "")))
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


def _read_coco(path: Path) -> list[Row]:
    """The rows that a COCO file stands for: one for each box, and one for each image without a box.

    Where a category is called malignant, benign or cancer, this is the box's pathology; it always is the box's kind.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        categories = {entry["id"]: str(entry["name"]) for entry in content.get("categories", [])}
        boxes: dict[Any, list[Row]] = {}
        for entry in content.get("annotations", []):
            word = categories.get(entry.get("category_id"), "")
            row = dict(zip("xywh", map(str, entry["bbox"]), strict=True)) | {"kind": word}
            row["pathologies"] = word if word.lower().replace(" ", "_") in LABELS else ""
            boxes.setdefault(entry["image_id"], []).append(row)
        rows: list[Row] = []
        for image in content["images"]:
            fields = {name: str(value) for name, value in image.items()} | {"file": str(image["file_name"])}
            for row in boxes.get(image["id"], [{}]):
                pathology = {"label": row["pathologies"]} if row.get("pathologies") and "label" not in fields else {}
                rows.append(fields | row | pathology)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a COCO file ({error!r}); it needs images, annotations, categories.") from error
    missing = [name for name in ("patient", "view") if any(name not in row for row in rows)]
    if missing:
        raise InputError(f"{path}: its images have no {' and no '.join(missing)}; add these fields to each of them.")
    return rows
