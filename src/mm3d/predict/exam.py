"""Exams: find them in DICOM files, choose their views, read the images, detect, and put all in an `ExamResult`.

To import torch and to load a model takes as long as to read an exam. So both are done at once: until the images are
read, nothing here imports torch, and the model is a `Future`.
"""

import hashlib
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mm3d.data.datasets.assemble import CohortBuilder
from mm3d.data.datasets.folder import (
    CONTRAST,
    NO_READING,
    NO_VIEW,
    PART_ONLY,
    PROJECTION,
    SYNTHESISED,
    UnusedFile,
    describe_gap,
    describe_headers,
    describe_thin,
    exam_code,
    list_files,
    make_entries,
    read_headers,
)
from mm3d.data.dicom.header import Header
from mm3d.data.inputs import Histogram, InputName
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import PreparedBreast, PreparedView
from mm3d.data.prepare.run import prepare_breasts
from mm3d.data.prepare.view import MAX_PIXELS
from mm3d.data.records import Breast, Modality, View
from mm3d.output.predictions import Finding, ViewPrediction, choose_distinct
from mm3d.output.result import ExamResult, Method, ReadProblem, ViewResult
from mm3d.predict.settings import PredictSettings
from mm3d.shared.errors import InputError

if TYPE_CHECKING:
    from mm3d.model.detector import Detector

KINDS: dict[Modality, str] = {"DBT": "volume", "FFDM": "mammogram"}
LEFT_OUT = {  # what and why, by the reason for which a file is not used, or "copy"
    NO_VIEW: ("image", "neither CC nor MLO, or the header does not say which view or side"),
    NO_READING: ("image", "stereotactic, or of a specimen"),
    PART_ONLY: ("image", "magnified, compressed at a spot, tangential, or otherwise of a part of the breast"),
    PROJECTION: ("image", "a projection from which tomosynthesis is computed"),
    CONTRAST: ("image", "of contrast medium"),
    SYNTHESISED: ("image", "synthesised from a volume, and there is a mammogram or a volume of the same view"),
    "copy": ("file", "the same image is there already"),
}
IDENTIFIERS = ("PatientName", "PatientID", "StudyDate", "StudyInstanceUID")
HIDDEN = " (--with-identifiers names it)"  # in messages, behind what stands for the name of a file
TOLERANCE = 10.0  # mm, between the distances of a lesion from the nipple in CC and MLO
SHARE = 0.1  # the same as a share of the breast's extent, if the spacing of pixels is not known


@dataclass(frozen=True)
class Exam:
    """One study: the views to look at, and sentences about the rest."""

    code: str  # a hash of the study's UID
    breasts: tuple[Breast, ...]  # with the views that the model is given
    headers: Mapping[Path, Header]  # of all its images that can be read, used or not; none of pictures
    notes: tuple[str, ...]  # what was left out by rule
    problems: tuple[ReadProblem, ...]
    other_files: int = 0  # files beside it that are no mammography, if it is the only exam

    @property
    def date(self) -> date | None:
        """When it was made, if its headers agree on a date."""
        known = {str(header.context.get("StudyDate", "")) for header in self.headers.values()} - {""}
        with suppress(ValueError):
            return datetime.strptime(known.pop(), "%Y%m%d").date() if len(known) == 1 else None
        return None

    @property
    def patient(self) -> tuple[str, str] | None:
        """Whose it is, by number, date of birth and name; None if its headers do not agree, or have no number."""
        known = {
            (header.patient, str(header.context.get("PatientName", "")))
            for header in self.headers.values()
            if str(header.context.get("PatientID", "")).strip()
        }
        return known.pop() if len(known) == 1 else None

    @property
    def files(self) -> list[Path]:
        """All its files: of DICOM, used or not; of pictures and arrays, those that are used."""
        used = (path for breast in self.breasts for view in breast.views for path in view.files)
        return list(dict.fromkeys((*self.headers, *used)))

    @cached_property
    def stamp(self) -> str:
        """Changes with the exam's files: their names, sizes and times; and with what a table says of pictures. They are
        looked at once, before they are read."""
        stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.files]
        views = [view for breast in self.breasts for view in breast.views if view.picture is not None]
        said = [[view.name, view.laterality, view.position, view.kind, repr(view.picture)] for view in views]
        return hashlib.sha256(json.dumps([*sorted(stats), *said]).encode()).hexdigest()


@dataclass(frozen=True)
class FoundFiles:
    """The files that a user gives."""

    given: tuple[Path, ...]
    images: tuple[Header, ...]
    unused: tuple[UnusedFile, ...]  # and folders that cannot be read

    @property
    def broken(self) -> bool:
        """Whether there are files that are damaged, and were DICOM images once."""
        return any(file.kind == "broken" for file in self.unused)

    @property
    def synthetic(self) -> bool:
        """Whether all images are of our virtual trial."""
        return bool(self.images) and all(header.synthetic for header in self.images)


@dataclass(frozen=True)
class Setup:
    """How all breasts of a run are predicted."""

    load_model: "Callable[[], Detector]"  # imports torch
    input: InputName
    histogram: Histogram | None
    settings: PredictSettings
    prepare: PrepareSettings
    jobs: int
    method: Method  # what results say about all of this
    max_pixels: int = MAX_PIXELS  # of all slices of a view
    notes: tuple[str, ...] = ()  # about all exams


@dataclass(frozen=True)
class Archive:
    """All exams of a run."""

    exams: tuple[Exam, ...]
    problems: tuple[ReadProblem, ...]  # files that do not even say of which exam they are
    other_files: int  # files that are no mammography


def hide_paths(text: str, paths: Sequence[Path], identifiers: bool, what: str = "a file") -> str:
    """Remove paths from a sentence, because they may contain names of patients; not if `identifiers` are wanted."""
    for path in () if identifiers else sorted(paths, key=lambda path: -len(str(path))):
        text = text.replace(str(path), f"{what}{HIDDEN}")
    return text


def read_archive(given: Sequence[Path]) -> FoundFiles:
    """Read the headers of all files that are given, and of those in folders that are given."""
    files, unreadable = _list_files(given)
    images, unused = read_headers(files)
    return FoundFiles(tuple(given), tuple(images), (*unreadable, *unused))


def find_exams(found: FoundFiles, prefer: Modality, identifiers: bool) -> Archive:
    """Sort images into exams. If a view is there as a volume and as a mammogram, `prefer` is used.

    With `identifiers`, problems may name files.
    """
    images = found.images
    entries, no_views = make_entries(images)
    headers: dict[str, dict[Path, Header]] = defaultdict(dict)
    breasts: dict[str, list[Breast]] = defaultdict(list)
    problems: dict[str, list[ReadProblem]] = defaultdict(list)
    left_out: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for header in images:
        headers[exam_code(header.study)][header.path] = header
    for breast in CohortBuilder("archive", entries=entries).assemble().breasts:
        breasts[breast.exam].append(breast)
    owners = _Owners(images, found.given)
    for file in (*no_views, *found.unused):
        if file.kind in ("broken", "folder"):
            problems[file.exam or owners.find(file)].append(_describe_problem(file, identifiers))
        elif file.kind != "other":
            left_out[file.exam][LEFT_OUT["copy" if file.kind == "copy" else file.reason]] += 1
    unknown = problems.pop("", [])
    exams = []
    for code in dict.fromkeys((*headers, *problems)):  # an exam is one even if none of its files can be read
        used, notes = [], []
        for breast in breasts[code]:
            chosen, more = choose_views(breast, headers[code], prefer)
            used.append(chosen)
            notes += more
            for view in chosen.views:
                own, name = [headers[code][path] for path in view.files], f"{view.laterality} {view.position}"
                notes += [f"{name}: {note}" for note in describe_headers(own)]
                if view.kind == "synthesised 2D":
                    notes.append(f"{name}: a synthesised 2D image is looked at; there is no other image of this view.")
                gaps = [f"{name}: {gap}" for gap in describe_gap(own)]
                problems[code] += [ReadProblem(gap, view.laterality, view.position) for gap in gaps]
        for (what, why), count in left_out[code].items():
            counted = f"1 {what} is" if count == 1 else f"{count} {what}s are"
            notes.append(f"{counted} left out: {why}.")
        if count := owners.doubtful[code]:
            counted = "1 file" if count == 1 else f"{count} files"
            notes.append(f"{counted} beside it cannot be read, and may be of this exam or of another one there.")
        exams.append(Exam(code, tuple(used), headers[code], tuple(notes), tuple(problems[code])))
    return Archive(tuple(exams), tuple(unknown), sum(file.kind == "other" for file in found.unused))


class _Owners:
    """Of which exam a file is that does not say it: of the only one in its folder, or in the nearest folder above it
    that has one."""

    def __init__(self, images: Sequence[Header], given: Sequence[Path]) -> None:
        self.roots = {path if path.is_dir() else path.parent for path in given}
        self.exams: dict[Path, set[str]] = defaultdict(set)  # that have images in a folder or below it
        self.doubtful = Counter[str]()  # by exam, files that may be of it or of another one
        for folder, study in {(header.path.parent, header.study) for header in images}:
            for above in self._find_folders(folder):
                self.exams[above].add(exam_code(study))

    def _find_folders(self, folder: Path) -> list[Path]:
        """The folder and those above it, up to the one that was given."""
        folders = (folder, *folder.parents)
        return [above for above in folders if not self.roots.isdisjoint((above, *above.parents))]

    def find(self, file: UnusedFile) -> str:
        """The code of the exam; "" if there are several or none."""
        folders = self._find_folders(file.path.parent)
        exams = next((self.exams[folder] for folder in folders if folder in self.exams), set[str]())
        if len(exams) == 1:
            return next(iter(exams))
        if file.kind != "folder":  # it is probably an exam of its own
            self.doubtful.update(exams)
        return ""


def _list_files(given: Sequence[Path]) -> tuple[list[Path], list[UnusedFile]]:
    """Every file once, however often it was given, and what cannot be read."""
    files: dict[Path, Path] = {}
    unreadable: dict[Path, UnusedFile] = {}
    for path in given:
        if not os.path.lexists(path):
            raise InputError(f"{path} does not exist; give DICOM files, folders of them, or a prepared folder.")
        found, broken = list_files(path) if path.is_dir() else ([path], [])
        for file in found:
            files.setdefault(file.resolve(), file)
        unreadable |= {file.path: file for file in broken}
    return list(files.values()), list(unreadable.values())


def _describe_problem(file: UnusedFile, identifiers: bool) -> ReadProblem:
    name = " ".join(filter(None, (file.laterality, file.position)))
    reason = hide_paths(file.reason, [file.path], identifiers, "a folder" if file.kind == "folder" else "a file")
    return ReadProblem(f"{name}: {reason}" if name else reason, file.laterality, file.position, (file.path,))


def choose_views(breast: Breast, headers: Mapping[Path, Header], prefer: Modality) -> tuple[Breast, list[str]]:
    """Choose the views of a breast that the model is given: for each position one kind, `prefer` if there are both; and
    images For Processing only if there are none For Presentation. Pictures have no headers."""
    chosen: list[View] = []
    notes = []

    def of(view: View) -> Header | None:
        return headers.get(view.files[0])

    for position in ("CC", "MLO"):
        name = f"{breast.laterality} {position}"
        views = [view for view in breast.views if view.position == position]
        kept = [view for view in views if view.modality == prefer] or views
        if len(kept) < len(views):
            notes.append(f"{name}: of a volume and a mammogram, the {KINDS[prefer]} is taken.")
        shown = [view for view in kept if (header := of(view)) is None or not header.for_processing] or kept
        if len(shown) < len(kept):
            notes.append(f"{name}: the image For Presentation is used, the one For Processing is left out.")
        # Views with a displaced implant come last, so that CC and MLO of one kind go through the model together.
        chosen += sorted(shown, key=lambda view: (header := of(view)) is not None and header.displaced)
    return replace(breast, views=tuple(chosen)), notes


def predict_exam(exam: Exam, setup: Setup, model: "Future[Detector]", work: Path, start_seconds: float) -> ExamResult:
    """Predict an exam. `work` is a folder for prepared images; they must stay until the result is written.

    `start_seconds` says how long the run took before its first exam.
    """
    began = time.perf_counter()
    breasts, failures = _read_images(exam, setup, work)
    read = time.perf_counter()
    detector = model.result()
    from mm3d.predict.detect import predict_breast  # only now, because it imports torch

    loaded = time.perf_counter()
    predictions = [predict_breast(detector, breast, setup.input, setup.histogram, setup.settings) for breast in breasts]
    detected = time.perf_counter()
    views: list[ViewResult] = []
    for breast, prediction in zip(breasts, predictions, strict=True):
        matched = match_lesions(breast.views, prediction.views, setup.method.operating_point.threshold)
        views += map(_add_image, breast.views, matched)
    notes = [
        f"{view.view.laterality} {view.view.position}: {note}"
        for b in breasts
        for view in b.views
        for note in view.file.notes
    ]
    contexts = [header.context for header in exam.headers.values() if setup.method.identifiers][:1]
    known = {name: str(context.get(name, "")) for context in contexts for name in IDENTIFIERS}
    return ExamResult(
        exam=known.get("StudyInstanceUID") or predictions[0].exam,
        patient=known.get("PatientID") or predictions[0].patient,
        views=tuple(views),
        breast_scores={breast.laterality: breast.score or 0.0 for breast in predictions},
        method=replace(setup.method, device=str(detector.proposal_boxes.device)),
        predicted_at=datetime.now(),
        code=exam.code,
        title=" · ".join(filter(None, (known.get(name) for name in IDENTIFIERS[:3]))),
        problems=(*exam.problems, *failures),
        notes=(*exam.notes, *notes),
        warnings=tuple(dict.fromkeys(said for breast in breasts for view in breast.views for said in _warn_of(view))),
        files={"count": len(exam.files), "stamp": exam.stamp},
        other_files=exam.other_files,
        seconds={"start": start_seconds + loaded - read, "read": read - began, "model": detected - loaded},
    )


def _read_images(exam: Exam, setup: Setup, work: Path) -> tuple[list[PreparedBreast], list[ReadProblem]]:
    if not exam.breasts:
        other = "other " if exam.problems else ""
        raise InputError(" ".join((f"it has no {other}CC or MLO view to look at.", *exam.notes)))
    breasts, failures = prepare_breasts(exam.breasts, exam.headers, setup.prepare, work, setup.jobs, setup.max_pixels)
    views = {view.name: view for breast in exam.breasts for view in breast.views}
    problems = []
    for failure in failures:
        view = views[failure.subject]
        name = view.name.removeprefix(exam.code).strip() if exam.headers else f"{view.laterality} {view.position}"
        reason = f"{name}: {failure.reason}"
        reason = hide_paths(reason, exam.files, setup.method.identifiers)
        problems.append(ReadProblem(reason, view.laterality, view.position, view.files))
    if not breasts:
        raise InputError(" ".join(problem.reason for problem in problems))
    # Views that could not be read do not count when repeated views are numbered.
    return [replace(b, breast=replace(b.breast, views=tuple(view.view for view in b.views))) for b in breasts], problems


def _warn_of(prepared: PreparedView) -> list[str]:
    """Sentences on a volume that has too few slices to be a whole breast."""
    view, file = prepared.view, prepared.file
    if view.modality != "DBT":
        return []
    thickness = prepared.headers[0].thickness if prepared.headers else None
    thin = describe_thin(file.geometry.stored_slices, file.slice_spacing, thickness)
    return [f"{view.laterality} {view.position}: {sentence}" for sentence in thin]


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
        kind=prepared.view.kind,
    )


def find_prior(exam: Exam, exams: Sequence[Exam]) -> tuple[Exam, str] | None:
    """The last earlier exam of the same patient, and how much earlier it was; not two exams of one day."""
    if exam.patient is None or exam.date is None:
        return None
    days = {
        (exam.date - other.date).days: other
        for other in exams
        if other.patient == exam.patient and other.date is not None
    }
    nearest = min((count for count in days if count > 0), default=None)
    return None if nearest is None else (days[nearest], f"{_describe_days(nearest)} earlier")


def _describe_days(days: int) -> str:
    for unit, length, least in (("years", 365.25, 730), ("months", 30.44, 60)):
        if days >= least:
            return f"{days / length:.0f} {unit}"
    return "1 day" if days == 1 else f"{days} days"


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
        for n, finding in ((n, view.findings[n]) for n in choose_distinct(view.findings))
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
