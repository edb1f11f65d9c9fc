"""The recipe for BCS-DBT from start to end, on a virtual trial that is laid out as the download is."""

import json
import shlex
from pathlib import Path

import pytest
from support.bcs_dbt_download import lay_out_trial
from support.csv_files import rows_of

from mm3d.cli import main
from mm3d.model import weights
from mm3d.train.config import CONFIGS

SMALL = {
    "prepare": "--width 48 --length 96 --slices 4 --jobs 1",
    "train": "--loop.steps 1 --loop.batch 2 --loop.threads 1 --data.workers 1",
    "predict": "",
    "evaluate": "--replicates 10",
}


def commands() -> list[list[str]]:
    """The commands in the head of the recipe."""
    lines = (CONFIGS / "bcs-dbt.toml").read_text(encoding="utf-8").splitlines()
    return [shlex.split(line.removeprefix("#   mm3d ")) for line in lines if line.startswith("#   mm3d ")]


def split_patients(trial: Path) -> dict[str, str]:
    """Patients with and without cancer in each split."""
    rows = rows_of(trial / "labels.csv")
    ill = sorted({row["PatientID"] for row in rows if row["Cancer"] == "1"})
    healthy = sorted({row["PatientID"] for row in rows} - set(ill))
    splits = ("train", "validation", "test")
    return {patient: splits[i % 3] for patients in (ill, healthy) for i, patient in enumerate(patients)}


def test_the_recipe_for_bcs_dbt_runs_from_download_to_both_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody with the download and a GPU waits for days: no command may fail there that could fail here."""
    trial = tmp_path / "trial"
    assert main(["phantom", str(trial), "--scale", "tiny", "--breasts", "12", "--malignant", "0.5", "--jobs", "1"]) == 0
    lay_out_trial(trial, tmp_path / "BCS-DBT", split_patients(trial))
    monkeypatch.chdir(tmp_path)
    for words in commands():
        assert main([*words, *shlex.split(SMALL[words[0]])]) == 0, words
    slices, volumes = (
        weights.read_header(tmp_path / "runs" / name / "last.safetensors") for name in ("slices", "volumes")
    )
    assert (slices.provenance["input"], volumes.provenance["input"]) == ("slices", "volume")
    mammo = weights.read_header(weights.find("mammo"))
    assert slices.config.canonical_box == volumes.config.canonical_box < mammo.config.canonical_box / 5  # small images
    assert volumes.provenance["start"]["provenance"]["start"]["file"] == str(weights.find("mammo"))
    (paper,) = json.loads(Path("paper/metrics.json").read_text())["systems"]
    assert paper["counts"]["volumes_in_froc"] < paper["counts"]["volumes"]  # those with benign findings are left out
    assert {"2D", "3D"} <= paper["recall"].keys()
    (dbtex,) = json.loads(Path("dbtex/metrics.json").read_text())["systems"]
    assert 0 <= dbtex["dbtex"]["mean_sensitivity_positive"] <= 1
