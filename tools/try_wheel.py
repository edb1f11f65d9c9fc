"""make wheel: build the wheel, install it in an empty environment outside the repository, and try it there.

The wheel stays in dist/. With --here, nothing is installed but the wheel: its requirements are those of this Python,
which takes seconds instead of minutes. The tests do that.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MADE = ("__pycache__", ".egg-info")  # beside the sources, and not a part of them
TRIAL = """
import sys
from pathlib import Path

import mm3d

place = Path(mm3d.__file__)
assert Path(sys.prefix) in place.parents, place
assert "torch" not in sys.modules
found = list(mm3d.load("dbt", jobs=1).predict_all("trial/images"))
assert found and all(exam.findings for exam in found)
found[0].save("found")
assert Path("found/report.html").stat().st_size > 50_000
print(found[0])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="take the requirements of this Python")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist", help="where the wheel goes")
    arguments = parser.parse_args()
    wheel = build(arguments.output, isolated=not arguments.here)
    missing = find_missing(wheel)
    if missing:
        sys.exit(f"{wheel} lacks {', '.join(missing)}; add them to package-data in pyproject.toml.")
    with tempfile.TemporaryDirectory(prefix="try-mm3d-") as folder:
        try_wheel(wheel, Path(folder), arguments.here)
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB) works in an empty environment.")


def build(output: Path, isolated: bool) -> Path:
    """Build the wheel of the sources as they are."""
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # of an earlier wheel; its files would be in this one
    options = [] if isolated else ["--no-isolation"]
    run(sys.executable, "-m", "build", "--wheel", *options, "--outdir", output, ROOT)
    return max(output.glob("mm3d-*.whl"), key=lambda path: path.stat().st_mtime)


def find_missing(wheel: Path) -> list[str]:
    """The files of the package that the wheel does not have."""
    source = ROOT / "src"
    files = [path for path in (source / "mm3d").rglob("*") if path.is_file()]
    wanted = {str(path.relative_to(source)) for path in files if not any(part in str(path) for part in MADE)}
    return sorted(wanted - set(zipfile.ZipFile(wheel).namelist()))


def try_wheel(wheel: Path, folder: Path, here: bool) -> None:
    """Install the wheel in a new environment, and use it from there: commands, shipped weights, and Python."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    if here:
        (site,) = (folder / "venv").glob("lib/*/site-packages")
        ours = next(path for path in sys.path if path.endswith("site-packages"))
        (site / "requirements.pth").write_text(f"{ours}\n")
    run(python, "-m", "pip", "install", "--quiet", *(["--no-deps"] if here else []), wheel)
    mm3d = folder / "venv" / "bin" / "mm3d"
    trial = ("--breasts", "2", "--scale", "tiny", "--contrast", "3", "--jobs", "1")
    run(mm3d, "info", cwd=folder)
    run(mm3d, "phantom", "trial", *trial, cwd=folder)
    run(python, "-c", TRIAL, cwd=folder)


def run(*words: object, cwd: Path | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*map(str, words)], cwd=cwd, env=environment, check=True)


if __name__ == "__main__":
    main()
