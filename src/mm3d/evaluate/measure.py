"""Measure systems, their subgroups and their differences: the content of metrics.json."""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from mm3d.evaluate import table
from mm3d.evaluate.match import MatchedPredictions, UnitScores, froc_scores, score_breasts, score_images
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
    replicates: dict[tuple[str, str, str], FloatArray]  # by metric, rule and level: (R, number of places)
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
                drawn = replicates[metric.name, rule, level] = metric.replicate(scores, rates, draws)
                result[metric.name][rule][level] = measure_froc(metric, scores, rates, drawn)
        elif isinstance(metric, UnitMetric):
            result[metric.name] = {level: measure_units(metric, units, draws) for level, units in matched.units.items()}
        else:
            result[metric.name] = metric.function(matched, draws)
            notes += [note] if (note := metric.note(matched)) else []
    result["notes"] = notes
    result["subgroups"] = {column: measure_subgroups(matched, column, draws) for column in matched.settings.by}
    return System(matched, replicates, result)


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


def measure_froc(metric: FrocMetric, scores: FrocScores, rates: table.Rates, replicates: FloatArray) -> list[Row]:
    """A metric of hits and false positives with its error and interval, for every X."""
    counts = {"count": len(scores.hit), "volumes": len(scores.volume_patient)}
    rows = []
    for place, value, drawn in zip(metric.places(rates), metric.values(scores, rates), replicates.T, strict=True):
        errors = {"standard_error": bootstrap.standard_error(drawn), "interval": bootstrap.interval(drawn)}
        threshold = {"threshold": threshold_at(scores, place["fp_per_volume"])} if place else {}
        rows.append({**place, metric.name: value, **errors, **threshold, **counts})
    return rows


def measure_units(metric: UnitMetric, units: UnitScores, draws: Draws) -> Row:
    """A metric of the scores of units with its error and interval."""
    if metric.areas is not None:
        areas = metric.areas(units.scores[None], units.positive)
        errors = {"standard_error": areas.standard_error(), "interval": areas.interval()}
    else:
        drawn = metric.replicate(units, draws)
        errors = {"standard_error": bootstrap.standard_error(drawn), "interval": bootstrap.interval(drawn)}
    counts = {"malignant": int(units.positive.sum()), "others": int((~units.positive).sum())}
    return {metric.name: metric.function(units.scores, units.positive), **errors, **counts}


def measure_subgroups(matched: MatchedPredictions, column: str, draws: Draws) -> list[Row]:
    """The metrics of findings by both rules and of breasts (or images), for every value of a column."""
    rates, rows = matched.settings.rates, []
    for group in find_subgroups(matched, column):
        row: Row = {"value": group.value}
        if group.breasts is None:
            units, of = score_images(matched, group.volumes), "images"
        else:
            units, of = score_breasts(matched, group.breasts), "breasts"
        for metric in table.METRICS:
            if isinstance(metric, FrocMetric):
                row[metric.name] = {}
                for rule in matched.rules:
                    scores = froc_scores(matched, rule, volumes=group.volumes, annotations=group.annotations)
                    drawn = metric.replicate(scores, rates, draws)
                    if len(np.unique(scores.hit_patient)) < 2:  # with one patient there is nothing to draw from
                        drawn = np.full_like(drawn, np.nan)
                    row[metric.name][rule] = measure_froc(metric, scores, rates, drawn)
            elif isinstance(metric, UnitMetric):
                row[metric.name] = measure_units(metric, units, draws) | {"of": of}
        rows.append(row)
    return rows


def compare(systems: list[System], draws: Draws) -> list[Row]:
    """The differences of every two systems, on the same patients, with p."""
    rows: list[Row] = []
    for a, b in combinations(systems, 2):
        for metric in table.METRICS:
            names = {"a": a.name, "b": b.name, "metric": metric.name}
            if isinstance(metric, FrocMetric):
                rows += [names | row for row in _compare_froc(metric, a, b)]
            elif isinstance(metric, UnitMetric):
                rows += [names | row for row in _compare_units(metric, a.matched, b.matched, draws)]
    return rows


def _compare_froc(metric: FrocMetric, a: System, b: System) -> list[Row]:
    rates, rows = a.matched.settings.rates, []
    for rule, level in a.matched.froc:
        if rule not in b.matched.rules:
            continue
        values = (metric.values(system.matched.froc[rule, level], rates) for system in (a, b))
        differences = a.replicates[metric.name, rule, level] - b.replicates[metric.name, rule, level]
        for place, ours, theirs, drawn in zip(metric.places(rates), *values, differences.T, strict=True):
            rows.append({"rule": rule, "level": level, **place, **_difference(ours - theirs, drawn)})
    return rows


def _compare_units(metric: UnitMetric, a: MatchedPredictions, b: MatchedPredictions, draws: Draws) -> list[Row]:
    """On the units that both systems have: a mammogram and a volume can be of one breast, but are not one image."""
    rows = []
    for level, units in a.units.items():
        theirs = dict(zip(b.units[level].names, b.units[level].scores, strict=True))
        first = units[np.array([name in theirs for name in units.names], dtype=bool)]
        if not first.names:
            continue
        second = replace(first, scores=np.array([theirs[name] for name in first.names]))
        if metric.areas is not None:
            areas = metric.areas(np.stack([first.scores, second.scores]), first.positive)
            row = dict(zip(("difference", "standard_error", "p"), areas.difference(0, 1), strict=True))
        else:
            values = (metric.function(one.scores, one.positive) for one in (first, second))
            row = _difference(
                next(values) - next(values), metric.replicate(first, draws) - metric.replicate(second, draws)
            )
        rows.append({"level": level, "units": len(first.names), **row})
    return rows


def _difference(value: float, replicates: FloatArray) -> Row:
    """A difference with its error, its interval and its p by the paired bootstrap."""
    return {
        "difference": value,
        "standard_error": bootstrap.standard_error(replicates),
        "interval": bootstrap.interval(replicates),
        "p": bootstrap.p_of_difference(replicates),
    }
