"""The notebooks run as they are: a researcher's first hour must not end with a traceback."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SIZE = 400_000  # bytes


def pictures(notebook: nbformat.NotebookNode) -> list[int]:
    """The numbers of the cells that show a picture."""
    outputs = [(n, output) for n, cell in enumerate(notebook.cells) for output in cell.get("outputs", ())]
    return [n for n, output in outputs if "image/png" in output.get("data", {})]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # for mm3d in %%sh
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    kept = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    for cell in run.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(run, timeout=400, kernel_name="python3", resources=resources).execute()
    assert pictures(run) == pictures(kept) != []
    assert path.stat().st_size < SIZE
    assert all(cell.execution_count for cell in kept.cells if cell.cell_type == "code")


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_exam", "judge_predictions", "own_loop", "train_your_own"]
