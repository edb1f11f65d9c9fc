"""CMMD, the Chinese Mammography Database: labels of breasts by biopsy, no boxes.

The clinical table has a row for a breast with a finding, malignant or benign. Which view a file shows is only in its
DICOM header. Many patients also have images of the other breast. Nothing is known of it, so these images are left out.
"""

from collections import Counter
from pathlib import Path

from mm3d.data.datasets.assemble import CohortBuilder, Entry, read_rows, reporting
from mm3d.data.dicom.header import read_dataset
from mm3d.data.dicom.views import which_view
from mm3d.data.records import Cohort, Label, Problem, View
from mm3d.shared.errors import InputError

COLUMNS = ("ID1", "LeftRight", "abnormality", "classification", "subtype")
LABELS: dict[str, Label] = {"Malignant": "malignant", "Benign": "benign"}
TAGS = ["ViewCodeSequence", "ViewPosition", "ImageLaterality", "Laterality", "Manufacturer"]


def read(folder: Path) -> Cohort:
    breasts, problems = read_table(folder)
    cohort = CohortBuilder("CMMD", ["There are no boxes: no view is annotated."], problems=problems)
    patients = {patient for patient, _ in breasts}
    repeats = Counter[str]()
    for file in sorted(folder.rglob("*.dcm")):
        patient = next((part for part in file.relative_to(folder).parts if part in patients), None)
        if patient is None:
            cohort.left_out["of patients who are not in the table"] += 1
            continue
        with reporting(cohort.problems, patient):
            header = read_dataset(file, TAGS)
            side, position = which_view(header)
            if side is None or position is None:
                raise InputError(f"The header of {file} does not say the side and CC or MLO.")
            row = breasts.get((patient, side))
            if row is None:
                cohort.left_out["of breasts that are not in the table"] += 1
                continue
            name = f"{patient}_{side}_{position}"
            repeats[name] += 1
            if repeats[name] > 1:  # a repeated exposure
                name += f"_{repeats[name]}"
            view = View(name, side, position, "FFDM", (file,), None)
            attributes = {column: row[column] for column in ("abnormality", "subtype")}
            attributes["vendor"] = str(header.get("Manufacturer") or "")
            cohort.entries.append(Entry(patient, "1", view, LABELS[row["classification"]], attributes=attributes))
    imaged = {(entry.patient, entry.view.laterality) for entry in cohort.entries}
    problems += [Problem(" ".join(key), "There is no usable image of this breast.") for key in breasts.keys() - imaged]
    problems.sort(key=lambda problem: problem.subject)
    return cohort.assemble()


def read_table(folder: Path) -> tuple[dict[tuple[str, str], dict[str, str]], list[Problem]]:
    """The clinical row of each breast by patient and side; needs no images."""
    breasts: dict[tuple[str, str], dict[str, str]] = {}
    problems, contradictory = [], set()
    for row in _rows(folder):
        key = row["ID1"], row["LeftRight"]
        if row["LeftRight"] not in ("L", "R") or row["classification"] not in LABELS:
            reason = f"Its row ({row['LeftRight']!r}, {row['classification']!r}) has a side or class that is not known."
            problems.append(Problem(" ".join(key), reason))
        elif breasts.setdefault(key, row)["classification"] != row["classification"]:
            contradictory.add(key)
    for key in sorted(contradictory):
        del breasts[key]
        problems.append(Problem(" ".join(key), "One row says benign and another malignant."))
    return breasts, problems


def _rows(folder: Path) -> list[dict[str, str]]:
    for path in sorted(folder.rglob("*CMMD*.csv")):
        try:
            return read_rows(path, COLUMNS)
        except InputError:  # another table, such as the downloader's list of series
            continue
    sheet = next(iter(sorted(folder.rglob("*CMMD*.xlsx"))), None)
    if sheet is not None:
        raise InputError(f"{sheet} is a spreadsheet; open it and save it as CSV in UTF-8 next to it.")
    raise InputError(f"{folder} has no CMMD_clinicaldata_revision.csv; give the folder of the download.")
