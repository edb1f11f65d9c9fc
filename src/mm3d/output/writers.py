"""The files that are written for every exam. A new output format is a function in a new file and a line in WRITERS."""

import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from mm3d.output.predictions import write_dbtex, write_json
from mm3d.output.record import RECORD, write_record
from mm3d.output.report.page import write_report
from mm3d.output.result import ExamResult
from mm3d.output.sr.cad_report import write_cad_report
from mm3d.output.sr.measurement_report import write_measurement_report

# The name of the file in the exam's folder, and what writes it.
WRITERS: dict[str, Callable[[ExamResult, Path], None]] = {
    "predictions.json": lambda result, path: write_json(result.predictions(), path),
    "predictions.csv": lambda result, path: write_dbtex(result.predictions(), path),
    "report.html": write_report,
    "sr/measurements.dcm": write_measurement_report,
    "sr/cad.dcm": write_cad_report,
}
REPORTS_ON_FILES = ("sr/measurements.dcm", "sr/cad.dcm")  # they refer to DICOM files: of other images there are none
PACKAGES = ("torch", "numpy", "pydicom")  # and the engine, if it is not torch
FILES = (*WRITERS, RECORD)  # run.json comes last: an exam that has one is complete


def write_results(result: ExamResult, folder: Path) -> None:
    """Write all files of an exam into its folder."""
    start = time.perf_counter()
    for name, write in WRITERS.items():
        if name not in REPORTS_ON_FILES or all(view.headers for view in result.views):
            write(result, folder / name)
    _write_exam_record(result, folder, {**result.seconds, "outputs": time.perf_counter() - start})


def _write_exam_record(result: ExamResult, folder: Path, seconds: Mapping[str, float]) -> None:
    views = [
        {
            "view": view.view,
            "modality": view.modality,
            "kind": view.kind or view.modality,
            "slices": len(view.frames),
            "score": view.score,
            "findings": len(view.findings),
            "marked": len(view.marked(result.threshold)),
        }
        for view in result.views
    ]
    write_record(
        folder,
        exam=result.code or result.exam,
        method=result.method.settings(),
        files=dict(result.files),
        made=result.predicted_at.isoformat(timespec="seconds"),
        python=platform.python_version(),
        packages={name: version(name) for name in (*PACKAGES, result.method.engine)},
        device=result.method.device,
        views=views,
        breasts=dict(result.breast_scores),
        score=result.score,
        marked=len(result.marked()),
        lesions=len(result.lesions()),
        seconds={name: round(value, 3) for name, value in seconds.items()},
        warnings=list(result.warnings),
        notes=list(result.notes),
        problems=[problem.reason for problem in result.problems],
        others=result.other_files,
    )
