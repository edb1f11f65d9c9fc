"""Processing for presentation: each vendor shows mammograms in one way and slices in another.

Vendors do not publish their curves. The table below is ours, made from what is described of their processing: see
docs/phantom.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from mm3d.data.records import Modality
from mm3d.phantom.anatomy import Array, CompressedBreast

BITS: dict[Modality, int] = {"FFDM": 12, "DBT": 10}
WIDE, FINE, EDGE = 20.0, 4.0, 1.0  # mm, the sizes of structures that are weakened or enhanced
NARROW, TRUNCATE = 30.0, 3.0  # pixels: wider blurs are made by Fourier transforms; where a blur ends, in widths
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
    return _to_grey(enhanced, _Curve(enhanced, breast, look), _fade_out(breast), BITS["FFDM"])


def process_slices(volume: Array, breast: CompressedBreast, vendor: str) -> NDArray[np.uint16]:
    """Grey values of a reconstruction (z, y, x), with one curve for all slices."""
    look = LOOKS[vendor, "DBT"]
    some = {z: _enhance(volume[z], breast, look) for z in range(0, len(volume), 8)}
    curve, inside = _Curve(np.stack(list(some.values())), breast, look), _fade_out(breast)
    result = np.empty(volume.shape, np.uint16)
    for z, plane in enumerate(volume):
        enhanced = some.pop(z) if z in some else _enhance(plane, breast, look)
        result[z] = _to_grey(enhanced, curve, inside, BITS["DBT"])
    return result


def _enhance(image: Array, breast: CompressedBreast, look: Look) -> Array:
    """The image with its structures weakened and enhanced by their size."""

    def blur(size: float) -> Array:
        return _blur(image, size / breast.scale.pixel)

    enhanced = blur(look.smooth) if look.smooth else image
    enhanced = enhanced + look.fine * (enhanced - blur(FINE))
    if look.edges:
        enhanced += look.edges * (image - blur(EDGE))
    if look.equalised:
        enhanced -= look.equalised * blur(WIDE)
    return enhanced


def _blur(image: Array, width: float) -> Array:
    """A Gaussian blur, of a width in pixels. A wide one is made by Fourier transforms, with the same kernel."""
    if width <= NARROW:
        return ndimage.gaussian_filter(image, width, mode="nearest", truncate=TRUNCATE)
    reach = int(TRUNCATE * width + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    padded = np.pad(image, reach, mode="edge")
    shape = [fft.next_fast_len(n, real=True) for n in padded.shape]
    kernel /= kernel.sum()
    along_y, along_x = fft.fft(kernel, shape[0]), fft.rfft(kernel, shape[1])
    spectrum = fft.rfft2(padded, shape, overwrite_x=True)
    spectrum *= along_y[:, None].astype(np.complex64)
    spectrum *= along_x.astype(np.complex64)
    blurred: Array = fft.irfft2(spectrum, shape, overwrite_x=True)
    rows, columns = (slice(2 * reach, 2 * reach + n) for n in image.shape)
    return blurred[rows, columns]


def _fade_out(breast: CompressedBreast) -> Array:
    """(y, x): 1 in the breast, 0 in air."""
    return np.clip(np.maximum(breast.inside, breast.nipple) / breast.scale.pixel + 1, 0, 1)


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


def _to_grey(image: Array, curve: _Curve, inside: Array, bits: int) -> NDArray[np.uint16]:
    """Grey values with a soft shoulder. Air is 0."""
    return np.rint(curve.apply(image) * inside * (2**bits - 1)).astype(np.uint16)
