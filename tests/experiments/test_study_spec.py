"""A study's file: an error in it is reported before any work, and every run waits for what it needs."""

import os
from pathlib import Path

import pytest
from support.tiny_study import TINY

from mm3d.cli import main
from mm3d.experiments.spec import StudySpec, read_study
from mm3d.experiments.workflow import choose_jobs
from mm3d.shared.console import Console
from mm3d.shared.errors import InputError


def spec(text: str = TINY, tmp_path: Path | None = None) -> StudySpec:
    path = (tmp_path or Path(os.environ.get("TMPDIR", "/tmp"))) / f"spec-{os.getpid()}.toml"
    path.write_text(text)
    try:
        return read_study(str(path))
    finally:
        path.unlink()


def test_a_run_has_the_cohorts_that_it_reads_and_the_job_that_it_starts_from() -> None:
    study = spec()
    assert study.cohorts_of(study.run("mm3d")) == ["train", "test"]
    assert study.cohorts_of(study.run("mm3d-0")) == ["test"]
    assert study.cohorts_of(study.run("hm-0")) == ["test", "train"]  # for the histogram of its mammograms
    assert study.sources_of("train") == ["train-deep", "train"]
    assert [study.place(name) for name in ("train", "train-deep")] == [("train", None), ("train-deep", None)]
    line = study.line_of(study.jobs["after-broken-seed0"])
    assert [job.name for job in line] == ["after-broken-seed0", "broken-seed0", "ffdm-seed0"]
    download = read_study("bcs-dbt")
    assert download.place("train") == ("download", "train")  # a split needs no folder of its own
    assert download.place("test-8") == ("download-8", "test")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('fusion = "mlp"', 'fuson = "mlp"', "did you mean 'fusion'"),
        ('start = "broken" }', 'start = "nobody" }', "start = 'nobody', which is not one of"),
        ('start = "broken" }', 'start = "after-broken" }', "starts from itself"),
        ('of = "train-deep"', 'of = "nothing"', "of = 'nothing', which is not one of"),
        ("[stages.base.dense]\nsteps", "[stages.base.dense]\nstps", "did you mean 'steps'"),
        ('name = "mlp"', 'name = "mm3d"', "two runs are called 'mm3d'"),
        ('tables = ["finetuned", "data"]', 'tables = ["fusoin"]', "must be one of inference, .*not 'fusoin'"),
        ('title = "A', 'name = "other"\ntitle = "A', "has the name of its file"),
        ('[["mm3d", "broken"]]', '[["mm3d", "nobody"]]', "'nobody', which is not one of"),
        ("breasts = 8\n", "", "needs a number of breasts"),
        ("[stages.finetune.loop]", "[stages.finetun.loop]", "stage = 'finetune', which is not one of"),
        ("[stages.finetune.loop]", "[stages.other.loop]\n[stages.finetune.loop]", r"no run uses \[stages.other\]"),
        ("seed = 2", "seed = 1", "train-deep and test have one seed, so the same patients"),
        ("seeds = [0] }", "seeds = [0, 0] }", "has a seed twice"),
        ('name = "mlp"', 'name = "../mlp"', "cannot name a run's files"),
        ('["ffdm", "mm3d"]', '["mm3d", "ffdm"]', "the last run of the gallery must be of volumes"),
    ],
)
def test_a_wrong_line_is_said_before_any_work(old: str, new: str, said: str) -> None:
    assert old in TINY
    with pytest.raises(InputError, match=said):
        spec(TINY.replace(old, new))


def test_only_some_runs_bring_along_what_they_start_from() -> None:
    quiet = Console(quiet=True)
    chosen = choose_jobs(spec(), ["after-broken"], {}, quiet)
    assert [job.name for job in chosen] == ["ffdm-seed0", "broken-seed0", "after-broken-seed0"]
    with pytest.raises(InputError, match="--only = 'nobody'"):
        choose_jobs(spec(), ["nobody"], {}, quiet)


def test_the_studies_that_come_with_mm3d_have_all_of_the_papers_sections() -> None:
    trial = read_study("virtual-trial")
    tables = {table for run in trial.runs for table in run.tables}
    assert tables == {"inference", "finetuned", "data", "annotations", "start", "slices", "fusion", "mixed"}
    for table, labels in (
        ("inference", {"M&M", "MIP", "HM", "MSP", "Buda", "M&M-3D"}),
        ("finetuned", {"M&M", "MIP", "HM", "Buda*", "Buda", "M&M-3D*", "M&M-3D"}),
        ("data", {"M&M-3D", "TimeSform", "QuerySummary", "MLP-Regress"}),
    ):
        assert {run.label for run in trial.runs if table in run.tables} == labels
    assert all(len(run.seeds) >= 3 for run in trial.runs if {"finetuned", "data"} & set(run.tables))
    assert {run.annotated for run in trial.runs if "annotations" in run.tables} == {0.02, 0.16, 0.4}
    assert len(trial.expect) == 7
    assert read_study("bcs-dbt").given == ("ffdm", "coco")


def test_bcs_dbt_needs_start_weights_and_its_download(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--results", str(tmp_path / "r"), "-o", str(tmp_path / "s")]
    assert main(["study", "bcs-dbt", str(tmp_path), *where]) == 1
    assert "give them with --start ffdm=WEIGHTS" in capsys.readouterr().err
    start = tmp_path / "ffdm.safetensors"
    start.write_bytes(b"")
    main(["study", "bcs-dbt", "--start", f"ffdm={start}", "--only", "mm3d-0", *where])
    assert "needs a download of BCS-DBT; give its folder" in capsys.readouterr().err
    main(["study", "bcs-dbt", str(tmp_path / "none"), "--start", "ffdm", "--only", "mm3d-0", *where])  # ours, by name
    assert "none is not a folder" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
    main(["study", "bcs-dbt", str(tmp_path), "--start", f"ffdm={start}", "--only", "mm3d-0", *where])
    capsys.readouterr()  # an empty folder is no download, but the start weights were taken
    main(["study", "bcs-dbt", "--start", f"nobody={start}", *where])
    assert "the study takes start weights for ffdm, coco" in capsys.readouterr().err
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"other")
    main(["study", "bcs-dbt", str(tmp_path), "--start", f"ffdm={other}", "--only", "mm3d-0", *where])
    assert "was run from other start weights" in capsys.readouterr().err
