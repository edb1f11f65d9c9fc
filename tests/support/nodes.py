"""Nodes: a receiver in this process, and a whole node as a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydicom import Dataset, dcmread
from pynetdicom import AE, evt
from pynetdicom.presentation import AllStoragePresentationContexts

from mm3d.node.queue import Queue

SECONDS = 90.0  # until a test gives up


def wait_for(found: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Wait until something is there, and return it."""
    end = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < end, f"{what} did not happen in {seconds:.0f} s"
        time.sleep(0.05)
    return result


def send(port: int, datasets: Sequence[Dataset | Path], caller: str = "SENDER", **options: Any) -> list[int | None]:
    """Send objects by C-STORE. The status of each; None: no answer. An empty list: not accepted."""
    read = [ds if isinstance(ds, Dataset) else dcmread(ds) for ds in datasets]
    ae = AE(ae_title=caller)
    ae.connection_timeout = ae.acse_timeout = ae.dimse_timeout = ae.network_timeout = 20
    for ds in {(ds.SOPClassUID, ds.file_meta.TransferSyntaxUID): ds for ds in read}.values():
        ae.add_requested_context(ds.SOPClassUID, ds.file_meta.TransferSyntaxUID)
    association = ae.associate("127.0.0.1", port, **{"ae_title": "MM3D"} | options)
    if not association.is_established:
        return []
    statuses: list[int | None] = []
    for ds in read:
        try:
            statuses.append(association.send_c_store(ds).get("Status"))
        except (RuntimeError, ValueError):  # broken off
            statuses.append(None)
    association.release()
    return statuses


@contextmanager
def run_destination(port: int, answer: Callable[[], int] = lambda: 0x0000) -> Iterator[list[Dataset]]:
    """A DICOM node, ARCHIVE, that keeps what it is sent. `answer` says with which status it answers."""
    kept: list[Dataset] = []

    def store(event: Any) -> int:
        status = answer()
        if status == 0x0000:
            ds = event.dataset
            ds.file_meta = event.file_meta
            kept.append(ds)
        return status

    ae = AE("ARCHIVE")
    ae.supported_contexts = AllStoragePresentationContexts
    server: Any = ae.start_server(("127.0.0.1", port), block=False, evt_handlers=[(evt.EVT_C_STORE, store)])
    try:
        yield kept
    finally:
        server.shutdown()


@dataclass
class RunningNode:
    """A node as a process."""

    config: Path
    folder: Path
    port: int
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mm3d", "node", "--config", str(self.config)]
        with self.log.open("ab") as log:
            said = self.log.stat().st_size
            process = self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_for(lambda: b"listens at" in self.log.read_bytes()[said:] or process.poll(), "the start of the node")
        assert process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(SECONDS)

    def exams(self) -> dict[str, str]:
        """The state of each exam, by its code."""
        queue = Queue(self.folder / "queue.sqlite")
        try:
            return {row["code"]: row["state"] for row in queue.last_exams(1000)}
        finally:
            queue.close()

    def undelivered(self) -> int:
        queue = Queue(self.folder / "queue.sqlite")
        try:
            return sum(count for (_, state), count in queue.deliveries().items() if state == "waiting")
        finally:
            queue.close()

    def refused(self) -> list[Any]:
        """The results that a destination refused."""
        queue = Queue(self.folder / "queue.sqlite")
        try:
            return queue.refused(100)
        finally:
            queue.close()

    def is_done(self) -> bool:
        return not {"waiting", "predicting"} & set(self.exams().values()) and not self.undelivered()


def describe_node(
    folder: Path, port: int, weights: Path, more: str = "", top: str = "", quiet: float = 1.0
) -> RunningNode:
    """Write the settings of a node whose sender is SENDER; `more` is TOML behind them, `top` in front."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "node.toml"
    config.write_text(
        f'folder = "{folder / "data"}"\nquiet_seconds = {quiet}\nretry_seconds = 0.5\n{top}\n'
        f'[receive]\nport = {port}\nfree_megabytes = 1\nseconds = 5.0\n[[receive.peers]]\nae_title = "SENDER"\n'
        f'[[receive.peers]]\nae_title = "ORTHANC"\n[predict]\nweights = "{weights}"\njobs = 1\n'
        f"threshold = 0.0\n{more}"
    )
    return RunningNode(config, folder / "data", port, folder / "node.log")


@contextmanager
def run_node(node: RunningNode) -> Iterator[RunningNode]:
    node.start()
    try:
        yield node
    finally:
        assert node.process is not None
        if node.process.poll() is None:
            node.kill()
