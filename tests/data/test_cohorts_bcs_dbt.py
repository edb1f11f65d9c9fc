"""Reading BCS-DBT: a wrong join would train on the wrong truth, and nobody would see it."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bcs_dbt_download import ONE_HOT, ROOT, by_name, download, paths_row, place, reasons, series_uid, tables_of
from support.csv_files import append, rows_of, write_csv
from support.dicom_files import dataset, write
from support.downloads import touch

from mm3d.data.datasets import bcs_dbt, tables
from mm3d.data.dicom.kinds import TOMOSYNTHESIS
from mm3d.data.records import Annotation
from mm3d.shared.errors import InputError

# What the tables mean


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
    assert found["lcc"].annotations == (
        Annotation((100, 200, 130, 240), malignant=True, slice=16, kind="architectural distortion"),
        Annotation((0, 0, 5, 5), malignant=False, slice=3),
    )
    assert found["lmlo"].annotations == found["rcc"].annotations == ()
    assert all(view.modality == "DBT" and view.upright for view in cohort.views())
    assert (found["rmlo"].laterality, found["rmlo"].position) == ("R", "MLO")
    assert not cohort.problems
    assert any("actionable" in note for note in cohort.notes)


def test_a_biopsied_view_without_boxes_is_not_annotated(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Cancer", "rcc": "Benign", "rmlo": "Normal"})
    found = by_name(bcs_dbt.read(tmp_path))
    assert found["lcc"].annotations is None
    assert found["rcc"].annotations is None
    assert found["rmlo"].annotations == ()


def test_without_the_table_of_boxes_nothing_biopsied_is_annotated_and_the_user_is_told(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Cancer", "rcc": "Normal"})
    (tmp_path / "BCS-DBT-boxes-train-v2.csv").unlink()
    cohort = bcs_dbt.read(tmp_path)
    assert by_name(cohort)["lcc"].annotations is None
    assert any("train boxes are missing" in note for note in cohort.notes)


def test_first_version_boxes_have_no_volume_slices(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Benign"})
    write_csv(tmp_path / "BCS-DBT-boxes-train-v2.csv", tables.BOXES[:-1], "DBT-P00001,S1,lcc,0,70,1,2,3,4,benign,0")
    assert by_name(bcs_dbt.read(tmp_path))["lcc"].annotations == (Annotation((1, 2, 4, 6), malignant=False, slice=70),)


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
    assert by_name(cohort)["lcc"].annotations is None
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
    assert found["lcc"].annotations
    assert found["lcc2"].annotations is None  # a cancer that nobody marked in this repeat, not a healthy view
    assert found["lmlo1"].annotations == ()
    assert found["rmlo"].annotations == ()  # the box of the repeat is not its box
    assert [finding.slice for finding in found["rmlo1"].annotations or ()] == [5]
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
    assert found["lcc2"].annotations
    assert found["rcc1"].annotations is None
    assert found["rcc2"].annotations is None
    assert list(reasons(cohort)) == ["rcc"]


def test_boxes_of_a_view_that_was_not_published_are_not_those_of_its_repeat(tmp_path: Path) -> None:
    download(tmp_path, {"lcc2": "Cancer"}, ("lcc,0,7,1,2,3,4,cancer,0,49",))
    append(tmp_path / "BCS-DBT-labels-train-v2.csv", f"DBT-P00001,S1,lcc,{ONE_HOT['Cancer']}")
    cohort = bcs_dbt.read(tmp_path)
    assert by_name(cohort)["lcc2"].annotations is None
    assert "does not name its file" in reasons(cohort)["lcc"]


def test_rows_that_do_not_belong_together_are_reported(tmp_path: Path) -> None:
    download(
        tmp_path, {"lcc": "Normal", "lmlo": "", "rxccl": "Normal", "rcc": "Normal"}, ("rmlo,0,1,1,2,3,4,cancer,0,9",)
    )
    more = (f"DBT-P00001,S1,rcc,{ONE_HOT['Cancer']}", f"DBT-P00002,S1,lcc,{ONE_HOT['Normal']}")
    append(tmp_path / "BCS-DBT-labels-train-v2.csv", *more)
    cohort = bcs_dbt.read(tmp_path)
    assert list(by_name(cohort)) == ["lcc"]
    why = reasons(cohort)
    assert why["lmlo"] == "It has no row in the labels."
    assert "none of lcc, lmlo, rcc and rmlo" in why["rxccl"]
    assert "several rows" in why["rcc"]
    assert "no other table" in why["rmlo"]
    assert "does not name its file" in why["DBT-P00002 S1 lcc"]


def test_of_several_labels_none_is_lent_to_a_repeat(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Cancer", "lcc2": "", "rcc": "Normal"})
    append(tmp_path / "BCS-DBT-labels-train-v2.csv", f"DBT-P00001,S1,lcc,{ONE_HOT['Normal']}")
    cohort = bcs_dbt.read(tmp_path)
    assert list(by_name(cohort)) == ["rcc"]
    assert all("several rows" in reasons(cohort)[name] for name in ("lcc", "lcc2"))


def test_rows_far_apart_belong_to_one_view(tmp_path: Path) -> None:
    """Tables are read in blocks of rows."""
    keys = [f"P{number},S1,lcc" for number in range(1300)]
    write_csv(tmp_path / "BCS-DBT-file-paths-train.csv", tables.FILE_PATHS, *(f"{key},a,a" for key in keys))
    labels = [f"{key},{ONE_HOT['Cancer' if key == keys[7] else 'Normal']}" for key in reversed(keys)]
    write_csv(tmp_path / "BCS-DBT-labels-train.csv", tables.LABELS, *labels, f"{keys[3]},{ONE_HOT['Normal']}")
    box = f"{keys[7]},0,3,0,0,5,5,cancer,0,49"
    far = [f"P{number},S1,rcc,0,3,0,0,5,5,cancer,0,49" for number in range(1300)]
    write_csv(tmp_path / "BCS-DBT-boxes-train.csv", tables.BOXES, box, *far, box)
    views, problems, _ = bcs_dbt.read_tables(bcs_dbt.newest_tables(tmp_path.glob("*.csv")))
    found = {view.key.patient: len(view.annotations or ()) for view in views}
    assert len(found) == 1299
    assert (found["P7"], sum(found.values())) == (2, 2)
    assert [problem.subject for problem in problems[:2]] == ["P3 S1 lcc", "P0 S1 rcc"]


def test_known_mislabelled_views_are_left_out(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Normal", "lmlo": "Normal", "rcc": "Normal"}, patient="DBT-P03027")
    cohort = bcs_dbt.read(tmp_path)
    assert len(list(cohort.views())) == 1
    assert [problem.reason for problem in cohort.problems] == ["It is known to be mislabelled."] * 2


# Which tables


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


# Where the files are


def write_dicom(path: Path, series: str) -> Path:
    return write(dataset(np.zeros((2, 2), np.uint16), TOMOSYNTHESIS, SeriesInstanceUID=series), path)


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


# The published tables


@pytest.fixture
def published(real_data: Path) -> Path:
    return real_data / "bcs-dbt"


def test_the_published_train_tables_give_the_published_numbers(published: Path) -> None:
    found = bcs_dbt.newest_tables(published.glob("*.csv"))
    assert found["train"]["labels"].name == "BCS-DBT labels-train-v2.csv"
    views, problems, _ = bcs_dbt.read_tables(found)
    assert not [problem for problem in problems if problem.subject == "train"]
    assert len(views) == len({view.key for view in views}) == 19_148
    assert len({view.key.patient for view in views}) == 4_362
    grades = Counter(view.grade for view in views)
    assert [grades[grade] for grade in tables.GRADES] == [18_232, 716, 124, 76]
    boxes = [finding for view in views for finding in view.annotations or ()]
    assert Counter(box.malignant for box in boxes) == {False: 137, True: 87}
    boxed = [view for view in views if view.annotations]
    assert (len(boxed), len({view.key.patient for view in boxed})) == (200, 101)
    assert all(view.annotations is not None for view in views)  # every biopsied view of this split is marked
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
