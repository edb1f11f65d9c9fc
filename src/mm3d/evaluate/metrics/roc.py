"""ROC curves, their areas, and DeLong's standard error and paired test.

The area (AUC) is the probability that a malignant unit scores higher than another one; ties count half. DeLong's
variance (DeLong, DeLong and Clarke-Pearson, Biometrics 1988) is computed from midranks (Sun and Xu, IEEE Signal
Processing Letters 2014), so that sorting is enough. It takes the units as independent, which two breasts of one patient
are only nearly.
"""

import math
from dataclasses import dataclass

import numpy as np

from mm3d.evaluate.metrics.hits import BoolArray, FloatArray, count_from, refuse_nan

Z95 = 1.959963984540054  # of the normal distribution, for intervals of 95%


@dataclass(frozen=True)
class Estimates:
    """A metric of K systems on the same units, from 0 to 1, with the covariance of the systems."""

    values: FloatArray  # (K,) such as the AUC
    covariance: FloatArray  # (K, K); NaN with too few units

    def standard_error(self, system: int = 0) -> float:
        return math.sqrt(self.covariance[system, system])

    def interval(self, system: int = 0) -> tuple[float, float]:
        """The 95% interval by the normal approximation, within 0 and 1."""
        half = Z95 * self.standard_error(system)
        low, high = np.clip([self.values[system] - half, self.values[system] + half], 0.0, 1.0)
        return float(low), float(high)

    def difference(self, a: int, b: int) -> tuple[float, float, float]:
        """System a minus system b, the standard error, and the two-sided p of the paired test.

        Two systems without any difference have p = 1. Where the variance is 0 otherwise, there is no test and p is NaN.
        """
        difference = float(self.values[a] - self.values[b])
        variance = float(self.covariance[a, a] + self.covariance[b, b] - 2 * self.covariance[a, b])
        error = math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else math.nan
        if not error > 1e-12:
            return difference, error, 1.0 if error == error and abs(difference) < 1e-12 else math.nan
        return difference, error, math.erfc(abs(difference) / error / math.sqrt(2))


def midranks(values: FloatArray) -> FloatArray:
    """Ranks from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def delong(scores: FloatArray, positive: BoolArray) -> Estimates:
    """Compute the areas of several systems with DeLong's covariance, in O(K n log n).

    Parameters
    ----------
    scores
        (K, n) the score that each of K systems gives to each of n units; -inf is allowed, NaN is not.
    positive
        (n,) whether a unit is malignant.

    Returns
    -------
    Estimates
        The areas with standard errors, intervals and paired tests; NaN without both kinds of units.
    """
    refuse_nan(scores)
    K, m = len(scores), int(positive.sum())
    n = len(positive) - m
    if m == 0 or n == 0:
        return Estimates(np.full(K, np.nan), np.full((K, K), np.nan))
    above = np.empty((K, m))  # the share of the other units that each malignant unit is above
    below = np.empty((K, n))  # the share of the malignant units that each other unit is below
    for k in range(K):
        ranks = midranks(scores[k])
        above[k] = (ranks[positive] - midranks(scores[k][positive])) / n
        below[k] = 1 - (ranks[~positive] - midranks(scores[k][~positive])) / m
    covariance = np.full((K, K), np.nan)
    if m > 1 and n > 1:
        covariance = np.atleast_2d(np.cov(above)) / m + np.atleast_2d(np.cov(below)) / n
    return Estimates(above.mean(axis=1), covariance)


def roc(scores: FloatArray, positive: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Compute the ROC curve of one system.

    Parameters
    ----------
    scores
        (n,) the score of each unit.
    positive
        (n,) whether a unit is malignant.

    Returns
    -------
    false_positive_rate, true_positive_rate
        At every distinct score, from (0, 0) to (1, 1).
    """
    refuse_nan(scores)
    thresholds = np.append(np.inf, np.unique(scores)[::-1])
    others, malignant = scores[~positive], scores[positive]
    false_positive_rate = count_from(others, thresholds) / max(len(others), 1)
    return false_positive_rate, count_from(malignant, thresholds) / max(len(malignant), 1)
