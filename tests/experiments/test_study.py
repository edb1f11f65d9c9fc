"""A study as a user runs it: killed, resumed, with a failed run among good ones, reported while it is half done."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.tiny_study import TINY

from mm3d.cli import main
from mm3d.experiments.gallery import draw_gallery
from mm3d.experiments.results import Result, path_of, read_cohort, read_result, read_results
from mm3d.experiments.ship import choose, ship
from mm3d.experiments.spec import StudySpec, read_study
from mm3d.model import weights
from mm3d.predict.run import choose_operating_point
from mm3d.shared.errors import InputError


def arguments(path: Path, folder: Path, *more: str) -> list[str]:
    return ["study", str(path), "-o", str(folder / "study"), "--results", str(folder / "results"), "--jobs", "2", *more]


def run_study(path: Path, folder: Path, *more: str) -> tuple[int, str]:
    return run_main(*arguments(path, folder, *more))


def run_main(*words: str) -> tuple[int, str]:
    """The exit code and everything that this process wrote, on one line. Snakemake and the runs are other processes."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(words)
    return code, " ".join(said.getvalue().split())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, tuple[int, str]]:
    """The tiny study, run once: its file, its folder, and what it wrote."""
    folder = tmp_path_factory.mktemp("study")
    path = folder / "tiny.toml"
    path.write_text(TINY)
    return path, folder, run_study(path, folder)


Tiny = tuple[Path, Path, tuple[int, str]]


def test_a_failed_run_costs_only_what_starts_from_it(tiny: Tiny) -> None:
    _, folder, (code, said) = tiny
    assert code == 1, said
    assert "What failed: broken-seed0 failed: There is no malignant breast to train on" in said
    assert re.search(r"Not finished, because of that or .*: after-broken-seed0\.", said)
    assert "5 of 7 runs are there" in said
    names = {file.stem for file in (folder / "results").glob("*-seed0.json")}
    assert names == {"ffdm-seed0", "mm3d-0-seed0", "hm-0-seed0", "mm3d-seed0", "mlp-seed0"}


def test_a_result_has_what_is_needed_to_judge_it_again(tiny: Tiny) -> None:
    path, folder, _ = tiny
    results = read_results(read_study(str(path)), folder / "results")
    cohort = read_cohort(folder / "results")
    assert len(cohort.names) == 8
    assert set(cohort.annotations) == {"DBT", "FFDM"}
    one, none = results["mm3d-seed0"], results["mm3d-0-seed0"]
    assert one.configuration is not None
    assert one.configuration["start"] == "runs/ffdm-seed0/last.safetensors"  # nothing of this machine
    assert one.configuration["data"]["annotated_fraction"] == 0.4
    assert none.configuration is None
    assert none.weights == "runs/ffdm-seed0/last.safetensors"
    assert one.seconds["train"] > 0
    assert one.memory_mb > 100
    assert results["mlp-seed0"].parameters > one.parameters == none.parameters
    assert {"2D", "3D"} == set(one.scores.found)
    assert set(results["hm-0-seed0"].scores.found) == {"2D"}
    assert one.figures["auc"] is not None
    assert [point["step"] for point in one.curve] == [1, 2]
    assert one.curve[-1]["auc"] is not None
    assert not none.curve


def test_weights_are_kept_and_checkpoints_are_not(tiny: Tiny) -> None:
    _, folder, _ = tiny
    run = folder / "study" / "runs" / "mm3d-seed0"
    assert (run / "last.safetensors").is_file()
    assert not (run / "checkpoints").exists()


def test_a_second_start_does_only_what_is_missing(tiny: Tiny) -> None:
    path, folder, _ = tiny
    results = folder / "results"
    path_of(results, "mlp-seed0").unlink()
    for number, file in enumerate([*results.glob("*"), *(folder / "study").glob("**/*.*")]):  # as in a fresh clone
        os.utime(file, (10**9 + 10**7 * (number % 7), 10**9 + 10**7 * (number % 7)))
    before = {file: file.stat().st_mtime_ns for file in results.glob("*.json")}
    for words in ((), ()):
        code, said = run_study(path, folder, "--only", "ffdm", "mm3d", "mlp", *words)
        assert code == 0, said
        assert {file: file.stat().st_mtime_ns for file in before} == before
    assert path_of(results, "mlp-seed0").is_file()


def test_a_dry_run_shows_what_is_left_and_writes_nothing(tiny: Tiny, capfd: pytest.CaptureFixture[str]) -> None:
    path, folder, _ = tiny
    files = {file: file.stat().st_mtime_ns for file in (folder / "study").glob("**/*")}
    assert "2 of 7 runs are left" in run_study(path, folder, "--dry-run")[1]
    shown = capfd.readouterr().out
    assert "run broken-seed0" in shown
    assert "run after-broken-seed0" in shown
    assert "mm3d" not in shown.replace(str(folder), "")
    assert {file: file.stat().st_mtime_ns for file in (folder / "study").glob("**/*")} == files
    done = run_study(path, folder, "--only", "ffdm", "mm3d", "mlp", "--dry-run")[1]
    assert f"All 3 runs have their results in {folder / 'results'}; to run them again, give another" in done


def test_without_snakemake_a_study_says_what_to_install(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder, _ = tiny
    monkeypatch.setitem(sys.modules, "snakemake", None)
    code, said = run_study(path, folder)
    assert code == 1
    assert "pip install mm3d[study]" in said


def test_other_settings_are_no_result_of_this_study(tiny: Tiny, tmp_path: Path) -> None:
    path, folder, _ = tiny
    other = tmp_path / "tiny.toml"
    other.write_text(path.read_text().replace("[stages.finetune.loop]\nsteps = 2", "[stages.finetune.loop]\nsteps = 3"))
    code, said = run_study(other, folder)
    assert code == 1
    assert "was made with training.loop.steps = 2, not 3; move it and the run's folder" in said
    code, said = run_main("study", "report", str(other), "--results", str(folder / "results"), "-o", str(tmp_path))
    assert code == 1  # or the page would tell the new settings with the old figures
    assert "was made with training.loop.steps = 2, not 3" in said
    assert not (tmp_path / "study.md").exists()


def found_by_all(tiny: Tiny) -> tuple[StudySpec, dict[str, Result]]:
    """All runs, as if they found every cancer: two steps teach nothing."""
    path, folder, _ = tiny
    study = read_study(str(path))
    results = read_results(study, folder / "results")
    found = dict.fromkeys(("2D", "3D"), (500_000,) * len(results["mm3d-seed0"].scores.found["2D"]))
    return study, {name: replace(one, scores=replace(one.scores, found=found)) for name, one in results.items()}


def test_the_report_of_half_a_study_says_so(tiny: Tiny, tmp_path: Path) -> None:
    path, folder, _ = tiny
    shutil.copytree(folder / "results", results := tmp_path / "results")
    with chdir(folder / "study"):
        draw_gallery(*found_by_all(tiny), results)
    assert main(["study", "report", str(path), "--results", str(results), "-o", str(tmp_path)]) == 0
    page = (tmp_path / "study.md").read_text()
    assert "**5 of 7 runs are done.**" in page
    assert "Missing: broken-seed0, after-broken-seed0." in page
    assert "| broken (broken) | volume | 0 | – | – | – | – | – |" in page
    assert "| M&M-3D (mm3d) minus broken (broken) | – | – | missing | – | – | missing |" in page
    (tested,) = [line for line in page.splitlines() if line.startswith("| MLP-Regress (mlp) minus M&M-3D (mm3d) | ")]
    assert len(re.findall(r"[+-]0\.\d{3} ± 0\.\d{3}, p [01]\.\d{3} ", tested)) == 5  # of all five figures
    assert "With 10,000 replicates no p can be below 0.0002." in page
    (row,) = [line.split(" | ") for line in page.splitlines() if line.startswith("| M&M (ffdm) | ffdm | ")]
    figures = read_results(read_study(str(path)), folder / "results")["ffdm-seed0"].figures
    for cell, name, published in ((row[3], "recall@0.25", "[0.61]"), (row[7], "auc", "[0.89]")):
        assert cell.startswith(f"{figures[name]:.3f} ± ")
        assert cell.endswith(published)  # the paper's, beside ours
    assert (tmp_path / "study" / "row.jpg").stat().st_size < 200_000
    assert "study/row.jpg" in page
    assert "scale tiny" in page  # a reader can make the same breasts
    assert "Its size was chosen for a test." in page
    assert "## What we make of it\n\nNothing follows from it." in page
    assert "- **MLP-Regress**: " in page
    assert "- **TimeSform**: " not in page  # it has no such run, and no foreign start
    assert "## 4." not in page
    assert re.search(
        r"The patients' part of the standard errors is 0\.\d{3} to 0\.\d{3} for R@0\.25 and .* in section 2;",
        page,
    )
    assert "the same cancer as M&M, M&M-3D see it" in page
    by_kind = [line for line in page.split("by kind of cancer")[1].splitlines() if "(mm3d)" in line]
    assert [line.split(" | ")[1] for line in by_kind[:2]] == ["2D", "3D"]


def test_options_that_do_not_apply_are_said_and_nothing_is_written(tiny: Tiny, tmp_path: Path) -> None:
    path, folder, _ = tiny
    (tmp_path / "file").touch()
    for words, said in (
        (("report", str(path), "--dry-run", "-o", str(tmp_path)), "--dry-run is not for report"),
        (("report", str(path), "--only", "mm3d", "-o", str(tmp_path)), "--only is not for report"),
        (("ship", "--dry-run", "-o", str(folder / "study")), "--dry-run is not for ship"),
        (("ship", str(path), "-o", str(folder / "study")), "ship is for the weights that come with mm3d"),
        ((str(path), str(tmp_path), "-o", str(tmp_path / "o")), "tiny makes its own cohorts; leave"),
        ((str(path), "-o", str(tmp_path / "o")), "cannot read or write"),
    ):
        where = tmp_path / "file" if said == "cannot read or write" else folder / "results"
        code, told = run_main("study", *words, "--results", str(where))
        assert (code, said in told) == (1, True), told
    assert not (tmp_path / "study.md").exists()


def test_weights_of_another_study_in_the_folder_are_not_taken_for_ours(
    tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, folder, _ = tiny
    own = {file: file.read_bytes() for file in (folder / "study" / "runs").glob("*/last.safetensors")}
    other = tmp_path / "other.toml"
    other.write_text(path.read_text().replace("[stages.base.loop]\nsteps = 2", "[stages.base.loop]\nsteps = 3"))
    code, said = run_study(other, folder, "--only", "ffdm", "mm3d-0", "--results", str(tmp_path / "results"))
    assert code == 1
    assert "ffdm-seed0 failed: runs/ffdm-seed0 was made with training.loop.steps = 2, not 3; move that folder" in said
    assert {file: file.read_bytes() for file in (folder / "study" / "runs").glob("*/last.safetensors")} == own
    shutil.copytree(folder / "results", results := tmp_path / "ours")  # now as if `other` had come first
    (recipe := folder / "study" / "runs" / "ffdm-seed0" / "recipe.json").rename(kept := tmp_path / "recipe.json")
    recipe.write_text(kept.read_text().replace('"steps": 2', '"steps": 3'))
    path_of(results, "mm3d-0-seed0").unlink()
    (results / "row.jpg").unlink(missing_ok=True)
    try:
        code, said = run_study(path, folder, "--results", str(results), "--only", "mm3d-0", "mm3d", "ffdm")
        assert "mm3d-0-seed0 failed: runs/ffdm-seed0 was made with training.dense.steps = 3, not 2" in said
        assert "no pictures were drawn: runs/ffdm-seed0 was made with" in capfd.readouterr().out
        with pytest.raises(InputError, match="ffdm-seed0 was made with"):
            ship(str(path), results, folder / "study", tmp_path)
    finally:
        kept.rename(recipe)


def test_the_best_weights_are_shipped_with_their_figures(tiny: Tiny, tmp_path: Path) -> None:
    path, folder, _ = tiny
    assert ship(str(path), folder / "results", folder / "study", tmp_path) == 0
    header = weights.read_header(tmp_path / "dbt.safetensors")
    assert header.provenance["study"]["run"] == "mm3d"
    own = read_results(study := read_study(str(path)), folder / "results")["mm3d-seed0"]
    worse, better = (replace(own, seed=n, figures={"recall@0.25": 0.1 * n, "auc": 0.5}) for n in (1, 2))
    assert choose(study, [worse, better, worse], "DBT") is better
    assert "auc" in header.provenance["study"]["figures"]
    assert "synthetic" in header.intended_use
    point = choose_operating_point(None, None, header)  # as `mm3d predict` does
    assert 0 < point.threshold <= 1
    assert "0.25 false positives per image" in point.source
    assert weights.read_header(tmp_path / "ffdm.safetensors").provenance["study"]["run"] == "ffdm"


def test_a_clone_goes_on_from_the_weights_that_come_with_mm3d(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path, folder, _ = tiny
    (clone := tmp_path / "clone").mkdir()
    shutil.copytree(folder / "results", clone / "results")
    (mlp := path_of(clone / "results", "mlp-seed0")).unlink()
    code, said = run_study(path, clone, "--only", "mlp")
    assert code == 1
    assert "ffdm-seed0 has a result, but its weights" in said
    assert "Not run, because start weights are missing: mlp-seed0." in said
    assert not (clone / "study" / "cohorts").exists()  # nothing is rendered for a run that cannot be
    shutil.copytree(folder / "study" / "cohorts", clone / "study" / "cohorts")
    (clone / "results" / "weights").mkdir()
    kept = shutil.copy(folder / "study" / "runs" / "ffdm-seed0" / "last.safetensors", clone / "results" / "weights")
    Path(kept).rename(clone / "results" / "weights" / "ffdm-seed0.safetensors")
    code, said = run_study(path, clone, "--only", "mlp")
    assert code == 0, said
    assert "ffdm-seed0: its weights are those kept in" in said
    for there in (clone / "results" / "weights", clone / "study" / "runs"):
        shutil.rmtree(there)
    path_of(clone / "results", "mlp-seed0").unlink()
    ship(str(path), folder / "results", folder / "study", tmp_path)
    monkeypatch.setattr(weights, "shipped", lambda: sorted(tmp_path.glob("*.safetensors")))
    (row := clone / "results" / "row.jpg").write_text("drawn before")
    code, said = run_study(path, clone, "--only", "ffdm", "mm3d", "mlp")
    assert code == 0, said
    assert "ffdm-seed0: its weights are those that come with mm3d, ffdm.safetensors." in said
    assert mlp.is_file()
    assert "no pictures were drawn: runs/mm3d-seed0/last.safetensors is not in" in capfd.readouterr().out
    assert row.read_text() == "drawn before"
    row.unlink()  # as after an interruption between the last run and the pictures
    assert run_study(path, clone, "--only", "ffdm", "mm3d", "mlp")[0] == 0
    assert "no pictures were drawn" in capfd.readouterr().out


def working_in(folder: Path) -> list[int]:
    """Processes whose working folder this is: Snakemake and the runs of a study."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and (process / "cwd").resolve() == folder.resolve():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_killed_study_takes_its_runs_along_and_goes_on_where_they_were(tiny: Tiny, tmp_path: Path) -> None:
    path, folder, _ = tiny
    longer = tmp_path / "longer.toml"
    line = '{ name = "long", label = "long", tables = [], stage = "long", seeds = [0] },\n]\nexpect'
    stage = "\n[stages.long.loop]\nsteps = 30\n[stages.long.validate]\nevery = 30\n"
    longer.write_text(path.read_text().replace("]\nexpect", line, 1) + stage)
    checkpoints = folder / "study" / "runs" / "long-seed0" / "checkpoints"
    program = [sys.executable, "-m", "mm3d", *arguments(longer, folder, "--only", "long")]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL) as study:
        while not list(checkpoints.glob("*.safetensors")):
            assert study.poll() is None, "it ended before it was killed"
            time.sleep(0.05)
        code, said = run_study(longer, folder, "--only", "long")
        assert code != 0
        assert "study is in use by another mm3d; wait for it or end it." in said
        study.send_signal(signal.SIGKILL)
    while working_in(folder / "study"):
        time.sleep(0.05)
    reached = max(int(file.stem.split("-")[1]) for file in checkpoints.glob("*.safetensors"))
    assert 0 < reached < 30
    log = checkpoints.parent / "log.jsonl"
    lines = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= reached]
    assert lines
    code, said = run_study(longer, folder, "--only", "long")
    assert code == 0, said
    assert log.read_text().splitlines()[: len(lines)] == lines  # those steps were not done again
    memory = max(json.loads(line).get("memory_mb", 0.0) for line in log.read_text().splitlines())
    result = read_result(path_of(folder / "results", "long-seed0"))
    assert result.memory_mb == round(memory, 1) > 100  # of the training, whichever process that was


def find_snakemake(study: int) -> list[psutil.Process]:
    try:
        return [child for child in psutil.Process(study).children() if "snakemake" in child.cmdline()]
    except psutil.Error:  # a child has ended meanwhile
        return []


def test_a_study_that_is_killed_at_once_leaves_no_process(tmp_path: Path) -> None:
    """Snakemake takes seconds to start, and asked only then who its parent is."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    with subprocess.Popen([sys.executable, "-m", "mm3d", *arguments(path, tmp_path, "--only", "ffdm")]) as study:
        while not (children := find_snakemake(study.pid)):
            assert study.poll() is None, "it ended before it was killed"
            time.sleep(0.05)
        study.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_a_terminated_study_says_how_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    path.write_text(TINY.replace("breasts = 8", "breasts = 2000", 1))
    program = [sys.executable, "-m", "mm3d", *arguments(path, tmp_path, "--only", "ffdm")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as study:
        while not list((tmp_path / "study").glob("cohorts/*/views/*.npy")):
            assert study.poll() is None, "it ended before it was told to"
            time.sleep(0.05)
        study.send_signal(signal.SIGTERM)
        said, _ = study.communicate()
    assert study.returncode == 130
    assert "Interrupted; the same command continues." in said


def test_another_study_does_not_change_the_cohorts_in_a_folder(tiny: Tiny, tmp_path: Path) -> None:
    path, folder, _ = tiny
    larger = tmp_path / "larger.toml"
    larger.write_text(path.read_text().replace("breasts = 8", "breasts = 9", 1))
    made = {file: file.read_bytes() for file in (folder / "study" / "cohorts").glob("*/*.json")}
    code, said = run_study(larger, folder, "--only", "ffdm", "--results", str(tmp_path / "results"))
    assert code == 1
    assert "train-deep was made with cohort.breasts = 8, not 9; remove it, or give" in said
    assert {file: file.read_bytes() for file in (folder / "study" / "cohorts").glob("*/*.json")} == made
