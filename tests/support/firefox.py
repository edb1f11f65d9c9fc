"""Debian's Firefox without a window, driven by WebDriver BiDi: Playwright drives only a Firefox of its own."""

import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.reports import installed
from websockets.sync.client import ClientConnection, connect

SECONDS = 60.0  # for the browser to start, and for each answer
KEYS = {"ArrowDown": "\ue015", "ArrowRight": "\ue014", "Escape": "\ue00c"}


class Firefox:
    """One page in a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.numbers = itertools.count()
        self.complaints: list[str] = []
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["log.entryAdded"])
        self.context = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method: str, **params: Any) -> Any:
        """The result of a command. What the page logs meanwhile is kept."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.recv(SECONDS))
            if answer.get("method") == "log.entryAdded":
                self.complaints.append(str(answer["params"]["text"]))
            elif answer.get("id") == number:
                assert answer["type"] == "success", answer
                return answer["result"]

    def open(self, path: Path, width: int, height: int) -> None:
        viewport = {"width": width, "height": height}
        self.send("browsingContext.setViewport", context=self.context, viewport=viewport)
        self.send("browsingContext.navigate", context=self.context, url=path.as_uri(), wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, through JSON. A promise is waited for."""
        text = f"(async () => JSON.stringify(await ({expression})))()"
        target = {"context": self.context}
        answer = self.send("script.evaluate", expression=text, target=target, awaitPromise=True)
        assert answer["type"] == "success", answer
        return json.loads(answer["result"].get("value", "null"))

    def press(self, *keys: str) -> None:
        values = [KEYS.get(key, key) for key in keys]
        actions = [{"type": kind, "value": value} for value in values for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keys", "actions": actions}
        self.send("input.performActions", context=self.context, actions=[source])

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        move = {"type": "pointerMove", "origin": "viewport"}
        actions = [
            move | {"x": round(start[0]), "y": round(start[1])},
            {"type": "pointerDown", "button": 0},
            move | {"x": round(end[0]), "y": round(end[1]), "duration": 100},
            {"type": "pause", "duration": 100},
            move | {"x": round(end[0]), "y": round(end[1])},
            {"type": "pointerUp", "button": 0},
        ]
        source = {"type": "pointer", "id": "mouse", "actions": actions}
        self.send("input.performActions", context=self.context, actions=[source])


@contextmanager
def start_firefox(profile: Path) -> Iterator[Firefox]:
    profile.mkdir()
    command = [installed("firefox-esr"), "--headless", "--no-remote", "--profile", str(profile)]
    command += ["--remote-debugging-port", "0", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with connect(f"{_wait_for_address(profile)}/session", open_timeout=SECONDS, max_size=None) as socket:
                yield Firefox(socket)
        finally:
            process.kill()


def _wait_for_address(profile: Path) -> str:
    """Where the browser listens, which it writes into its profile."""
    for _ in range(round(SECONDS / 0.2)):
        with suppress(OSError, ValueError):
            said = json.loads((profile / "WebDriverBiDiServer.json").read_text())
            return f"ws://{said['ws_host']}:{said['ws_port']}"
        time.sleep(0.2)
    raise TimeoutError("Firefox did not start.")
