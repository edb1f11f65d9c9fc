"""How far the predicted slice is from the annotated slice."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm3d.evaluate.metrics.hits import Annotations, FloatArray


def slice_errors(
    predicted: FloatArray, annotated: FloatArray, visible: tuple[FloatArray, FloatArray], spacing: FloatArray
) -> dict[str, float]:
    """Summarise the absolute errors of the slices predicted for annotations, in slices and in mm.

    All arrays are (A,), and NaN where something is not known: the predicted and the annotated slice, the first and the
    last visible slice, and the mm between slices. `visible` of the result is the share of `findings_visible` predicted
    slices that lie in the visible range.
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


def reference_slices(annotations: Annotations) -> FloatArray:
    """The slice that a prediction is compared with (A,): the annotated slice, otherwise the middle of the range."""
    middle = (annotations.first + annotations.last) / 2
    return np.where(np.isnan(annotations.slices), middle, annotations.slices)


def _over(statistic: Callable[[Any], Any], values: NDArray[Any]) -> float:
    return float(statistic(values)) if values.size else np.nan
