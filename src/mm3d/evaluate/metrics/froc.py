"""Recall against false positives: the FROC curve and R@X.

An annotation is hit at threshold t if a finding that hits it scores at least t; further hits do not count. A finding
that hits no malignant annotation is a false positive. R@X is the largest recall over all thresholds with at most X
false positives per volume. Thresholds are scores, so findings of equal score are called together.
"""

from dataclasses import dataclass

import numpy as np

from mm3d.evaluate.metrics.hits import FloatArray, IntArray, count_from, refuse_nan


@dataclass(frozen=True)
class FrocScores:
    """The scores that a FROC curve is drawn from, with the number of the patient of each for the bootstrap.

    The same arrays can describe an ROC curve: `hit` has the scores of the malignant breasts, `false` those of all
    other breasts, and each of the others is a "volume".
    """

    hit: FloatArray  # (A,) the score at which each annotation (or lesion, or breast) is hit, -inf: never
    false: FloatArray  # (N,) the scores of the false positives
    hit_patient: IntArray  # (A,)
    false_patient: IntArray  # (N,)
    volume_patient: IntArray  # (V,) of every volume that counts, with and without annotations

    def __post_init__(self) -> None:
        refuse_nan(self.hit)
        refuse_nan(self.false)


def allowed(volumes: int, rates: FloatArray | float) -> IntArray:
    """The largest number n of false positives with n / volumes <= rate, however rate * volumes is rounded."""
    n = np.floor(np.multiply(rates, volumes)).astype(np.int64)
    divisor = max(volumes, 1)
    n = np.where((n + 1) / divisor <= rates, n + 1, n)
    return np.where(n / divisor > rates, n - 1, n)


def limit_at(scores: FrocScores, rate: float) -> float:
    """The score of the first false positive too many: everything above it is called. -inf: everything is called."""
    n = int(allowed(len(scores.volume_patient), rate))
    falling = -np.sort(-scores.false)
    return float(falling[n]) if n < len(falling) else -np.inf


def recall_at(scores: FrocScores, rate: float) -> float:
    """Compute R@X.

    Parameters
    ----------
    scores
        The scores of annotations and false positives.
    rate
        X, the allowed number of false positives per volume.

    Returns
    -------
    float
        The largest recall with at most X false positives per volume; NaN without annotations or volumes.
    """
    if not len(scores.hit) or not len(scores.volume_patient):
        return np.nan
    return float(np.mean(scores.hit > limit_at(scores, rate)))


def threshold_at(scores: FrocScores, rate: float) -> float:
    """The lowest score that is called at R@`rate`; inf if there is none. Parameters are those of `recall_at`."""
    everything = np.concatenate([scores.hit, scores.false])
    called = everything[(everything > limit_at(scores, rate)) & np.isfinite(everything)]
    return float(called.min()) if called.size else np.inf


def froc(scores: FrocScores) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute the FROC curve.

    Returns
    -------
    rate, recall, threshold
        False positives per volume and recall at every distinct score, from the highest score to the lowest. The
        first point has the threshold inf, at which nothing is called.
    """
    everything = np.concatenate([scores.hit, scores.false])
    thresholds = np.append(np.inf, np.unique(everything[np.isfinite(everything)])[::-1])
    rate = count_from(scores.false, thresholds) / max(len(scores.volume_patient), 1)
    return rate, count_from(scores.hit, thresholds) / max(len(scores.hit), 1), thresholds
