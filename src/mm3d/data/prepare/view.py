"""One view from its stored slices to its prepared form. Runs in a worker process, which may die with a decoder.

A view is planned on two of its slices (which way it lies, where the breast is, what is black and white), then filled
slice by slice. Slices are independent, so several workers can fill one volume. Planning and filling take slices from
anywhere (`source`); `begin` and `fill` do it with files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture

from mm3d.data.dicom.header import Header
from mm3d.data.dicom.window import LookupTable, Window
from mm3d.data.prepare.geometry import Geometry
from mm3d.data.prepare.prepared import ViewFile
from mm3d.data.prepare.region import breast_region, chest_wall, heavier_side, tissue_threshold
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.data.prepare.source import Files, FileSlices, Image, Slices, files_of
from mm3d.data.records import View
from mm3d.shared.errors import InputError

WHITE = 65535  # prepared views are uint16: 0 is black, this is white
FEW_FRAMES = 4  # up to so many are filled at once by the worker that planned them
PERCENTILES = (1.0, 99.8)


@dataclass(frozen=True)
class Plan:
    """How stored slices become prepared ones."""

    image: Image
    turned: bool  # by 180 degrees
    geometry: Geometry
    display: Window | LookupTable

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.geometry.slices, self.geometry.height, self.geometry.width

    def brightness(self, stored: NDArray[np.integer]) -> NDArray[np.float32]:
        """A stored slice or a part of it as it is shown, from 0, black, to 1."""
        shown = self.display.apply(self.image.stored_values(stored))
        return 1 - shown if self.image.inverted else shown


class CopiedSlices:
    """Slices of which, whenever one is read, a copy is kept as it is shown: whole, upright, 0 black to 255 white."""

    def __init__(self, slices: Slices, plan: Plan, copies: NDArray[np.uint8]) -> None:
        self.slices, self.plan, self.copies = slices, plan, copies  # copies: (stored slices, rows, columns)

    def read(self, z: int) -> NDArray[np.integer]:
        slice_ = self.slices.read(z)
        self.copies[z] = np.rint(self.plan.brightness(_turn(slice_, self.plan.turned)).clip(0, 1) * 255)
        return slice_


def begin(
    view: View, settings: PrepareSettings, target: Path, copies: Path | None = None, headers: tuple[Header, ...] = ()
) -> tuple[Files, Plan, bool]:
    """Plan a view in files and make its file, an npy array; and one for copies of its slices, if they are wanted. The
    last value tells whether they are filled already. Headers that are given are not read again."""
    files = files_of(view, headers)
    image = files.image
    few = image.slices <= FEW_FRAMES
    with FileSlices(files) as slices:
        plan = plan_view(view, image, slices, settings)
        np.lib.format.open_memmap(target, mode="w+", dtype=np.uint16, shape=plan.shape).flush()
        if copies is not None:
            shape = (image.slices, image.rows, image.columns)
            np.lib.format.open_memmap(copies, mode="w+", dtype=np.uint8, shape=shape).flush()
        if few:
            _fill_files(plan, slices, target, range(plan.shape[0]), copies)
    return files, plan, few


def fill(files: Files, plan: Plan, target: Path, which: range, copies: Path | None = None) -> None:
    """Fill some slices of a planned view's file, and the copies of the stored slices they are made from."""
    with FileSlices(files) as slices:
        _fill_files(plan, slices, target, which, copies)


def _fill_files(plan: Plan, slices: Slices, target: Path, which: range, copies: Path | None) -> None:
    if copies is not None:
        slices = CopiedSlices(slices, plan, np.lib.format.open_memmap(copies, mode="r+"))
    output = np.lib.format.open_memmap(target, mode="r+")
    fill_slices(plan, slices, output, which)
    output.flush()


def plan_view(view: View, image: Image, slices: Slices, settings: PrepareSettings) -> Plan:
    """Look at two slices, and decide how the view is prepared."""
    _check_against_records(view, image)
    middle = slices.read(image.slices // 2)
    turned = view.upright and chest_wall(slices.read(0)) != view.laterality
    middle = _turn(middle, turned)
    try:
        crop = breast_region(middle)
    except InputError as error:
        raise InputError(f"{image.name}: {error}; look at it, or leave it out.") from error
    wall = view.laterality if view.upright else heavier_side(middle)
    return Plan(
        image=image,
        turned=turned,
        geometry=_geometry(crop, wall == "R", image.slices, settings),
        display=_display(image, middle, crop, settings),
    )


def fill_slices(plan: Plan, slices: Slices, output: NDArray[np.uint16], which: range) -> None:
    """Make some slices of a planned view's (S, H, W)."""
    x1, y1, x2, y2 = plan.geometry.crop
    for s in which:
        pooled = _maximum(slices.read(z) for z in plan.geometry.region(s))
        cropped = _turn(pooled, plan.turned)[y1:y2, x1:x2]
        if plan.geometry.mirrored:
            cropped = cropped[:, ::-1]
        size = (plan.geometry.width, plan.geometry.height)
        shown = np.ascontiguousarray(plan.brightness(cropped))
        resized = Picture.fromarray(shown).resize(size, Picture.Resampling.BILINEAR)
        output[s] = np.rint(np.asarray(resized).clip(0, 1) * WHITE)


def view_file(plan: Plan, settings: PrepareSettings) -> ViewFile:
    """What is kept of a plan beside the prepared pixels."""
    return ViewFile(
        geometry=plan.geometry,
        turned=plan.turned,
        pixel_spacing=plan.image.pixel_spacing,
        slice_spacing=plan.image.slice_spacing,
        vendor=plan.image.vendor,
        settings=settings,
    )


def _check_against_records(view: View, image: Image) -> None:
    """The file is of the kind, and has room for the findings, that the records say."""
    if view.modality == "FFDM" and image.slices > 1:
        raise InputError(f"{image.name} is said to be a mammogram and has {image.slices} slices: correct its modality.")
    for finding in view.annotations or ():
        x1, y1, x2, y2 = finding.box
        if not (x1 < image.columns and y1 < image.rows and x2 > 0 and y2 > 0):
            raise InputError(
                f"{image.name} has {image.columns} x {image.rows} pixels, and a finding's box {finding.box} is "
                "outside them: check the annotation."
            )
        if max(finding.slice or 0, finding.last_slice or 0) >= image.slices:
            raise InputError(
                f"{image.name} has {image.slices} slices, and a finding is marked beyond them (slice {finding.slice}, "
                "counted from 0): check the annotation."
            )


def _turn(frame: NDArray[np.integer], turned: bool) -> NDArray[np.integer]:
    return frame[::-1, ::-1] if turned else frame


def _geometry(crop: tuple[int, int, int, int], mirrored: bool, stored: int, settings: PrepareSettings) -> Geometry:
    x1, y1, x2, y2 = crop
    scale = min(settings.width / (x2 - x1), settings.length / (y2 - y1))
    return Geometry(
        crop=crop,
        mirrored=mirrored,
        height=min(settings.length, max(1, round((y2 - y1) * scale))),
        width=min(settings.width, max(1, round((x2 - x1) * scale))),
        stored_slices=stored,
        slices=min(settings.slices, stored),
    )


def _display(
    image: Image, middle: NDArray[np.integer], crop: tuple[int, int, int, int], settings: PrepareSettings
) -> Window | LookupTable:
    if settings.intensity == "window" and image.display is None:
        raise InputError(f"{image.name} has no display window; prepare with --intensity auto or percentile.")
    use_window = settings.intensity == "window" or (settings.intensity == "auto" and not image.for_processing)
    if image.display is not None and use_window:
        return image.display
    x1, y1, x2, y2 = crop
    inside = middle[y1:y2:4, x1:x2:4]  # every fourth pixel says enough of percentiles
    tissue = image.stored_values(inside[inside > tissue_threshold(middle)])
    low, high = (float(value) for value in np.percentile(tissue if tissue.size else inside, PERCENTILES))
    return Window((low + high) / 2, max(high - low, 1e-6), "LINEAR_EXACT")


def _maximum(frames: Iterator[NDArray[np.integer]]) -> NDArray[np.integer]:
    first = next(frames)
    result = None
    for frame in frames:
        result = np.maximum(first if result is None else result, frame, out=result)
    return first if result is None else result
