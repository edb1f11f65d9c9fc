"""What an attack counts, and what it found."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

GIGABYTE = 1e9
MOST_MEMORY = 2 * GIGABYTE  # of a command and its workers together
LONGEST = 60.0  # seconds for one file or one exam


@dataclass
class Tally:
    """The counts of an attack. Each fault is a sentence, and breaks a promise of docs/reliability.md."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    most: dict[str, float] = field(default_factory=dict)  # seconds and gigabytes, the largest of all

    def count(self, what: str, fault: str = "") -> None:
        self.counts[what] += 1
        if fault:
            self.faults.append(f"{what}: {fault}")

    def measure(self, what: str, value: float, limit: float = float("inf"), where: str = "") -> None:
        self.most[what] = max(value, self.most.get(what, 0.0))
        if value > limit:
            self.faults.append(f"{value:.3g} {what}, more than {limit:g}: {where}")

    def add(self, other: "Tally") -> None:
        self.counts += other.counts
        self.faults += other.faults
        for what, value in other.most.items():
            self.measure(what, value)

    def plain(self) -> dict[str, Any]:
        rounded = {what: round(value, 2) for what, value in self.most.items()}
        return {"counts": dict(self.counts.most_common()), "most": rounded, "faults": self.faults}


def wait_and_watch(process: psutil.Popen, seconds: float) -> tuple[float, bool]:
    """Wait for a process. Returns the most gigabytes that it and its children had together, and whether it ended in
    time; if not, it is ended."""
    most, deadline = 0.0, time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        most = max(most, measure_memory(process))
        time.sleep(0.2)
    ended = process.poll() is not None
    if not ended:
        process.kill()
        process.wait()
    return most / GIGABYTE, ended


def measure_memory(process: psutil.Process) -> float:
    """The bytes of a process and its children; what they share counts once."""
    total = 0.0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_full_info().pss
    except psutil.Error:  # it has just ended
        pass
    return total
