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

from mm3d.errors import InputError
from mm3d.model.weights import save_tensors
from mm3d.train import checkpoint
from mm3d.train.checkpoint import Position
from mm3d.train.config import AugmentConfig, DataConfig, LoopConfig, OptimiserConfig
from mm3d.train.data import Batch, Planned, TrainingBreast, plan, stream
from mm3d.train.learners import TOTAL
from mm3d.train.log import Bar, Log, draw_curves
from mm3d.train.optimiser import Average, Swapped, make_optimiser, rate_at, set_rate


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


def fit(fabric: Fabric, stage: Stage, folder: Path, console: Console) -> Position:
    """Train from where the folder's last checkpoint is, or from the start, to the last step."""
    config = stage.loop
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
    first = fabric.is_global_zero
    log = Log(folder if first else None, position.step, config.tensorboard)
    bar = Bar(console, stage.name, config.steps, position.step, first)
    means, since = Averages(), time.perf_counter()
    with closing(batches), closing(log), bar:
        while position.step < config.steps and not position.stopped:
            rate = rate_at(position.step, config.steps, stage.optimiser)
            set_rate(optimiser, rate)
            # The generator of a step is a function of its number: nothing of it has to be saved.
            torch.manual_seed((config.seed << 32) + position.step * fabric.world_size + fabric.global_rank)
            loss, epoch, norm, wait = _step(
                fabric, stage, model, wrapped, optimiser, batches, position, folder, average
            )
            position = replace(position, step=position.step + 1)
            if average is not None:
                average.update(stage.learner, position.step - 1)
            means.add({**loss, "gradient_norm": norm, "wait": wait})
            last = position.step == config.steps
            if position.step % config.log_every == 0 or last:
                seconds, since = time.perf_counter() - since, time.perf_counter()
                line = _line(position.step, epoch, rate, means, seconds, config.batch * config.accumulate)
                log.write(line)
                bar.update(position.step, epoch, line["loss"], line["wait"])
            if position.step % stage.every == 0 or last:
                position = _validate(stage, folder, first, average, position, log, console)
                since = time.perf_counter()
            if first and (position.step % config.save_every == 0 or position.step % stage.every == 0 or last):
                checkpoint.save(folder, position, stage.learner, optimiser, average)
    return position


def _line(step: int, epoch: int, rate: float, means: Averages, seconds: float, breasts: int) -> dict[str, Any]:
    steps = means.count
    numbers = means.take()
    wait, norm = numbers.pop("wait"), numbers.pop("gradient_norm")
    return {
        "step": step,
        "epoch": epoch,
        "learning_rate": rate,
        "loss": numbers,
        "gradient_norm": norm,
        "wait": wait * steps / seconds,  # share of the time
        "breasts_per_second": steps * breasts / seconds,
    }


def _step(
    fabric: Fabric,
    stage: Stage,
    model: Any,
    wrapped: Any,
    optimiser: torch.optim.Optimizer,
    batches: Iterator[tuple[Planned, Batch]],
    position: Position,
    folder: Path,
    average: Average | None,
) -> tuple[dict[str, float], int, float, float]:
    """One update. Returns the loss terms over all ranks, the epoch, the gradients' norm and seconds waited for data."""
    accumulate = stage.loop.accumulate
    means, waited = Averages(), 0.0
    wrapped.zero_grad()
    for i in range(accumulate):
        start = time.perf_counter()
        planned, batch = next(batches)
        waited += time.perf_counter() - start
        tensors = {name: tensor.to(fabric.device) for name, tensor in batch.tensors().items()}
        with fabric.no_backward_sync(model, enabled=i < accumulate - 1):
            terms = model(**tensors)
            # A mean over the ranks is not finite if one of them is not, so all stop together.
            together: Any = fabric.all_reduce(torch.stack([t.detach() for t in terms.values()]), reduce_op="mean")
            loss: dict[str, float] = dict(zip(terms, together.tolist(), strict=True))
            if not all(map(math.isfinite, loss.values())):
                _stop(fabric, stage, folder, planned, batch, position, optimiser, average, loss)
            fabric.backward(terms[TOTAL] / accumulate)
        means.add(loss)
    limit = stage.optimiser.clip or math.inf
    total: Any = fabric.clip_gradients(model, wrapped, max_norm=limit, error_if_nonfinite=False)
    norm = float(total)
    if not math.isfinite(norm):
        _stop(fabric, stage, folder, planned, batch, position, optimiser, average, {"gradient": norm})
    wrapped.step()
    return means.take(), planned.epoch, norm, waited


def _stop(
    fabric: Fabric,
    stage: Stage,
    folder: Path,
    planned: Planned,
    batch: Batch,
    position: Position,
    optimiser: torch.optim.Optimizer,
    average: Average | None,
    loss: dict[str, float],
) -> None:
    """Save the batch and the state before it, and end."""
    names = [stage.breasts[member].name for member in planned.members]
    path = folder / "failed" / f"batch-rank-{fabric.global_rank}.safetensors"
    told = {"step": position.step, "breasts": list(batch.names), "loss": {name: str(v) for name, v in loss.items()}}
    save_tensors(batch.tensors(), path, {"mm3d-batch": json.dumps(told)})
    if fabric.is_global_zero:
        checkpoint.save(folder, position, stage.learner, optimiser, average)
    wrong = ", ".join(f"{name} {value}" for name, value in loss.items() if not math.isfinite(value))
    raise InputError(
        f"The loss is not finite at step {position.step + 1} ({wrong}), with the breasts {', '.join(names)}; that "
        f"batch is in {path} and the state before it in {folder / checkpoint.FOLDER}: look at the images, or start "
        "anew with a lower optimiser.learning_rate."
    )


def _validate(
    stage: Stage, folder: Path, first: bool, average: Average | None, position: Position, log: Log, console: Console
) -> Position:
    """Validate, and save the weights: the last always, the best if they are."""
    with Swapped(stage.learner, average.weights if average else None):
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
            log.write({"step": position.step, "validation": figures, "best": better})
            if first:
                shown = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items() if figure == figure)
                console.print(
                    f"{stage.name}, step {position.step}: {shown}{' (best)' if better else ''}", highlight=False
                )
                if better:
                    stage.save_weights(folder / "best.safetensors", position)
        if first:
            stage.save_weights(folder / "last.safetensors", position)
            draw_curves(folder)
    return position
