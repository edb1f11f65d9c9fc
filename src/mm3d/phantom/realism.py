"""Measures of how real images of breasts look, for synthetic and for real ones alike. Pure functions."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, special

from mm3d.phantom.truth import Spectrum

Image = NDArray[np.floating] | NDArray[np.integer]

BAND = (0.15, 0.7)  # 1/mm, where the power law is fitted, below 0.8 of the pixels' own limit
DEEP = 10.0  # mm below the skin: where kurtosis is measured
TAILS = 0.005  # on either side: clips, markers and single bright specks do not count


def power_law_exponent(planes: Image, breast: NDArray[np.bool_], pixel: float) -> float:
    """β of images (n, y, x): their power falls as f^-β. NaN where no square of breast is large enough."""
    spectrum = Spectrum(planes.astype(np.float32), breast, pixel)
    return spectrum.exponent(BAND[0], min(BAND[1], 0.4 / pixel)) if spectrum.count else float("nan")


def kurtosis(plane: Image, breast: NDArray[np.bool_], pixel: float, size: float) -> float:
    """Excess kurtosis of a slice (y, x) after a difference of Gaussians of `size` and 1.6 `size` mm: 0 for clouds, and
    large where there are strands and borders. The outermost half percent on either side is cut back."""
    plane = plane.astype(np.float32)
    band = ndimage.gaussian_filter(plane, size / pixel) - ndimage.gaussian_filter(plane, 1.6 * size / pixel)
    inside = ndimage.distance_transform_edt(np.pad(breast, 1, mode="edge"))[1:-1, 1:-1] * pixel > DEEP
    values = band[inside]
    values = np.clip(values, *np.quantile(values, (TAILS, 1 - TAILS)))
    values = values - values.mean()
    return float((values**4).mean() / (values**2).mean() ** 2 - 3)


def area_under_curve(d: NDArray[np.floating]) -> NDArray[np.float64]:
    """AUC of an observer with this d'."""
    return special.ndtr(np.asarray(d, float) / np.sqrt(2))


def gain_in_auc(flat: NDArray[np.floating], deep: NDArray[np.floating], reader: float = 0.85) -> float:
    """How much larger the mean AUC is in tomosynthesis, for an observer whose mean AUC on mammograms is `reader`.

    The ideal observer's d' is far above any reader's, so both are scaled by one efficiency that gives that AUC."""
    low, high = 0.0, 10.0
    for _ in range(60):
        efficiency = (low + high) / 2
        if area_under_curve(efficiency * flat).mean() < reader:
            low = efficiency
        else:
            high = efficiency
    return float(area_under_curve(low * deep).mean() - area_under_curve(low * flat).mean())
