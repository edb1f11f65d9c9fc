"""Files that are written whole or not at all, and folders that one process uses at a time."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from mm3d.shared.errors import InputError


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let only one process at a time use a folder. The system frees the lock when the process ends, however it ends."""
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise InputError(f"{folder} is in use by another mm3d; wait for it or end it.") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to. When the block ends well, that file becomes `path` and is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        yield partial
        finish_file(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """Where a file is written before it is complete: hidden, with the number of the process that writes it."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def finish_file(partial: Path, path: Path) -> None:
    """Give a complete file its name, make sure that it is on disk, and let the umask decide who can read it."""
    _sync(partial)
    partial.chmod(0o666 & ~_umask())  # some writers make files that only their owner can read
    partial.replace(path)
    if os.name != "nt":  # Windows cannot sync a folder
        _sync(path.parent)


def remove_partial(folder: Path) -> None:
    """Remove the partial files of processes that have ended."""
    for path in folder.glob(".*.partial"):
        number = path.name.split(".")[-2]
        if number.isdecimal() and _is_running(int(number)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_running(number: int) -> bool:
    """Whether a process runs. One that was killed keeps its number, as a zombie, until its parent asks for it."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    umask = os.umask(0)
    os.umask(umask)
    return umask
