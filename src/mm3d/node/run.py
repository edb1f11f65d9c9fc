"""`mm3d node`: one process that receives, predicts and sends, until it is ended."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from mm3d.node.audit import Audit
from mm3d.node.config import Destination, NodeSettings, read_settings
from mm3d.node.inbox import Inbox
from mm3d.node.predict import FILES, NoMammographyError, Predictor
from mm3d.node.queue import Queue, Taken
from mm3d.node.status import print_status, serve_status
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError, describe_error
from mm3d.shared.files import lock_folder, remove_partial

QUEUE, AUDIT = "queue.sqlite", "audit.jsonl"
PAUSE = 0.2  # seconds between two looks into the queue
ATTEMPTS = 5  # to predict an exam, if it is not the exam's fault that it fails
HOUR = 3600.0


def run(config: Path, status: bool) -> int:
    """Run a node, or say how the one in this folder is. Returns the exit code."""
    settings = read_settings(config)
    if status:
        return print_status(settings.folder / QUEUE, Console())
    try:
        import dicomweb_client  # noqa: F401
        import pynetdicom  # noqa: F401
    except ImportError as error:
        raise InputError("A node needs pynetdicom and more; install them with: pip install 'mm3d[node]'.") from error
    settings.folder.mkdir(parents=True, exist_ok=True)
    settings.folder.chmod(0o700)  # what is received names patients
    with lock_folder(settings.folder), ExitStack() as stack:
        Node(settings, stack).run()
    return 0


class Node:
    """A running node: threads that receive, watch and send, and the main thread, which predicts."""

    def __init__(self, settings: NodeSettings, stack: ExitStack) -> None:
        self.settings, self.stack, self.console = settings, stack, Console()
        self.stopped = threading.Event()
        self.queue = Queue(settings.folder / QUEUE)
        stack.callback(self.queue.close)
        self.audit = Audit(settings.folder / AUDIT, self.console)
        stack.callback(self.audit.close)
        self.inbox = Inbox(settings.folder, self.queue, settings.quiet_seconds, threading.RLock())
        self.predictor = Predictor(settings.predict, {})

    def run(self) -> None:
        from mm3d.node.receive import Receiver
        from mm3d.node.watch import Watcher

        self.predictor.check()
        self.inbox.recover()
        threading.excepthook = self._tell_unexpected
        for signal_ in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_, self._stop)
        if self.settings.receive is not None:
            self.stack.enter_context(Receiver(self.settings.receive, self.inbox, self.audit.tell))
            own = self.settings.receive
            say(self.console, f"{own.ae_title} listens at {own.address}, port {own.port}.")
        for archive in self.settings.archives:
            self._repeat(Watcher(archive, self.inbox, self.audit.tell).look, archive.every_seconds)
        for destination in self.settings.destinations:
            self._repeat(lambda destination=destination: self._deliver(destination), PAUSE)  # type: ignore[misc]
        self._repeat(self._remove_old, HOUR)
        if self.settings.status_port:
            address = self.stack.enter_context(serve_status(self.settings.status_port, self.queue, self.audit))
            say(self.console, f"Status: {address}")
        while not self.stopped.wait(PAUSE):
            while (taken := self.inbox.take()) is not None and not self.stopped.is_set():
                self._predict(taken)
        say(self.console, "Ended; what waits is done after the next start.")

    def _tell_unexpected(self, failed: threading.ExceptHookArgs) -> None:
        """A connection's thread died. Python would print the exception, which may quote what was sent."""
        error = failed.exc_value
        reason = describe_error(error) if isinstance(error, Exception) else "a thread ended"
        self.audit.tell("refused", reason=reason)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        if self.stopped.is_set():  # asked twice
            os._exit(130)
        self.stopped.set()

    def _repeat(self, work: Callable[[], None], pause: float) -> None:
        """Do something again and again in a thread of its own. Whatever goes wrong with it, it is done again."""

        def repeat() -> None:
            while not self.stopped.is_set():
                try:
                    work()
                except Exception as error:
                    self.audit.tell("refused", reason=describe_error(error))
                self.stopped.wait(pause)

        threading.Thread(target=repeat, daemon=True).start()

    def _predict(self, taken: Taken) -> None:
        """Predict an exam. Whatever goes wrong with it is in the queue with the reason, and others are predicted."""
        code, now = taken.exam, time.time
        images, results = self.inbox.images(code), self.inbox.results(code, taken.version)
        self.audit.tell("received", exam=code, version=taken.version, files=len(list(images.glob("*.dcm"))))
        before = self.queue.last_sent(code)
        began = now()
        try:
            results.parent.mkdir(exist_ok=True)
            remove_partial(results.parent)
            if not results.exists():  # otherwise the node was killed right behind the prediction
                replaced = None if before is None else self.inbox.results(code, before)
                result = self.predictor.predict(images, results, replaced, self.settings.send)
                marked, seconds = len(result.lesions()), {part: round(s, 3) for part, s in result.seconds.items()}
                self.audit.tell("predicted", exam=code, version=taken.version, findings=marked, seconds=seconds)
            self.queue.finish(taken, now() - began, [own.name for own in self.settings.destinations], now())
        except NoMammographyError as error:
            self.queue.fail(taken, "ignored", str(error), now())
            self.audit.tell("ignored", exam=code, reason=str(error))
        except Exception as error:
            reason = describe_error(error)
            if isinstance(error, InputError) or taken.attempts + 1 >= ATTEMPTS:
                self.queue.fail(taken, "failed", reason, now())
                self.audit.tell("failed", exam=code, reason=reason)
            else:
                self.queue.postpone(taken, reason, now(), self.settings.retry_seconds)

    def _deliver(self, destination: Destination) -> None:
        """Send results that are due to a destination."""
        from mm3d.node.deliver import RefusedError, send

        caller = self.settings.receive.ae_title if self.settings.receive else "MM3D"
        while not self.stopped.is_set() and (taken := self.queue.take_delivery(destination.name, time.time())):
            folder, began = self.inbox.results(taken.exam, taken.version), time.perf_counter()
            try:
                files = [path for name in self.settings.send for path in sorted(folder.glob(FILES[name]))]
                send(files, destination, caller)
            except Exception as error:
                reason = str(error) if isinstance(error, RefusedError) else describe_error(error)
                self.queue.refuse(taken, destination.name, reason, time.time(), self.settings.retry_seconds)
                self.audit.tell("refused", reason=f"destination {destination.name}")
                continue
            self.queue.deliver(taken, destination.name, time.time())
            self.audit.tell(
                "delivered",
                exam=taken.exam,
                version=taken.version,
                destination=destination.name,
                seconds={"deliver": round(time.perf_counter() - began, 3)},
            )

    def _remove_old(self) -> None:
        for code in self.inbox.remove_old(self.settings.keep_days):
            self.audit.tell("removed", exam=code)
