"""Recall against false positives: the FROC curve, and R@X.

A finding is found at threshold t if a proposal that hits it has a score of at least t; how many do makes no difference.
A proposal is a false positive if it hits no malignant finding. R@X is the largest recall over all thresholds with at
most X false positives per volume. Thresholds are scores: proposals of equal score enter together.
"""

from dataclasses import dataclass

import numpy as np

from mm3d.evaluate.metrics.hits import FloatArray, IntArray, refuse_nan


@dataclass(frozen=True)
class Detections:
    """What a FROC curve is drawn from. An owner is the number of the patient, for the bootstrap.

    The same arrays describe an ROC curve: `found` are the scores of the malignant, `false` of all others, each of
    which is a "volume".
    """

    found: FloatArray  # (F,) the score at which each finding (or lesion, breast) is found, -inf: at none
    false: FloatArray  # (N,) the scores of the false positives
    found_owner: IntArray  # (F,)
    false_owner: IntArray  # (N,)
    volume_owner: IntArray  # (V,) of every volume that is judged, with and without findings

    def __post_init__(self) -> None:
        refuse_nan(self.found)
        refuse_nan(self.false)


def allowed(volumes: int, rates: FloatArray | float) -> IntArray:
    """The largest number n of false positives with n / volumes <= rate, whatever the rounding of rate * volumes."""
    n = np.floor(np.multiply(rates, volumes)).astype(np.int64)
    divisor = max(volumes, 1)
    n = np.where((n + 1) / divisor <= rates, n + 1, n)
    return np.where(n / divisor > rates, n - 1, n)


def limit_at(detections: Detections, rate: float) -> float:
    """The score of the first false positive too many: what scores more is called at R@`rate`. -inf: everything is."""
    n = int(allowed(len(detections.volume_owner), rate))
    falling = -np.sort(-detections.false)
    return float(falling[n]) if n < len(falling) else -np.inf


def recall_at(detections: Detections, rate: float) -> float:
    """R@`rate`; NaN without findings or volumes."""
    if not len(detections.found) or not len(detections.volume_owner):
        return np.nan
    return float(np.mean(detections.found > limit_at(detections, rate)))


def threshold_at(detections: Detections, rate: float) -> float:
    """The lowest score that may be called at R@`rate`; inf if there is none."""
    scores = np.concatenate([detections.found, detections.false])
    called = scores[(scores > limit_at(detections, rate)) & np.isfinite(scores)]
    return float(called.min()) if called.size else np.inf


def froc(detections: Detections) -> tuple[FloatArray, FloatArray, FloatArray]:
    """False positives per volume, recall and threshold at every distinct score, from the highest down. The first point
    is the threshold inf, at which nothing is called."""
    found, false = np.sort(detections.found), np.sort(detections.false)
    scores = np.concatenate([found, false])
    thresholds = np.concatenate([[np.inf], np.unique(scores[np.isfinite(scores)])[::-1]])
    return (
        (len(false) - np.searchsorted(false, thresholds)) / max(len(detections.volume_owner), 1),
        (len(found) - np.searchsorted(found, thresholds)) / max(len(found), 1),
        thresholds,
    )
