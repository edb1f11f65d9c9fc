"""What preparing a volume costs beyond decoding it, and what reading a prepared view costs beyond reading bytes."""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from timing import Row, in_its_own_process, seconds_of_each

from mm3d.data.dicom.frames import SliceReader
from mm3d.data.dicom.header import Header, read_header
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.run import prepare_views
from mm3d.data.records import View
from mm3d.shared.workers import Task, Workers

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the tests write DICOM files; so do we

FRAMES, ROWS, COLUMNS = 70, 2457, 1996
CORES = os.cpu_count() or 1


def rows() -> list[Row]:
    found = in_its_own_process(__file__)  # workers start from the main program, and this one has torch loaded
    return [
        Row(
            f"J2K volume of {FRAMES} x {ROWS} x {COLUMNS} to a prepared view, against decoding alone, all cores",
            f"{found['preparing'] / found['decoding']:.2f} of the time",
            "at most 1.25",
            "both with their own worker processes, started anew",
        ),
        Row(
            "Peak memory of that, all processes",
            f"{found['memory'] / 1e6:.0f} MB",
            "below 600 MB",
            "proportional set size, the prepared file's pages among it",
        ),
        Row(
            f"Reading a prepared view ({found['shape']}) against numpy reading as many bytes",
            f"{found['reading'] / found['numpy']:.2f} of the time",
            "at most 1.2",
        ),
    ]


def measure() -> dict[str, float | str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = volume(folder / "volume.dcm")
        view = View("volume", "L", "CC", "DBT", (path,), None, upright=True)
        header = read_header(path)
        count = iter(range(100))

        def prepare_it() -> None:
            prepare_views([view], folder / f"prepared{next(count)}", PrepareSettings(), CORES)

        decoding, preparing = seconds_of_each(lambda: _decode_all(header), prepare_it, rounds=2)
        with _peak_memory() as peak:
            prepare_it()
        return {"decoding": decoding, "preparing": preparing, "memory": peak[0], **_reading(folder, view)}


def volume(path: Path, side: str = "L", view: str = "CC", study: str | None = None) -> Path:
    """A volume like a scanner's: smooth tissue with 10 bits of texture and noise, half of it air."""
    from openjpeg.utils import encode_array
    from scipy.ndimage import gaussian_filter
    from support.dicom_files import compressed, tomosynthesis, write

    random = np.random.default_rng(0)
    y, x = np.mgrid[:ROWS, :COLUMNS]
    inside = (x / (0.6 * COLUMNS)) ** 2 + ((y - ROWS / 2) / (0.45 * ROWS)) ** 2 < 1
    encoded = []
    for _ in range(5):
        texture = (
            gaussian_filter(random.normal(size=(ROWS, COLUMNS)), 4) * 800 + random.normal(size=(ROWS, COLUMNS)) * 6
        )
        frame = np.where(inside, (450 + texture).clip(50, 1023), 0).astype(np.uint16)
        frame = np.ascontiguousarray(frame if side == "L" else frame[:, ::-1])
        encoded.append(bytes(encode_array(frame, bits_stored=10, photometric_interpretation=2)))
    ds = tomosynthesis(np.zeros((FRAMES, 1, 1), dtype=np.uint16), side, view)
    ds.StudyInstanceUID = study or ds.StudyInstanceUID
    ds.Rows, ds.Columns = ROWS, COLUMNS
    return write(compressed(ds, "1.2.840.10008.1.2.4.90", [encoded[i % 5] for i in range(FRAMES)]), path)


def _decode(header: Header, numbers: list[int]) -> None:
    with SliceReader([header]) as reader:
        for number in numbers:
            reader.read(number)


def _decode_all(header: Header) -> None:
    with Workers(CORES) as workers:
        for part in range(CORES):
            workers.submit(Task(part, _decode, (header, list(range(part, FRAMES, CORES))), 600.0))
        for outcome in workers.outcomes():
            assert not outcome.failure, outcome.failure


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """The largest sum, over this process and its children, of their share of memory, seen every 50 ms."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            peak[0] = max(peak[0], sum(_memory(process) for process in (os.getpid(), *map(int, children))))
            time.sleep(0.05)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _memory(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _reading(folder: Path, source: View) -> dict[str, float | str]:
    (view,), _ = prepare_views([source], folder / "reading", PrepareSettings(), CORES)
    size = view.image().nbytes
    plain = folder / "plain.bin"
    plain.write_bytes(os.urandom(size))
    ours, numpy = seconds_of_each(
        lambda: np.array(view.image()), lambda: np.fromfile(plain, dtype=np.uint16, count=size // 2), rounds=9
    )
    return {"reading": ours, "numpy": numpy, "shape": " x ".join(map(str, view.image().shape))}


if __name__ == "__main__":
    print(json.dumps(measure()))
