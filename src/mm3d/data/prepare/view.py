"""One view from its stored slices to its prepared form.

A view is planned on two of its slices: which way it lies, where the breast is, what is black and white. Then it is
filled slice by slice. Slices are independent, so that several workers can fill one volume. `begin_view` and `fill_view`
do both with files. They run in a worker process, because a decoder may crash.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mm3d.data.dicom.frames import SliceReader
from mm3d.data.dicom.header import Header, read_header, sort_headers
from mm3d.data.dicom.window import Display, StoredImage, Window
from mm3d.data.picture import AS_SHOWN, read_picture
from mm3d.data.prepare.damage import are_alike, find_damage, is_empty
from mm3d.data.prepare.geometry import PrepareSettings, make_geometry
from mm3d.data.prepare.prepared import ViewFile, create_array
from mm3d.data.prepare.region import (
    Mask,
    bounds,
    breast_region,
    chest_wall,
    find_outline,
    heavier_side,
    tissue_threshold,
)
from mm3d.data.records import Picture, View
from mm3d.data.volume_file import is_array, read_array
from mm3d.shared.errors import InputError

WHITE = 65535  # of prepared views in 16 bits: 0 is black, this is white
FEW_SLICES = 4  # the worker that plans a view with no more slices fills it at once
PERCENTILES = (1.0, 99.8)
# Of all stored slices of a view together. 100 slices of 3328 x 2560 pixels have 0.85 thousand million.
MAX_PIXELS = 2_000_000_000
# What a view must show to count as seen, of the tissue inside the crop of its middle slice (docs/data.md has what was
# measured). Darkest and brightest tissue are its 5th and 95th percentiles.
RANGE = (5.0, 95.0)
MIN_STEPS = 16  # stored grey values from the darkest to the brightest tissue
MIN_CONTRAST = 0.1  # difference of their brightness; black is 0, white is 1
MAX_CLIPPED = 0.25  # share of the tissue that is shown as pure black or pure white

Slice = NDArray[np.integer]  # (rows, columns)
ReadSlice = Callable[[int], Slice]  # reads a stored slice, bright where there is tissue


@dataclass(frozen=True)
class Plan:
    """How stored slices become prepared ones."""

    image: StoredImage
    display: Display
    file: ViewFile
    outline: Mask | None = None  # of the breast in the crop of a picture; what is outside becomes black

    @property
    def shape(self) -> tuple[int, int, int]:
        geometry = self.file.geometry
        return geometry.slices, geometry.height, geometry.width

    @property
    def dtype(self) -> type[np.uint8 | np.uint16]:
        """Of the prepared view, in which 0 is black and the largest value is white. Pictures of 8 bits keep 8."""
        return np.uint8 if self.outline is not None and self.display == AS_SHOWN else np.uint16

    def brightness(self, stored: Slice) -> NDArray[np.float32]:
        """A stored slice, or a part of it, as it is shown: from 0, black, to 1."""
        return _brightness(self.image, self.display, stored)


def begin_view(
    view: View,
    headers: tuple[Header, ...] | None,
    settings: PrepareSettings,
    pixels: Path,
    display_slices: Path | None = None,
    max_pixels: int = MAX_PIXELS,
) -> tuple[tuple[Header, ...], Plan, bool]:
    """Plan a view in files, and create its npy file, and one for its slices as they are shown if that is wanted.

    Headers that are given are not read again. A view with more than `max_pixels` is refused. Returns the headers in the
    order of the slices (pictures and arrays have none), the plan, and whether the files are filled already.
    """
    if view.picture is not None:
        image, slices = _read_slices(view.files[0], view.picture, max_pixels)
        plan = plan_view(view, image, len(slices), slices.__getitem__, settings)
        _create(plan, len(slices), pixels, display_slices)
        _fill(slices.__getitem__, plan, pixels, range(plan.shape[0]), display_slices)
        return (), plan, True
    headers = sort_headers([read_header(path) for path in view.files] if headers is None else headers)
    count = sum(header.frames for header in headers)
    _check_size(headers[0], count, max_pixels)
    with SliceReader(headers) as reader:
        read = _check_slices(reader)
        plan = plan_view(view, headers[0], count, read, settings)
        ends = {"first": 0, "last": count - 1} if count > 1 else {}
        empty = tuple(f"its {name} slice is empty." for name, z in ends.items() if is_empty(read(z)))
        plan = replace(plan, file=replace(plan.file, notes=(*plan.file.notes, *empty)))
        _create(plan, count, pixels, display_slices)
        few = count <= FEW_SLICES
        if few:
            _fill(read, plan, pixels, range(plan.shape[0]), display_slices)
    return headers, plan, few


def _read_slices(path: Path, picture: Picture, max_pixels: int) -> tuple[StoredImage, NDArray[np.integer]]:
    """The slices (S, rows, columns) of a picture or an array, and how they are stored."""
    if is_array(path):
        return read_array(path, picture, max_pixels)
    image, pixels = read_picture(path, picture)
    return image, pixels[None]


def fill_view(
    headers: tuple[Header, ...], plan: Plan, pixels: Path, which: range, display_slices: Path | None = None
) -> None:
    """Fill some slices of a planned view's file, and the stored slices that they are made from."""
    with SliceReader(headers) as reader:
        _fill(_check_slices(reader), plan, pixels, which, display_slices)


def _check_slices(reader: SliceReader) -> ReadSlice:
    """The slices of a reader. One that cannot be of a breast is refused. The first and the last may be empty, as some
    software makes them; that is noted."""
    count = len(reader.slices)
    last: tuple[int, Slice] | None = None

    def read(z: int) -> Slice:
        nonlocal last
        slice_, header = reader.read(z), reader.headers[reader.slices[z][0]]
        if count > 1 and is_empty(slice_):
            damage = "is empty" if 0 < z < count - 1 else ""
        else:
            damage = find_damage(slice_, film=header.kind in ("film", "captured 2D"))
            if last is not None and last[0] == z - 1 and not are_alike(slice_, last[1]):
                damage = damage or "is unlike the slice before it"
            last = z, slice_
        if damage:
            which = f": slice {z + 1} of {count}" if count > 1 else ""
            raise InputError(f"{header.path}{which} {damage}; copy or export it again.")
        return slice_

    return read


def _check_size(header: Header, slice_count: int, max_pixels: int) -> None:
    """A header may claim any size, and a file be created for it, before a decoder says that it is not true."""
    pixels = slice_count * header.rows * header.columns
    if pixels > max_pixels:
        raise InputError(
            f"{header.path} has {slice_count} slices of {header.rows} x {header.columns} pixels, {pixels / 1e6:.0f} "
            f"million in all, and at most {max_pixels / 1e6:.0f} million are read; if that is its real size, give a "
            "larger --max-pixels."
        )


def _create(plan: Plan, slice_count: int, pixels: Path, display_slices: Path | None) -> None:
    create_array(pixels, plan.dtype, plan.shape)
    if display_slices is not None:
        shape = (slice_count, plan.image.rows, plan.image.columns)
        create_array(display_slices, np.uint8, shape)


def _fill(read: ReadSlice, plan: Plan, pixels: Path, which: range, display_slices: Path | None) -> None:
    output = np.lib.format.open_memmap(pixels, mode="r+")
    shown = None if display_slices is None else np.lib.format.open_memmap(display_slices, mode="r+")

    def read_and_show(z: int) -> Slice:
        slice_ = read(z)
        if shown is not None:
            shown[z] = np.rint(plan.brightness(_turn(slice_, plan.file.turned)).clip(0, 1) * 255)
        return slice_

    fill_slices(plan, read_and_show, output, which)
    output.flush()


def plan_view(view: View, image: StoredImage, slice_count: int, read: ReadSlice, settings: PrepareSettings) -> Plan:
    """Look at two slices, and decide how the view is prepared."""
    _check_records(view, image, slice_count)
    middle = read(slice_count // 2)
    turned = view.upright and chest_wall(read(0)) != view.laterality
    middle = _turn(middle, turned)
    outline = None
    try:
        if view.picture is None or slice_count > 1:  # nobody puts a label on a volume
            crop = breast_region(middle)
        else:
            outline = find_outline(middle)
            crop = bounds(outline)
            middle = np.where(outline, middle, middle.min())
            outline = outline[crop[1] : crop[3], crop[0] : crop[2]]
    except InputError as error:
        raise InputError(f"{image.name}: {error}; look at it, or leave it out.") from error
    wall = view.laterality if view.upright else heavier_side(middle)
    display, notes = _choose_display(image, middle, crop, settings)
    file = ViewFile(
        geometry=make_geometry(crop, wall == "R", slice_count, settings, view.picture.stretch if view.picture else 1.0),
        turned=turned,
        pixel_spacing=image.pixel_spacing,
        slice_spacing=image.slice_spacing,
        vendor=image.vendor,
        settings=settings,
        notes=notes,
    )
    return Plan(image, display, file, outline)


def fill_slices(plan: Plan, read: ReadSlice, output: NDArray[np.unsignedinteger], which: range) -> None:
    """Make some slices of a planned view, (S, H, W)."""
    geometry = plan.file.geometry
    x1, y1, x2, y2 = geometry.crop
    for s in which:
        pooled = reduce(np.maximum, (read(z) for z in geometry.region(s)))
        shown = plan.brightness(_turn(pooled, plan.file.turned)[y1:y2, x1:x2])
        if plan.outline is not None:
            shown = shown * plan.outline
        if geometry.mirrored:
            shown = shown[:, ::-1]
        resized = Image.fromarray(np.ascontiguousarray(shown)).resize(
            (geometry.width, geometry.height), Image.Resampling.BILINEAR
        )
        output[s] = np.rint(np.asarray(resized).clip(0, 1) * np.iinfo(output.dtype).max)


def _check_records(view: View, image: StoredImage, slice_count: int) -> None:
    """The image is of the kind that the records say, and has room for their annotations."""
    if view.modality == "FFDM" and slice_count > 1:
        raise InputError(f"{image.name} has {slice_count} slices and cannot be a mammogram: correct its modality.")
    for annotation in view.annotations or ():
        x1, y1, x2, y2 = annotation.box
        if not (x1 < image.columns and y1 < image.rows and x2 > 0 and y2 > 0):
            raise InputError(
                f"{image.name} has {image.columns} x {image.rows} pixels, and the box {annotation.box} of an "
                "annotation is outside them: check the annotation."
            )
        if max(annotation.slice or 0, annotation.last_slice or 0) >= slice_count:
            raise InputError(
                f"{image.name} has {slice_count} slices, and an annotation is beyond them (slice {annotation.slice}, "
                "counted from 0): check the annotation."
            )


def _turn(frame: Slice, turned: bool) -> Slice:
    return frame[::-1, ::-1] if turned else frame


def _choose_display(
    image: StoredImage, middle: Slice, crop: tuple[int, int, int, int], settings: PrepareSettings
) -> tuple[Display, tuple[str, ...]]:
    """What becomes black and white, and a note if it is not what the file says. An image of which nothing would be seen
    is refused: a detector would find nothing in it, either."""
    x1, y1, x2, y2 = crop
    inside = middle[y1:y2:4, x1:x2:4]  # every fourth pixel is enough
    tissue = inside[inside > tissue_threshold(middle)]
    tissue = tissue if tissue.size else inside
    if settings.intensity == "window" and image.display is None:
        raise InputError(f"{image.name} has no display window; prepare with --intensity auto or percentile.")
    use_window = settings.intensity == "window" or (settings.intensity == "auto" and not image.for_processing)
    notes: tuple[str, ...] = ()
    if image.display is not None and use_window:
        fault = _find_fault(image, image.display, tissue)
        if not fault:
            return image.display, ()
        if settings.intensity == "window":
            raise InputError(f"{image.name}: in its display window {fault}; prepare with --intensity auto.")
        notes = (f"in its own display window {fault}, so percentiles of its grey values are taken.",)
    with np.errstate(all="ignore"):
        low, high = (float(value) for value in np.percentile(image.display_values(tissue), PERCENTILES))
    display = Window((low + high) / 2, max(high - low, 1e-6), "LINEAR_EXACT")
    if fault := _find_fault(image, display, tissue):
        raise InputError(f"{image.name}: {fault}, whatever window is taken; look at it, or leave it out.")
    return display, notes


def _find_fault(image: StoredImage, display: Display, tissue: Slice) -> str:
    """What is wrong with the brightness of these pixels of tissue; "" if they can be seen."""
    ends = np.percentile(tissue, RANGE)
    with np.errstate(all="ignore"):
        darkest, brightest = _brightness(image, display, ends).tolist()
        shown = _brightness(image, display, tissue)
    if ends[1] - ends[0] < MIN_STEPS:
        return "the breast has nearly the same grey value everywhere"
    if not brightest - darkest >= MIN_CONTRAST:  # NaN is not, either
        return "the breast is nearly the same grey everywhere"
    if not ((shown > 1 / 255) & (shown < 254 / 255)).mean() >= 1 - MAX_CLIPPED:
        return f"over {MAX_CLIPPED:.0%} of the breast is pure black or white"
    return ""


def _brightness(image: StoredImage, display: Display, stored: NDArray[Any]) -> NDArray[np.float32]:
    """Stored values as they are shown: from 0, black, to 1."""
    shown = display.apply(image.display_values(stored))
    return 1 - shown if image.inverted else shown
