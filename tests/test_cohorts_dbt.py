"""Reading BCS-DBT and tables like its: a wrong join would train on the wrong truth, and nobody would see it."""

import csv
import os
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import UID, BreastTomosynthesisImageStorage, ExplicitVRLittleEndian

from mm3d.cohorts import bcs_dbt, tables
from mm3d.errors import InputError
from mm3d.records import Breast, Cohort, Finding, Label, Laterality, Modality, Position, View

ONE_HOT = {grade: ",".join(str(int(grade == other)) for other in tables.GRADES) for grade in tables.GRADES}
ROOT = "Breast-Cancer-Screening-DBT"


def series_uid(tail: str) -> str:
    return f"1.2.826.0.1.3680043.8.498.9{tail:0>20}"


def write_csv(path: Path, header: tuple[str, ...] | str, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    first = header if isinstance(header, str) else ",".join(header)
    path.write_text("\n".join([first, *rows]), encoding="utf-8")


def paths_row(patient: str, view: str, tail: str, study: str = "S1") -> str:
    descriptive = f"{ROOT}/{patient}/01-01-2000-{study}-MAMMO-11111/{tail[:2]}.000000-{tail[-5:]}/1-1.dcm"
    return f"{patient},{study},{view},{descriptive},{ROOT}/{patient}/{series_uid('11111')}/{series_uid(tail)}/1-1.dcm"


def place(folder: Path, row: str, column: int = 4) -> Path:
    """An empty file where the fifth column (classic) or the fourth (descriptive) of a row says."""
    return touch(folder / row.split(",")[column])


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def write_dicom(path: Path, uid: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = BreastTomosynthesisImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = UID(f"{uid}.1")
    data.SeriesInstanceUID = uid
    data.save_as(path, enforce_file_format=True)
    return path


def download(
    folder: Path, views: dict[str, str], boxes: tuple[str, ...] = (), split: str = "train", patient: str = "DBT-P00001"
) -> None:
    """Tables and empty files of one patient: each view with its label."""
    rows = [paths_row(patient, view, f"{number:05}") for number, view in enumerate(views, 10)]
    write_csv(folder / f"BCS-DBT-file-paths-{split}-v2.csv", tables.FILE_PATHS, *rows)
    labels = [f"{patient},S1,{view},{ONE_HOT.get(label, label)}" for view, label in views.items() if label]
    write_csv(folder / f"BCS-DBT-labels-{split}-v2.csv", tables.LABELS, *labels)
    write_csv(folder / f"BCS-DBT-boxes-{split}-v2.csv", tables.BOXES, *(f"{patient},S1,{box}" for box in boxes))
    for row in rows:
        place(folder, row)


def by_name(cohort: Cohort) -> dict[str, View]:
    return {view.name.removeprefix("DBT-P00001 S1 "): view for view in cohort.views()}


def reasons(cohort: Cohort) -> dict[str, str]:
    return {problem.subject.removeprefix("DBT-P00001 S1 "): problem.reason for problem in cohort.problems}


# BCS-DBT: what the tables mean


def test_boxes_labels_and_breasts(tmp_path: Path) -> None:
    views = {"lcc": "Cancer", "lmlo": "Normal", "rcc": "Actionable", "rmlo": "Normal"}
    download(tmp_path, views, ("lcc,0,16,100,200,30,40,cancer,1,49", "lcc,2,3,0,0,5,5,benign,0,49"))
    cohort = bcs_dbt.read(tmp_path)
    left, right = cohort.breasts
    assert (left.patient, left.exam, left.laterality, left.label, left.split) == (
        "DBT-P00001",
        "S1",
        "L",
        "malignant",
        "train",
    )
    assert (right.label, right.attributes) == ("negative", {"bcs_dbt": "actionable"})  # the worst of its two views
    assert left.attributes == {"bcs_dbt": "cancer"}
    found = by_name(cohort)
    assert found["lcc"].findings == (
        Finding((100, 200, 130, 240), malignant=True, slice=16, kind="architectural distortion"),
        Finding((0, 0, 5, 5), malignant=False, slice=3),
    )
    assert found["lmlo"].findings == found["rcc"].findings == ()
    assert all(view.modality == "DBT" and view.upright for view in cohort.views())
    assert (found["rmlo"].laterality, found["rmlo"].position) == ("R", "MLO")
    assert not cohort.problems
    assert any("actionable" in note for note in cohort.notes)


def test_a_biopsied_view_without_boxes_is_not_annotated(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Cancer", "rcc": "Benign", "rmlo": "Normal"})
    found = by_name(bcs_dbt.read(tmp_path))
    assert found["lcc"].findings is None
    assert found["rcc"].findings is None
    assert found["rmlo"].findings == ()


def test_without_the_table_of_boxes_nothing_biopsied_is_annotated_and_the_user_is_told(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Cancer", "rcc": "Normal"})
    (tmp_path / "BCS-DBT-boxes-train-v2.csv").unlink()
    cohort = bcs_dbt.read(tmp_path)
    assert by_name(cohort)["lcc"].findings is None
    assert any("train boxes are missing" in note for note in cohort.notes)


def test_first_version_boxes_have_no_volume_slices(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Benign"})
    write_csv(tmp_path / "BCS-DBT-boxes-train-v2.csv", tables.BOXES[:-1], "DBT-P00001,S1,lcc,0,70,1,2,3,4,benign,0")
    assert by_name(bcs_dbt.read(tmp_path))["lcc"].findings == (Finding((1, 2, 4, 6), malignant=False, slice=70),)


@pytest.mark.parametrize("label", ["1,0,1,0", "0,0,0,0", ",,,1", "0,0,0,2", "0,0,0,yes"])
def test_a_label_that_is_not_one_hot_leaves_its_view_out(tmp_path: Path, label: str) -> None:
    download(tmp_path, {"lcc": label, "rcc": "Normal"})
    cohort = bcs_dbt.read(tmp_path)
    assert list(by_name(cohort)) == ["rcc"]
    assert "exactly one of Normal, Actionable, Benign, Cancer" in reasons(cohort)["lcc"]


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ("lcc,0,49,1,2,3,4,cancer,0,49", "slice 49"),
        ("lcc,0,-1,1,2,3,4,cancer,0,49", "slice -1"),
        ("lcc,0,1.5,1,2,3,4,cancer,0,49", "not a whole number"),
        ("lcc,0,1,nan,2,3,4,cancer,0,49", "X 'nan' is not a number"),
        ("lcc,0,1,1,2,inf,4,cancer,0,49", "Width 'inf' is not a number"),
        ("lcc,0,1,1,2,0,4,cancer,0,49", "has no area"),
        ("lcc,0,1,1,2,3,4,unsure,0,49", "neither benign nor cancer"),
    ],
)
def test_a_damaged_box_leaves_the_view_unannotated_and_the_breast_malignant(
    tmp_path: Path, box: str, reason: str
) -> None:
    download(tmp_path, {"lcc": "Cancer", "lmlo": "Normal"}, (box,))
    cohort = bcs_dbt.read(tmp_path)
    assert by_name(cohort)["lcc"].findings is None
    assert cohort.breasts[0].label == "malignant"
    assert reason in reasons(cohort)["lcc"]


def test_boxes_that_contradict_the_label_leave_the_view_out(tmp_path: Path) -> None:
    boxes = ("lcc,0,1,1,2,3,4,cancer,0,49", "rcc,0,1,1,2,3,4,benign,0,49")
    download(tmp_path, {"lcc": "Benign", "rcc": "Normal", "rmlo": "Normal"}, boxes)
    cohort = bcs_dbt.read(tmp_path)
    assert list(by_name(cohort)) == ["rmlo"]
    assert "cancer box, but its label is Benign" in reasons(cohort)["lcc"]
    assert "boxes, but its label is Normal" in reasons(cohort)["rcc"]


def test_repeats_have_their_own_rows_or_the_label_without_number(tmp_path: Path) -> None:
    boxes = ("lcc,0,1,1,2,3,4,cancer,0,49", "rmlo1,0,5,1,2,3,4,benign,0,49")
    views = {"lcc": "Cancer", "lcc2": "", "lmlo": "Normal", "lmlo1": "", "rmlo": "Normal", "rmlo1": "Benign"}
    download(tmp_path, views, boxes)
    cohort = bcs_dbt.read(tmp_path)
    found = by_name(cohort)
    assert found["lcc"].findings
    assert found["lcc2"].findings is None  # a cancer that nobody marked in this repeat, not a healthy view
    assert found["lmlo1"].findings == ()
    assert found["rmlo"].findings == ()  # the box of the repeat is not its box
    assert [finding.slice for finding in found["rmlo1"].findings or ()] == [5]
    assert [breast.label for breast in cohort.breasts] == ["malignant", "benign"]
    assert (found["lcc2"].laterality, found["lcc2"].position) == ("L", "CC")
    assert not cohort.problems


def test_a_lone_repeat_has_the_boxes_without_number_and_two_repeats_share_none(tmp_path: Path) -> None:
    download(
        tmp_path, {"lcc2": "", "rcc1": "", "rcc2": ""}, ("lcc,0,7,1,2,3,4,cancer,0,49", "rcc,0,7,1,2,3,4,cancer,0,49")
    )
    labels = [f"DBT-P00001,S1,{view},{ONE_HOT['Cancer']}" for view in ("lcc", "rcc")]
    write_csv(tmp_path / "BCS-DBT-labels-train-v2.csv", tables.LABELS, *labels)
    cohort = bcs_dbt.read(tmp_path)
    found = by_name(cohort)
    assert found["lcc2"].findings
    assert found["rcc1"].findings is None
    assert found["rcc2"].findings is None
    assert list(reasons(cohort)) == ["rcc"]


def test_boxes_of_a_view_that_was_not_published_are_not_those_of_its_repeat(tmp_path: Path) -> None:
    download(tmp_path, {"lcc2": "Cancer"}, ("lcc,0,7,1,2,3,4,cancer,0,49",))
    labels = tmp_path / "BCS-DBT-labels-train-v2.csv"
    labels.write_text(f"{labels.read_text()}\nDBT-P00001,S1,lcc,{ONE_HOT['Cancer']}")
    cohort = bcs_dbt.read(tmp_path)
    assert by_name(cohort)["lcc2"].findings is None
    assert "does not name its file" in reasons(cohort)["lcc"]


def test_rows_that_do_not_belong_together_are_reported(tmp_path: Path) -> None:
    download(
        tmp_path, {"lcc": "Normal", "lmlo": "", "rxccl": "Normal", "rcc": "Normal"}, ("rmlo,0,1,1,2,3,4,cancer,0,9",)
    )
    labels = tmp_path / "BCS-DBT-labels-train-v2.csv"
    labels.write_text(
        f"{labels.read_text()}\nDBT-P00001,S1,rcc,{ONE_HOT['Cancer']}\nDBT-P00002,S1,lcc,{ONE_HOT['Normal']}"
    )
    cohort = bcs_dbt.read(tmp_path)
    assert list(by_name(cohort)) == ["lcc"]
    why = reasons(cohort)
    assert why["lmlo"] == "It has no row in the labels."
    assert "none of lcc, lmlo, rcc and rmlo" in why["rxccl"]
    assert "several rows" in why["rcc"]
    assert "no other table" in why["rmlo"]
    assert "does not name its file" in why["DBT-P00002 S1 lcc"]


@pytest.mark.parametrize("keep", [False, True])
def test_known_mislabelled_views_are_left_out_unless_wanted(tmp_path: Path, keep: bool) -> None:
    download(tmp_path, {"lcc": "Normal", "lmlo": "Normal", "rcc": "Normal"}, patient="DBT-P03027")
    cohort = bcs_dbt.read(tmp_path, keep_mislabelled=keep)
    assert len(list(cohort.views())) == (3 if keep else 1)
    assert [problem.reason for problem in cohort.problems] == ([] if keep else ["It is known to be mislabelled."] * 2)


# BCS-DBT: which tables


def test_the_newest_version_of_each_table_is_taken(tmp_path: Path) -> None:
    names = """BCS-DBT file-paths-train.csv, BCS-DBT-file-paths-train-v2.csv, old/BCS-DBT boxes-train.csv,
        BCS-DBT boxes-train-v2.csv, BCS-DBT labels-train.csv, tables/BCS-DBT-labels-train-v2.csv,
        BCS-DBT-labels-validation.csv, BCS-DBT-labels-validation-PHASE-2-Jan-2024.csv,
        1/BCS-DBT-labels-validation-PHASE-2.csv, BCS-DBT-boxes-validation-v2.csv,
        BCS-DBT-boxes-validation-v2-PHASE-2-Jan-2024.csv, BCS-DBT-labels-test-PHASE-2.csv, BCS-DBT-labels-test-v2.csv,
        BCS-DBT file paths test v2.csv, ._BCS-DBT-boxes-test-v2.csv, BCS-DBT-predictions-test.csv"""
    paths = [tmp_path / name.strip() for name in names.split(",")]
    found = bcs_dbt.newest_tables(paths)
    chosen = {(split, kind): path.name for split, kinds in found.items() for kind, path in kinds.items()}
    assert chosen == {
        ("train", "file-paths"): "BCS-DBT-file-paths-train-v2.csv",
        ("train", "labels"): "BCS-DBT-labels-train-v2.csv",
        ("train", "boxes"): "BCS-DBT boxes-train-v2.csv",
        ("validation", "labels"): "BCS-DBT-labels-validation-PHASE-2-Jan-2024.csv",
        ("validation", "boxes"): "BCS-DBT-boxes-validation-v2-PHASE-2-Jan-2024.csv",
        ("test", "labels"): "BCS-DBT-labels-test-PHASE-2.csv",
        ("test", "file-paths"): "BCS-DBT file paths test v2.csv",
    }


def test_splits_keep_their_names_and_an_incomplete_one_is_reported(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Normal"}, split="train")
    download(tmp_path, {"lcc": "Normal"}, split="test", patient="DBT-P00002")
    write_csv(tmp_path / "BCS-DBT-labels-validation-PHASE-2-Jan-2024.csv", tables.LABELS)
    cohort = bcs_dbt.read(tmp_path)
    assert {breast.patient: breast.split for breast in cohort.breasts} == {"DBT-P00001": "train", "DBT-P00002": "test"}
    assert reasons(cohort) == {"validation": "Its table of file-paths is missing."}


def test_a_folder_without_tables_and_one_without_images_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent is not a folder"):
        bcs_dbt.read(tmp_path / "absent")
    with pytest.raises(InputError, match=f"{tmp_path.name} has no split of BCS-DBT"):
        bcs_dbt.read(tmp_path)
    row = paths_row("DBT-P00001", "lcc", "12345")
    write_csv(tmp_path / "BCS-DBT-file-paths-train.csv", tables.FILE_PATHS, row)
    write_csv(tmp_path / "BCS-DBT-labels-train.csv", tables.LABELS, f"DBT-P00001,S1,lcc,{ONE_HOT['Normal']}")
    with pytest.raises(InputError, match=f"{tmp_path.name} has none of the 1 files"):
        bcs_dbt.read(tmp_path)


# BCS-DBT: where the files are


def tables_of(folder: Path, rows: list[str], label: str = "Normal") -> None:
    write_csv(folder / "BCS-DBT-file-paths-train-v2.csv", tables.FILE_PATHS, *rows)
    labels = [",".join(row.split(",")[:3]) + f",{ONE_HOT[label]}" for row in rows]
    write_csv(folder / "BCS-DBT-labels-train-v2.csv", tables.LABELS, *labels)


def test_files_are_found_under_every_folder_name_that_the_archive_used(tmp_path: Path) -> None:
    rows = [
        paths_row("DBT-P00001", view, f"{tail}0000{tail}")
        for tail, view in enumerate(("lcc", "lmlo", "rcc", "rmlo"), 1)
    ]
    tables_of(tmp_path, rows)
    patient = tmp_path / ROOT / "DBT-P00001"
    expected = {
        "lcc": place(tmp_path, rows[0]),
        "lmlo": place(tmp_path, rows[1], 3),
        "rcc": touch(patient / "01-01-2000-DBT-S1-NA-11111" / "20566.000000-NA-00003" / "1-01.dcm"),
        "rmlo": touch(tmp_path / "elsewhere" / series_uid("400004") / "0.DCM"),
    }
    touch(expected["rcc"].with_name("._1-01.dcm"))
    cohort = bcs_dbt.read(tmp_path)
    assert {name: view.files for name, view in by_name(cohort).items()} == {
        name: (path,) for name, path in expected.items()
    }


def test_the_folder_may_be_the_collection_or_lie_above_it_or_hold_a_link(tmp_path: Path) -> None:
    rows = [paths_row("DBT-P00001", "lcc", "12345")]
    file = place(tmp_path / "disk", rows[0])
    tables_of(tmp_path / "disk" / ROOT, rows)
    for folder in (tmp_path / "disk" / ROOT, tmp_path / "disk", tmp_path):
        assert by_name(bcs_dbt.read(folder))["lcc"].files == (file,)
    tables_of(tmp_path / "linked", rows)
    (tmp_path / "linked" / ROOT).symlink_to(tmp_path / "disk" / ROOT)
    (tmp_path / "disk" / ROOT / "up").symlink_to(tmp_path)  # without end, if links were followed blindly
    assert by_name(bcs_dbt.read(tmp_path / "linked"))["lcc"].files[0].samefile(file)


def test_of_several_candidates_the_header_decides(tmp_path: Path) -> None:
    row = paths_row("DBT-P00001", "lcc", "712345")
    tables_of(tmp_path, [row, paths_row("DBT-P00001", "rcc", "54321")])
    place(tmp_path, paths_row("DBT-P00001", "rcc", "54321"))
    patient = tmp_path / ROOT / "DBT-P00001"
    write_dicom(patient / "01-01-2000-NA-11111" / "1.000000-NA-12345" / "1-1.dcm", series_uid("812345"))
    touch(patient / "01-01-2001-NA-22222" / "2.000000-NA-12345" / "1-1.dcm")  # not even DICOM
    write_dicom(tmp_path / ROOT / "DBT-P00002" / "x-11111" / "3.000000-NA-12345" / "1-1.dcm", series_uid("712345"))
    assert "not downloaded" in reasons(bcs_dbt.read(tmp_path))["lcc"]
    right = write_dicom(patient / "01-01-2001-NA-22222" / "4.000000-NA-12345" / "1-1.dcm", series_uid("712345"))
    assert by_name(bcs_dbt.read(tmp_path))["lcc"].files == (right,)
    write_dicom(right.with_name("1-2.dcm"), series_uid("712345"))
    assert "several files" in reasons(bcs_dbt.read(tmp_path))["lcc"]


def test_one_file_is_never_two_views(tmp_path: Path) -> None:
    rows = [paths_row("DBT-P00001", "lcc", "112345"), paths_row("DBT-P00001", "lmlo", "212345")]
    tables_of(tmp_path, [*rows, paths_row("DBT-P00001", "rcc", "54321")])
    place(tmp_path, paths_row("DBT-P00001", "rcc", "54321"))
    touch(tmp_path / ROOT / "DBT-P00001" / "x-11111" / "1.000000-NA-12345" / "1-1.dcm")
    cohort = bcs_dbt.read(tmp_path)
    assert list(by_name(cohort)) == ["rcc"]
    assert all("another view" in reason for reason in reasons(cohort).values())


def test_a_partial_download_counts_what_is_missing_and_keeps_the_label(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Cancer", "lmlo": "Normal", "rcc": "Normal"})
    next((tmp_path / ROOT).rglob(f"{series_uid('00010')}/1-1.dcm")).unlink()
    cohort = bcs_dbt.read(tmp_path)
    assert list(by_name(cohort)) == ["lmlo", "rcc"]
    assert "not downloaded" in reasons(cohort)["lcc"]
    assert cohort.breasts[0].label == "malignant"  # the other view shows nothing, but this breast has cancer


@pytest.mark.parametrize("path", ["../secret.dcm", "/etc/passwd", "a/../../secret.dcm", r"..\secret.dcm", r"C:\x.dcm"])
@pytest.mark.parametrize("reader", [bcs_dbt.read, tables.read])
def test_a_path_that_leaves_the_folder_is_never_opened(tmp_path: Path, path: str, reader: Any) -> None:
    touch(tmp_path / "secret.dcm")
    folder = tmp_path / "cohort"
    rows = [f"P1,S1,lcc,{path},{path}", "P1,S1,rcc,a/b/c/1-1.dcm,a/b/c/1-1.dcm", f"P1,S1,lmlo,{path},a/b/d/1-1.dcm"]
    for name in ("a/b/c/1-1.dcm", "a/b/d/1-1.dcm"):
        touch(folder / name)
    tables_of(folder, rows)
    write_csv(folder / "boxes.csv", tables.BOXES)
    for kind in ("file-paths", "labels"):
        (folder / f"{kind}.csv").write_bytes((folder / f"BCS-DBT-{kind}-train-v2.csv").read_bytes())
    cohort = reader(folder)
    assert [view.name for view in cohort.views()] == ["P1 S1 rcc"]
    assert [problem.reason for problem in cohort.problems] == [f"Its path {path!r} leaves the folder."] * 2


# Our own tables


def sample(folder: Path) -> tuple[Cohort, dict[str, int]]:
    """One of everything that the format can say."""

    def view(
        name: str,
        side: Laterality,
        position: Position,
        findings: tuple[Finding, ...] | None,
        modality: Modality = "DBT",
    ) -> View:
        file = touch(folder / "images" / f"{name}.dcm")
        return View(name, side, position, modality, (file,), findings, upright=modality == "DBT")

    cancer = Finding(
        (10, 20, 30.5, 40.25), malignant=True, slice=3, first_slice=1, last_slice=5, kind="mass, spiculated"
    )
    benign = Finding((1, 2, 3, 4), malignant=False, slice=0, kind="architectural distortion")
    flat = Finding((5, 6, 7, 8), malignant=True, kind="calcification")
    unplaced = Finding((1, 1, 2, 2), malignant=False)
    views = (
        view("P1 S1 lcc", "L", "CC", (cancer, benign)),
        view("P1 S1 lcc2", "L", "CC", ()),
        view("P1 S1 lmlo", "L", "MLO", None),
        view("image 17", "L", "CC", (), "FFDM"),
        view("P1 S1 lcc FFDM", "L", "CC", (flat,), "FFDM"),
    )
    breasts = (
        Breast("P1", "S1", "L", "malignant", views, "train", {"density": "c", "vendor": "Ärzte, GmbH"}),
        Breast("P1", "S1", "R", "negative", (view("P1 S1 rcc", "R", "CC", None),), "train"),
        Breast("P1", "S2", "R", "negative", (view("x", "R", "CC", (unplaced,)),), "train", {"density": "a"}),
        Breast("P2", "S1", "R", "malignant", (view("occult", "R", "MLO", ()),), "test", {"bcs_dbt": "cancer"}),
        Breast("P3", "S1", "L", "negative", (view("P3 S1 lcc", "L", "CC", ()),), "test", {"bcs_dbt": "actionable"}),
    )
    return Cohort("sample", breasts), {"P1 S1 lcc": 6, "x": 9}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_written_cohort_comes_back(tmp_path: Path) -> None:
    cohort, slices = sample(tmp_path)
    tables.write(cohort, tmp_path, slices)
    back = tables.read(tmp_path)
    assert back.breasts == cohort.breasts
    assert not back.problems
    assert {path.name for path in tmp_path.iterdir()} == {"images", "file-paths.csv", "labels.csv", "boxes.csv"}


def test_readers_of_bcs_dbt_find_its_columns_in_ours(tmp_path: Path) -> None:
    cohort, slices = sample(tmp_path)
    tables.write(cohort, tmp_path, slices)
    for name, columns in (("file-paths", tables.FILE_PATHS), ("labels", tables.LABELS), ("boxes", tables.BOXES)):
        header = (tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines()[0]
        assert tuple(header.split(","))[: len(columns)] == columns
    labels = rows_of(tmp_path / "labels.csv")
    assert all(sorted(row[grade] for grade in tables.GRADES) == ["0", "0", "0", "1"] for row in labels)
    assert labels[-1]["Actionable"] == "1"
    first, second, flat, *_ = rows_of(tmp_path / "boxes.csv")
    assert ",".join(first[column] for column in tables.BOXES) == "P1,S1,lcc,0,3,10,20,20.5,20.25,cancer,0,6"
    assert (second["AD"], second["FirstSlice"]) == ("1", "")
    assert (flat["Modality"], flat["Slice"], flat["VolumeSlices"]) == ("FFDM", "0", "1")
    assert all(row["descriptive_path"] == row["classic_path"] for row in rows_of(tmp_path / "file-paths.csv"))
    assert [row["View"] for row in rows_of(tmp_path / "file-paths.csv")][:5] == ["lcc", "lcc2", "lmlo", "lcc1", "lcc"]


def test_bcs_dbt_survives_the_way_through_our_tables(tmp_path: Path) -> None:
    views = {"lcc": "Cancer", "lmlo": "Cancer", "rcc": "Actionable", "rmlo1": "Benign", "rmlo": "Normal"}
    download(tmp_path, views, ("lcc,0,16,100,200,30,40,cancer,1,49", "rmlo1,0,1,1,2,3,4,benign,0,9"))
    cohort = bcs_dbt.read(tmp_path)
    tables.write(cohort, tmp_path, {view.name: 49 for view in cohort.views()})
    assert tables.read(tmp_path).breasts == cohort.breasts
    assert set(rows_of(tmp_path / "file-paths.csv")[0]) == {*tables.FILE_PATHS, "Modality", "Split"}


def test_plain_tables_of_bcs_dbt_are_tables_of_ours(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Cancer", "rcc": "Normal"}, ("lcc,0,16,100,200,30,40,cancer,1,49",))
    for kind in ("file-paths", "labels", "boxes"):
        (tmp_path / f"BCS-DBT-{kind}-train-v2.csv").rename(tmp_path / f"{kind}.csv")
    found = by_name(tables.read(tmp_path))
    assert found["rcc"].findings == ()
    assert found["lcc"].findings == (Finding((100, 200, 130, 240), True, slice=16, kind="architectural distortion"),)
    (tmp_path / "boxes.csv").unlink()  # half a copy must not pass as a cohort that nobody annotated
    with pytest.raises(InputError, match=r"boxes\.csv is missing"):
        tables.read(tmp_path)


def test_a_table_saved_by_pandas_still_reads(tmp_path: Path) -> None:
    cohort, slices = sample(tmp_path)
    tables.write(cohort, tmp_path, slices)
    text = (tmp_path / "boxes.csv").read_text(encoding="utf-8")
    floats = text.replace(",0,3,10,20,", ",0,3.0,10.0,20.0,").replace(",1,5,", ",1.0,5.0,")
    assert floats != text
    (tmp_path / "boxes.csv").write_text("\ufeff" + floats, encoding="utf-8")
    labels = (tmp_path / "labels.csv").read_text(encoding="utf-8").splitlines()
    numbered = [f"{'' if index == 0 else index - 1},{line}" for index, line in enumerate(labels)]
    (tmp_path / "labels.csv").write_text("\n".join(numbered), encoding="utf-8")
    assert tables.read(tmp_path).breasts == cohort.breasts


@pytest.mark.parametrize(
    ("table", "old", "new", "name", "reason"),
    [
        ("boxes", "lcc,0,0,5,6,", "lcc,0,3,5,6,", "P1 S1 lcc FFDM", "slice 3"),  # a mammogram has only slice 0
        ("boxes", ",calcification,FFDM", ",calcification,MRI", "P1 S1 lcc MRI", "no other table"),
        ("file-paths", ",x,1", ",x,0", "P1 S2 rcc", "boxes, but its label is Normal and it is not annotated"),
        ("file-paths", ",x,1", ",x,yes", "P1 S2 rcc", "neither 0 nor 1"),
        ("file-paths", "P2,S1,rmlo,", "P2,,rmlo,", "P2  rmlo", "no StudyUID"),
    ],
)
def test_damaged_optional_columns_are_reported(
    tmp_path: Path, table: str, old: str, new: str, name: str, reason: str
) -> None:
    cohort, slices = sample(tmp_path)
    tables.write(cohort, tmp_path, slices)
    path = tmp_path / f"{table}.csv"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    problems = {problem.subject: problem.reason for problem in tables.read(tmp_path).problems}
    assert reason in problems[name]


@pytest.mark.parametrize(
    ("files", "changes", "reason"),
    [
        (("../outside.dcm",), {}, "is not in"),
        (("a.dcm", "b.dcm"), {}, "one file per view"),
        (("a.dcm",), {"upright": False}, "upright"),
        (("a.dcm",), {"modality": "FFDM", "upright": False}, "has no slices"),
        (("a.dcm",), {"name": "no slice count"}, "number of its slices"),
        (("a.dcm",), {"findings": (Finding((1, 1, 2, 2), False, slice=9),)}, "the volume has 9"),
        (("line\nbreak.dcm",), {}, "would not come back"),
    ],
)
def test_what_the_tables_cannot_hold_is_refused_before_anything_is_written(
    tmp_path: Path, files: tuple[str, ...], changes: dict[str, Any], reason: str
) -> None:
    folder = tmp_path / "cohort"
    given: dict[str, Any] = {"name": "v", "modality": "DBT", "upright": True}
    given |= {"findings": (Finding((1, 1, 2, 2), False, slice=0),)} | changes
    view = View(laterality="L", position="CC", files=tuple(folder / name for name in files), **given)
    with pytest.raises(InputError, match=reason):
        tables.write(Cohort("c", (Breast("P", "S", "L", "benign", (view,)),)), folder, {"v": 9})
    assert not list(tmp_path.rglob("*.csv"))


def test_attributes_and_breasts_that_would_be_confused_or_lost_are_refused(tmp_path: Path) -> None:
    view = View("v", "L", "CC", "DBT", (tmp_path / "a.dcm",), (), upright=True)
    breast = Breast("P", "S", "L", "negative", (view,), attributes={"Cancer": "1"})
    with pytest.raises(InputError, match="'Cancer'"):
        tables.write(Cohort("c", (breast,)), tmp_path, {})
    other = View("w", "L", "CC", "DBT", (tmp_path / "b.dcm",), (), upright=True)
    twice = (Breast("P", "S", "L", "negative", (view,)), Breast("P", "S", "L", "benign", (other,)))
    with pytest.raises(InputError, match="P S L is twice"):
        tables.write(Cohort("c", twice), tmp_path, {})
    with pytest.raises(InputError, match="P S L has no label"):
        tables.write(Cohort("c", (Breast("P", "S", "L", None, (view,)),)), tmp_path, {})


SLICES = 40
names = st.text(st.sampled_from("abcXYZ012 -_.,;'\"äß"), min_size=1, max_size=8).map(str.strip).filter(bool)
corners = st.tuples(*[st.integers(0, 8000).map(lambda number: number / 4)] * 2)
sizes = st.tuples(*[st.integers(1, 4000).map(lambda number: number / 4)] * 2)


@st.composite
def some_findings(draw: st.DrawFn, modality: Modality, label: Label) -> tuple[Finding, ...] | None:
    if draw(st.booleans()):
        return draw(st.sampled_from([None, ()]))
    result = []
    for _ in range(draw(st.integers(1, 3))):
        (x, y), (width, height) = draw(corners), draw(sizes)
        first, middle, last = sorted(draw(st.tuples(*[st.integers(0, SLICES - 1)] * 3)))
        ranged = modality == "DBT" and draw(st.booleans())
        result.append(
            Finding(
                box=(x, y, x + width, y + height),
                malignant=label == "malignant" and draw(st.booleans()),
                slice=middle if modality == "DBT" and draw(st.booleans()) else None,
                first_slice=first if ranged else None,
                last_slice=last if ranged else None,
                kind=draw(st.just("") | names),
            )
        )
    return tuple(result)


@st.composite
def cohorts(draw: st.DrawFn, folder: Path) -> Cohort:
    """Anything that records allow; file and view names are numbers, or what a reader of tables would call the view."""
    breasts, count = [], 0
    for patient in draw(st.lists(names, max_size=3, unique=True)):
        split = draw(st.sampled_from(["", "train", "test"]))
        exams = draw(
            st.lists(st.tuples(names, st.sampled_from(get_args(Laterality))), min_size=1, max_size=2, unique=True)
        )
        for exam, side in exams:
            label = draw(st.sampled_from(get_args(Label)))
            views = []
            for _ in range(draw(st.integers(1, 4))):
                count += 1
                modality = draw(st.sampled_from(get_args(Modality)))
                findings = draw(some_findings(modality, label))
                position = draw(st.sampled_from(get_args(Position)))
                file = folder / f"{count}.dcm"
                views.append(View(str(count), side, position, modality, (file,), findings, modality == "DBT"))
            attributes = draw(st.dictionaries(names, names, max_size=2))
            breasts.append(Breast(patient, exam, side, label, tuple(views), split, attributes))
    return Cohort("any", tuple(breasts))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_every_cohort_comes_back(tmp_path: Path, data: st.DataObject) -> None:
    cohort = data.draw(cohorts(tmp_path))
    for view in cohort.views():
        touch(view.files[0])
    tables.write(cohort, tmp_path, {view.name: SLICES for view in cohort.views()})
    back = tables.read(tmp_path)
    assert back.breasts == cohort.breasts
    assert not back.problems


# The published tables


@pytest.fixture
def published(real_data: Path) -> Path:
    return real_data / "bcs-dbt"


def test_the_published_train_tables_give_the_published_numbers(published: Path) -> None:
    found = bcs_dbt.newest_tables(published.glob("*.csv"))
    assert found["train"]["labels"].name == "BCS-DBT labels-train-v2.csv"
    views, problems, _ = bcs_dbt.read_tables(found)
    assert not problems
    assert len(views) == len({view.key for view in views}) == 19_148
    assert len({view.key.patient for view in views}) == 4_362
    grades = Counter(view.grade for view in views)
    assert [grades[grade] for grade in tables.GRADES] == [18_232, 716, 124, 76]
    boxes = [finding for view in views for finding in view.findings or ()]
    assert Counter(box.malignant for box in boxes) == {False: 137, True: 87}
    boxed = [view for view in views if view.findings]
    assert (len(boxed), len({view.key.patient for view in boxed})) == (200, 101)
    assert all(view.findings is not None for view in views)  # every biopsied view of this split is marked
    assert len({view.breast for view in boxed}) == 106
    assert sum(box.kind == "architectural distortion" for box in boxes) == 77


def test_the_published_tables_alone_are_no_download(published: Path) -> None:
    with pytest.raises(InputError, match=r"bcs-dbt has none of the 2596 files"):
        bcs_dbt.read(published)


def test_a_download_is_walked_once_however_many_views_it_has(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = published / "BCS-DBT labels-train-v2.csv"
    (tmp_path / labels.name).write_bytes(labels.read_bytes())
    rows = [
        paths_row(row["PatientID"], row["View"], f"{number:010}", row["StudyUID"])
        for number, row in enumerate(rows_of(labels))
    ]
    write_csv(tmp_path / "BCS-DBT-file-paths-train-v2.csv", tables.FILE_PATHS, *rows)
    for row in rows[::4000]:  # 5 of 19,148 are there
        place(tmp_path, row)
    folders = 1 + sum(path.is_dir() for path in tmp_path.rglob("*"))
    calls: Counter[str] = Counter()
    for name in ("scandir", "listdir", "stat"):
        real = getattr(os, name)

        def counting(*args: Any, real: Any = real, name: str = name, **more: Any) -> Any:
            calls[name] += 1
            return real(*args, **more)

        monkeypatch.setattr(os, name, counting)
    cohort = bcs_dbt.read(tmp_path)
    assert len(list(cohort.views())) == 5
    assert len(cohort.problems) == 19_143
    assert calls["scandir"] == folders
    assert calls["listdir"] == 0
    assert calls["stat"] < folders + 20
