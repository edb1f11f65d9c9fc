"""Windows has neither `fcntl` nor `resource`: without them, mm3d must still import and predict."""

import os
import subprocess
import sys
from pathlib import Path

from support.exams import write_weights

import mm3d

# Python runs a sitecustomize.py at the start of every interpreter, so that worker processes are without them, too.
# psutil comes first: its Linux part needs `resource`, its Windows part does not.
BLOCK = "import psutil, sys\nsys.modules.update(dict.fromkeys(('fcntl', 'resource')))\n"
PROGRAM = """
import importlib, pkgutil, sys
from pathlib import Path
import mm3d
from mm3d.cli.demo import demo

try:
    import fcntl
except ImportError:
    pass
else:
    sys.exit("fcntl is not blocked")
if __name__ == "__main__":
    for module in pkgutil.walk_packages(mm3d.__path__, "mm3d."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    sys.exit(demo(Path("out"), seed=5, weights=Path("w.safetensors"), scale="tiny"))
"""


def test_all_modules_import_and_an_exam_is_predicted_without_unix_modules(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.safetensors", operating_point=0.0)
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    (tmp_path / "program.py").write_text(PROGRAM)
    sources = str(Path(mm3d.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), sources])}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "sr" / "cad.dcm").is_file()
