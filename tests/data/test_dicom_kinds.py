"""What an image is: a film that is taken for a volume, or a synthesised image for a mammogram, is judged wrongly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dicom_files import breast, dataset, write

from mm3d.data.datasets.folder import PROJECTION, SYNTHESISED, describe_thin, make_entries, read, read_headers
from mm3d.data.dicom.header import read_header
from mm3d.data.dicom.kinds import (
    CAPTURES,
    CT,
    MAMMOGRAPHY,
    PROJECTIONS,
    RADIOGRAPHY,
    SECONDARY_CAPTURE,
    TOMOSYNTHESIS,
    VIRTUAL_TRIAL,
    OtherKindError,
)

IMAGE = breast(120, 90)
VIEW: dict[str, Any] = {"ImageLaterality": "L", "ViewPosition": "CC"}
PROJECTED = ["ORIGINAL", "PRIMARY", "TOMO_PROJ"]
SUBTRACTED = ["DERIVED", "PRIMARY", "", "SUBTRACTION"]


def make(sop_class: str, frames: int = 1, **fields: Any) -> Any:
    pixels = IMAGE if frames == 1 else np.stack([IMAGE] * frames)
    return dataset(pixels, sop_class, NumberOfFrames=frames, **VIEW | fields)


@pytest.mark.parametrize(
    ("sop_class", "frames", "fields", "kind"),
    [
        (MAMMOGRAPHY[0], 1, {"ImageType": ["ORIGINAL", "PRIMARY", ""]}, "FFDM"),
        (MAMMOGRAPHY[1], 1, {}, "FFDM"),
        (RADIOGRAPHY[0], 1, {}, "FFDM"),
        (RADIOGRAPHY[1], 1, {}, "FFDM"),
        (MAMMOGRAPHY[0], 1, {"DetectorType": "FILM"}, "film"),
        (SECONDARY_CAPTURE, 1, {"ConversionType": "DF"}, "film"),
        (SECONDARY_CAPTURE, 1, {"ConversionType": "WSD"}, "captured 2D"),
        (SECONDARY_CAPTURE, 1, {"InstanceNumber": 1}, "captured 2D"),
        (SECONDARY_CAPTURE, 1, {"ImagePositionPatient": [0, 0, 3]}, "DBT slice"),
        (SECONDARY_CAPTURE, 1, {"SeriesDescription": "L CC Tomosynthesis"}, "DBT slice"),
        (SECONDARY_CAPTURE, 5, {}, "DBT"),
        (CAPTURES[1], 5, {}, "DBT"),
        (CAPTURES[2], 1, {}, "captured 2D"),
        (CT, 1, {"ImageType": ["DERIVED", "PRIMARY", "TOMO"]}, "DBT slice"),
        (MAMMOGRAPHY[0], 1, {"ImageType": ["DERIVED", "PRIMARY", "TOMO"]}, "DBT slice"),
        (TOMOSYNTHESIS, 5, {"ImageType": ["DERIVED", "PRIMARY", "TOMOSYNTHESIS", "NONE"]}, "DBT"),
        (TOMOSYNTHESIS, 1, {"ImageType": ["DERIVED", "PRIMARY", "TOMOSYNTHESIS", "NONE"]}, "DBT"),
        (TOMOSYNTHESIS, 1, {"ImageType": ["DERIVED", "PRIMARY", "TOMOSYNTHESIS", "GENERATED_2D"]}, "synthesised 2D"),
        (MAMMOGRAPHY[0], 1, {"ImageType": ["DERIVED", "PRIMARY", "TOMO_2D"]}, "synthesised 2D"),
        (MAMMOGRAPHY[0], 1, {"ImageType": ["DERIVED", "PRIMARY", "", "GENERATED_2D"]}, "synthesised 2D"),
        (MAMMOGRAPHY[0], 1, {"SeriesDescription": "L CC C-View"}, "synthesised 2D"),
        (MAMMOGRAPHY[0], 1, {"SeriesDescription": "V-Preview"}, "synthesised 2D"),
        (SECONDARY_CAPTURE, 1, {"SeriesDescription": "L CC Tomosynthesis Insight 2D"}, "synthesised 2D"),
        (TOMOSYNTHESIS, 1, {"SeriesDescription": "L CC Tomo Synthesis"}, "DBT"),
        (TOMOSYNTHESIS, 1, {"SeriesDescription": "L CC synthetic", "StudyDescription": VIRTUAL_TRIAL}, "DBT"),
        (MAMMOGRAPHY[0], 1, {"SeriesDescription": "L CC synthetic 2D"}, "synthesised 2D"),
        (MAMMOGRAPHY[0], 1, {"ImageType": PROJECTED}, "projection"),
        (SECONDARY_CAPTURE, 5, {"ImageType": PROJECTED}, "projection"),
        (PROJECTIONS[0], 5, {}, "projection"),
        (PROJECTIONS[1], 1, {}, "projection"),
        (MAMMOGRAPHY[0], 1, {"ImageType": SUBTRACTED}, "contrast 2D"),
        (MAMMOGRAPHY[0], 1, {"ImageType": ["DERIVED", "PRIMARY", "", "", "LOW_ENERGY"]}, "FFDM"),
    ],
)
def test_what_a_file_holds(tmp_path: Path, sop_class: str, frames: int, fields: dict[str, Any], kind: str) -> None:
    assert read_header(write(make(sop_class, frames, **fields), tmp_path / "image.dcm")).kind == kind


def test_a_radiograph_of_something_else_is_no_mammography(tmp_path: Path) -> None:
    with pytest.raises(OtherKindError, match="modality DX"):
        read_header(write(make(RADIOGRAPHY[1], Modality="DX"), tmp_path / "chest.dcm"))


def views(folder: Path) -> list[tuple[str | None, str, int]]:
    """Kind, modality and number of files of each view, in the order of the files."""
    headers, _ = read_headers(sorted(folder.iterdir()))
    return [(e.view.kind, e.view.modality, len(e.view.files)) for e in make_entries(headers)[0]]


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (3, 1), (30, 1)])
def test_captures_of_a_series_are_slices_if_there_are_more_than_two(tmp_path: Path, count: int, expected: int) -> None:
    """One or two are scanned films; VICTRE's volumes come as some dozen captures that do not say what they are."""
    one: dict[str, Any] = {"StudyInstanceUID": "1.2", "SeriesInstanceUID": "1.2.3"}
    for z in range(count):
        write(make(SECONDARY_CAPTURE, InstanceNumber=z + 1, **one), tmp_path / f"{z:02}.dcm")
    kind = ("captured 2D", "FFDM", 1) if count < 3 else ("DBT", "DBT", count)
    assert views(tmp_path) == [kind] * expected


def test_one_slice_alone_is_called_a_slice(tmp_path: Path) -> None:
    write(make(CT, ImageType=["DERIVED", "PRIMARY", "TOMO"], SliceThickness=1), tmp_path / "a.dcm")
    assert views(tmp_path) == [("DBT slice", "DBT", 1)]
    (note,) = read(tmp_path).notes
    assert (
        "the volume has only 1 slice (1 mm, and no breast is thinner than 15 mm): the export seems incomplete" in note
    )


@pytest.mark.parametrize(
    ("other", "used"),
    [
        ("", ["synthesised 2D"]),
        (MAMMOGRAPHY[0], ["FFDM"]),
        (TOMOSYNTHESIS, ["DBT"]),
    ],
)
def test_a_synthesised_image_is_used_only_if_there_is_no_other_of_its_view(
    tmp_path: Path, other: str, used: list[str]
) -> None:
    study: dict[str, Any] = {"StudyInstanceUID": "1.2"}
    synthesised = make(MAMMOGRAPHY[0], ImageType=["DERIVED", "PRIMARY", "", "GENERATED_2D"], **study)
    write(synthesised, tmp_path / "a.dcm")
    write(make(PROJECTIONS[0], 5, **study), tmp_path / "b.dcm")
    if other:
        write(make(other, 5 if other == TOMOSYNTHESIS else 1, **study), tmp_path / "c.dcm")
    entries, unused = make_entries(read_headers(sorted(tmp_path.iterdir()))[0])
    assert [entry.view.kind for entry in entries] == used
    assert {file.reason for file in unused} == ({PROJECTION, SYNTHESISED} if other else {PROJECTION})


@pytest.mark.parametrize(
    ("slices", "spacing", "thickness", "few"),
    [
        (1, None, None, True),
        (9, None, None, True),
        (10, None, None, False),
        (14, 1.0, None, True),
        (15, 1.0, None, False),
        (40, 1.0, 60.0, True),
        (46, 1.0, 60.0, False),
        (10, 6.0, 60.0, False),  # slabs
        (20, 1.0, 1.0, False),  # a thickness that no breast has
    ],
)
def test_when_a_volume_has_too_few_slices(
    slices: int, spacing: float | None, thickness: float | None, few: bool
) -> None:
    assert bool(describe_thin(slices, spacing, thickness)) == few
