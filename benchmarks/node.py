"""How fast a node takes exams, against Orthanc storing the same files, and what memory it needs meanwhile."""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pydicom import dcmread
from pydicom.uid import generate_uid
from timing import Row, in_its_own_process

from mm3d.cli.demo import make_exam

EXAMS, ROUNDS = 200, 3
PATHS = "/usr/bin:/usr/sbin"
SENDERS = 2  # at the same time: an archive opens several associations


def rows() -> list[Row]:
    if any(shutil.which(program, path=PATHS) is None for program in ("Orthanc", "storescu")):
        return []  # Debian's packages; make test installs them
    found = in_its_own_process(__file__)
    first, last = found["memory"]
    note = f"{found['files']} files, {found['megabytes']:.0f} MB in JPEG 2000, best of {ROUNDS} in turn; "
    return [
        Row(
            f"`mm3d node` taking {EXAMS} mini exams of 4 volumes from {SENDERS} storescu, against Orthanc storing them",
            f"{found['node'] / found['orthanc']:.2f} of the time",
            "at most 1",
            note + f"{found['node']:.1f} s against {found['orthanc']:.1f} s; both sync each file to the disk",
        ),
        Row(
            "Memory of the node after a tenth of these exams, and after all",
            f"{first:.0f} and {last:.0f} MB",
            "flat",
            "resident, without a prediction",
        ),
    ]


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_exams(folder / "exams")
        best = dict.fromkeys(("orthanc", "node"), float("inf"))
        for _ in range(ROUNDS):
            with run_orthanc(folder / "orthanc") as (port, _):
                best["orthanc"] = min(best["orthanc"], send(folder / "exams", port, "ORTHANC"))
            with run_node(folder / "node") as (port, _):
                best["node"] = min(best["node"], send(folder / "exams", port, "MM3D"))
        with run_node(folder / "node") as (port, process):
            memory = []
            for part in sorted((folder / "exams").iterdir()):
                send(part, port, "MM3D", senders=1)
                memory.append(psutil.Process(process.pid).memory_info().rss / 1e6)
        size = sum(path.stat().st_size for path in files) / 1e6
        return {**best, "files": len(files), "megabytes": size, "memory": (memory[0], memory[-1])}


def write_exams(folder: Path) -> list[Path]:
    """Copies of one exam with UIDs of their own, in ten folders."""
    make_exam(folder.with_name("one"), 1, "mini")
    written = []
    for number in range(EXAMS):
        study = generate_uid()
        for path in sorted(folder.with_name("one").glob("*.dcm")):
            ds = dcmread(path)
            ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.SOPInstanceUID = study, generate_uid(), generate_uid()
            ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID
            written.append(folder / str(number * 10 // EXAMS) / f"{number}-{path.name}")
            written[-1].parent.mkdir(parents=True, exist_ok=True)
            ds.save_as(written[-1])
    return written


def send(folder: Path, port: int, title: str, senders: int = SENDERS) -> float:
    """Send a folder as fast as storescu can. Returns the seconds."""
    parts = [folder] if senders == 1 else sorted(folder.iterdir())
    program = shutil.which("storescu", path=PATHS)
    assert program is not None
    call = [
        program,
        "--required",
        "--propose-j2k-lossless",
        "-aet",
        "BENCH",
        "-aec",
        title,
        "+sd",
        "127.0.0.1",
        str(port),
    ]
    began = time.perf_counter()
    shares = [parts[start::senders] for start in range(senders)]
    running = [subprocess.Popen([*call, *map(str, share)], stdout=subprocess.DEVNULL) for share in shares]
    assert [process.wait() for process in running] == [0] * senders
    return time.perf_counter() - began


@contextmanager
def run_orthanc(folder: Path) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    http, dicom = free_port(), free_port()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    settings = {"StorageDirectory": str(folder), "IndexDirectory": str(folder), "HttpPort": http, "DicomPort": dicom}
    (folder / "orthanc.json").write_text(json.dumps(settings | {"DicomAet": "ORTHANC", "DicomCheckCalledAet": True}))
    program = shutil.which("Orthanc", path=PATHS)
    assert program is not None
    yield from _run([program, str(folder / "orthanc.json")], dicom)


@contextmanager
def run_node(folder: Path) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    port = free_port()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "node.toml").write_text(
        f'folder = "{folder / "data"}"\nquiet_seconds = 1e6\n[receive]\nport = {port}\n[[receive.peers]]\n'
        'ae_title = "BENCH"\n'
    )
    yield from _run([sys.executable, "-m", "mm3d", "node", "--config", str(folder / "node.toml")], port)


def _run(command: list[str], port: int) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield port, process
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    print(json.dumps(measure()))
