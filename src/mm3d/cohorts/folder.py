"""A plain folder of DICOM exams, as a hospital exports them: no labels, only what the headers say.

Views are grouped to breasts by study and side. Patients and exams get codes, the same for all exams of a patient: no
name or number of a patient leaves the DICOM headers.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mm3d.cohorts.assemble import Entry, assemble
from mm3d.dicom.header import Header, OtherKindError, read_dataset, read_header
from mm3d.errors import InputError
from mm3d.records import Cohort, Modality, Problem, View

NO_VIEW = "its header does not say which side or view (CC, MLO) it is; export it with them."


@dataclass(frozen=True)
class Unread:
    """A file that is not used."""

    path: Path
    reason: str  # one sentence that names the file
    exam: str  # its code; empty where not even that can be read
    harmless: bool  # it is no mammography, and nothing is wrong with it


@dataclass(frozen=True)
class Images:
    """What the headers of some files say."""

    headers: list[Header]
    unread: list[Unread]


def read(folder: Path) -> Cohort:
    images = read_headers(files_in(folder))
    problems = [Problem(str(unread.path.relative_to(folder)), unread.reason) for unread in images.unread]
    if not images.headers:
        reason = f" ({problems[0].reason})" if problems else ""
        raise InputError(f"{folder} has no mammography that can be read{reason}; give a folder of DICOM exams.")
    entries, unknown = entries_of(images.headers)
    problems += [Problem(str(header.path.relative_to(folder)), NO_VIEW) for header in unknown]
    return assemble(folder.name, entries, problems)


def files_in(folder: Path) -> list[Path]:
    """All files below a folder that may be images."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return [path for path in found if path.name.upper() != "DICOMDIR"]


def read_headers(paths: Iterable[Path]) -> Images:
    """Read every header; what cannot be used is kept with a sentence on why."""
    images = Images([], [])
    for path in paths:
        try:
            images.headers.append(read_header(path))
        except OtherKindError as error:
            images.unread.append(Unread(path, str(error), "", True))
        except InputError as error:
            images.unread.append(Unread(path, str(error), _exam_of(path), False))
    return images


def entries_of(headers: Iterable[Header]) -> tuple[list[Entry], list[Header]]:
    """Views with their patients and exams, and the images that do not say which view they are."""
    entries: list[Entry] = []
    unknown: list[Header] = []
    found = Counter[str]()
    for group in _volumes(headers):
        first = group[0]
        if first.laterality is None or first.position is None:
            unknown.append(first)
            continue
        exam = exam_code(first.study)
        modality: Modality = "FFDM" if first.kind == "mammogram" else "DBT"
        name = f"{exam} {first.laterality}{first.position} {modality}"
        found[name] += 1
        view = View(
            name=name if found[name] == 1 else f"{name} {found[name]}",  # a repeated exposure
            laterality=first.laterality,
            position=first.position,
            modality=modality,
            files=tuple(header.path for header in group),
            findings=None,
            upright=modality == "DBT",
        )
        entries.append(Entry(f"patient-{first.patient}", exam, view, None, attributes={"vendor": first.vendor}))
    return entries, unknown


def exam_code(study: str) -> str:
    """A code for a StudyInstanceUID; some archives have patients' numbers in theirs."""
    return hashlib.sha256(study.encode()).hexdigest()[:10]


def _exam_of(path: Path) -> str:
    try:
        study = str(read_dataset(path, ["StudyInstanceUID"]).get("StudyInstanceUID", ""))
    except InputError:
        return ""
    return exam_code(study) if study else ""


def _volumes(headers: Iterable[Header]) -> list[list[Header]]:
    """Files that belong together: the single slices of a series are one volume, every other file is its own."""
    groups: dict[str, list[Header]] = {}
    for header in headers:
        groups.setdefault(header.series if header.kind == "slice" else str(header.path), []).append(header)
    return list(groups.values())
