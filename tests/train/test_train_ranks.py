"""Several processes train as one would, and a rank that dies takes a few steps along, not the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.blobs import settings, write_blobs, write_settings

from mm3d.shared.console import Console
from mm3d.train.config import make_config
from mm3d.train.log import read_log
from mm3d.train.run import train

# The last one makes torchrun's restarts reliable: without it, the new ranks may meet the old ones' store.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
MODULE = [sys.executable, "-m", "mm3d", "train"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run_here(plain: dict[str, Any], folder: Path) -> None:
    train(make_config(plain, "test"), folder, False, Console(quiet=True))


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """The same losses and weights. Batches are a malignant and another breast, so one rank never has a finding, and in
    natural order some batches have none at all: nothing hangs. Volumes recompute: their backward pass is ours."""
    folder = write_blobs(tmp_path / "blobs", breasts=6, malignant=3)
    for sampling, inputs in (("balanced", "ffdm"), ("natural", "volume")):
        # A small rate: AdamW divides by tiny second moments, which would make rounding errors large.
        plain = settings(
            folder, optimiser={"learning_rate": 1e-6}, loop={"steps": 6, "save_every": 6}, validate={"every": 6}
        )
        if sampling == "balanced":
            plain |= {"start": "dense", "dense": {"steps": 3, "batch": 2, "learning_rate": 1e-6}}
        else:
            plain["model"]["recompute"] = True
        plain["data"]["sampling"] = sampling
        plain["data"]["train"][0]["input"] = inputs
        plain["data"]["validation"] = plain["data"]["train"]
        run_here(plain, tmp_path / f"one-{sampling}")
        path = write_settings(tmp_path / "c.json", plain)
        done = subprocess.run(
            [*MODULE, str(path), "-o", str(tmp_path / f"two-{sampling}"), "--devices", "2"],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        one, two = (
            [*read_log(tmp_path / f"{name}-{sampling}" / "dense"), *read_log(tmp_path / f"{name}-{sampling}")]
            for name in ("one", "two")
        )
        assert len(one) == len(two) == (11 if sampling == "balanced" else 7)
        for a, b in zip(one, two, strict=True):
            for part in ("loss", "validation"):
                for name, value in a.get(part, {}).items():
                    assert b[part][name] == (None if value is None else pytest.approx(value, rel=1e-5, abs=1e-5)), name
            assert a.get("gradient_norm", 0.0) == pytest.approx(b.get("gradient_norm", 0.0), rel=1e-4)
        # Weights that move by 1e-6 a step tell nothing; the mean gradients that move them do, parameter by parameter.
        stages = {"checkpoints/step-00000006": 100} | (
            {"dense/checkpoints/step-00000003": 20} if "start" in plain else {}
        )
        for last, parameters in stages.items():
            a, b = (load_file(tmp_path / f"{name}-{sampling}" / f"{last}.safetensors") for name in ("one", "two"))
            gradients = [name for name in a if name.endswith("/exp_avg")]
            assert len(gradients) > parameters
            for name in gradients:
                torch.testing.assert_close(b[name], a[name], rtol=1e-3, atol=1e-3 * float(a[name].abs().max()))


def test_a_killed_rank_starts_again_from_the_last_checkpoint(tmp_path: Path) -> None:
    folder = write_blobs(tmp_path / "blobs", breasts=6)
    plain = settings(folder, loop={"steps": 40, "save_every": 2})
    path = write_settings(tmp_path / "c.json", plain)
    for name in ("whole", "killed"):
        process = subprocess.Popen(
            [*TORCHRUN, "--max-restarts", "2", "-m", "mm3d", "train", str(path), "-o", str(tmp_path / name)],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if name == "killed":
            saves = tmp_path / name / "checkpoints"
            while process.poll() is None and not list(saves.glob("step-*")):
                time.sleep(0.01)
            newest = max(int(path.stem.split("-")[1]) for path in saves.glob("step-*"))
            before_the_kill = [line for line in read_log(tmp_path / name) if line["step"] <= newest]
            os.kill(workers_of(process.pid)[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    whole, killed = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    after = read_log(tmp_path / "killed")
    assert [line["step"] for line in after] == list(range(1, 41))
    assert len(before_the_kill) >= 2
    assert after[: len(before_the_kill)] == before_the_kill  # with the same times: those steps were not made again


def workers_of(pid: int) -> list[int]:
    """The processes that torchrun started, in the order of their ranks."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_batch_that_cannot_be_shared_is_one_sentence(tmp_path: Path) -> None:
    path = write_settings(tmp_path / "c.json", settings(write_blobs(tmp_path / "blobs", breasts=2), loop={"batch": 3}))
    done = subprocess.run(
        [*MODULE, str(path), "-o", str(tmp_path / "run"), "--devices", "2"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr == "mm3d: loop.batch = 3 cannot be shared by 2 processes; make it a multiple.\n"
