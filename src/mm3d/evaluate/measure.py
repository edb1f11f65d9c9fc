"""All figures of one system, as plain data for metrics.json."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mm3d.evaluate.joined import Joined
from mm3d.evaluate.judge import LEVELS, Judged, Scored, detections, judge, scored_breasts, scored_cases, scored_images
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.calibration import operating_point, reliability
from mm3d.evaluate.metrics.dbtex import LEAST_DISTANCE, dbtex
from mm3d.evaluate.metrics.depth import depth_errors
from mm3d.evaluate.metrics.froc import Detections, recall_at, threshold_at
from mm3d.evaluate.metrics.hits import Findings, FloatArray, best_proposals
from mm3d.evaluate.metrics.roc import delong
from mm3d.evaluate.settings import EvaluateSettings


@dataclass(frozen=True)
class Measured:
    """One system: its figures, and what comparisons and pictures are made from."""

    judged: Judged
    detections: dict[tuple[str, str], Detections]  # by rule and level
    replicates: dict[tuple[str, str], FloatArray]  # R@X of each replicate, (number of replicates, number of rates)
    scored: dict[str, Scored]  # image, breast and case
    result: dict[str, Any]

    @property
    def name(self) -> str:
        return self.judged.joined.name


def measure(joined: Joined, weights: bootstrap.Weights, settings: EvaluateSettings) -> Measured:
    """Everything but the subgroups."""
    judged = judge(joined, settings)
    found: dict[tuple[str, str], Detections] = {
        (rule, level): detections(judged, judged.rules[rule], level) for rule in judged.rules for level in LEVELS
    }
    replicates = {key: bootstrap.recalls_at(d, np.array(settings.rates), weights) for key, d in found.items()}
    scored = {"image": scored_images(joined), "breast": scored_breasts(joined), "case": scored_cases(joined)}
    notes = [*joined.notes, *judged.notes]
    unlabelled = len(joined.breasts) - len(scored["breast"].names)
    if unlabelled:
        notes.append(f"{unlabelled:,} breasts have no label; the AUC leaves them out.")
    official, remark = _dbtex(joined)
    notes += [remark] if remark else []
    result = {
        "name": joined.name,
        "modality": joined.modality,
        "counts": _counts(judged),
        "recall": {
            rule: {level: recalls(found[rule, level], replicates[rule, level], settings.rates) for level in LEVELS}
            for rule in judged.rules
        },
        "auc": {level: area(units) for level, units in scored.items()},
        "dbtex": official,
        "depth": _depth(judged) if "3D" in judged.rules else None,
        "calibration": {level: _calibration(scored[level]) for level in ("breast", "image")},
        "operating_points": _operating_points(found, scored["breast"], weights, settings),
        "notes": notes,
    }
    return Measured(judged, found, replicates, scored, result)


def recalls(d: Detections, replicates: FloatArray, rates: tuple[float, ...]) -> list[dict[str, Any]]:
    """R@X with its bootstrap error and interval, for every X."""
    return [
        {
            "fp_per_volume": rate,
            "recall": recall_at(d, rate),
            "standard_error": bootstrap.standard_error(replicates[:, i]),
            "interval": bootstrap.interval(replicates[:, i]),
            "threshold": threshold_at(d, rate),
            "count": len(d.found),
            "volumes": len(d.volume_owner),
        }
        for i, rate in enumerate(rates)
    ]


def area(units: Scored) -> dict[str, Any]:
    """The AUC with DeLong's error."""
    areas = delong(units.scores[None], units.positive)
    return {
        "auc": float(areas.auc[0]),
        "standard_error": areas.standard_error(),
        "interval": areas.interval(),
        "malignant": int(units.positive.sum()),
        "others": int((~units.positive).sum()),
    }


def _counts(judged: Judged) -> dict[str, int]:
    joined = judged.joined
    return {
        "patients": len(np.unique(joined.patient_of)),
        "breasts": len(joined.breasts),
        "malignant_breasts": sum(breast.label == "malignant" for breast in joined.breasts),
        "volumes": len(joined.views),
        "volumes_in_froc": int(judged.volumes.sum()),
        "findings": len(joined.marks),
        "malignant_findings": int(joined.malignant.sum()),
        "proposals": len(joined.proposals.scores),
    }


def _dbtex(joined: Joined) -> tuple[dict[str, float] | None, str]:
    """The official score, and what is to be said of it, or why there is none."""
    slices = np.array([np.nan if view.slices is None else view.slices for view in joined.views])
    if joined.modality != "DBT" or not joined.marks:
        return None, ""
    if np.isnan(joined.findings.slices).any() or np.isnan(slices[joined.findings.volume]).any():
        return (
            None,
            "There is no DBTex score: it needs a slice of every finding and the number of slices of its volume.",
        )
    if np.isnan(joined.proposals.slices).any():
        return None, "There is no DBTex score: it needs a slice of every proposal."
    note = ""
    half = float(np.median(np.linalg.norm(joined.findings.boxes[:, 2:] - joined.findings.boxes[:, :2], axis=1))) / 2
    if half < LEAST_DISTANCE / 2:
        note = (
            f"The DBTex score says little here: a centre {LEAST_DISTANCE:.0f} pixels away is a hit to it, and half the "
            f"diagonal of a box is {half:.0f} pixels in the median."
        )
    return dbtex(joined.proposals, joined.findings, slices, len(joined.views)), note


def _depth(judged: Judged) -> dict[str, Any]:
    """Of malignant findings hit in 2D."""
    joined, rule = judged.joined, judged.rules["2D"]
    best = best_proposals(rule.hits, joined.proposals, len(joined.marks))
    hit = rule.judged & judged.volumes[joined.findings.volume] & (best >= 0)
    spacing = np.array([np.nan if view.slice_spacing is None else view.slice_spacing for view in joined.views])
    return asdict(
        depth_errors(
            joined.proposals.slices[best[hit]],
            reference_slices(joined.findings)[hit],
            (judged.visible[0][hit], judged.visible[1][hit]),
            spacing[joined.findings.volume[hit]],
        )
    )


def reference_slices(findings: Findings) -> FloatArray:
    """The slice that a prediction is compared with (F,): the annotated one, otherwise the middle of the range."""
    return np.where(np.isnan(findings.slices), (findings.first + findings.last) / 2, findings.slices)


def _calibration(units: Scored) -> dict[str, Any] | None:
    """None if the scores are no probabilities, or there are none. Where nothing was predicted, it is 0."""
    scores = np.where(np.isneginf(units.scores), 0.0, units.scores)
    if not np.isfinite(units.scores).any() or scores.min() < 0 or scores.max() > 1:
        return None
    found = reliability(scores, units.positive)
    bins = zip(found.score, found.malignant, found.low, found.high, found.count, strict=True)
    return {
        "expected_calibration_error": found.error,
        "bins": [
            {"score": score, "malignant": share, "interval": (low, high), "count": int(count)}
            for score, share, low, high, count in bins
        ],
    }


def _operating_points(
    found: dict[tuple[str, str], Detections], breasts: Scored, weights: bootstrap.Weights, settings: EvaluateSettings
) -> list[dict[str, Any]]:
    points = []
    for rule in ("2D", "3D"):
        for rate in settings.rates if (rule, "finding") in found else ():
            point = operating_point(found[rule, "finding"], rate, weights)
            points.append({"of": "findings", "rule": rule, "wanted": {"fp_per_volume": rate}} | _named(point, False))
    for specificity in settings.specificities if len(breasts.names) else ():
        point = operating_point(breasts.detections(), round(1 - specificity, 12), weights)
        points.append({"of": "breasts", "wanted": {"specificity": specificity}} | _named(point, True))
    return points


def _named(point: Any, of_breasts: bool) -> dict[str, Any]:
    """An operating point in the words of its kind: false positives per volume, or specificity."""
    recall, rate, interval = ("recall", "fp_per_volume", point.rate_interval)
    share = point.rate
    if of_breasts:
        recall, rate, share = "sensitivity", "specificity", 1 - point.rate
        interval = (1 - point.rate_interval[1], 1 - point.rate_interval[0])
    return {
        "threshold": point.threshold,
        "threshold_interval": point.threshold_interval,
        recall: point.recall,
        f"{recall}_interval": point.recall_interval,
        rate: share,
        f"{rate}_interval": interval,
    }
