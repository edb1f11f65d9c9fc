"""Processing for presentation, as a vendor's workstation does it: even grey up to the rim, enhanced fine structures."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mm3d.phantom.anatomy import Array, CompressedBreast

MAMMOGRAM_BITS, SLICE_BITS = 12, 10
FINE = 4.0  # mm: structures finer than this are enhanced
ENHANCEMENT = {"FFDM": 0.6, "DBT": 0.8}  # by this share
DARKEST = 0.06  # of the grey scale: where breast begins, above the air


def process_mammogram(image: Array, breast: CompressedBreast) -> NDArray[np.uint16]:
    """Grey values of line integrals (y, x)."""
    enhanced = _enhance(image, breast, ENHANCEMENT["FFDM"])
    return _to_grey(enhanced, _limits(enhanced, breast), breast, MAMMOGRAM_BITS)


def process_slices(volume: Array, breast: CompressedBreast) -> NDArray[np.uint16]:
    """Grey values of a reconstruction (z, y, x), on one scale for all slices."""
    some = np.stack([_enhance(plane, breast, ENHANCEMENT["DBT"]) for plane in volume[::8]])
    limits = _limits(some, breast)
    result = np.empty(volume.shape, np.uint16)
    for z, plane in enumerate(volume):
        result[z] = _to_grey(_enhance(plane, breast, ENHANCEMENT["DBT"]), limits, breast, SLICE_BITS)
    return result


def _enhance(image: Array, breast: CompressedBreast, share: float) -> Array:
    coarse = ndimage.gaussian_filter(image, FINE / breast.scale.pixel, mode="nearest", truncate=3.0)
    return image + share * (image - coarse)


def _limits(image: Array, breast: CompressedBreast) -> tuple[float, float]:
    """Black and white: percentiles inside the breast."""
    low, high = np.percentile(image[..., breast.inside > 3], (0.5, 99.7))
    return float(low), float(high)


def _to_grey(image: Array, limits: tuple[float, float], breast: CompressedBreast, bits: int) -> NDArray[np.uint16]:
    """Grey values between the limits, with a soft shoulder. Air is 0."""
    low, high = limits
    value = DARKEST + (1 - DARKEST) * np.maximum((image - low) / (high - low), 0)
    value = np.where(value > 0.8, 0.8 + 0.2 * np.tanh((value - 0.8) / 0.2), value)
    value *= np.clip(np.maximum(breast.inside, breast.nipple) / breast.scale.pixel + 1, 0, 1)
    return np.rint(value * (2**bits - 1)).astype(np.uint16)
