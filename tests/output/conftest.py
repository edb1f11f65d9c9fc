"""A report that is open in a browser, for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from support.opened import Opened, open_report
from support.results import exam_result


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    report = open_report(browser, tmp_path, exam_result())
    yield report
    report.close()
