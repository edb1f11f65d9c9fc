"""A report in a real browser."""

import re
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect
from support.results import grey

from mm3d.output.report.page import write_report
from mm3d.output.result import ExamResult


class Opened:
    """A report in the browser. Whatever a test does, the page asks for nothing but itself and complains of nothing."""

    def __init__(self, browser: Browser, path: Path, **options: object) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}} | options)  # type: ignore[arg-type]
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.as_uri()
        self.page.goto(self.address)
        for pane in self.page.locator(".pane:not(.empty)").all():
            expect(pane).to_have_attribute("data-slice", re.compile("[0-9]"))

    def pane(self, name: str) -> Locator:
        return self.page.locator(f"section[aria-label='{name}']")

    def marks(self, name: str) -> Locator:
        return self.pane(name).locator(".mark:not([style*='display: none'])")

    def is_on(self, name: str, z: int) -> None:
        """The view shows slice z: the label says so, and the pixels, each slice having its own grey."""
        expect(self.pane(name)).to_have_attribute("data-slice", str(z))
        read = """canvas => canvas.getContext("2d").getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data[0]"""
        x = "canvas.width - 20" if "Right" in name else "20"
        assert abs(self.pane(name).locator("canvas.image").evaluate(read.replace("canvas.width / 2", x)) - grey(z)) <= 2

    def drawn(self) -> None:
        """Wait until what was asked for is on the screen."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []
        assert [request for request in self.requests if not request.startswith("data:")] == [self.address]


def open_report(browser: Browser, folder: Path, exam: ExamResult, **options: object) -> Opened:
    write_report(exam, folder / "report.html")
    return Opened(browser, folder / "report.html", **options)
