"""The folder OUT of `mm3d predict`: what may be written into it, which exams are finished, how results get there.

A file is replaced only if the run.json beside it says that mm3d made it, from the same exam and by the same method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm3d.output.predictions import BreastPrediction, read_json
from mm3d.output.record import RECORD, read_record, write_record
from mm3d.output.result import ExamResult, Method
from mm3d.output.writers import FILES, REPORTS_ON_FILES, write_results
from mm3d.predict.exam import Exam
from mm3d.shared.errors import InputError
from mm3d.shared.files import REMEDY, check_settings, difference, lock_folder, refuse_files

LISTS = ("predictions.json", "predictions.csv", RECORD)  # of all exams in a folder
LISTED = ("exam", "score", "marked", "seconds", "problems")  # what the record of all exams says of each
OWNER = "'mm3d predict'"


def open_folder(output: Path, exams: Sequence[Exam], method: Method) -> bool:
    """Refuse a folder with files that mm3d did not make, or made of another exam or with other settings. Returns
    whether it is of a single exam."""
    record = _read_method_record(output)
    of_several = record is not None and "exams" in record
    if len(exams) == 1 and not of_several:
        check_exam_folder(output, exams[0], method)
        return True
    if record is not None and _has_files(record) and not of_several:
        raise InputError(f"{output} holds the results of another exam; {REMEDY}.")
    check_lists(output, method)
    for exam in exams:
        check_exam_folder(output / exam.code, exam, method)
    return False


def check_lists(output: Path, method: Method) -> None:
    """Refuse a folder whose lists of exams are not of this method."""
    record = _read_method_record(output)
    if record is not None and "exams" in record:
        check_settings(output, record["method"], method.settings())
    else:
        refuse_files(output, LISTS if record is None else LISTS[:-1], OWNER)


def check_exam_folder(folder: Path, exam: Exam, method: Method) -> None:
    """Refuse a folder where files would be replaced that are not of this exam and this method."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; {REMEDY}.")
    record = _read_method_record(folder)
    if record is None or not _has_files(record):
        refuse_files(folder, (name for name in FILES if name != RECORD or record is None), OWNER)
        return
    if record.get("exam") != exam.code:
        raise InputError(f"{folder} holds the results of another exam; {REMEDY}.")
    check_settings(folder, record["method"], method.settings())


def check_prediction_files(output: Path) -> None:
    """Refuse a folder whose predictions are not those of a prepared folder, which have no record."""
    if _read_method_record(output) is not None:
        raise InputError(f"{output} holds the results of DICOM exams; {REMEDY}.")
    try:
        ours = read_json(output / LISTS[0]).model.get("name") == "mm3d"
    except (OSError, InputError):
        ours = False
    if not ours:
        refuse_files(output, LISTS, OWNER)


def _read_method_record(folder: Path) -> dict[str, Any] | None:
    """A folder's run.json; None if there is none that says by which method mm3d made the results."""
    record = read_record(folder)
    return record if record is not None and isinstance(record.get("method"), dict) else None


def has_results(folder: Path) -> bool:
    """Whether a folder has results of an exam."""
    return "score" in (_read_method_record(folder) or {})


def _has_files(record: dict[str, Any]) -> bool:
    """Whether there are files beside a record: of an exam, of several exams, or some of those that were replaced when
    the run ended."""
    return not {"score", "exams", "replacing"}.isdisjoint(record)


def is_finished(folder: Path, exam: Exam) -> bool:
    """Whether all results of an exam are there and of these files. With a problem they are not finished."""
    record = _read_method_record(folder)
    if record is None or exam.problems or record.get("problems") or "failure" in record:
        return False
    same = record.get("exam") == exam.code and record.get("files", {}).get("stamp") == exam.stamp
    own = [name for name in FILES if exam.headers or name not in REPORTS_ON_FILES]
    return same and all((folder / name).is_file() for name in own)


def keep_results(result: ExamResult, exam: Exam, work: Path, folder: Path, method: Method) -> bool:
    """Write the files of an exam into the working folder `work`, then move them to their `folder`, which is beside it
    or above it. Returns False, and moves nothing, if another run has finished the exam meanwhile."""
    write_results(result, work / "results")
    with lock_folder(work.parent, wait=True):
        check_exam_folder(folder, exam, method)
        if is_finished(folder, exam):
            return False
        place_results(work / "results", folder, exam, method)
    return True


def place_results(complete: Path, folder: Path, exam: Exam, method: Method) -> None:
    """Move complete results to their place. A new folder appears as a whole. In one that is there, the record says
    that files are being replaced, until it is replaced itself at the end."""
    if not folder.exists():
        complete.rename(folder)
        return
    reason = "The run ended while the files were being replaced; predict the exam again."
    write_record(folder, **(_read_own_record(folder, exam, method) | {"failure": reason, "replacing": True}))
    for name in FILES:
        if name not in REPORTS_ON_FILES or (complete / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            (complete / name).replace(folder / name)
        else:  # a structured report, and the images are no DICOM
            (folder / name).unlink(missing_ok=True)


def write_failure(folder: Path, exam: Exam, method: Method, reason: str) -> None:
    """Write into the record of an exam why it could not be predicted. Results of an earlier prediction stay."""
    check_exam_folder(folder, exam, method)
    record = _read_own_record(folder, exam, method)
    if not _has_files(record):
        record |= {"notes": list(exam.notes), "others": exam.other_files}
    write_record(folder, **(record | {"failure": reason}))


def _read_own_record(folder: Path, exam: Exam, method: Method) -> dict[str, Any]:
    """The record of an earlier prediction of the exam by this method, or a new one."""
    own = {"exam": exam.code, "method": method.settings()}
    record = _read_method_record(folder)
    return record if record and not difference({name: record.get(name) for name in own}, own) else own


@dataclass(frozen=True)
class FolderResults:
    """What the exam folders in OUT hold."""

    records: tuple[dict[str, Any], ...]  # LISTED, of each exam that this method predicted
    breasts: tuple[BreastPrediction, ...]
    problems: tuple[str, ...]  # sentences on exams whose predictions are damaged
    notes: tuple[str, ...]  # a sentence on folders that are not of this method


def read_results(output: Path, method: Method) -> FolderResults:
    """Read the results of the exams in a folder that this method predicted."""
    records: list[dict[str, Any]] = []
    breasts: list[BreastPrediction] = []
    problems, others = [], 0
    for path in sorted(output.glob(f"[!.]*/{RECORD}")):
        record, code = _read_method_record(path.parent) or {}, path.parent.name
        if record.get("exam") != code or difference(record["method"], method.settings()):
            others += 1
        elif set(LISTED) <= set(record) and "replacing" not in record:
            try:
                breasts += read_json(path.with_name(LISTS[0])).breasts
            except (OSError, InputError):
                problems.append(f"The predictions of exam {code} are damaged; remove its folder and predict it again.")
            else:
                records.append({name: record[name] for name in LISTED})
    count = "1 folder" if others == 1 else f"{others} folders"
    note = f"{count} in {output} with a {RECORD} are not in its lists: not results of these weights and settings."
    return FolderResults(tuple(records), tuple(breasts), tuple(problems), (note,) if others else ())
