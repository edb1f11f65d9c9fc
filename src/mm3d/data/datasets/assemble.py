"""What every reader needs: rows of a table, what their cells mean, and views gathered to breasts."""

import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, TypeVar

from mm3d.data.records import KEY, Annotation, Breast, Cohort, Key, Label, Laterality, Position, Problem, View
from mm3d.shared.errors import InputError
from mm3d.shared.spreadsheet import read_cells

SIDES: dict[str, Laterality] = {"L": "L", "R": "R", "LEFT": "L", "RIGHT": "R"}  # as tables write them
POSITIONS: dict[str, Position] = {"CC": "CC", "MLO": "MLO"}  # the views that are used
SEVERITY: dict[Label | None, int] = {None: -1, "negative": 0, "benign": 1, "malignant": 2}

Columns = Mapping[str, Sequence[str]]
BLOCK = 500  # rows

Meaning = TypeVar("Meaning")
Record = TypeVar("Record", bound=tuple[Any, ...])


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
    wanted = tuple(columns)
    with _open_table(path, wanted, delimiter) as (names, rows):
        kept = [optional is None or name in (*wanted, *optional) for name in names]
        names, rows = list(compress(names, kept)), _fill_rows(rows, len(names))
        read = (read_cells(list(map(str.strip, compress(row, kept)))) for row in rows)
        return [dict(zip(names, row, strict=True)) for row in read]


def read_blocks(path: Path, columns: Iterable[str]) -> Iterator[Columns]:
    """Read a CSV file like `read_rows`, but as columns of some hundred rows at a time, so that they are still in the
    processor's cache when they are used: that takes a tenth of the time. There is at least one block, maybe empty."""
    with _open_table(path, tuple(columns)) as (names, rows):
        width, block = len(names), [names]
        while block:
            block = list(islice(rows, BLOCK))
            whole = block if set(map(len, block)) == {width} else _fill_rows(block, width)
            cells = read_cells(list(map(str.strip, chain.from_iterable(whole))))
            yield {name: cells[number::width] for number, name in enumerate(names)}


def keys_of_rows(columns: Columns) -> list[Key]:
    """What identifies the view of each row, from the columns KEY and, if it is there, Modality."""
    patients, studies, views = (columns[name] for name in KEY)
    modalities = [modality.upper() or "DBT" for modality in columns.get("Modality", ())] or ["DBT"] * len(views)
    return list(make_records(Key, patients, studies, map(str.lower, views), modalities))


def make_records(kind: type[Record], *columns: Iterable[Any]) -> Iterator[Record]:
    """Named tuples of all their fields, in a fifth of the time that calls of the class take."""
    return map(partial(tuple.__new__, kind), zip(*columns, strict=True))


@contextmanager
def _open_table(
    path: Path, columns: Sequence[str], delimiter: str = ","
) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """The names of all columns, and an iterator of the rows as they are."""
    if not path.is_file():
        raise InputError(f"{path} is missing; the dataset needs it.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            header = read_cells(next(reader, []))
            _check_columns(path, header, columns, delimiter)
            yield header, reader
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8 ({error}); download it again, or save it so.") from error


def _fill_rows(rows: Iterable[list[str]], width: int) -> Iterator[list[str]]:
    """Rows without the empty ones. Cells that a row lacks are empty, those beyond the last column are left out."""
    return (row if len(row) == width else (row + [""] * width)[:width] for row in rows if row)


def _check_columns(path: Path, there: Sequence[str], wanted: Sequence[str], delimiter: str) -> None:
    missing = [column for column in wanted if column not in there]
    if not there:
        raise InputError(f"{path} is empty; download it again.")
    if len(there) == 1 and missing:
        raise InputError(f"{path} has one column only; separate columns with {delimiter!r}.")
    if missing:
        raise InputError(f"{path} has no column {', '.join(map(repr, missing))}; is it the right file?")


def find_file(folder: Path, pattern: str) -> Path:
    """The first file anywhere in the folder that matches the pattern."""
    path = min(folder.rglob(pattern), default=None)
    if path is None:
        raise InputError(f"{folder} has no {pattern}; give the folder of the download.")
    return path


def decode(row: Mapping[str, str], column: str, meanings: Mapping[str, Meaning]) -> Meaning:
    """What the cell of a row means."""
    if row[column] not in meanings:
        raise InputError(f"Its {column} {row[column]!r} is none of {', '.join(meanings)}.")
    return meanings[row[column]]


@contextmanager
def reporting(problems: list[Problem], subject: str) -> Iterator[None]:
    """Turn an error into a problem of the subject, which is then left out."""
    try:
        yield
    except InputError as error:
        problems.append(Problem(subject, str(error)))


@dataclass
class CohortBuilder:
    """What a reader has found so far."""

    name: str
    notes: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # by reason: images too many to be listed one by one

    def try_annotations(
        self, view: str, read: Callable[..., tuple[Annotation, ...] | None], *arguments: Any
    ) -> tuple[Annotation, ...] | None:
        """Read the annotations of a view; None and a problem if they cannot be read."""
        try:
            return read(*arguments)
        except (InputError, LookupError, SyntaxError, TypeError, ValueError) as error:
            reason = error if isinstance(error, InputError | ValueError) else repr(error)
            problem = f"Its annotations are left out, it counts as not annotated: {str(reason).rstrip('.')}."
            self.problems.append(Problem(view, problem))
            return None

    def assemble(self) -> Cohort:
        """Gather views to breasts, one for each patient, exam and side. A breast has the worst label of its views."""
        problems = list(self.problems)
        groups: dict[tuple[str, str, Laterality], list[Entry]] = {}
        names: set[str] = set()
        for entry in self.entries:
            if entry.view.name in names:
                problems.append(Problem(entry.view.name, "It is there twice; only the first is used."))
                continue
            names.add(entry.view.name)
            groups.setdefault((entry.patient, entry.exam, entry.view.laterality), []).append(entry)
        breasts = []
        for (patient, exam, side), members in groups.items():
            worst = max((member.label for member in members), key=SEVERITY.__getitem__)
            views = tuple(member.view for member in members)
            attributes: dict[str, str] = {}
            for member in members:
                attributes |= member.attributes
            with reporting(problems, f"{patient} {exam} {side}"):
                breasts.append(Breast(patient, exam, side, worst, views, members[0].split, attributes))
        counts = [f"Images left out ({reason}): {count}." for reason, count in sorted(self.left_out.items())]
        return Cohort(self.name, tuple(breasts), tuple(problems), (*self.notes, *counts))


def split_patients(cohort: Cohort, validation_share: float) -> Cohort:
    """Give about this share of the patients to a split validation, and the others to train.

    The first 32 bits of the SHA-256 of the patient's code decide, so that a patient is on the same side in every
    version of a dataset.
    """
    if any(breast.split for breast in cohort.breasts):
        raise InputError(f"{cohort.name} has splits of its own; leave out --validation-share.")

    def split(breast: Breast) -> Breast:
        place = int(hashlib.sha256(breast.patient.encode()).hexdigest()[:8], 16) / 2**32
        return replace(breast, split="validation" if place < validation_share else "train")

    return replace(cohort, breasts=tuple(map(split, cohort.breasts)))
