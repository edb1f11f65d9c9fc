"""What an exam says of the kind of its images, and that its export seems incomplete."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread
from support.dicom_files import breast, dataset, tomosynthesis_slice, write
from support.exams import predict, record, write_weights
from support.reports import find

from mm3d.data.dicom.kinds import MAMMOGRAPHY, SECONDARY_CAPTURE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


def page(out: Path) -> Any:
    """The data of a report."""
    return json.loads(re.findall('id="exam">(.*?)</script>', (out / "report.html").read_text())[0])


def test_a_scanned_film_is_not_called_a_volume(tmp_path: Path, model: Path) -> None:
    """A Secondary Capture with a NumberOfFrames of 1 was "DBT" in the report and in run.json."""
    image = dataset(breast(120, 90), SECONDARY_CAPTURE, NumberOfFrames=1, ConversionType="DF", BitsStored=10)
    image.ImageLaterality, image.ViewPosition = "L", "CC"
    write(image, tmp_path / "exam" / "film.dcm")
    out = tmp_path / "out"
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 0
    (view,) = record(out)["views"]
    assert (view["kind"], view["modality"]) == ("film", "FFDM")
    assert page(out)["views"][0]["modality"] == "film"
    assert record(out)["warnings"] == page(out)["warnings"] == []


def test_one_slice_of_a_volume_is_judged_with_a_warning_everywhere(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tomosynthesis_slice(breast(120, 90), 0, SliceThickness=1), tmp_path / "exam" / "slice.dcm")
    out = tmp_path / "out"
    assert predict(tmp_path / "exam", "-o", out, "--weights", model) == 0
    (warning,) = record(out)["warnings"]
    assert warning.startswith("L CC: the volume has only 1 slice (1 mm, and no breast is thinner than 15 mm)")
    assert record(out)["views"][0]["kind"] == page(out)["views"][0]["modality"] == "DBT slice"
    assert page(out)["warnings"] == [warning]
    assert f"Warning, {warning}" in find(dcmread(out / "sr" / "cad.dcm"), "111033")[0].TextValue
    assert f"Warning, {warning}" in find(dcmread(out / "sr" / "measurements.dcm"), "121106")[0].TextValue
    assert f"warning: exam {record(out)['exam']}: {warning}" in capsys.readouterr().out


def test_a_synthesised_image_is_used_alone_and_left_out_beside_a_mammogram(tmp_path: Path, model: Path) -> None:
    image = dataset(breast(120, 90), MAMMOGRAPHY[0], StudyInstanceUID="1.2", WindowCenter=400, WindowWidth=800)
    image.ImageLaterality, image.ViewPosition, image.ImageType = "L", "CC", ["DERIVED", "PRIMARY", "TOMO_2D"]
    write(image, tmp_path / "exam" / "synthesised.dcm")
    assert predict(tmp_path / "exam", "-o", tmp_path / "alone", "--weights", model) == 0
    assert record(tmp_path / "alone")["views"][0]["kind"] == "synthesised 2D"
    (note,) = record(tmp_path / "alone")["notes"]
    assert note == "L CC: a synthesised 2D image is looked at; there is no other image of this view."
    image.SOPInstanceUID, image.ImageType = "1.2.3.4", ["ORIGINAL", "PRIMARY"]
    write(image, tmp_path / "exam" / "ffdm.dcm")
    assert predict(tmp_path / "exam", "-o", tmp_path / "both", "--weights", model) == 0
    assert [view["kind"] for view in record(tmp_path / "both")["views"]] == ["FFDM"]
    assert "1 image is left out: synthesised from a volume" in record(tmp_path / "both")["notes"][0]


def test_a_device_that_is_not_there_is_refused(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing falls back to a slow processor without a word."""
    write(tomosynthesis_slice(breast(120, 90), 0), tmp_path / "exam" / "slice.dcm")
    for device, engine, said in (
        ("mps", "torch", "torch finds no device mps on this computer; leave out --device"),
        ("mps", "openvino", "The engine openvino runs on the CPU; leave out --device mps"),
    ):
        out = tmp_path / engine
        assert predict(tmp_path / "exam", "-o", out, "--weights", model, "--device", device, "--engine", engine) == 1
        assert said in capsys.readouterr().err
    assert predict(tmp_path / "exam", "-o", tmp_path / "cpu", "--weights", model, "--device", "cpu") == 0
    assert record(tmp_path / "cpu")["device"] == "cpu"
