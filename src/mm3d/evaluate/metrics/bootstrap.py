"""The bootstrap over patients: what would another sample of patients have given?

A replicate draws as many patients as there are, with replacement. All that belongs to a patient (volumes, findings,
proposals) comes along, as often as the patient was drawn: the views of one patient are not independent. Systems are
compared on the same draws.
"""

import numpy as np
from numpy.typing import NDArray

from mm3d.evaluate.metrics.froc import Detections, allowed
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray, IntArray

Weights = NDArray[np.int64]  # (B, patients): how often each replicate drew each patient
BLOCK = 100  # replicates at a time: more do not fit into a processor's cache


def draw(patients: int, replicates: int, seed: int) -> Weights:
    """B replicates of drawing `patients` of `patients`."""
    return np.random.default_rng(seed).multinomial(patients, np.full(patients, 1 / max(patients, 1)), size=replicates)


def recalls_at(detections: Detections, rates: FloatArray, weights: Weights) -> FloatArray:
    """R@X of every replicate, (B, number of rates); NaN where a replicate drew no finding."""
    return _replicates(detections, rates, weights)[0]


def limits_at(detections: Detections, rates: FloatArray, weights: Weights) -> FloatArray:
    """The score above which each replicate calls, (B, number of rates); see `froc.limit_at`."""
    return _replicates(detections, rates, weights)[1]


def _replicates(detections: Detections, rates: FloatArray, weights: Weights) -> tuple[FloatArray, FloatArray]:
    order = np.argsort(-detections.false, kind="stable")
    false = np.append(detections.false[order], -np.inf)  # behind the last: all may be called
    owner = detections.false_owner[order]
    volumes = np.bincount(detections.volume_owner, minlength=weights.shape[1])
    limits = np.empty((len(weights), len(rates)))
    recalls = np.full((len(weights), len(rates)), np.nan)
    for b, drawn in enumerate(weights):
        drawn_volumes = int(volumes @ drawn)
        counts = np.cumsum(drawn[owner])
        # The first place where the count is over what is allowed. Within a tie it may be any: the score is the same.
        limits[b] = false[np.searchsorted(counts, allowed(drawn_volumes, rates), side="right")]
        share = drawn[detections.found_owner]
        if share.any() and drawn_volumes:
            recalls[b] = share @ (detections.found[:, None] > limits[b]) / share.sum()
    return recalls, limits


def areas(scores: FloatArray, positive: BoolArray, owner: IntArray, weights: Weights) -> FloatArray:
    """The AUC of every replicate (B,) for units (n,) with a score, a label and a patient; NaN where a replicate has one
    kind only. Ties count half."""
    order = np.argsort(scores, kind="stable")
    _, first, group = np.unique(scores[order], return_index=True, return_inverse=True)
    positive, owner = positive[order], owner[order]
    found = [np.empty(0)]
    for block in range(0, len(weights), BLOCK):
        drawn = weights[block : block + BLOCK, owner]
        malignant, others = drawn[:, positive], np.add.reduceat(drawn * ~positive, first, axis=1)  # others: by score
        below = np.cumsum(others, axis=1) - others / 2
        pairs = malignant.sum(axis=1) * others.sum(axis=1)
        found.append(_ratio((malignant * below[:, group[positive]]).sum(axis=1), pairs.astype(float)))
    return np.concatenate(found)


def called_at(detections: Detections, threshold: float, weights: Weights) -> tuple[FloatArray, FloatArray]:
    """Recall and false positives per volume of every replicate at one fixed threshold, (B,) each."""
    patients = weights.shape[1]
    found, false, findings, volumes = (
        (weights @ np.bincount(owner, minlength=patients)).astype(float)
        for owner in (
            detections.found_owner[detections.found >= threshold],
            detections.false_owner[detections.false >= threshold],
            detections.found_owner,
            detections.volume_owner,
        )
    )
    return _ratio(found, findings), _ratio(false, volumes)


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def standard_error(replicates: FloatArray) -> float:
    """The standard deviation over replicates (B,); those without a value (NaN) do not count."""
    known = replicates[~np.isnan(replicates)]
    return float(np.std(known, ddof=1)) if known.size > 1 else np.nan


def interval(replicates: FloatArray, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of replicates (B,). Values may be infinite, so nothing is interpolated."""
    known = replicates[~np.isnan(replicates)]
    if not known.size:
        return np.nan, np.nan
    tail = (1 - level) / 2
    return float(np.quantile(known, tail, method="lower")), float(np.quantile(known, 1 - tail, method="higher"))


def p_of_difference(differences: FloatArray) -> float:
    """Two-sided p that a difference is 0, from its replicates (B,): twice the share of them on the rarer side of 0,
    those at 0 counting for both sides; never below `least_p`."""
    known = differences[~np.isnan(differences)]
    if not known.size:
        return np.nan
    rarer = min(int((known <= 0).sum()), int((known >= 0).sum()))
    return min(1.0, (rarer + 1) * least_p(known.size))


def least_p(replicates: int) -> float:
    """The smallest p that so many draws can tell."""
    return 2 / (replicates + 1)
