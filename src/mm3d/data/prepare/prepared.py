"""The folder that a preparation writes and a training reads.

    prepared/
        cohort.json      breasts, labels, views and annotations, with the key of each prepared view
        manifest.csv     the same for a person: a row per view
        problems.csv     what was left out, and why
        views/           <key>.npy, (S, H, W) uint16, 0 black to 65535 white (uint8, 0 to 255, of pictures with 8 bits);
                         <key>.json, how it was made

A key is a hash of the source files and of the settings. Views that were made with other settings have other keys.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mm3d.data.dicom.header import Header
from mm3d.data.prepare.geometry import Geometry, PrepareSettings
from mm3d.data.records import Annotation, Breast, Cohort, Problem, View
from mm3d.shared.config import from_dict, parse_json, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import check_settings, finish_file, refuse_files, replacing, reserve_room, save_json
from mm3d.shared.spreadsheet import write_rows

VERSION = 1  # of the preparation; it is part of the keys
SYNTHETIC = "These breasts are synthetic: nothing measured on them is a clinical result."  # a note of virtual trials
LISTS = ("cohort.json", "problems.csv", "manifest.csv")  # in the order in which they are written
KEY = re.compile("[0-9a-zA-Z][0-9a-zA-Z-]*")
REMEDY = "make it again with 'mm3d prepare' or 'mm3d phantom'"
KEYED = ("stretch", "pixel_spacing")  # of a picture, what always was part of its key
MANIFEST = (
    *("view", "patient", "exam", "laterality", "position", "modality", "label", "split"),
    *("findings", "malignant_findings", "slices", "height", "width", "file"),
)


@dataclass(frozen=True)
class ViewFile:
    """The json of a prepared view: how it was made from its files."""

    geometry: Geometry
    turned: bool  # by 180 degrees
    pixel_spacing: float | None  # mm between stored pixels
    slice_spacing: float | None  # mm between stored slices
    vendor: str
    settings: PrepareSettings
    version: int = VERSION
    notes: tuple[str, ...] = ()  # what was not done as the file says


@dataclass(frozen=True)
class PreparedView:
    """A view with its prepared pixels."""

    view: View
    file: ViewFile
    pixels: Path
    headers: tuple[Header, ...] = ()  # of its files in the order of the slices, if `prepare_breasts` prepared it
    display_slices: Path | None = None  # npy, (stored slices, rows, columns) uint8 as a viewer shows them; likewise

    def image(self) -> NDArray[np.unsignedinteger]:
        """(S, H, W), memory-mapped: only what is touched is read."""
        geometry = self.file.geometry
        try:
            image = np.load(self.pixels, mmap_mode="r", allow_pickle=False)
            shape = (geometry.slices, geometry.height, geometry.width)
            if image.shape != shape or image.dtype not in (np.uint8, np.uint16):
                raise ValueError(f"its pixels are {image.dtype} {image.shape}, not {shape}")
            return image
        except (OSError, ValueError) as error:
            raise InputError(f"{self.pixels} is missing or damaged ({error}); {REMEDY}.") from error

    def annotations(self) -> tuple[Annotation, ...] | None:
        """The view's annotations in the model's frame."""
        if self.view.annotations is None:
            return None
        return tuple(self.file.geometry.annotation_to_model(annotation) for annotation in self.view.annotations)


ViewPair = tuple[PreparedView | None, PreparedView | None]  # CC, MLO


@dataclass(frozen=True)
class PreparedBreast:
    """A breast with those of its views that are prepared and used."""

    breast: Breast
    views: tuple[PreparedView, ...]

    @property
    def malignant(self) -> bool:
        return self.breast.label == "malignant"

    @property
    def annotated(self) -> bool:
        return any(view.view.annotations is not None for view in self.views)

    def pairs(self) -> list[ViewPair]:
        """CC and MLO as they go through the model together.

        If there are several of one kind, each is in some pair: the first CC with the first MLO, the second with the
        second, and the last one again if the other kind has more.
        """
        cc, mlo = ([view for view in self.views if view.view.position == position] for position in ("CC", "MLO"))
        return [
            (cc[min(i, len(cc) - 1)] if cc else None, mlo[min(i, len(mlo) - 1)] if mlo else None)
            for i in range(max(len(cc), len(mlo)))
        ]


# One view


def key_of(view: View, source: Any, settings: PrepareSettings) -> str:
    """The name of a prepared view's files. `source` is plain data that differs between different images."""
    content = [VERSION, view.name, view.laterality, view.upright, source, to_dict(settings)]
    if view.picture is not None:
        content.append({name: value for name, value in to_dict(view.picture).items() if name in KEYED or value})
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def stamp_files(view: View) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a view's files, as the source of its key: a dataset may move as a whole."""
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in view.files]


def is_prepared(folder: Path, key: str) -> bool:
    """Whether a view is there and whole: its json is written last, and its pixels can be mapped."""
    try:
        np.load(folder / "views" / f"{key}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):  # it is missing, or was cut off later
        return False
    return (folder / "views" / f"{key}.json").is_file()


def write_view(folder: Path, key: str, pixels: NDArray[np.unsignedinteger], file: ViewFile) -> Path:
    """Write a prepared view. Returns the file of its pixels."""
    path = folder / "views" / f"{key}.npy"
    with replacing(path) as partial:
        array = create_array(partial, pixels.dtype, pixels.shape)
        array[:] = pixels
        array.flush()
    save_json(path.with_suffix(".json"), to_dict(file))
    return path


def create_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """A new npy file to be filled through memory. Its room on the disk is taken."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    reserve_room(path)
    return array


def finish_view(folder: Path, key: str, partial: Path, file: ViewFile) -> Path:
    """Give complete pixels their name, then write their json. Returns the file of the pixels."""
    path = folder / "views" / f"{key}.npy"
    finish_file(partial, path)
    save_json(path.with_suffix(".json"), to_dict(file))
    return path


def read_view(folder: Path, key: str, view: View) -> PreparedView:
    path = folder / "views" / f"{key}.json"
    if not is_prepared(folder, key):
        raise InputError(f"{path} or its pixels are missing or damaged; run 'mm3d prepare' again to make them.")
    return PreparedView(view, from_dict(ViewFile, _read_json(path), str(path)), path.with_suffix(".npy"))


# All views of a folder


def check_output(folder: Path, name: str) -> None:
    """Refuse a folder that holds another dataset, or lists that are not of a dataset: they would be replaced."""
    path = folder / LISTS[0]
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder with -o.")
    if not path.is_file():
        refuse_files(folder, LISTS, "'mm3d prepare'")
        return
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict) or not {"version", "name", "breasts"} <= set(content):
        refuse_files(folder, LISTS, "'mm3d prepare'")
        return
    check_settings(folder, {"dataset": content["name"]}, {"dataset": name})


def write_cohort(folder: Path, cohort: Cohort, keys: dict[str, str], problems: list[Problem]) -> None:
    """Write the three lists. `keys` has the prepared views by name; views and breasts without any are left out."""
    breasts = []
    for breast in cohort.breasts:
        views = [_view_content(view) | {"key": keys[view.name]} for view in breast.views if view.name in keys]
        if views:
            breasts.append(to_dict(breast) | {"views": views})
    content = {"version": VERSION, "name": cohort.name, "notes": list(cohort.notes), "breasts": breasts}
    save_json(folder / "cohort.json", content)
    write_rows(folder / "problems.csv", [("subject", "reason"), *((p.subject, p.reason) for p in problems)])
    rows = [_manifest_row(prepared.breast, view) for prepared in read_breasts(folder) for view in prepared.views]
    write_rows(folder / "manifest.csv", [MANIFEST, *rows])


def _view_content(view: View) -> dict[str, Any]:
    """A view as it stands in cohort.json; views in DICOM files as they always stood there."""
    content = to_dict(view)
    for name in ("picture", "kind"):
        if content[name] is None:
            del content[name]
    return content


def _manifest_row(breast: Breast, view: PreparedView) -> tuple[Any, ...]:
    boxes, geometry = view.view.annotations, view.file.geometry
    counts = ("", "") if boxes is None else (len(boxes), sum(box.malignant for box in boxes))
    return (
        *(view.view.name, breast.patient, breast.exam, breast.laterality, view.view.position, view.view.modality),
        *(breast.label or "", breast.split, *counts, geometry.slices, geometry.height, geometry.width),
        f"views/{view.pixels.name}",
    )


def read_notes(folder: Path) -> list[str]:
    """What a user must know of the labels or images of a prepared folder."""
    notes = _read_content(folder).get("notes", [])
    return [str(note) for note in notes] if isinstance(notes, list) else []


def read_settings(folder: Path) -> PrepareSettings:
    """The settings with which a prepared folder was made: those of its first view."""
    keys = next((keys for _, keys in _read_content_of_breasts(folder) if keys), None)
    if keys is None:
        raise InputError(f"{folder} has no prepared view; {REMEDY}.")
    path = folder / "views" / f"{keys[0]}.json"
    if not path.is_file():
        raise InputError(f"{path} is missing; run 'mm3d prepare' again to make it.")
    return from_dict(ViewFile, _read_json(path), str(path)).settings


def read_breasts(folder: Path) -> list[PreparedBreast]:
    """Read a prepared folder.

    Parameters
    ----------
    folder : a folder that 'mm3d prepare' or 'mm3d phantom --format prepared' wrote.

    Returns
    -------
    Its breasts, each with its prepared views. Pixels are not read.
    """
    breasts = []
    for data, keys in _read_content_of_breasts(folder):
        breast = from_dict(Breast, data, str(folder / "cohort.json"))
        views = (read_view(folder, key, view) for key, view in zip(keys, breast.views, strict=True))
        breasts.append(PreparedBreast(breast, tuple(views)))
    return breasts


def _read_content_of_breasts(folder: Path) -> Iterator[tuple[Any, list[str]]]:
    """What cohort.json says of each breast, and the keys of its views."""
    try:
        for data in _read_content(folder)["breasts"]:
            for view in data["views"]:
                if "findings" in view:  # the name in folders that mm3d 0.1 prepared
                    view["annotations"] = view.pop("findings")
            keys = [view.pop("key") for view in data["views"]]
            if not all(KEY.fullmatch(key) for key in keys):  # it becomes the name of a file
                raise ValueError
            yield data, keys
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / 'cohort.json'} is damaged; {REMEDY}.") from error


def _read_json(path: Path) -> dict[str, Any]:
    """One of the tables of a prepared folder."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a table")
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); {REMEDY}.") from error
    return content


def _read_content(folder: Path) -> dict[str, Any]:
    path = folder / "cohort.json"
    if not path.is_file():
        what = "is not a prepared folder: it has no cohort.json" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; make it with 'mm3d prepare', or 'mm3d phantom --format prepared'.")
    content = _read_json(path)
    if content.get("version") != VERSION:
        raise InputError(f"{path} was written by another version of mm3d; prepare the dataset again.")
    return content
