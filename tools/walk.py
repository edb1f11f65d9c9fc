"""Which files of src/mm3d somebody must read to follow an exam, or a training step, through the code.

    python tools/walk.py predict    from `mm3d predict` of the demo's exam to the report
    python tools/walk.py train      from one step of `mm3d train` to the next
    python tools/walk.py train --whole    the whole command, with setup, log and checkpoint

A file counts if one of its functions is called; imports do not count. The files are in the order of their first call.
"""

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"
PACKAGE = f"{SOURCE / 'mm3d'}{os.sep}"
IN_WORKERS = "MM3D_WALK"  # in the environment of worker processes: the file in which they note the files they pass
TRAINING = ("--model.preset=tiny", "--loop.batch=2", "--data.workers=1", "--loop.log_every=100")


class Tracer:
    """Counts the calls of functions in each file of the package, in all threads."""

    def __init__(self, notes: Path | None = None) -> None:
        self.calls = Counter[str]()
        self.notes = notes

    def __enter__(self) -> "Tracer":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(PACKAGE) or _is_import(frame):
            return
        name = path.removeprefix(PACKAGE)
        self.calls[name] += 1
        if self.notes and self.calls[name] == 1:
            with self.notes.open("a") as file:  # at once, because workers are killed at the end
                print(name, file=file)


def _is_import(frame: FrameType | None) -> bool:
    """Whether a module is being imported, of which this is a part."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def walk(*command: object) -> Counter[str]:
    """Run a command of mm3d in this process. Returns the calls in each file, with those of worker processes."""
    from mm3d.cli import main

    with tempfile.NamedTemporaryFile(mode="r") as notes, contextlib.redirect_stdout(io.StringIO()) as output:
        os.environ[IN_WORKERS] = notes.name
        with Tracer() as tracer:
            code = main([str(word) for word in command])
        del os.environ[IN_WORKERS]
        if code:
            sys.exit(output.getvalue())
        tracer.calls.update(notes.read().split())
    return tracer.calls


def walk_exam(folder: Path) -> list[str]:
    _mm3d("demo", "-o", folder / "demo")
    return list(walk("predict", folder / "demo" / "exam", "-o", folder / "results"))


def walk_step(folder: Path, whole: bool) -> list[str]:
    """The files that two steps call more often than one step does; with `whole`, all files that are called."""
    _mm3d("phantom", folder / "trial" / "train", "--breasts", 4, "--scale", "tiny", "--format", "prepared")
    configuration = folder / "walk.toml"
    configuration.write_text(f'[[data.train]]\nfolder = "{folder}/trial/train"\ninput = "volume"\n')
    one, two = (
        walk("train", configuration, "-o", folder / f"run-{steps}", f"--loop.steps={steps}", *TRAINING)
        for steps in (1, 2)
    )
    return list(one) if whole else [name for name in two if two[name] > one[name]]


def _mm3d(*arguments: object) -> None:
    command = [sys.executable, "-m", "mm3d", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(SOURCE)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=("predict", "train"))
    parser.add_argument("--whole", action="store_true", help="train: the whole command, not only a step")
    arguments = parser.parse_args()
    sys.path.insert(0, str(SOURCE))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = walk_exam(folder) if arguments.way == "predict" else walk_step(folder, arguments.whole)
    for file in files:
        print(f"{sum(1 for _ in (SOURCE / 'mm3d' / file).open(encoding='utf-8')):5}  {file}")
    print(f"{len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
if __name__ == "__mp_main__" and IN_WORKERS in os.environ:  # a worker process imports this file as its main module
    Tracer(Path(os.environ[IN_WORKERS])).__enter__()
