"""A plain folder of DICOM exams, as a hospital exports them: no labels, only what the headers say.

Views are grouped to breasts by study and side. Patients and exams get codes, the same for all exams of a patient: no
name or number of a patient leaves the DICOM headers.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydicom.dataset import Dataset

from mm3d.data.datasets.assemble import Entry, assemble
from mm3d.data.dicom.header import Header, OtherKindError, UnusableFileError, read_header, which_view
from mm3d.data.records import Cohort, Laterality, Modality, Position, Problem, View
from mm3d.shared.errors import InputError

NO_VIEW = "its header does not say which side or view (CC, MLO) it is; export it with them."
NO_READING = "it is a stereotactic image or a specimen, which no detector was made for; leave it out."


@dataclass(frozen=True)
class Unread:
    """A file that is not used."""

    path: Path
    reason: str  # one sentence that names the file
    kind: Literal["broken", "other", "copy"]  # other: it is no mammography, and nothing is wrong with it
    exam: str = ""  # its code; empty where not even that can be read
    laterality: Laterality | None = None
    position: Position | None = None


@dataclass(frozen=True)
class Images:
    """What the headers of some files say."""

    headers: list[Header]
    unread: list[Unread]


@dataclass(frozen=True)
class LeftOut:
    """An image that can be read and is none of the views we use."""

    header: Header
    reason: str  # NO_VIEW or NO_READING


def read(folder: Path) -> Cohort:
    images = read_headers(files_in(folder))
    problems = [Problem(str(unread.path.relative_to(folder)), unread.reason) for unread in images.unread]
    if not images.headers:
        reason = f" ({problems[0].reason})" if problems else ""
        raise InputError(f"{folder} has no mammography that can be read{reason}; give a folder of DICOM exams.")
    entries, left_out = entries_of(images.headers)
    problems += [Problem(str(left.header.path.relative_to(folder)), left.reason) for left in left_out]
    return assemble(folder.name, entries, problems)


def files_in(folder: Path) -> list[Path]:
    """All files below a folder that may be images."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return [path for path in found if path.name.upper() != "DICOMDIR"]


def read_headers(paths: Iterable[Path]) -> Images:
    """Read every header; what cannot be used is kept with a sentence on why. Of copies of a file one is used."""
    images = Images([], [])
    copies: dict[tuple[object, ...], list[Header]] = {}
    for path in paths:
        try:
            header = read_header(path)
            copies.setdefault(_identity(header), []).append(header)
        except OtherKindError as error:
            images.unread.append(Unread(path, str(error), "other"))
        except InputError as error:
            dataset = error.dataset if isinstance(error, UnusableFileError) else Dataset()
            images.unread.append(_broken(path, str(error), dataset))
    for same in copies.values():
        used = max(same, key=lambda header: header.path.stat().st_size)  # one that was cut off is smaller
        images.headers.append(used)
        for header in same:
            if header is not used:
                reason = f"{header.path} is a copy of {used.path}; remove one of them."
                images.unread.append(Unread(header.path, reason, "copy", exam_code(header.study)))
    return images


def _identity(header: Header) -> tuple[object, ...]:
    """What only copies share. Not the instance's number alone: careless anonymisers give one number to all files."""
    if not header.instance:
        return (header.path,)
    view = (
        header.laterality,
        header.position,
        header.kind,
        header.frames,
        header.rows,
        header.columns,
        header.slice_position,
    )
    return (header.instance, header.study, header.series, header.for_processing, *view)


def entries_of(headers: Iterable[Header]) -> tuple[list[Entry], list[LeftOut]]:
    """Views with their patients and exams, and the images that are no view to use."""
    entries: list[Entry] = []
    left_out: list[LeftOut] = []
    found = Counter[str]()
    for group in _volumes(headers):
        first = group[0]
        if first.intervention:
            left_out.append(LeftOut(first, NO_READING))
            continue
        if first.laterality is None or first.position is None:
            left_out.append(LeftOut(first, NO_VIEW))
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
            annotations=None,
            upright=modality == "DBT",
        )
        entries.append(Entry(f"patient-{first.patient}", exam, view, None, attributes={"vendor": first.vendor}))
    return entries, left_out


def exam_code(study: str) -> str:
    """A code for a StudyInstanceUID; some archives have patients' numbers in theirs."""
    return hashlib.sha256(study.encode()).hexdigest()[:10]


def _broken(path: Path, reason: str, dataset: Dataset) -> Unread:
    """A file that cannot be used, with what its header still says: of which exam it is, and which view."""
    try:
        laterality, position = which_view(dataset)
        study = str(dataset.get("StudyInstanceUID", ""))
    except Exception:  # any exception means a damaged header
        return Unread(path, reason, "broken")
    return Unread(path, reason, "broken", exam_code(study) if study else "", laterality, position)


def _volumes(headers: Iterable[Header]) -> list[list[Header]]:
    """Files that belong together: the single slices of a series are one volume, every other file is its own."""
    groups: dict[str, list[Header]] = {}
    for header in headers:
        groups.setdefault(header.series if header.kind == "slice" else str(header.path), []).append(header)
    return list(groups.values())
