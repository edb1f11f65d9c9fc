"""One exam: read its images, detect, and put everything together in an `ExamResult`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from mm3d.data.prepare.prepared import PreparedBreast, PreparedView
from mm3d.data.prepare.run import prepare_breasts
from mm3d.output.predictions import Finding, ViewPrediction
from mm3d.output.result import ExamResult, ReadProblem, ViewResult
from mm3d.predict.detect import predict_breast
from mm3d.predict.find import Exam, hide_paths
from mm3d.predict.setup import Setup
from mm3d.shared.errors import InputError

IDENTIFIERS = ("PatientName", "PatientID", "StudyDate", "StudyInstanceUID")
TOLERANCE = 10.0  # mm, between the distances of a lesion from the nipple in CC and MLO
SHARE = 0.1  # the same as a share of the breast's extent, if the spacing of pixels is not known


def predict_exam(exam: Exam, setup: Setup, work: Path, seconds: Mapping[str, float]) -> ExamResult:
    """Predict an exam. `work` is a folder for prepared images; they must stay until the result is written.

    `seconds` says how long the run took before its first exam.
    """
    began = time.perf_counter()
    breasts, failures = _read_images(exam, setup, work)
    read = time.perf_counter()
    predictions = [
        predict_breast(setup.model, breast, setup.input, setup.histogram, setup.settings) for breast in breasts
    ]
    detected = time.perf_counter()
    views: list[ViewResult] = []
    for breast, prediction in zip(breasts, predictions, strict=True):
        matched = match_lesions(breast.views, prediction.views, setup.method.operating_point.threshold)
        views += map(_add_image, breast.views, matched)
    header = next(iter(exam.headers.values()))
    known = {name: str(header.context.get(name, "")) for name in IDENTIFIERS if setup.method.identifiers}
    return ExamResult(
        exam=known.get("StudyInstanceUID") or exam.code,
        patient=known.get("PatientID") or predictions[0].patient,
        views=tuple(views),
        breast_scores={breast.laterality: breast.score or 0.0 for breast in predictions},
        method=setup.method,
        predicted_at=datetime.now(),
        code=exam.code,
        title=" · ".join(filter(None, (known.get(name) for name in IDENTIFIERS[:3]))),
        problems=(*exam.problems, *failures),
        notes=exam.notes,
        files={"count": len(exam.headers), "stamp": exam.stamp},
        other_files=exam.other_files,
        seconds={**seconds, "read": read - began, "model": detected - read},
    )


def _read_images(exam: Exam, setup: Setup, work: Path) -> tuple[list[PreparedBreast], list[ReadProblem]]:
    if not exam.breasts:
        other = "other " if exam.problems else ""
        raise InputError(" ".join((f"it has no {other}CC or MLO view to look at; export it again.", *exam.notes)))
    breasts, failures = prepare_breasts(exam.breasts, exam.headers, setup.prepare, work, setup.jobs)
    views = {view.name: view for breast in exam.breasts for view in breast.views}
    problems = []
    for failure in failures:
        view = views[failure.subject]
        reason = f"{view.name.removeprefix(exam.code).strip()}: {failure.reason}"
        reason = hide_paths(reason, list(exam.headers), setup.method.identifiers)
        problems.append(ReadProblem(reason, view.laterality, view.position, view.files))
    if not breasts:
        raise InputError(" ".join(problem.reason for problem in problems))
    # Views that could not be read do not count when repeated views are numbered.
    return [replace(b, breast=replace(b.breast, views=tuple(view.view for view in b.views))) for b in breasts], problems


def _add_image(prepared: PreparedView, prediction: ViewPrediction) -> ViewResult:
    assert prepared.display_slices is not None
    return ViewResult(
        prediction.view,
        prediction.findings,
        prediction.modality,
        prediction.score,
        frames=np.load(prepared.display_slices, mmap_mode="r", allow_pickle=False),
        headers=prepared.headers,
        turned=prepared.file.turned,
        pixel_spacing=prepared.file.pixel_spacing,
        slice_spacing=prepared.file.slice_spacing,
    )


def match_lesions(
    images: Sequence[PreparedView], views: Sequence[ViewPrediction], threshold: float
) -> list[ViewPrediction]:
    """Give the same lesion number to a CC and an MLO finding that are taken for one lesion; numbers are per breast.

    The breast is turned between the two views, but the distance of a lesion from the nipple stays about the same.
    Radiologists look for a lesion in the other view at that distance. Only findings that score at least `threshold`
    are matched. The highest scores choose first, each its nearest.
    """
    marked = [
        (finding.score, v, n, nipple_distance(finding, image))
        for v, (view, image) in enumerate(zip(views, images, strict=True))
        for n, finding in enumerate(view.findings)
        if finding.score >= threshold
    ]
    lesions: dict[tuple[int, int], int] = {}
    for _, v, n, distance in sorted(marked, key=lambda item: -item[0]):
        if (v, n) in lesions:
            continue
        others = [
            (abs(distance - other), (w, m))
            for _, w, m, other in marked
            if (w, m) not in lesions and views[w].position != views[v].position
        ]
        apart, partner = min(others, default=(2.0, (v, n)))
        if apart <= 1:
            lesions[v, n] = lesions[partner] = len(lesions) // 2
    return [
        replace(view, findings=tuple(replace(f, lesion=lesions.get((v, n))) for n, f in enumerate(view.findings)))
        for v, view in enumerate(views)
    ]


def nipple_distance(finding: Finding, image: PreparedView) -> float:
    """How far the middle of a finding is behind the nipple, in units of the tolerance."""
    x1, _, x2, _ = image.file.geometry.crop
    middle = (finding.box[0] + finding.box[2]) / 2
    pixels = middle - x1 if image.file.geometry.mirrored else x2 - middle  # mirrored: the chest wall is on the right
    spacing = image.file.pixel_spacing
    return pixels / (SHARE * (x2 - x1)) if spacing is None else pixels * spacing / TOLERANCE
