"""Worker processes that may die: a decoder that crashes or hangs on a bad file costs that file, not the run."""

import ctypes
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

from mm3d.shared.errors import InputError, describe_error

# Workers share no state with the parent. On Linux they are forked from a server: a fresh interpreter that has imported
# once what they all need. Elsewhere forks are not safe, so each worker is a fresh interpreter itself.
SERVER = sys.platform == "linux"
PR_SET_PDEATHSIG = 1  # of Linux' prctl: the signal that a process gets when its parent ends
CONTEXT: Any = multiprocessing.get_context("forkserver" if SERVER else "spawn")
# There is a worker for every core, so each has one thread. Sums then do not depend on the number of threads.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def worker_count(jobs: int | None) -> int:
    """How many workers `--jobs` asks for; one for each core if it is not given."""
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs} must be at least 1.")
    return jobs or os.cpu_count() or 1


@dataclass(frozen=True)
class Task:
    """A call of a module-level function in some worker."""

    key: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    seconds: float  # after this long the worker counts as hung
    remedy: str = "the file is damaged; export it again."  # what the user is told if the worker crashes or hangs
    repeated: bool = False  # its first worker died


@dataclass(frozen=True)
class Outcome:
    """The result of a task, or a sentence on why there is none."""

    key: Any
    result: Any = None
    failure: str = ""


@dataclass(eq=False)
class _Worker:
    connection: Connection
    process: Any
    task: Task | None = None
    deadline: float = float("inf")

    def end(self) -> int:
        """End the process. Returns its exit code: if it had died already, minus the signal that killed it."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        return self.process.exitcode or 0


class Workers:
    """Up to `count` processes. They start when there is work, and are replaced when they die. Use it with `with`.

    With `memory`, no process may have more bytes than this for itself, where the system has such a limit. Files that
    are mapped do not count.
    """

    def __init__(self, count: int, memory: int | None = None) -> None:
        self.count, self.memory = count, memory
        self.workers: list[_Worker] = []
        self.waiting: deque[Task] = deque()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()

    def submit(self, task: Task, first: bool = False) -> None:
        """Queue a task, before the others if `first`."""
        self.waiting.insert(0 if first else len(self.waiting), task)

    def outcomes(self) -> Iterator[Outcome]:
        """Outcomes as they come, until nothing is queued or running. Tasks may be submitted meanwhile."""
        while self.waiting or any(worker.task for worker in self.workers):
            self._assign()
            running = [worker for worker in self.workers if worker.task]
            soonest = min(worker.deadline for worker in running)
            wait([worker.connection for worker in running], timeout=max(0.0, soonest - time.monotonic()))
            for worker in running:
                outcome = self._collect(worker)
                if outcome:
                    yield outcome

    def _assign(self) -> None:
        """Give waiting tasks to idle workers, and start new workers while there may be more."""
        while self.waiting:
            worker = next((worker for worker in self.workers if worker.task is None), None)
            if worker is None:
                if len(self.workers) == self.count:
                    return
                worker = _start_worker(self.waiting[0], self.memory)
                self.workers.append(worker)
            task = self.waiting.popleft()
            worker.task, worker.deadline = task, time.monotonic() + task.seconds
            try:
                worker.connection.send((task.function, task.arguments))
            except OSError:  # The worker died while it was idle, so the task is not to blame.
                self._remove(worker)
                self.waiting.appendleft(task)

    def _collect(self, worker: _Worker) -> Outcome | None:
        task = worker.task
        assert task is not None
        try:
            if worker.connection.poll():
                result, failure = worker.connection.recv()
                worker.task, worker.deadline = None, float("inf")
                return Outcome(task.key, result, failure)
        except (EOFError, OSError):
            return self._retry(task, self._remove(worker))
        if time.monotonic() >= worker.deadline:
            self._remove(worker)
            return Outcome(task.key, failure=f"it took over {task.seconds:.0f} s and was given up: {task.remedy}")
        return None

    def _retry(self, task: Task, exit_code: int) -> Outcome | None:
        """Give the task of a worker that died to another one, but only once. Then say what probably killed both."""
        if not task.repeated:
            self.submit(replace(task, repeated=True), first=True)
            return None
        return Outcome(task.key, failure=f"its worker process crashed twice: {_explain_death(exit_code, task.remedy)}")

    def _remove(self, worker: _Worker) -> int:
        self.workers.remove(worker)
        return worker.end()


def _explain_death(exit_code: int, remedy: str) -> str:
    """What probably killed a process, and what to do, by its exit code."""
    names = {-number: name for name, number in signal.Signals.__members__.items()}
    name = names.get(exit_code, "")
    if name == "SIGKILL":
        return "the system ended it, which it does if there is too little memory; free some, or use fewer --jobs."
    if name == "SIGBUS":
        return "a file it was using could not grow or be read; is the disk full or gone?"
    return f"{remedy.rstrip('.')}, or there is too little memory: then use fewer --jobs."


def start_server(module: str) -> None:
    """Let the server of the workers import a module, if it does not run yet. This does not wait for it."""
    if SERVER:
        from multiprocessing import forkserver

        with _as_workers():
            CONTEXT.set_forkserver_preload([module])
            forkserver.ensure_running()


def _start_worker(task: Task, memory: int | None) -> _Worker:
    start_server(task.function.__module__)
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_serve, args=(theirs, memory), daemon=True)
    with _as_workers(), _without_main():
        process.start()
    theirs.close()
    return _Worker(ours, process)


@contextmanager
def _as_workers() -> Iterator[None]:
    """A process that is started in this block has one thread, and ignores Ctrl-C, which is the parent's to handle."""
    in_main_thread = threading.current_thread() is threading.main_thread()  # No other thread may set signals.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    before = {name: os.environ[name] for name in ONE_THREAD if name in os.environ}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name in ONE_THREAD:
            del os.environ[name]
        os.environ.update(before)
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def _without_main() -> Iterator[None]:
    """A process that is started in this block does not import the program of this one, which it has no use for. A short
    script that predicts has everything at its top level, and each worker would run it again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _limit_memory(size: int) -> None:
    """Let this process have no more memory for itself. What a decoder asks for beyond it, it does not get."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or size < most:
        resource.setrlimit(resource.RLIMIT_DATA, (size, most))


def die_with_parent() -> Callable[[], object] | None:
    """What a new process calls before it begins its program, so that the system kills it when its parent ends. It must
    be done this early: a program that asks later who its parent is may have lost it already. None: not on Linux."""
    if not SERVER:
        return None
    return functools.partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_parent() -> None:
    """In the worker: end as soon as the parent has ended, also if it was killed while the worker is at work."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    if SERVER:  # A decoder that hangs may keep the thread from running, so the system is asked to kill the worker.
        from multiprocessing import forkserver

        # The worker's parent is the server, which ends when the last process has closed its end of this pipe. Workers
        # have one, too, because they could start processes themselves. They never do.
        os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(connection: Connection, memory: int | None) -> None:
    """In the worker: take a call and send its result, until the parent is gone."""
    _end_with_parent()
    if memory is not None:
        _limit_memory(memory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Windows does not pass it on.
    while True:
        try:
            function, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (function(*arguments), "")
        except MemoryError:
            answer = (None, "it needs more memory than there is, or than one file may use; use fewer --jobs.")
        except Exception as error:  # Also a bug of ours or of a library costs this input, not the run.
            answer = (None, describe_error(error))
        try:
            connection.send(answer)
        except OSError:  # The parent was killed.
            return
