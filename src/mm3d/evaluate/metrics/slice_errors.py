"""How far the predicted slice is from the annotated slice."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm3d.evaluate.metrics.hits import FloatArray


def slice_errors(
    predicted: FloatArray, annotated: FloatArray, visible: tuple[FloatArray, FloatArray], spacing: FloatArray
) -> dict[str, float]:
    """Summarise the absolute errors of the slice, over annotations that were hit in 2D at any score.

    All arrays are (A,), and NaN where something is not known.

    Parameters
    ----------
    predicted
        The slice of the best finding that hit each annotation.
    annotated
        The annotated slice.
    visible
        The first and the last visible slice, from `hits.visible_ranges`.
    spacing
        Millimetres between slices.

    Returns
    -------
    dict
        Number, median, mean and 90th percentile of the errors in slices, and number, median and mean in mm.
        `visible` is the share of the predicted slices that lie in the visible range, of `findings_visible`.
    """
    slices = np.abs(predicted - annotated)
    mm = slices * spacing
    slices, mm = slices[~np.isnan(slices)], mm[~np.isnan(mm)]
    first, last = visible
    known = ~np.isnan(predicted) & ~np.isnan(first)
    inside = ((first <= predicted) & (predicted <= last))[known]
    return {
        "findings": len(slices),
        "median_slices": _over(np.median, slices),
        "mean_slices": _over(np.mean, slices),
        "p90_slices": _over(lambda errors: np.quantile(errors, 0.9), slices),
        "findings_mm": len(mm),
        "median_mm": _over(np.median, mm),
        "mean_mm": _over(np.mean, mm),
        "visible": _over(np.mean, inside),
        "findings_visible": len(inside),
    }


def _over(statistic: Callable[[Any], Any], values: NDArray[Any]) -> float:
    return float(statistic(values)) if values.size else np.nan
