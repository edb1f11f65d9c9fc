"""Presentation processing, as a vendor's workstation has it: the breast evenly grey to its rim, structures lifted."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mm3d.phantom.anatomy import Array, Form

MAMMOGRAM_BITS, SLICE_BITS = 12, 10
LIFT_WIDTH = 4.0  # mm
LIFT = {"FFDM": 0.6, "DBT": 0.8}  # what is finer than LIFT_WIDTH is raised by this share
DARKEST = 0.06  # of the scale: where breast begins, above the air


def present_mammogram(image: Array, form: Form) -> NDArray[np.uint16]:
    """(y, x) of the detector's logarithm, in grey values."""
    lifted = _lifted(image, form, LIFT["FFDM"])
    return _grey(lifted, _limits(lifted, form), form, MAMMOGRAM_BITS)


def present_slices(volume: Array, form: Form) -> NDArray[np.uint16]:
    """(z, y, x) of a reconstruction, in grey values: one scale for all slices."""
    limits = _limits(np.stack([_lifted(plane, form, LIFT["DBT"]) for plane in volume[::8]]), form)
    result = np.empty(volume.shape, np.uint16)
    for z, plane in enumerate(volume):
        result[z] = _grey(_lifted(plane, form, LIFT["DBT"]), limits, form, SLICE_BITS)
    return result


def _blur(image: Array, width: float) -> Array:
    return ndimage.gaussian_filter(image, width, mode="nearest", truncate=3.0)


def _lifted(image: Array, form: Form, lift: float) -> Array:
    return image + lift * (image - _blur(image, LIFT_WIDTH / form.scale.pixel))


def _limits(image: Array, form: Form) -> tuple[float, float]:
    """Black and white: percentiles inside the breast."""
    low, high = np.percentile(image[..., form.inside > 3], (0.5, 99.7))
    return float(low), float(high)


def _grey(image: Array, limits: tuple[float, float], form: Form, bits: int) -> NDArray[np.uint16]:
    """Grey values between the limits, with a soft shoulder; air is 0."""
    low, high = limits
    value = DARKEST + (1 - DARKEST) * np.maximum((image - low) / (high - low), 0)
    value = np.where(value > 0.8, 0.8 + 0.2 * np.tanh((value - 0.8) / 0.2), value)
    value *= np.clip(np.maximum(form.inside, form.nipple) / form.scale.pixel + 1, 0, 1)
    return np.rint(value * (2**bits - 1)).astype(np.uint16)
