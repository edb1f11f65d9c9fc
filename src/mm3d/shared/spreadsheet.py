"""CSV files that a spreadsheet may open: no cell is taken for a formula, and every cell is read back unchanged.

A spreadsheet runs a cell that begins with =, +, - or @, which a file of somebody else may contain. Such a cell is
written with an apostrophe in front, which marks it as text. Numbers stay as they are.
"""

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mm3d.shared.files import replacing

FORMULA = re.compile(r"'*[=+\-@\t\r\n]")  # also with apostrophes in front, so that reading removes only ours
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def write_rows(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV file whole or not at all. What UTF-8 cannot hold, such as a part of a file's name, is escaped."""
    with (
        replacing(path) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        plain = csv.writer(file, lineterminator="\n")
        quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in rows:
            cells = [_guard(str(cell)) for cell in row]
            (quoted if "\r" in "".join(cells) else plain).writerow(cells)  # Python 3.12 does not quote it by itself


def _guard(cell: str) -> str:
    return f"'{cell}" if FORMULA.match(cell) and not NUMBER.fullmatch(cell) else cell


def read_cells(cells: list[str]) -> list[str]:
    """Cells as they were before they were written."""
    if "'" not in "".join(cells):  # nearly always, and quickly found
        return cells
    return [cell[1:] if cell[:1] == "'" and FORMULA.match(cell) else cell for cell in cells]
