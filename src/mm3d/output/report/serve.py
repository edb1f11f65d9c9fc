"""`mm3d view`: show the reports of a folder in a browser on this computer, and only to those who have the address.

The server listens on the loopback address only, and every path begins with a random token. Another user of the
computer, or a web page that tries all ports, finds nothing. The host name of each request is checked, so that no
foreign name can be made to lead here.
"""

import html
import io
import mimetypes
import secrets
import shutil
import sys
import threading
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit

from mm3d.output.record import RECORD, read_record
from mm3d.shared.errors import InputError

REPORT = "report.html"
LOOPBACK = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
LIST = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Reports · mm3d</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="dark light">
<link rel="icon" href="data:,"><h1>Reports</h1><ul>{items}</ul>{failed}</html>
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


class Server(ThreadingHTTPServer):
    """A server for the files of a folder, under an address that cannot be guessed."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder.resolve()
        self.reports = find_reports(folder)
        record = read_record(folder) or {}
        self.failed = [record["exam"]] if {"exam", "failure"} <= set(record) else sorted(record.get("failures", {}))
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, port), _Request)
        except (OSError, OverflowError) as error:
            raise InputError(f"Port {port} cannot be used ({error}); leave --port out, or choose another.") from error

    @property
    def has_list(self) -> bool:
        """Whether there is more to show than one report."""
        return len(self.reports) > 1 or bool(self.failed)

    @property
    def address(self) -> str:
        """The address of the report, or of the list if there are several reports or failures."""
        only = "" if self.has_list else quote(self.reports[0].as_posix())
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/{only}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closes the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    server: Server
    server_version = "mm3d"
    sys_version = ""

    def do_GET(self) -> None:
        path = self._path()
        if path == "" and self.server.has_list:
            content = _list(self.server).encode()
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", len(content), io.BytesIO(content))
        elif path is not None and (found := _find_file(self.server.folder, path)):
            with found.open("rb") as file:
                self._answer(HTTPStatus.OK, _content_type(found), found.stat().st_size, file)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", 0, io.BytesIO())

    def _path(self) -> str | None:
        """The path after the token; None if the token is wrong or the host has a foreign name."""
        port = self.server.server_port
        token, _, path = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        local = self.headers.get("Host") in (f"{LOOPBACK}:{port}", f"localhost:{port}")
        return path if known and local else None

    def _answer(self, status: HTTPStatus, kind: str, size: int, content: BinaryIO) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(size)} | HEADERS).items():
            self.send_header(name, value)
        self.end_headers()
        shutil.copyfileobj(content, self.wfile)

    def log_message(self, *_: object) -> None:
        """Log nothing: addresses contain the token and names of files."""


def _find_file(folder: Path, path: str) -> Path | None:
    """A file of the folder. Hidden files, and links that lead out of the folder, do not count."""
    parts = path.split("/")
    if "\0" in path or any(part.startswith(".") for part in parts):
        return None
    found = folder.joinpath(*parts).resolve()
    return found if found.is_relative_to(folder) and found.is_file() else None


def _content_type(path: Path) -> str:
    if path.suffix == ".html":
        return "text/html; charset=utf-8"
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _list(server: Server) -> str:
    items = (
        f'<li><a href="{quote(path.as_posix())}">{html.escape(path.parent.as_posix())}</a>'
        f"{_describe_exam(read_record((server.folder / path).parent) or {})}</li>"
        for path in server.reports
    )
    failed = f"<p>Could not be predicted, {RECORD} says why: {html.escape(', '.join(server.failed))}.</p>"
    return LIST.format(items="".join(items), failed=failed if server.failed else "")


def _describe_exam(record: dict[str, Any]) -> str:
    """What is beside the link to a report; nothing if it has no record, because it was written from Python."""
    try:
        score, marked, problems = float(record["score"]), int(record["marked"]), len(record.get("problems", ()))
    except (ValueError, KeyError, TypeError):
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
        try:
            if browser:
                webbrowser.open(server.address)
            thread.join()
        except KeyboardInterrupt:
            server.shutdown()
    return 0
