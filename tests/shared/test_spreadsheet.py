"""CSV files: a spreadsheet must not run what a file of somebody else says, and nothing may change on the way."""

import csv
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.exams import by_view

from mm3d.data.datasets.assemble import read_blocks, read_rows
from mm3d.output.predictions import BreastPrediction, Finding, Predictions, ViewPrediction, read, write_dbtex
from mm3d.shared.spreadsheet import read_cells, write_rows

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "=", "'=1", "''=1", "-", "\t=1"]
OTHERS = ["", "a=1", "'a", "''", "-5", "+1.5e-3", "-.5", "3", "O'Neil", "'-5", "é", 'a "b", c']


def test_formulas_are_text_and_numbers_stay_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_rows(path, [["=name", "number"], *([cell, -1.5] for cell in FORMULAS + OTHERS)])
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["'=name", "number"]
    assert [row[0] for row in rows[1:]] == [f"'{cell}" for cell in FORMULAS] + [
        f"'{cell}" if cell == "'-5" else cell for cell in OTHERS
    ]
    assert {row[1] for row in rows[1:]} == {"-1.5"}
    assert [row["=name"] for row in read_rows(path, ["=name"])] == FORMULAS + OTHERS
    assert [cell for block in read_blocks(path, ["=name"]) for cell in block["=name"]] == FORMULAS + OTHERS


@given(st.lists(st.lists(st.text(alphabet="'=+-@\t\r\n1.e a", max_size=6), min_size=2, max_size=2), max_size=8))
def test_every_cell_is_read_back(rows: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        write_rows(path, rows)
        with path.open(newline="", encoding="utf-8") as file:
            stored = list(csv.reader(file))
    assert [read_cells(row) for row in stored] == rows
    assert not [cell for row in stored for cell in row if cell[:1] in ("=", "@", "\t", "\r", "\n")]


def test_a_patient_who_is_a_formula(tmp_path: Path) -> None:
    view = ViewPrediction("lcc", (Finding((1.0, 2.0, 3.0, 4.0), 0.5, 3.0, -1.0),))
    breast = BreastPrediction("=cmd|' /C calc'!A0", "@exam", "L", (view,))
    write_dbtex(Predictions((breast,)), tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines()[1].startswith("'=cmd|' /C calc'!A0,'@exam,lcc,1,2,2,2,3,-1,")
    (found,) = read(tmp_path / "p.csv").breasts
    assert (found.patient, found.exam) == (breast.patient, breast.exam)
    assert by_view(read(tmp_path / "p.csv"))["lcc", "DBT"].findings[0].depth == -1
