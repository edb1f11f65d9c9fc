"""Processes that may die: a decoder that crashes or hangs on a bad file takes its worker with it, not the run."""

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from mm3d.errors import InputError

# A fresh interpreter for every worker: no state of the parent, and the same on every system.
CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Task:
    """A call of a module-level function in some worker."""

    key: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    seconds: float  # after this long the worker counts as hung


@dataclass(frozen=True)
class Outcome:
    """What became of a task: a result, or a sentence on why there is none."""

    key: Any
    result: Any = None
    failure: str = ""


@dataclass
class _Worker:
    connection: Connection
    process: Any
    task: Task | None = None
    deadline: float = field(default=float("inf"))


class Workers:
    """A pool that replaces the workers it loses. Use it with `with`."""

    def __init__(self, count: int) -> None:
        self.workers = [_start() for _ in range(count)]
        self.waiting: deque[Task] = deque()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.join()

    def submit(self, task: Task, first: bool = False) -> None:
        """Queue a task, before the others if `first`."""
        self.waiting.insert(0 if first else len(self.waiting), task)

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(worker.task for worker in self.workers)

    def outcomes(self) -> Iterator[Outcome]:
        """Outcomes as they come, until nothing is queued or running. Tasks may be submitted meanwhile."""
        while self.busy:
            for i, worker in enumerate(self.workers):
                if worker.task is None and self.waiting:
                    self._assign(i, self.waiting.popleft())
            running = [worker for worker in self.workers if worker.task]
            soonest = min(worker.deadline for worker in running)
            wait([w.connection for w in running], timeout=max(0.0, soonest - time.monotonic()))
            for i, worker in enumerate(self.workers):
                outcome = self._collect(i, worker) if worker.task else None
                if outcome:
                    yield outcome

    def _assign(self, i: int, task: Task) -> None:
        if not self.workers[i].process.is_alive():
            self._replace(i)
        worker = self.workers[i]
        worker.task, worker.deadline = task, time.monotonic() + task.seconds
        worker.connection.send((task.function, task.arguments))

    def _collect(self, i: int, worker: _Worker) -> Outcome | None:
        task = worker.task
        assert task is not None
        try:
            if worker.connection.poll():
                result, failure = worker.connection.recv()
                worker.task, worker.deadline = None, float("inf")
                return Outcome(task.key, result, failure)
        except (EOFError, OSError):
            self._replace(i)
            return Outcome(task.key, failure="the decoder crashed on it: the file is damaged; export it again.")
        if time.monotonic() >= worker.deadline:
            self._replace(i)
            return Outcome(
                task.key, failure=f"it took longer than {task.seconds:.0f} s and was given up; export it again."
            )
        return None

    def _replace(self, i: int) -> None:
        self.workers[i].process.kill()
        self.workers[i].process.join()
        self.workers[i].connection.close()
        self.workers[i] = _start()


def _start() -> _Worker:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Worker(ours, process)


def _serve(connection: Connection) -> None:
    """In the worker: take a call, send its result, until the parent is gone."""
    while True:
        try:
            function, arguments = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            answer = (function(*arguments), "")
        except InputError as error:
            answer = (None, str(error))
        except MemoryError:
            answer = (None, "it needs more memory than there is; use fewer --jobs.")
        except Exception as error:  # a bug of ours or of a library: this input is lost, the run is not
            answer = (None, f"it failed unexpectedly ({type(error).__name__}: {error}).")
        connection.send(answer)
