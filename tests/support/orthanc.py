"""A real archive: Debian's Orthanc, in a folder of its own, gone when the test is."""

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.reports import installed

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")


@dataclass(frozen=True)
class Archive:
    http: int
    dicom: int

    @property
    def dicomweb(self) -> str:
        return f"http://127.0.0.1:{self.http}/dicom-web"

    def ask(self, path: str, posted: bytes | None = None) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", data=posted, timeout=60) as answer:
            return bytes(answer.read())

    def post(self, path: str, content: Any) -> Any:
        return json.loads(self.ask(path, json.dumps(content).encode()))

    def instances(self) -> dict[str, dict[str, str]]:
        """Modality and series of every object, by its SOPInstanceUID."""
        names = ("SOPInstanceUID", "SOPClassUID", "Modality", "SeriesInstanceUID", "StudyInstanceUID")
        found = {}
        for name in json.loads(self.ask("/instances")):
            tags = json.loads(self.ask(f"/instances/{name}/simplified-tags"))
            found[tags["SOPInstanceUID"]] = {"id": name, **{key: tags[key] for key in names}}
        return found

    def file(self, instance: str) -> bytes:
        return self.ask(f"/instances/{self.instances()[instance]['id']}/file")


def free_ports(count: int) -> list[int]:
    """Ports of this computer that nobody uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def run_orthanc(folder: Path, **settings: Any) -> Iterator[Archive]:
    """Run an archive. `settings` are of its configuration file."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = Archive(*free_ports(2))
    given = {
        "StorageDirectory": str(folder / "archive"),
        "IndexDirectory": str(folder / "archive"),
        "HttpPort": archive.http,
        "DicomPort": archive.dicom,
        "DicomAet": "ORTHANC",
        "RemoteAccessAllowed": False,
        "DicomAlwaysAllowFind": True,
        "Plugins": [],
    }
    (folder / "orthanc.json").write_text(json.dumps(given | settings))
    with (folder / "orthanc.log").open("wb") as log:
        process = subprocess.Popen([installed("Orthanc"), str(folder / "orthanc.json")], stdout=log, stderr=log)
    try:
        _wait_for(archive, process, folder / "orthanc.log")
        yield archive
    finally:
        process.terminate()
        process.wait()


def _wait_for(archive: Archive, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1200):
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            archive.ask("/system")
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"Orthanc does not answer: {log.read_text(errors='replace')}")
