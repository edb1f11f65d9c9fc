"""Systems against each other, on the same patients."""

from itertools import combinations
from typing import Any

import numpy as np

from mm3d.evaluate.measure import Measured
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import recall_at
from mm3d.evaluate.metrics.roc import delong
from mm3d.evaluate.settings import EvaluateSettings


def comparisons(systems: list[Measured], settings: EvaluateSettings) -> list[dict[str, Any]]:
    """Every two systems: differences of recalls with the paired bootstrap, of areas with DeLong's paired test."""
    found = []
    for a, b in combinations(systems, 2):
        names = {"a": a.name, "b": b.name}
        found += [names | row for row in (*_recalls(a, b, settings), *_areas(a, b))]
    return found


def _recalls(a: Measured, b: Measured, settings: EvaluateSettings) -> list[dict[str, Any]]:
    rows = []
    for rule, level in a.detections:
        if (rule, level) not in b.detections:
            continue
        differences = a.replicates[rule, level] - b.replicates[rule, level]
        for i, rate in enumerate(settings.rates):
            values = [recall_at(system.detections[rule, level], rate) for system in (a, b)]
            rows.append(
                {
                    "metric": "recall",
                    "rule": rule,
                    "level": level,
                    "fp_per_volume": rate,
                    "difference": values[0] - values[1],
                    "standard_error": bootstrap.standard_error(differences[:, i]),
                    "interval": bootstrap.interval(differences[:, i]),
                    "p": bootstrap.p_of_difference(differences[:, i]),
                }
            )
    return rows


def _areas(a: Measured, b: Measured) -> list[dict[str, Any]]:
    """On the units that both have: a mammogram and a volume are of one breast, but not one image."""
    rows = []
    for level, units in a.scored.items():
        there = {name: number for number, name in enumerate(b.scored[level].names)}
        common = np.array([name in there for name in units.names], dtype=bool)
        if not common.any():
            continue
        ours = units[common]
        theirs = b.scored[level].scores[[there[name] for name in ours.names]]
        difference, error, p = delong(np.stack([ours.scores, theirs]), ours.positive).difference(0, 1)
        rows.append(
            {
                "metric": "auc",
                "level": level,
                "units": len(ours.names),
                "difference": difference,
                "standard_error": error,
                "p": p,
            }
        )
    return rows
