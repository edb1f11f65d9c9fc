"""Processing for presentation: each vendor shows mammograms in one way and slices in another.

Vendors do not publish their curves. The table below is ours, made from what is described of their processing: see
docs/phantom.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mm3d.data.records import Modality
from mm3d.phantom.anatomy import Array, CompressedBreast

BITS: dict[Modality, int] = {"FFDM": 12, "DBT": 10}
WIDE, FINE, EDGE = 20.0, 4.0, 1.0  # mm, the sizes of structures that are weakened or enhanced
BLACK, WHITE = 0.5, 99.7  # percentiles of the breast, between which the curve runs


@dataclass(frozen=True)
class Look:
    """How a vendor shows the images of a modality."""

    equalised: float  # share that is taken from structures wider than WIDE, so that all parts are equally bright
    fine: float  # share by which structures finer than FINE are enhanced
    edges: float  # the same for EDGE
    smooth: float  # mm, of a filter against noise
    adapted: float  # share of the curve that gives every breast the same histogram; the rest is the same for all
    steepness: float  # of the S-shaped curve of contrast; 0 is a straight line
    middle: float  # where the curve is steepest: images are brighter if it is low
    range: tuple[float, float]  # grey values of the darkest and the brightest tissue; air is 0


# Mammograms: strong contrast, dark fat, adapted to the image. Slices: a bright and narrow range, one window for all.
LOOKS: dict[tuple[str, Modality], Look] = {
    ("hologic", "FFDM"): Look(0.2, 0.6, 0.0, 0.0, 0.6, 3.0, 0.50, (0.04, 1.0)),
    ("siemens", "FFDM"): Look(0.1, 0.4, 0.1, 0.0, 0.6, 0.0, 0.50, (0.06, 1.0)),
    ("ge", "FFDM"): Look(0.4, 0.5, 0.0, 0.0, 0.6, 2.0, 0.45, (0.08, 1.0)),
    ("hologic", "DBT"): Look(0.0, 0.8, 0.0, 0.0, 0.0, 4.0, 0.30, (0.30, 0.90)),
    ("siemens", "DBT"): Look(0.0, 0.6, 0.0, 0.2, 0.0, 5.0, 0.25, (0.20, 0.95)),
    ("ge", "DBT"): Look(0.2, 0.7, 0.0, 0.25, 0.0, 5.0, 0.35, (0.35, 0.90)),
}


def process_mammogram(image: Array, breast: CompressedBreast, vendor: str) -> NDArray[np.uint16]:
    """Grey values of line integrals (y, x)."""
    look = LOOKS[vendor, "FFDM"]
    enhanced = _enhance(image, breast, look)
    return _to_grey(enhanced, _Curve(enhanced, breast, look), breast, BITS["FFDM"])


def process_slices(volume: Array, breast: CompressedBreast, vendor: str) -> NDArray[np.uint16]:
    """Grey values of a reconstruction (z, y, x), with one curve for all slices."""
    look = LOOKS[vendor, "DBT"]
    curve = _Curve(np.stack([_enhance(plane, breast, look) for plane in volume[::8]]), breast, look)
    result = np.empty(volume.shape, np.uint16)
    for z, plane in enumerate(volume):
        result[z] = _to_grey(_enhance(plane, breast, look), curve, breast, BITS["DBT"])
    return result


def _enhance(image: Array, breast: CompressedBreast, look: Look) -> Array:
    """The image with its structures weakened and enhanced by their size."""

    def blur(size: float) -> Array:
        return ndimage.gaussian_filter(image, size / breast.scale.pixel, mode="nearest", truncate=3.0)

    enhanced = blur(look.smooth) if look.smooth else image
    enhanced = enhanced + look.fine * (enhanced - blur(FINE))
    if look.edges:
        enhanced += look.edges * (image - blur(EDGE))
    if look.equalised:
        enhanced -= look.equalised * blur(WIDE)
    return enhanced


class _Curve:
    """The curve from enhanced values to grey values, made for one image or volume."""

    def __init__(self, image: Array, breast: CompressedBreast, look: Look) -> None:
        self.look = look
        inside = image[..., breast.inside > 3]
        self.black, self.white = (float(value) for value in np.percentile(inside, (BLACK, WHITE)))
        self.shares = np.linspace(0, 1, 101)
        self.values = np.quantile(inside, self.shares)

    def apply(self, image: Array) -> Array:
        look = self.look
        value = np.maximum((image - self.black) / (self.white - self.black), 0)
        if look.adapted:  # to a histogram in which the share of pixels falls from dark to bright
            value += look.adapted * (np.interp(image, self.values, self.shares).astype(np.float32) ** 2 - value)
        if look.steepness:
            low, high = (1 / (1 + np.exp(look.steepness * (look.middle - end))) for end in (0, 1))
            value = (1 / (1 + np.exp(look.steepness * (look.middle - value))) - low) / (high - low)
        darkest, brightest = look.range
        value = darkest + (brightest - darkest) * value
        return np.where(value > 0.8, 0.8 + 0.2 * np.tanh((value - 0.8) / 0.2), value)


def _to_grey(image: Array, curve: _Curve, breast: CompressedBreast, bits: int) -> NDArray[np.uint16]:
    """Grey values with a soft shoulder. Air is 0."""
    value = curve.apply(image) * np.clip(np.maximum(breast.inside, breast.nipple) / breast.scale.pixel + 1, 0, 1)
    return np.rint(value * (2**bits - 1)).astype(np.uint16)
