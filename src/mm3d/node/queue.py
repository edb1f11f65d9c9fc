"""What is to be done: a SQLite file with a row for each exam, and one for each destination of its results.

Every change is on disk before a function returns. Images and results are files beside it; a row never says more than
they do. No row names a patient: exams go by their code.
"""

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TABLES = """
CREATE TABLE IF NOT EXISTS exams (
    code TEXT PRIMARY KEY,
    state TEXT NOT NULL,                  -- waiting, predicting, predicted, ignored, failed
    reason TEXT NOT NULL DEFAULT '',      -- why it is ignored or failed, or is tried again
    version INTEGER NOT NULL,             -- counts the changes of its images
    taken INTEGER NOT NULL DEFAULT 0,     -- the version that was predicted last, or is now
    due REAL NOT NULL,                    -- when it is predicted, if it waits
    attempts INTEGER NOT NULL DEFAULT 0,  -- to predict this version, without success
    received REAL NOT NULL,               -- the last image
    finished REAL,
    seconds REAL                          -- the last prediction took
);
CREATE TABLE IF NOT EXISTS deliveries (
    exam TEXT NOT NULL,
    version INTEGER NOT NULL,
    destination TEXT NOT NULL,
    state TEXT NOT NULL,                  -- waiting, delivered, replaced (by a later version, and not sent)
    reason TEXT NOT NULL DEFAULT '',      -- why it was refused
    due REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    finished REAL,
    PRIMARY KEY (exam, version, destination)
);
"""
LONGEST_WAIT = 3600.0  # seconds between two attempts
ENDINGS = 10  # of the node while it predicts an exam; then the exam is taken for their cause


@dataclass(frozen=True)
class Taken:
    """An exam that is being predicted, or results that are being sent."""

    exam: str
    version: int
    attempts: int


class Queue:
    """The queue of a node. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        self.connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self.connection.row_factory = sqlite3.Row
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")  # what is answered with success survives a power cut
        self.connection.executescript(TABLES)

    def close(self) -> None:
        self.connection.close()

    def _change(self, *statements: tuple[str, Sequence[object]]) -> None:
        with self.lock:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                for sql, values in statements:
                    self.connection.execute(sql, values)
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def _ask(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self.lock:
            return self.connection.execute(sql, values).fetchall()

    # ---- exams ------------------------------------------------------------------------------------------------------

    def receive(self, code: str, now: float, quiet: float) -> None:
        """An image of an exam arrives: it is predicted when no other one has come for `quiet` seconds."""
        self._change(
            (
                "INSERT INTO exams (code, state, version, due, received) VALUES (?, 'waiting', 1, ?, ?) "
                "ON CONFLICT (code) DO UPDATE SET version = version + 1, due = excluded.due, attempts = 0, "
                "received = excluded.received, state = iif(state = 'predicting', state, 'waiting')",
                (code, now + quiet, now),
            )
        )

    def take(self, now: float) -> Taken | None:
        """The exam to predict now. Those that failed before come last."""
        with self.lock:
            rows = self._ask(
                "SELECT code, version, attempts FROM exams WHERE state = 'waiting' AND due <= ? "
                "ORDER BY attempts, due LIMIT 1",
                now,
            )
            if not rows:
                return None
            code, version, attempts = rows[0]
            self._change(("UPDATE exams SET state = 'predicting', taken = version WHERE code = ?", (code,)))
            return Taken(code, version, attempts)

    def finish(self, taken: Taken, seconds: float, destinations: Iterable[str], now: float) -> None:
        """Results are on disk: send them. Those of earlier versions that nobody has yet are not sent any more."""
        sent = (
            "INSERT OR IGNORE INTO deliveries (exam, version, destination, state, due) VALUES (?, ?, ?, 'waiting', ?)"
        )
        self._change(
            (
                "UPDATE exams SET state = iif(version = taken, 'predicted', 'waiting'), reason = '', attempts = 0, "
                "finished = ?, seconds = ? WHERE code = ?",
                (now, seconds, taken.exam),
            ),
            (
                "UPDATE deliveries SET state = 'replaced', finished = ? "
                "WHERE exam = ? AND version < ? AND state = 'waiting'",
                (now, taken.exam, taken.version),
            ),
            *((sent, (taken.exam, taken.version, name, now)) for name in destinations),
        )

    def fail(self, taken: Taken, state: str, reason: str, now: float) -> None:
        """An exam cannot be predicted. Later images make it wait again."""
        self._change(
            (
                "UPDATE exams SET state = iif(version = taken, ?, 'waiting'), reason = ?, finished = ? WHERE code = ?",
                (state, reason, now, taken.exam),
            )
        )

    def postpone(self, taken: Taken, reason: str, now: float, seconds: float) -> None:
        """It is not the exam's fault: try again later."""
        self._change(
            (
                "UPDATE exams SET state = 'waiting', reason = ?, attempts = attempts + 1, due = ? WHERE code = ?",
                (reason, now + _wait(seconds, taken.attempts), taken.exam),
            )
        )

    def recover(self) -> None:
        """After a start: what was being predicted waits again, unless the node always ends in it."""
        reason = f"The node ended {ENDINGS} times while it predicted this exam; look at its images, and send it again."
        self._change(
            ("UPDATE exams SET attempts = attempts + 1 WHERE state = 'predicting'", ()),
            (
                "UPDATE exams SET state = iif(attempts < ?, 'waiting', 'failed'), "
                "reason = iif(attempts < ?, reason, ?) WHERE state = 'predicting'",
                (ENDINGS, ENDINGS, reason),
            ),
        )

    # ---- results ----------------------------------------------------------------------------------------------------

    def take_delivery(self, destination: str, now: float) -> Taken | None:
        """The results to send to a destination now."""
        rows = self._ask(
            "SELECT exam, version, attempts FROM deliveries WHERE destination = ? AND state = 'waiting' AND due <= ? "
            "ORDER BY due, exam, version LIMIT 1",
            destination,
            now,
        )
        return Taken(*rows[0]) if rows else None

    def deliver(self, taken: Taken, destination: str, now: float) -> None:
        self._change(
            (
                "UPDATE deliveries SET state = 'delivered', reason = '', finished = ? "
                "WHERE exam = ? AND version = ? AND destination = ?",
                (now, taken.exam, taken.version, destination),
            )
        )

    def refuse(self, taken: Taken, destination: str, reason: str, now: float, seconds: float) -> None:
        """A destination did not take results: they are sent again later, for ever."""
        self._change(
            (
                "UPDATE deliveries SET reason = ?, attempts = attempts + 1, due = ? "
                "WHERE exam = ? AND version = ? AND destination = ?",
                (reason, now + _wait(seconds, taken.attempts), taken.exam, taken.version, destination),
            )
        )

    def last_sent(self, exam: str) -> int | None:
        """The last version of an exam's results that a destination has, or may have."""
        rows = self._ask(
            "SELECT max(version) FROM deliveries WHERE exam = ? AND (state = 'delivered' OR attempts > 0)", exam
        )
        return rows[0][0]

    # ---- what there is ----------------------------------------------------------------------------------------------

    def states(self) -> dict[str, int]:
        """How many exams there are in each state."""
        return {row[0]: row[1] for row in self._ask("SELECT state, count(*) FROM exams GROUP BY state")}

    def deliveries(self) -> dict[tuple[str, str], int]:
        """How many results there are, by destination and state."""
        rows = self._ask("SELECT destination, state, count(*) FROM deliveries GROUP BY destination, state")
        return {(destination, state): count for destination, state, count in rows}

    def last_exams(self, count: int) -> list[sqlite3.Row]:
        return self._ask("SELECT * FROM exams ORDER BY received DESC LIMIT ?", count)

    def refused(self, count: int) -> list[sqlite3.Row]:
        """Results that a destination refused and that wait, the longest first."""
        return self._ask(
            "SELECT * FROM deliveries WHERE state = 'waiting' AND attempts > 0 ORDER BY attempts DESC LIMIT ?", count
        )

    def received(self, code: str) -> float | None:
        """When the last image of an exam came; None: there is no such exam."""
        rows = self._ask("SELECT received FROM exams WHERE code = ?", code)
        return rows[0][0] if rows else None

    def old(self, before: float) -> list[str]:
        """Exams that are done since before that time, and whose results nobody waits for."""
        rows = self._ask(
            "SELECT code FROM exams WHERE state IN ('predicted', 'ignored', 'failed') AND received < ? "
            "AND finished < ? AND NOT EXISTS (SELECT 1 FROM deliveries WHERE exam = code AND "
            "(state = 'waiting' OR finished >= ?))",
            before,
            before,
            before,
        )
        return [row[0] for row in rows]


def _wait(seconds: float, attempts: int) -> float:
    """Twice as long after each attempt."""
    return min(seconds * 2 ** min(attempts, 30), LONGEST_WAIT)
