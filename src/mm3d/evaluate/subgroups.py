"""Divide a cohort into subgroups.

A column of annotations (kind, size) chooses what is to be found. The false positives stay those of all volumes, because
a false positive has no kind. The AUC is then that of breasts with such an annotation against all that are not
malignant. Any other column chooses volumes or breasts, with their false positives.
"""

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm3d.evaluate.match import MatchedPredictions
from mm3d.evaluate.metrics.hits import BoolArray
from mm3d.shared.errors import InputError

UNKNOWN = "unknown"
MANY = 5  # a column with more different numbers is divided into thirds
MILLIMETRES = (10.0, 20.0)  # borders of sizes: the stages T1a and T1b, T1c, T2 and more


@dataclass(frozen=True)
class Subgroup:
    """One value of a column. A mask is None where the column does not restrict such things."""

    value: str
    units: BoolArray  # (B,) breasts for the AUC, or (V,) images
    level: str = "breast"  # or image
    annotations: BoolArray | None = None  # (A,)
    volumes: BoolArray | None = None  # (V,)


def find_subgroups(matched: MatchedPredictions, column: str) -> list[Subgroup]:
    """The cohort divided by a column, values in order."""
    if column == "kind":
        kinds = np.array([record.kind or UNKNOWN for record in matched.records])
        return _groups_of_annotations(matched, kinds, np.unique(kinds[matched.malignant]).tolist())
    if column == "size":
        return _groups_of_annotations(matched, *_divide_sizes(matched))
    if column == "position":
        positions = np.array(["MLO" if "mlo" in view.key.view else "CC" for view in matched.views])
        groups = [(str(value), positions == value) for value in np.unique(positions)]
        return [Subgroup(value, chosen, "image", volumes=chosen) for value, chosen in groups]
    if column in ("laterality", "split"):
        own = [breast.key[2] if column == "laterality" else breast.split or UNKNOWN for breast in matched.breasts]
        values, order = np.array(own), sorted(set(own))
    else:
        attributes = {name for breast in matched.breasts for name in breast.attributes}
        if column not in attributes:
            known = ["kind", "size", "position", "laterality", "split", *sorted(attributes)]
            near = difflib.get_close_matches(column, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known columns: {', '.join(known)}."
            raise InputError(f"--by {column}: the cohort has no such column; {hint}")
        values, order = _divide_attribute([breast.attributes.get(column, UNKNOWN) for breast in matched.breasts])
    return [Subgroup(value, values == value, volumes=(values == value)[matched.breast_of]) for value in order]


def _groups_of_annotations(matched: MatchedPredictions, values: Any, order: list[str]) -> list[Subgroup]:
    groups = []
    for value in order:
        chosen = (values == value) & matched.malignant
        breasts = np.array([breast.label != "malignant" for breast in matched.breasts])
        breasts[matched.breast_of[matched.annotations.volume[chosen]]] = True
        groups.append(Subgroup(value, breasts, annotations=chosen))
    return groups


def _divide_sizes(matched: MatchedPredictions) -> tuple[Any, list[str]]:
    """The size class of each annotation (A,) by the longer side of its box, and the classes in order.

    The borders are stages in mm or, where a pixel spacing is not known, thirds of the malignant annotations in pixels.
    """
    boxes = matched.annotations.boxes
    longer = np.max(boxes[:, 2:] - boxes[:, :2], axis=1, initial=0.0)
    if not matched.malignant.any():
        return np.full(len(longer), ""), []
    mm = longer * matched.of_views("pixel_spacing")[matched.annotations.volume]
    if np.isnan(mm).any():
        unit, sizes, edges = "px", longer, np.quantile(longer[matched.malignant], [1 / 3, 2 / 3]).round()
    else:
        unit, sizes, edges = "mm", mm, np.array(MILLIMETRES)
    low, high = (f"{edge:g}" for edge in edges)
    names = [f"below {low} {unit}", f"{low} to {high} {unit}", f"{high} {unit} and more"]
    return np.array(names)[np.digitize(sizes, edges)], names


def _divide_attribute(values: list[str]) -> tuple[Any, list[str]]:
    """The class of each breast (B,) by an attribute, and the classes in order; many different numbers become thirds."""
    numbers = np.array([_number(value) for value in values])
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
