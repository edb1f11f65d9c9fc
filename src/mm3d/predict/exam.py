"""One exam from its DICOM files to its results.

predictions.json, predictions.csv    what was found
report.html                          to look at
sr/measurements.dcm, sr/cad.dcm      for the archive
run.json                             what made them, how long it took, what went wrong; written last
"""

import json
import platform
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mm3d import __version__
from mm3d.data.batches import PreparedBreast
from mm3d.data.dicom.header import read_dataset
from mm3d.data.inputs import Histogram, InputName
from mm3d.data.prepare.prepared import read_breasts, write_cohort
from mm3d.data.prepare.run import prepare
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.data.records import Cohort
from mm3d.model.config import EngineName
from mm3d.model.detector import Detector
from mm3d.output.predictions import BreastPrediction, Predictions, write_dbtex, write_json
from mm3d.output.report.page import write_report
from mm3d.output.sr import Algorithm, write_cad_report, write_measurement_report
from mm3d.predict.archive import Exam, Unreadable, hide
from mm3d.predict.detect import PredictSettings, predict_breast
from mm3d.predict.operating_point import OperatingPoint
from mm3d.predict.results import Found, reported_exam, shown_exam
from mm3d.shared.config import to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

VERSION = 1  # of run.json
RECORD = "run.json"
WORK = "work"  # prepared views and copies of slices, while an exam is being made
IDENTIFIERS = ("PatientName", "PatientID", "StudyDate", "StudyInstanceUID")
PACKAGES = ("torch", "numpy", "pydicom", "highdicom")  # and the engine, where it is another than torch


@dataclass(frozen=True)
class Method:
    """How all exams of a run are read and predicted."""

    model: Detector
    engine: EngineName  # what runs it
    weights: str  # their name
    weights_hash: str  # SHA-256 of the file
    intended_use: str
    input: InputName
    histogram: Histogram | None
    prepare: PrepareSettings
    predict: PredictSettings
    point: OperatingPoint
    identifiers: bool  # names and numbers of patients may be in the results
    jobs: int

    def told(self) -> dict[str, Any]:
        """What run.json says of it; results in one folder have the same."""
        return {
            "mm3d": __version__,
            "weights": {"name": self.weights, "sha256": self.weights_hash, "intended_use": self.intended_use},
            "input": self.input,
            "engine": self.engine,
            "prepare": to_dict(self.prepare),
            "predict": to_dict(self.predict),
            "operating_point": to_dict(self.point),
            "identifiers": self.identifiers,
        }


def predict_exam(exam: Exam, method: Method, folder: Path, started: float) -> Found:
    """Make all results of an exam in a new folder. `started`: seconds that the run took before its first exam."""
    times = {"start": started}
    clock = _Clock(times)
    breasts, copies, failures = _read(exam, method, folder / WORK)
    clock.lap("read")
    predicted = [
        predict_breast(method.model, breast, method.input, method.histogram, method.predict) for breast in breasts
    ]
    clock.lap("model")
    algorithm = Algorithm(__version__, method.weights, method.intended_use)
    found = Found(breasts, predicted, method.point.threshold, algorithm, (*exam.problems, *failures))
    told = _identifiers(exam) if method.identifiers else {}
    write_predictions(_with_identifiers(predicted, told), method, folder)
    title = " · ".join(filter(None, (told.get(name, "") for name in IDENTIFIERS[:3]))) or exam.code
    write_report(shown_exam(found, copies, title, exam.notes), folder / "report.html")
    reported = reported_exam(found, datetime.now())
    write_measurement_report(reported, folder / "sr" / "measurements.dcm")
    write_cad_report(reported, folder / "sr" / "cad.dcm")
    shutil.rmtree(folder / WORK)
    clock.lap("outputs")
    _write_record(exam, method, found, times, folder)
    return found


def write_predictions(breasts: Sequence[BreastPrediction], method: Method, folder: Path) -> None:
    """Our JSON and DBTex's CSV."""
    about = {
        "name": "mm3d",
        "version": __version__,
        "weights": method.weights,
        "input": method.input,
        "use": method.intended_use,
    }
    predictions = Predictions(tuple(breasts), about)
    write_json(predictions, folder / "predictions.json")
    write_dbtex(predictions, folder / "predictions.csv")


def _read(exam: Exam, method: Method, work: Path) -> tuple[list[PreparedBreast], dict[str, Path], list[Unreadable]]:
    """Prepared breasts, the files of their views' slices as they are shown, and what could not be read."""
    if not exam.breasts:
        other = "other " if exam.problems else ""
        raise InputError(" ".join((f"it has no {other}CC or MLO view to look at; export it again.", *exam.notes)))
    cohort = Cohort(exam.code, exam.breasts)
    shown = work / "shown"
    shown.mkdir(parents=True)
    keys, failures = prepare(cohort, work, method.prepare, method.jobs, lambda: None, shown)
    views = {view.name: view for view in cohort.views()}
    problems = []
    for failure in failures:
        view = views[failure.subject]
        reason = f"{view.name.removeprefix(exam.code).strip()}: {failure.reason}"
        reason = hide(reason, exam.files, method.identifiers)
        problems.append(Unreadable(reason, view.laterality, view.position, view.files))
    if not keys:
        raise InputError(" ".join(problem.reason for problem in problems))
    write_cohort(work, cohort, keys, [])
    breasts = [PreparedBreast(breast, tuple(views)) for breast, views in read_breasts(work)]
    return breasts, {name: shown / f"{key}.npy" for name, key in keys.items()}, problems


def _identifiers(exam: Exam) -> dict[str, str]:
    dataset = read_dataset(exam.files[0], IDENTIFIERS)
    return {name: str(dataset.get(name, "")) for name in IDENTIFIERS}


def _with_identifiers(breasts: Sequence[BreastPrediction], told: dict[str, str]) -> list[BreastPrediction]:
    """Predictions under the patient's and the study's own numbers, where they are known."""
    return [
        replace(
            breast,
            patient=told.get("PatientID", "") or breast.patient,
            exam=told.get("StudyInstanceUID", "") or breast.exam,
        )
        for breast in breasts
    ]


def write_failure(exam: Exam, method: Method, reason: str, folder: Path) -> None:
    """The record of an exam that has no other results."""
    record = {
        "version": VERSION,
        "exam": exam.code,
        "method": method.told(),
        "failure": reason,
        "notes": list(exam.notes),
        "others": exam.others,
    }
    _write(record, folder)


def _write_record(exam: Exam, method: Method, found: Found, times: dict[str, float], folder: Path) -> None:
    record = {
        "version": VERSION,
        "exam": exam.code,
        "method": method.told(),
        "files": {"count": len(exam.files), "stamp": exam.stamp},
        "made": datetime.now().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in (*PACKAGES, method.engine)},
        "device": str(method.model.proposal_boxes.device),
        "views": [
            {
                "view": said.view,
                "modality": said.modality,
                "slices": view.file.geometry.stored_slices,
                "score": said.score,
                "findings": len(said.findings),
                "marked": sum(finding.score >= found.threshold for finding in said.findings),
            }
            for view, said in found.views()
        ],
        "breasts": dict(found.breast_scores),
        "score": found.score,
        "marked": len(found.marked()),
        "seconds": {name: round(seconds, 3) for name, seconds in times.items()},
        "notes": list(exam.notes),
        "problems": [problem.reason for problem in found.problems],
        "others": exam.others,
    }
    _write(record, folder)


def _write(record: dict[str, Any], folder: Path) -> None:
    with replacing(folder / RECORD) as partial:
        partial.write_text(json.dumps(record, indent=1), encoding="utf-8")


class _Clock:
    """Seconds since the last lap, by name."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times, self.last = times, time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.times[name], self.last = now - self.last, now
