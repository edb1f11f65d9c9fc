"""Whether scores are probabilities, and at which score to call."""

from typing import Any

import numpy as np

from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import FrocScores, recall_at, threshold_at
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray, IntArray
from mm3d.evaluate.metrics.roc import Z95

BINS = 10


def reliability(scores: FloatArray, positive: BoolArray, bins: int = BINS) -> dict[str, Any]:
    """Compare scores with the share of malignant units, in bins of equal width.

    Parameters
    ----------
    scores
        (n,) scores from 0 to 1.
    positive
        (n,) whether a unit is malignant.
    bins
        The number of bins between 0 and 1.

    Returns
    -------
    dict
        `bins`: of every bin that is not empty, the mean score, the malignant share with Wilson's 95% interval, and the
        count. `expected_calibration_error`: the mean difference of score and share, weighted by the counts.
    """
    if scores.size and not (scores.min() >= 0 and scores.max() <= 1):
        raise ValueError("only scores from 0 to 1 can be probabilities")
    place = np.minimum((scores * bins).astype(np.int64), bins - 1)
    counts = np.bincount(place, minlength=bins)
    full = counts > 0
    count = counts[full]
    score = np.bincount(place, scores, minlength=bins)[full] / count
    share = np.bincount(place, positive.astype(float), minlength=bins)[full] / count
    error = float(np.average(np.abs(score - share), weights=count)) if full.any() else np.nan
    rows = zip(score.tolist(), share.tolist(), *wilson(share, count), count.tolist(), strict=True)
    return {
        "expected_calibration_error": error,
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
    """Choose the lowest threshold that keeps to a rate of false positives, and measure it.

    Parameters
    ----------
    scores
        The scores of annotations and false positives. With the scores of breasts (see `FrocScores`), the recall is the
        sensitivity and the rate is 1 - specificity.
    rate
        The allowed number of false positives per volume.
    draws
        The replicates of the bootstrap over patients, for intervals of 95%.

    Returns
    -------
    dict
        `threshold` (inf: nothing can be called), `recall` and `fp_per_volume`, each with `..._interval`. What scores
        at least the threshold is called. The interval of the threshold is that of `froc.limit_at`.
    """
    threshold = threshold_at(scores, rate)
    recalls, rates = bootstrap.recalls_and_rates(scores, threshold, draws)
    volumes = len(scores.volume_patient)
    return {
        "threshold": threshold,
        "threshold_interval": bootstrap.interval(bootstrap.limits_at(scores, np.array([rate]), draws)[:, 0]),
        "recall": recall_at(scores, rate),
        "recall_interval": bootstrap.interval(recalls),
        "fp_per_volume": float((scores.false >= threshold).sum()) / volumes if volumes else np.nan,
        "fp_per_volume_interval": bootstrap.interval(rates),
    }
