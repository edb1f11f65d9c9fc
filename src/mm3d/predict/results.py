"""What was found in an exam, as its two readers want it: the report's page, and the structured reports."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

import numpy as np

from mm3d.data.batches import PreparedBreast
from mm3d.data.prepare.geometry import Box, Geometry
from mm3d.data.prepare.prepared import PreparedView
from mm3d.data.prepare.source import files_of
from mm3d.data.records import Laterality
from mm3d.output.predictions import BreastPrediction, Finding, ViewPrediction
from mm3d.output.report.exam import ShownExam, ShownFinding, ShownView
from mm3d.output.sr import Algorithm, ReportedExam, ReportedFinding, ReportedView, UnreadView
from mm3d.predict.archive import Unreadable
from mm3d.predict.lesions import Placed, depth, pair


@dataclass(frozen=True)
class Found:
    """An exam with its predictions: breasts and views of both in the same order."""

    breasts: Sequence[PreparedBreast]
    predictions: Sequence[BreastPrediction]
    threshold: float  # the operating point
    algorithm: Algorithm
    problems: tuple[Unreadable, ...] = ()

    @property
    def breast_scores(self) -> dict[Laterality, float]:
        return {breast.laterality: _score(breast.score) for breast in self.predictions}

    @property
    def score(self) -> float:
        """Of the exam: the highest of its breasts, as in the evaluation."""
        return max(self.breast_scores.values())

    def views(self) -> Iterator[tuple[PreparedView, ViewPrediction]]:
        for prepared, predicted in zip(self.breasts, self.predictions, strict=True):
            yield from zip(prepared.views, predicted.views, strict=True)

    def marked(self) -> list[tuple[ViewPrediction, Finding]]:
        """The findings that reach the operating point, the highest score first."""
        found = [(view, f) for _, view in self.views() for f in view.findings if f.score >= self.threshold]
        return sorted(found, key=lambda item: -item[1].score)


def shown_exam(found: Found, copies: Mapping[str, Path], title: str, notes: Sequence[str]) -> ShownExam:
    """For the page. `copies` has, by the name of the view, the file of its slices as they are shown."""
    views = tuple(
        _shown_view(prepared, predicted, copies[prepared.view.name], groups)
        for (prepared, predicted), groups in zip(found.views(), _groups(found), strict=True)
    )
    return ShownExam(
        title=title,
        views=views,
        threshold=found.threshold,
        weights_name=found.algorithm.weights,
        intended_use=found.algorithm.intended_use,
        score=found.score,
        breast_scores=found.breast_scores,
        problems=(*(problem.reason for problem in found.problems), *notes),
        unread=tuple((p.laterality, p.position) for p in found.problems if p.laterality and p.position),
    )


def reported_exam(found: Found, observed: datetime) -> ReportedExam:
    """For the archive."""
    views = [
        ReportedView(
            headers=files_of(prepared.view).headers,
            laterality=prepared.view.laterality,
            position=prepared.view.position,
            findings=tuple(ReportedFinding(_box(f), f.score, _slice(f)) for f in predicted.findings if _has_area(f)),
            turned=prepared.file.turned,
        )
        for prepared, predicted in found.views()
    ]
    return ReportedExam(
        views=tuple(views),
        breast_scores=found.breast_scores,
        score=found.score,
        operating_point=found.threshold,
        algorithm=found.algorithm,
        observed=observed,
        unread=tuple(UnreadView(p.laterality, p.position, p.files) for p in found.problems),
    )


def _shown_view(
    prepared: PreparedView, predicted: ViewPrediction, copies: Path, groups: Sequence[int | None]
) -> ShownView:
    frames = np.load(copies, mmap_mode="r", allow_pickle=False)
    findings = tuple(
        ShownFinding(
            box=_box(finding),
            score=finding.score,
            slice=_slice(finding),
            weights=stored_weights(finding.slice_weights, prepared.file.geometry),
            group=group,
        )
        for finding, group in zip(predicted.findings, groups, strict=True)
    )
    return ShownView(
        laterality=prepared.view.laterality,
        position=prepared.view.position,
        modality=prepared.view.modality,
        shape=frames.shape,
        frame=lambda z: np.array(frames[z]),
        findings=findings,
        score=predicted.score,
        pixel_spacing=prepared.file.pixel_spacing,
        slice_spacing=prepared.file.slice_spacing,
    )


def stored_weights(weights: tuple[float, ...] | None, geometry: Geometry) -> tuple[float, ...] | None:
    """Weights of the model's slices as weights of the stored ones: each has its share of the slice it was pooled to."""
    if weights is None:
        return None
    stored = np.array(weights)[[geometry.slice_to_model(z) for z in range(geometry.stored_slices)]]
    return tuple((stored / stored.sum()).tolist())


def _groups(found: Found) -> list[list[int | None]]:
    """A lesion number for every finding of every view that reaches the operating point; numbers are per breast."""
    groups: list[list[int | None]] = []
    for prepared, predicted in zip(found.breasts, found.predictions, strict=True):
        numbers: list[list[int | None]] = [[None] * len(view.findings) for view in predicted.views]
        where, places = [], []
        for v, (view, said) in enumerate(zip(prepared.views, predicted.views, strict=True)):
            for n, finding in enumerate(said.findings):
                if finding.score >= found.threshold:
                    behind = depth(_box(finding), view.file.geometry, view.file.pixel_spacing)
                    where.append((v, n))
                    places.append(Placed(view.view.position, finding.score, behind))
        for (v, n), number in zip(where, pair(places), strict=True):
            numbers[v][n] = number
        groups += numbers
    return groups


def _box(finding: Finding) -> Box:
    return cast(Box, tuple(finding.box))


def _has_area(finding: Finding) -> bool:
    x1, y1, x2, y2 = finding.box
    return x1 < x2 and y1 < y2


def _slice(finding: Finding) -> int | None:
    return None if finding.slice is None else round(finding.slice)


def _score(score: float | None) -> float:
    assert score is not None  # our own predictions have all scores
    return score
