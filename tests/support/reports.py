"""Exams to report, and reports read back the way other software does."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import highdicom
import numpy as np
import pytest
from pydicom import Dataset, dcmread
from pydicom.sr.codedict import codes
from support.dicom_files import breast, tomosynthesis_slice, write
from support.virtual_trial import TRIAL, render

from mm3d.data.dicom.header import read_header
from mm3d.data.dicom.kinds import modality_of_kind
from mm3d.output.predictions import Finding
from mm3d.output.result import ExamResult, Method, OperatingPoint, ViewResult
from mm3d.phantom.dicom import write_view

METHOD = Method("mini-synthetic", "Research only, trained on synthetic breasts.", OperatingPoint(0.5), version="0.9")
PREDICTED_AT = datetime(2026, 3, 4, 5, 6, 7)
Marked = tuple[str, int | None, tuple[float, ...], float]  # SOP instance, frame from 1, box, percent


def exam_of(*views: ViewResult, threshold: float = 0.5) -> ExamResult:
    method = replace(METHOD, operating_point=OperatingPoint(threshold))
    scores = dict.fromkeys((view.laterality for view in views), 0.7)
    return ExamResult("E1", "P1", views, scores, method, PREDICTED_AT)


def view_of(*paths: Path, findings: tuple[Finding, ...] = (), turned: bool = False) -> ViewResult:
    headers = tuple(read_header(path) for path in paths)
    side, position = headers[0].laterality, headers[0].position
    assert side is not None
    assert position is not None
    return ViewResult(
        (side + position).lower(),
        findings,
        modality_of_kind(headers[0].kind),
        frames=np.broadcast_to(np.uint8(0), (9, 240, 200)),  # structured reports have no pixels
        headers=headers,
        turned=turned,
    )


def in_one_study(*datasets: Dataset) -> None:
    for ds in datasets:
        ds.StudyInstanceUID = datasets[0].StudyInstanceUID


def write_trial(folder: Path) -> list[Path]:
    """CC and MLO of both breasts of a virtual patient, as mammogram and as tomosynthesis of 9 slices."""
    paths = []
    for index in (0, 1):
        for image in render(TRIAL, index)[1]:
            view = image.view
            paths.append(folder / f"{view.laterality}{view.position}{view.modality}.dcm")
            write_view(image, "trial", paths[-1])
    return paths


def trial_exam(paths: list[Path], threshold: float = 0.5) -> ExamResult:
    """A finding in every view, 0.25 pixels off the grid, and one that does not reach the operating point."""
    views = []
    for number, path in enumerate(paths):
        view = view_of(path)
        z = number if view.headers[0].frames > 1 else None
        sure = Finding((10.25, 50.5, 20.75, 62.0 + number), 0.6 + 0.01 * number, z)
        views.append(replace(view, findings=(Finding((1.0, 1.0, 5.0, 5.0), 0.1, z), sure)))
    return exam_of(*views, threshold=threshold)


def sliced_exam(folder: Path) -> ExamResult:
    """A volume that came as one CT object per slice, named against its order; a finding on the third slice."""
    slices = [
        tomosynthesis_slice(
            breast(seed=z),
            z,
            SeriesInstanceUID="1.2.3",
            StudyDate="20260101",
            StudyTime="120000",
            StudyID="1",
        )
        for z in range(5)
    ]
    in_one_study(*slices)
    paths = [write(ds, folder / f"{9 - z}.dcm") for z, ds in enumerate(slices)]
    return exam_of(view_of(*paths, findings=(Finding((10.0, 20.0, 30.0, 40.0), 0.9, 2),)))


def marked(path: Path) -> list[Marked]:
    """What a report marks, read the way other software does."""
    if dcmread(path).ConceptNameCodeSequence[0].CodeValue == "126000":
        return marked_by_highdicom(path)
    return marked_in_cad(dcmread(path))


def measurements(path: Path) -> highdicom.sr.MeasurementReport:
    content = highdicom.sr.srread(path).content
    assert isinstance(content, highdicom.sr.MeasurementReport)
    return content


def marked_by_highdicom(path: Path) -> list[Marked]:
    found = []
    for group in measurements(path).get_planar_roi_measurement_groups():
        region = group.roi
        assert region is not None
        source = region.ContentSequence[0]
        frames = source.referenced_frame_numbers
        score = group.get_measurements(codes.DCM.ProbabilityOfCancer)[0].value
        frame = frames[0] if frames else None
        found.append((source.referenced_sop_instance_uid, frame, box_of(region.value.flatten()), score))
    return found


def marked_in_cad(ds: Dataset) -> list[Marked]:
    found = []
    for finding in find(ds, "111059"):
        outline, centre = (next(child for child in find(finding, value)) for value in ("111041", "111010"))
        box = box_of(np.array(outline.GraphicData))
        assert [float(x) for x in centre.GraphicData] == pytest.approx([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])
        images = [at(ds, shape.ContentSequence[0].ReferencedContentItemIdentifier) for shape in (outline, centre)]
        assert images[0] is images[1]
        image = images[0].ReferencedSOPSequence[0]
        score = float(find(finding, "111047")[0].MeasuredValueSequence[0].NumericValue)
        found.append((image.ReferencedSOPInstanceUID, image.get("ReferencedFrameNumber"), box, score))
    return found


def find(node: Dataset, value: str) -> list[Dataset]:
    """All content items below a node whose name has this code."""
    found = []
    for child in node.get("ContentSequence", ()):
        name = child.get("ConceptNameCodeSequence")
        if name and name[0].CodeValue == value:
            found.append(child)
        found += find(child, value)
    return found


def concepts(node: Dataset) -> Iterator[Dataset]:
    """All codes in a tree, names and values."""
    for name in ("ConceptNameCodeSequence", "ConceptCodeSequence"):
        yield from node.get(name, ())
    for child in node.get("ContentSequence", ()):
        yield from concepts(child)


def at(ds: Dataset, place: Any) -> Dataset:
    """The content item at a place of the tree; the root is 1."""
    node = ds
    for number in list(place)[1:]:
        node = node.ContentSequence[number - 1]
    return node


def looked_at(ds: Dataset, value: str) -> list[str]:
    """The images of which a CAD report says that detection was successful (111063) or failed (111025)."""
    (performed,) = (node for part in find(ds, value) for node in find(part, "111022"))
    places = [child.get("ReferencedContentItemIdentifier") for child in performed.ContentSequence]
    return [at(ds, place).ReferencedSOPSequence[0].ReferencedSOPInstanceUID for place in places if place]


def box_of(points: np.ndarray[Any, Any]) -> tuple[float, ...]:
    corners = points.reshape(-1, 2)
    assert len(corners) == 5
    assert (corners[0] == corners[-1]).all()
    return (*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist())


def assert_marks(path: Path, *expected: Marked) -> None:
    for (image, frame, box, score), (_, _, expected_box, expected_score) in zip(
        marks := marked(path), expected, strict=True
    ):
        assert box == pytest.approx(expected_box, abs=1e-3), (image, frame)
        assert score == pytest.approx(expected_score)
    assert [mark[:2] for mark in marks] == [mark[:2] for mark in expected]


def instance(path: Path) -> str:
    return str(dcmread(path, stop_before_pixels=True).SOPInstanceUID)


def complaints(path: Path) -> list[str]:
    """Errors and warnings of the standard's checker, and errors of a reader that checks what it reads."""
    said = run("dciodvfy", "-new", str(path), ends_well=False).splitlines()
    assert ("ComprehensiveSR" in said) != ("MammographyCADSR" in said), said
    printed = run("dsrdump", str(path)).splitlines()
    assert "Mammography CAD SR Document" in printed or "Comprehensive SR Document" in printed
    found = [line for line in said if line.startswith(("Error", "Abort", "Warning"))]
    return found + [line for line in printed if line.startswith(("E:", "F:"))]


def run(tool: str, *arguments: str, ends_well: bool = True) -> str:
    """What a tool says; it must be there and end well."""
    done = subprocess.run([installed(tool), *arguments], capture_output=True, text=True, check=False, errors="replace")
    assert not ends_well or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def installed(tool: str) -> str:
    # Debian's first: pynetdicom brings a storescu and others of its own, with other options.
    found = shutil.which(tool, path=f"/usr/bin:/usr/sbin:{os.environ['PATH']}")
    assert found, f"{tool} is not installed: apt-get install dicom3tools dcmtk orthanc"
    return found
