"""A training as a user runs it: it learns, it can be killed at any moment, and errors are one sentence."""

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.blobs import SLICES, H, W, settings, write_blobs, write_settings

from mm3d.cli import main
from mm3d.model import weights
from mm3d.model.config import PRESETS, BackboneConfig
from mm3d.model.detector import Detector
from mm3d.shared.console import Console
from mm3d.shared.errors import InputError
from mm3d.train.config import make_config
from mm3d.train.log import read_log
from mm3d.train.run import train

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blobs(tmp_path_factory.mktemp("data") / "blobs")


def command(path: Path, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "mm3d", "train", str(path), "-o", str(folder), *more]


def run_here(plain: dict[str, Any], folder: Path, resume: bool = False) -> None:
    train(make_config(plain, "test"), folder, resume, Console(quiet=True))


def same_bits(a: Path, b: Path) -> bool:
    one, other = load_file(a), load_file(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_learning_happens(tmp_path: Path) -> None:
    """A user's training finds what is there to find: boxes on the training breasts, and which breasts are malignant."""
    folder = write_blobs(tmp_path / "blobs", breasts=12)
    plain = settings(
        folder,
        start="dense",
        dense={"steps": 40, "batch": 4, "learning_rate": 3e-3, "warmup": 5},
        optimiser={"learning_rate": 2e-3, "schedule": "cosine", "warmup": 5, "ema": 0.9},
        augment={"horizontal_flip": 0.0, "vertical_flip": 0.0, "shift": 0.0, "gamma": 0.0},
        loop={"steps": 100, "batch": 4, "log_every": 20, "save_every": 1000},
        validate={"every": 100},
    )
    plain["data"]["validation"] = plain["data"]["train"]
    run_here(plain, tmp_path / "run")
    lines = read_log(tmp_path / "run")
    losses = [line["loss"]["total"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] / 2
    dense = [line["loss"]["total"] for line in read_log(tmp_path / "run" / "dense") if "loss" in line]
    assert dense[-1] < dense[0] / 2
    figures = [line["validation"] for line in lines if "validation" in line][-1]
    assert 0.8 < figures["recall@0.25"] <= figures["recall@0.5"] <= figures["recall@1"] <= figures["recall@2"]
    assert figures["auc"] > 0.9
    drawn = np.asarray(Image.open(tmp_path / "run" / "curves.png").convert("RGB")).astype(int)
    for half in np.array_split(np.ptp(drawn, axis=2) > 60, 2, axis=1):  # curves have colours, axes have none
        assert half.sum() > 300
    header = weights.read_header(tmp_path / "run" / "best.safetensors")
    assert header.provenance["input"] == "ffdm"
    assert header.provenance["prepare"] == {"width": W, "length": H, "slices": SLICES, "intensity": "auto"}
    assert header.provenance["validation"]["auc"] > 0.9
    held = load_file(tmp_path / "run" / "checkpoints" / "step-00000100.safetensors")
    saved = load_file(tmp_path / "run" / "last.safetensors")
    assert all(torch.equal(saved[name], held[f"average/detector.{name}"]) for name in saved)  # ema is what is saved
    assert not torch.equal(saved["proposal_features"], held["learner/detector.proposal_features"])


def finished_steps(folder: Path) -> list[dict[str, Any]]:
    """The log of the steps up to the newest checkpoint. It has how long they took: made again, they would differ."""
    return [line for line in read_log(folder) if line["step"] <= newest(folder / "checkpoints")]


def test_a_killed_run_continues_to_the_same_bits(tmp_path: Path, blobs: Path) -> None:
    """After kill -9 between steps or in a save, the weights are those of a run that was not killed."""
    plain = settings(blobs, optimiser={"ema": 0.9, "schedule": "cosine"}, loop={"steps": 30, "save_every": 1})
    path = write_settings(tmp_path / "c.json", plain)
    run_here(plain, tmp_path / "whole")
    moments = random.Random(0)
    saves = tmp_path / "killed" / "checkpoints"
    in_a_save = 0
    for attempt in range(3):
        process = subprocess.Popen(
            command(path, tmp_path / "killed", "--resume"), env=ENVIRONMENT, stdout=subprocess.DEVNULL
        )
        before = newest(saves)
        while process.poll() is None and newest(saves) <= before:
            time.sleep(0.01)
        if attempt % 2:
            time.sleep(moments.uniform(0, 0.3))
        else:  # at the moment that a checkpoint is being written
            while process.poll() is None and not list(saves.glob(".*.partial")):
                pass
        process.kill()
        assert process.wait() == -signal.SIGKILL, "the run ended before it was killed: give it more steps"
        in_a_save += bool(list(saves.glob(".*.partial")))
    assert in_a_save, "no kill met a save"
    before_the_kill = finished_steps(tmp_path / "killed")
    run_here(plain, tmp_path / "killed", resume=True)
    assert len(before_the_kill) >= 3  # and it went on from there, not from the start, which would give the same bits
    assert read_log(tmp_path / "killed")[: len(before_the_kill)] == before_the_kill
    assert same_bits(tmp_path / "whole" / "last.safetensors", tmp_path / "killed" / "last.safetensors")
    last = "checkpoints/step-00000030.safetensors"
    assert same_bits(tmp_path / "whole" / last, tmp_path / "killed" / last)
    steps = [line["step"] for line in read_log(tmp_path / "killed")]
    assert steps == list(range(1, 31))  # no line twice, none lost
    assert not list(saves.glob(".*"))


def newest(saves: Path) -> int:
    return max((int(path.stem.split("-")[1]) for path in saves.glob("step-*.safetensors")), default=0)


def test_a_run_killed_in_the_dense_stage_continues_to_the_same_bits(tmp_path: Path, blobs: Path) -> None:
    plain = settings(blobs, start="dense", dense={"steps": 20, "batch": 2}, loop={"steps": 2, "save_every": 1})
    path = write_settings(tmp_path / "c.json", plain)
    run_here(plain, tmp_path / "whole")
    process = subprocess.Popen(command(path, tmp_path / "killed"), env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    while process.poll() is None and newest(tmp_path / "killed" / "dense" / "checkpoints") < 3:
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before_the_kill = finished_steps(tmp_path / "killed" / "dense")
    run_here(plain, tmp_path / "killed", resume=True)
    assert len(before_the_kill) >= 3
    assert read_log(tmp_path / "killed" / "dense")[: len(before_the_kill)] == before_the_kill
    assert same_bits(tmp_path / "whole" / "last.safetensors", tmp_path / "killed" / "last.safetensors")


def test_a_damaged_checkpoint_costs_one_save_interval(tmp_path: Path, blobs: Path) -> None:
    plain = settings(blobs)
    run_here(plain, tmp_path / "whole")
    run_here(plain, tmp_path / "run")
    newest_file = tmp_path / "run" / "checkpoints" / "step-00000008.safetensors"
    newest_file.write_bytes(newest_file.read_bytes()[:1000])
    before, steps = read_log(tmp_path / "run"), range(1, 9)
    run_here(plain, tmp_path / "run", resume=True)
    after = read_log(tmp_path / "run")
    assert [line["step"] for line in after] == list(steps)
    assert [a == b for a, b in zip(before, after, strict=True)] == [step <= 6 for step in steps]  # 7 and 8 again
    assert same_bits(tmp_path / "whole" / "last.safetensors", tmp_path / "run" / "last.safetensors")


def test_loader_threads_change_nothing(tmp_path: Path, blobs: Path) -> None:
    more = {"horizontal_flip": 0.5, "rotate": 20.0, "scale": 0.2, "noise": 0.05}
    for workers in (1, 4):
        plain = settings(blobs, augment=more, loop={"steps": 4})
        plain["data"]["workers"] = workers
        run_here(plain, tmp_path / str(workers))
    assert same_bits(tmp_path / "1" / "last.safetensors", tmp_path / "4" / "last.safetensors")


def test_weights_from_mammograms_start_volumes(tmp_path: Path, blobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's transfer: every parameter of the 2D training is loaded, and there is no other."""
    run_here(settings(blobs, loop={"steps": 2}), tmp_path / "ffdm")
    plain = settings(blobs, loop={"steps": 1}, optimiser={"learning_rate": 0.0, "weight_decay": 0.0})
    plain["data"]["train"][0]["input"] = "volume"
    del plain["model"]  # that of the weights
    path = write_settings(tmp_path / "dbt.json", plain)
    assert main(["train", str(path), "--start", str(tmp_path / "ffdm"), "-o", str(tmp_path / "dbt")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    count = len(load_file(tmp_path / "ffdm" / "last.safetensors"))
    assert f"{count} tensors loaded." in printed
    assert same_bits(tmp_path / "ffdm" / "last.safetensors", tmp_path / "dbt" / "last.safetensors")
    assert (
        weights.read_header(tmp_path / "dbt" / "last.safetensors").provenance["start"]["provenance"]["input"] == "ffdm"
    )


def test_a_backbone_starts_any_detector_and_its_frozen_stages_stay(tmp_path: Path, blobs: Path) -> None:
    """The body brings its own normalisation; the dense stage comes first if wanted; what is frozen does not change."""
    widths, depths = (8, 8, 16, 16, 16, 24, 32), (1, 1, 1, 2, 1, 1, 1)
    backbone = BackboneConfig(family="efficientnet_lite", widths=widths, depths=depths, stem=8)
    start = tmp_path / "body.safetensors"
    other = replace(PRESETS["tiny"], backbone=backbone, heads=1, channels=16, pixel_mean=0.5, canonical_box=100.0)
    weights.save(Detector(other), start, {"family": "EfficientNet-Lite"}, only_body=True)
    plain = settings(
        blobs,
        start=str(start),
        dense={"first": True, "steps": 2, "batch": 2, "backbone_factor": 0.1},
        optimiser={"freeze": 2, "weight_decay": 0.1},
        loop={"steps": 2},
    )
    run_here(plain, tmp_path / "run")
    header = weights.read_header(tmp_path / "run" / "last.safetensors")
    assert header.config == replace(PRESETS["tiny"], backbone=backbone, pixel_mean=0.5)
    assert header.provenance["start"]["provenance"] == {"family": "EfficientNet-Lite"}
    before, after = load_file(start), load_file(tmp_path / "run" / "last.safetensors")
    dense = load_file(tmp_path / "run" / "dense" / "last.safetensors")
    for name in before:
        frozen = "running_" in name or "normalization" in name or "stem" in name or name.split(".")[3] in "012"
        assert torch.equal(before[name], after[name]) == torch.equal(before[name], dense[name]) == frozen, name
    run_here(plain, tmp_path / "run", resume=True)  # a checkpoint without the moments of frozen tensors can be read


def test_what_the_start_weights_lack_has_a_rate_of_its_own(tmp_path: Path, blobs: Path) -> None:
    run_here(settings(blobs, loop={"steps": 1}), tmp_path / "ffdm")
    for steps in (1, 2):
        plain = settings(
            blobs,
            start=str(tmp_path / "ffdm"),
            optimiser={"new_factor": 0.0, "weight_decay": 0.0},
            loop={"steps": steps},
        )
        plain["data"]["train"][0]["input"] = "volume"
        plain["model"]["fusion"] = "timesform"
        run_here(plain, tmp_path / str(steps))
    old, one, two = (load_file(tmp_path / name / "last.safetensors") for name in ("ffdm", "1", "2"))
    new = one.keys() - old.keys()
    assert new
    assert all(torch.equal(one[name], two[name]) for name in new)
    assert not all(torch.equal(one[name], two[name]) for name in old)


def test_several_proposals_answer_for_an_annotation_until_a_share_of_the_steps(tmp_path: Path, blobs: Path) -> None:
    losses = {}
    for matches, until in ((4, 1.0), (4, 0.5), (4, 0.0), (1, 1.0)):
        plain = settings(blobs, loss={"matches": matches, "matches_until": until}, loop={"steps": 2, "log_every": 1})
        folder = tmp_path / f"{matches}-{until}"
        run_here(plain, folder)
        losses[matches, until] = [line["loss"]["total"] for line in read_log(folder)]
    assert losses[4, 0.5][0] == losses[4, 1.0][0] != losses[1, 1.0][0]
    assert losses[4, 0.5][1] != losses[4, 1.0][1]
    assert losses[4, 0.0] == losses[1, 1.0]


@pytest.mark.parametrize("name", ["slices", "mip", "hm", "msp", "volume"])
def test_every_input_trains_and_predicts(tmp_path: Path, blobs: Path, name: str) -> None:
    run_here(settings(blobs, loop={"steps": 1}), tmp_path / "ffdm")
    plain = settings(blobs, loop={"steps": 2}, start=str(tmp_path / "ffdm"))
    plain["data"]["train"][0] |= {"input": name} | ({"mammograms": str(blobs)} if name == "hm" else {})
    plain["data"]["validation"] = [plain["data"]["train"][0]]
    run_here(plain, tmp_path / "run")
    out = tmp_path / "out"
    assert main(["predict", str(blobs), "-o", str(out), "--weights", str(tmp_path / "run")]) == 0
    content = json.loads((out / "predictions.json").read_text())
    assert content["model"]["input"] == name
    proposal = content["breasts"][0]["views"][0]["findings"][0]
    assert ("slice" in proposal) == (name in ("slices", "volume"))
    assert ("slice_weights" in proposal) == (name == "volume")
    assert main(["evaluate", str(out / "predictions.json"), "--truth", str(blobs), "-o", str(tmp_path / "ev")]) == 0


def test_mammograms_and_volumes_train_together(tmp_path: Path, blobs: Path) -> None:
    plain = settings(blobs, loop={"steps": 8, "accumulate": 2}, model={"recompute": True, "chunk": 2})
    plain["data"]["train"] += [{"folder": str(blobs), "input": "volume"}]
    run_here(plain, tmp_path / "run")
    assert weights.read_header(tmp_path / "run" / "last.safetensors").provenance["inputs"] == ["ffdm", "volume"]


def test_accumulated_batches_train_like_one_large_batch(tmp_path: Path, blobs: Path) -> None:
    still = {"horizontal_flip": 0.0, "vertical_flip": 0.0, "shift": 0.0, "gamma": 0.0}
    for batch, accumulate in ((4, 1), (2, 2)):  # as many findings in each, so that the means are over the same
        loop = {"steps": 1, "batch": batch, "accumulate": accumulate}
        run_here(settings(blobs, augment=still, optimiser={"clip": 0.0}, loop=loop), tmp_path / str(accumulate))
    (large,), (small,) = (read_log(tmp_path / str(accumulate)) for accumulate in (1, 2))
    assert small["loss"] == pytest.approx(large["loss"], rel=1e-4)
    assert small["gradient_norm"] == pytest.approx(large["gradient_norm"], rel=1e-3)


def test_bfloat16_trains(tmp_path: Path, blobs: Path) -> None:
    run_here(settings(blobs, loop={"precision": "bfloat16", "steps": 2}), tmp_path / "half")
    run_here(settings(blobs, loop={"steps": 2}), tmp_path / "full")
    half, full = (read_log(tmp_path / name)[0]["loss"]["total"] for name in ("half", "full"))
    assert half != full
    assert half == pytest.approx(full, rel=0.02)


def test_tensorboard_on_request(tmp_path: Path, blobs: Path) -> None:
    run_here(settings(blobs, loop={"steps": 1, "tensorboard": True}), tmp_path / "run")
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"loss/total" in events.read_bytes()


def test_loggers_on_request(tmp_path: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow and Weights & Biases, offline, through Fabric's loggers: the same numbers as in log.jsonl."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run_here(settings(blobs, loop={"steps": 2, "loggers": ["mlflow", "wandb"]}), tmp_path / "run")
    logged = {line["step"]: line["loss"]["total"] for line in read_log(tmp_path / "run") if "loss" in line}
    database = sqlite3.connect(tmp_path / "run" / "mlflow.db")
    rows = database.execute("SELECT step, value FROM metrics WHERE key = 'loss/total'").fetchall()
    assert dict(rows) == pytest.approx(logged)
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"loss/total" in file.read_bytes()


def test_weights_say_what_they_were_trained_on(tmp_path: Path) -> None:
    """Weights of synthetic breasts must never pass for others."""
    folder = write_blobs(tmp_path / "blobs", breasts=4, notes=("These breasts are synthetic.",))
    run_here(settings(folder, loop={"steps": 1}), tmp_path / "run")
    header = weights.read_header(tmp_path / "run" / "last.safetensors")
    assert header.intended_use == f"{weights.RESEARCH_ONLY} Of the training data: These breasts are synthetic."
    assert header.provenance["breasts"] == 4
    assert header.provenance["configuration"]["loop"]["seed"] == 0
    assert header.provenance["configuration"]["data"]["seed"] == 0


def test_early_stopping_and_the_best_weights(tmp_path: Path, blobs: Path) -> None:
    """With a learning rate of zero nothing improves: the first validation stays the best, and patience ends the run."""
    plain = settings(
        blobs,
        optimiser={"learning_rate": 0.0, "weight_decay": 0.0},
        loop={"steps": 50},
        validate={"every": 2, "patience": 2, "metric": "auc"},
    )
    plain["data"]["validation"] = plain["data"]["train"]
    run_here(plain, tmp_path / "run")
    assert read_log(tmp_path / "run")[-1]["step"] == 6
    assert weights.read_header(tmp_path / "run" / "best.safetensors").provenance["step"] == 2
    run_here(plain, tmp_path / "run", resume=True)  # it stays stopped
    assert read_log(tmp_path / "run")[-1]["step"] == 6


def test_a_loss_that_is_not_finite_stops_with_names(tmp_path: Path, blobs: Path) -> None:
    plain = settings(blobs, optimiser={"learning_rate": 1e30, "clip": 0.0}, loop={"steps": 20, "save_every": 100})
    with pytest.raises(InputError, match=r"not finite at step \d+ .*P0-00\d E L, .*learning_rate") as raised:
        run_here(plain, tmp_path / "run")
    saved = tmp_path / "run" / "failed" / "batch-rank-0.safetensors"
    assert str(saved) in str(raised.value)
    assert load_file(saved)["images"].shape[:2] == (2, 2)
    assert newest(tmp_path / "run" / "checkpoints") >= 1


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path, blobs: Path) -> None:
    """A limit on the size of files stands for the disk: writing fails in the middle of a checkpoint."""
    plain = settings(blobs, loop={"steps": 4, "save_every": 1})
    path = write_settings(tmp_path / "c.json", plain)
    run_here(settings(blobs, loop={"steps": 4, "save_every": 1}), tmp_path / "whole")
    run_here(plain | {"loop": plain["loop"]}, tmp_path / "run")
    for checkpoint in (tmp_path / "run" / "checkpoints").glob("step-00000004*"):
        checkpoint.unlink()
    size = (tmp_path / "whole" / "checkpoints" / "step-00000004.safetensors").stat().st_size
    limited = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2}))\n"
        "from mm3d.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["train", str(path), "-o", str(tmp_path / "run"), "--resume"]
    done = subprocess.run(
        [sys.executable, "-c", limited, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    assert "step-00000004.safetensors cannot be written" in done.stderr
    assert "The checkpoint before it is kept: continue with --resume." in done.stderr
    assert newest(tmp_path / "run" / "checkpoints") == 3
    run_here(plain, tmp_path / "run", resume=True)
    assert same_bits(tmp_path / "whole" / "last.safetensors", tmp_path / "run" / "last.safetensors")


def test_a_cache_file_that_disappears_is_one_sentence(tmp_path: Path) -> None:
    folder = write_blobs(tmp_path / "blobs", breasts=4)
    plain = settings(folder, loop={"steps": 3000, "save_every": 2})
    path = write_settings(tmp_path / "c.json", plain)
    process = subprocess.Popen(
        command(path, tmp_path / "run"), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and newest(tmp_path / "run" / "checkpoints") < 2:
        time.sleep(0.01)
    (folder / "views" / "0000ccffdm.npy").unlink()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.count("\n") == 1, errors
    assert "0000ccffdm.npy is missing or damaged" in errors
    assert "mm3d prepare" in errors
    assert newest(tmp_path / "run" / "checkpoints") >= 2


def test_a_cohort_without_malignant_breasts_is_one_sentence(tmp_path: Path) -> None:
    healthy = write_blobs(tmp_path / "healthy", breasts=3, malignant=0)
    with pytest.raises(InputError, match="no malignant breast to train on"):
        run_here(settings(healthy), tmp_path / "run")
    plain = settings(write_blobs(tmp_path / "blobs", breasts=2))
    plain["data"]["validation"] = [{"folder": str(healthy), "input": "ffdm"}]
    with pytest.raises(InputError, match="healthy: the validation cohorts have no malignant breast"):
        run_here(plain, tmp_path / "other")


def test_a_configuration_that_contradicts_the_weights_is_one_sentence(tmp_path: Path, blobs: Path) -> None:
    run_here(settings(blobs, loop={"steps": 1}), tmp_path / "ffdm")
    for model, message in (
        ({"preset": "tiny", "channels": 64}, "has shape .* use the same backbone"),
        ({"canonical_box": 224.0}, "was trained with canonical_box = 56.0 for images of this size, and"),
        ({"fusion": "average"}, "'fusion' must be one of weighted, mean"),
    ):
        plain = settings(blobs, start=str(tmp_path / "ffdm")) | {"model": model}
        with pytest.raises(InputError, match=message):
            run_here(plain, tmp_path / "run")
    with pytest.raises(InputError, match=r"nowhere.safetensors does not exist"):
        run_here(settings(blobs, start="nowhere.safetensors"), tmp_path / "run")


def test_images_of_another_size_scale_the_canonical_box(tmp_path: Path, blobs: Path) -> None:
    """A lesion is still pooled from the level that the start weights know it from. Nobody has to compute that."""
    size = {"width": W // 2, "length": H // 2, "slices": 1}
    start = tmp_path / "small.safetensors"
    weights.save(Detector(PRESETS["tiny"]), start, {"input": "ffdm", "prepare": size})
    plain = settings(blobs, start=str(start), loop={"steps": 1})
    del plain["model"]
    run_here(plain, tmp_path / "run")
    assert weights.read_header(tmp_path / "run" / "last.safetensors").config.canonical_box == 112.0
    run_here(plain, tmp_path / "run", resume=True)
    whole = json.loads((tmp_path / "run" / "config.json").read_text())
    run_here(whole, tmp_path / "again")  # the configuration of a run says what it was, and is not scaled once more
    assert weights.read_header(tmp_path / "again" / "last.safetensors").config.canonical_box == 112.0
    with pytest.raises(
        InputError, match=r"canonical_box = 112.0 for images of this size, and the configuration's model has 70.0"
    ):
        run_here(plain | {"model": {"canonical_box": 70.0}}, tmp_path / "other")


def test_a_run_folder_is_not_written_over(tmp_path: Path, blobs: Path) -> None:
    plain = settings(blobs, loop={"steps": 1})
    run_here(plain, tmp_path / "run")
    with pytest.raises(InputError, match="holds a run already; continue it with --resume"):
        run_here(plain, tmp_path / "run")
    with pytest.raises(InputError, match=r"was made with loop.seed = 0, not 1"):
        run_here(settings(blobs, loop={"steps": 1, "seed": 1}), tmp_path / "run", resume=True)
    run_here(settings(blobs, loop={"steps": 1, "log_every": 7}), tmp_path / "run", resume=True)  # changes no weight


def test_a_training_says_what_it_will_do_and_about_how_long(
    tmp_path: Path, blobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a file or a pipe as lines, which a bar would tear apart."""
    plain = settings(
        blobs, start="dense", dense={"steps": 12, "batch": 4}, loop={"steps": 1, "batch": 2, "log_every": 4}
    )
    path = write_settings(tmp_path / "plan.json", plain)
    assert main(["train", str(path), "-o", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out.splitlines()
    plan = "To do: first 12 steps of the dense stage with 4 breasts each, "
    plan += "then 1 step of the detector with 2 breasts each."
    assert plan in said
    (left,) = [line for line in said if "take about" in line]
    assert re.fullmatch(r"The other 2 steps take about \d+ seconds?, without validations\.", left)
    assert [line.split(",")[0] for line in said if ": step " in line] == [
        *(f"dense: step {step} of 12" for step in (4, 8, 12)),
        "training: step 1 of 1",
    ]
    assert said.index(plan) < said.index(left)
