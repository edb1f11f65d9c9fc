"""Headers and frames in process: mutated files are read as `mm3d predict` reads them, in a worker of its kind."""

import shutil
import time
import traceback
from functools import cache
from pathlib import Path

import numpy as np
import psutil
from attack.mutations import STRICT, Group, mutate
from attack.tally import GIGABYTE, LONGEST, MOST_MEMORY, Tally
from attack.trial import Seen, find_difference, see, write_files
from pydicom import dcmread

from mm3d.data.prepare.run import WORKER_MEMORY
from mm3d.shared.errors import InputError, describe_error
from mm3d.shared.workers import Task, Workers

BLOCK = 200  # files that a worker reads in a row
WEIGHTS: dict[Group, float] = {"window": 1, "size": 1, "frames": 1, "pixels": 1.5, "header": 4, "file": 1.5}


def attack(count: int, seed: int, folder: Path) -> Tally:
    """Read `count` mutated files."""
    names = tuple(write_files(folder / "whole"))
    tally = Tally()
    blocks = [range(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]
    with Workers(1, WORKER_MEMORY) as workers:
        for block in blocks:
            workers.submit(Task(block, read_block, (folder, names, seed, block), LONGEST * BLOCK))
        for outcome in workers.outcomes():
            if outcome.failure and len(outcome.key) > 1:  # a decoder crashed or hangs: which file was it?
                for one in outcome.key:
                    alone = range(one, one + 1)
                    workers.submit(Task(alone, read_block, (folder, names, seed, alone), LONGEST))
            elif "crashed twice" in outcome.failure:
                tally.count("a decoder crashes, and the file is a problem")
            elif outcome.failure:
                tally.count("fault", f"file {outcome.key[0]} of seed {seed}: {outcome.failure}")
            else:
                tally.add(outcome.result)
    return tally


def read_block(folder: Path, names: tuple[str, ...], seed: int, block: range) -> Tally:
    """In the worker: make some files and read them."""
    tally = Tally()
    work = folder / "work"
    work.mkdir(exist_ok=True)
    for number in block:
        began = time.perf_counter()
        what, fault = _read(folder, work, names, seed, number)
        tally.count(what, fault)
        tally.measure("seconds for a file", time.perf_counter() - began, LONGEST, f"file {number} of seed {seed}")
    memory = psutil.Process().memory_info()
    tally.measure("GB in a worker", getattr(memory, "peak_wset", memory.rss) / GIGABYTE, MOST_MEMORY / GIGABYTE)
    return tally


def _read(folder: Path, work: Path, names: tuple[str, ...], seed: int, number: int) -> tuple[str, str]:
    """Make file `number` and read it. Returns what came of it, and the fault if there is one."""
    random = np.random.default_rng([seed, number])
    group = draw_group(random)
    name = str(random.choice(names))
    content, change = mutate(random, dcmread(folder / "whole" / f"{name}.dcm"), group)
    path = work / "mutated.dcm"
    path.write_bytes(content)
    subject = f"file {number} of seed {seed} ({name}, {group}: {change})"
    try:
        now = see(path, work)
    except InputError as error:
        return f"{group}: refused", "" if str(path) in str(error) else f"{subject} is not named: {error}"
    except Exception as error:
        if "failed unexpectedly" in describe_error(error):
            return f"{group}: traceback", f"{subject}: {traceback.format_exc(limit=-3)}"
        return f"{group}: refused", ""
    if now is None:
        return f"{group}: left out by a rule", ""
    whole = _whole(folder, name)
    if now.slices.shape == whole.slices.shape and now.crop == whole.crop and (now.slices == whole.slices).all():
        return f"{group}: same image", ""
    difference = find_difference(whole, now)
    if not difference:
        return f"{group}: another image, the breast is seen", ""
    if set(now.said) - set(whole.said):
        return f"{group}: another image, and that is said", ""
    fault = f"{subject}: {difference}"
    return f"{group}: not seen, and not said", fault if group in STRICT else ""


def draw_group(random: np.random.Generator) -> Group:
    groups, weights = list(WEIGHTS), np.array(list(WEIGHTS.values()))
    return groups[int(random.choice(len(groups), p=weights / weights.sum()))]


@cache
def _whole(folder: Path, name: str) -> Seen:
    work = folder / "work of whole"
    work.mkdir(exist_ok=True)
    whole = see(folder / "whole" / f"{name}.dcm", work)
    shutil.rmtree(work)
    assert whole is not None
    return whole
