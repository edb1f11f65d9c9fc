"""The files that are written for every exam. A new output format is a function in a new file and a line in WRITERS."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mm3d.output.predictions import write_dbtex, write_json
from mm3d.output.record import RECORD, write_exam_record
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
FILES = (*WRITERS, RECORD)  # run.json comes last: an exam that has one is complete


def write_results(result: ExamResult, folder: Path) -> None:
    """Write all files of an exam into its folder."""
    start = time.perf_counter()
    for name, write in WRITERS.items():
        write(result, folder / name)
    seconds = {**result.seconds, "outputs": time.perf_counter() - start}
    write_exam_record(replace(result, seconds=seconds), folder)
