"""What a node does with exams that are not as they should be, and what it tells of them and of patients."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from pydicom.uid import generate_uid
from support.dicom_files import breast, dataset, write
from support.exams import damage, write_exam, write_weights
from support.nodes import describe_node, run_destination, run_node, send, wait_for
from support.orthanc import free_ports

from mm3d.data.datasets.folder import exam_code
from mm3d.data.dicom.kinds import CT


def read(port: int, path: str, host: str = "127.0.0.1") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": f"{host}:{port}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def test_every_exam_is_delivered_or_listed_with_the_reason_and_nobody_is_named(tmp_path: Path) -> None:
    port, archive, status = free_ports(3)
    good, broken, other = (generate_uid() for _ in range(3))
    damaged = write_exam(tmp_path / "broken", "DBT L CC", study=broken)
    damage(damaged[0])
    chest = dataset(breast(), CT, Modality="CT", BodyPartExamined="CHEST", StudyInstanceUID=other)
    files = [
        *write_exam(tmp_path / "good", "FFDM L CC", "FFDM L MLO", study=good),
        *damaged,
        write(chest, tmp_path / "chest.dcm"),
    ]
    more = f'[[destinations]]\nname = "archive"\nae_title = "ARCHIVE"\nport = {archive}\n'
    top = f'status_port = {status}\nsend = ["measurements", "cad", "boxes", "summary"]'
    node = describe_node(tmp_path / "node", port, write_weights(tmp_path / "weights.safetensors"), more, top, 8.0)
    full = [True]
    with run_node(node):
        assert send(port, files) == [0x0000] * 4
        with run_destination(archive, lambda: 0xA700 if full[0] else 0x0000) as kept:
            wait_for(lambda: "answered A700" in read(status, "/"), "the refusal in the status")
            assert node.undelivered() == 1
            full[0] = False
            wait_for(node.is_done, "the delivery")
        page, metrics = read(status, "/"), read(status, "/metrics")
        for host in ("evil.example", ""):
            with pytest.raises(urllib.error.HTTPError):
                read(status, "/", host)
        command = [sys.executable, "-m", "mm3d", "node", "--config", str(node.config), "--status"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert node.stop() == 0
    assert node.exams() == {exam_code(good): "predicted", exam_code(broken): "failed", exam_code(other): "ignored"}
    assert sorted(ds.Modality for ds in kept) == ["OT", "PR", "PR", "SR", "SR"]
    assert {ds.StudyInstanceUID for ds in kept} == {good}

    audit = (node.folder / "audit.jsonl").read_text()
    events = {(line["event"], line["exam"]) for line in map(json.loads, audit.splitlines())}
    assert {("received", exam_code(good)), ("predicted", exam_code(good)), ("delivered", exam_code(good))} <= events
    assert {("failed", exam_code(broken)), ("ignored", exam_code(other))} <= events
    assert 'mm3d_exams{state="failed"} 1.0' in metrics
    assert 'mm3d_results{destination="archive",state="delivered"} 1.0' in metrics
    assert 'mm3d_events_total{detail="new",event="object"} 4.0' in metrics
    assert 'mm3d_seconds_total{part="model"}' in metrics
    for text in (page, printed):
        assert all(exam_code(study) in text for study in (good, broken, other))
    assert "It has no mammography." in page
    for text in (page, metrics, printed, audit, node.log.read_text()):
        assert "canary" not in text.lower()
        assert all(study not in text for study in (good, broken, other))
