"""A plain folder of DICOM exams, as a hospital exports them: no labels, only what the headers say.

Views are grouped to breasts by study and side. Patients and exams get codes, the same for all exams of a patient: no
name or number of a patient leaves the DICOM headers.
"""

import hashlib
from collections import Counter
from pathlib import Path

from mm3d.cohorts.assemble import Entry, assemble
from mm3d.dicom.header import Header, read_header
from mm3d.errors import InputError
from mm3d.records import Cohort, Modality, Problem, View


def read(folder: Path) -> Cohort:
    headers, problems = [], []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        if path.name.upper() == "DICOMDIR":
            continue
        try:
            headers.append(read_header(path))
        except InputError as error:
            problems.append(Problem(str(path.relative_to(folder)), str(error)))
    if not headers:
        reason = f" ({problems[0].reason})" if problems else ""
        raise InputError(f"{folder} has no mammography that can be read{reason}; give a folder of DICOM exams.")
    entries: list[Entry] = []
    found = Counter[str]()
    for group in _volumes(headers):
        first = group[0]
        subject = str(first.path.relative_to(folder))
        if first.laterality is None or first.position is None:
            problems.append(
                Problem(subject, "its header does not say which side or view (CC, MLO) it is; export it with them.")
            )
            continue
        exam = hashlib.sha256(first.study.encode()).hexdigest()[:10]
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
    return assemble(folder.name, entries, problems)


def _volumes(headers: list[Header]) -> list[list[Header]]:
    """Files that belong together: the single slices of a series are one volume, every other file is its own."""
    groups: dict[str, list[Header]] = {}
    for header in headers:
        groups.setdefault(header.series if header.kind == "slice" else str(header.path), []).append(header)
    return list(groups.values())
