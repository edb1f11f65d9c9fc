"""Writing files so that a killed process, a full disk or a second run never leaves half of one."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mm3d.shared.errors import InputError


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Only one process at a time gets past this; the system forgets it when the process ends, however it ends."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder} is in use by another mm3d; wait for it or end it.") from None
        yield


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path to write to; when the block ends well, that file becomes `path`, on disk for certain."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = half_made(path)
    try:
        yield partial
        settle(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def half_made(path: Path) -> Path:
    """Where a file is made before it has its name: hidden, and with the number of the process that makes it."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def settle(partial: Path, path: Path) -> None:
    """Give a complete file its name, on disk for certain, readable by whom the umask allows."""
    _sync(partial)
    partial.chmod(0o666 & ~_umask())  # some writers make files that only their owner can read
    partial.replace(path)
    _sync(path.parent)


def clear_half_made(folder: Path) -> None:
    """Remove what killed runs left behind; a run that is alive has the number of its process in the name."""
    for path in folder.glob(".*.partial"):
        number = path.name.split(".")[-2]
        if number.isdecimal() and _alive(int(number)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _alive(number: int) -> bool:
    """Whether a process runs; one that was killed keeps its number until its parent has taken notice."""
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # a system without /proc
        return True
    return state != "Z"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    umask = os.umask(0)
    os.umask(umask)
    return umask
