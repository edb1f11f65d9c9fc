"""Results as DICOM: what an archive refuses, or a viewer draws in the wrong place, the radiologist has not got."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.sequence import Sequence
from pydicom.sr._concepts_dict import concepts as known_codes
from support.dicom_files import breast, item, mammogram, tomosynthesis, write
from support.reports import (
    METHOD,
    Marked,
    assert_marks,
    complaints,
    concepts,
    exam_of,
    find,
    in_one_study,
    instance,
    looked_at,
    marked,
    measurements,
    sliced_exam,
    trial_exam,
    view_of,
    write_trial,
)

from mm3d.output.predictions import Finding
from mm3d.output.result import ExamResult, ReadProblem
from mm3d.output.sr import codes as our_codes
from mm3d.output.sr import write_cad_report, write_measurement_report
from mm3d.shared.errors import InputError

Write = Callable[[ExamResult, Path], None]
UNKNOWN = ReadProblem("It is empty.")
WRITERS = [
    pytest.param(write_measurement_report, id="TID 1500"),
    pytest.param(write_cad_report, id="TID 4000"),
]
both = pytest.mark.parametrize("write_report", WRITERS)


def unread(*files: Path) -> ReadProblem:
    return ReadProblem("It cannot be decoded.", "L", "CC", files)


@pytest.fixture
def trial(tmp_path: Path) -> list[Path]:
    return write_trial(tmp_path)


# ---- other software reads them -------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("case", ["findings", "none", "slices", "unread"])
def test_the_standards_checkers_find_no_error(
    write_report: Write, case: str, trial: list[Path], tmp_path: Path
) -> None:
    exams = {
        "findings": lambda: trial_exam(trial),
        "none": lambda: trial_exam(trial, threshold=0.99),
        "slices": lambda: sliced_exam(tmp_path),
        "unread": lambda: replace(trial_exam(trial[1:]), problems=(unread(trial[0]), UNKNOWN)),
    }
    report = tmp_path / "report.dcm"
    write_report(exams[case](), report)
    assert complaints(report) == []
    assert [code.CodeMeaning for code in concepts(dcmread(report)) if not code.CodeMeaning.isascii()] == []


@both
def test_findings_of_mammograms_and_volumes_are_marked_where_they_are(
    write_report: Write, trial: list[Path], tmp_path: Path
) -> None:
    write_report(trial_exam(trial), tmp_path / "report.dcm")
    expected: list[Marked] = [
        (
            instance(path),
            number + 1 if "DBT" in path.name else None,
            (10.25, 50.5, 20.75, 62.0 + number),
            60.0 + number,
        )
        for number, path in enumerate(trial)
    ]
    assert_marks(tmp_path / "report.dcm", *expected)


@both
def test_a_turned_volume_with_frames_in_disorder_is_marked_in_the_files_own_pixels(
    write_report: Write, tmp_path: Path
) -> None:
    """240 rows, 200 columns. Slice 0 is the lowest, which is the fourth frame of the file."""
    pixels = np.stack([breast(seed=z) for z in range(4)])
    path = write(tomosynthesis(pixels, heights=[2.0, 1.0, 3.0, 0.0]), tmp_path / "volume.dcm")
    findings = (
        Finding((10.0, 20.0, 30.0, 50.0), 0.9, 0),
        Finding((0.5, 1.5, 2.5, 3.5), 0.8, 3),
        Finding((190.0, -3.0, 207.0, 30.0), 0.7, 1),  # partly outside of the image
    )
    write_report(exam_of(view_of(path, findings=findings, turned=True)), tmp_path / "report.dcm")
    assert_marks(
        tmp_path / "report.dcm",
        (instance(path), 4, (170.0, 190.0, 190.0, 220.0), 90.0),
        (instance(path), 3, (197.5, 236.5, 199.5, 238.5), 80.0),
        (instance(path), 2, (0.0, 210.0, 10.0, 240.0), 70.0),
    )


@both
def test_a_volume_in_a_file_per_slice_is_marked_on_the_file_of_the_slice(write_report: Write, tmp_path: Path) -> None:
    write_report(sliced_exam(tmp_path), tmp_path / "report.dcm")
    third = tmp_path / "7.dcm"
    assert_marks(tmp_path / "report.dcm", (instance(third), None, (10.0, 20.0, 30.0, 40.0), 90.0))


@both
def test_without_a_finding_the_report_says_so(write_report: Write, trial: list[Path], tmp_path: Path) -> None:
    """An empty report could also mean that nobody looked."""
    write_report(trial_exam(trial, threshold=0.99), tmp_path / "report.dcm")
    report = dcmread(tmp_path / "report.dcm")
    assert marked(tmp_path / "report.dcm") == []
    assert find(report, "111017")[0].ConceptCodeSequence[0].CodeMeaning == "All algorithms succeeded; without findings"
    texts = [node.TextValue for value in ("121106", "111033") for node in find(report, value)]
    assert len(texts) == 1
    assert "No finding reaches the operating point of 0.99; nothing is marked." in texts[0]


@both
@pytest.mark.parametrize(("threshold", "code"), [(0.5, "111244"), (0.99, "111243")])
def test_a_report_of_a_part_does_not_claim_the_whole(
    write_report: Write, threshold: float, code: str, trial: list[Path], tmp_path: Path
) -> None:
    """Who reads "succeeded; without findings" takes the view that nobody looked at for a clear one."""
    (tmp_path / "empty.dcm").touch()
    exam = trial_exam(trial[1:], threshold)
    report, whole = tmp_path / "report.dcm", tmp_path / "whole.dcm"
    write_report(exam, whole)
    write_report(replace(exam, problems=(unread(trial[0], tmp_path / "empty.dcm"), UNKNOWN)), report)
    assert find(dcmread(report), "111017")[0].ConceptCodeSequence[0].CodeValue == code
    (text,) = [node.TextValue for value in ("121106", "111033") for node in find(dcmread(report), value)]
    assert "Not looked at, because it could not be read: 2 files of L CC, 1 file of an unknown view." in text
    assert marked(report) == marked(whole)
    assert dcmread(report).SOPInstanceUID != dcmread(whole).SOPInstanceUID


def test_a_workstation_learns_which_images_were_not_looked_at(trial: list[Path], tmp_path: Path) -> None:
    write_cad_report(replace(trial_exam(trial[1:]), problems=(unread(trial[0]),)), tmp_path / "cad.dcm")
    report = dcmread(tmp_path / "cad.dcm")
    assert find(report, "111064")[0].ConceptCodeSequence[0].CodeMeaning == "Partially Succeeded"
    assert looked_at(report, "111063") == [instance(path) for path in trial[1:]]
    assert looked_at(report, "111025") == [instance(trial[0])]
    evidence = report.CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence
    named = {image.ReferencedSOPInstanceUID for series in evidence for image in series.ReferencedSOPSequence}
    assert named == {instance(path) for path in trial}


@both
def test_scores_of_breasts_and_what_made_them_are_told(write_report: Write, trial: list[Path], tmp_path: Path) -> None:
    exam = replace(trial_exam(trial), breast_scores={"L": 0.8125, "R": 0.125})
    write_report(exam, tmp_path / "report.dcm")
    report = dcmread(tmp_path / "report.dcm")
    text = next(node.TextValue for value in ("121106", "111033") for node in find(report, value))
    assert "exam 0.812, left breast 0.812, right breast 0.125" in text
    told = {node.TextValue for value in ("111001", "111003", "111002") for node in find(report, value)}
    assert {"mm3d", "0.9", "weights: mini-synthetic", "operating point: 0.5"} <= told
    assert f"intended use: {METHOD.intended_use}" in told


def test_software_finds_the_scores_of_breasts_as_numbers(trial: list[Path], tmp_path: Path) -> None:
    exam = replace(trial_exam(trial), breast_scores={"L": 0.8125, "R": 0.125})
    write_measurement_report(exam, tmp_path / "report.dcm")
    (derived,) = find(dcmread(tmp_path / "report.dcm"), "126011")
    found = {}
    for score in find(derived, "111047"):
        (laterality,) = find(score, "272741003")
        derivation = find(score, "121401")[0].ConceptCodeSequence[0].CodeMeaning
        value = float(score.MeasuredValueSequence[0].NumericValue)
        found[laterality.ConceptCodeSequence[0].CodeMeaning] = (value, derivation)
    assert found == {"Left": (81.25, "Mean"), "Right": (12.5, "Mean"), "Bilateral": (81.25, "Maximum")}


def test_every_measurement_group_has_a_region_and_a_tracking_uid_of_its_own(trial: list[Path], tmp_path: Path) -> None:
    """OHIF shows a black viewport for the whole report otherwise, or leaves boxes out."""
    write_measurement_report(trial_exam(trial), tmp_path / "report.dcm")
    report = measurements(tmp_path / "report.dcm")
    assert report.get_image_measurement_groups() == []
    groups = find(dcmread(tmp_path / "report.dcm"), "125007")
    assert len(groups) == len(trial)
    assert len({find(group, "112040")[0].UID for group in groups}) == len(trial)
    for group in groups:
        (score,) = find(group, "111047")
        assert find(score, "111030")[0].GraphicData == find(group, "111030")[-1].GraphicData


def test_a_workstation_learns_side_view_and_orientation_of_every_image(trial: list[Path], tmp_path: Path) -> None:
    write_cad_report(trial_exam(trial), tmp_path / "report.dcm")
    report = dcmread(tmp_path / "report.dcm")
    entries = find(report, "111028")[0].ContentSequence
    told = []
    for entry in entries[: len(trial)]:
        side, view = (find(entry, value)[0].ConceptCodeSequence[0].CodeMeaning for value in ("111027", "111031"))
        told.append((side, view, *(find(entry, value)[0].TextValue for value in ("111044", "111043"))))
    left = [("Left breast", "cranio-caudal", "A", "R"), ("Left breast", "medio-lateral oblique", "A", "FR")]
    right = [("Right breast", "cranio-caudal", "P", "L"), ("Right breast", "medio-lateral oblique", "P", "FL")]
    assert told == [left[0], left[0], left[1], left[1], right[0], right[0], right[1], right[1]]
    assert looked_at(report, "111063") == [instance(path) for path in trial]
    assert find(report, "111064")[0].ConceptCodeSequence[0].CodeMeaning == "Succeeded"


def test_our_codes_are_those_of_the_standard() -> None:
    """Software goes by the value alone: with a wrong one, a score is something else."""
    ours = [code for code in vars(our_codes).values() if isinstance(code, our_codes.Code)]
    assert len(ours) > 60
    dictionary: Any = known_codes
    for code in ours:
        known = [
            meanings[code.value] for meanings in dictionary.get(code.scheme, {}).values() if code.value in meanings
        ]
        standard = {meaning.replace("\u200b", "").removesuffix(" (attribute)") for meaning, _ in known}
        # pydicom has no languages, and of UMLS only what is in a list of values, such as this from TID 1500.
        assert code.meaning in standard or code.scheme == "RFC5646" or code.value == "C0034375", code


# ---- they belong to the exam ---------------------------------------------------------------------------------------


@both
def test_a_report_is_a_new_series_of_the_same_study_and_patient(write_report: Write, tmp_path: Path) -> None:
    """Names outside of ASCII too, in sequences too; what is wrong in them is nobody's business on the terminal."""
    other = item(PatientID="CANÄRY-2", TypeOfPatientID="TEXT")
    fields: dict[str, Any] = {
        "SpecificCharacterSet": "ISO_IR 100",
        "PatientName": "Canäry^Ännä",
        "PatientBirthDate": "1st of May",
        "AccessionNumber": "CANARY-A1",
        "OtherPatientIDsSequence": Sequence([other]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        images = [mammogram(breast(), **fields), mammogram(breast(), view="MLO", **fields)]
        in_one_study(*images)
        paths = [write(ds, tmp_path / f"{number}.dcm") for number, ds in enumerate(images)]
    finding = Finding((1.0, 1.0, 5.0, 5.0), 0.9)
    exam = exam_of(view_of(paths[0], findings=(finding,)), view_of(paths[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_cad_report(exam, tmp_path / "report.dcm")  # before: one report must not change what the next one copies
        write_report(exam, tmp_path / "report.dcm")
    report = dcmread(tmp_path / "report.dcm")
    assert (report.PatientName, report.PatientID) == ("Canäry^Ännä", "CANARY-4711")
    assert report.OtherPatientIDsSequence[0].PatientID == "CANÄRY-2"
    assert (report.PatientBirthDate, report.AccessionNumber, report.StudyID) == ("1st of May", "CANARY-A1", "")
    assert report.StudyInstanceUID == images[0].StudyInstanceUID
    assert report.SeriesInstanceUID not in {ds.SeriesInstanceUID for ds in images}
    assert (report.Modality, report.ContentDate, report.ContentTime) == ("SR", "20260304", "050607")
    evidence = report.CurrentRequestedProcedureEvidenceSequence[0]
    assert evidence.StudyInstanceUID == report.StudyInstanceUID
    named = {
        (series.SeriesInstanceUID, image.ReferencedSOPInstanceUID)
        for series in evidence.ReferencedSeriesSequence
        for image in series.ReferencedSOPSequence
    }
    assert named == {(ds.SeriesInstanceUID, ds.SOPInstanceUID) for ds in images}


@both
def test_the_same_result_is_the_same_object_and_another_is_another(
    write_report: Write, trial: list[Path], tmp_path: Path
) -> None:
    """An archive keeps one object per number: a report written twice must not become two, nor two reports one."""
    exam = trial_exam(trial)
    moved = replace(exam, views=(replace(exam.views[0], findings=()), *exam.views[1:]))
    later = replace(exam, predicted_at=datetime(2026, 3, 4, 5, 6, 8))
    other = replace(exam, method=replace(exam.method, weights_hash="0123"))
    found = []
    for number, each in enumerate((exam, moved, other, later)):
        for name in ("a", "b"):
            write_report(each, tmp_path / f"{name}.sr")
        assert (tmp_path / "a.sr").read_bytes() == (tmp_path / "b.sr").read_bytes(), number
        found.append(dcmread(tmp_path / "a.sr"))
    assert len({ds.SOPInstanceUID for ds in found}) == len({ds.SeriesInstanceUID for ds in found}) == 3
    assert found[3].SOPInstanceUID == found[0].SOPInstanceUID  # predicted again


@both
def test_a_report_names_those_that_it_replaces(write_report: Write, trial: list[Path], tmp_path: Path) -> None:
    """Otherwise two reports stand side by side, and nobody knows which one counts."""
    earlier = [tmp_path / "sr" / "measurements.dcm", tmp_path / "sr" / "cad.dcm"]
    write_measurement_report(trial_exam(trial[:1]), earlier[0])
    write_cad_report(trial_exam(trial[:1]), earlier[1])
    write_report(replace(trial_exam(trial), replaces=tuple(earlier)), tmp_path / "report.dcm")
    report = dcmread(tmp_path / "report.dcm")
    (study,) = report.PredecessorDocumentsSequence
    (series,) = study.ReferencedSeriesSequence
    (named,) = series.ReferencedSOPSequence
    old = next(ds for ds in map(dcmread, earlier) if ds.SOPClassUID == report.SOPClassUID)
    assert (named.ReferencedSOPInstanceUID, series.SeriesInstanceUID) == (old.SOPInstanceUID, old.SeriesInstanceUID)
    assert complaints(tmp_path / "report.dcm") == []


def test_the_two_reports_are_two_series(trial: list[Path], tmp_path: Path) -> None:
    exam = trial_exam(trial)
    write_measurement_report(exam, tmp_path / "a.sr")
    write_cad_report(exam, tmp_path / "b.sr")
    one, two = dcmread(tmp_path / "a.sr"), dcmread(tmp_path / "b.sr")
    assert one.StudyInstanceUID == two.StudyInstanceUID
    assert one.SOPInstanceUID != two.SOPInstanceUID
    assert one.SeriesInstanceUID != two.SeriesInstanceUID
    assert one.SeriesNumber != two.SeriesNumber


# ---- what cannot be reported ---------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("case", ["study", "patient", "slice", "box", "number", "numbers"])
def test_what_cannot_be_reported_is_refused_without_a_name_in_the_message(
    write_report: Write, case: str, tmp_path: Path
) -> None:
    images = [mammogram(breast()), mammogram(breast(), view="MLO")]
    if case != "study":
        in_one_study(*images)
    if case == "patient":
        images[1].PatientID = "CANARY-0815"
    if case == "number":
        images[1].SeriesInstanceUID = ""
    if case == "numbers":
        images[1].SeriesInstanceUID = ["1.2.3", "1.2.4"]  # a flipped bit can make a backslash, which separates values
    paths = [write(ds, tmp_path / f"{number}.dcm") for number, ds in enumerate(images)]
    findings = {
        "slice": (Finding((1.0, 1.0, 5.0, 5.0), 0.9, 1),),
        "box": (Finding((300.0, 1.0, 305.0, 5.0), 0.9),),
    }.get(case, ())
    exam = exam_of(view_of(paths[0]), view_of(paths[1], findings=findings))
    said = {
        "study": "is not of the study of",
        "patient": "is not of the study of",
        "slice": "has 1 slices, and a finding is on slice 1",
        "box": "is outside of",
        "number": "has not one SeriesInstanceUID",
        "numbers": "has not one SeriesInstanceUID",
    }
    with pytest.raises(InputError, match=said[case]) as refused:
        write_report(exam, tmp_path / "report.dcm")
    assert str(paths[1]) in str(refused.value)
    assert "canary" not in str(refused.value).lower()
    assert sorted(tmp_path.iterdir()) == paths


def test_a_box_without_area_is_not_marked(trial: list[Path], tmp_path: Path) -> None:
    view = view_of(trial[0], findings=(Finding((5.0, 1.0, 5.0, 5.0), 0.9), Finding((1.0, 1.0, 5.0, 5.0), 0.8)))
    write_cad_report(exam_of(view), tmp_path / "report.dcm")
    assert [score for *_, score in marked(tmp_path / "report.dcm")] == [80.0]


def test_without_headers_there_is_no_report(trial: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="LCC FFDM has no DICOM headers"):
        write_cad_report(exam_of(replace(view_of(trial[0]), headers=())), tmp_path / "report.dcm")


@both
def test_reports_of_real_mammograms(write_report: Write, real_data: Path, tmp_path: Path) -> None:
    for name in ("ge-ffdm-rmlo-jpeg-lossless.dcm", "siemens-mg-lcc-overlay-out-of-bounds.dcm"):
        path = real_data / "dicom" / name
        finding = Finding((100.5, 200.0, 300.0, 400.25), 0.75)
        write_report(exam_of(view_of(path, findings=(finding,))), tmp_path / "report.dcm")
        assert_marks(tmp_path / "report.dcm", (instance(path), None, finding.box, 75.0))
        copied = ("PatientBirthDate", "PatientName", "ReferringPhysicianName", "StudyTime")  # as wrong as they were
        assert [line for line in complaints(tmp_path / "report.dcm") if not any(name in line for name in copied)] == []
