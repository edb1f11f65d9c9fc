"""Half-made files: a killed run's are removed, and those of a run that is at work are not."""

import subprocess
import sys
import time
from pathlib import Path

from mm3d.shared.files import partial_path, remove_partial


def test_only_what_killed_runs_left_is_removed(tmp_path: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as working,
        subprocess.Popen([sys.executable, "-c", ""]) as ended,
    ):
        while "Z" not in Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2]:
            time.sleep(0.01)  # it has ended, and keeps its number until this test asks for its exit code
        kept = [partial_path(tmp_path / "ours"), tmp_path / f".theirs.{working.pid}.partial", tmp_path / "whole"]
        for name in (f".a.{ended.pid}.partial", ".b.999999999.partial", ".c.partial"):
            (tmp_path / name).touch()
        (tmp_path / f".folder.{ended.pid}.partial" / "inside").mkdir(parents=True)
        for path in kept:
            path.touch()
        remove_partial(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted(kept)
        working.communicate(b"\n")
