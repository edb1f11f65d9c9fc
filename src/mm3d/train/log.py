"""What a training leaves to look at: log.jsonl, curves.png, TensorBoard's files, and a bar while it runs."""

import json
import math
import resource
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

LOG, CURVES = "log.jsonl", "curves.png"


def peak_memory() -> float:
    """MB that this process had at most so far; of the GPU, if there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 2**10


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; a line that a killed run did not finish is left out."""
    path = folder / LOG
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


class Log:
    """The log of one stage. Without a folder it says nothing: only the first rank writes."""

    def __init__(self, folder: Path | None, step: int, tensorboard: bool) -> None:
        """Steps after `step` will be done again, so their lines go."""
        self.folder = folder
        self.board: Any = None
        if folder is None:
            return
        kept = [line for line in read_log(folder) if line["step"] <= step]
        with replacing(folder / LOG) as partial:
            partial.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise InputError("loop.tensorboard needs TensorBoard; install it: pip install tensorboard.") from error
            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, line: dict[str, Any]) -> None:
        """One line; `step` and nested tables of numbers."""
        if self.folder is None:
            return
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(_plain(line), allow_nan=False)}\n")
        if self.board is not None:
            for name, value in _flat(line).items():
                self.board.add_scalar(name, value, line["step"])
            self.board.flush()

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def _plain(value: Any) -> Any:
    """For JSON, which has no NaN: null."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    result: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            result |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "step":
            result[prefix + name] = value
    return result


def draw_curves(folder: Path) -> None:
    """curves.png: the loss terms over the steps, and the validations' figures."""
    from matplotlib.figure import Figure  # a second to import

    lines = read_log(folder)
    trained = [line for line in lines if "loss" in line]
    validated = [line for line in lines if "validation" in line]
    figure = Figure(figsize=(11, 4), layout="constrained")
    losses, figures = figure.subplots(1, 2)
    if trained:
        for name in trained[0]["loss"]:
            steps = [line["step"] for line in trained]
            losses.plot(steps, [line["loss"].get(name) for line in trained], label=name, lw=2 if name == "total" else 1)
        losses.set_yscale("log")
        losses.legend(fontsize="small")
    losses.set(xlabel="step", ylabel="loss", title="training")
    if validated:
        for name in validated[0]["validation"]:
            values = [line["validation"].get(name) for line in validated]
            if any(value is not None for value in values):
                figures.plot([line["step"] for line in validated], values, marker=".", label=name)
        figures.legend(fontsize="small")
    figures.set(xlabel="step", ylim=(0, 1), title="validation")
    with replacing(folder / CURVES) as partial:
        figure.savefig(partial, format="png", dpi=120)


class Bar:
    """Live, on two lines: stage, steps and time left; epoch, loss terms and the share of waiting for data. Use it with
    `with`."""

    def __init__(self, console: Console, stage: str, steps: int, done: int, shown: bool) -> None:
        columns = (
            TextColumn(stage),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self.progress = Progress(*columns, console=console)
        self.task = self.progress.add_task(stage, total=steps, completed=done)
        self.text = Text(overflow="ellipsis", no_wrap=True)
        self.live = Live(Group(self.progress, self.text), console=console) if shown else None

    def __enter__(self) -> "Bar":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def update(self, step: int, epoch: int, loss: dict[str, float], wait: float) -> None:
        terms = " ".join(f"{name} {value:.3g}" for name, value in loss.items())
        self.text.plain = f"epoch {epoch}, data wait {wait:.0%}, {terms}"
        self.progress.update(self.task, completed=step)
