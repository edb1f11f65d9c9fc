"""INbreast: boxes come from outlines and patients from file names; either may go wrong without a message."""

import plistlib
from pathlib import Path

import pytest
from support.csv_files import write_table
from support.downloads import breast_of, reason_of, touch, view_of

from mm3d.data.datasets import inbreast
from mm3d.data.records import Annotation
from mm3d.shared.errors import InputError


def inbreast_download(folder: Path) -> Path:
    def row(number: int, side: str, view: str, birads: str, date: int = 200801) -> dict[str, object]:
        start: dict[str, object] = {"Patient ID": "removed", "Patient age": "removed", "Laterality": side, "View": view}
        return start | {"Acquisition date": date, "File Name": number, "ACR": 2, "Bi-Rads": birads}

    def outlines(number: int, *rois: tuple[str, list[tuple[float, float]]]) -> None:
        entries = [
            {"Name": name, "NumberOfPoints": len(points), "Point_px": [f"({x:f}, {y:f})" for x, y in points]}
            for name, points in rois
        ]
        with (folder / "AllXML" / f"{number}.xml").open("wb") as file:
            plistlib.dump({"Images": [{"ImageIndex": 0, "NumberOfROIs": len(rois), "ROIs": entries}]}, file)

    rows = [
        row(101, "L", "MLO", "4a"),
        row(102, "L", "CC", "6"),
        row(103, "R", "CC", "1"),
        row(104, "R", "CC", "2"),
        row(105, "L", "CC", "3", date=200902),
        row(106, "R", "MLO", "5"),
        row(107, "R", "MLO", "2"),
        row(108, "L", "FB", "2"),
        row(109, "L", "CC", "2"),
    ]
    write_table(folder / "INbreast.csv", rows, delimiter=";")
    for name in (
        "101_aaaa_MG_L_ML_ANON", "102_aaaa_MG_L_CC_ANON", "103_aaaa_MG_R_CC_ANON", "104_bbbb_MG_R_CC_ANON",
        "105_aaaa_MG_L_CC_ANON", "106_cccc_MG_R_ML_ANON", "107_dddd_MG_L_ML_ANON", "108_dddd_MG_L_FB_ANON",
    ):  # fmt: skip
        touch(folder / "AllDICOMs" / f"{name}.dcm")
    (folder / "AllXML").mkdir()
    triangle = [(10.5, 20.0), (30.0, 5.25), (12.0, 40.0)]
    outlines(
        101, ("Mass", triangle), ("Calcification", [(1.0, 1.0)]), ("Pectoral Muscle", triangle), ("Unnamed", triangle)
    )
    outlines(102, ("Espiculated Region", triangle))
    outlines(104, ("Cluster", triangle))
    outlines(106, ("Calcification", [(1.0, 1.0)]), ("Calcification", [(5.0, 1.0), (5.0, 2.0), (5.0, 3.0)]))
    (folder / "AllXML" / "105.xml").write_text("<plist><dict>")
    return folder


def test_inbreast_boxes_are_the_bounds_of_the_outlines(tmp_path: Path) -> None:
    cohort = inbreast.read(inbreast_download(tmp_path))
    bounds = (10.5, 5.25, 30.0, 40.0)
    assert view_of(cohort, "101").annotations == (
        Annotation(bounds, True, kind="Mass"),
        Annotation(bounds, False, kind="Unnamed"),
    )
    assert view_of(cohort, "101").position == "MLO"
    assert view_of(cohort, "102").annotations == (Annotation(bounds, True, kind="Espiculated Region"),)
    assert view_of(cohort, "103").annotations == ()  # no XML file
    assert view_of(cohort, "104").annotations == (Annotation(bounds, False, kind="Cluster"),)
    assert view_of(cohort, "106").annotations is None  # marked by points alone: there is a cancer, but no box


def test_inbreast_patients_are_told_apart_though_their_numbers_are_removed(tmp_path: Path) -> None:
    cohort = inbreast.read(inbreast_download(tmp_path))
    assert {breast.name: breast.label for breast in cohort.breasts} == {
        "aaaa 200801 L": "malignant",
        "aaaa 200801 R": "negative",
        "aaaa 200902 L": "benign",
        "bbbb 200801 R": "benign",
        "cccc 200801 R": "malignant",
    }
    assert breast_of(cohort, "bbbb", "R").attributes == {"birads": "2", "density": "2"}
    assert any("BI-RADS 4 to 6" in note for note in cohort.notes)


def test_inbreast_names_what_it_cannot_use(tmp_path: Path) -> None:
    folder = inbreast_download(tmp_path)
    cohort = inbreast.read(folder)
    assert view_of(cohort, "105").annotations is None
    assert "105.xml cannot be read" in reason_of(cohort, "105")
    assert "The table says R MLO, but its file is 107_dddd_MG_L_ML_ANON.dcm" in reason_of(cohort, "107")
    assert "FB" in reason_of(cohort, "108")
    assert "missing" in reason_of(cohort, "109")
    for path in (folder / "AllXML").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="AllXML"):
        inbreast.read(folder)
