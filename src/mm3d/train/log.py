"""What a training shows: log.jsonl, curves.png, TensorBoard's files, and a progress bar."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric.loggers.logger import Logger
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from mm3d.shared.config import parse_json
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing
from mm3d.train.config import LoopConfig
from mm3d.train.state import State

LOG, CURVES = "log.jsonl", "curves.png"


def peak_memory() -> float:
    """The most memory that this process has used so far, in MB: of the GPU, if there is one. 0 where nobody counts."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    units = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux kB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log. A line that a killed run did not finish is left out."""
    path = folder / LOG
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            line = parse_json(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


class Log:
    """What one stage shows while it runs: log.jsonl, TensorBoard's files, and a live display of two lines with the bar
    and the latest numbers; in a file or a pipe, lines instead. Use it with `with`. Only the first rank writes files."""

    def __init__(self, state: State, config: LoopConfig, first: bool, console: Console) -> None:
        """Lines of steps after that of the state are removed, because those steps will be done again."""
        self.path = state.folder / LOG if first else None
        self.board: Any = None
        self.loggers: list[Logger] = []
        self.console, self.steps = console, config.steps
        self.stage, end = state.learner.stage, TimeRemainingColumn(elapsed_when_finished=True)
        self.progress = Progress(
            TextColumn(self.stage), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), end, console=console
        )
        self.task = self.progress.add_task(self.stage, total=config.steps, completed=state.step)
        self.text = Text(overflow="ellipsis", no_wrap=True)
        self.live = Live(Group(self.progress, self.text), console=console)
        if self.path is None:
            return
        kept = [line for line in read_log(state.folder) if line["step"] <= state.step]
        with replacing(self.path) as partial:
            partial.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")
        if config.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise InputError("loop.tensorboard needs TensorBoard; install it: pip install tensorboard.") from error
            self.board = SummaryWriter(str(state.folder / "tensorboard"), purge_step=state.step + 1)
        self.loggers = [_make_logger(name, state.folder) for name in config.loggers]

    def __enter__(self) -> "Log":
        if self.console.is_terminal:  # elsewhere `write` prints lines
            self.live.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.live.stop()
        if self.board is not None:
            self.board.close()
        for logger in self.loggers:
            logger.finalize("success" if error is None else "failed")
            finish: Callable[[], None] | None = getattr(getattr(logger, "experiment", None), "finish", None)
            if (
                finish is not None
            ):  # of Weights & Biases, which else writes when the process ends, all stages as one run
                finish()

    def write(self, line: dict[str, Any]) -> None:
        """Write one line: `step`, and numbers or tables of numbers. NaN becomes null, because JSON has no NaN."""
        if "loss" in line:
            terms = " ".join(f"{name} {value:.3g}" for name, value in line["loss"].items())
            self.text.plain = f"epoch {line['epoch']}, data wait {line['wait']:.0%}, {terms}"
            self.progress.update(self.task, completed=line["step"])
            if not self.console.is_terminal:
                say(self.console, f"{self.stage}: step {line['step']} of {self.steps}, {self.text.plain}")
        if self.path is not None:
            plain = json.loads(json.dumps(line), parse_constant=lambda _: None)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(plain)}\n")
        numbers = _flatten(line)
        if self.board is not None:
            for name, number in numbers.items():
                self.board.add_scalar(name, number, line["step"])
            self.board.flush()
        for logger in self.loggers:
            logger.log_metrics({name.replace("@", "_at_"): number for name, number in numbers.items()}, line["step"])


def _flatten(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line by their names, such as loss/total."""
    tables = ((name, value.items() if isinstance(value, dict) else [("", value)]) for name, value in line.items())
    return {f"{name}/{key}".rstrip("/"): number for name, table in tables for key, number in table}


def _make_logger(name: Literal["mlflow", "wandb"], folder: Path) -> Logger:
    """A logger of Fabric. Each start of a stage is a run of its own there."""
    missing = f"loop.loggers has {name}, which is not installed; install it: pip install 'mm3d[loggers]'."
    title = " ".join(folder.resolve().parts[-2:])
    try:
        if name == "mlflow":
            from pytorch_lightning.loggers import MLFlowLogger

            place = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder.resolve() / 'mlflow.db'}")
            return MLFlowLogger("mm3d", run_name=title, tracking_uri=place)
        from pytorch_lightning.loggers import WandbLogger

        offline = os.environ.get("WANDB_MODE") != "online"
        return WandbLogger(title, save_dir=folder, project="mm3d", offline=offline)
    except ImportError as error:
        raise InputError(missing) from error


def draw_curves(folder: Path) -> None:
    """Draw curves.png: the loss terms and the validation's figures over the steps."""
    from matplotlib.figure import Figure  # a second to import

    figure = Figure(figsize=(11, 4), layout="constrained")
    lines, axes = read_log(folder), figure.subplots(1, 2)
    for part, title, plot in zip(("loss", "validation"), ("training", "validation"), axes, strict=True):
        rows = [(line["step"], line[part]) for line in lines if part in line]
        for name in rows[0][1] if rows else ():
            values = [row.get(name) for _, row in rows]
            if any(value is not None for value in values):
                style = {"marker": "."} if part == "validation" else {"lw": 2 if name == "total" else 1}
                plot.plot([step for step, _ in rows], values, label=name, **style)
        if rows:
            plot.legend(fontsize="small")
        plot.set(xlabel="step", title=title)
    axes[0].set(ylabel="loss", yscale="log")
    axes[1].set(ylim=(0, 1))
    with replacing(folder / CURVES) as partial:
        figure.savefig(partial, format="png", dpi=120)
