"""The folder that a preparation leaves and a training reads.

    prepared/
        cohort.json      breasts, labels, views and findings, with the file and geometry of each prepared view
        manifest.csv     the same for a person: a row per view
        problems.csv     what was left out, and why
        views/           <key>.npy, (S, H, W) uint16, 0 black to 65535 white; <key>.json, how it was made

A key is a hash of the source files and of the settings, so another setting never meets an old file.
"""

import csv
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm3d.data.dicom.header import Header
from mm3d.data.prepare.geometry import Geometry
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.data.records import Annotation, Breast, Cohort, Problem, View
from mm3d.shared.config import from_dict, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import finish_file, replacing

VERSION = 1  # of the preparation itself: another number, other keys


@dataclass(frozen=True)
class ViewFile:
    """A prepared view's json: how it was made from its files."""

    geometry: Geometry
    turned: bool
    pixel_spacing: float | None  # mm between stored pixels
    slice_spacing: float | None  # mm between stored slices
    vendor: str
    settings: PrepareSettings
    version: int = VERSION


@dataclass(frozen=True)
class PreparedView:
    """A view with its prepared pixels, and its findings in model coordinates."""

    view: View
    file: ViewFile
    pixels: Path
    headers: tuple[Header, ...] = ()  # of its files in the order of the slices, where `prepare_breasts` prepared it
    display_slices: Path | None = None  # npy, (stored slices, rows, columns) uint8 as a viewer shows them; likewise

    def image(self) -> NDArray[np.uint16]:
        """(S, H, W), memory-mapped: only what is touched is read."""
        return np.load(self.pixels, mmap_mode="r", allow_pickle=False)

    def findings(self) -> tuple[Annotation, ...] | None:
        """The view's findings in the model's frame."""
        if self.view.annotations is None:
            return None
        return tuple(to_model(finding, self.file.geometry) for finding in self.view.annotations)


ViewPair = tuple[PreparedView | None, PreparedView | None]  # CC, MLO


@dataclass(frozen=True)
class PreparedBreast:
    """A breast with those of its prepared views that are used."""

    breast: Breast
    views: tuple[PreparedView, ...]

    @property
    def malignant(self) -> bool:
        return self.breast.label == "malignant"

    @property
    def annotated(self) -> bool:
        return any(view.view.annotations is not None for view in self.views)

    def pairs(self) -> list[ViewPair]:
        """CC and MLO as they go through the model together. Where there are several of one kind, each is in some pair:
        the first CC with the first MLO, the second with the second, and the last again where the other kind has more.
        """
        cc, mlo = ([view for view in self.views if view.view.position == position] for position in ("CC", "MLO"))
        return [
            (cc[min(i, len(cc) - 1)] if cc else None, mlo[min(i, len(mlo) - 1)] if mlo else None)
            for i in range(max(len(cc), len(mlo)))
        ]


def to_model(finding: Annotation, geometry: Geometry) -> Annotation:
    """A finding moved from the stored to the model's frame."""

    def moved(z: int | None) -> int | None:
        return None if z is None else geometry.slice_to_model(z)

    return Annotation(
        box=geometry.box_to_model(finding.box),
        malignant=finding.malignant,
        slice=moved(finding.slice),
        first_slice=moved(finding.first_slice),
        last_slice=moved(finding.last_slice),
        kind=finding.kind,
    )


def stamps_of(view: View) -> list[tuple[str, int, int]]:
    """The source of a view in files: they count by name, size and time, so a dataset may move as a whole."""
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in view.files]


def key_of(view: View, source: Any, settings: PrepareSettings) -> str:
    """A view, what tells its source from all others (plain data), and the settings, as a file name."""
    told = [VERSION, view.name, view.laterality, view.upright, source, to_dict(settings)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def is_prepared(folder: Path, key: str) -> bool:
    """Whether a view is there, whole: its json is written last, and its pixels can be mapped."""
    try:
        np.load(folder / "views" / f"{key}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):  # not there, or cut off since
        return False
    return (folder / "views" / f"{key}.json").is_file()


def finish_view(folder: Path, key: str, partial: Path, file: ViewFile) -> Path:
    """Give filled pixels their name, then write their json. Returns the file of the pixels."""
    pixels = folder / "views" / f"{key}.npy"
    finish_file(partial, pixels)
    with replacing(pixels.with_suffix(".json")) as target:
        target.write_text(json.dumps(to_dict(file), indent=1))
    return pixels


def write_cohort(folder: Path, cohort: Cohort, keys: dict[str, str], problems: list[Problem]) -> None:
    """Write the three lists. `keys` has the prepared views by name; views and breasts without any are left out."""
    breasts = []
    for breast in cohort.breasts:
        views = [to_dict(view) | {"key": keys[view.name]} for view in breast.views if view.name in keys]
        if views:
            breasts.append(to_dict(breast) | {"views": views})
    content = {"version": VERSION, "name": cohort.name, "notes": list(cohort.notes), "breasts": breasts}
    with replacing(folder / "cohort.json") as target:
        target.write_text(json.dumps(content, indent=1))
    with replacing(folder / "problems.csv") as target, target.open("w", newline="") as file:
        csv.writer(file).writerows(
            [("subject", "reason"), *((problem.subject, problem.reason) for problem in problems)]
        )
    with replacing(folder / "manifest.csv") as target, target.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(MANIFEST)
        for breast, prepared in read_breasts(folder):
            writer.writerows(_manifest_row(breast, view) for view in prepared)


MANIFEST = (
    *("view", "patient", "exam", "laterality", "position", "modality", "label", "split"),
    *("findings", "malignant_findings", "slices", "height", "width", "file"),
)


def _manifest_row(breast: Breast, view: PreparedView) -> tuple[Any, ...]:
    boxes, geometry = view.view.annotations, view.file.geometry
    counts = ("", "") if boxes is None else (len(boxes), sum(box.malignant for box in boxes))
    return (
        *(view.view.name, breast.patient, breast.exam, breast.laterality, view.view.position, view.view.modality),
        *(breast.label or "", breast.split, *counts, geometry.slices, geometry.height, geometry.width),
        f"views/{view.pixels.name}",
    )


def check_output(folder: Path, name: str) -> None:
    """A folder holds one cohort: the lists of another would be replaced."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder with -o.")
    path = folder / "cohort.json"
    if path.is_file() and (there := json.loads(path.read_text()).get("name")) != name:
        raise InputError(f"{folder} holds the prepared views of {there}; give another folder for {name} with -o.")


def read_notes(folder: Path) -> list[str]:
    """What a user must know of a prepared folder's labels or images."""
    return _content(folder).get("notes", [])


def read_breasts(folder: Path) -> list[tuple[Breast, list[PreparedView]]]:
    """The breasts of a prepared folder with their prepared views."""
    path = folder / "cohort.json"
    breasts = []
    for data in _content(folder)["breasts"]:
        for view in data["views"]:
            if "findings" in view:  # The name in folders that mm3d 0.1 prepared.
                view["annotations"] = view.pop("findings")
        keys = [view.pop("key") for view in data["views"]]
        breast = from_dict(Breast, data, str(path))
        breasts.append((breast, [read_view(folder, key, v) for key, v in zip(keys, breast.views, strict=True)]))
    return breasts


def _content(folder: Path) -> dict[str, Any]:
    path = folder / "cohort.json"
    if not path.is_file():
        what = "is not a prepared folder: it has no cohort.json" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; make it with 'mm3d prepare', or 'mm3d phantom --format prepared'.")
    content = json.loads(path.read_text())
    if content.get("version") != VERSION:
        raise InputError(f"{path} is of another version of mm3d; prepare the dataset again.")
    return content


def read_view(folder: Path, key: str, view: View) -> PreparedView:
    path = folder / "views" / f"{key}.json"
    if not is_prepared(folder, key):
        raise InputError(f"{path} or its pixels are missing or damaged; run 'mm3d prepare' again to make them.")
    return PreparedView(view, from_dict(ViewFile, json.loads(path.read_text()), str(path)), path.with_suffix(".npy"))
