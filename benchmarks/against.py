"""make bench BASE=<commit>: measure this tree and another commit in turn, so that a change shows what it brought.

    python benchmarks/against.py da674ee
    python benchmarks/against.py da674ee --only training predict

Only the command line of both is used, so that it works however the inside changes. The other commit is a git worktree
beside an environment that is made with its own constraints. Both stay in build/against/ for the next time.
"""

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import page
from timing import Row

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3
BATCH, STEPS, FIRST = 4, 14, 4  # the first steps are left out, because memory is new there
TRAINING = f"""start = "ffdm"
data.train = [{{ folder = "trial", input = "volume" }}]
augment = {{ horizontal_flip = 0.0, vertical_flip = 0.5, shift = 0.05, gamma = 0.3 }}
optimiser = {{ learning_rate = 1e-4, warmup = 50 }}
loop = {{ batch = {BATCH}, log_every = 1 }}
"""
TRAINING_FULL_SIZE = """start = "random"
model = { preset = "paper", recompute = true }
data.train = [{ folder = "full", input = "volume" }]
loop = { steps = 1, batch = 1 }
"""
# On Linux, processes whose parent has ended become our children, so that what they used can be counted.
PR_SET_CHILD_SUBREAPER = 36
ORPHANS_ARE_OURS = sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
INTRODUCTION = """Written by `make bench BASE=<commit>`: commit {} against {}, with the command line of both, in turn.
Time on processors is that of all processes of a command together. Other programs on the machine disturb it less."""


class Cost(NamedTuple):
    """Of a command: wall time, time of all its processes on processors, and peak memory of the largest of them."""

    seconds: float
    processor: float
    gigabytes: float


@dataclass(frozen=True)
class Tree:
    """A checkout of mm3d, the Python of its environment, and a folder for what its commands write."""

    commit: str
    source: Path
    python: str
    folder: Path

    def run(self, *words: object, new: str, threads: int | None = None) -> Cost:
        """Run a command of mm3d that makes the folder `new`."""
        shutil.rmtree(self.folder / new, ignore_errors=True)
        return self.run_python("-m", "mm3d", *words, threads=threads)

    def run_python(self, *words: object, threads: int | None = None) -> Cost:
        environment = os.environ | {"PYTHONPATH": str(self.source)}
        if threads:
            environment |= {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        command = [self.python, *map(str, words)]
        with (self.folder / "output.txt").open("w+") as output:
            start = time.perf_counter()
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=output, stderr=output)
            _, status, usage = os.wait4(process.pid, 0)  # unlike Popen.wait, it also says what was used
            seconds = time.perf_counter() - start
            usages = [usage, *_wait_for_orphans()]
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                output.seek(0)
                sys.exit(f"{' '.join(command)} ended with exit code {process.returncode}:\n{output.read()}")
        gigabytes = max(one.ru_maxrss for one in usages) / 2 ** (30 if sys.platform == "darwin" else 20)
        return Cost(seconds, sum(one.ru_utime + one.ru_stime for one in usages), gigabytes)


def _wait_for_orphans() -> list[resource.struct_rusage]:
    """What processes used that a command left behind. Its server of workers (shared/workers.py) ends just after it."""
    usages = []
    while ORPHANS_ARE_OURS:
        try:
            usages.append(os.wait3(0)[2])
        except ChildProcessError:
            break
    return usages


def open_base(commit: str, folder: Path) -> Tree:
    """The other commit. Its environment is made the first time."""
    kept = ROOT / "build" / "against" / commit
    tree, python = kept / "tree", kept / "venv" / "bin" / "python"
    if not (kept / "ready").exists():
        shutil.rmtree(kept, ignore_errors=True)
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", str(tree), commit)
        subprocess.run([sys.executable, "-m", "venv", kept / "venv"], check=True)
        constraints = {"PIP_CONSTRAINT": str(tree / "constraints.txt")}
        install = [str(python), "-m", "pip", "install", "--quiet", "--editable", str(tree)]
        subprocess.run(install, check=True, env=os.environ | constraints)
        (kept / "ready").touch()
    return Tree(commit, tree / "src", str(python), folder)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


# ---- what is measured ----------------------------------------------------------------------------------------------


def measure_training(base: Tree, this: Tree) -> list[Row]:
    for tree in (base, this):
        trial = ("--breasts", 12, "--seed", 1, "--malignant", 0.6, "--format", "prepared")
        tree.run("phantom", "trial", *trial, new="trial")
        (tree.folder / "training.toml").write_text(TRAINING)
    kinds = {
        "volumes of 8 slices, float32": ("--loop.precision=float32",),
        "volumes of 8 slices, bfloat16": ("--loop.precision=bfloat16",),
        "mammograms, float32": ("--loop.precision=float32", "--data.train.0.input=ffdm"),
    }
    rows = []
    for what, options in kinds.items():
        rounds = [[_train(tree, options) for tree in (base, this)] for _ in range(ROUNDS)]
        costs = []
        for same in zip(*rounds, strict=True):
            # A step has the same breasts in every round. Of each step, the best round counts.
            *steps, first, all_ = map(min, zip(*same, strict=True))
            costs.append(Cost(sum(steps) / len(steps), (all_ - first) / len(steps), 0.0))
        what = f"A training step at mini scale, batches of {BATCH} breasts, {what}"
        rows.append(_compare(what, costs, "one thread"))
    return rows


def _train(tree: Tree, options: Sequence[str]) -> list[float]:
    """The seconds of each step after the first ones; and on processors, of a run of the first steps and one of all."""
    first, all_ = (
        tree.run("train", "training.toml", "-o", "run", *options, f"--loop.steps={steps}", new="run", threads=1)
        for steps in (FIRST, STEPS)
    )
    lines = [json.loads(line) for line in (tree.folder / "run" / "log.jsonl").read_text().splitlines()]
    seconds = [BATCH / line["breasts_per_second"] for line in lines if "breasts_per_second" in line]
    return [*seconds[FIRST:], first.processor, all_.processor]


def measure_predict(base: Tree, this: Tree) -> list[Row]:
    this.run("demo", "-o", "demo", new="demo")
    words = ("predict", this.folder / "demo" / "exam", "-o", "found")
    before, after, torch = _measure_in_turn(
        lambda: base.run(*words, new="found"),
        lambda: this.run(*words, new="found"),
        lambda: this.run_python("-c", "import torch"),
    )
    of_torch = [cost.seconds / torch.seconds for cost in (after, before)]
    note = "{:.1f} times as long as `import torch` alone, was {:.1f} times; all cores".format(*of_torch)
    return [_compare("`mm3d predict` of the demo's exam", (before, after), note)]


def measure_evaluate(base: Tree, this: Tree) -> list[Row]:
    from evaluation import PREDICTIONS, VOLUMES, write_tables

    words = ("evaluate", write_tables(base.folder), "--truth", base.folder, "-o", "evaluation")
    costs = _measure_in_turn(*(partial(tree.run, *words, new="evaluation") for tree in (base, this)))
    what = f"`mm3d evaluate` of {PREDICTIONS:,} predictions on {VOLUMES:,} volumes from CSV files"
    return [_compare(what, costs, "with bootstrap and curves")]


def measure_phantom(base: Tree, this: Tree) -> list[Row]:
    words = ("phantom", "breasts", "--breasts", 4, "--seed", 1, "--format", "prepared", "--jobs", 1)
    costs = _measure_in_turn(*(partial(tree.run, *words, new="breasts") for tree in (base, this)))
    return [_compare("`mm3d phantom` of four mini breasts", costs, "one worker process")]


def measure_full_size(base: Tree, this: Tree) -> list[Row]:
    """Everything once: it takes long, and its memory hardly varies."""
    rows = []
    for what, new, *words in (
        ("phantom --scale full`: two views", "full", "full", "--breasts", 1, "--scale", "full", "--format", "prepared"),
        ("train`: a step at 16 x 2200 x 1100, both views", "run", "training.toml", "-o", "run"),
        ("predict` at 16 x 2200 x 1100, both views", "found", "full", "-o", "found", "--weights", "run"),
    ):
        costs = []
        for tree in (base, this):
            (tree.folder / "training.toml").write_text(TRAINING_FULL_SIZE)
            costs.append(tree.run(what.split()[0].rstrip("`"), *words, new=new))
        rows.append(_compare(f"`mm3d {what}", costs, "all cores"))
        before, after = (cost.gigabytes for cost in costs)
        less = f"{after / before:.2f} of the memory"
        rows.append(
            Row("Peak memory of that, largest process", less, "reported", f"{after:.2f} GB, was {before:.2f} GB")
        )
    return rows


def _measure_in_turn(*commands: Callable[[], Cost]) -> tuple[Cost, ...]:
    """The best of each, after a round to warm up."""
    rounds = [[command() for command in commands] for _ in range(1 + ROUNDS)][1:]
    return tuple(Cost(*map(min, zip(*costs, strict=True))) for costs in zip(*rounds, strict=True))


def _compare(what: str, costs: Sequence[Cost], note: str) -> Row:
    before, after = costs
    ratio = f"{before.seconds / after.seconds:.2f}x as fast"
    times = f"{after.seconds:.2f} s, was {before.seconds:.2f} s"
    processors = f"{before.processor / after.processor:.2f}x by time on processors"
    return Row(what, ratio, "reported", f"{times}; {processors}; {note}")


PARTS = {
    "training": measure_training,
    "predict": measure_predict,
    "evaluate": measure_evaluate,
    "phantom": measure_phantom,
    "full-size": measure_full_size,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to measure (default: all but full-size)")
    parser.add_argument("--full-size", action="store_true", help="also measure full-size")
    parser.add_argument("--write", type=Path, help="the markdown file to keep the table in")
    arguments = parser.parse_args()
    names = arguments.only or [name for name in PARTS if name != "full-size" or arguments.full_size]
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / "base", Path(name) / "this"]
        for folder in folders:
            folder.mkdir()
        base = open_base(_git("rev-parse", "--short=7", "--verify", f"{arguments.base}^{{commit}}"), folders[0])
        commit = _git("describe", "--always", "--dirty", "--abbrev=7", "--exclude=*")
        this = Tree(commit, ROOT / "src", sys.executable, folders[1])
        rows = [row for part in names for row in PARTS[part](base, this)]
    page.show(rows)
    if arguments.write:
        introduction = INTRODUCTION.format(this.commit, base.commit)
        page.keep(arguments.write, "## Against another commit", introduction, rows)


if __name__ == "__main__":
    main()
