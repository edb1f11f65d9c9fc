"""How a benchmark measures and what it reports: ratios of two things timed in turn, in one run, on one machine."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of docs/benchmarks.md."""

    what: str
    measured: str
    wanted: str
    note: str = ""


def in_its_own_process(program: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark as a program: its memory is its own, and its last line is what it measured, as JSON."""
    done = subprocess.run([sys.executable, program, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def seconds_of_each(
    *contenders: Callable[[], object], rounds: int = 5, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The best time of each, after one round to warm up; in turn, so that a slow moment of the machine meets all.

    What has one thread and waits for nothing is timed best with time.process_time: other programs disturb it less.
    """
    best = [float("inf")] * len(contenders)
    for round_ in range(rounds + 1):
        for i, contender in enumerate(contenders):
            start = clock()
            contender()
            if round_ > 0:
                best[i] = min(best[i], clock() - start)
    return best
