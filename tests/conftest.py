"""The folder of real data, for the tests that read it."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Path:
    """`MM3D_REAL_DATA`. Without it these tests are skipped; in CI that would hide a hole, so there they fail."""
    folder = os.environ.get("MM3D_REAL_DATA")
    if folder:
        return Path(folder)
    if os.environ.get("CI"):
        pytest.fail("MM3D_REAL_DATA is not set, and CI must have it")
    pytest.skip("set MM3D_REAL_DATA to the folder of real data to run this")
