"""Broken exams end to end: `mm3d predict` reads archives of mutated exams, and its results are looked at from outside.

Everything is in one container folder. What the command writes outside OUT shows in a snapshot of that folder.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from attack.mutations import STRICT, Group, mutate
from attack.reading import draw_group
from attack.tally import GIGABYTE, LONGEST, MOST_MEMORY, Tally, wait_and_watch
from attack.trial import Grey, compare_slices, give_study, write_files
from PIL import Image
from pydicom import dcmread
from support.exams import record, write_weights

import mm3d
from mm3d.data.datasets.folder import exam_code
from mm3d.data.dicom.build import uid

ARCHIVE = 20  # exams of an archive; the first of them is whole
# One thread, and the mm3d of this tree also where another one is installed.
ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1") | {
    "PYTHONPATH": str(Path(mm3d.__file__).parents[1])
}
Pair = tuple[str, str]  # the files of CC and MLO


@dataclass(frozen=True)
class Result:
    """What there is of an exam in OUT."""

    record: dict[str, Any]
    predictions: list[dict[str, Any]]  # of its breasts, without codes
    pictures: dict[str, list[Grey]]  # of the report, by view


@dataclass(frozen=True)
class Made:
    """An exam of an archive."""

    files: Pair
    group: Group
    change: str  # the names of its mutations


def attack(count: int, seed: int, folder: Path) -> Tally:
    """Predict `count` exams of two views, of which one is mutated."""
    tally = Tally()
    files = write_files(folder / "whole")
    weights = write_weights(folder / "weights.safetensors")
    pairs = [(cc, mlo) for cc in files if "CC" in cc for mlo in files if "MLO" in mlo]
    pairs = pairs[-count:]  # few exams need few whole ones to compare with
    whole = _predict_whole(pairs, files, weights, folder / "truth")
    for start in range(0, count, ARCHIVE - 1):
        random = np.random.default_rng([seed, start])
        container = folder / "container"
        made = {}
        for number in range(min(ARCHIVE - 1, count - start) + 1):
            pair = pairs[int(random.integers(len(pairs)))]
            group: Group = draw_group(random) if number else "none"
            name = f"exam {number} of {start}"
            change = write_exam(container / "archive" / str(number), name, pair, files, group, random)
            made[exam_code(uid("attack", name))] = Made(pair, group, change)
        before = take_snapshot(container)
        said = _predict(container, weights, tally, f"archive {start} of seed {seed}")
        for path in take_snapshot(container).items() ^ before.items():
            tally.faults.append(f"archive {start} of seed {seed}: {path[0]} was changed, and is not in OUT")
        for code, one in made.items():
            what, fault = judge(container / "out", code, one, whole[one.files])
            where = f"archive {start} of seed {seed}, exam {code} ({', '.join(one.files)}; {one.group}: {one.change})"
            tally.count(f"{one.group}: {what}", f"{where}: {fault}" if fault else "")
        tally.counts["lines on the terminal"] += said.count("\n")
        shutil.rmtree(container)
    return tally


def write_exam(
    folder: Path, name: str, pair: Pair, files: dict[str, Path], group: Group, random: np.random.Generator
) -> str:
    """Write an exam of two files, and mutate one of them. Returns what was done."""
    folder.mkdir(parents=True)
    broken = int(random.integers(2))
    change = ""
    for place, file in enumerate(pair):
        dataset = dcmread(files[file])
        give_study(dataset, name)
        content, done = mutate(random, dataset, group if place == broken else "none")
        (folder / f"{place}.dcm").write_bytes(content)
        change = f"{file}: {done}" if place == broken else change
    return change


def _predict(container: Path, weights: Path, tally: Tally, where: str, jobs: int = 1) -> str:
    """Run the command on an archive. Returns what it said."""
    arguments = ["predict", "archive", "-o", "out", "--weights", str(weights), "--jobs", str(jobs)]
    log = container.with_name("terminal.txt")
    with log.open("w") as terminal:
        process = psutil.Popen(
            [sys.executable, "-m", "mm3d", *arguments],
            cwd=container,
            env=os.environ | ALONE,
            stdout=terminal,
            stderr=subprocess.STDOUT,
        )
        memory, ended = wait_and_watch(process, LONGEST * ARCHIVE)
    said = log.read_text(errors="replace")
    tally.measure("GB of a command", memory, MOST_MEMORY / GIGABYTE, where)
    if not ended:
        tally.faults.append(f"{where}: it did not end")
    elif process.returncode not in (0, 1):
        tally.faults.append(f"{where}: exit code {process.returncode}")
    for word in ("Traceback", "failed unexpectedly"):
        if word in said:
            tally.faults.append(f"{where}: {word}: {said[max(0, said.index(word) - 200) :][:1000]}")
    return said


def _predict_whole(pairs: list[Pair], files: dict[str, Path], weights: Path, folder: Path) -> dict[Pair, Result]:
    """The results of all exams that are not mutated."""
    tally = Tally()
    random = np.random.default_rng(0)
    for number, pair in enumerate(pairs):
        write_exam(folder / "archive" / str(number), f"whole {number}", pair, files, "none", random)
    _predict(folder, weights, tally, "the whole exams")
    assert not tally.faults, tally.faults
    codes = [exam_code(uid("attack", f"whole {number}")) for number in range(len(pairs))]
    return {pair: read_result(folder / "out" / code) for pair, code in zip(pairs, codes, strict=True)}


def read_result(folder: Path) -> Result:
    """The results of an exam, as a reader sees them."""
    breasts = json.loads((folder / "predictions.json").read_text())["breasts"]
    page = (folder / "report.html").read_text()
    views = json.loads(re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[0])["views"]
    blocks = re.findall(r'<script type="text/plain" class="frames">(.*?)</script>', page, re.DOTALL)
    pictures = {
        view["laterality"] + view["position"]: [_decode(line) for line in block.split()]
        for view, block in zip(views, blocks, strict=True)
    }
    plain = [{name: value for name, value in breast.items() if name not in ("patient", "exam")} for breast in breasts]
    return Result(record(folder), plain, pictures)


def _decode(line: str) -> Grey:
    return np.asarray(Image.open(BytesIO(base64.b64decode(line))))


def judge(output: Path, code: str, made: Made, whole: Result) -> tuple[str, str]:
    """What came of an exam, and the fault if there is one."""
    failures = record(output)["failures"]
    if code in failures:
        return "it could not be predicted, and that is said", "" if made.group != "none" else failures[code]
    if not (output / code / "run.json").exists():
        return "lost", "it is nowhere in OUT"
    result = read_result(output / code)
    if result.record["problems"]:
        return "a problem is in its record", "" if made.group != "none" else str(result.record["problems"])
    if result.predictions == whole.predictions:
        return "the result of the whole exam", ""
    if any(set(result.record[kind]) - set(whole.record[kind]) for kind in ("notes", "warnings")):
        return "a note is in its record", ""
    if made.group == "none":
        return "another result", "nothing was mutated"
    strict = made.group in STRICT
    if result.pictures.keys() != whole.pictures.keys():  # the header makes it one of another exam, or no mammography
        return "a view is not of this exam", f"it has {[*result.pictures]}" if strict else ""
    for view, pictures in result.pictures.items():
        same_number = len(pictures) == len(whole.pictures[view])
        if not same_number or (fault := compare_slices(whole.pictures[view], pictures)):
            fault = fault if same_number else f"{len(pictures)} slices"
            return "a view is not seen, and that is not said", f"{view}: {fault}" if strict else ""
    return "another result, the breast is seen", ""


def take_snapshot(container: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of all that is in a folder, but for OUT."""
    found = {}
    for path in container.rglob("*"):
        if "out" not in path.relative_to(container).parts[:1]:
            status = path.lstat()
            found[str(path.relative_to(container))] = (status.st_size, status.st_mtime_ns)
    return found
