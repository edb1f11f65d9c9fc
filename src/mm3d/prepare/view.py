"""One view from its files to its prepared form. Runs in a worker process, which may die with a decoder.

A view is planned on two of its frames (which way it lies, where the breast is, what is black and white), then filled
slice by slice. Slices are independent, so several workers can fill one volume.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mm3d.dicom.frames import FrameReader
from mm3d.dicom.header import Header, read_header
from mm3d.dicom.window import LookupTable, Window
from mm3d.errors import InputError
from mm3d.prepare.geometry import Geometry
from mm3d.prepare.region import breast_region, chest_wall, heavier_side, tissue_threshold
from mm3d.prepare.settings import PrepareSettings
from mm3d.records import View

WHITE = 65535  # prepared views are uint16: 0 is black, this is white
FEW_FRAMES = 4  # up to so many are filled at once by the worker that planned them
PERCENTILES = (1.0, 99.8)


@dataclass(frozen=True)
class Plan:
    """Everything a worker needs to fill slices of a view."""

    headers: tuple[Header, ...]
    frames: tuple[tuple[int, int], ...]  # (file, frame in it) of every stored slice
    turned: bool  # by 180 degrees
    geometry: Geometry
    display: Window | LookupTable

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.geometry.slices, self.geometry.height, self.geometry.width


def begin(view: View, settings: PrepareSettings, target: Path) -> tuple[Plan, bool]:
    """Plan a view and make its file, an npy array. The second value tells whether it is filled already."""
    headers = tuple(read_header(path) for path in view.files)
    headers, frames = _in_order(view, headers)
    _check_against_records(view, headers[0], len(frames))
    with Frames(headers, frames) as stack:
        middle = stack.read(len(frames) // 2)
        turned = view.upright and chest_wall(stack.read(0)) != view.laterality
        middle = _turn(middle, turned)
        try:
            crop = breast_region(middle)
        except InputError as error:
            raise InputError(f"{headers[0].path}: {error}; look at it, or leave it out.") from error
        wall = view.laterality if view.upright else heavier_side(middle)
        plan = Plan(
            headers=headers,
            frames=frames,
            turned=turned,
            geometry=_geometry(crop, wall == "R", len(frames), settings),
            display=_display(headers[0], middle, crop, settings),
        )
        output = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint16, shape=plan.shape)
        few = len(frames) <= FEW_FRAMES
        if few:
            _fill(plan, stack, output, range(plan.shape[0]))
        output.flush()
    return plan, few


def fill(plan: Plan, target: Path, slices: range) -> None:
    """Fill some slices of a planned view's file."""
    output = np.lib.format.open_memmap(target, mode="r+")
    with Frames(plan.headers, plan.frames) as stack:
        _fill(plan, stack, output, slices)
    output.flush()


class Frames:
    """The stored slices of a view, in order, bright where there is tissue; the last one read is kept."""

    def __init__(self, headers: tuple[Header, ...], frames: tuple[tuple[int, int], ...]) -> None:
        self.headers, self.frames = headers, frames
        self.stack = ExitStack()
        self.readers: dict[int, FrameReader] = {}
        self.last: tuple[int, NDArray[np.integer]] | None = None

    def __enter__(self) -> "Frames":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def read(self, z: int) -> NDArray[np.integer]:
        if self.last is None or self.last[0] != z:
            file, number = self.frames[z]
            if file not in self.readers:
                self.stack.close()  # one open file at a time: a volume may come in hundreds
                self.readers = {file: self.stack.enter_context(FrameReader(self.headers[file]))}
            header = self.headers[file]
            frame = self.readers[file].read(number)
            self.last = (z, _limit(header) - frame if header.inverted else frame)
        return self.last[1]


def _in_order(view: View, headers: tuple[Header, ...]) -> tuple[tuple[Header, ...], tuple[tuple[int, int], ...]]:
    """The files of a view by position, and its stored slices as (file, frame)."""
    if len(headers) > 1:
        headers = tuple(sorted(headers, key=lambda header: header.along))
        if any(header.frames != 1 for header in headers):
            raise InputError(f"{view.name}: a volume in several files must have one slice in each; leave it out.")
    first = headers[0]
    for header in headers:
        if (header.rows, header.columns) != (first.rows, first.columns):
            raise InputError(f"{header.path} has another size than the other slices of {view.name}; leave it out.")
    return headers, tuple((file, number) for file, header in enumerate(headers) for number in header.frame_order)


def _check_against_records(view: View, header: Header, slices: int) -> None:
    """The file is of the kind, and has room for the findings, that the records say."""
    if view.modality == "FFDM" and slices > 1:
        raise InputError(f"{header.path} is said to be a mammogram and has {slices} slices: correct its modality.")
    for finding in view.findings or ():
        x1, y1, x2, y2 = finding.box
        if not (x1 < header.columns and y1 < header.rows and x2 > 0 and y2 > 0):
            raise InputError(
                f"{header.path} has {header.columns} x {header.rows} pixels, and a finding's box {finding.box} is "
                "outside them: check the annotation."
            )
        if max(finding.slice or 0, finding.last_slice or 0) >= slices:
            raise InputError(
                f"{header.path} has {slices} slices, and a finding is marked beyond them (slice {finding.slice}, "
                "counted from 0): check the annotation."
            )


def _limit(header: Header) -> int:
    """What an inverted image is subtracted from: the largest value it can have."""
    return (2 ** (header.bits_stored - 1) if header.signed else 2**header.bits_stored) - 1


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
    header: Header, middle: NDArray[np.integer], crop: tuple[int, int, int, int], settings: PrepareSettings
) -> Window | LookupTable:
    if settings.intensity == "window" and header.display is None:
        raise InputError(f"{header.path} has no display window; prepare with --intensity auto or percentile.")
    use_window = settings.intensity == "window" or (settings.intensity == "auto" and not header.for_processing)
    if header.display is not None and use_window:
        return header.display
    x1, y1, x2, y2 = crop
    inside = middle[y1:y2:4, x1:x2:4]  # every fourth pixel says enough of percentiles
    tissue = _stored_values(header, inside[inside > tissue_threshold(middle)])
    low, high = (float(value) for value in np.percentile(tissue if tissue.size else inside, PERCENTILES))
    return Window((low + high) / 2, max(high - low, 1e-6), "LINEAR_EXACT")


def _stored_values(header: Header, frame: NDArray[np.integer]) -> NDArray[np.float32]:
    """Values as the display functions want them: rescaled, and not inverted."""
    values = frame.astype(np.float32)
    return (_limit(header) - values if header.inverted else values) * header.slope + header.intercept


def _fill(plan: Plan, stack: Frames, output: NDArray[np.uint16], slices: range) -> None:
    x1, y1, x2, y2 = plan.geometry.crop
    header = plan.headers[0]
    for s in slices:
        pooled = _maximum(stack.read(z) for z in plan.geometry.region(s))
        cropped = _turn(pooled, plan.turned)[y1:y2, x1:x2]
        if plan.geometry.mirrored:
            cropped = cropped[:, ::-1]
        brightness = plan.display.apply(_stored_values(header, cropped))
        if header.inverted:
            brightness = 1 - brightness
        size = (plan.geometry.width, plan.geometry.height)
        resized = Image.fromarray(np.ascontiguousarray(brightness)).resize(size, Image.Resampling.BILINEAR)
        output[s] = np.rint(np.asarray(resized).clip(0, 1) * WHITE)


def _maximum(frames: Iterator[NDArray[np.integer]]) -> NDArray[np.integer]:
    first = next(frames)
    result = None
    for frame in frames:
        result = np.maximum(first if result is None else result, frame, out=result)
    return first if result is None else result
