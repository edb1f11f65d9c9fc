"""Files: what a killed run left is removed. Folders: results of different settings are not mixed, and the user is told
which setting differs."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mm3d.shared.errors import InputError
from mm3d.shared.files import check_folder, check_settings, difference, lock_folder, partial_path, remove_partial

NOW = {"version": 1, "loop": {"steps": 2, "seed": 0}, "workers": 4}


def test_only_what_killed_runs_left_is_removed(tmp_path: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as working,
        subprocess.Popen([sys.executable, "-c", ""]) as ended,
    ):
        while "Z" not in Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2]:
            time.sleep(0.01)  # it has ended, and keeps its number until this test asks for its exit code
        kept = [partial_path(tmp_path / "ours"), tmp_path / f".theirs.{working.pid}.partial", tmp_path / "whole"]
        for name in (f".a.{ended.pid}.partial", ".b.999999999.partial", ".c.partial"):
            (tmp_path / name).touch()
        (tmp_path / f".folder.{ended.pid}.partial" / "inside").mkdir(parents=True)
        for path in kept:
            path.touch()
        remove_partial(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted(kept)
        working.communicate(b"\n")


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
