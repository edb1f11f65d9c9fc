"""Whether scores are probabilities, and at which score to call."""

from typing import Any

import numpy as np

from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import FrocScores, recall_at, threshold_at
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray, IntArray
from mm3d.evaluate.metrics.roc import Z95

BINS = 10


def reliability(scores: FloatArray, positive: BoolArray) -> dict[str, Any] | None:
    """Compare the scores of units (n,) with the share of malignant ones, in bins of equal width between 0 and 1.

    -inf, no prediction, is the score 0. None if the scores are no probabilities or there are none. Otherwise `bins` has
    every bin that is not empty, with Wilson's 95% interval of the malignant share. The expected calibration error is
    the mean difference of score and share, weighted by the counts.
    """
    if not np.isfinite(scores).any():
        return None
    scores = np.where(np.isneginf(scores), 0.0, scores)
    if scores.min() < 0 or scores.max() > 1:
        return None
    bins = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    _, place, count = np.unique(bins, return_inverse=True, return_counts=True)
    score, share = np.bincount(place, scores) / count, np.bincount(place, positive) / count
    rows = zip(score.tolist(), share.tolist(), *wilson(share, count), count.tolist(), strict=True)
    return {
        "expected_calibration_error": float(np.average(np.abs(score - share), weights=count)),
        "bins": [
            {"score": mean, "malignant": malignant, "interval": (float(low), float(high)), "count": n}
            for mean, malignant, low, high, n in rows
        ],
    }


def wilson(share: FloatArray, count: IntArray) -> tuple[FloatArray, FloatArray]:
    """Wilson's 95% interval of shares of `count`."""
    z2 = Z95**2 / count
    centre = (share + z2 / 2) / (1 + z2)
    half = Z95 * np.sqrt(share * (1 - share) / count + z2 / (4 * count)) / (1 + z2)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


def operating_point(scores: FrocScores, rate: float, draws: bootstrap.Draws) -> dict[str, Any]:
    """Choose the lowest threshold that keeps to a rate of false positives per volume, and measure it.

    What scores at least the threshold is called; inf: nothing can be called. The interval of the threshold is that of
    `froc.limit_at`. With the scores of breasts (see `FrocScores`), the recall is the sensitivity and the rate is
    1 - specificity.
    """
    threshold = threshold_at(scores, rate)
    _, limits = bootstrap.recalls_and_limits(scores, np.array([rate]), draws)
    recalls, rates = bootstrap.recalls_and_rates(scores, threshold, draws)
    volumes = len(scores.volume_patient)
    return {
        "threshold": threshold,
        "threshold_interval": bootstrap.interval(limits[:, 0]),
        "recall": recall_at(scores, rate),
        "recall_interval": bootstrap.interval(recalls),
        "fp_per_volume": float((scores.false >= threshold).sum()) / volumes if volumes else np.nan,
        "fp_per_volume_interval": bootstrap.interval(rates),
    }
