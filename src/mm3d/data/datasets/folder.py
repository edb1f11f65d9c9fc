"""A plain folder of DICOM exams, as a hospital exports them: there are no labels, only headers.

Views are grouped to breasts by study and side. Patients and exams get codes; all exams of a patient have one patient
code. No name or number of a patient leaves the DICOM headers.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydicom.dataset import Dataset

from mm3d.data.datasets.assemble import CohortBuilder, Entry
from mm3d.data.dicom.header import Header, OtherKindError, UnusableFileError, read_header, which_view
from mm3d.data.records import Cohort, Laterality, Modality, Position, Problem, View
from mm3d.shared.errors import InputError

NO_VIEW = "its header does not say which side or view (CC, MLO) it is; export it with them."
NO_READING = "it is a stereotactic image or a specimen, which no detector was made for; leave it out."


@dataclass(frozen=True)
class UnusedFile:
    """A file that is not used."""

    path: Path
    reason: str  # one sentence
    # broken: it cannot be read; other: it is not mammography; copy: another file is the same image;
    # no view: it can be read, and is none of the views that are used (its reason is NO_VIEW or NO_READING)
    kind: Literal["broken", "other", "copy", "no view"]
    exam: str = ""  # the code of its exam; empty if the file does not say
    laterality: Laterality | None = None
    position: Position | None = None


def read(folder: Path) -> Cohort:
    headers, unused = read_headers(list_files(folder))
    if not headers:
        reason = f" ({unused[0].reason})" if unused else ""
        raise InputError(f"{folder} has no mammography that can be read{reason}; give a folder of DICOM exams.")
    entries, no_views = make_entries(headers)
    problems = [Problem(str(file.path.relative_to(folder)), file.reason) for file in (*unused, *no_views)]
    return CohortBuilder(folder.name, entries=entries, problems=problems).assemble()


def list_files(folder: Path) -> list[Path]:
    """All files below a folder that may be images."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return [path for path in files if path.name.upper() != "DICOMDIR"]


def read_headers(paths: Iterable[Path]) -> tuple[list[Header], list[UnusedFile]]:
    """Read the header of each file, once. Returns those that can be used, and the other files with the reasons."""
    unused: list[UnusedFile] = []
    images: dict[tuple[object, ...], list[Header]] = {}
    for path in paths:
        try:
            header = read_header(path)
            images.setdefault(_identity(header), []).append(header)
        except OtherKindError as error:
            unused.append(UnusedFile(path, str(error), "other"))
        except UnusableFileError as error:
            unused.append(_describe_broken(path, str(error), error.dataset))
        except InputError as error:
            unused.append(UnusedFile(path, str(error), "broken"))
    headers = []
    for copies in images.values():
        largest = max(copies, key=lambda header: header.path.stat().st_size)  # a copy that was cut off is smaller
        headers.append(largest)
        for header in copies:
            if header is not largest:
                reason = f"{header.path} is a copy of {largest.path}; remove one of them."
                unused.append(UnusedFile(header.path, reason, "copy", exam_code(header.study)))
    return headers, unused


def _identity(header: Header) -> tuple[object, ...]:
    """What only copies share. The instance's UID is not enough: careless anonymisers give one UID to all files."""
    if not header.instance:
        return (header.path,)
    size = (header.frames, header.rows, header.columns, header.slice_position)
    view = (header.laterality, header.position, header.kind, header.for_processing)
    return (header.instance, header.study, header.series, *view, *size)


def _describe_broken(path: Path, reason: str, dataset: Dataset) -> UnusedFile:
    """A file that cannot be used, with its exam and view if its header still says them."""
    try:
        laterality, position = which_view(dataset)
        study = str(dataset.get("StudyInstanceUID", ""))
    except Exception:  # any exception means a damaged header
        return UnusedFile(path, reason, "broken")
    return UnusedFile(path, reason, "broken", exam_code(study) if study else "", laterality, position)


def make_entries(headers: Iterable[Header]) -> tuple[list[Entry], list[UnusedFile]]:
    """Views with their patients and exams, and the images that are none of the views that are used."""
    entries: list[Entry] = []
    unused: list[UnusedFile] = []
    repeats = Counter[str]()
    for group in _group_slices(headers):
        first, exam = group[0], exam_code(group[0].study)
        if first.intervention or first.laterality is None or first.position is None:
            reason = NO_READING if first.intervention else NO_VIEW
            unused.append(UnusedFile(first.path, reason, "no view", exam))
            continue
        modality: Modality = "FFDM" if first.kind == "mammogram" else "DBT"
        name = f"{exam} {first.laterality}{first.position} {modality}"
        repeats[name] += 1
        view = View(
            name=name if repeats[name] == 1 else f"{name} {repeats[name]}",  # a repeated exposure
            laterality=first.laterality,
            position=first.position,
            modality=modality,
            files=tuple(header.path for header in group),
            annotations=None,
            upright=modality == "DBT",
        )
        entries.append(Entry(f"patient-{first.patient}", exam, view, None, attributes={"vendor": first.vendor}))
    return entries, unused


def _group_slices(headers: Iterable[Header]) -> list[list[Header]]:
    """Files that belong together: the single slices of a series are one volume, every other file is its own."""
    groups: dict[str, list[Header]] = {}
    for header in headers:
        groups.setdefault(header.series if header.kind == "slice" else str(header.path), []).append(header)
    return list(groups.values())


def exam_code(study: str) -> str:
    """A code for a StudyInstanceUID, because some archives write patients' numbers into theirs."""
    return hashlib.sha256(study.encode()).hexdigest()[:10]
