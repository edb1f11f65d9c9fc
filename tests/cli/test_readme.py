"""The README's commands are the first thing a stranger types."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.dicom_files import breast, tomosynthesis, write
from support.slow import SLOW

from mm3d import __version__
from mm3d.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]


def test_the_two_commands_come_first() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]
    assert "make test" in (ROOT / ".ci" / "run").read_text()  # this very run


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "make test"])
def test_every_quick_command_works(command: str) -> None:
    # The makefile's own variables must not reach the make that the command starts.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


PAGES = [
    "docs/extending.md",
    "docs/python.md",
    "docs/data.md",
    "docs/evaluation.md",
    "docs/predict.md",
    "docs/results.md",
    "docs/report.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_documented_python_runs(page: str, tmp_path: Path) -> None:
    write(tomosynthesis(np.stack([breast()] * 5)), tmp_path / "exams" / "volume.dcm")
    assert main(["prepare", "folder", str(tmp_path / "exams"), "-o", str(tmp_path / "OUT"), "--width", "40"]) == 0
    program = "\n".join(blocks("python", (ROOT / page).read_text()))
    assert program
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_pieces_to_build_on_are_there_and_described() -> None:
    imports = re.findall(r"\| `(from mm3d\S* import [^`]*)`", (ROOT / "docs" / "python.md").read_text())
    assert len(imports) == 15
    for line in imports:
        names: dict[str, object] = {}
        exec(line, names)
        for name, piece in names.items():
            assert not callable(piece) or (piece.__doc__ and not piece.__doc__.startswith(f"{name}(")), name


def test_the_benchmarks_page_has_figures() -> None:
    lines = (ROOT / "docs" / "benchmarks.md").read_text().splitlines()
    measured = [line.split(" | ")[1] for line in lines if line.startswith("| ")]
    assert measured.count("measured") == 2  # the heads of its tables
    assert len(measured) > 20
    assert [figure for figure in measured if not re.search("[0-9]", figure)] == ["measured"] * 2


def headings(page: Path) -> set[str]:
    """What links to parts of a page call them."""
    titles = re.findall(r"^#+ (.*)", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


ALL_PAGES = [str(path.relative_to(ROOT)) for folder in (ROOT, ROOT / "docs") for path in sorted(folder.glob("*.md"))]


@pytest.mark.parametrize("page", ALL_PAGES)
def test_no_link_or_file_name_is_dead(page: str) -> None:
    text = (ROOT / page).read_text()
    for target, part in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", text):
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), target
        assert not part or part in headings(file), f"{target}#{part}"
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", text):
        assert (ROOT / name).exists() or (ROOT / "src" / "mm3d" / name).exists(), name


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_pre_commit_runs_what_make_check_runs() -> None:
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert check is not None
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    for tool in re.findall(r"\$\(BIN\)/([\w-]+(?: format| check)?)", check[1]):
        assert f"entry: .venv/bin/{tool}" in hooks, tool


def test_every_slow_test_exists() -> None:
    """A test that got another name would be in `make test-quick` again."""
    tests = list((ROOT / "tests").glob("*/test_*.py"))
    functions = {name for path in tests for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}
    assert {path.stem for path in tests} | functions >= SLOW
