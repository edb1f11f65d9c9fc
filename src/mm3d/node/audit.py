"""What a node did: lines of JSON for auditors, lines of text for its terminal, and counts for Prometheus.

Nothing here names a patient: exams go by their code, and no text of an image, of a sender or of an exception is quoted.
"""

import json
import logging
import threading
from collections import Counter
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from mm3d.shared.console import Console, say

LINES = ("received", "predicted", "delivered", "failed", "ignored", "removed")  # what auditors read
BYTES, FILES = 10_000_000, 20  # of a file of lines, and how many are kept


class Audit:
    """Where everything is told. Threads may share it."""

    def __init__(self, path: Path, console: Console) -> None:
        self.console, self.lock = console, threading.Lock()
        self.counts: Counter[tuple[str, str]] = Counter()  # of events, by their kind and a label
        self.seconds: Counter[str] = Counter()  # by part of the work
        self.handler = RotatingFileHandler(path, maxBytes=BYTES, backupCount=FILES, encoding="utf-8")

    def tell(self, event: str, **details: Any) -> None:
        """An event. Details are plain values that name nobody."""
        label = str(details.get("kept") or details.get("reason") if event in ("object", "refused") else "")
        with self.lock:
            first = not self.counts[event, label]
            self.counts[event, label] += 1
            for part, seconds in details.get("seconds", {}).items():
                self.seconds[part] += seconds
        if event in LINES:
            line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **details}
            self.handler.handle(logging.makeLogRecord({"msg": json.dumps(line)}))
            self.handler.flush()
            self.print(event, details)
        elif event == "refused" and first:  # a sender that tries for ever fills no terminal
            say(self.console, f"refused: {label} (told once; the status counts them)")

    def print(self, event: str, details: dict[str, Any]) -> None:
        shown = {name: value for name, value in details.items() if name not in ("exam", "seconds")}
        text = ", ".join(f"{name} {value}" for name, value in shown.items())
        say(self.console, f"exam {details.get('exam')}: {event}{': ' if text else ''}{text}")

    def close(self) -> None:
        self.handler.close()
