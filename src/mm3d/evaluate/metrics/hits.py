"""Which finding of a detector hits which annotation.

2D rule: the intersection over union (IoU) of the two boxes is at least a given value, 0.25 in the paper.
3D rule: the 2D rule holds, and the slice of the finding lies where the annotation is visible.
A finding may hit several annotations, and several findings may hit one annotation: nothing is matched one to one.
`slice_errors` tells how far the predicted slices are from the annotated ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm3d.shared.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Findings:
    """The F findings of a detector in all volumes, in any order."""

    volume: IntArray  # (F,) number of the volume
    boxes: FloatArray  # (F, 4) xyxy, stored pixels
    slices: FloatArray  # (F,) predicted slice, NaN where there is none
    spans: FloatArray  # (F,) how many slices it spans (Depth in DBTex); 0 and -1 mean one
    scores: FloatArray  # (F,) any scale, higher is more suspicious

    def __post_init__(self) -> None:
        refuse_nan(self.scores)


@dataclass(frozen=True)
class Annotations:
    """The A annotations of all volumes, in any order."""

    volume: IntArray  # (A,) number of the volume
    boxes: FloatArray  # (A, 4) xyxy, stored pixels
    slices: FloatArray  # (A,) annotated slice, NaN where there is none
    first: FloatArray  # (A,) first and last slice of the visible range, NaN where it is not annotated
    last: FloatArray  # (A,)


@dataclass(frozen=True)
class Hits:
    """H pairs of a finding and an annotation that it hits."""

    finding: IntArray  # (H,)
    annotation: IntArray  # (H,)
    iou: FloatArray  # (H,)

    def __getitem__(self, kept: BoolArray) -> "Hits":
        return Hits(self.finding[kept], self.annotation[kept], self.iou[kept])


def refuse_nan(scores: FloatArray) -> None:
    """Refuse scores that are NaN: they have no place in an order, and sorting would silently give them one."""
    if np.isnan(scores).any():
        count = int(np.isnan(scores).sum())
        raise InputError(f"{count} of {scores.size} scores are not a number; correct the predictions.")


def pairs_in_volumes(findings: Findings, annotations: Annotations) -> tuple[IntArray, IntArray]:
    """Pair every finding with every annotation of its volume: two index arrays of one length."""
    order = np.argsort(annotations.volume, kind="stable")
    ordered = annotations.volume[order]
    start = np.searchsorted(ordered, findings.volume, side="left")
    count = np.searchsorted(ordered, findings.volume, side="right") - start
    finding = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(finding)) - np.repeat(np.cumsum(count) - count, count)
    return finding, order[start[finding] + within]


def iou(a: FloatArray, b: FloatArray) -> FloatArray:
    """Intersection over union of boxes (..., 4) xyxy, pair by pair; 0 for two boxes without area."""
    size = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    intersection = np.prod(np.maximum(size, 0.0), axis=-1)
    union = np.prod(a[..., 2:] - a[..., :2], axis=-1) + np.prod(b[..., 2:] - b[..., :2], axis=-1) - intersection
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)


def hits_in_2d(findings: Findings, annotations: Annotations, least_iou: float) -> Hits:
    """Apply the 2D rule: all pairs within one volume whose IoU is at least `least_iou`, which is above 0."""
    finding, annotation = pairs_in_volumes(findings, annotations)
    overlap = iou(findings.boxes[finding], annotations.boxes[annotation])
    return Hits(finding, annotation, overlap)[overlap >= least_iou]


def visible_ranges(annotations: Annotations, tolerance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The first and the last slice on which each annotation counts as visible, (A,) each.

    Where no range is annotated, it is `tolerance` (A,) slices on either side of the annotated slice. NaN where that is
    not known either: the 3D rule cannot judge.
    """
    ranged = ~np.isnan(annotations.first)
    return (
        np.where(ranged, annotations.first, annotations.slices - tolerance),
        np.where(ranged, annotations.last, annotations.slices + tolerance),
    )


def hits_in_3d(hits: Hits, findings: Findings, visible: tuple[FloatArray, FloatArray]) -> Hits:
    """Apply the 3D rule: keep the 2D `hits` whose slice is in the range of `visible_ranges`, both ends included."""
    first, last = (end[hits.annotation] for end in visible)
    z = findings.slices[hits.finding]
    return hits[(first <= z) & (z <= last)]


def highest_by(group: IntArray, scores: FloatArray, groups: int) -> FloatArray:
    """The highest score of each group (groups,), -inf for an empty one; `group` (n,) is the group of each score."""
    highest = np.full(groups, -np.inf)
    np.maximum.at(highest, group, scores)
    return highest


def count_from(values: FloatArray, thresholds: FloatArray) -> IntArray:
    """How many values are at least each threshold."""
    return len(values) - np.searchsorted(np.sort(values), thresholds)


def best_scores(hits: Hits, scores: FloatArray, annotations: int) -> FloatArray:
    """The score at which each annotation is hit (A,): the highest of the findings that hit it, -inf without any."""
    return highest_by(hits.annotation, scores[hits.finding], annotations)


def best_findings(hits: Hits, findings: Findings, annotations: int) -> IntArray:
    """The number of the finding with the highest score that hits each annotation (A,), -1 without any.

    Of equal scores, the larger overlap wins, then the box further left and up, then the lower slice. So the order of
    the findings does not matter.
    """
    best = np.full(annotations, -1)
    x1, y1, x2, y2 = findings.boxes[hits.finding].T
    order = np.lexsort((findings.slices[hits.finding], y2, x2, y1, x1, -hits.iou, -findings.scores[hits.finding]))
    best[hits.annotation[order[::-1]]] = hits.finding[order[::-1]]  # the best is written last and stays
    return best


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
