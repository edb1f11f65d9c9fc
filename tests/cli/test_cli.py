"""The command line as a stranger meets it."""

import json
import re
import subprocess
import sys

import pytest

from mm3d import __version__
from mm3d.cli import main
from mm3d.model.weights import shipped


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mm3d", *arguments], capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy() -> None:
    """Half a second for a help page is the difference between a tool and a nuisance."""
    program = (
        "import sys; sys.argv = ['mm3d', '--help']\n"
        "from mm3d.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'transformers', 'safetensors', 'rich', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    commands = "demo info phantom prepare train predict evaluate study view import-weights quantize"
    for command in commands.split():
        assert re.search(rf"^    {command}\b", done.stdout, re.MULTILINE), command  # the command, not the word


def test_info_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for word in ("torch", "transformers", "device", "threads", "shipped weights"):
        assert word in printed
    assert re.search(
        r"ffdm \(8\.5 MB\): trained on input ffdm; R@0\.25 0\.\d\d, AUC 0\.\d\d \(virtual-trial, ffdm\)", printed
    )
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["mm3d"] == __version__
    assert info["threads"] >= 1
    assert [told["name"] for told in info["shipped_weights"]] == [path.stem for path in shipped()]


def test_exit_codes_and_errors_without_traceback() -> None:
    for arguments, said in (
        ((), "the following arguments are required: COMMAND"),
        (("conquer",), "argument COMMAND: invalid choice: 'conquer'"),
        (("demo", "--seed", "99999999999999999999"), "argument --seed: 99999999999999999999 is not between 0 and"),
        (("phantom", "out", "--malignant", "2"), "argument --malignant: 2 is not between 0 and 1"),
        (("phantom", "out", "--breasts", "0"), "argument --breasts: 0 is not between 1 and"),
        (("predict", "exam", "-o", "out", "--threshold", "2"), "argument --threshold: 2 is not between 0 and 1"),
        (
            ("predict", "exam", "-o", "out", "--threshold", "0.2", "--operating-point", "m.json"),
            "argument --operating-point: not allowed with argument --threshold",
        ),
    ):
        wrong = run(*arguments)
        assert wrong.returncode == 2
        assert said in wrong.stderr
    failed = run("import-weights", "nowhere.pth", "-o", "out.safetensors")
    assert failed.returncode == 1
    assert failed.stderr == "mm3d: nowhere.pth does not exist; give the path of a downloaded checkpoint.\n"
    unused = run("phantom", "out", "--width", "96")
    assert unused.returncode == 1
    assert unused.stderr.startswith("mm3d: --width is for --format prepared")
    version = run("--version")
    assert version.stdout.strip() == f"mm3d {__version__}"
