"""The training loop, for the training proper and for the dense stage before it."""

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import nn

from mm3d.model.weights import save_tensors
from mm3d.shared.errors import InputError
from mm3d.train import checkpoint
from mm3d.train.checkpoint import Position
from mm3d.train.config import AugmentConfig, DataConfig, LoopConfig, OptimiserConfig
from mm3d.train.data import Batch, Planned, TrainingBreast, plan, stream
from mm3d.train.learners import TOTAL
from mm3d.train.log import Bar, Log, draw_curves, peak_memory
from mm3d.train.optimiser import Average, Swapped, make_optimiser, rate_at, set_rate

NORM, WAIT = "gradient_norm", "wait"  # names in the log, beside the loss terms


@dataclass(frozen=True)
class Stage:
    """One training: what learns, from what, how, and what is done with the result."""

    name: str
    learner: nn.Module
    breasts: Sequence[TrainingBreast]
    data: DataConfig
    augment: AugmentConfig
    optimiser: OptimiserConfig
    loop: LoopConfig
    every: int  # steps between validations
    patience: int
    validate: Callable[[], tuple[float, dict[str, float]]] | None  # the deciding figure (higher is better), and all
    save_weights: Callable[[Path, Position], None]  # the learner's weights as they are, as a weights file


class Averages:
    """Running means of the numbers of some steps."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.count = 0

    def add(self, values: dict[str, float]) -> None:
        self.count += 1
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def take(self) -> dict[str, float]:
        means = {name: value / max(1, self.count) for name, value in self.sums.items()}
        self.sums, self.count = {}, 0
        return means


@dataclass(frozen=True)
class Running:
    """A stage under way: all that its steps need."""

    stage: Stage
    folder: Path
    fabric: Fabric
    model: Any  # the learner, as Fabric wraps it
    wrapped: Any  # the optimiser, as Fabric wraps it
    optimiser: torch.optim.Optimizer
    average: Average | None
    batches: Iterator[tuple[Planned, Batch]]
    log: Log
    console: Console

    def save(self, position: Position) -> None:
        """A checkpoint, by the first rank."""
        if self.fabric.is_global_zero:
            checkpoint.save(self.folder, position, self.stage.learner, self.optimiser, self.average)


def fit(fabric: Fabric, stage: Stage, folder: Path, console: Console) -> Position:
    """Train from where the folder's last checkpoint is, or from the start, to the last step."""
    config, first = stage.loop, fabric.is_global_zero
    optimiser = make_optimiser(stage.learner, stage.optimiser)
    fabric.to_device(stage.learner)
    average = Average(stage.learner, stage.optimiser.ema) if stage.optimiser.ema else None
    position, notes = checkpoint.restore(folder, stage.learner, optimiser, average)
    for note in notes:
        console.print(note, soft_wrap=True, highlight=False)
    model, wrapped = fabric.setup(stage.learner, optimiser)
    planned = plan(stage.breasts, stage.data.sampling, config.batch, config.seed)
    ahead = itertools.islice(planned, position.step * config.accumulate, None)
    batches = stream(
        stage.breasts, ahead, stage.augment, config.seed, stage.data.workers, fabric.global_rank, fabric.world_size
    )
    log = Log(folder if first else None, position.step, config.tensorboard)
    running = Running(stage, folder, fabric, model, wrapped, optimiser, average, batches, log, console)
    with closing(batches), closing(log), Bar(console, stage.name, config.steps, position.step, first) as bar:
        return _steps(running, position, bar)


def _steps(running: Running, position: Position, bar: Bar) -> Position:
    """All steps that are left, with the log, the validations and the checkpoints that are due between them."""
    stage, config, fabric = running.stage, running.stage.loop, running.fabric
    means, since = Averages(), time.perf_counter()
    while position.step < config.steps and not position.stopped:
        rate = rate_at(position.step, config.steps, stage.optimiser)
        set_rate(running.optimiser, rate)
        # The generator of a step is a function of its number: nothing of it has to be saved.
        torch.manual_seed((config.seed << 32) + position.step * fabric.world_size + fabric.global_rank)
        numbers, epoch = _step(running, position)
        means.add(numbers)
        position = replace(position, step=position.step + 1)
        if running.average is not None:
            running.average.update(stage.learner, position.step - 1)
        last = position.step == config.steps
        if position.step % config.log_every == 0 or last:
            seconds, since = time.perf_counter() - since, time.perf_counter()
            line = _line(position.step, epoch, rate, means, seconds, config.batch * config.accumulate)
            running.log.write(line)
            bar.update(position.step, epoch, line["loss"], line["wait"])
        validated = position.step % stage.every == 0 or last
        if validated:
            before = time.perf_counter()
            position = _validate(running, position)
            since += time.perf_counter() - before  # the log's speed is the training's
        if validated or position.step % config.save_every == 0:
            running.save(position)
    return position


def _line(step: int, epoch: int, rate: float, means: Averages, seconds: float, breasts: int) -> dict[str, Any]:
    steps = means.count
    numbers = means.take()
    wait, norm = numbers.pop(WAIT), numbers.pop(NORM)
    return {
        "step": step,
        "epoch": epoch,
        "learning_rate": rate,
        "loss": numbers,
        NORM: norm,
        WAIT: wait * steps / seconds,  # share of the time
        "breasts_per_second": steps * breasts / seconds,
        "memory_mb": peak_memory(),
    }


def _step(running: Running, position: Position) -> tuple[dict[str, float], int]:
    """One update. Returns the loss terms over all ranks, with the gradients' norm and the seconds waited for data; and
    the epoch."""
    fabric, model, accumulate = running.fabric, running.model, running.stage.loop.accumulate
    means, waited = Averages(), 0.0
    running.wrapped.zero_grad()
    for i in range(accumulate):
        start = time.perf_counter()
        planned, batch = next(running.batches)
        waited += time.perf_counter() - start
        tensors = {name: tensor.to(fabric.device) for name, tensor in batch.tensors().items()}
        with fabric.no_backward_sync(model, enabled=i < accumulate - 1):
            terms = model(**tensors)
            # A mean over the ranks is not finite if one of them is not, so all stop together.
            together: Any = fabric.all_reduce(torch.stack([t.detach() for t in terms.values()]), reduce_op="mean")
            loss: dict[str, float] = dict(zip(terms, together.tolist(), strict=True))
            if not all(map(math.isfinite, loss.values())):
                _stop(running, position, planned, batch, loss)
            fabric.backward(terms[TOTAL] / accumulate)
        means.add(loss)
    limit = running.stage.optimiser.clip or math.inf
    total: Any = fabric.clip_gradients(model, running.wrapped, max_norm=limit, error_if_nonfinite=False)
    norm = float(total)
    if not math.isfinite(norm):
        _stop(running, position, planned, batch, {NORM: norm})
    running.wrapped.step()
    return means.take() | {NORM: norm, WAIT: waited}, planned.epoch


def _stop(running: Running, position: Position, planned: Planned, batch: Batch, loss: dict[str, float]) -> None:
    """Save the batch and the state before it, and end."""
    names = [running.stage.breasts[member].name for member in planned.members]
    path = running.folder / "failed" / f"batch-rank-{running.fabric.global_rank}.safetensors"
    told = {"step": position.step, "breasts": list(batch.names), "loss": {name: str(v) for name, v in loss.items()}}
    save_tensors(batch.tensors(), path, {"mm3d-batch": json.dumps(told)})
    running.save(position)
    wrong = ", ".join(f"{name} {value}" for name, value in loss.items() if not math.isfinite(value))
    raise InputError(
        f"The loss is not finite at step {position.step + 1} ({wrong}), with the breasts {', '.join(names)}; that "
        f"batch is in {path} and the state before it in {running.folder / checkpoint.FOLDER}: look at the images, or "
        "start anew with a lower optimiser.learning_rate."
    )


def _validate(running: Running, position: Position) -> Position:
    """Validate, and save the weights: the last always, the best if they are."""
    stage, first = running.stage, running.fabric.is_global_zero
    with Swapped(stage.learner, running.average.weights if running.average else None):
        if stage.validate is not None:
            stage.learner.eval()
            value, figures = stage.validate()
            stage.learner.train()
            better = position.best is None or value > position.best
            if better:
                position = replace(position, best=value, best_step=position.step, worse=0, figures=figures)
            else:
                worse = position.worse + 1
                position = replace(position, worse=worse, stopped=bool(stage.patience) and worse >= stage.patience)
            running.log.write({"step": position.step, "validation": figures, "best": better})
            if first:
                shown = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items() if figure == figure)
                best = " (best)" if better else ""
                running.console.print(f"{stage.name}, step {position.step}: {shown}{best}", highlight=False)
                if better:
                    stage.save_weights(running.folder / "best.safetensors", position)
        if first:
            stage.save_weights(running.folder / "last.safetensors", position)
            draw_curves(running.folder)
    return position
