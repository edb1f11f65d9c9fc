"""`mm3d view`: shows the reports of a folder in a browser, to this computer and to who has the address, nobody else.

It listens on the loopback address only, and every path begins with a random token: another user of the computer or a
web page that tries ports finds nothing. The host's name is checked, so that no foreign name can be led here.
"""

import html
import io
import json
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

from mm3d.shared.errors import InputError

REPORT = "report.html"
RECORD = "run.json"  # as `mm3d predict` leaves it beside a report
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


def reports(folder: Path) -> list[Path]:
    """The reports of a folder, relative to it: its own, or those of the exams in it."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the one that 'mm3d predict' wrote.")
    found = [folder / REPORT] if (folder / REPORT).is_file() else sorted(folder.glob(f"*/**/{REPORT}"))
    found = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not found:
        raise InputError(f"{folder} has no {REPORT}; give the folder that 'mm3d predict' wrote.")
    return [path.relative_to(folder) for path in found]


class Server(ThreadingHTTPServer):
    """Serves the files of a folder under an address that cannot be guessed."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder.resolve()
        self.shown = reports(folder)
        self.failed = sorted(_told(folder / RECORD).get("failures", {}))
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, port), _Request)
        except (OSError, OverflowError) as error:
            raise InputError(f"Port {port} cannot be used ({error}); leave --port out, or choose another.") from error

    @property
    def lists(self) -> bool:
        """Whether there is more to tell than one report."""
        return len(self.shown) > 1 or bool(self.failed)

    @property
    def address(self) -> str:
        """Of the report, or of the list if there are several, or some are missing."""
        only = "" if self.lists else quote(self.shown[0].as_posix())
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/{only}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no news."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    server: Server
    server_version = "mm3d"
    sys_version = ""

    def do_GET(self) -> None:
        asked = self._asked()
        if asked == "" and self.server.lists:
            content = _list(self.server).encode()
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", len(content), io.BytesIO(content))
        elif asked is not None and (path := _inside(self.server.folder, asked)):
            with path.open("rb") as file:
                self._answer(HTTPStatus.OK, _type(path), path.stat().st_size, file)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", 0, io.BytesIO())

    def _asked(self) -> str | None:
        """The path after the token; None for who does not know the token, or comes under a foreign name."""
        port = self.server.server_port
        token, _, asked = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        at_home = self.headers.get("Host") in (f"{LOOPBACK}:{port}", f"localhost:{port}")
        return asked if known and at_home else None

    def _answer(self, status: HTTPStatus, kind: str, size: int, content: BinaryIO) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(size)} | HEADERS).items():
            self.send_header(name, value)
        self.end_headers()
        shutil.copyfileobj(content, self.wfile)

    def log_message(self, *_: object) -> None:
        """Addresses hold the token, and names of files: they are not written anywhere."""


def _inside(folder: Path, asked: str) -> Path | None:
    """The file of the folder that is asked for. Links that lead out of the folder and hidden files are not in it."""
    parts = asked.split("/")
    if "\0" in asked or any(part.startswith(".") for part in parts):
        return None
    path = folder.joinpath(*parts).resolve()
    return path if path.is_relative_to(folder) and path.is_file() else None


def _type(path: Path) -> str:
    if path.suffix == ".html":
        return "text/html; charset=utf-8"
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _list(server: Server) -> str:
    items = (
        f'<li><a href="{quote(path.as_posix())}">{html.escape(path.parent.as_posix())}</a>'
        f"{_scored(_told((server.folder / path).with_name(RECORD)))}</li>"
        for path in server.shown
    )
    failed = f"<p>Could not be predicted, {RECORD} says why: {html.escape(', '.join(server.failed))}.</p>"
    return LIST.format(items="".join(items), failed=failed if server.failed else "")


def _told(record: Path) -> dict[str, Any]:
    """A record; nothing where there is none: reports are also written from Python."""
    try:
        told = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _scored(told: dict[str, Any]) -> str:
    """What a record says of its exam, if it does."""
    try:
        score, marked, unread = float(told["score"]), int(told["marked"]), len(told.get("problems", ()))
    except (ValueError, KeyError, TypeError):
        return ""
    problems = f", {_counted(unread, 'problem')}" if unread else ""
    return f": score {score:.2f}, {_counted(marked, 'mark')}{problems}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


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
