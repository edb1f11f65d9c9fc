"""What every reader needs: rows of a table, and views gathered to breasts."""

import csv
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mm3d.data.records import Annotation, Breast, Cohort, Label, Laterality, Position, Problem, View
from mm3d.shared.errors import InputError

SIDES: dict[str, Laterality] = {"L": "L", "R": "R", "LEFT": "L", "RIGHT": "R"}  # as tables write them
POSITIONS: dict[str, Position] = {"CC": "CC", "MLO": "MLO"}  # the views that are used
SEVERITY: dict[Label | None, int] = {None: -1, "negative": 0, "benign": 1, "malignant": 2}


@dataclass(frozen=True)
class Entry:
    """A view of a dataset, with what its row says of the breast."""

    patient: str
    exam: str
    view: View
    label: Label | None  # None: not known
    split: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


def read_rows(
    path: Path, columns: Iterable[str], delimiter: str = ",", optional: Iterable[str] | None = None
) -> list[dict[str, str]]:
    """Read the rows of a CSV file by column name, stripped. The file may have other columns than the wanted ones.

    With `optional`, only the wanted columns and these are kept: EMBED's tables are too wide to hold as a whole.
    """
    columns = tuple(columns)
    kept = None if optional is None else {*columns, *optional}
    if not path.is_file():
        raise InputError(f"{path} is missing; the dataset needs it.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, delimiter=delimiter)
            _check_columns(path, reader.fieldnames or (), columns, delimiter)
            return [
                {key: (value or "").strip() for key, value in row.items() if key in (kept or row) and key is not None}
                for row in reader
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8 ({error}); download it again, or save it so.") from error


def _check_columns(path: Path, there: Iterable[str], wanted: Iterable[str], delimiter: str) -> None:
    there = list(there)
    missing = [column for column in wanted if column not in there]
    if not there:
        raise InputError(f"{path} is empty; download it again.")
    if len(there) == 1 and missing:
        raise InputError(f"{path} has one column only; separate columns with {delimiter!r}.")
    if missing:
        raise InputError(f"{path} has no column {', '.join(map(repr, missing))}; is it the right file?")


def find_file(folder: Path, *patterns: str) -> Path:
    """The first file anywhere in the folder that matches one of the patterns."""
    for pattern in patterns:
        for path in sorted(folder.rglob(pattern)):
            return path
    raise InputError(f"{folder} has no {' or '.join(patterns)}; give the folder of the download.")


def try_annotations(
    name: str, problems: list[Problem], read: Callable[..., tuple[Annotation, ...] | None], *arguments: Any
) -> tuple[Annotation, ...] | None:
    """Read the annotations of a view; None and a problem if they cannot be read."""
    try:
        return read(*arguments)
    except (InputError, LookupError, SyntaxError, TypeError, ValueError) as error:
        reason = error if isinstance(error, InputError | ValueError) else repr(error)
        problems.append(Problem(name, f"Its annotations are left out, it counts as not annotated: {reason}."))
        return None


def describe_left_out(left_out: Counter[str]) -> list[str]:
    """A note for each kind of image that is left out too often to be listed one by one. The keys are the reasons."""
    return [f"Images left out ({reason}): {count}." for reason, count in sorted(left_out.items())]


def assemble(
    name: str, entries: Iterable[Entry], problems: Iterable[Problem] = (), notes: Iterable[str] = ()
) -> Cohort:
    """Gather views to breasts, one for each patient, exam and side. A breast has the worst label of its views."""
    left_out = list(problems)
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    names: set[str] = set()
    for entry in entries:
        if entry.view.name in names:
            left_out.append(Problem(entry.view.name, "It is there twice; only the first is used."))
            continue
        names.add(entry.view.name)
        groups.setdefault((entry.patient, entry.exam, entry.view.laterality), []).append(entry)
    breasts = []
    for (patient, exam, side), members in groups.items():
        attributes: dict[str, str] = {}
        for member in members:
            attributes |= member.attributes
        views = tuple(member.view for member in members)
        worst = max((member.label for member in members), key=SEVERITY.__getitem__)
        try:
            breasts.append(Breast(patient, exam, views[0].laterality, worst, views, members[0].split, attributes))
        except InputError as error:
            left_out.append(Problem(f"{patient} {exam} {side}", str(error)))
    return Cohort(name, tuple(breasts), tuple(left_out), tuple(notes))
