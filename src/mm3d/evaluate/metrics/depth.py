"""How far the predicted slice is from the annotated one.

Judged on the findings that were hit in 2D, with the highest-scoring proposal that hit each, at no threshold.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm3d.evaluate.metrics.hits import FloatArray


@dataclass(frozen=True)
class DepthErrors:
    """Absolute errors, over the findings for which there is one."""

    findings: int  # with an error in slices
    median_slices: float
    mean_slices: float
    p90_slices: float
    findings_mm: int  # of which the slice spacing is known, too
    median_mm: float
    mean_mm: float
    visible: float  # share of predicted slices that lie in the visible range
    findings_visible: int  # with a visible range, annotated or by the tolerance


def depth_errors(
    predicted: FloatArray, annotated: FloatArray, visible: tuple[FloatArray, FloatArray], spacing: FloatArray
) -> DepthErrors:
    """All (F,): the best proposal's slice and the annotated one, the first and last visible slice, millimetres between
    slices; NaN where something is not known."""
    slices = np.abs(predicted - annotated)
    mm = slices * spacing
    slices, mm = slices[~np.isnan(slices)], mm[~np.isnan(mm)]
    first, last = visible
    judged = ~np.isnan(predicted) & ~np.isnan(first)
    inside = ((first <= predicted) & (predicted <= last))[judged]
    return DepthErrors(
        findings=len(slices),
        median_slices=_over(np.median, slices),
        mean_slices=_over(np.mean, slices),
        p90_slices=_over(lambda errors: np.quantile(errors, 0.9), slices),
        findings_mm=len(mm),
        median_mm=_over(np.median, mm),
        mean_mm=_over(np.mean, mm),
        visible=_over(np.mean, inside),
        findings_visible=len(inside),
    )


def _over(statistic: Callable[[Any], Any], values: NDArray[Any]) -> float:
    return float(statistic(values)) if values.size else np.nan
