"""What every reader needs: rows of a table, and views gathered to breasts."""

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mm3d.data.records import Breast, Cohort, Label, Laterality, Position, Problem, View
from mm3d.shared.errors import InputError

SEVERITY: dict[Label | None, int] = {None: -1, "negative": 0, "benign": 1, "malignant": 2}
SIDES: dict[str, Laterality] = {"L": "L", "R": "R", "LEFT": "L", "RIGHT": "R"}  # as tables spell them
POSITIONS: dict[str, Position] = {"CC": "CC", "MLO": "MLO"}  # the views that are used


@dataclass(frozen=True)
class Entry:
    """A view as a table tells of it, with what it says of the breast."""

    patient: str
    exam: str
    view: View
    label: Label | None  # None: nobody said
    split: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


def read_rows(
    path: Path, columns: Iterable[str], delimiter: str = ",", optional: Iterable[str] | None = None
) -> list[dict[str, str]]:
    """The rows of a CSV file by column name, stripped; other columns than the wanted ones may be there.

    With `optional`, only the wanted columns and these are kept: EMBED's tables are too wide to hold as a whole.
    """
    columns = tuple(columns)
    kept = None if optional is None else {*columns, *optional}
    if not path.is_file():
        raise InputError(f"{path} is missing; the dataset needs it.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, delimiter=delimiter)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if not reader.fieldnames:
                raise InputError(f"{path} is empty; get it again.")
            if len(reader.fieldnames) == 1 and missing:
                raise InputError(f"{path} has one column only; separate columns with {delimiter!r}.")
            if missing:
                raise InputError(f"{path} has no column {', '.join(map(repr, missing))}; is it the right file?")
            return [
                {
                    key: (value or "").strip()
                    for key, value in row.items()
                    if key is not None and (kept is None or key in kept)
                }
                for row in reader
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8 ({error}); get it again, or save it so.") from error


def find_one(folder: Path, *patterns: str) -> Path:
    """The first file that one of the patterns finds, at any depth."""
    for pattern in patterns:
        for path in sorted(folder.rglob(pattern)):
            return path
    raise InputError(f"{folder} has no {' or '.join(patterns)}; give the folder of the download.")


def counted(left_out: Counter[str]) -> list[str]:
    """A note for each kind of image that is left out too often for a problem each; the keys are the reasons."""
    return [f"Images left out ({reason}): {count}." for reason, count in sorted(left_out.items())]


def assemble(
    name: str, entries: Iterable[Entry], problems: Iterable[Problem] = (), notes: Iterable[str] = ()
) -> Cohort:
    """Views to breasts: one per patient, exam and side, with the worst label that a view of it has."""
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
    for (patient, exam, _), members in groups.items():
        attributes: dict[str, str] = {}
        for member in members:
            attributes |= member.attributes
        worst = max((member.label for member in members), key=SEVERITY.__getitem__)
        try:
            breasts.append(
                Breast(
                    patient=patient,
                    exam=exam,
                    laterality=members[0].view.laterality,
                    label=worst,
                    views=tuple(member.view for member in members),
                    split=members[0].split,
                    attributes=attributes,
                )
            )
        except InputError as error:
            left_out.append(Problem(f"{patient} {exam} {members[0].view.laterality}", str(error)))
    return Cohort(name, tuple(breasts), tuple(left_out), tuple(notes))
