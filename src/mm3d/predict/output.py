"""The folder that results go to: what is in it already, whether that is finished, and whether this run may go on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mm3d.predict.archive import Exam
from mm3d.predict.exam import RECORD, VERSION, Method
from mm3d.shared.errors import InputError

RESULTS = ("predictions.json", "predictions.csv", "report.html", "sr/measurements.dcm", "sr/cad.dcm", RECORD)


def read_record(folder: Path) -> dict[str, Any] | None:
    """A folder's run.json; None if there is none that this mm3d can read."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("version") == VERSION else None


def open_folder(output: Path, exams: Sequence[Exam], method: Method) -> bool:
    """Whether `output` is the folder of a single exam. One that holds results of something else is refused."""
    record = read_record(output)
    if record is None or "failure" in record:  # of an exam that left no results
        return len(exams) == 1
    if "exam" in record and (len(exams) > 1 or record["exam"] != exams[0].code):
        raise InputError(f"{output} holds the results of another exam; give another folder with -o.")
    before, now = _options(record.get("method", {})), _options(method.told())
    changes = [f"{name} {before[name]}, now {value}" for name, value in now.items() if before.get(name) != value]
    if changes:
        raise InputError(
            f"{output} holds results of other settings: {'; '.join(changes)}. Give those, or another folder with -o."
        )
    return "exam" in record


def _options(told: dict[str, Any]) -> dict[str, str]:
    """A method as run.json has it, by the options that choose it."""
    weights, point = told.get("weights", {}), told.get("operating_point", {})
    options = {
        "mm3d": told.get("mm3d"),
        "--weights": f"{weights.get('name')} (SHA-256 {str(weights.get('sha256'))[:8]}…)",
        "--input": told.get("input"),
        "--engine": told.get("engine"),
        **{f"--{name}": value for name, value in (told.get("prepare", {}) | told.get("predict", {})).items()},
        "--threshold": f"{point.get('threshold')} ({point.get('source')})",
        "--with-identifiers": "yes" if told.get("identifiers") else "no",
    }
    return {name: str(value) for name, value in options.items()}


def is_finished(folder: Path, exam: Exam) -> bool:
    """Whether the results of an exam are there, whole and of these files; with a problem they are not."""
    record = read_record(folder)
    if record is None or exam.problems or record.get("problems"):
        return False
    same = record.get("exam") == exam.code and record.get("files", {}).get("stamp") == exam.stamp
    return same and all((folder / name).is_file() for name in RESULTS)


def clear_results(folder: Path) -> None:
    """Remove an exam's results, and nothing else."""
    for name in reversed(RESULTS):  # the record first: without it, nothing counts as finished
        (folder / name).unlink(missing_ok=True)


def place(partial: Path, folder: Path) -> None:
    """Give finished results their place: a folder appears as a whole, in one that is there the record comes last."""
    if not folder.exists():
        partial.rename(folder)
        return
    for name in RESULTS:
        (folder / name).parent.mkdir(exist_ok=True)
        (partial / name).replace(folder / name)
