"""Where the time of `mm3d predict` goes: from the start of the command to an exam's last file."""

import dataclasses
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from preparation import COLUMNS, FRAMES, ROWS, volume
from timing import Row, in_its_own_process, seconds_of_each

from mm3d.cli import DEMO_SEED
from mm3d.cli.demo import make_exam
from mm3d.model import weights
from mm3d.model.config import PRESETS
from mm3d.model.detector import Detector
from mm3d.phantom.run import PREPARED
from mm3d.shared.config import to_dict

PARTS = ("start", "read", "model", "outputs")
OTHERS = ("start", "read", "outputs")
ROUNDS = 5
IMPORTS = 20
EXAMS = (1, 3, 10, 30, 100)  # in one run


def rows() -> list[Row]:
    found = in_its_own_process(__file__)
    command, torch_alone = found["demo"]
    return [
        Row(
            "`import mm3d`, against starting a Python that does nothing",
            f"{1000 * (found['import'][0] - found['import'][1]):.0f} ms",
            "below 50 ms",
            f"the difference of {1000 * found['import'][0]:.0f} and {1000 * found['import'][1]:.0f} ms, the best of "
            f"{IMPORTS} in turn",
        ),
        Row(
            "`mm3d predict` on the demo's exam (4 volumes, weights dbt), against a Python that only imports torch",
            f"{command / torch_alone:.2f}x",
            "at most 2.5x",
            f"wall time of the command: {command:.2f} s against {torch_alone:.2f} s, the best of {ROUNDS} in turn",
        ),
        Row(
            "`mm3d predict` on a mini exam (4 volumes, preset mini) by part",
            _parts(found["mini"]),
            "reported",
            "start is Python, and what torch and the weights take beyond the reading; read decodes and prepares in "
            "worker processes; outputs are the report, both structured reports and the lists",
        ),
        Row(
            f"Parts of `mm3d predict` other than the model, full-size exam (4 volumes of {FRAMES} x {ROWS} x "
            f"{COLUMNS} in J2K, preset paper)",
            f"{sum(found['full'][part] for part in OTHERS) / sum(found['full'].values()):.0%} of the time",
            "at most 35%",
            _parts(found["full"]),
        ),
        _growth_row({int(exams): cost for exams, cost in found["growth"].items()}),
    ]


def _growth_row(found: dict[int, list[float]]) -> Row:
    exams = np.array(list(found))
    seconds, megabytes = np.array(list(found.values())).T
    fitted = [float(np.polyfit(np.log(exams), np.log(costs), 1)[0]) for costs in (seconds, megabytes)]
    listed = ", ".join(f"{n}: {s:.1f} s, {mb:.0f} MB" for n, s, mb in zip(exams, seconds, megabytes, strict=True))
    return Row(
        "`mm3d predict` on one exam to 100 exams in one run (tiny, 4 volumes each): growth with the exams",
        f"time to the power {fitted[0]:.2f}, memory {fitted[1]:.2f}",
        "at most 1.1",
        f"each further exam {(seconds[-1] - seconds[0]) / (exams[-1] - exams[0]):.2f} s; processor time of all "
        f"processes, and peak memory of the largest: {listed}",
    )


def _parts(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    shares = ", ".join(f"{part} {seconds[part] / total:.0%}" for part in PARTS)
    return f"{total:.0f} s: {shares}"


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_exam(folder / "demo", DEMO_SEED, "mini")
        make_exam(folder / "mini", 1, "mini")
        for side in ("L", "R"):
            for view in ("CC", "MLO"):
                volume(folder / "full" / f"{side}{view}.dcm", side, view, study="1.2.3")
        return {
            "import": seconds_of_each(lambda: _run("-c", "import mm3d"), lambda: _run("-c", ""), rounds=IMPORTS),
            "demo": _compare_with_torch(folder),
            "mini": _predict(folder, "mini", "mini"),
            "full": _predict(folder, "full", "paper", chunk=1),  # a slice at a time, or the memory does not suffice
            "growth": _growth(folder),
        }


def _growth(folder: Path) -> dict[int, list[float]]:
    """Processor time in seconds and peak memory in MB of a run, by the number of its exams."""
    weights_path = _random_weights(folder, "tiny", "tiny")
    (folder / "tiny").mkdir()
    costs = {}
    for exams in EXAMS:
        for number in range(len(list((folder / "tiny").iterdir())), exams):
            make_exam(folder / "tiny" / str(number), number, "tiny")
        found = in_its_own_process(
            __file__, "--cost", str(folder / "tiny"), "-o", str(folder / f"{exams}-out"), "--weights", str(weights_path)
        )
        costs[exams] = [found["seconds"], found["megabytes"]]
    return costs


def _cost(words: list[str]) -> dict[str, float]:
    """Processor time and peak memory of `mm3d predict`, which is the only child of this process."""
    _run("-m", "mm3d", "predict", *words)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss * 1024 / 1e6}


def _compare_with_torch(folder: Path) -> list[float]:
    """Seconds of the command on the demo's exam, and of a Python that only imports torch."""
    output = folder / "demo-out"

    def predict() -> None:
        shutil.rmtree(output, ignore_errors=True)
        _run("-m", "mm3d", "predict", folder / "demo", "-o", output)

    return seconds_of_each(predict, lambda: _run("-c", "import torch"), rounds=ROUNDS)


def _run(*words: str | Path) -> None:
    subprocess.run([sys.executable, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def _predict(folder: Path, scale: str, preset: str, **changes: Any) -> dict[str, float]:
    """Seconds of each part, with random weights, in a process of its own as a user starts it."""
    path = _random_weights(folder, scale, preset, **changes)
    output = folder / f"{scale}-out"
    _run("-m", "mm3d", "predict", folder / scale, "-o", output, "--weights", path)
    seconds: dict[str, float] = json.loads((output / "run.json").read_text())["seconds"]
    return seconds


def _random_weights(folder: Path, scale: str, preset: str, **changes: Any) -> Path:
    torch.manual_seed(0)
    path = folder / f"{scale}.safetensors"
    model = Detector(dataclasses.replace(PRESETS[preset], **changes))
    weights.save(model, path, {"input": "volume", "prepare": to_dict(PREPARED[scale])})
    return path


if __name__ == "__main__":
    print(json.dumps(_cost(sys.argv[2:]) if sys.argv[1:2] == ["--cost"] else measure()))
