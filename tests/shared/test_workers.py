"""Workers: one that dies or hangs must not take the run along, nor may the number of cores show in the result."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from mm3d.shared.workers import Outcome, Task, Workers


def crash(_: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def die_once(mark: Path, number: int) -> str:
    """The first call kills its worker by this signal, as the system does if memory is short."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), number)
    return "seen"


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def fill_the_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "pixels.npy")


def hang(_: int) -> None:
    time.sleep(600)


def double(value: int) -> int:
    return 2 * value


def test_a_crash_or_a_hang_costs_its_task_and_nothing_else() -> None:
    with Workers(2) as workers:
        for key, function in enumerate([double, crash, double, hang, double, double]):
            workers.submit(Task(key, function, (key,), seconds=3.0 if function is hang else 60.0))
        outcomes: dict[int, Outcome] = {outcome.key: outcome for outcome in workers.outcomes()}
    assert {key: outcome.result for key, outcome in outcomes.items() if not outcome.failure} == {
        0: 0,
        2: 4,
        4: 8,
        5: 10,
    }
    assert "crashed" in outcomes[1].failure
    assert "took over 3 s" in outcomes[3].failure


def run(*tasks: Task) -> dict[object, Outcome]:
    with Workers(2) as workers:
        for task in tasks:
            workers.submit(task)
        return {outcome.key: outcome for outcome in workers.outcomes()}


def test_a_task_whose_worker_was_killed_once_is_done_by_another(tmp_path: Path) -> None:
    """A view must not be missing from a report because the machine was short of memory for a moment."""
    outcomes = run(*(Task(n, die_once, (tmp_path / str(n), n), 60.0) for n in (signal.SIGKILL, signal.SIGSEGV)))
    assert [outcome.result for outcome in outcomes.values()] == ["seen", "seen"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "too little memory; free some, or use fewer --jobs"),
        (signal.SIGBUS, "is the disk full or gone?"),
        (signal.SIGSEGV, "the file is damaged; export it again, or there is too little memory"),
    ],
)
def test_what_killed_a_worker_twice_is_named(number: int, said: str) -> None:
    """Nobody exports a good image again because the disk was full."""
    assert said in run(Task("view", die, (number,), 60.0))["view"].failure


def test_a_full_disk_is_called_a_full_disk() -> None:
    failure = run(Task("view", fill_the_disk, (0,), 60.0))["view"].failure
    assert failure == "the disk is full: cannot write pixels.npy; make room on it and run again."


def threads(_: int) -> list[str | None]:
    return [os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")]


def test_a_worker_has_one_thread_whatever_the_machine_has() -> None:
    """Sums over several threads come out differently, and the same seed must give the same bytes."""
    before = dict(os.environ)
    with Workers(1) as workers:
        workers.submit(Task(0, threads, (0,), seconds=60.0))
        assert [outcome.result for outcome in workers.outcomes()] == [["1", "1"]]
    assert dict(os.environ) == before


def take(size: int) -> int:
    return len(np.ones(size, dtype=np.uint8))


def test_what_asks_for_too_much_memory_fails_and_the_next_task_is_done() -> None:
    """A file whose size nobody noticed must not bring the whole computer to its knees."""
    with Workers(1, memory=1_000_000_000) as workers:
        for key, size in enumerate([1000, 2_000_000_000, 2000]):
            workers.submit(Task(key, take, (size,), seconds=60.0))
        outcomes: dict[int, Outcome] = {outcome.key: outcome for outcome in workers.outcomes()}
    assert (outcomes[0].result, outcomes[2].result) == (1000, 2000)
    assert "more memory" in outcomes[1].failure


def hold_the_lock(path: str) -> None:
    """Hang without letting another thread run, as a decoder written in C may."""
    Path(path).write_text(str(os.getpid()))
    import re

    re.match("(a*)*b", "a" * 60)


def sleep(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


KILLED = """
import sys
from test_workers import hold_the_lock, sleep
from mm3d.shared.workers import Task, Workers
with Workers(2) as workers:
    for function, path in zip((hold_the_lock, sleep), sys.argv[1:]):
        workers.submit(Task(0, function, (path,), seconds=600.0))
    list(workers.outcomes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Otherwise they keep cores, memory and an unfinished file for as long as their task takes."""
    paths = [tmp_path / "hangs", tmp_path / "sleeps"]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", KILLED, *map(str, paths)], env=here) as parent:
        while not all(path.is_file() and path.read_text() for path in paths):
            assert parent.poll() is None
            time.sleep(0.05)
        workers = [psutil.Process(int(path.read_text())) for path in paths]
        server = workers[0].parent()
        parent.kill()
        _, alive = psutil.wait_procs([*workers, *filter(None, [server])], timeout=60)
    assert not alive
