"""Files that are written whole or not at all, and folders that hold the results of one set of settings.

A file is written into a working folder first: a hidden folder with a random name, which its process keeps locked. So
several processes may write into one folder, also from several containers or hosts, and what a killed process left is
known by its free lock. A command refuses to mix results of other settings into such a folder.
"""

import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mm3d.shared.config import is_deep, parse_json
from mm3d.shared.errors import InputError

NOT_THERE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # what a file system says that cannot reserve room
REMEDY = "give another folder with -o"
WORKING, LOCK = ".mm3d-{}.partial", "lock"  # the name of a working folder, and of the file in it that is locked
FOLDER_LOCK = ".lock"  # in a folder that only one process at a time may use
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what a file system without locks answers
DAY = 86_400.0  # seconds; a working folder on a file system without locks is left behind if it is unchanged for so long


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to. When the block ends well, that file becomes `path` and is on disk."""
    if any(Path(part).match(WORKING.format("*")) for part in path.parent.parts):  # what is in there is half made anyway
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
        finish_file(path, path)
        return
    with working_folder(path.parent) as folder:
        partial = folder / path.name
        yield partial
        finish_file(partial, path)


def save_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all, with line breaks for people."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=1), encoding="utf-8")


@contextmanager
def working_folder(parent: Path) -> Iterator[Path]:
    """A hidden folder in `parent` for what is not complete yet. It is removed when the block ends."""
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = parent / WORKING.format(secrets.token_hex(8))
        folder.mkdir()
        try:
            lock = _lock(folder / LOCK)
            break
        except (Timeout, FileNotFoundError):  # another mm3d took it for one that was left behind
            continue
    try:
        yield folder
    finally:
        _remove_folder(folder, lock)


def remove_partial(folder: Path) -> None:
    """Remove the working folders of processes that were killed, and the file of their lock."""
    if (folder / FOLDER_LOCK).exists():
        with suppress(InputError, OSError), lock_folder(folder):
            pass  # what was locked is removed
    for left in folder.glob(WORKING.format("*")):
        with suppress(Timeout, OSError):  # it is in use, or removed by another mm3d, or of another user
            lock = _lock(left / LOCK)
            if lock is not None or time.time() - left.stat().st_mtime > DAY:
                _remove_folder(left, lock)


def reserve_room(path: Path) -> None:
    """Take the room on the disk that a file needs which is still full of holes, where the system can do this.

    A full disk is an error here, with a name. Later it would kill the process that fills the file through memory.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise OSError(error.errno, error.strerror, str(path)) from error


def finish_file(partial: Path, path: Path) -> None:
    """Give a complete file its name, make sure that it is on disk, and let the umask decide who can read it."""
    sync(partial)
    partial.chmod(0o666 & ~_umask())  # some writers make files that only their owner can read
    partial.replace(path)
    if os.name != "nt":  # Windows cannot sync a folder
        sync(path.parent)


def sync(path: Path) -> None:
    """Make sure that a file or a folder is on disk."""
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


def _lock(path: Path, seconds: float = 0) -> FileLock | None:
    """Lock a file, which is made if it is not there. The system frees the lock when the process ends, however it ends.

    None: the file system has no locks. Timeout: another process has the lock, and kept it for so many seconds.
    """
    lock = FileLock(path, timeout=seconds, fallback_to_soft=False)
    try:
        lock.acquire()
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return lock


def _remove_folder(folder: Path, lock: FileLock | None) -> None:
    """Remove a working folder. Whoever finds it meanwhile sees it locked until nothing is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        lock.release()
    with suppress(OSError):
        folder.rmdir()  # NFS and Windows keep a file as long as it is open, and then its folder is still there


@contextmanager
def lock_folder(folder: Path, wait: bool = False) -> Iterator[None]:
    """Let only one process at a time use a folder. Another one is refused, or, with `wait`, has to wait.

    On a file system without locks the folder is refused, or, with `wait`, nobody waits.
    """
    path = folder / FOLDER_LOCK
    try:
        lock = _lock(path, -1 if wait else 0)
    except Timeout:
        raise InputError(f"{folder} is in use by another mm3d; wait for it or end it.") from None
    if lock is None and not wait:
        raise InputError(f"{folder} is on a file system without locks; {REMEDY}.")
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                path.unlink()  # while it is locked: a process that waits sees that the file is gone, and makes another
            lock.release()


def refuse_files(folder: Path, names: Iterable[str], results_of: str) -> None:
    """Refuse a folder that has files of these names, which nothing shows to be results of ours."""
    for name in names:
        if os.path.lexists(folder / name):
            raise InputError(f"{folder} has a {name} that is not a result of {results_of}; {REMEDY}.")


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
        before = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(before, dict) or is_deep(before):
            raise ValueError
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
