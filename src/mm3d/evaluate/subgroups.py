"""The same figures for parts of a cohort.

A column of findings (kind, size) chooses what is to be found; the false positives stay those of all volumes, because a
false positive has no kind. The AUC is then that of breasts with such a finding against all that are not malignant. Any
other column chooses volumes or breasts, with their false positives.
"""

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm3d.evaluate.joined import Joined
from mm3d.evaluate.judge import Judged, detections, scored_breasts, scored_images
from mm3d.evaluate.measure import area, recalls
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import Detections
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.shared.errors import InputError

UNKNOWN = "unknown"
MANY = 5  # different numbers in a column, and it is divided into thirds
MILLIMETRES = (10.0, 20.0)  # where sizes are parted: the stages T1a and b, T1c, T2 and more


@dataclass(frozen=True)
class Part:
    """One value of a column: masks, None where the column says nothing of such a thing."""

    value: str
    findings: BoolArray | None = None  # (F,)
    volumes: BoolArray | None = None  # (V,)
    breasts: BoolArray | None = None  # (B,) for the AUC; None: that of images


def columns_of(joined: Joined) -> list[str]:
    """The columns that this cohort can be divided by."""
    attributes = {name for breast in joined.breasts for name in breast.attributes}
    return ["kind", "size", "position", "laterality", "split", *sorted(attributes)]


def parts(judged: Judged, column: str) -> list[Part]:
    """The cohort divided by a column, values in order."""
    joined = judged.joined
    if column in ("kind", "size"):
        return _parts_of_findings(judged, column)
    if column == "position":
        values = np.array([view.position for view in joined.views])
        return [Part(str(value), volumes=values == value) for value in np.unique(values)]
    if column in ("laterality", "split"):
        values = np.array([getattr(breast, column) or UNKNOWN for breast in joined.breasts])
        order = np.unique(values).tolist()
    elif column in columns_of(joined):
        values, order = _classes([breast.attributes.get(column, UNKNOWN) for breast in joined.breasts])
    else:
        known = columns_of(joined)
        near = difflib.get_close_matches(column, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known columns: {', '.join(known)}."
        raise InputError(f"--by {column}: the cohort has no such column; {hint}")
    return [Part(value, volumes=(values == value)[joined.breast_of], breasts=values == value) for value in order]


def _classes(values: list[str]) -> tuple[Any, list[str]]:
    """An attribute's values (B,) and their order; numbers of which there are many become thirds."""
    numbers = np.array([np.nan if value == UNKNOWN else _number(value) for value in values])
    known = numbers[~np.isnan(numbers)]
    words = len(values) - values.count(UNKNOWN) - len(known)
    if words or len(np.unique(known)) <= MANY:
        return np.array(values), sorted(set(values))
    edges = np.quantile(known, [1 / 3, 2 / 3])
    low, high = (f"{edge:.3g}" for edge in edges)
    names = [f"below {low}", f"{low} to {high}", f"{high} and more", UNKNOWN]
    number = np.where(np.isnan(numbers), 3, np.digitize(np.nan_to_num(numbers), edges))
    return np.array(names)[number], [name for i, name in enumerate(names) if (number == i).any()]


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return np.nan


def _parts_of_findings(judged: Judged, column: str) -> list[Part]:
    joined = judged.joined
    if column == "kind":
        values = np.array([mark.kind or UNKNOWN for mark in joined.marks])
        order = [str(value) for value in np.unique(values[joined.malignant])]
    else:
        values, order = _size_classes(*sizes(joined), joined.malignant)
    result = []
    for value in order:
        chosen = (values == value) & joined.malignant
        breasts = np.array([breast.label != "malignant" for breast in joined.breasts])
        breasts[joined.breast_of[joined.findings.volume[chosen]]] = True
        result.append(Part(value, findings=chosen, breasts=breasts))
    return result


def sizes(joined: Joined) -> tuple[FloatArray, str]:
    """The longer side of each finding's box (F,) and its unit: mm if every pixel spacing is known, else pixels."""
    longer = np.max(joined.findings.boxes[:, 2:] - joined.findings.boxes[:, :2], axis=1, initial=0.0)
    spacing = np.array([np.nan if view.pixel_spacing is None else view.pixel_spacing for view in joined.views])
    mm = longer * spacing[joined.findings.volume]
    return (longer, "px") if np.isnan(mm).any() else (mm, "mm")


def _size_classes(longer: FloatArray, unit: str, malignant: BoolArray) -> tuple[Any, list[str]]:
    """Three classes: by stages in mm, by thirds of the malignant findings in pixels."""
    if not malignant.any():
        return np.full(len(longer), ""), []
    edges = MILLIMETRES if unit == "mm" else tuple(np.quantile(longer[malignant], [1 / 3, 2 / 3]).round())
    low, high = (f"{edge:g}" for edge in edges)
    names = [f"below {low} {unit}", f"{low} to {high} {unit}", f"{high} {unit} and more"]
    return np.array(names)[np.digitize(longer, edges)], names


def _replicates(d: Detections, rates: FloatArray, weights: bootstrap.Weights) -> FloatArray:
    """Of one patient's findings there is nothing to draw from: no replicate has a value, and no error is claimed."""
    replicates = bootstrap.recalls_at(d, rates, weights)
    return replicates if len(np.unique(d.found_owner)) > 1 else np.full_like(replicates, np.nan)


def subgroups(
    judged: Judged, column: str, weights: bootstrap.Weights, settings: EvaluateSettings
) -> list[dict[str, Any]]:
    """Recall of findings by both rules, and the AUC, for every value of a column."""
    rows = []
    for part in parts(judged, column):
        found = {
            rule: detections(judged, applied, volumes=part.volumes, findings=part.findings)
            for rule, applied in judged.rules.items()
        }
        rates = np.array(settings.rates)
        units = (
            scored_images(judged.joined, part.volumes)
            if part.breasts is None
            else scored_breasts(judged.joined, part.breasts)
        )
        rows.append(
            {
                "value": part.value,
                "recall": {
                    rule: recalls(d, _replicates(d, rates, weights), settings.rates) for rule, d in found.items()
                },
                "auc": area(units) | {"of": "images" if part.breasts is None else "breasts"},
            }
        )
    return rows
