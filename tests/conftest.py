"""What several test files need: the folder of real data, a cohort that can be counted, and a browser."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.slow import SLOW

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# What a shell starts in the background ignores Ctrl-C, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW & {item.path.stem, item.name.partition("[")[0]}:
            item.add_marker("slow")


@pytest.fixture
def real_data() -> Path:
    """`MM3D_REAL_DATA`. Without it these tests are skipped; in CI that would hide a hole, so there they fail."""
    folder = os.environ.get("MM3D_REAL_DATA")
    if folder:
        return Path(folder)
    if os.environ.get("CI"):
        pytest.fail("MM3D_REAL_DATA is not set, and CI must have it")
    pytest.skip("set MM3D_REAL_DATA to the folder of real data to run this")


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    """The folder of the cohort in counted_cohort.py."""
    from support.counted_cohort import write_cohort

    return write_cohort(tmp_path / "cohort")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium as the system has it."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("chromium is missing, and the report cannot be opened: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium)
        yield launched
        launched.close()
