"""Which proposal hits which finding.

2D rule: the intersection over union of the two boxes is at least a given value (0.25 in the paper). 3D rule: that, and
the proposal's slice lies where the finding is visible. A proposal may hit several findings, a finding may be hit by
several proposals: nothing is matched one to one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mm3d.shared.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Proposals:
    """The P proposals of all volumes, in any order."""

    volume: IntArray  # (P,) number of the volume that each is in
    boxes: FloatArray  # (P, 4) xyxy, stored pixels
    slices: FloatArray  # (P,) predicted slice, NaN where there is none
    depths: FloatArray  # (P,) DBTex's Depth: how many slices it spans, 0 or -1 where it is on one
    scores: FloatArray  # (P,) any scale, higher is more suspicious

    def __post_init__(self) -> None:
        refuse_nan(self.scores)


@dataclass(frozen=True)
class Findings:
    """The F findings of all volumes, in any order."""

    volume: IntArray  # (F,)
    boxes: FloatArray  # (F, 4) xyxy, stored pixels
    slices: FloatArray  # (F,) the annotated slice, NaN where there is none
    first: FloatArray  # (F,) the visible range, NaN where nobody marked it
    last: FloatArray  # (F,)


@dataclass(frozen=True)
class Hits:
    """Pairs of a proposal and a finding that it hits."""

    proposal: IntArray  # (H,)
    finding: IntArray  # (H,)
    iou: FloatArray  # (H,)

    def __getitem__(self, kept: BoolArray) -> "Hits":
        return Hits(self.proposal[kept], self.finding[kept], self.iou[kept])


def refuse_nan(scores: FloatArray) -> None:
    """A NaN has no place in an order, and sorting would give it one silently."""
    if np.isnan(scores).any():
        raise InputError(
            f"{int(np.isnan(scores).sum())} of {scores.size} scores are not a number; mend the predictions."
        )


def pairs_in_volumes(proposals: Proposals, findings: Findings) -> tuple[IntArray, IntArray]:
    """Every proposal with every finding of its volume: two index arrays of one length."""
    order = np.argsort(findings.volume, kind="stable")
    ordered = findings.volume[order]
    start = np.searchsorted(ordered, proposals.volume, side="left")
    count = np.searchsorted(ordered, proposals.volume, side="right") - start
    proposal = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(proposal)) - np.repeat(np.cumsum(count) - count, count)
    return proposal, order[start[proposal] + within]


def iou(a: FloatArray, b: FloatArray) -> FloatArray:
    """Intersection over union of boxes (..., 4) xyxy, one by one. Two boxes without area do not overlap."""
    size = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    intersection = np.prod(np.maximum(size, 0.0), axis=-1)
    union = np.prod(a[..., 2:] - a[..., :2], axis=-1) + np.prod(b[..., 2:] - b[..., :2], axis=-1) - intersection
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)


def hits_in_2d(proposals: Proposals, findings: Findings, least_iou: float) -> Hits:
    """The 2D rule: an IoU of at least `least_iou`."""
    proposal, finding = pairs_in_volumes(proposals, findings)
    overlap = iou(proposals.boxes[proposal], findings.boxes[finding])
    return Hits(proposal, finding, overlap)[overlap >= least_iou]


def visible_ranges(findings: Findings, tolerance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """First and last slice on which each finding counts as visible (F,): the annotated range, otherwise `tolerance`
    (F,) slices either side of the annotated slice. NaN where neither is known: 3D cannot be judged there."""
    ranged = ~np.isnan(findings.first)
    return (
        np.where(ranged, findings.first, findings.slices - tolerance),
        np.where(ranged, findings.last, findings.slices + tolerance),
    )


def hits_in_3d(hits: Hits, proposals: Proposals, visible: tuple[FloatArray, FloatArray]) -> Hits:
    """The 3D rule: those 2D hits whose predicted slice is in the visible range, both ends included."""
    first, last = (end[hits.finding] for end in visible)
    z = proposals.slices[hits.proposal]
    return hits[(first <= z) & (z <= last)]


def best_scores(hits: Hits, scores: FloatArray, findings: int) -> FloatArray:
    """The score at which each finding is found: the highest of the proposals that hit it, -inf if none does (F,)."""
    best = np.full(findings, -np.inf)
    np.maximum.at(best, hits.finding, scores[hits.proposal])
    return best


def best_proposals(hits: Hits, proposals: Proposals, findings: int) -> IntArray:
    """The highest-scoring proposal that hits each finding, -1 if none does (F,); of equal scores the larger overlap,
    then the one further left, up and towards the first slice, so that the order of the rows does not matter."""
    best = np.full(findings, -1)
    x1, y1, x2, y2 = proposals.boxes[hits.proposal].T
    order = np.lexsort((proposals.slices[hits.proposal], y2, x2, y1, x1, -hits.iou, -proposals.scores[hits.proposal]))
    best[hits.finding[order[::-1]]] = hits.proposal[order[::-1]]  # the last one written stays
    return best
