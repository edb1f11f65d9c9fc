"""Files of predictions: other people's as they are, ours without loss, damaged ones refused by row."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm3d.data.records import Key
from mm3d.output.predictions import (
    COLUMNS,
    NUMBERS,
    BreastPrediction,
    Finding,
    Predictions,
    ViewPrediction,
    read,
    read_dbtex,
    write_dbtex,
    write_json,
)
from mm3d.shared.errors import InputError

HEADER = "PatientID,StudyUID,View,X,Width,Y,Height,Z,Depth,Score"
ROW = "P1,S1,lcc,10,30,20,40,13,9,0.5"


def csv_file(folder: Path, *lines: str) -> Path:
    path = folder / "predictions.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def only(predictions: Predictions) -> Finding:
    (breast,) = predictions.breasts
    (view,) = breast.views
    (proposal,) = view.findings
    return proposal


def test_columns_are_read_by_name(tmp_path: Path) -> None:
    expected = Finding((10, 20, 40, 60), 0.5, slice=17, depth=9)
    assert only(read(csv_file(tmp_path, HEADER, ROW))) == expected
    other = ",Score,View,StudyUID,PatientID,Y,X,Height,Width,Depth,Z,Comment"  # pandas' index comes first
    assert only(read(csv_file(tmp_path, other, "0,0.5,LCC,S1,P1,20,10,40,30,9,13,hello"))) == expected


@pytest.mark.parametrize(("depth", "middle"), [("0", 13), ("-1", 13), ("1", 13), ("2", 13.5), ("9", 17)])
def test_the_slice_is_the_middle_of_those_it_spans(tmp_path: Path, depth: str, middle: float) -> None:
    found = only(read(csv_file(tmp_path, HEADER, ROW.replace(",13,9,", f",13,{depth},"))))
    assert (found.slice, found.depth, found.first_slice) == (middle, float(depth), 13)


def test_a_mammogram_has_no_slice_and_a_projection_predicts_none(tmp_path: Path) -> None:
    rows = (f"{ROW},FFDM", f"{ROW.replace(',13,9,', ',,0,').replace('lcc', 'rcc')},")
    found = read(csv_file(tmp_path, f"{HEADER},Modality", *rows))
    assert [(key, view.findings[0].slice) for key, view in found.views()] == [
        (Key("P1", "S1", "lcc", "FFDM"), None),
        (Key("P1", "S1", "rcc", "DBT"), None),
    ]


def test_rows_are_gathered_and_repeated_rows_are_kept(tmp_path: Path) -> None:
    rows = (ROW, ROW.replace("lcc", "rmlo1"), ROW, ROW.replace("lcc", "lmlo"), ROW.replace("S1", "S2"))
    found = read(csv_file(tmp_path, HEADER, *rows))
    assert [(b.exam, b.laterality, [(v.view, len(v.findings)) for v in b.views]) for b in found.breasts] == [
        ("S1", "L", [("lcc", 2), ("lmlo", 1)]),
        ("S1", "R", [("rmlo1", 1)]),
        ("S2", "L", [("lcc", 1)]),
    ]
    assert read(csv_file(tmp_path, HEADER)).breasts == ()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (",0.5", ",nan", "Score 'nan' is not a number"),
        (",0.5", ",inf", "Score 'inf' is not a number"),
        (",0.5", ",", "Score '' is not a number"),
        (",0.5", ",high", "Score 'high' is not a number"),
        (",30,", ",-30,", "the box [10.0, 20.0, -20.0, 60.0] has a negative size"),
        (",40,", ",-1,", "negative size"),
        (",10,", ",left,", "X 'left' is not a number"),
        (",13,", ",x,", "Z 'x' is not a number"),
        (",9,", ",-7,", "depth -7.0 is not a number of slices"),
        (",10,30,", ",1e308,1e308,", "is not four finite numbers"),
        (",13,9,", ",1.7e308,1.7e308,", "the slice inf is not a finite number"),
        (",9,", ",inf,", "Depth 'inf' is not a number"),
        ("lcc", "lxc", "the view 'lxc' is none of lcc, lmlo, rcc and rmlo"),
    ],
)
@pytest.mark.parametrize("rows_before", [1, 1700])  # files are read in blocks
def test_a_damaged_row_is_named(tmp_path: Path, old: str, new: str, reason: str, rows_before: int) -> None:
    damaged = ROW.replace(old, new, 1)
    assert damaged != ROW
    path = csv_file(tmp_path, HEADER, *[ROW.replace("P1", "P0")] * rows_before, damaged, ROW, damaged)
    with pytest.raises(InputError) as caught:
        read(path)
    assert f"{path}, row {rows_before + 2}: " in str(caught.value)
    assert reason in str(caught.value)
    assert str(caught.value).endswith("; mend or remove the row.")


numbers = st.sampled_from(["0", "13", "-7", "1.5", "-0.5", "", "x", "nan", "-inf", "1e308", "-1e308", "1_0", "\u0663"])
odd_rows = st.fixed_dictionaries(
    {"View": st.sampled_from(["lcc", "RMLO2", "xcc", ""]), "Modality": st.sampled_from(["", "dbt", "FFDM", "MRI"])}
    | {column: st.just("2") | numbers for column in NUMBERS}
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(odd_rows, max_size=3))
def test_a_table_refuses_what_records_refuse_and_says_the_same(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    """Rows are checked as columns. Here each is made into records, one after the other."""

    def number(row: dict[str, str], column: str) -> float:
        try:
            value = float(row[column])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{column} {row[column]!r} is not a number")
        return value

    def record(row: dict[str, str]) -> ViewPrediction:
        modality: Any = row["Modality"].upper() or "DBT"
        x, width, y, height, depth, score = (number(row, column) for column in NUMBERS if column != "Z")
        z = number(row, "Z") + (max(depth, 1) - 1) / 2 if row["Z"] and modality == "DBT" else None
        return ViewPrediction(row["View"].lower(), (Finding((x, y, x + width, y + height), score, z, depth),), modality)

    columns = (*COLUMNS[2:], "Modality")
    lines = [",".join(["P1", f"S{place}", *(row[column] for column in columns)]) for place, row in enumerate(rows)]
    path = csv_file(tmp_path, ",".join(["PatientID", "StudyUID", *columns]), *lines)
    try:
        found: Any = [view for _, view in read(path).views()]
    except InputError as error:
        found = str(error)
    expected: Any = []
    for place, row in enumerate(rows):
        try:
            expected.append(record(row))
        except InputError as error:
            expected = f"{path}, row {place + 2}: {error}; mend or remove the row."
            break
    assert found == expected


def test_records_and_the_table_say_the_same(tmp_path: Path) -> None:
    table = sample().table
    assert [key.name for key in table.keys] == ["P1 S1 lcc", "P1 S1 lmlo", "P1 S1 lcc FFDM", "P2 S1 rcc2"]
    assert table.view.tolist() == [0, 0, 2]
    assert table.slices.tolist()[:2] == [17, 4.5]
    assert math.isnan(table.slices[2])
    assert (table.view_scores.tolist()[:3], table.breast_scores["P1", "S1", "L"]) == ([0.5, 0.125, 0.5], 0.25)
    assert table.records() == sample(None).breasts  # slice weights are for the report, not for evaluation
    write_dbtex(sample(), tmp_path / "predictions.csv")
    back = read(tmp_path / "predictions.csv").table
    assert back.keys == tuple(key for key in table.keys if key.view != "lmlo" and key.patient == "P1")
    assert back.boxes.tolist() == table.boxes.tolist()
    assert back.scores.tolist() == table.scores.tolist()
    assert Predictions(()).table.boxes.shape == (0, 4)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"predictions\.csv has no column 'Score'"):
        read(csv_file(tmp_path, HEADER.removesuffix(",Score"), ROW))
    with pytest.raises(InputError, match=r"gone\.csv does not exist"):
        read(tmp_path / "gone.csv")
    (tmp_path / "table.xlsx").touch()
    with pytest.raises(InputError, match=r"table\.xlsx is neither \.csv nor \.json"):
        read(tmp_path / "table.xlsx")
    bad = csv_file(tmp_path, f"{HEADER},Modality", f"{ROW},MRI")
    with pytest.raises(InputError, match=r"row 2: the modality 'MRI'"):
        read(bad)


def sample(slice_weights: tuple[float, ...] | None = (0.25, 0.75)) -> Predictions:
    proposal = Finding((10.5, 20, 40, 60.25), 0.75, slice=17, slice_weights=slice_weights)
    wide = Finding((0, 0, 5, 5), -3.5, slice=4.5, depth=2)
    return Predictions(
        (
            BreastPrediction(
                "P1",
                "S1",
                "L",
                (
                    ViewPrediction("lcc", (proposal, wide), score=0.5),
                    ViewPrediction("lmlo", (), score=0.125),
                    ViewPrediction("lcc", (Finding((1, 2, 3, 4), 0.5),), modality="FFDM", score=0.5),
                ),
                score=0.25,
            ),
            BreastPrediction("P2", "S1", "R", (ViewPrediction("rcc2", ()),)),
        ),
        model={"name": "mm3d", "weights": "start.safetensors"},
    )


def test_our_json_loses_nothing(tmp_path: Path) -> None:
    write_json(sample(), tmp_path / "predictions.json")
    back = read(tmp_path / "predictions.json")
    assert back == sample()
    assert json.loads((tmp_path / "predictions.json").read_text())["version"] == 1
    assert "predictions.json: 'breasts'[1]" in back.place(Key("P2", "S1", "rcc2"))


def test_the_csv_keeps_the_proposals_and_is_read_back(tmp_path: Path) -> None:
    write_dbtex(sample(), tmp_path / "predictions.csv")
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert lines[0] == f"{HEADER},Modality"
    assert lines[1] == "P1,S1,lcc,10.5,29.5,20,40.25,17,0,0.75,DBT"
    assert lines[2] == "P1,S1,lcc,0,5,0,5,4,2,-3.5,DBT"
    back = read_dbtex(tmp_path / "predictions.csv")
    assert [view.findings[-1].slice for _, view in back.views()] == [4.5, None]
    dbt = Predictions((BreastPrediction("P1", "S1", "L", (ViewPrediction("lcc", (Finding((0, 0, 1, 1), 1, 3),)),)),))
    write_dbtex(dbt, tmp_path / "plain.csv")
    assert (tmp_path / "plain.csv").read_text() == f"{HEADER}\nP1,S1,lcc,0,1,0,1,3,0,1\n"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.update(version=9), "has no 'version': 1"),
        (
            lambda c: c["breasts"][0]["views"][0]["findings"][1].update(score="high"),
            r"'findings'\[1\]: 'score' must be",
        ),
        (lambda c: c["breasts"][0]["views"][0]["findings"][0].update(scroe=1), "did you mean 'score'"),
        (
            lambda c: c["breasts"][0]["views"][0]["findings"][0].update(box=[3, 0, 1, 1]),
            r"\[0\]: the box .* negative size",
        ),
        (lambda c: c["breasts"][0]["views"][0]["findings"][0].update(box=[3, 0, 1]), "not four finite numbers"),
        (lambda c: c["breasts"][0]["views"][0].pop("view"), r"'views'\[0\]: the setting 'view' is missing"),
        (lambda c: c["breasts"][0].update(laterality="R"), r"'breasts'\[0\]: P1 S1: a view is not of the side R"),
        (
            lambda c: c["breasts"][1]["views"].append(c["breasts"][1]["views"][0]),
            r"'breasts'\[1\]: the view P2 S1 rcc2 is there twice",
        ),
        (
            lambda c: c["breasts"].append(c["breasts"][1] | {"views": [{"view": "rmlo", "findings": []}]}),
            "the breast P2 S1 R is there twice",
        ),
        (lambda c: c["breasts"][0].update(score=float("inf")), "score inf of the breast is not a finite number"),
    ],
)
def test_damaged_json_is_named_by_place(tmp_path: Path, change: Any, reason: str) -> None:
    path = tmp_path / "predictions.json"
    write_json(sample(), path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=reason) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_json_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    path.write_text("{")
    with pytest.raises(InputError, match=r"predictions\.json is not JSON"):
        read(path)
