"""What a report shows of an exam. Boxes are xyxy in stored pixels, slices are 0-based and stored."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mm3d.data.records import Laterality, Modality, Position
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class ShownFinding:
    """A proposal of the detector in one view."""

    box: tuple[float, float, float, float]
    """x1, y1, x2, y2."""
    score: float
    """How malignant, from 0 to 1."""
    slice: int | None = None
    """The most suspicious slice; None in a mammogram."""
    weights: tuple[float, ...] | None = None
    """w, a number for each slice of the view, with sum 1; None if not known."""
    group: int | None = None
    """The findings of a breast with the same number are taken for one lesion and listed together."""

    def __post_init__(self) -> None:
        _check_score("the finding", self.score)
        if len(self.box) != 4 or not all(map(math.isfinite, self.box)):
            raise InputError(f"The box {list(self.box)} is not four finite numbers.")
        x1, y1, x2, y2 = self.box
        if x1 > x2 or y1 > y2:
            raise InputError(f"The box {list(self.box)} has a negative size.")
        if self.weights is not None and not all(math.isfinite(w) and w >= 0 for w in self.weights):
            raise InputError("The slice weights of a finding are not all finite numbers from 0 on.")


@dataclass(frozen=True)
class ShownView:
    """One image or volume."""

    laterality: Laterality
    position: Position
    modality: Modality
    shape: tuple[int, int, int]
    """S, H, W as stored; S = 1 in a mammogram."""
    frame: Callable[[int], NDArray[np.uint8]]
    """The stored frame z, (H, W), as it is to be shown: the chest wall left for L and right for R, bright tissue."""
    findings: tuple[ShownFinding, ...] = ()
    score: float | None = None
    """How likely the view shows a cancer, from 0 to 1."""
    pixel_spacing: float | None = None
    """mm"""
    slice_spacing: float | None = None
    """mm"""

    @property
    def name(self) -> str:
        return f"{self.laterality} {self.position} {self.modality}"

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise InputError(f"{self.name}: the shape {self.shape} is not slices, height and width.")
        _check_score(self.name, self.score)
        for finding in self.findings:
            if finding.slice is not None and not 0 <= finding.slice < self.shape[0]:
                raise InputError(f"{self.name}: a finding is on slice {finding.slice} of 0 to {self.shape[0] - 1}.")
            if finding.weights is not None and len(finding.weights) != self.shape[0]:
                raise InputError(
                    f"{self.name}: a finding has {len(finding.weights)} slice weights for {self.shape[0]} slices."
                )


@dataclass(frozen=True)
class ShownExam:
    """All of an exam that the report shows."""

    title: str
    """A code; never a name, unless the user asked for identifiers."""
    views: tuple[ShownView, ...]
    threshold: float
    """The operating point: what scores below it is not marked when the report opens."""
    weights_name: str
    """Of the weights that found it all."""
    intended_use: str
    """What these weights may be used for, in a sentence; stands in the banner."""
    score: float | None = None
    """Of the exam, from 0 to 1."""
    breast_scores: Mapping[Laterality, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """What went wrong with the exam and what was left out of it, in sentences."""
    unread: tuple[tuple[Laterality, Position], ...] = ()
    """Views that the exam has and that could not be read; where nothing else is there, their place says so."""

    def __post_init__(self) -> None:
        if not self.views:
            raise InputError(f"{self.title} has no view to report on.")
        _check_score("the operating point", self.threshold)
        _check_score(self.title, self.score)
        for side, score in self.breast_scores.items():
            _check_score(f"breast {side}", score)


def numbered(exam: ShownExam) -> list[list[int]]:
    """For each view, a number for each of its findings: 1 for the lesion that scores highest in the exam, and so on.

    The findings of a group are one lesion, and its score is the highest of theirs.
    """
    lesions: dict[tuple[object, ...], float] = {}
    keys = [[_lesion(exam, v, n) for n in range(len(view.findings))] for v, view in enumerate(exam.views)]
    for view, names in zip(exam.views, keys, strict=True):
        for finding, key in zip(view.findings, names, strict=True):
            lesions[key] = max(finding.score, lesions.get(key, 0.0))
    order = sorted(lesions, key=lambda key: -lesions[key])  # equal scores stay in the order of the views
    numbers = {key: number for number, key in enumerate(order, 1)}
    return [[numbers[key] for key in names] for names in keys]


def _lesion(exam: ShownExam, view: int, finding: int) -> tuple[object, ...]:
    group = exam.views[view].findings[finding].group
    return (view, finding, "alone") if group is None else (exam.views[view].laterality, group)


def _check_score(what: str, score: float | None) -> None:
    if score is not None and not 0 <= score <= 1:  # not a number is not, either
        raise InputError(f"The score {score} of {what} is not between 0 and 1.")
