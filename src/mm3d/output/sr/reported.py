"""What is to be reported of an exam, and where in its files each mark belongs.

Two frames: boxes and slices come in mm3d's (*stored*, see `records`) and leave in the file's own: not turned, frames
counted from 1 as they lie in the file. Both have 0, 0 at the corner of the first pixel, as DICOM's SCOORD has.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mm3d.data.dicom.header import Header, slices_of
from mm3d.data.records import Laterality, Position
from mm3d.shared.errors import InputError

SIDES = {"L": "left", "R": "right"}
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Algorithm:
    """What made the findings."""

    version: str
    weights: str  # their name
    intended_use: str  # one sentence, as in the weights file
    name: str = "mm3d"


@dataclass(frozen=True)
class ReportedFinding:
    """Something the detector found."""

    box: Box  # x1, y1, x2, y2 in stored pixels
    score: float  # from 0 to 1
    slice: int | None = None  # 0-based, in the order of the positions; None in mammograms

    def __post_init__(self) -> None:
        x1, y1, x2, y2 = self.box
        if not (x1 < x2 and y1 < y2):
            raise InputError(f"the box {self.box} of a finding has no area")
        _check_score("of a finding", self.score)


@dataclass(frozen=True)
class ReportedView:
    """One image or volume and what was found in it."""

    headers: tuple[Header, ...]  # of its file, or of its files in the order of their slices (`prepare.source.files_of`)
    laterality: Laterality
    position: Position
    findings: tuple[ReportedFinding, ...]
    turned: bool = False  # mm3d turned it by 180 degrees (`View.upright`), so boxes are to be turned back

    def __post_init__(self) -> None:
        if not self.headers:
            raise InputError(f"the view {self.name} has no files; a report needs them")

    @property
    def name(self) -> str:
        return self.numbered(0)

    def numbered(self, repeat: int) -> str:
        """Its name where it is there again, as in our predictions: LCC DBT, LCC1 DBT, LCC2 DBT."""
        modality = "FFDM" if self.headers and self.headers[0].kind == "mammogram" else "DBT"
        return f"{self.laterality}{self.position}{repeat or ''} {modality}"


@dataclass(frozen=True)
class UnreadView:
    """What belongs to the exam, could not be read, and so was not looked at."""

    laterality: Laterality | None = None  # None, as the position: the file does not even say that
    position: Position | None = None
    files: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        if self.laterality is None or self.position is None:
            return "an unknown view"
        return f"{self.laterality} {self.position}"


@dataclass(frozen=True)
class ReportedExam:
    """All that one report says. There is no clock inside: same exam, same bytes."""

    views: tuple[ReportedView, ...]  # all that were looked at, with or without findings; of one study
    breast_scores: Mapping[Laterality, float]  # from 0 to 1, of every breast that has a view
    score: float  # of the exam
    operating_point: float  # findings below it are not marked
    algorithm: Algorithm
    observed: datetime  # when the prediction was made
    unread: tuple[UnreadView, ...] = ()

    def __post_init__(self) -> None:
        if not self.views:
            raise InputError("an exam without views cannot be reported; give at least one view")
        missing = {view.laterality for view in self.views} ^ set(self.breast_scores)
        if missing:
            raise InputError(f"breasts with views and breasts with scores differ in {', '.join(sorted(missing))}")
        for whose, score in (("of the exam", self.score), *self.breast_scores.items()):
            _check_score(whose, score)


@dataclass(frozen=True)
class Mark:
    """A finding that reaches the operating point, where the files have it."""

    name: str  # such as LCC DBT 1, of a repeated view LCC1 DBT 1; no two marks have the same
    laterality: Laterality
    view: int  # index into the exam's views
    file: int  # index into the view's headers
    frame: int | None  # from 1; None where the file holds one image
    box: Box  # x1, y1, x2, y2 in the file's own pixels
    score: float


def marks_of(exam: ReportedExam) -> list[Mark]:
    """The findings to mark, view by view, the highest score of a view first."""
    marks = []
    seen = Counter[str]()
    for index, view in enumerate(exam.views):
        name = view.numbered(seen[view.name])
        seen[view.name] += 1
        found = [finding for finding in view.findings if finding.score >= exam.operating_point]
        found.sort(key=lambda finding: -finding.score)
        for number, finding in enumerate(found, 1):
            file, frame = _place(view, finding)
            box = _file_box(view, finding.box)
            marks.append(Mark(f"{name} {number}", view.laterality, index, file, frame, box, finding.score))
    return marks


def summary(exam: ReportedExam, marks: list[Mark]) -> str:
    """The report in a sentence or two, for people who read the text of it."""
    counted = "1 finding reaches" if len(marks) == 1 else f"{len(marks)} findings reach"
    found = f"{counted} the operating point of {exam.operating_point:g}."
    if not marks:
        found = f"No finding reaches the operating point of {exam.operating_point:g}; nothing is marked."
    scores = [f"exam {exam.score:.3f}"]
    scores += [f"{SIDES[side]} breast {score:.3f}" for side, score in sorted(exam.breast_scores.items())]
    return f"{found}{_unread(exam)} Scores from 0 to 1: {', '.join(scores)}."


def _unread(exam: ReportedExam) -> str:
    files = Counter[str]()
    for view in exam.unread:
        files[view.name] += max(1, len(view.files))
    counted = [f"{count} file{'s' if count > 1 else ''} of {name}" for name, count in files.items()]
    return f" Not looked at, because it could not be read: {', '.join(counted)}." if counted else ""


def parameters(exam: ReportedExam) -> list[str]:
    """What there is to know of the algorithm besides its name and version."""
    return [
        f"weights: {exam.algorithm.weights}",
        f"intended use: {exam.algorithm.intended_use}",
        f"operating point: {exam.operating_point:g}",
    ]


def _place(view: ReportedView, finding: ReportedFinding) -> tuple[int, int | None]:
    """File and frame (from 1, None where the file holds one image) of a finding."""
    slices = slices_of(view.headers)
    z = finding.slice
    if z is None and len(slices) == 1:
        z = 0
    if z is None or not 0 <= z < len(slices):
        raise InputError(
            f"{view.headers[0].path} has {len(slices)} slices, and a finding is on slice {z}; predict the exam again."
        )
    file, number = slices[z]
    header = view.headers[file]
    return file, number + 1 if header.kind == "volume" or header.frames > 1 else None


def _file_box(view: ReportedView, box: Box) -> Box:
    """The part of a box that is inside the image, turned back if mm3d turned the view."""
    header = view.headers[0]
    x1, x2 = (min(max(x, 0.0), float(header.columns)) for x in (box[0], box[2]))
    y1, y2 = (min(max(y, 0.0), float(header.rows)) for y in (box[1], box[3]))
    if not (x1 < x2 and y1 < y2):
        raise InputError(f"a finding's box {box} is outside of {header.path}; predict the exam again.")
    if view.turned:
        x1, y1, x2, y2 = header.columns - x2, header.rows - y2, header.columns - x1, header.rows - y1
    return x1, y1, x2, y2


def _check_score(whose: str, score: float) -> None:
    if not 0.0 <= score <= 1.0:
        raise InputError(f"the score {whose} is {score}; scores in reports are from 0 to 1")
