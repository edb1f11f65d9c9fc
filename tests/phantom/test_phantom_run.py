"""Writing a virtual trial: the bytes do not depend on how it was made, and nothing is lost on the way."""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pydicom
import pytest
from support.virtual_trial import TRIAL, crash, render

from mm3d.data.datasets import tables
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import read_breasts
from mm3d.data.prepare.run import run as prepare
from mm3d.phantom.run import PREPARED, make_trial
from mm3d.phantom.trial import Trial
from mm3d.shared.config import to_dict
from mm3d.shared.errors import InputError

SMALL = PrepareSettings(width=40, length=80, slices=4)
EIGHT = dataclasses.replace(TRIAL, breasts=8)
FORMATS = pytest.mark.parametrize("settings", [None, SMALL], ids=["dicom", "prepared"])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make(
    folder: Path, settings: PrepareSettings | None = None, jobs: int = 2, trial: Trial = TRIAL
) -> dict[str, bytes]:
    assert make_trial(trial, folder, settings, jobs, render) == 0
    return tree(folder)


def start(folder: Path, settings: PrepareSettings | None, function: str, breasts: int = 8) -> subprocess.Popen[str]:
    """The same in a process of its own, which can be killed; what an error says goes to stderr."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom support.virtual_trial import *\n"
        "from mm3d.shared.errors import InputError\nfrom mm3d.phantom.run import make_trial\n"
        "from mm3d.data.prepare.geometry import PrepareSettings\n"
        f"trial = Trial(seed=1, breasts={breasts}, scale='tiny')\n"
        f"try:\n    make_trial(trial, Path({str(folder)!r}), {settings!r}, 2, {function})\n"
        "except InputError as error:\n    sys.exit(str(error))\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


# ---- the same bytes ------------------------------------------------------------------------------------------------


@FORMATS
def test_the_number_of_workers_does_not_show(tmp_path: Path, settings: PrepareSettings | None) -> None:
    one, three = (make(tmp_path / name / "trial", settings, jobs) for name, jobs in (("one", 1), ("three", 3)))
    assert len(one) > 20
    assert one == three


@pytest.mark.parametrize(
    ("settings", "everybody"),
    [(None, True), (SMALL, False)],
    ids=["dicom, all processes", "prepared, the parent alone"],
)
def test_a_run_that_is_killed_continues_to_the_same_bytes(
    tmp_path: Path, settings: PrepareSettings | None, everybody: bool
) -> None:
    folder = tmp_path / "killed" / "trial"
    process = start(folder, settings, "render_slowly")
    while len(list(folder.glob("breasts/*.json"))) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    if everybody:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("breasts/*.json")}
    assert 3 <= len(finished) < 8
    assert not (folder / "file-paths.csv").exists()  # nothing that looks like a whole trial
    assert not (folder / "cohort.json").exists()
    half = folder / "breasts" / ".mm3d-0123456789abcdef.partial"
    half.mkdir()
    (half / "000007.json").write_text("half")
    assert make(folder, settings, trial=EIGHT) == make(tmp_path / "whole" / "trial", settings, trial=EIGHT)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # those were not made again


@FORMATS
def test_more_breasts_extend_a_trial(tmp_path: Path, settings: PrepareSettings | None) -> None:
    make(tmp_path / "grown" / "trial", settings, trial=dataclasses.replace(TRIAL, breasts=2))
    first = tmp_path / "grown" / "trial" / "breasts" / "000000.json"
    stamp = first.stat().st_mtime_ns
    five = dataclasses.replace(TRIAL, breasts=5)
    grown = make(tmp_path / "grown" / "trial", settings, trial=five)
    assert grown == make(tmp_path / "whole" / "trial", settings, trial=five)
    assert first.stat().st_mtime_ns == stamp


def test_another_seed_gives_other_images_under_other_numbers(tmp_path: Path) -> None:
    seeds = (dataclasses.replace(TRIAL, seed=seed) for seed in (1, 2))
    one, two = (make(tmp_path / str(trial.seed) / "trial", trial=trial) for trial in seeds)
    images = [name for name in one if name.endswith(".dcm")]
    assert len(images) == 16
    for name in images:
        here, there = (pydicom.dcmread(tmp_path / seed / "trial" / name) for seed in ("1", "2"))
        assert not np.array_equal(here.pixel_array, there.pixel_array)
        for number in ("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"):
            assert here[number].value != there[number].value
    assert one.keys() == two.keys()


@FORMATS
def test_what_was_removed_is_made_again(tmp_path: Path, settings: PrepareSettings | None) -> None:
    folder = tmp_path / "trial"
    whole = make(folder, settings)
    first, *_, last = [path for path in sorted(folder.rglob("*")) if path.suffix in (".dcm", ".npy")]
    first.unlink()
    last.write_bytes(b"")  # as a full disk or a broken copy leaves it
    assert make(folder, settings) == whole


# ---- nothing lost --------------------------------------------------------------------------------------------------


def test_a_folder_of_another_trial_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    before = make(folder)
    for changes, settings, words in (
        ({"seed": 2}, None, "was made with trial.seed = 1, not 2; give another folder."),
        ({"contrast": 2.0}, None, "was made with trial.contrast = 1.0, not 2.0"),
        ({"breasts": 3}, None, "a trial of 4 breasts; ask for as many or more"),
        ({}, SMALL, "was made with format = dicom, not prepared"),
    ):
        with pytest.raises(InputError, match=words) as refused:
            make_trial(dataclasses.replace(TRIAL, **changes), folder, settings, 1, render)
        assert str(folder) in str(refused.value)
    assert tree(folder) == before
    make(tmp_path / "prepared", SMALL)
    with pytest.raises(InputError, match=r"was made with prepare.length = 80, not 96"):
        make_trial(TRIAL, tmp_path / "prepared", PREPARED["tiny"], 1, render)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("mine")
    with pytest.raises(InputError, match="is not empty and holds no trial"):
        make_trial(TRIAL, tmp_path, None, 1, render)
    with pytest.raises(InputError, match="is a file; give another folder"):
        make_trial(TRIAL, tmp_path / "labels.csv", None, 1, render)
    assert tree(tmp_path) == {"labels.csv": b"mine"}
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "trial.json").write_text("half")
    with pytest.raises(InputError, match="damaged"):
        make_trial(TRIAL, tmp_path / "trial", None, 1, render)


def test_a_worker_that_is_lost_costs_nothing_that_is_finished(tmp_path: Path) -> None:
    folder = tmp_path / "crashed" / "trial"
    with pytest.raises(InputError, match=r"^Breast 2 of .* was not made \(its worker process crashed") as failed:
        make_trial(TRIAL, folder, None, 1, crash)
    assert "\n" not in str(failed.value)
    assert sorted(path.name for path in folder.glob("breasts/*.json")) == ["000000.json", "000001.json"]
    assert make(folder) == make(tmp_path / "whole" / "trial")


@FORMATS
def test_a_disk_that_is_full_is_said_in_one_line(tmp_path: Path, settings: PrepareSettings | None) -> None:
    folder = tmp_path / "full" / "trial"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, before[1]))  # for the child: no file may be larger
    try:
        process = start(folder, settings, "render", breasts=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert len(errors.splitlines()) == 1
    assert f"cannot write {folder}: " in errors
    assert "give the same command to continue" in errors
    assert not list(folder.glob("breasts/*.json"))  # no breast counts as made
    assert not [path for path in folder.rglob("*") if path.suffix in (".dcm", ".npy") and path.stat().st_size >= 8_000]
    assert make(folder, settings) == make(tmp_path / "whole" / "trial", settings)


# ---- what is written is what was rendered ---------------------------------------------------------------------------


def test_the_tables_give_back_what_was_rendered(tmp_path: Path) -> None:
    make(tmp_path / "trial", trial=dataclasses.replace(TRIAL, breasts=6))
    cohort = tables.read(tmp_path / "trial")
    assert not cohort.problems
    assert len(cohort.breasts) == 6
    for index, breast in enumerate(cohort.breasts):
        truth, _ = render(TRIAL, index)
        located = [dataclasses.replace(view, files=(tmp_path / "trial" / view.files[0],)) for view in truth.views]
        assert breast == dataclasses.replace(truth, views=tuple(located))
        assert len(breast.views) == 4


@pytest.mark.parametrize("intensity", ["auto", "percentile"])
def test_prepared_at_once_is_what_prepare_makes_of_the_dicom_files(tmp_path: Path, intensity: str) -> None:
    settings = dataclasses.replace(SMALL, intensity=intensity)  # type: ignore[arg-type]
    make(tmp_path / "dicom")
    assert prepare(tables.read, tmp_path / "dicom", tmp_path / "by way of dicom", settings, 2) == 0
    make(tmp_path / "at once", settings)
    by_dicom, at_once = read_breasts(tmp_path / "by way of dicom"), read_breasts(tmp_path / "at once")
    assert len(by_dicom) == len(at_once) == 4
    for one, same in zip(by_dicom, at_once, strict=True):
        assert dataclasses.replace(one.breast, views=same.breast.views) == same.breast
        assert len(one.views) == 4
        for view, other in zip(one.views, same.views, strict=True):
            assert dataclasses.replace(view.view, files=other.view.files) == other.view
            assert view.file == other.file
            assert view.annotations() == other.annotations()
            assert np.array_equal(view.image(), other.image())


def test_the_sizes_of_the_scales_are_those_of_the_models() -> None:
    from mm3d.model.config import PRESETS

    for scale, preset in (("tiny", "tiny"), ("mini", "mini"), ("midi", "mini"), ("full", "paper")):
        assert PREPARED[scale].slices == PRESETS[preset].slices


def test_the_settings_of_a_trial_are_kept_beside_it(tmp_path: Path) -> None:
    make(tmp_path / "trial", SMALL)
    settings = json.loads((tmp_path / "trial" / "trial.json").read_text())
    assert settings["trial"] == to_dict(TRIAL)
    assert settings["prepare"]["width"] == 40
