"""Synthetic exams as DICOM files: viewers, archives, the standard's checker and our own reader understand them."""

import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from support.virtual_trial import SYSTEM, TRIAL, render

from mm3d.data.dicom.frames import SliceReader
from mm3d.data.dicom.header import read_header
from mm3d.data.dicom.window import Window
from mm3d.phantom.dicom import write_view
from mm3d.phantom.imaging import SyntheticView

IMAGES = [image for index in (0, 1) for image in render(TRIAL, index)[1]]  # left and right of one patient
VIEWS = [
    pytest.param(image, id=f"{image.view.laterality}{image.view.position} {image.view.modality}") for image in IMAGES
]
DISPLAY = {10: Window(512, 1024), 12: Window(2048, 4096)}  # by bits: 0 is black, the largest value white
# Where rows and columns lead: to the front or the back, then across and, in MLO, to the feet.
ORIENTATION = {
    ("L", "CC"): ["A", "R"],
    ("R", "CC"): ["P", "L"],
    ("L", "MLO"): ["A", "FR"],
    ("R", "MLO"): ["P", "FL"],
}


@pytest.mark.parametrize("image", VIEWS)
def test_a_view_reads_back_to_the_same_pixels_and_facts(image: SyntheticView, tmp_path: Path) -> None:
    path = tmp_path / "view.dcm"
    write_view(image, "trial", path)
    header = read_header(path)
    assert header.kind == image.view.modality
    assert (header.laterality, header.position) == (image.view.laterality, image.view.position)
    assert (header.pixel_spacing, header.slice_spacing) == (image.pixel_spacing, image.slice_spacing)
    assert (header.bits_stored, header.inverted, header.for_processing) == (image.bits, False, False)
    assert (header.vendor, header.display) == (SYSTEM.manufacturer, DISPLAY[image.bits])
    if image.view.modality == "FFDM":  # by this, viewers hang mammograms
        letters = dcmread(path, stop_before_pixels=True).PatientOrientation
        assert list(letters) == ORIENTATION[image.view.laterality, image.view.position]
    with SliceReader([header]) as reader:
        pixels = np.stack([reader.read(number) for number in header.frame_order])
    assert np.array_equal(pixels, image.pixels)


@pytest.mark.parametrize("image", VIEWS)
def test_the_standards_checker_finds_no_error(image: SyntheticView, tmp_path: Path) -> None:
    checker = shutil.which("dciodvfy")
    assert checker, "dciodvfy is not installed: apt-get install dicom3tools"
    write_view(image, "trial", tmp_path / "view.dcm")
    done = subprocess.run(
        [checker, "-new", str(tmp_path / "view.dcm")], capture_output=True, text=True, check=False, errors="replace"
    )
    lines = (done.stdout + done.stderr).splitlines()
    kind = "BreastTomosynthesisImage" if image.view.modality == "DBT" else "MammographyImageForPresentation"
    assert kind in lines
    assert [line for line in lines if line.startswith(("Error", "Abort"))] == []
    # Two liberties that scanners take as well: the view in plain letters, and the thickness at the top of a volume.
    warnings = [line for line in lines if line.startswith("Warning")]
    assert len(warnings) == 1, warnings
    assert "ViewPosition" in warnings[0] or "BodyPartThickness" in warnings[0]


@pytest.mark.parametrize("image", VIEWS)
def test_the_same_view_gives_the_same_bytes(image: SyntheticView, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_view(image, "trial", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    clocks = [e for e in dcmread(tmp_path / "a", stop_before_pixels=True).iterall() if e.VR in ("DA", "TM", "DT")]
    assert {e.value for e in clocks} == {"", "20260101", "120000"}  # and tomorrow they are the same


def test_an_exam_is_one_study_and_no_two_images_have_one_number(tmp_path: Path) -> None:
    """An archive drops the second image of a number, and shows studies by theirs."""
    path = tmp_path / "view.dcm"
    headers = []
    for trial in ("one", "another"):
        for image in IMAGES:
            write_view(image, trial, path)
            headers.append(dcmread(path, stop_before_pixels=True))
    assert len({ds.SOPInstanceUID for ds in headers}) == len({ds.SeriesInstanceUID for ds in headers}) == 16
    assert [len({ds.StudyInstanceUID for ds in half}) for half in (headers[:8], headers[8:], headers)] == [1, 1, 2]
    frames = [ds.FrameOfReferenceUID for ds in headers if "FrameOfReferenceUID" in ds]
    assert len(set(frames)) == 8  # every compression is another space
    assert all(uid.startswith("2.25.") and len(uid) <= 64 for ds in headers for uid in (ds.SOPInstanceUID, *frames))


@pytest.mark.parametrize("image", VIEWS)
def test_nobody_takes_it_for_a_patient(image: SyntheticView, tmp_path: Path) -> None:
    write_view(image, "trial", tmp_path / "view.dcm")
    ds = dcmread(tmp_path / "view.dcm", stop_before_pixels=True)
    assert (str(ds.PatientName), ds.PatientID) == (f"Virtual^{image.patient}", image.patient)
    assert (ds.QualityControlSubject, ds.QualityControlImage, ds.BurnedInAnnotation) == ("YES", "YES", "NO")
    assert "synthetic" in ds.ImageComments.lower()
    assert float(ds.BodyPartThickness) == image.thickness_mm
    assert ds.ProtocolName == "15 projections over 15 degrees, source 700 mm"
    assert "InstitutionName" not in ds


@pytest.mark.parametrize("image", [case for case in VIEWS if "DBT" in str(case.id)])
def test_a_volume_lies_in_the_patient_as_the_breast_did(image: SyntheticView, tmp_path: Path) -> None:
    """Viewers that show CC beside MLO, or slice the volume again, use these numbers."""
    write_view(image, "trial", tmp_path / "view.dcm")
    ds = dcmread(tmp_path / "view.dcm", stop_before_pixels=True)
    shared = ds.SharedFunctionalGroupsSequence[0]
    assert float(shared.PixelMeasuresSequence[0].SpacingBetweenSlices) == image.slice_spacing
    orientation = shared.PlaneOrientationSequence[0].ImageOrientationPatient
    along_row, along_column = np.array(orientation, dtype=float).reshape(2, 3)
    places = np.array(
        [group.PlanePositionSequence[0].ImagePositionPatient for group in ds.PerFrameFunctionalGroupsSequence], float
    )
    forward, head, outward = (
        np.array([0, -1, 0]),
        np.array([0, 0, 1]),
        np.array([1 if image.view.laterality == "L" else -1, 0, 0]),
    )
    # The chest wall is left for L and right for R: along a row of L we leave the body.
    assert along_row @ forward == pytest.approx(1 if image.view.laterality == "L" else -1)
    # Rows go down: medially in CC, medially and to the feet in MLO.
    assert along_column @ outward < -0.7
    assert along_column @ head == pytest.approx(0 if image.view.position == "CC" else -np.sqrt(0.5))
    # Slice 0 is on the detector, below the breast, in MLO at its outer side; the others are above it.
    steps = np.diff(places, axis=0)
    assert np.linalg.norm(steps, axis=1) == pytest.approx(image.slice_spacing)
    assert (steps @ head > 0.7).all()
    assert (steps @ outward < (0.1 if image.view.position == "CC" else -0.7)).all()


def test_pixels_that_do_not_fit_their_bits_are_not_written(tmp_path: Path) -> None:
    image = dataclasses.replace(IMAGES[0], bits=8)
    with pytest.raises(ValueError, match="needs more than 8 bits"):
        write_view(image, "trial", tmp_path / "view.dcm")
    assert not (tmp_path / "view.dcm").exists()
