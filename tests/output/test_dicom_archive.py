"""A real archive: a report that it refuses, or cannot find again, the radiologist has not got."""

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydicom import dcmread
from support.reports import installed, marked, run, trial_exam, write_trial

from mm3d.output.sr import write_cad_report, write_measurement_report


@dataclass(frozen=True)
class Archive:
    http: int
    dicom: int

    def ask(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=60) as answer:
            return bytes(answer.read())


def wait_for(archive: Archive, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1200):
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            archive.ask("/system")
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"Orthanc does not answer: {log.read_text(errors='replace')}")


@pytest.fixture
def orthanc(tmp_path: Path) -> Iterator[Archive]:
    """A real archive in a folder of its own, gone when the test is."""
    binary = installed("Orthanc")
    with socket.socket() as one, socket.socket() as two:
        for free in (one, two):
            free.bind(("127.0.0.1", 0))
        archive = Archive(one.getsockname()[1], two.getsockname()[1])
    settings = {
        "StorageDirectory": str(tmp_path / "archive"),
        "IndexDirectory": str(tmp_path / "archive"),
        "HttpPort": archive.http,
        "DicomPort": archive.dicom,
        "DicomAet": "ORTHANC",
        "RemoteAccessAllowed": False,
        "DicomAlwaysAllowFind": True,
        "Plugins": [],
    }
    (tmp_path / "orthanc.json").write_text(json.dumps(settings))
    with (tmp_path / "orthanc.log").open("wb") as log:
        process = subprocess.Popen([binary, str(tmp_path / "orthanc.json")], stdout=log, stderr=log)
    try:
        wait_for(archive, process, tmp_path / "orthanc.log")
        yield archive
    finally:
        process.terminate()
        process.wait()


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
