"""`make hospital`: an archive, a node and a viewer on this computer, as plain processes.

Orthanc is the archive, with its DICOMweb plugin; `mm3d node` predicts what is sent to it; nginx serves OHIF's pages.
All listen on this computer only. The demo's synthetic exam is sent to the archive, which sends it to the node.

    tools/hospital.py OHIF FOLDER    OHIF is the folder dist/ of the npm package @ohif/app; FOLDER keeps everything
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydicom import dcmread

from mm3d.cli import DEMO_SEED
from mm3d.cli.demo import make_exam

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
PATHS = "/usr/bin:/usr/sbin:/usr/local/bin"
SECONDS = 120.0


@dataclass(frozen=True)
class Hospital:
    """Where everything is. Ports are of 127.0.0.1."""

    folder: Path
    pages: Path  # OHIF's dist/
    archive: int = 8042  # HTTP
    dicom: int = 4242
    node: int = 11112
    status: int = 8850
    viewer: int = 8080

    def ask(self, path: str, posted: bytes | None = None) -> bytes:
        url = f"http://127.0.0.1:{self.archive}{path}"
        with urllib.request.urlopen(url, data=posted, timeout=60) as answer:
            return bytes(answer.read())

    def send(self, files: Sequence[Path]) -> None:
        """Give an exam to the archive, and let it send the study to the node, as a routing rule does."""
        for path in files:
            self.ask("/instances", path.read_bytes())
        studies = json.loads(self.ask("/studies"))
        self.ask("/modalities/node/store", json.dumps({"Resources": studies}).encode())

    def modalities(self) -> list[str]:
        series = json.loads(self.ask("/series"))
        return [json.loads(self.ask(f"/series/{name}"))["MainDicomTags"].get("Modality", "") for name in series]

    def find_object(self, sop_class: str) -> bytes:
        """The first object of this class."""
        wanted = {"Level": "Instance", "Query": {"SOPClassUID": sop_class}}
        return self.ask(f"/instances/{json.loads(self.ask('/tools/find', json.dumps(wanted).encode()))[0]}/file")


@contextmanager
def run_hospital(hospital: Hospital) -> Iterator[None]:
    """Run the three until the block ends."""
    hospital.folder.mkdir(parents=True, exist_ok=True)
    commands = {
        "orthanc": _describe_orthanc(hospital),
        "node": _describe_node(hospital),
        "nginx": _describe_nginx(hospital),
    }
    with ExitStack() as stack:
        for name, command in commands.items():
            log = stack.enter_context((hospital.folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        _wait_until_all_answer(hospital)
        yield


def _describe_orthanc(hospital: Hospital) -> list[str]:
    settings = json.loads((DEPLOY / "orthanc.json").read_text())
    data = str(hospital.folder / "archive")
    settings |= {"StorageDirectory": data, "IndexDirectory": data, "HttpPort": hospital.archive}
    settings |= {"DicomPort": hospital.dicom, "RemoteAccessAllowed": False, "Plugins": [str(PLUGIN)]}
    settings["DicomModalities"]["node"] |= {"Host": "127.0.0.1", "Port": hospital.node}
    return [_find("Orthanc"), str(_write(hospital.folder / "orthanc.json", json.dumps(settings)))]


def _describe_node(hospital: Hospital) -> list[str]:
    changed = {
        '"/data"': f'"{hospital.folder / "node"}"',
        '"0.0.0.0"': '"127.0.0.1"',
        '"172.28.0.0/24"': '"127.0.0.1"',
        '"172.28.0.2"': '"127.0.0.1"',
        "port = 4242": f"port = {hospital.dicom}",
        "port = 11112": f"port = {hospital.node}",
        "status_port = 8850": f"status_port = {hospital.status}",
    }
    config = _adapt("node.toml", changed, hospital.folder)
    return [sys.executable, "-m", "mm3d", "node", "--config", str(config)]


def _describe_nginx(hospital: Hospital) -> list[str]:
    changed = {
        "listen LISTEN": f"listen 127.0.0.1:{hospital.viewer}",
        "root PAGES": f"root {hospital.pages.resolve()}",
        "alias CONFIG": f"alias {DEPLOY / 'ohif.js'}",
        "http://ORTHANC/": f"http://127.0.0.1:{hospital.archive}/",
    }
    config = _adapt("nginx.conf", changed, hospital.folder)
    user = ["-g", "user root;"] if os.geteuid() == 0 else []  # otherwise its workers may not read what we may
    return [_find("nginx"), "-p", str(hospital.folder), "-c", str(config), "-e", "stderr", *user]


def _adapt(name: str, changed: dict[str, str], folder: Path) -> Path:
    """A file of DEPLOY with addresses, ports and folders of this computer."""
    text = (DEPLOY / name).read_text()
    for given, ours in changed.items():
        assert given in text, given
        text = text.replace(given, ours)
    return _write(folder / name, text)


def _find(program: str) -> str:
    found = shutil.which(program, path=PATHS)
    if found is None:
        sys.exit(f"{program} is missing: apt-get install orthanc orthanc-dicomweb nginx-light")
    return found


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path.resolve()


def _wait_until_all_answer(hospital: Hospital) -> None:
    end = time.monotonic() + SECONDS
    for port in (hospital.archive, hospital.viewer, hospital.status):
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
                break
            except OSError:
                if time.monotonic() > end:
                    sys.exit(f"port {port} does not answer; look at the logs in {hospital.folder}")
                time.sleep(0.2)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pages, folder = map(Path, sys.argv[1:])
    exam = folder / "exam"
    if not exam.exists():
        make_exam(exam, DEMO_SEED, "mini")
    hospital = Hospital(folder.resolve(), pages)
    with run_hospital(hospital):
        files = sorted(exam.glob("*.dcm"))
        hospital.send(files)
        study = dcmread(files[0], stop_before_pixels=True).StudyInstanceUID
        print(f"Archive:  http://127.0.0.1:{hospital.archive}/app/explorer.html")
        print(f"Node:     http://127.0.0.1:{hospital.status}/")
        print(f"Viewer:   http://127.0.0.1:{hospital.viewer}/viewer?StudyInstanceUIDs={study}")
        while "SR" not in hospital.modalities():
            time.sleep(1)
        print("The reports are in the archive: open 'mm3d findings' in the viewer. Ctrl-C ends all three.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
