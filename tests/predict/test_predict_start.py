"""The start of `mm3d predict`: a radiologist waits for it with every exam."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.examples import build
from support.exams import PREPARE, predict, write_exam, write_weights

from mm3d.model.weights import HEADER, WeightsHeader, save_tensors
from mm3d.shared.config import to_dict

PROGRAM = """
import sys
from mm3d.cli import main
import mm3d.predict.run

early = {"torch", "scipy", "transformers", "matplotlib"} & set(sys.modules)
assert not early, early
assert main(sys.argv[1:]) == 0
assert "torch" in sys.modules
unused = {"transformers", "scipy", "matplotlib", "highdicom", "lightning_fabric", "pandas", "torch._dynamo", "sympy"}
assert not unused & set(sys.modules), unused & set(sys.modules)
"""


def test_nothing_is_imported_that_a_run_does_not_use(tmp_path: Path) -> None:
    """To import transformers takes longer than to predict an exam. And until the images are read, there is no torch."""
    write_exam(tmp_path / "exam", "DBT L CC", "DBT L MLO")
    model = write_weights(tmp_path / "model.safetensors")
    words = ["predict", tmp_path / "exam", "-o", tmp_path / "out", "--weights", model, "--jobs", "1"]
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("exams", [1, 2])
def test_damaged_weights_end_the_run_and_not_the_exam(
    exams: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights are loaded while the first exam is read. That exam must not be called bad, nor its folder used up."""
    for number in range(exams):
        write_exam(tmp_path / "exams" / str(number), "DBT L CC")
    header = WeightsHeader(build().config, {"input": "volume", "prepare": PREPARE})
    save_tensors({"other": torch.zeros(1)}, tmp_path / "bad.safetensors", {HEADER: json.dumps(to_dict(header))})
    assert predict(tmp_path / "exams", "-o", tmp_path / "out", "--weights", tmp_path / "bad.safetensors") == 1
    told = capsys.readouterr()
    assert "its tensors do not fit its own header" in told.err
    assert "problem" not in told.out
    assert not list((tmp_path / "out").rglob("*"))
    good = write_weights(tmp_path / "good.safetensors")
    assert predict(tmp_path / "exams", "-o", tmp_path / "out", "--weights", good) == 0
