"""What `pip install` gives: a wheel without its weights or its report page would fail at the first exam."""

import subprocess
import sys
import zipfile
from pathlib import Path

from try_wheel import find_missing

ROOT = Path(__file__).parents[2]


def test_the_wheel_works_outside_the_repository(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "try_wheel.py"), "--here", "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "works in an empty environment" in done.stdout


def test_a_file_that_is_left_out_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "mm3d-0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("mm3d/__init__.py", "")
    missing = find_missing(tmp_path / "mm3d-0-py3-none-any.whl")
    assert "mm3d/shipped/dbt.safetensors" in missing
    assert "mm3d/output/report/page/page.html" in missing
    assert "mm3d/__init__.py" not in missing
