"""Whether scores are probabilities, and at which score to call.

Reliability: scores in ten bins of equal width; in each, the mean score against the share that is malignant. The
expected calibration error is the mean difference of the two, bins weighted by their size. Operating points are
thresholds that keep to a wanted rate of false positives, with what they find, and bootstrap intervals over patients.
"""

from dataclasses import dataclass

import numpy as np

from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import Detections, recall_at, threshold_at
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray, IntArray
from mm3d.evaluate.metrics.roc import Z95

BINS = 10


@dataclass(frozen=True)
class Reliability:
    """One value for each bin that is not empty."""

    score: FloatArray  # mean score
    malignant: FloatArray  # share that is malignant
    low: FloatArray  # Wilson's 95% interval of that share
    high: FloatArray
    count: IntArray
    error: float  # expected calibration error


def reliability(scores: FloatArray, positive: BoolArray, bins: int = BINS) -> Reliability:
    """Of scores from 0 to 1 (n,), for units that are malignant or not (n,)."""
    if scores.size and not (scores.min() >= 0 and scores.max() <= 1):
        raise ValueError("only scores from 0 to 1 can be probabilities")
    place = np.minimum((scores * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    full = count > 0
    score = np.bincount(place, scores, minlength=bins)[full] / count[full]
    share = np.bincount(place, positive.astype(float), minlength=bins)[full] / count[full]
    low, high = wilson(share, count[full])
    error = float(np.average(np.abs(score - share), weights=count[full])) if full.any() else np.nan
    return Reliability(score, share, low, high, count[full], error)


def wilson(share: FloatArray, count: IntArray) -> tuple[FloatArray, FloatArray]:
    """Wilson's 95% interval of shares of `count`."""
    z2 = Z95**2 / count
    centre = (share + z2 / 2) / (1 + z2)
    half = Z95 * np.sqrt(share * (1 - share) / count + z2 / (4 * count)) / (1 + z2)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold: what scores at least that much is called. Intervals are 95%, over patients."""

    threshold: float  # inf: nothing can be called at this rate
    threshold_interval: tuple[float, float]  # of the limit that other patients would have given
    recall: float
    recall_interval: tuple[float, float]
    rate: float  # false positives per volume, or 1 - specificity
    rate_interval: tuple[float, float]


def operating_point(detections: Detections, rate: float, weights: bootstrap.Weights) -> OperatingPoint:
    """The lowest threshold with at most `rate` false positives per volume. With the scores of breasts as `detections`
    (see `Detections`), the rate is 1 - specificity, and the recall the sensitivity."""
    threshold = threshold_at(detections, rate)
    recalls, rates = bootstrap.called_at(detections, threshold, weights)
    limits = bootstrap.limits_at(detections, np.array([rate]), weights)[:, 0]
    volumes = len(detections.volume_owner)
    return OperatingPoint(
        threshold=threshold,
        threshold_interval=bootstrap.interval(limits),
        recall=recall_at(detections, rate),
        recall_interval=bootstrap.interval(recalls),
        rate=float((detections.false >= threshold).sum()) / volumes if volumes else np.nan,
        rate_interval=bootstrap.interval(rates),
    )
