"""Exams in pictures and arrays, which have no header: a table, or a JSON file beside each image, says what they show.

Patients and exams have the codes of the table, as the predictions need them for an evaluation.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mm3d.data.datasets import images
from mm3d.data.records import Breast, Cohort, Modality
from mm3d.output.result import ReadProblem
from mm3d.predict.exam import Archive, Exam, choose_views
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class PictureOptions:
    """What the user says of pictures; see `datasets.images.read`. None: not said."""

    table: Path | None = None
    columns: dict[str, str] | None = None
    modality: Literal["FFDM", "film", "DBT"] | None = None
    stretch: float | None = None


def has_pictures(given: Sequence[Path]) -> bool:
    """Whether a user gives pictures, arrays, or folders with some."""
    return any(images.is_image(path) if path.is_file() else bool(images.find_images(path)) for path in given)


def read_pictures(given: Sequence[Path], options: PictureOptions) -> Cohort:
    """Read what the tables say of one folder, or of some files of one folder."""
    folders = {path if path.is_dir() else path.parent for path in given}
    for path in given:
        if not path.exists():
            raise InputError(f"{path} does not exist; give pictures, arrays, or a folder of them.")
    if len(folders) > 1:
        raise InputError(f"{given[0]} and {given[1]} are of several folders; give one folder of pictures at a time.")
    only = None if given[0].is_dir() else {path.resolve() for path in given}
    return images.read(
        folders.pop(), options.table, options.columns, options.modality or "FFDM", options.stretch or 1.0, only
    )


def find_picture_exams(cohort: Cohort, prefer: Modality) -> Archive:
    """Sort the breasts of a table into exams. If a view is there in both kinds, `prefer` is used."""
    breasts: dict[tuple[str, str], list[Breast]] = defaultdict(list)
    for breast in cohort.breasts:
        breasts[breast.patient, breast.exam].append(breast)
    exams = []
    for name, own in breasts.items():
        chosen, notes = [], []
        for breast in own:
            used, more = choose_views(breast, {}, prefer)
            chosen.append(used)
            notes += more
        code = hashlib.sha256("|".join(name).encode()).hexdigest()[:10]
        exams.append(Exam(code, tuple(chosen), {}, tuple(notes), ()))
    problems = tuple(ReadProblem(f"{problem.subject}: {problem.reason}") for problem in cohort.problems)
    return Archive(tuple(exams), problems, 0)
