"""Presentation states and the summary image: a box on another frame sends a radiologist to the wrong place."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from support.dicom_files import breast, mammogram, tomosynthesis, write
from support.reports import exam_of, instance, run, sliced_exam, trial_exam, view_of, write_trial

from mm3d.output.predictions import Finding
from mm3d.output.presentation_state import write_presentation_states
from mm3d.output.summary_image import write_summary_image

Drawn = tuple[str, int | None, tuple[float, ...]]


def drawn(path: Path) -> list[Drawn]:
    """Image, frame and box of everything that a presentation state draws."""
    found = []
    for annotation in dcmread(path).GraphicAnnotationSequence:
        (image,), (shape,) = annotation.ReferencedImageSequence, annotation.GraphicObjectSequence
        points = np.array(shape.GraphicData).reshape(-1, 2)
        box = (*points.min(axis=0).tolist(), *points.max(axis=0).tolist())
        found.append((image.ReferencedSOPInstanceUID, image.get("ReferencedFrameNumber"), box))
    return found


def errors(path: Path) -> list[str]:
    said = run("dciodvfy", "-new", str(path), ends_well=False).splitlines()
    return [line for line in said if line.startswith(("Error", "Abort"))]


def test_boxes_are_on_their_frames_and_the_standards_checker_finds_no_error(tmp_path: Path) -> None:
    trial = write_trial(tmp_path)
    states = write_presentation_states(trial_exam(trial), tmp_path / "boxes")
    assert len(states) == len(trial)
    for number, (state, image) in enumerate(zip(states, trial, strict=True)):
        assert errors(state) == []
        ((name, frame, box),) = drawn(state)
        assert (name, frame) == (instance(image), number + 1 if "DBT" in image.name else None)
        assert box == pytest.approx((10.25, 50.5, 20.75, 62.0 + number))
        assert dcmread(state).StudyInstanceUID == dcmread(image).StudyInstanceUID


def test_a_viewer_draws_the_image_as_the_file_says(tmp_path: Path) -> None:
    """dcmtk renders an image through the state: with its window forgotten, the breast is nearly black."""
    path = write(mammogram(breast(), WindowCenter=300, WindowWidth=400, **ready()), tmp_path / "image.dcm")
    exam = exam_of(view_of(path, findings=(Finding((10.0, 20.0, 30.0, 50.0), 0.9),)))
    (state,) = write_presentation_states(exam, tmp_path / "boxes")
    run("dcmp2pgm", "--pstate", str(state), str(path), str(tmp_path / "shown.pgm"))
    shown = read_pgm(tmp_path / "shown.pgm")
    expected = np.clip((dcmread(path).pixel_array - 299.5) / 399 + 0.5, 0, 1) * 255
    assert shown.shape == (240, 200)
    # The tool shows grey values for a display of its own, so only their order counts, and that none is lost.
    assert np.corrcoef(shown.ravel(), expected.ravel())[0, 1] > 0.98
    assert np.ptp(shown) > 200


def ready() -> dict[str, str]:
    """What dcmtk wants of an image."""
    return {"StudyDate": "20260101", "StudyTime": "120000", "StudyID": "1", "RescaleType": "US"}


def read_pgm(path: Path) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    from PIL import Image

    return np.asarray(Image.open(path))


def test_a_turned_volume_in_disorder_is_marked_in_the_files_own_pixels(tmp_path: Path) -> None:
    pixels = np.stack([breast(seed=z) for z in range(4)])
    path = write(tomosynthesis(pixels, heights=[2.0, 1.0, 3.0, 0.0]), tmp_path / "volume.dcm")
    finding = Finding((10.0, 20.0, 30.0, 50.0), 0.9, 0)
    (state,) = write_presentation_states(exam_of(view_of(path, findings=(finding,), turned=True)), tmp_path / "boxes")
    assert drawn(state) == [(instance(path), 4, (170.0, 190.0, 190.0, 220.0))]


def test_a_volume_in_a_file_per_slice_names_all_its_files_and_marks_one(tmp_path: Path) -> None:
    (state,) = write_presentation_states(sliced_exam(tmp_path), tmp_path / "boxes")
    assert drawn(state) == [(instance(tmp_path / "7.dcm"), None, (10.0, 20.0, 30.0, 40.0))]
    (series,) = dcmread(state).ReferencedSeriesSequence
    assert len(series.ReferencedImageSequence) == 5


def test_the_same_exam_gives_the_same_objects_and_without_a_mark_there_is_none(tmp_path: Path) -> None:
    exam = trial_exam(write_trial(tmp_path))
    one = write_presentation_states(exam, tmp_path / "one")
    two = write_presentation_states(exam, tmp_path / "two")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    assert len({dcmread(path).SOPInstanceUID for path in one}) == len(one)
    assert len({dcmread(path).SeriesInstanceUID for path in one}) == 1
    quiet = replace(exam, views=tuple(replace(view, findings=()) for view in exam.views))
    assert write_presentation_states(quiet, tmp_path / "none") == []


def test_the_summary_shows_the_boxes_and_names_nobody(tmp_path: Path) -> None:
    exam = trial_exam(write_trial(tmp_path))
    write_summary_image(exam, tmp_path / "with.dcm")
    quiet = replace(exam, views=tuple(replace(view, findings=()) for view in exam.views))
    write_summary_image(quiet, tmp_path / "without.dcm")
    assert errors(tmp_path / "with.dcm") == []
    ds, other = dcmread(tmp_path / "with.dcm"), dcmread(tmp_path / "without.dcm")
    amber = (np.array([255, 170, 0]) == ds.pixel_array).all(axis=2).sum()
    assert amber > 200
    assert not (np.array([255, 170, 0]) == other.pixel_array).all(axis=2).any()
    assert ds.SOPInstanceUID != other.SOPInstanceUID
    assert (ds.BurnedInAnnotation, ds.Modality, ds.StudyInstanceUID) == ("NO", "OT", exam.views[0].headers[0].study)
