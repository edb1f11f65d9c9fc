"""One view from its stored slices to its prepared form.

A view is planned on two of its slices: which way it lies, where the breast is, what is black and white. Then it is
filled slice by slice. Slices are independent, so that several workers can fill one volume. `begin_view` and `fill_view`
do both with files. They run in a worker process, because a decoder may crash.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from mm3d.data.dicom.frames import SliceReader
from mm3d.data.dicom.header import Header, read_header, sort_headers
from mm3d.data.dicom.window import Display, StoredImage, Window
from mm3d.data.prepare.geometry import PrepareSettings, make_geometry
from mm3d.data.prepare.prepared import ViewFile
from mm3d.data.records import View
from mm3d.shared.errors import InputError

WHITE = 65535  # prepared views are uint16: 0 is black, this is white
FEW_SLICES = 4  # the worker that plans a view with no more slices fills it at once
PERCENTILES = (1.0, 99.8)
WORKING_SIDE = 400  # the image is reduced to about this size, so that noise and thin things vanish
MARGIN = 0.01  # of the longer side, added around the breast

Slice = NDArray[np.integer]  # (rows, columns)
ReadSlice = Callable[[int], Slice]  # reads a stored slice, bright where there is tissue


@dataclass(frozen=True)
class Plan:
    """How stored slices become prepared ones."""

    image: StoredImage
    display: Display
    file: ViewFile

    @property
    def shape(self) -> tuple[int, int, int]:
        geometry = self.file.geometry
        return geometry.slices, geometry.height, geometry.width

    def brightness(self, stored: Slice) -> NDArray[np.float32]:
        """A stored slice, or a part of it, as it is shown: from 0, black, to 1."""
        shown = self.display.apply(self.image.display_values(stored))
        return 1 - shown if self.image.inverted else shown


def begin_view(
    view: View,
    headers: tuple[Header, ...] | None,
    settings: PrepareSettings,
    pixels: Path,
    display_slices: Path | None = None,
) -> tuple[tuple[Header, ...], Plan, bool]:
    """Plan a view in files, and create its npy file, and one for its slices as they are shown if that is wanted.

    Headers that are given are not read again. Returns them in the order of the slices, the plan, and whether the files
    are filled already.
    """
    headers = sort_headers([read_header(path) for path in view.files] if headers is None else headers)
    count = sum(header.frames for header in headers)
    with SliceReader(headers) as reader:
        plan = plan_view(view, headers[0], count, reader.read, settings)
        np.lib.format.open_memmap(pixels, mode="w+", dtype=np.uint16, shape=plan.shape).flush()
        if display_slices is not None:
            shape = (count, plan.image.rows, plan.image.columns)
            np.lib.format.open_memmap(display_slices, mode="w+", dtype=np.uint8, shape=shape).flush()
        few = count <= FEW_SLICES
        if few:
            _fill(reader, plan, pixels, range(plan.shape[0]), display_slices)
    return headers, plan, few


def fill_view(
    headers: tuple[Header, ...], plan: Plan, pixels: Path, which: range, display_slices: Path | None = None
) -> None:
    """Fill some slices of a planned view's file, and the stored slices that they are made from."""
    with SliceReader(headers) as reader:
        _fill(reader, plan, pixels, which, display_slices)


def _fill(reader: SliceReader, plan: Plan, pixels: Path, which: range, display_slices: Path | None) -> None:
    output = np.lib.format.open_memmap(pixels, mode="r+")
    shown = None if display_slices is None else np.lib.format.open_memmap(display_slices, mode="r+")

    def read(z: int) -> Slice:
        slice_ = reader.read(z)
        if shown is not None:
            shown[z] = np.rint(plan.brightness(_turn(slice_, plan.file.turned)).clip(0, 1) * 255)
        return slice_

    fill_slices(plan, read, output, which)
    output.flush()


def plan_view(view: View, image: StoredImage, slice_count: int, read: ReadSlice, settings: PrepareSettings) -> Plan:
    """Look at two slices, and decide how the view is prepared."""
    _check_records(view, image, slice_count)
    middle = read(slice_count // 2)
    turned = view.upright and chest_wall(read(0)) != view.laterality
    middle = _turn(middle, turned)
    try:
        crop = breast_region(middle)
    except InputError as error:
        raise InputError(f"{image.name}: {error}; look at it, or leave it out.") from error
    wall = view.laterality if view.upright else heavier_side(middle)
    file = ViewFile(
        geometry=make_geometry(crop, wall == "R", slice_count, settings),
        turned=turned,
        pixel_spacing=image.pixel_spacing,
        slice_spacing=image.slice_spacing,
        vendor=image.vendor,
        settings=settings,
    )
    return Plan(image, _choose_display(image, middle, crop, settings), file)


def fill_slices(plan: Plan, read: ReadSlice, output: NDArray[np.uint16], which: range) -> None:
    """Make some slices of a planned view, (S, H, W)."""
    geometry = plan.file.geometry
    x1, y1, x2, y2 = geometry.crop
    for s in which:
        pooled = reduce(np.maximum, (read(z) for z in geometry.region(s)))
        cropped = _turn(pooled, plan.file.turned)[y1:y2, x1:x2]
        if geometry.mirrored:
            cropped = cropped[:, ::-1]
        shown = Image.fromarray(np.ascontiguousarray(plan.brightness(cropped)))
        resized = shown.resize((geometry.width, geometry.height), Image.Resampling.BILINEAR)
        output[s] = np.rint(np.asarray(resized).clip(0, 1) * WHITE)


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
) -> Display:
    if settings.intensity == "window" and image.display is None:
        raise InputError(f"{image.name} has no display window; prepare with --intensity auto or percentile.")
    use_window = settings.intensity == "window" or (settings.intensity == "auto" and not image.for_processing)
    if image.display is not None and use_window:
        return image.display
    x1, y1, x2, y2 = crop
    inside = middle[y1:y2:4, x1:x2:4]  # every fourth pixel is enough for percentiles
    tissue = image.display_values(inside[inside > tissue_threshold(middle)])
    low, high = (float(value) for value in np.percentile(tissue if tissue.size else inside, PERCENTILES))
    return Window((low + high) / 2, max(high - low, 1e-6), "LINEAR_EXACT")


# Where the breast is, and which way it lies


def breast_region(image: NDArray[np.integer] | NDArray[np.floating]) -> tuple[int, int, int, int]:
    """x1, y1, x2, y2 of the breast in an image (rows, columns) in which tissue is brighter than air.

    Letters, clips and markers are separate regions that are smaller than the breast. The paddle's edge and scratches
    are thin, and the opening removes them. An image that is breast all over is kept whole.
    """
    step = max(1, max(image.shape) // WORKING_SIDE)
    small = _block_median(image, step)
    tissue = small > tissue_threshold(small)
    opened = ndimage.binary_opening(tissue, structure=np.ones((3, 3), dtype=bool), iterations=2)
    regions, count = ndimage.label(opened if opened.any() else tissue)
    if count == 0:
        raise InputError("no breast was found in the image")
    largest = 1 + int(np.argmax(np.bincount(regions.ravel())[1:]))
    rows, columns = np.nonzero(regions == largest)
    # The opening removed a rim of two pixels of the small image, each `step` pixels wide.
    margin = 3 * step + round(MARGIN * max(image.shape))
    height, width = image.shape
    return (
        max(0, int(columns.min()) * step - margin),
        max(0, int(rows.min()) * step - margin),
        min(width, (int(columns.max()) + 1) * step + margin),
        min(height, (int(rows.max()) + 1) * step + margin),
    )


def tissue_threshold(image: NDArray[np.integer] | NDArray[np.floating]) -> float:
    """The value above which a pixel is tissue: a little above the darkest values, which are air."""
    step = max(1, max(image.shape) // WORKING_SIDE)
    low, high = np.percentile(image[::step, ::step], (1, 99))
    if not high > low:
        raise InputError("the image has only one grey value")
    return float(low + 0.05 * (high - low))


def _block_median(image: NDArray[np.integer] | NDArray[np.floating], step: int) -> NDArray[np.float32]:
    """The medians of blocks of step x step pixels: thin bright things vanish."""
    rows, columns = (max(1, side // step) for side in image.shape)
    blocks = image[: rows * step, : columns * step].reshape(rows, min(step, image.shape[0]), columns, -1)
    return np.median(blocks, axis=(1, 3)).astype(np.float32)


def chest_wall(image: NDArray[np.integer]) -> str:
    """The side of the image, "L" or "R", that the chest wall is on, as the official BCS-DBT reader decides it.

    The edge column with the larger sum is the chest wall's. In a view that lies as it should, the chest wall of a left
    breast is on the left.
    """
    left, right = image[:, 0].sum(dtype=np.float64), image[:, -1].sum(dtype=np.float64)
    return "R" if left < right else "L"


def heavier_side(image: NDArray[np.integer]) -> str:
    """The half of the image, "L" or "R", that is brighter: the chest wall is there, whatever is at the edges."""
    middle = image.shape[1] // 2
    left, right = image[:, :middle].mean(dtype=np.float64), image[:, middle:].mean(dtype=np.float64)
    return "R" if left < right else "L"
