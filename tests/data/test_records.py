"""Records and their assembly: what they accept becomes the truth that a model is trained and judged by."""

from pathlib import Path
from typing import Any

import pytest

from mm3d.data.datasets.assemble import CohortBuilder, Entry, decode, find_file, read_blocks, read_rows, reporting
from mm3d.data.records import Annotation, Breast, Cohort, Label, Laterality, Problem, View
from mm3d.shared.errors import InputError

CANCER = Annotation((0, 0, 1, 1), malignant=True)
CYST = Annotation((0, 0, 1, 1), malignant=False)


def view(name: str = "v", side: Laterality = "L", annotations: tuple[Annotation, ...] | None = ()) -> View:
    return View(name, side, "CC", "DBT", (Path("a.dcm"),), annotations)


def breast(patient: str = "P", split: str = "", name: str = "v") -> Breast:
    return Breast(patient, "E", "L", "negative", (view(name),), split)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"box": (5, 0, 5, 1)}, "no area"),
        ({"box": (0, 3, 1, 2)}, "no area"),
        ({"box": (0, 0, float("nan"), 1)}, "no area"),
        ({"first_slice": 1}, "not a range"),
        ({"last_slice": 1}, "not a range"),
        ({"first_slice": 3, "last_slice": 2}, "not a range"),
        ({"slice": -1}, "negative"),
    ],
)
def test_findings_that_cannot_be_are_refused(changes: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {"box": (0, 0, 1, 1), "malignant": True}
    with pytest.raises(InputError, match=reason):
        Annotation(**(given | changes))


def test_a_finding_may_be_seen_on_one_slice_only() -> None:
    assert Annotation((0, 0, 1, 1), malignant=False, slice=0, first_slice=0, last_slice=0).slice == 0


@pytest.mark.parametrize(
    "changes", [{"laterality": "l"}, {"laterality": "B"}, {"position": "ML"}, {"modality": "MR"}, {"files": ()}]
)
def test_views_that_the_model_cannot_take_are_refused_with_their_name(changes: dict[str, Any]) -> None:
    given: dict[str, Any] = {"laterality": "L", "position": "CC", "modality": "DBT", "files": (Path("a"),)}
    with pytest.raises(InputError, match="this one: "):
        View(name="this one", annotations=(), **(given | changes))


@pytest.mark.parametrize(
    ("label", "views", "reason"),
    [
        ("negative", (), "at least one view"),
        ("cancer", (view(),), "'cancer' is none of malignant, benign, negative"),
        ("negative", (view("v"), view("w", "R")), "other side"),
        (
            "benign",
            (view(annotations=(CYST,)), view("w", annotations=(CANCER,))),
            "not malignant has a malignant annotation",
        ),
        (None, (view(annotations=(CANCER,)),), "not malignant has a malignant annotation"),
    ],
)
def test_breasts_that_contradict_themselves_are_refused_by_name(
    label: Any, views: tuple[View, ...], reason: str
) -> None:
    with pytest.raises(InputError, match=f"P E L: .*{reason}"):
        Breast("P", "E", "L", label, views)


def test_not_annotated_is_not_the_same_as_nothing_found() -> None:
    assert not Breast("P", "E", "L", "malignant", (view(annotations=None),)).annotated
    assert Breast("P", "E", "L", "malignant", (view(annotations=None), view("w", annotations=()))).annotated


def test_a_cohort_names_each_view_once() -> None:
    with pytest.raises(InputError, match="two views are called 'v'"):
        Cohort("c", (breast("P"), breast("Q")))


def test_a_patient_cannot_be_in_two_splits() -> None:
    with pytest.raises(InputError, match="patient P is in 'train' and in 'test'"):
        Cohort("c", (breast("P", "train", "v"), breast("P", "test", "w")))


def entry(name: str, label: Label, side: Laterality = "L", exam: str = "E", **more: Any) -> Entry:
    return Entry("P", exam, view(name, side, more.pop("annotations", ())), label, **more)


def test_views_are_gathered_by_exam_and_side_with_the_worst_label() -> None:
    entries = [
        entry("1", "benign", split="train", attributes={"density": "b"}),
        entry("2", "negative", "R", split="train"),
        entry("3", "malignant", split="train", attributes={"vendor": "x"}),
        entry("4", "negative", exam="later", split="train"),
    ]
    cohort = CohortBuilder("c", ["a note"], entries, [Problem("5", "It is missing.")]).assemble()
    assert [(found.name, found.label) for found in cohort.breasts] == [
        ("P E L", "malignant"),
        ("P E R", "negative"),
        ("P later L", "negative"),
    ]
    assert [found.name for found in cohort.breasts[0].views] == ["1", "3"]
    assert cohort.breasts[0].attributes == {"density": "b", "vendor": "x"}
    assert {found.split for found in cohort.breasts} == {"train"}
    assert (cohort.problems, cohort.notes) == ((Problem("5", "It is missing."),), ("a note",))


def test_a_breast_that_contradicts_itself_is_left_out_and_the_others_stay() -> None:
    entries = [entry("1", "benign", annotations=(CANCER,)), entry("2", "negative", "R")]
    cohort = CohortBuilder("c", entries=entries).assemble()
    assert [found.name for found in cohort.breasts] == ["P E R"]
    (problem,) = cohort.problems
    assert problem.subject == "P E L"
    assert "malignant annotation" in problem.reason


def test_a_view_that_comes_twice_is_used_once_and_reported() -> None:
    cohort = CohortBuilder("c", entries=[entry("1", "benign"), entry("1", "malignant")]).assemble()
    assert [len(found.views) for found in cohort.breasts] == [1]
    assert [problem.subject for problem in cohort.problems] == ["1"]


def test_rows_come_by_name_stripped_and_whatever_a_spreadsheet_did_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes('\ufeffa;b;more\r\n 1 ;"x\n"\r\n2;y;z;beyond\r\n'.encode())
    rows = read_rows(path, ["b", "a"], delimiter=";")
    assert rows == [{"a": "1", "b": "x", "more": ""}, {"a": "2", "b": "y", "more": "z"}]


def test_blocks_of_columns_have_the_cells_of_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    lines = [f' {number} ,"x\n, {number}"' + ",y" * (number % 3) for number in range(1234)]
    path.write_text("\ufeffa,b,a b\n" + "\n\n".join(lines), encoding="utf-8")
    rows = read_rows(path, ["b"])
    assert rows[3] == {"a": "3", "b": "x\n, 3", "a b": ""}
    blocks = list(read_blocks(path, ["b"]))
    assert len(blocks) > 2
    assert [dict(zip(block, cells, strict=True)) for block in blocks for cells in zip(*block.values())] == rows  # noqa: B905
    path.write_text("a,b\n")
    (empty,) = read_blocks(path, ["b"])
    assert empty == {"a": [], "b": []}
    with pytest.raises(InputError, match=r"table\.csv has no column 'c'"):
        list(read_blocks(path, ["c"]))


def test_a_wrong_table_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"table\.csv is missing"):
        read_rows(tmp_path / "table.csv", ["a"])
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"table\.csv has no column 'c', 'd'"):
        read_rows(tmp_path / "table.csv", ["a", "c", "d"])
    (tmp_path / "table.csv").write_bytes(b"a,b\n\xff\xfe,2\n")
    with pytest.raises(InputError, match=r"table\.csv is not a CSV file in UTF-8"):
        read_rows(tmp_path / "table.csv", ["a"])
    (tmp_path / "table.csv").write_bytes(b"")
    with pytest.raises(InputError, match=r"table\.csv is empty"):
        read_rows(tmp_path / "table.csv", ["a"])
    (tmp_path / "table.csv").write_text("a;b\n1;2\n")
    with pytest.raises(InputError, match=r"table\.csv has one column only; separate columns with ','"):
        read_rows(tmp_path / "table.csv", ["a"])


def test_a_file_is_found_at_any_depth_and_the_first_by_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("Table v2.csv", "Table v1.csv"):
        (tmp_path / "deep" / "er" / name).touch()
    assert find_file(tmp_path, "Table v*.csv") == tmp_path / "deep" / "er" / "Table v1.csv"
    with pytest.raises(InputError, match=r"has no absent\.csv; give the folder of the download"):
        find_file(tmp_path, "absent.csv")


def test_a_cell_that_is_not_known_is_reported_with_what_is_known() -> None:
    problems: list[Problem] = []
    with reporting(problems, "view 1"):
        decode({"side": "B"}, "side", {"L": "L", "R": "R"})
    assert problems == [Problem("view 1", "Its side 'B' is none of L, R.")]
