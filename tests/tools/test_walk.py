"""The walk: which files a training step passes."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "walk.py"


def test_the_walk_of_a_step_has_the_model_and_the_loader_but_not_the_setup() -> None:
    output = subprocess.run([sys.executable, TOOL, "train"], capture_output=True, text=True, check=True).stdout
    files = {line.split()[1] for line in output.splitlines()[:-1]}
    assert {"model/fusion.py", "model/losses.py", "train/data.py"} <= files
    assert not {"cli/__init__.py", "model/weights.py", "train/config.py"} & files
    assert output.endswith(f"{len(files)} files\n")
