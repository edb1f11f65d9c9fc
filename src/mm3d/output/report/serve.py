"""`mm3d view`: show the reports of a folder in a browser on this computer, and only to those who have the address.

The server listens on the loopback address only, and every path begins with a random token. Another user of the
computer, or a web page that tries all ports, finds nothing. The host name of each request is checked, so that no
foreign name can be made to lead here.

A connection costs no thread, and nobody keeps others waiting: who does not send a request in time is sent away, and
when too many wait, the first of them. Files are sent by the system, so that a report is not in memory for each reader.
"""

import asyncio
import contextlib
import html
import mimetypes
import os
import secrets
import socket
import threading
import webbrowser
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

from mm3d.output.record import RECORD, read_record
from mm3d.shared.errors import InputError

REPORT = "report.html"
LOOPBACK = "127.0.0.1"
SECONDS_TO_ASK = 10.0  # for a request to be complete
SECONDS_TO_SEND = 600.0  # for an answer: a report of 25 MB through a slow tunnel
LARGEST_REQUEST = 16_384  # bytes
MOST_WAITING = 400  # connections without a complete request; there may be 1024 open files
MOST_SENDING = 64  # answers at the same time
HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "mm3d",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
LIST = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Reports · mm3d</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="dark light">
<link rel="icon" href="data:,"><main><h1>Reports</h1><ul>{items}</ul>{failed}</main></html>
"""


def find_reports(folder: Path) -> list[Path]:
    """The reports of a folder, relative to it: its own, or those of the exams in it."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the one that 'mm3d predict' wrote.")
    found = [folder / REPORT] if (folder / REPORT).is_file() else sorted(folder.glob(f"*/**/{REPORT}"))
    found = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not found:
        raise InputError(f"{folder} has no {REPORT}; give the folder that 'mm3d predict' wrote.")
    return [path.relative_to(folder) for path in found]


class Server:
    """A server for the files of a folder, under an address that cannot be guessed. Use it with `with`."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder.resolve()
        self.reports = find_reports(folder)
        self.failed = _failed_exams(read_record(folder) or {})
        self.token = secrets.token_urlsafe(24)
        try:
            self.socket = socket.create_server((LOOPBACK, port), backlog=MOST_WAITING)
        except (OSError, OverflowError) as error:
            raise InputError(f"Port {port} cannot be used ({error}); leave --port out, or choose another.") from error
        self.port: int = self.socket.getsockname()[1]
        self.waiting: dict[asyncio.StreamWriter, None] = {}  # connections without a complete request, the oldest first
        self.sending = asyncio.Semaphore(MOST_SENDING)
        self.loop = asyncio.new_event_loop()
        self.ended = asyncio.Event()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.socket.close()

    @property
    def has_list(self) -> bool:
        """Whether there is more to show than one report."""
        return len(self.reports) > 1 or bool(self.failed)

    @property
    def address(self) -> str:
        """The address of the report, or of the list if there are several reports or failures."""
        only = "" if self.has_list else _link(self.reports[0])
        return f"http://{LOOPBACK}:{self.port}/{self.token}/{only}"

    def serve_forever(self) -> None:
        """Answer requests until `shutdown` is called."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        self.loop.set_exception_handler(lambda *_: None)  # a connection that broke
        await asyncio.start_server(self._serve, sock=self.socket, limit=LARGEST_REQUEST, backlog=MOST_WAITING)
        await self.ended.wait()

    def shutdown(self) -> None:
        """End `serve_forever`, which runs in another thread."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.ended.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a request and its answer."""
        self.waiting[writer] = None
        if len(self.waiting) > MOST_WAITING:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            oldest.transport.abort()
        try:
            try:
                async with asyncio.timeout(SECONDS_TO_ASK):
                    request = await reader.readuntil(b"\r\n\r\n")
            finally:
                self.waiting.pop(writer, None)
            async with self.sending, asyncio.timeout(SECONDS_TO_SEND):
                await self._answer(request, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, RuntimeError):
            writer.transport.abort()  # there is nobody to complain to
        finally:
            writer.close()

    async def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        path = self._requested_path(request)
        if path == "" and self.has_list:
            content = (await asyncio.to_thread(_list, self)).encode(errors="replace")
            _write_head(writer, HTTPStatus.OK, "text/html; charset=utf-8", len(content))
            writer.write(content)
        elif path is not None and (found := await asyncio.to_thread(_find_file, self.folder, path)):
            try:
                file = found.open("rb")
            except OSError:
                _write_head(writer, HTTPStatus.NOT_FOUND, "text/plain", 0)
                return
            with file:
                _write_head(writer, HTTPStatus.OK, _content_type(found), os.fstat(file.fileno()).st_size)
                await writer.drain()
                await self.loop.sendfile(writer.transport, file)
        else:
            _write_head(writer, HTTPStatus.NOT_FOUND, "text/plain", 0)
        await writer.drain()

    def _requested_path(self, request: bytes) -> str | None:
        """The path after the token; None if the token is wrong, the host has a foreign name, or it is no request."""
        first, *lines = request.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        target, _, version = rest.rpartition(" ")
        hosts = [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.lower() == "host"]
        if method != "GET" or not version.startswith("HTTP/1.") or len(hosts) != 1:
            return None
        try:
            token, _, path = os.fsdecode(unquote_to_bytes(urlsplit(target).path)).removeprefix("/").partition("/")
        except ValueError:  # no address at all
            return None
        known = secrets.compare_digest(os.fsencode(token), self.token.encode())
        local = hosts[0] in (f"{LOOPBACK}:{self.port}", f"localhost:{self.port}")
        return path if known and local else None


def _write_head(writer: asyncio.StreamWriter, status: HTTPStatus, kind: str, size: int) -> None:
    fields = {"Content-Type": kind, "Content-Length": str(size)} | HEADERS
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())


def _find_file(folder: Path, path: str) -> Path | None:
    """A file of the folder. Hidden files, and links that lead out of the folder, do not count."""
    parts = path.split("/")
    if "\0" in path or any(part.startswith(".") for part in parts):
        return None
    try:
        found = folder.joinpath(*parts).resolve()
        return found if found.is_relative_to(folder) and found.is_file() else None
    except (OSError, RuntimeError, ValueError):  # a name that is too long, or a link that leads to itself
        return None


def _content_type(path: Path) -> str:
    if path.suffix == ".html":
        return "text/html; charset=utf-8"
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _link(path: Path) -> str:
    return quote(os.fsencode(path.as_posix()))


def _list(server: Server) -> str:
    items = (
        f'<li><a href="{_link(path)}">{html.escape(path.parent.as_posix())}</a>'
        f"{_describe_exam(read_record((server.folder / path).parent) or {})}</li>"
        for path in server.reports
    )
    failed = f"<p>Could not be predicted, {RECORD} says why: {html.escape(', '.join(server.failed))}.</p>"
    return LIST.format(items="".join(items), failed=failed if server.failed else "")


def _failed_exams(record: dict[str, Any]) -> list[str]:
    """The exams that a record names as failed: the only one of its folder, or some of many."""
    if {"exam", "failure"} <= set(record):
        return [str(record["exam"])]
    failures = record.get("failures")
    return sorted(failures) if isinstance(failures, dict) else []


def _describe_exam(record: dict[str, Any]) -> str:
    """What is beside the link to a report; nothing if it has no record, because it was written from Python."""
    try:
        score, marked, problems = float(record["score"]), int(record["marked"]), len(record.get("problems", ()))
    except (ValueError, KeyError, TypeError, OverflowError):
        return ""
    text = f": score {score:.2f}, {marked} mark{'s' * (marked != 1)}"
    text = f"{text}, {problems} problem{'s' * (problems != 1)}" if problems else text
    return f"{text}; of an earlier prediction, the last one failed" if "failure" in record else text


def view(folder: Path, port: int, browser: bool) -> int:
    """Serve until Ctrl-C. `port` 0: one that is free."""
    with Server(folder, port) as server:
        print(f"{server.address}\nCtrl-C ends it.", flush=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()  # before the browser, which may keep the terminal until it is closed
        with contextlib.suppress(KeyboardInterrupt):
            if browser:
                webbrowser.open(server.address)
            thread.join()
        server.shutdown()
        thread.join(timeout=5)
    return 0
