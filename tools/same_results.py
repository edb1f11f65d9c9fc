"""Check that a change leaves every number as it was: run both trees on the same synthetic exams and compare.

    python tools/same_results.py record OUT              run the mm3d of this checkout, keep its results in OUT
    python tools/same_results.py record OUT --tree DIR   the same for another checkout, such as a git worktree
    python tools/same_results.py compare BEFORE AFTER    list every number that differs by more than --tolerance

Only the command line is used, so that it works however the inside changes. What it runs: the demo, predictions of
DICOM exams and of a prepared folder with every input, their structured reports, an evaluation of two systems, and 20
training steps of each fusion, of slices, of mammograms with the dense stage, and with recomputation.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TRIAL = ("--seed", "5", "--contrast", "1.7")
# What differs between two runs of one tree, what names the tree, and sentences.
UNSTABLE = (
    *("seconds", "memory_mb", "breasts_per_second", "wait", "made", "date", "commit", "version", "mm3d"),
    *("stamp", "sha256", "file", "files", "output", "start", "notes"),
)
# New names of what was compared before under another.
RENAMED = {"findings": "annotations"}
TRAININGS = {
    "ffdm": ("ffdm.toml", "--dense.steps", "10"),
    "weighted": ("dbt.toml", "--start", "ffdm"),
    "recompute": ("dbt.toml", "--start", "ffdm", "--model.recompute", "true"),
    "slices": ("dbt.toml", "--start", "ffdm", "--data.train.0.input", "slices", "--data.validation.0.input", "slices"),
    **{
        fusion: ("dbt.toml", "--start", "ffdm", "--model.fusion", fusion)
        for fusion in ("mean", "max", "timesform", "query", "mlp")
    },
}
INPUTS = ("volume", "slices", "mip", "hm", "msp", "ffdm")


def record(out: Path, tree: Path, only: str) -> None:
    """Run the commands of `only` ("demo", "train" or "all") with the mm3d of a tree."""
    out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    finished = out / "finished.txt"  # A killed recording continues after the last command that ended well.

    def mm3d(*arguments: object) -> None:
        line = " ".join(map(str, arguments))
        if finished.exists() and line in finished.read_text().splitlines():
            return
        command = [sys.executable, "-m", "mm3d", *map(str, arguments)]
        with (out / "commands.log").open("a") as log:
            print("$ mm3d", *arguments, file=log, flush=True)
            code = subprocess.run(command, cwd=out, env=environment, stdout=log, stderr=subprocess.STDOUT).returncode
        if code:
            sys.exit(f"mm3d {line} ended with exit code {code}; see {out / 'commands.log'}.")
        with finished.open("a") as file:
            print(line, file=file)

    if only != "train":
        mm3d("demo", "-o", "demo")
    if only == "demo":
        return
    mm3d("phantom", "exams", "--breasts", 6, *TRIAL)
    mm3d("prepare", "tables", "exams", "-o", "prepared", "--width", 96, "--length", 192, "--slices", 8)
    mm3d("predict", "exams", "-o", "found", "--weights", "ffdm", "--threshold", 0.1)
    mm3d("phantom", "trial/train", "--breasts", 16, *TRIAL, "--format", "prepared", "--malignant", 0.6)
    mm3d("phantom", "trial/validation", "--breasts", 12, "--seed", 6, "--format", "prepared", "--malignant", 0.6)
    for name, arguments in TRAININGS.items():
        steps = ("--loop.steps", 20, "--validate.every", 20, "--loop.batch", 4, "--loop.log_every", 1)
        mm3d("train", *arguments, *steps, "-o", f"runs/{name}")
    if only == "train":
        return
    for name in INPUTS:
        weights = "runs/slices" if name in ("slices", "msp") else "ffdm"
        if name == "hm":
            hm: list[object] = ["--loop.steps", 4, "--validate.every", 4]
            for part in ("train", "validation"):
                hm += [f"--data.{part}.0.input", "hm", f"--data.{part}.0.mammograms", "trial/train"]
            mm3d("train", "dbt.toml", "--start", "ffdm", *hm, "-o", "runs/hm")
            weights = "runs/hm"
        mm3d("predict", "prepared", "-o", f"predicted/{name}", "--weights", weights, "--input", name)
    mm3d("predict", "prepared", "-o", "predicted/union", "--weights", "runs/slices", "--join", "union")
    pair = ("predicted/volume/predictions.json", "predicted/slices/predictions.csv")
    mm3d("evaluate", *pair, "--truth", "prepared", "-o", "evaluation")
    mm3d("evaluate", "predicted/ffdm/predictions.json", "--truth", "prepared", "-o", "evaluation-ffdm")


def compare(before: Path, after: Path, tolerance: float, part: bool) -> int:
    names = [sorted(str(path.relative_to(folder)) for path in _results(folder)) for folder in (before, after)]
    differences = [f"{name} is only in one of them" for name in sorted({*names[0]} ^ {*names[1]}) if not part]
    compared = 0
    for name in sorted({*names[0]} & {*names[1]}):
        one, other = (dict(_numbers(folder / name)) for folder in (before, after))
        for key in sorted({*one, *other}):
            compared += 1
            if not _same(one.get(key), other.get(key), tolerance):
                differences.append(f"{name}: {key}: {one.get(key)!r} and {other.get(key)!r}")
    for line in differences[:60]:
        print(line)
    print(f"{compared} values in {len(names[0])} files compared, {len(differences)} differences.")
    return 1 if differences else 0


def _results(folder: Path) -> Iterator[Path]:
    for pattern in ("**/*.json", "**/*.jsonl", "**/*.csv", "**/sr/*.dcm"):
        for path in folder.glob(pattern):
            if not {"exams", "views"} & {*path.relative_to(folder).parts}:
                yield path


def _numbers(path: Path) -> Iterator[tuple[str, Any]]:
    """Every value of a file under its place in it."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            yield from _flatten(list(csv.DictReader(file)), "")
    elif path.suffix == ".dcm":
        import pydicom

        yield from _flatten(pydicom.dcmread(path).to_json_dict(suppress_invalid_tags=True), "")
    elif path.suffix == ".jsonl":
        yield from _flatten([json.loads(line) for line in path.read_text().splitlines()], "")
    else:
        content = json.loads(path.read_text())
        if path.name == "cohort.json":  # The names of prepared views depend on file times; their pixels do not.
            for view in (view for breast in content["breasts"] for view in breast["views"]):
                pixels = path.parent / "views" / f"{view.pop('key')}.npy"
                view["pixels"] = hashlib.sha256(pixels.read_bytes()).hexdigest()
        yield from _flatten(content, "")


# Of DICOM: dates, times, UIDs that are hashes of those, and versions of software.
DICOM_UNSTABLE = (  # noqa: SIM905
    "00080012 00080013 00080018 00080020 00080021 00080023 0008002A 00080030 00080031 00080033 00181020 0020000E "
    "00400555 0040A032 0040A120 0040A121 0040A122 0040A124 0040A13A"
).split()


def _flatten(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name not in UNSTABLE and name not in DICOM_UNSTABLE:
                yield from _flatten(item, f"{where}.{RENAMED.get(name, name)}")
    elif isinstance(value, list):
        yield f"{where}.length", len(value)
        for number, item in enumerate(value):
            yield from _flatten(item, f"{where}[{number}]")
    else:
        yield where, value


def _same(one: Any, other: Any, tolerance: float) -> bool:
    try:
        a, b = float(one), float(other)
    except (TypeError, ValueError):
        return Path(str(one)).name == Path(str(other)).name  # A path begins with the folder of its tree.
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run a tree and keep its results")
    recording.add_argument("out", type=Path, help="the folder to write")
    recording.add_argument("--tree", type=Path, default=ROOT, help="the checkout to run (default: this one)")
    recording.add_argument("--only", choices=("demo", "train", "all"), default="all", help="what to run (default: all)")
    comparing = commands.add_parser("compare", help="compare two folders that were recorded")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--tolerance", type=float, default=1e-6, help="relative, absolute below 1 (default: 1e-6)")
    comparing.add_argument("--part", action="store_true", help="one was recorded with --only: ignore missing files")
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.out.resolve(), arguments.tree.resolve(), arguments.only)
        return 0
    return compare(arguments.before, arguments.after, arguments.tolerance, arguments.part)


if __name__ == "__main__":
    sys.exit(main())
