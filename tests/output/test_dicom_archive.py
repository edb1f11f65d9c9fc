"""A real archive: a report that it refuses, or cannot find again, the radiologist has not got."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydicom import dcmread
from support.orthanc import Archive, run_orthanc
from support.reports import marked, run, trial_exam, write_trial

from mm3d.output.sr import write_cad_report, write_measurement_report


@pytest.fixture
def orthanc(tmp_path: Path) -> Iterator[Archive]:
    with run_orthanc(tmp_path / "orthanc") as archive:
        yield archive


def test_an_archive_takes_both_reports_and_finds_them_in_the_study(orthanc: Archive, tmp_path: Path) -> None:
    trial = write_trial(tmp_path)
    exam = trial_exam(trial)
    reports = [tmp_path / "measurements.dcm", tmp_path / "cad.dcm"]
    write_measurement_report(exam, reports[0])
    write_cad_report(exam, reports[1])
    call = ["-aec", "ORTHANC", "127.0.0.1", str(orthanc.dicom)]
    run("storescu", "--required", "--propose-j2k-lossless", *call, *map(str, trial))
    run("storescu", "--required", *call, *map(str, reports))
    study = dcmread(reports[0]).StudyInstanceUID
    keys = ["QueryRetrieveLevel=SERIES", f"StudyInstanceUID={study}", "Modality=SR", "SeriesInstanceUID"]
    answers = run("findscu", "-S", *call, *(word for key in keys for word in ("-k", key)))
    assert answers.count("Find Response:") == 2
    for path in reports:
        sent = dcmread(path)
        assert str(sent.SeriesInstanceUID) in answers
        (found,) = [
            name
            for name in json.loads(orthanc.ask("/instances"))
            if json.loads(orthanc.ask(f"/instances/{name}"))["MainDicomTags"]["SOPInstanceUID"] == sent.SOPInstanceUID
        ]
        (tmp_path / "returned.dcm").write_bytes(orthanc.ask(f"/instances/{found}/file"))
        assert dcmread(tmp_path / "returned.dcm") == sent
        assert marked(tmp_path / "returned.dcm") == marked(path)
    assert len(json.loads(orthanc.ask("/patients"))) == len(json.loads(orthanc.ask("/studies"))) == 1
    assert len(json.loads(orthanc.ask("/series"))) == len(trial) + 2
