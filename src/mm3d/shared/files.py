"""Files that are written whole or not at all, and folders that hold the results of one set of settings.

A command refuses to mix results of other settings into such a folder, and only one process at a time may use it.
"""

import json
import os
import shutil
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from mm3d.shared.errors import InputError

REMEDY = "give another folder with -o"


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


def save_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all, with line breaks for people."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=1), encoding="utf-8")


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


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let only one process at a time use a folder. The system frees the lock when the process ends, however it ends."""
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise InputError(f"{folder} is in use by another mm3d; wait for it or end it.") from None


def check_folder(
    folder: Path, record: str, settings: dict[str, Any], may_differ: Container[str] = (), remedy: str = REMEDY
) -> dict[str, Any] | None:
    """Refuse a folder that was made with other settings.

    The file `record` in the folder says what it was made with. Its content is returned, or None if the folder has no
    such file. Settings named in `may_differ` are not compared. `remedy` tells the user what to do.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; {remedy}.")
    path = folder / record
    if not path.is_file():
        return None
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged; {remedy}.") from error
    check_settings(folder, before, settings, may_differ, remedy)
    return before


def check_settings(
    made: Path, before: Any, settings: dict[str, Any], may_differ: Container[str] = (), remedy: str = REMEDY
) -> None:
    """Refuse the folder or file `made` unless the settings that it was made with, `before`, are those of now."""
    if found := difference(before, settings, may_differ):
        raise InputError(f"{made} was made with {found}; {remedy}.")


def difference(before: Any, now: Any, may_differ: Container[str] = (), where: str = "") -> str:
    """The first setting in which two tables differ, such as "loop.steps = 2, not 3", or "" if there is none."""
    if _has_names(before) and type(before) is type(now):
        before, now = (dict(enumerate(table)) if isinstance(table, list) else table for table in (before, now))
        for name in sorted({*before, *now}):
            if found := difference(before.get(name), now.get(name), may_differ, f"{where}.{name}".lstrip(".")):
                return found
        return ""
    return "" if before == now or where in may_differ else f"{where} = {before}, not {now}"


def _has_names(value: Any) -> bool:
    """Whether the settings in a value have names of their own: it is a table or a list of tables."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))
