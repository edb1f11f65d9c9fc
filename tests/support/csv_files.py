"""Small tables, written and read back."""

import csv
from collections.abc import Sequence
from pathlib import Path


def write_csv(path: Path, columns: Sequence[str], *lines: str) -> Path:
    """A table whose rows are given as they stand in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")
    return path


def write_table(path: Path, rows: list[dict[str, object]], delimiter: str = ",") -> None:
    """A table of the first row's columns, with quotes where a cell needs them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def append(path: Path, *lines: str) -> None:
    """More rows behind those of a table."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
