"""The folder that results go to: whether this run may use it, what is finished in it, and how results get there."""

from collections.abc import Sequence
from pathlib import Path

from mm3d.output.record import RECORD, read_record
from mm3d.output.result import Method
from mm3d.output.writers import FILES
from mm3d.predict.find import Exam
from mm3d.shared.errors import InputError
from mm3d.shared.folders import check_settings


def open_folder(output: Path, exams: Sequence[Exam], method: Method) -> bool:
    """Refuse a folder with results of other settings or of another exam. Returns whether it is of a single exam."""
    record = read_record(output)
    if record is None or "failure" in record:  # of an exam that left no results
        return len(exams) == 1
    if "exam" in record and (len(exams) > 1 or record["exam"] != exams[0].code):
        raise InputError(f"{output} holds the results of another exam; give another folder with -o.")
    check_settings(output, record.get("method"), method.settings())
    return "exam" in record


def is_finished(folder: Path, exam: Exam) -> bool:
    """Whether all results of an exam are there and of these files. With a problem they are not finished."""
    record = read_record(folder)
    if record is None or exam.problems or record.get("problems"):
        return False
    same = record.get("exam") == exam.code and record.get("files", {}).get("stamp") == exam.stamp
    return same and all((folder / name).is_file() for name in FILES)


def clear_results(folder: Path) -> None:
    """Remove an exam's results, and nothing else."""
    for name in (RECORD, *FILES):  # the record first: without it, nothing counts as finished
        (folder / name).unlink(missing_ok=True)


def place_results(partial: Path, folder: Path) -> None:
    """Move complete results to their place. A new folder appears as a whole; in an old one, the record comes last."""
    if not folder.exists():
        partial.rename(folder)
        return
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (partial / name).replace(folder / name)
