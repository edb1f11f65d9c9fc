"""A real archive: Debian's Orthanc, in a folder of its own, gone when the test is."""

import base64
import json
import os
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
    login: str = ""  # user:password

    @property
    def dicomweb(self) -> str:
        return f"http://127.0.0.1:{self.http}/dicom-web"

    def ask(self, path: str, posted: bytes | None = None) -> bytes:
        login = base64.b64encode(self.login.encode()).decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}{path}", posted, {"Authorization": f"Basic {login}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
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
def run_orthanc(folder: Path, login: str = "", **settings: Any) -> Iterator[Archive]:
    """Run an archive. `settings` are of its configuration file."""
    folder.mkdir(parents=True, exist_ok=True)
    http, dicom = free_ports(2)
    archive = Archive(http, dicom, login)
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


@contextmanager
def run_https(folder: Path, archive: Archive, certificate: Path, key: Path) -> Iterator[str]:
    """nginx in front of an archive, as hospitals have it: Debian's Orthanc crashes at the first HTTPS request. The
    address of its DICOMweb."""
    (port,) = free_ports(1)
    paths = " ".join(f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        "daemon off; pid nginx.pid; error_log stderr error; events {} http { access_log off; client_max_body_size 0; "
        f"{paths} server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {key}; "
        f"location / {{ proxy_pass http://127.0.0.1:{archive.http}/; }} }} }}"
    )
    command = [installed("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    if os.geteuid() == 0:  # otherwise its workers are somebody else, who may not write here
        command += ["-g", "user root;"]
    process = subprocess.Popen(command)
    try:
        yield f"https://127.0.0.1:{port}/dicom-web"
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
