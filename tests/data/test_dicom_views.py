"""Which view a file shows: if it is a part of the breast, or the wrong side, no score of it can be trusted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dicom_files import breast, item, mammogram, tomosynthesis, tomosynthesis_slice, write

from mm3d.data.datasets import folder
from mm3d.data.datasets.folder import describe_headers, make_entries, read_headers
from mm3d.data.dicom.header import find_gap, read_header, sort_headers
from mm3d.shared.errors import InputError

IMAGE = breast(60, 45)
VOLUME = np.stack([breast(60, 45, seed=i) for i in range(4)])


def modified(value: str, meaning: str = "") -> dict[str, Any]:
    """A CC view with a modifier."""
    return {
        "ViewCodeSequence": [
            item(CodeValue="399162004", ViewModifierCodeSequence=[item(CodeValue=value, CodeMeaning=meaning)])
        ]
    }


@pytest.mark.parametrize(
    "fields",
    [
        modified("399163009"),  # magnification
        modified("R-102D6"),
        modified("399055006"),  # spot compression
        modified("R-102D7"),
        modified("399110001"),  # tangential
        modified("R-102C2"),
        modified("", "Spot Magnification"),
        {"EstimatedRadiographicMagnificationFactor": "1.8"},
    ],
)
def test_a_view_of_a_part_of_the_breast_is_left_out(tmp_path: Path, fields: dict[str, Any]) -> None:
    """It would count as the CC of the breast, and the breast would be called seen."""
    path = write(mammogram(IMAGE, **fields), tmp_path / "m.dcm")
    assert read_header(path).position == "CC"
    entries, (left,) = make_entries(read_headers([path])[0])
    assert not entries
    assert left.reason == folder.PART_ONLY


@pytest.mark.parametrize("code", ["399209000", "R-102D5"])
def test_a_displaced_implant_is_used_and_said(tmp_path: Path, code: str) -> None:
    header = read_header(write(mammogram(IMAGE, **modified(code)), tmp_path / "m.dcm"))
    assert len(make_entries([header])[0]) == 1
    assert describe_headers([header]) == ["an image with a displaced implant is used like any other."]


def test_a_view_that_is_rolled_is_a_whole_view(tmp_path: Path) -> None:
    fields = modified("399226006", "Rolled Medial") | {"EstimatedRadiographicMagnificationFactor": "1.05"}
    header = read_header(write(mammogram(IMAGE, **fields), tmp_path / "m.dcm"))
    assert len(make_entries([header])[0]) == 1
    assert describe_headers([header]) == []


def test_sides_and_views_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    """Who reads the report must know that the side of a mark is doubtful."""
    ds = tomosynthesis(VOLUME)
    ds.ImageLaterality, ds.Laterality, ds.ViewPosition = "R", "L", "MLO"
    header = read_header(write(ds, tmp_path / "v.dcm"))
    assert (header.laterality, header.position) == ("L", "CC")
    assert describe_headers([header, header]) == [
        "FrameLaterality says L and ImageLaterality says R and Laterality says L; FrameLaterality is taken.",
        "ViewCodeSequence says CC and ViewPosition says MLO; ViewCodeSequence is taken.",
    ]
    write(mammogram(IMAGE, Laterality="R"), tmp_path / "archive" / "m.dcm")
    cohort = folder.read(tmp_path / "archive")
    assert "ImageLaterality says L and Laterality says R; ImageLaterality is taken." in cohort.notes[0]


def test_frames_of_both_breasts_are_refused(tmp_path: Path) -> None:
    ds = tomosynthesis(VOLUME)
    ds.PerFrameFunctionalGroupsSequence[2].FrameAnatomySequence = [item(FrameLaterality="R")]
    with pytest.raises(InputError, match="its frames are of both breasts"):
        read_header(write(ds, tmp_path / "v.dcm"))


def test_another_view_does_not_become_mlo_by_a_word_in_a_description(tmp_path: Path) -> None:
    for fields in ({"ViewPosition": "ML"}, {"ViewPosition": "", "ViewCodeSequence": [item(CodeValue="R-10224")]}):
        ds = mammogram(IMAGE, SeriesDescription="L MLO and ML", **fields)
        assert read_header(write(ds, tmp_path / "m.dcm")).position is None


def write_slices(path: Path, places: list[float], **fields: Any) -> list[Path]:
    study: dict[str, Any] = {"StudyInstanceUID": "1.2.3", "SeriesInstanceUID": "1.2.3.4"}
    paths = []
    for number, z in enumerate(places):
        ds = tomosynthesis_slice(breast(60, 45, seed=number), z=0, Modality="CT", **study)
        ds.ImagePositionPatient = [0, 0, z]
        for name, value in fields.items():
            setattr(ds, name, value)
        paths.append(write(ds, path / f"{number}.dcm"))
    return paths


def test_four_views_in_one_series_are_four_volumes(tmp_path: Path) -> None:
    """They were one "left CC" of all slices, and the other three views were missing."""
    paths = []
    for side in "LR":
        for view in ("CC", "MLO"):
            paths += write_slices(tmp_path / side / view, [0, 1, 2], ImageLaterality=side, ViewPosition=view)
    entries, left = make_entries(read_headers(paths)[0])
    assert not left
    assert {(e.view.laterality, e.view.position, len(e.view.files)) for e in entries} == {
        (side, view, 3) for side in "LR" for view in ("CC", "MLO")
    }
    # The same series in another study, as a careless anonymiser leaves it, is another volume.
    other = write_slices(tmp_path / "other", [0, 1, 2], StudyInstanceUID="1.2.9")
    entries, _ = make_entries(read_headers([*paths[:3], *other])[0])
    assert [len(entry.view.files) for entry in entries] == [3, 3]


def test_missing_slices_are_told_and_slices_in_one_place_are_refused(tmp_path: Path) -> None:
    headers, _ = read_headers(write_slices(tmp_path / "gap", [0, 1, 2, 3, 6, 7]))
    assert find_gap(headers) == (3, 6)
    assert find_gap(read_headers(write_slices(tmp_path / "whole", [0.0, 1.01, 1.99, 3.0]))[0]) is None
    (problem,) = folder.read(tmp_path / "gap").problems
    assert problem.reason.startswith("between 3 and 6 mm, slices are missing; the others are used")
    twice, _ = read_headers(write_slices(tmp_path / "twice", [0, 1, 1, 2]))
    with pytest.raises(InputError, match="at the same place as another one of its view"):
        sort_headers(twice)
