"""The result of one exam. Everything that mm3d writes about an exam is written from it: `writers.py` has the list."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm3d import __version__
from mm3d.data.dicom.header import Header
from mm3d.data.records import ImageKind, Laterality, Modality, Position
from mm3d.output.predictions import BreastPrediction, Finding, Predictions, ViewPrediction
from mm3d.shared.config import to_dict
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class OperatingPoint:
    """The score from which on findings are marked.

    Parameters
    ----------
    threshold : findings that score at least this are marked.
    source : where the threshold comes from, for people.
    chosen_on : the kind of images that it was chosen on; None: unknown, or not chosen on images.
    breast : the score of breasts from which they are suspicious; None: no such point was chosen.
    """

    threshold: float
    source: str = "given by the caller"
    chosen_on: Modality | None = None
    breast: float | None = None

    def remark(self, modalities: set[Modality]) -> str | None:
        """A sentence if some images are of a kind that the threshold was not chosen on."""
        if self.chosen_on is None or modalities <= {self.chosen_on}:
            return None
        judged, chosen = ("Mammograms", "volumes") if self.chosen_on == "DBT" else ("Volumes", "mammograms")
        return f"{judged} are judged by an operating point that was chosen on {chosen}; --threshold sets another."


@dataclass(frozen=True)
class Calibration:
    """How the score of a breast becomes the probability that it has cancer: logistic(slope * logit(score) + intercept).

    Parameters
    ----------
    slope, intercept : of the logistic function. The slope is above 0, so that the order of breasts stays.
    source : the breasts that it was measured on, for people.
    """

    slope: float
    intercept: float
    source: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.intercept) and 0 < self.slope < math.inf):
            raise InputError(f"The calibration {self.slope}, {self.intercept} is not finite with a slope above 0.")

    def percent(self, score: float) -> float:
        """The calibrated probability, in percent."""
        score = min(max(score, 1e-6), 1 - 1e-6)
        logit = self.slope * math.log(score / (1 - score)) + self.intercept
        return 100 / (1 + math.exp(-min(max(logit, -500.0), 500.0)))


@dataclass(frozen=True)
class Method:
    """What made a result: the weights and every setting.

    Parameters
    ----------
    weights : the name of the weights.
    intended_use : what these weights may be used for, in one sentence.
    operating_point : which findings are marked.
    weights_hash : SHA-256 of the weights file.
    input, engine, precision, device : what the model is given of each view, what runs its backbone, what it computes
        in, and where it runs.
    prepare, predict : the settings of the preparation and of the detection.
    identifiers : whether names and numbers of patients may be in the results.
    calibration : what the weights say of probabilities; None: nothing.
    """

    weights: str
    intended_use: str
    operating_point: OperatingPoint
    weights_hash: str = ""
    input: str = "volume"
    engine: str = "torch"
    precision: str = "float32"
    device: str = "cpu"
    prepare: Mapping[str, Any] = field(default_factory=dict)
    predict: Mapping[str, Any] = field(default_factory=dict)
    identifiers: bool = False
    version: str = __version__
    calibration: Calibration | None = None

    def settings(self) -> dict[str, Any]:
        """What run.json says about the method. All results in one folder have the same."""
        return {
            "mm3d": self.version,
            "weights": {"name": self.weights, "sha256": self.weights_hash, "intended_use": self.intended_use},
            "input": self.input,
            "engine": self.engine,
            "precision": self.precision,
            "prepare": dict(self.prepare),
            "predict": dict(self.predict),
            "operating_point": to_dict(self.operating_point),
            "identifiers": self.identifiers,
            "calibration": None if self.calibration is None else to_dict(self.calibration),
        }

    def predictions(self, breasts: tuple[BreastPrediction, ...]) -> Predictions:
        """Breasts as a file of predictions holds them, with what made them."""
        model = {"name": "mm3d", "version": self.version, "weights": self.weights}
        return Predictions(breasts, model | {"input": self.input, "use": self.intended_use})


@dataclass(frozen=True)
class ReadProblem:
    """A view or a file of the exam that could not be read, and so was not looked at."""

    reason: str  # a sentence
    laterality: Laterality | None = None  # None, as the position: unknown
    position: Position | None = None
    files: tuple[Path, ...] = ()

    @property
    def view(self) -> str:
        return f"{self.laterality} {self.position}" if self.laterality and self.position else "an unknown view"


@dataclass(frozen=True)
class PriorExam:
    """An earlier exam of the same patient, which the report shows beside the exam.

    Parameters
    ----------
    report : its own report page.
    when : how long before, such as "14 months earlier"; dates may be private.
    score : of the exam.
    """

    report: Path
    when: str
    score: float


@dataclass(frozen=True, kw_only=True)
class ViewResult(ViewPrediction):
    """The findings of one view, with its image.

    Parameters
    ----------
    frames : (S, H, W) uint8, the stored slices as a viewer shows them, after `turned`; S is 1 in a mammogram.
    headers : of its DICOM file, or of its files in the order of the slices; structured reports need them.
    turned : mm3d turned the image by 180 degrees; boxes are in the turned image.
    pixel_spacing, slice_spacing : in mm; None: unknown.
    kind : what the image is; None: not known beyond the modality.
    """

    frames: NDArray[np.uint8] = field(repr=False, compare=False)
    headers: tuple[Header, ...] = field(default=(), repr=False)
    turned: bool = False
    pixel_spacing: float | None = None
    slice_spacing: float | None = None
    kind: ImageKind | None = None

    @property
    def name(self) -> str:
        return f"{self.view.upper()} {self.modality}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frames.ndim != 3 or self.frames.dtype != np.uint8 or 0 in self.frames.shape:
            raise InputError(
                f"{self.name}: frames must be uint8 (slices, height, width), not {self.frames.dtype} of "
                f"{self.frames.shape}."
            )
        _check_score(self.name, self.score)
        for finding in self.findings:
            _check_score(f"a finding of {self.name}", finding.score)
            if finding.slice is not None and not 0 <= round(finding.slice) < len(self.frames):
                raise InputError(f"{self.name}: a finding is on slice {finding.slice} of 0 to {len(self.frames) - 1}.")
            weights = finding.slice_weights or ()
            if len(weights) > len(self.frames) or not all(math.isfinite(w) and w >= 0 for w in weights):
                raise InputError(
                    f"{self.name}: slice weights must be finite numbers from 0 on, at most {len(self.frames)}."
                )


@dataclass(frozen=True)
class ExamResult:
    """All that mm3d says about one exam.

    Parameters
    ----------
    exam, patient : their names in the predictions; codes, unless identifiers are wanted.
    views : all views that were looked at, with or without findings, breast by breast.
    breast_scores : from 0 to 1, for every breast that has a view.
    method : what made the result.
    predicted_at : when it was made.
    code : a code for the exam (default: `exam`).
    title : what the report page is called (default: the code).
    problems : views and files that could not be read.
    warnings : why the exam may be incomplete although everything in it was looked at, in sentences.
    notes : what else a reader must know, in sentences, such as which images were left out.
    prior : an earlier exam of the patient; None: none was given.
    files : how many files the exam has, and a stamp that changes with them.
    other_files : how many files beside it are no mammography.
    replaces : structured reports of an earlier prediction of the exam that those of this one replace.
    seconds : how long each part took.
    """

    exam: str
    patient: str
    views: tuple[ViewResult, ...]
    breast_scores: Mapping[Laterality, float]
    method: Method
    predicted_at: datetime
    code: str = ""
    title: str = ""
    problems: tuple[ReadProblem, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    prior: PriorExam | None = None
    files: Mapping[str, Any] = field(default_factory=dict)
    other_files: int = 0
    replaces: tuple[Path, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.views:
            raise InputError(f"The exam {self.exam} has no view; give at least one.")
        sides = {view.laterality for view in self.views} ^ set(self.breast_scores)
        if sides:
            raise InputError(f"Breasts with views and breasts with scores differ in {', '.join(sorted(sides))}.")
        _check_score("the operating point", self.threshold)
        for side, score in self.breast_scores.items():
            _check_score(f"breast {side}", score)

    @property
    def threshold(self) -> float:
        return self.method.operating_point.threshold

    @property
    def score(self) -> float:
        """The highest score of its breasts, as in the evaluation."""
        return max(self.breast_scores.values())

    def marked(self) -> list[tuple[ViewResult, Finding]]:
        """The findings that reach the operating point, the highest score first."""
        findings = [(view, finding) for view in self.views for finding in view.marked(self.threshold)]
        return sorted(findings, key=lambda item: -item[1].score)

    def lesions(self) -> list[list[tuple[ViewResult, Finding]]]:
        """The marked findings with those of CC and MLO that are one lesion together, the highest score first."""
        lesions: dict[tuple[object, ...], list[tuple[ViewResult, Finding]]] = {}
        for number, (view, finding) in enumerate(self.marked()):
            key = (number,) if finding.lesion is None else (view.laterality, finding.lesion)
            lesions.setdefault(key, []).append((view, finding))
        return list(lesions.values())

    def describe(self) -> str:
        """The score, and what is marked, in a few words."""
        marked, lesions = self.marked(), len(self.lesions())
        best = ""
        if marked:
            view, finding = marked[0]
            where = "" if finding.slice is None else f", slice {round(finding.slice) + 1}"
            best = f", the highest {finding.score:.2f} in {view.view.upper()}{where}"
        counted = f"{lesions} finding{'s' * (lesions != 1)} marked"
        counted += f" in {len(marked)} places" * (len(marked) > lesions)
        return f"score {self.score:.2f}, {counted}{best}"

    @property
    def suspicious(self) -> frozenset[Laterality]:
        """The breasts that reach the operating point of breasts; if there is none, those with a marked finding."""
        point = self.method.operating_point.breast
        if point is not None:
            return frozenset(side for side, score in self.breast_scores.items() if score >= point)
        return frozenset(view.laterality for view, _ in self.marked())

    def predictions(self) -> Predictions:
        """The findings without images, as files of predictions hold them."""
        breasts = []
        for side, score in self.breast_scores.items():
            views = tuple(
                ViewPrediction(view.view, view.findings, view.modality, view.score)
                for view in self.views
                if view.laterality == side
            )
            breasts.append(BreastPrediction(self.patient, self.exam, side, views, score))
        return self.method.predictions(tuple(breasts))


def _check_score(owner: str, score: float | None) -> None:
    if score is not None and not 0 <= score <= 1:  # NaN is not between them either
        raise InputError(f"The score {score} of {owner} is not between 0 and 1.")
