"""How a node is: as text, as a page on this computer, and as numbers for Prometheus. It names no patient."""

import html
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from mm3d.node.config import LOOPBACK
from mm3d.node.queue import Queue
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError

if TYPE_CHECKING:
    from mm3d.node.audit import Audit

STATES = ("waiting", "predicting", "predicted", "ignored", "failed")
SHOWN = 20  # exams, and results that a destination refuses
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>mm3d node</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'"><meta http-equiv="refresh" content="10">
<meta name="color-scheme" content="dark light"><h1>mm3d node</h1>"""
Rows = list[tuple[str, ...]]


def describe(queue: Queue) -> list[tuple[str, Rows]]:
    """Tables of text, each with a title; the first row has the names of the columns."""
    states, sent = queue.states(), queue.deliveries()
    exams = [
        (
            row["code"],
            row["state"],
            _when(row["received"]),
            _when(row["finished"]),
            "" if row["seconds"] is None else f"{row['seconds']:.1f}",
            row["reason"],
        )
        for row in queue.last_exams(SHOWN)
    ]
    refused = [
        (row["exam"], row["destination"], str(row["attempts"]), _when(row["due"]), row["reason"])
        for row in queue.refused(SHOWN)
    ]
    return [
        ("Exams", [("state", "exams"), *((state, str(states.get(state, 0))) for state in STATES)]),
        (
            "Results",
            [("destination", "state", "results"), *((*key, str(count)) for key, count in sorted(sent.items()))],
        ),
        ("Refused results, which are sent again", [("exam", "destination", "attempts", "next", "reason"), *refused]),
        ("Last exams", [("exam", "state", "last image", "finished", "seconds", "reason"), *exams]),
    ]


def print_status(path: Path, console: Console) -> int:
    """Print the status of the node whose queue this is, whether it runs or not. Returns the exit code."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; no node has run with this folder.")
    queue = Queue(path)
    for title, rows in describe(queue):
        if len(rows) > 1:
            table = Table(*rows[0], title=title, title_justify="left")
            for row in rows[1:]:
                table.add_row(*row)
            console.print(table)
    if not queue.states():
        say(console, "Nothing was received yet.")
    queue.close()
    return 0


@contextmanager
def serve_status(port: int, queue: Queue, audit: "Audit") -> Iterator[str]:
    """Serve the page and the metrics on this computer; the address of the page."""
    handler = type("Page", (_Page,), {"queue": queue, "metrics": Metrics(queue, audit)})
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), handler)
    except OSError as error:
        raise InputError(f"status_port = {port} cannot be used ({error.strerror}); choose another.") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{port}/"
    finally:
        server.shutdown()
        server.server_close()


class _Page(BaseHTTPRequestHandler):
    queue: Queue
    metrics: "Metrics"
    timeout = 10

    def do_GET(self) -> None:
        # Only names of this computer: another site's name that is made to lead here gets nothing.
        if (self.headers.get("Host") or "").rpartition(":")[0] not in (LOOPBACK, "localhost"):
            self.send_error(403)
        elif self.path == "/metrics":
            from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

            self._answer(generate_latest(self.metrics), CONTENT_TYPE_LATEST)
        elif self.path == "/":
            self._answer(_make_page(self.queue).encode(), "text/html; charset=utf-8")
        else:
            self.send_error(404)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Requests are not logged."""


def _make_page(queue: Queue) -> str:
    parts = [HEAD]
    for title, rows in describe(queue):
        lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
        parts.append(f"<h2>{html.escape(title)}</h2><table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>")
    return "".join(parts)


class Metrics:
    """The numbers of a node, as a collector of Prometheus. They are read when somebody asks."""

    def __init__(self, queue: Queue, audit: "Audit") -> None:
        self.queue, self.audit = queue, audit

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        exams = GaugeMetricFamily("mm3d_exams", "Exams by what is done with them.", labels=["state"])
        states = self.queue.states()
        for state in STATES:
            exams.add_metric([state], states.get(state, 0))
        results = GaugeMetricFamily("mm3d_results", "Results of exams.", labels=["destination", "state"])
        for key, count in self.queue.deliveries().items():
            results.add_metric(key, count)
        events = CounterMetricFamily("mm3d_events", "What happened since the start.", labels=["event", "detail"])
        seconds = CounterMetricFamily("mm3d_seconds", "Seconds by part of the work.", labels=["part"])
        with self.audit.lock:
            for labels, count in self.audit.counts.items():
                events.add_metric(labels, count)
            for part, value in self.audit.seconds.items():
                seconds.add_metric([part], value)
        return [exams, results, events, seconds]


def _when(time: float | None) -> str:
    return "" if time is None else datetime.fromtimestamp(time).isoformat(sep=" ", timespec="seconds")
