"""Measure systems, their subgroups and their differences: the content of metrics.json."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from mm3d.evaluate import table
from mm3d.evaluate.match import MatchedPredictions, UnitScores, froc_scores
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.bootstrap import Draws
from mm3d.evaluate.metrics.froc import FrocScores, threshold_at
from mm3d.evaluate.metrics.hits import FloatArray
from mm3d.evaluate.subgroups import find_subgroups
from mm3d.evaluate.table import FrocMetric, UnitMetric

Row = dict[str, Any]


@dataclass(frozen=True)
class System:
    """One system with its metrics, for comparisons, lists and figures."""

    matched: MatchedPredictions
    draws: Draws
    replicates: dict[tuple[str, str, str], FloatArray]  # by metric, rule and level: see `_replicate`
    result: Row  # its part of metrics.json

    @property
    def name(self) -> str:
        return self.matched.name


def measure(matched: MatchedPredictions, draws: Draws) -> System:
    """Compute every metric of the table for one system; all systems must have the same draws."""
    rates = matched.settings.rates
    replicates: dict[tuple[str, str, str], FloatArray] = {}
    result: Row = {"name": matched.name, "modality": matched.modality, "counts": _count(matched)}
    notes = matched.notes
    for metric in table.METRICS:
        if isinstance(metric, FrocMetric):
            result[metric.name] = {rule: {} for rule in matched.rules}
            for (rule, level), scores in matched.froc.items():
                drawn = replicates[metric.name, rule, level] = _replicate(metric, scores, rates, draws)
                result[metric.name][rule][level] = _measure_froc(metric, scores, rates, drawn)
        elif isinstance(metric, UnitMetric):
            result[metric.name] = {level: _measure_units(metric, units) for level, units in matched.units.items()}
        else:
            result[metric.name] = metric.function(matched, draws, notes)
    result["notes"] = notes
    result["subgroups"] = {column: measure_subgroups(matched, column, draws) for column in matched.settings.by}
    return System(matched, draws, replicates, result)


def _count(matched: MatchedPredictions) -> dict[str, int]:
    return {
        "patients": len(np.unique(matched.patient_of)),
        "breasts": len(matched.breasts),
        "malignant_breasts": int((matched.breast_labels == 1).sum()),
        "volumes": len(matched.views),
        "volumes_in_froc": int(matched.counted.sum()),
        "findings": len(matched.records),
        "malignant_findings": int(matched.malignant.sum()),
        "proposals": len(matched.findings.scores),
    }


def _replicate(metric: FrocMetric, scores: FrocScores, rates: tuple[float, ...], draws: Draws) -> FloatArray:
    """The values of a metric (1 + R, values): first of the cohort as it is, then of every replicate."""
    as_it_is = np.ones_like(draws, shape=(1, draws.shape[1]))
    return metric.replicates(scores, np.array(rates), np.concatenate([as_it_is, draws]))


def _measure_froc(
    metric: FrocMetric, scores: FrocScores, rates: tuple[float, ...], replicates: FloatArray
) -> list[Row]:
    """A metric of hits and false positives with its error and interval, for every X."""
    counts = {"count": len(scores.hit), "volumes": len(scores.volume_patient)}
    rows = []
    for place, values in zip(metric.places(rates), replicates.T, strict=True):
        threshold = {"threshold": threshold_at(scores, place["fp_per_volume"])} if place else {}
        rows.append({**place, metric.name: float(values[0]), **_spread(values[1:]), **threshold, **counts})
    return rows


def _spread(replicates: FloatArray) -> Row:
    return {"standard_error": bootstrap.standard_error(replicates), "interval": bootstrap.interval(replicates)}


def _measure_units(metric: UnitMetric, units: UnitScores) -> Row:
    """A metric of the scores of units with its error and interval."""
    estimate = metric.function(units.scores[None], units.positive)
    errors = {"standard_error": estimate.standard_error(), "interval": estimate.interval()}
    counts = {"malignant": int(units.positive.sum()), "others": int((~units.positive).sum())}
    return {metric.name: float(estimate.values[0]), **errors, **counts}


def measure_subgroups(matched: MatchedPredictions, column: str, draws: Draws) -> list[Row]:
    """The metrics of findings by both rules and of breasts (or images), for every value of a column."""
    rates, rows = matched.settings.rates, []
    for group in find_subgroups(matched, column):
        row: Row = {"value": group.value}
        for metric in table.METRICS:
            if isinstance(metric, FrocMetric):
                row[metric.name] = {}
                for rule in matched.rules:
                    scores = froc_scores(matched, rule, volumes=group.volumes, annotations=group.annotations)
                    drawn = _replicate(metric, scores, rates, draws)
                    if len(np.unique(scores.hit_patient)) < 2:  # with one patient there is nothing to draw from
                        drawn[1:] = np.nan
                    row[metric.name][rule] = _measure_froc(metric, scores, rates, drawn)
            elif isinstance(metric, UnitMetric):
                units = matched.units[group.level]
                row[metric.name] = _measure_units(metric, units[group.units[units.number]]) | {"of": f"{group.level}s"}
        rows.append(row)
    return rows


def compare(systems: list[System]) -> list[Row]:
    """The differences of every two systems, on the same patients, with p."""
    rows: list[Row] = []
    for a, b in combinations(systems, 2):
        for metric in table.METRICS:
            names = {"a": a.name, "b": b.name, "metric": metric.name}
            if isinstance(metric, FrocMetric):
                rows += [names | row for row in _compare_froc(metric, a, b)]
            elif isinstance(metric, UnitMetric):
                rows += [names | row for row in _compare_units(metric, a.matched.units, b.matched.units)]
    return rows


def _compare_froc(metric: FrocMetric, a: System, b: System) -> list[Row]:
    rows = []
    for rule, level in a.matched.froc:
        if rule not in b.matched.rules:
            continue
        differences = a.replicates[metric.name, rule, level] - b.replicates[metric.name, rule, level]
        for place, values in zip(metric.places(a.matched.settings.rates), differences.T, strict=True):
            spread = _spread(values[1:]) | {"p": bootstrap.p_of_difference(values[1:])}
            rows.append({"rule": rule, "level": level, **place, "difference": float(values[0]), **spread})
    return rows


def _compare_units(metric: UnitMetric, a: dict[str, UnitScores], b: dict[str, UnitScores]) -> list[Row]:
    """On the units that both systems have: a mammogram and a volume can be of one breast, but are not one image."""
    rows = []
    for level, units in a.items():
        theirs = dict(zip(b[level].names, b[level].scores, strict=True))
        first = units[np.array([name in theirs for name in units.names], dtype=bool)]
        if first.names:
            scores = np.stack([first.scores, [theirs[name] for name in first.names]])
            difference = metric.function(scores, first.positive).difference(0, 1)
            named = zip(("difference", "standard_error", "p"), difference, strict=True)
            rows.append({"level": level, "units": len(first.names), **dict(named)})
    return rows
