"""Files: what a killed run left is removed. Folders: results of different settings are not mixed, and the user is told
which setting differs."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from mm3d.shared.errors import InputError, describe_error
from mm3d.shared.files import (
    check_folder,
    check_settings,
    difference,
    lock_folder,
    remove_partial,
    replacing,
    reserve_room,
    working_folder,
)

NOW = {"version": 1, "loop": {"steps": 2, "seed": 0}, "workers": 4}


HALF_MADE = """
import sys, time
from pathlib import Path
from mm3d.shared.files import working_folder
with working_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("made")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_the_room_for_a_file_of_holes_is_taken_before_it_is_filled(tmp_path: Path) -> None:
    """On a full disk, who fills such a file through memory is killed, and the image is blamed."""
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(5_000_000)
    reserve_room(path)
    assert path.stat().st_blocks * 512 >= 5_000_000
    assert path.read_bytes() == bytes(5_000_000)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as full:  # in memory, so that no real disk is ever full
        total = shutil.disk_usage("/dev/shm").total
        full.truncate(2 * total)
        with pytest.raises(OSError, match=full.name) as caught:
            reserve_room(Path(full.name))
    assert describe_error(caught.value).startswith(f"the disk is full: cannot write {full.name}; make room")


def test_only_what_killed_runs_left_is_removed(tmp_path: Path) -> None:
    """Another run in the same folder, whatever its process number, must not lose the file that it is writing."""
    command = [sys.executable, "-c", HALF_MADE, str(tmp_path)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as working,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed,
    ):
        folders = [Path(process.stdout.readline().strip()) for process in (working, killed) if process.stdout]
        killed.kill()
        killed.wait()
        unlocked = tmp_path / ".mm3d-killed-before-it-was-locked.partial"
        unlocked.mkdir()
        others = [tmp_path / ".of-another-program.partial", tmp_path / "whole"]
        for path in (*others, tmp_path / ".lock"):  # the last was left by a run that was killed
            path.touch()
        with working_folder(tmp_path) as ours:
            remove_partial(tmp_path)
            assert sorted(tmp_path.iterdir()) == sorted([folders[0], ours, *others])
            assert (folders[0] / "half").read_text() == "made"
        working.kill()
    remove_partial(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_half_made_files_never_share_a_name(tmp_path: Path) -> None:
    """Two containers give their processes the same numbers, and may write the same file."""
    with replacing(tmp_path / "a.txt") as one, replacing(tmp_path / "a.txt") as two:
        one.write_text("one")
        two.write_text("two")
    assert (tmp_path / "a.txt").read_text() == "one"  # the last that was finished
    with working_folder(tmp_path) as folder, replacing(folder / "sr" / "b.txt") as path:
        path.write_text("b")
        assert list(folder.rglob(".*")) == []  # nothing is locked twice
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_without_locks_what_is_old_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have no locks. Files must be written there all the same."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with replacing(tmp_path / "a.txt") as path:
        path.write_text("a")
        remove_partial(tmp_path)
        assert path.is_file()
        os.utime(path.parent, (0, 0))
        remove_partial(tmp_path)
        assert not path.exists()
        path.parent.mkdir()
        path.write_text("a")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(InputError, match="on a file system without locks"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path, wait=True):
        pass


def write(folder: Path, settings: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "made.json").write_text(json.dumps(settings))
    return folder


def test_a_folder_of_the_same_settings_or_of_none_is_accepted(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "new", "made.json", NOW) is None
    assert check_folder(tmp_path, "made.json", NOW) is None
    assert check_folder(write(tmp_path / "same", NOW), "made.json", NOW) == NOW
    other = NOW | {"workers": 1}
    assert check_folder(write(tmp_path / "other", other), "made.json", NOW, may_differ={"workers"}) == other


def test_the_first_setting_that_differs_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = write(tmp_path / "out", NOW | {"loop": {"steps": 3, "seed": 0}})
    with pytest.raises(InputError) as error:
        check_folder(folder, "made.json", NOW)
    assert str(error.value) == f"{folder} was made with loop.steps = 3, not 2; give another folder with -o."
    with pytest.raises(InputError, match=r"made with workers = 4, not 5; remove it\.$"):
        check_settings(folder / "a.json", NOW, NOW | {"workers": 5}, remedy="remove it")


def test_a_file_or_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is a file; give another folder with -o"):
        check_folder(tmp_path / "file", "made.json", NOW)
    (tmp_path / "made.json").write_text("{")
    with pytest.raises(InputError, match=r"made\.json is damaged; give another folder"):
        check_folder(tmp_path, "made.json", NOW)


def test_only_one_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(InputError, match="in use by another mm3d"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_who_waits_for_a_folder_gets_it(tmp_path: Path) -> None:
    """Each of many processes changes what the others wrote; none of the changes may be lost."""
    (tmp_path / "count").write_text("0")

    def add() -> None:
        for _ in range(20):
            with lock_folder(tmp_path, wait=True):
                count = int((tmp_path / "count").read_text())
                time.sleep(0.001)
                (tmp_path / "count").write_text(str(count + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "count").read_text() == "80"


def test_the_first_difference_is_named_wherever_it_is() -> None:
    there = {"loop": {"steps": 2, "seed": 0}, "data": {"train": [{"folder": "a"}, {"folder": "b"}]}, "rates": [1, 2]}
    assert difference(there, json.loads(json.dumps(there))) == ""
    assert difference(there, there | {"loop": {"steps": 3, "seed": 0}}) == "loop.steps = 2, not 3"
    assert (
        difference(there, there | {"loop": {"steps": 3, "seed": 1}}, may_differ={"loop.steps"})
        == "loop.seed = 0, not 1"
    )
    other = there | {"data": {"train": [{"folder": "a"}, {"folder": "c"}]}}
    assert difference(there, other) == "data.train.1.folder = b, not c"
    assert difference(there, there | {"rates": [1, 3]}) == "rates = [1, 2], not [1, 3]"
    assert difference(there, there | {"loop": None}) == "loop = {'steps': 2, 'seed': 0}, not None"
