"""kill -9 at random moments, and full disks: then the same command gives the results of a run that was left alone.

Nothing is left over, either: no process after a kill, no hidden file after the last run.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from attack.exams import ALONE, write_exam
from attack.tally import Tally
from attack.trial import write_files
from support.blobs import settings, write_blobs, write_settings
from support.exams import write_weights
from support.tiny_study import TINY

CHAIN = 4  # kills of a run before it may end
TO_END = 20.0  # seconds after a kill in which its workers must have ended
LONGEST_RUN = 3600.0
KILLED = "killed"
CHANGING = ("run.json", "report.html", ".dcm", "log.jsonl", "output.txt", ".png", ".html")  # they have times in them
SHARES = {"phantom": 0.2, "prepare": 0.2, "predict": 0.3, "train": 0.2, "study": 0.1}  # of all kills
FEW_STEPS = {"loop": {"steps": 20, "save_every": 2}}


@dataclass(frozen=True)
class Command:
    """A command that is killed, and how its results are compared."""

    name: str
    arguments: list[str]  # in a folder of its own, in which it writes `out`
    contents: Callable[[Path], dict[str, str]]
    resume: tuple[str, ...] = ()  # is said when it is repeated
    codes: tuple[int, ...] = (0,)


def attack(count: int, seed: int, folder: Path) -> Tally:
    """Kill runs `count` times."""
    tally = Tally()
    for command in make_commands(folder / "given"):
        attack_command(command, folder, round(count * SHARES[command.name]), seed, tally)
    return tally


def attack_command(command: Command, folder: Path, count: int, seed: int, tally: Tally) -> None:
    """Kill a command `count` times, and let it meet a full disk, once for each twenty kills."""
    random = np.random.default_rng([seed, list(SHARES).index(command.name)])
    whole = folder / command.name / "whole"
    began = time.monotonic()
    code = start(command, whole).wait()
    seconds = time.monotonic() - began
    truth = command.contents(whole / "out")
    assert code in command.codes, (whole / "terminal.txt").read_text()
    assert truth, command.name
    for chain in range(-(-count // CHAIN)):
        _kill_often(command, folder / command.name / str(chain), seconds, random, truth, tally)
    for full in range(-(-count // 20)):
        _fill_disk(command, folder / command.name / f"full {full}", whole, random, truth, tally)


def make_commands(folder: Path) -> list[Command]:
    """The commands, and the files that they are given."""
    files = write_files(folder / "files")
    random = np.random.default_rng(0)
    pairs = [(f"{kind} CC", f"{kind} MLO") for kind in ("volume", "mammogram", "native volume", "native mammogram")]
    for number, pair in enumerate(pairs):
        write_exam(folder / "archive" / str(number), f"exam {number}", pair, files, "none", random)
    archive, weights = str(folder / "archive"), str(write_weights(folder / "weights.safetensors"))
    training = write_settings(folder / "c.json", settings(write_blobs(folder / "blobs"), **FEW_STEPS))
    study = folder / "tiny.toml"
    study.write_text(TINY)
    size = ["--width", "48", "--length", "96", "--slices", "4"]
    jobs = ["--jobs", "2"]
    return [
        Command("phantom", ["phantom", "out", "--breasts", "4", "--scale", "tiny", *jobs], hash_files),
        Command("prepare", ["prepare", "folder", archive, "-o", "out", *size, *jobs], hash_files),
        Command("predict", ["predict", archive, "-o", "out", "--weights", weights, *jobs], hash_files),
        Command("train", ["train", str(training), "-o", "out"], hash_files, ("--resume",)),
        Command(
            "study",
            ["study", str(study), "-o", "out", "--results", "results", "--only", "ffdm", *jobs],
            partial(hash_files, "*.safetensors", "*.npy"),
        ),
    ]


def hash_files(*arguments: str | Path) -> dict[str, str]:
    """The content of the files in a folder, but of those with times in them; predictions without their UIDs."""
    *patterns, folder = arguments
    assert isinstance(folder, Path)
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in patterns or ("*",)
        for path in sorted(folder.rglob(str(pattern)))
        if path.is_file() and not path.name.endswith(CHANGING)
    }


def start(command: Command, folder: Path, *more: str, largest: int | None = None) -> subprocess.Popen[bytes]:
    """Start a command in its folder. No file that it writes may be larger than `largest` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    limit = "" if largest is None else f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest},) * 2); "
    program = f"{limit}import sys; from mm3d.cli import main; sys.exit(main(sys.argv[1:]))"
    with (folder / "terminal.txt").open("ab") as terminal:
        return subprocess.Popen(
            [sys.executable, "-c", program, *command.arguments, *more],
            cwd=folder,
            env=os.environ | ALONE,
            stdout=terminal,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _kill_often(
    command: Command, folder: Path, seconds: float, random: np.random.Generator, truth: dict[str, str], tally: Tally
) -> None:
    more: tuple[str, ...] = ()
    for _ in range(CHAIN):
        process = start(command, folder, *more)
        more = command.resume
        try:
            process.wait(timeout=random.uniform(0.05, 1.1) * seconds)
            tally.count(f"{command.name}: it ended before it was killed")
        except subprocess.TimeoutExpired:
            everybody = random.random() < 0.5
            (os.killpg if everybody else os.kill)(process.pid, signal.SIGKILL)
            process.wait()
            tally.count(f"{command.name}: {KILLED}")
            for one in find_processes(folder, TO_END):
                tally.faults.append(f"{command.name}: {one} is still there {TO_END:g} s after the kill")
    _finish(command, folder, more, truth, tally)


def _fill_disk(
    command: Command, folder: Path, whole: Path, random: np.random.Generator, truth: dict[str, str], tally: Tally
) -> None:
    """No file may be larger than a part of the largest file of the result: writing it fails, as on a full disk."""
    sizes = [path.stat().st_size for path in (whole / "out").rglob("*") if path.is_file()]
    code = start(command, folder, largest=int(max(sizes) * random.uniform(0.05, 0.95))).wait(timeout=LONGEST_RUN)
    said = (folder / "terminal.txt").read_text(errors="replace")
    tally.count(f"{command.name}: full disk")
    if code not in (1, *command.codes) or "Traceback" in said:
        tally.faults.append(f"{command.name}, full disk: exit code {code}: {said[-1500:]}")
    _finish(command, folder, command.resume, truth, tally)


def _finish(command: Command, folder: Path, more: tuple[str, ...], truth: dict[str, str], tally: Tally) -> None:
    """Run the command to its end, and compare."""
    code = start(command, folder, *more).wait(timeout=LONGEST_RUN)
    said = (folder / "terminal.txt").read_text(errors="replace")
    result = command.contents(folder / "out") if (folder / "out").exists() else {}
    different = sorted(name for name, _ in truth.items() ^ result.items())
    hidden = [str(path.relative_to(folder)) for path in folder.rglob(".*") if ".snakemake" not in path.parts]
    if code not in command.codes or "Traceback" in said:
        tally.faults.append(f"{command.name}, at the end: exit code {code}: {said[-1500:]}")
    elif different or hidden:
        tally.faults.append(f"{command.name}: different: {different[:5]}; left over: {hidden[:5]}")
    else:
        tally.count(f"{command.name}: identical afterwards")
        shutil.rmtree(folder)


def find_processes(folder: Path, seconds: float) -> list[str]:
    """Processes that still work in a folder after so many seconds."""
    deadline = time.monotonic() + seconds
    while found := [*_working_in(folder)]:
        if time.monotonic() > deadline:
            return found
        time.sleep(0.1)
    return []


def _working_in(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder.resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(json.dumps(process.cmdline())[:200])
        except (psutil.Error, OSError):
            continue
    return found
