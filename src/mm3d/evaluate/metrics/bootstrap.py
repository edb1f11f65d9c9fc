"""The bootstrap over patients: what would another sample of patients have given?

A replicate draws as many patients as there are, with replacement. Everything of a patient (volumes, annotations,
findings) comes along as often as the patient was drawn, because the views of one patient are not independent. Systems
are compared on the same draws.
"""

import numpy as np
from numpy.typing import NDArray

from mm3d.evaluate.metrics.froc import FrocScores, allowed
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray, IntArray

Draws = NDArray[np.int64]  # (R, patients): how often each of R replicates drew each patient
BLOCK = 100  # replicates at a time: more do not fit into the cache of a processor


def draw(patients: int, replicates: int, seed: int) -> Draws:
    """Draw as many patients as there are, with replacement, in so many replicates; (replicates, patients)."""
    return np.random.default_rng(seed).multinomial(patients, np.full(patients, 1 / max(patients, 1)), size=replicates)


def recalls_at(scores: FrocScores, rates: FloatArray, draws: Draws) -> FloatArray:
    """Compute R@X of every replicate.

    Parameters
    ----------
    scores
        The scores of annotations and false positives.
    rates
        The values of X, allowed numbers of false positives per volume.
    draws
        How often each replicate drew each patient, from `draw`.

    Returns
    -------
    FloatArray
        (R, number of rates) `froc.recall_at` of the patients drawn; NaN where a replicate drew no annotation.
    """
    return recalls_and_limits(scores, rates, draws)[0]


def recalls_and_limits(scores: FrocScores, rates: FloatArray, draws: Draws) -> tuple[FloatArray, FloatArray]:
    """R@X of every replicate, and the score above which it calls (see `froc.limit_at`), (R, number of rates) each."""
    order = np.argsort(-scores.false, kind="stable")
    false = np.append(scores.false[order], -np.inf)  # behind the last one everything may be called
    patient = scores.false_patient[order]
    volumes = np.bincount(scores.volume_patient, minlength=draws.shape[1])
    limits = np.empty((len(draws), len(rates)))
    recalls = np.full((len(draws), len(rates)), np.nan)
    for r, drawn in enumerate(draws):
        drawn_volumes = int(volumes @ drawn)
        counts = np.cumsum(drawn[patient])
        # The first place where the count exceeds what is allowed. Any place within a tie has the same score.
        limits[r] = false[np.searchsorted(counts, allowed(drawn_volumes, rates), side="right")]
        times = drawn[scores.hit_patient]
        if times.any() and drawn_volumes:
            recalls[r] = times @ (scores.hit[:, None] > limits[r]) / times.sum()
    return recalls, limits


def areas(scores: FloatArray, positive: BoolArray, patient: IntArray, draws: Draws) -> FloatArray:
    """The AUC of every replicate (R,), for units (n,) with a score, a label and a patient; ties count half.

    NaN where a replicate has units of one kind only.
    """
    order = np.argsort(scores, kind="stable")
    _, first, group = np.unique(scores[order], return_index=True, return_inverse=True)
    positive, patient = positive[order], patient[order]
    blocks = [np.empty(0)]
    for start in range(0, len(draws), BLOCK):
        drawn = draws[start : start + BLOCK, patient]
        malignant, others = drawn[:, positive], np.add.reduceat(drawn * ~positive, first, axis=1)  # others: by score
        below = np.cumsum(others, axis=1) - others / 2
        pairs = malignant.sum(axis=1) * others.sum(axis=1)
        blocks.append(_ratio((malignant * below[:, group[positive]]).sum(axis=1), pairs.astype(float)))
    return np.concatenate(blocks)


def recalls_and_rates(scores: FrocScores, threshold: float, draws: Draws) -> tuple[FloatArray, FloatArray]:
    """Recall and false positives per volume of every replicate at one fixed threshold, (R,) each."""
    hit, false, annotations, volumes = (
        (draws @ np.bincount(patient, minlength=draws.shape[1])).astype(float)
        for patient in (
            scores.hit_patient[scores.hit >= threshold],
            scores.false_patient[scores.false >= threshold],
            scores.hit_patient,
            scores.volume_patient,
        )
    )
    return _ratio(hit, annotations), _ratio(false, volumes)


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def standard_error(replicates: FloatArray) -> float:
    """The standard deviation of replicates (R,); NaN are left out."""
    known = replicates[~np.isnan(replicates)]
    return float(np.std(known, ddof=1)) if known.size > 1 else np.nan


def interval(replicates: FloatArray) -> tuple[float, float]:
    """The 95% percentile interval of replicates (R,). Nothing is interpolated, because values may be infinite."""
    known = replicates[~np.isnan(replicates)]
    if not known.size:
        return np.nan, np.nan
    return float(np.quantile(known, 0.025, method="lower")), float(np.quantile(known, 0.975, method="higher"))


def p_of_difference(differences: FloatArray) -> float:
    """Test whether a difference is 0, two-sided, from its replicates (R,).

    p is twice the share of replicates on the rarer side of 0. Replicates at 0 count for both sides. p is never below
    `least_p`.
    """
    known = differences[~np.isnan(differences)]
    if not known.size:
        return np.nan
    rarer = min(int((known <= 0).sum()), int((known >= 0).sum()))
    return min(1.0, (rarer + 1) * least_p(known.size))


def least_p(replicates: int) -> float:
    """The smallest p that so many replicates can show."""
    return 2 / (replicates + 1)
