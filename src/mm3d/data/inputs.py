"""What the model is given of a view: the `input` axis.

    volume  all slices of a tomosynthesis volume
    slices  one slice at a time; a training draws one (Buda et al.), inference takes all and joins what they find
    mip     maximum intensity projection of the volume
    hm      that, with its histogram matched to the average one of mammograms
    msp     maximum suspicion projection: each place from the slice on which a detector of slices suspects most there
    ffdm    the mammogram

All but volume have one slice. Images are (S, H, W) float32, grey values from 0 to 1, air 0.
"""

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mm3d.data.records import Annotation, Modality
from mm3d.shared.errors import InputError

InputName = Literal["volume", "slices", "mip", "hm", "msp", "ffdm"]
Image = NDArray[np.float32]
Histogram = tuple[float, ...]  # shares of grey values in bins of equal width from 0 to 1; air does not count

BINS = 256  # of a stored histogram
FINE_BINS = 4096  # of an image's own


def modality_of(name: InputName) -> Modality:
    """Which views an input is made from."""
    return "FFDM" if name == "ffdm" else "DBT"


def has_depth(name: InputName) -> bool:
    """Whether a slice can be told of what is found."""
    return name in ("volume", "slices")


def grey(pixels: NDArray[np.uint16]) -> Image:
    """Prepared pixels, 0 black to 65535 white, as grey values from 0 to 1."""
    return pixels.astype(np.float32) / np.float32(65535)


def model_input(pixels: NDArray[np.uint16], name: InputName, histogram: Histogram | None = None) -> Image:
    """The image of an input, from a prepared view's pixels (S, H, W); for slices and volume all of them.

    msp needs a detector; its projections are made beforehand, by mm3d.predict.suspicion, and are mammograms here.
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
    """The average histogram of mammograms, each counting the same; pixels of air (0) do not count."""
    shares = []
    for image in images:
        counts = np.histogram(image[image > 0], BINS, (0.0, 1.0))[0]
        if counts.sum():
            shares.append(counts / counts.sum())
    if not shares:
        raise InputError("There is no mammogram to take the average histogram of; input hm needs some.")
    return tuple(np.mean(shares, axis=0).tolist())


def match_histogram(image: Image, histogram: Histogram) -> Image:
    """Change grey values, keeping their order, so that they are distributed as `histogram` says. Air stays air."""
    inside = image > 0
    if not inside.any():
        return image
    own = np.cumsum(np.histogram(image[inside], FINE_BINS, (0.0, 1.0))[0])
    rank = np.interp(image[inside], np.arange(FINE_BINS + 1) / FINE_BINS, np.append(0, own) / own[-1])
    edges = np.arange(len(histogram) + 1) / len(histogram)
    # A trace of slope: over empty bins the ranks stand still, and what stands still has no inverse.
    wanted = np.append(0.0, np.cumsum(histogram)) + 1e-9 * edges
    matched = np.zeros_like(image)
    matched[inside] = np.interp(rank, wanted / wanted[-1], edges)
    return matched


def suspicion_projection(volume: NDArray[np.uint16], suspicion: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Each place's pixel from the slice where `suspicion` (S, H, W) is highest there; (1, H, W).

    Where nothing is suspected at all, from the middle slice.
    """
    chosen = suspicion.argmax(axis=0)
    chosen[suspicion.max(axis=0) <= 0] = len(volume) // 2
    return np.take_along_axis(np.asarray(volume), chosen[None], axis=0)


def draw_slice(
    findings: tuple[Annotation, ...], slices: int, random: np.random.Generator
) -> tuple[int, tuple[Annotation, ...]]:
    """Buda's sampling: the stored slice of a volume to train on, and the findings that are on it.

    With findings, one is drawn, and a slice within its reach, which is int(sqrt((W + H) / 2)) slices either side of its
    own (box in stored pixels); every finding within whose reach that slice lies is on it. Otherwise any slice.
    """
    marked = tuple(finding for finding in findings if finding.slice is not None)
    if not marked:
        return int(random.integers(slices)), ()
    drawn = marked[random.integers(len(marked))]
    assert drawn.slice is not None
    low, high = max(0, drawn.slice - reach(drawn.box)), min(slices - 1, drawn.slice + reach(drawn.box))
    z = int(random.integers(low, high + 1))
    return z, tuple(f for f in marked if f.slice is not None and abs(f.slice - z) <= reach(f.box))


def reach(box: tuple[float, ...]) -> int:
    """Slices either side on which a box (stored pixels) counts as there, by Buda's rule."""
    x1, y1, x2, y2 = box
    return int(math.sqrt((x2 - x1 + y2 - y1) / 2))


def deepened(image: Image, slices: int) -> Image:
    """(s, H, W) to (slices, H, W) by repeating slices evenly: the views of a breast need one slice count."""
    return image if len(image) == slices else image[np.arange(slices) * len(image) // slices]


def deepened_slice(s: int, own: int, slices: int) -> int:
    """Where slice s of `own` is after `deepened`: the middle of its copies."""
    return (2 * s + 1) * slices // (2 * own)
