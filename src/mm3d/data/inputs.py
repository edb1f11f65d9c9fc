"""What the model is given of a view: the `input` axis.

    volume  all slices of a tomosynthesis volume
    slices  one slice at a time; a training draws one (Buda et al.), prediction takes all and joins their findings
    mip     maximum intensity projection of the volume
    hm      mip with its histogram matched to the average one of mammograms
    msp     maximum suspicion projection: each pixel is taken from the slice where a detector of slices suspects most
    ffdm    the mammogram

All inputs but volume have one slice. Images are (S, H, W) float32, grey values from 0 to 1, air 0. `batches` puts the
images of several breasts into the batch that the model takes.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mm3d.data.prepare.prepared import PreparedBreast, PreparedView, read_breasts
from mm3d.data.records import Annotation, Modality
from mm3d.shared.errors import InputError

InputName = Literal["volume", "slices", "mip", "hm", "msp", "ffdm"]
Image = NDArray[np.float32]
ImagePair = tuple[Image | None, Image | None]  # CC, MLO
Histogram = tuple[float, ...]  # shares of grey values in bins of equal width from 0 to 1; air does not count

BINS = 256  # of a stored histogram
FINE_BINS = 4096  # of an image's own histogram


def modality_of(name: InputName) -> Modality:
    """The kind of view that an input is made from."""
    return "FFDM" if name == "ffdm" else "DBT"


def has_slices(name: InputName) -> bool:
    """Whether a finding of this input has a slice."""
    return name in ("volume", "slices")


def grey(pixels: NDArray[np.unsignedinteger]) -> Image:
    """Prepared pixels, from 0 black to the largest value of their type, white, as grey values from 0 to 1."""
    return pixels.astype(np.float32) / np.float32(np.iinfo(pixels.dtype).max)


def make_input(pixels: NDArray[np.unsignedinteger], name: InputName, histogram: Histogram | None = None) -> Image:
    """Make the image of an input from the pixels (S, H, W) of a prepared view; inputs slices and volume keep all S.

    Projections for msp need a detector. mm3d.predict.detect makes them beforehand, and here they are mammograms.
    """
    if name in ("mip", "hm"):
        projection = grey(np.max(pixels, axis=0, keepdims=True))
        if name == "mip":
            return projection
        if histogram is None:
            raise InputError("Input hm needs the average histogram of mammograms; give a folder that has some.")
        return match_histogram(projection, histogram)
    return grey(np.asarray(pixels))


def mean_histogram(images: Iterable[Image]) -> Histogram:
    """The average histogram of mammograms, which all count the same; pixels of air (0) do not count."""
    shares = []
    for image in images:
        counts = np.histogram(image[image > 0], BINS, (0.0, 1.0))[0]
        if counts.sum():
            shares.append(counts / counts.sum())
    if not shares:
        raise InputError("Input hm needs the average histogram of mammograms, and there is no mammogram; add some.")
    return tuple(np.mean(shares, axis=0).tolist())


def match_histogram(image: Image, histogram: Histogram) -> Image:
    """Change grey values so that they are distributed like `histogram`. Their order is kept, and air stays air."""
    inside = image > 0
    if not inside.any():
        return image
    own = np.cumsum(np.histogram(image[inside], FINE_BINS, (0.0, 1.0))[0])
    rank = np.interp(image[inside], np.arange(FINE_BINS + 1) / FINE_BINS, np.append(0, own) / own[-1])
    edges = np.arange(len(histogram) + 1) / len(histogram)
    # Ranks are constant over empty bins, and a constant has no inverse. A small slope gives it one.
    wanted = np.append(0.0, np.cumsum(histogram)) + 1e-9 * edges
    matched = np.zeros_like(image)
    matched[inside] = np.interp(rank, wanted / wanted[-1], edges)
    return matched


def suspicion_projection(
    volume: NDArray[np.unsignedinteger], suspicion: NDArray[np.float32]
) -> NDArray[np.unsignedinteger]:
    """Take each pixel from the slice where `suspicion` (S, H, W) is highest, or from the middle slice if it is 0.

    Returns (1, H, W).
    """
    chosen = suspicion.argmax(axis=0)
    chosen[suspicion.max(axis=0) <= 0] = len(volume) // 2
    return np.take_along_axis(np.asarray(volume), chosen[None], axis=0)


def draw_slice(
    annotations: tuple[Annotation, ...], slice_count: int, random: np.random.Generator
) -> tuple[int, tuple[Annotation, ...]]:
    """Draw the stored slice of a volume to train on, by Buda's rule. Returns it and the annotations that are on it.

    An annotation is drawn, and then one of the slices on which it counts as visible (`visible_range`). Without any
    annotation, all slices are as likely.
    """
    ranges = [(a, visible_range(a.box, a.slice, slice_count)) for a in annotations if a.slice is not None]
    if not ranges:
        return int(random.integers(slice_count)), ()
    visible = ranges[random.integers(len(ranges))][1]
    z = int(random.integers(visible.start, visible.stop))
    return z, tuple(annotation for annotation, visible in ranges if z in visible)


def is_visible(annotation: Annotation, z: int, slice_count: int) -> bool:
    """Whether an annotation counts as visible on a stored slice. One whose slice is not known does not."""
    return annotation.slice is not None and z in visible_range(annotation.box, annotation.slice, slice_count)


def visible_range(box: tuple[float, ...], z: int, slice_count: int) -> range:
    """The stored slices on which a box (stored pixels) around slice z counts as visible, by Buda's rule: its own, and
    int(sqrt((W + H) / 2)) on either side."""
    x1, y1, x2, y2 = box
    reach = int(math.sqrt((x2 - x1 + y2 - y1) / 2))
    return range(max(0, z - reach), min(slice_count, z + reach + 1))


def repeat_slices(image: Image, slice_count: int) -> Image:
    """(s, H, W) to (slice_count, H, W) by repeating slices evenly: the views of a breast need one slice count."""
    return image if len(image) == slice_count else image[np.arange(slice_count) * len(image) // slice_count]


def find_repeated_slice(s: int, own: int, slice_count: int) -> int:
    """Where slice s of `own` slices is after `repeat_slices`: the middle of its copies."""
    return (2 * s + 1) * slice_count // (2 * own)


# Of prepared breasts


def prepared_breasts(folder: Path, split: str | None, modality: Modality) -> list[PreparedBreast]:
    """The breasts of a prepared folder that have views of the modality, with these views only. Without a split, all."""
    breasts = read_breasts(folder)
    splits = {prepared.breast.split for prepared in breasts}
    if split is not None and split not in splits:
        known = ", ".join(sorted(splits - {""})) or "it has no splits"
        raise InputError(f"{folder} has no breast of the split {split!r}; known: {known}.")
    chosen = []
    for prepared in breasts:
        views = tuple(view for view in prepared.views if view.view.modality == modality)
        if views and split in (None, prepared.breast.split):
            chosen.append(replace(prepared, views=views))
    if not chosen:
        other = "ffdm" if modality == "DBT" else "volume"
        raise InputError(f"{folder} has no {modality} view; choose another folder, or an input such as {other}.")
    return chosen


def read_image(view: PreparedView, name: InputName, histogram: Histogram | None = None) -> Image:
    """The image of an input, (S, H, W)."""
    return make_input(view.image(), name, histogram)


def training_histogram(folder: Path, split: str | None) -> Histogram:
    """The average histogram of a folder's mammograms, for input hm: of the split, or of all if there are no splits."""
    if not any(prepared.breast.split for prepared in read_breasts(folder)):
        split = None
    breasts = prepared_breasts(folder, split, modality_of("ffdm"))
    return mean_histogram(grey(view.image()) for breast in breasts for view in breast.views)
