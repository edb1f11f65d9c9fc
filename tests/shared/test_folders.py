"""Folders: results of different settings must not be mixed, and the user must know which setting differs."""

import json
from pathlib import Path

import pytest

from mm3d.shared.errors import InputError
from mm3d.shared.files import lock_folder
from mm3d.shared.folders import check_folder, check_settings

NOW = {"version": 1, "loop": {"steps": 2, "seed": 0}, "workers": 4}


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
