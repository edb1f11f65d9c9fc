"""`mm3d train`: setup, then fit, which validates. Prepared breasts and a configuration go in, a run folder comes out.

runs/name/
    config.json           the whole configuration; `mm3d train` can read it
    log.jsonl             a line every few steps, and one for every validation
    curves.png            the log as a picture
    best.safetensors      weights of the best validation; last.safetensors: of the last one
    checkpoints/          what --resume continues from
    dense/                the same for the dense stage, if there is one
"""

import json
import math
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from mm3d import __version__
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import read_notes, read_settings
from mm3d.model import weights
from mm3d.model.backbone import freeze_stages
from mm3d.model.detector import Detector
from mm3d.model.losses import LossWeights, detection_losses
from mm3d.model.memory import keep_freed_memory
from mm3d.output.predictions import BreastPrediction
from mm3d.predict.detect import predict_breast
from mm3d.shared.config import from_dict, to_dict
from mm3d.shared.console import Console, describe_time, say
from mm3d.shared.errors import InputError
from mm3d.shared.files import check_folder, remove_partial, save_json
from mm3d.train.cohorts import ValidationCohort, find_suspicion, read_training, read_validation
from mm3d.train.config import DENSE, OF_BODY, LoopConfig, OptimiserConfig, TrainConfig, read_config
from mm3d.train.data import Batch, TrainingBreast, read_batches
from mm3d.train.dense import DenseLearner
from mm3d.train.log import Log, peak_memory
from mm3d.train.start_boxes import fit_start_boxes
from mm3d.train.state import CHECKPOINTS, State, find_checkpoints, load_checkpoint, make_state, save_checkpoint
from mm3d.train.validate import validate

CONFIG = "config.json"
TIMED = 10  # steps from which the time of a stage is estimated
STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # see docs/training.md
# These settings may differ when a run is resumed, because they do not change what is learned.
MAY_DIFFER = {"data.workers", "loop.devices", "loop.save_every", "loop.log_every", "loop.tensorboard", "loop.loggers"}
# These settings change what the weights of a model mean, but not their shapes.
MEANING = ("canonical_box", "attention_heads", "pixel_mean", "pixel_std")


def run(
    path: Path,
    output: Path | None,
    overrides: Sequence[str] = (),
    start: str | None = None,
    devices: int | None = None,
    resume: bool = False,
) -> int:
    """Train as the configuration file and the command line say. Returns the exit code."""
    if devices is not None:
        overrides = [*overrides, f"--loop.devices={devices}"]
    config = read_config(path, overrides, start)
    of_run = path.name == CONFIG and bool(find_checkpoints(path.parent) or find_checkpoints(path.parent / DENSE))
    folder = output or (path.parent if of_run else Path("runs") / path.stem)
    console = Console()
    try:
        train(config, folder, resume, console)
    except KeyboardInterrupt:
        say(console, f"Interrupted; the same command with --resume continues {folder}.")
        return 130
    return 0


def train(config: TrainConfig, folder: Path, resume: bool, console: Console) -> State:
    """Run a new training in its folder, or with `resume` continue the one that is there."""
    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # torchrun starts a lost rank again
    config = scale_canonical_box(config)
    check_run_folder(config, folder, resume)
    fabric = make_fabric(config)
    fabric.launch()
    if not config.model.recompute:  # which is for those who are short of memory
        keep_freed_memory()
    if fabric.is_global_zero:
        save_json(folder / CONFIG, to_dict(config))
        remove_partial(folder)
    else:
        console = Console(quiet=True)
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) and STORE not in os.environ:
        say(console, f"note: set {STORE}=1 for torchrun; without it, restarts of lost ranks sometimes fail.")
    breasts = read_training(config, folder, fabric, console)
    cohorts = read_validation(config, folder, fabric)
    torch.manual_seed(config.loop.seed)
    detector, autocast = Detector(config.model), config.loop.precision == "bfloat16"
    if config.model.proposal_start == "fitted" and not _has_proposals(config.start_weights):
        detector.proposal_boxes.data = fit_start_boxes(breasts, config.model.proposals, config.augment)
    provenance = describe(config, breasts, console)
    new: Sequence[str] = ()
    if config.start_weights is not None:
        provenance["start"], new = load_start(detector, config, console)
    say(console, _describe_plan(config, folder))
    freeze_stages(detector.backbone, config.optimiser.freeze)
    if config.dense_first and not find_checkpoints(folder):
        stage = make_dense_config(config)
        dense = fabric.to_device(DenseLearner(detector, config.dense.levels, config.dense.benign, autocast))
        state = make_state(dense, stage.optimiser, folder / DENSE, provenance | {"stage": DENSE})
        fit(fabric, stage, state, breasts, cohorts, console)
    learner = fabric.to_device(DetectorLearner(detector, config.loss, autocast))
    state = make_state(learner, config.optimiser, folder, provenance, new)
    fit(fabric, config, state, breasts, cohorts, console)
    best = f", best at step {state.best_step} ({state.best:.3f})" if state.best is not None else ""
    say(console, f"Wrote {folder}: {state.step} steps{best}.")
    return state


def _has_proposals(start: str | None) -> bool:
    """Whether start weights bring trained proposals, so that none are fitted."""
    return start is not None and not weights.has_only_body(start)


def scale_canonical_box(config: TrainConfig) -> TrainConfig:
    """The configuration for images of another size than those of the start weights.

    Boxes grow with the images, and `canonical_box` with them: so a lesion is still pooled from the level of the pyramid
    that the weights learned to read it from.
    """
    wanted = wanted_canonical_box(config)
    if wanted is None or config.model.canonical_box != weights.read_header(config.start).config.canonical_box:
        return config  # it is a setting of its own, which `load_start` compares
    return replace(config, model=replace(config.model, canonical_box=wanted))


def wanted_canonical_box(config: TrainConfig) -> float | None:
    """The start weights' canonical_box, scaled to the size of this training's images; None: they have none to keep."""
    if not _has_proposals(config.start_weights):
        return None
    header = weights.read_header(config.start)
    theirs, ours = header.provenance.get("prepare"), read_settings(config.data.train[0].folder)
    if not isinstance(theirs, dict) or not {"width", "length"} <= theirs.keys():
        return header.config.canonical_box
    before = from_dict(PrepareSettings, theirs, f"{config.start}: prepare")
    factor = math.sqrt(ours.width * ours.length / (before.width * before.length))
    return round(header.config.canonical_box * factor, 1)


def check_run_folder(config: TrainConfig, folder: Path, resume: bool) -> None:
    """Refuse a folder that holds another run. Only a run of the same configuration is resumed."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder with -o.")
    if not find_checkpoints(folder) and not find_checkpoints(folder / DENSE):
        return  # nothing was saved yet, so the run may start over
    if not resume:
        raise InputError(f"{folder} holds a run already; continue it with --resume, or give another folder with -o.")
    remedy = f"resume it as it was with: mm3d train {folder / CONFIG} --resume, or give another folder with -o"
    check_folder(folder, CONFIG, to_dict(config), MAY_DIFFER, remedy)


def make_fabric(config: TrainConfig) -> Fabric:
    """Fabric with the devices of the configuration, or under torchrun with those that torchrun gives."""
    devices, nodes = config.loop.devices, 1
    if "LOCAL_WORLD_SIZE" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    ranks = devices * nodes
    for name, batch in (("loop.batch", config.loop.batch), ("dense.batch", config.dense.batch)):
        if batch % ranks and (name == "loop.batch" or config.dense_first):
            raise InputError(f"{name} = {batch} cannot be shared by {ranks} processes; make it a multiple.")
    if config.loop.accelerator == "cuda" and not torch.cuda.is_available():
        raise InputError("loop.accelerator is cuda, but there is no GPU that torch can use; set it to auto or cpu.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*srun.*")  # a hint where SLURM is installed but not used
        fabric = Fabric(
            accelerator=config.loop.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy="ddp" if ranks > 1 else "auto",
            precision="32-true",  # bfloat16 is the learners' own autocast
        )
    if config.loop.threads or devices > 1:
        torch.set_num_threads(config.loop.threads or max(1, (os.cpu_count() or 1) // devices))
    return fabric


def make_dense_config(config: TrainConfig) -> TrainConfig:
    """The configuration of the dense stage. Data and augmentation are those of the training."""
    dense = config.dense
    optimiser = replace(config.optimiser, learning_rate=dense.learning_rate, warmup=dense.warmup, schedule="cosine")
    return replace(
        config,
        optimiser=replace(optimiser, backbone_factor=dense.backbone_factor, ema=0.0),
        loop=replace(config.loop, steps=dense.steps, batch=dense.batch, accumulate=1),
        validate=replace(config.validate, metric="auc", patience=0),
    )


def load_start(detector: Detector, config: TrainConfig, console: Console) -> tuple[dict[str, Any], Sequence[str]]:
    """Load the start weights. Returns where they come from, and the names of the tensors that they do not have."""
    header, scaled = weights.read_header(config.start), {"canonical_box": wanted_canonical_box(config)}
    for name in (n for n in MEANING if n in OF_BODY or not weights.has_only_body(config.start)):
        theirs, ours = scaled.get(name, getattr(header.config, name)), getattr(config.model, name)
        if theirs != ours:
            of_size = " for images of this size" if name == "canonical_box" else ""
            raise InputError(
                f"{config.start} was trained with {name} = {theirs}{of_size}, and the configuration's model has "
                f"{ours}; leave model.preset and model.{name} out to take the weights' own."
            )
    transfer = weights.start_from(detector, config.start)
    if (box := scaled["canonical_box"]) not in (None, header.config.canonical_box):
        say(console, f"The images have another size than those of the start weights: canonical_box becomes {box:g}.")
    new = f", {len(transfer.new)} new ({', '.join(transfer.new[:2])}, …)" if transfer.new else ""
    dropped = f", {len(transfer.dropped)} dropped" if transfer.dropped else ""
    say(console, f"Start: {config.start}, {len(transfer.loaded)} tensors loaded{new}{dropped}.")
    return {"file": config.start, "provenance": header.provenance}, transfer.new


def describe(config: TrainConfig, breasts: Sequence[TrainingBreast], console: Console) -> dict[str, Any]:
    """What weights files say of their training."""
    malignant = [breast for breast in breasts if breast.malignant]
    boxed = sum(breast.boxed and breast.prepared.annotated for breast in malignant)
    say(console, f"Training on {len(breasts)} breasts: {len(malignant)} malignant, {boxed} of them with boxes.")
    inputs = sorted({breast.input for breast in breasts})
    provenance: dict[str, Any] = {
        "mm3d": __version__,
        "input": inputs[0] if len(inputs) == 1 else config.data.train[0].input,
        "inputs": inputs,
        "breasts": len(breasts),
        "malignant": len(malignant),
        "malignant_with_boxes": boxed,
        "prepare": to_dict(breasts[0].prepared.views[0].file.settings),  # what `mm3d predict` prepares an exam to
        "notes": sorted({note for cohort in config.data.train for note in read_notes(cohort.folder)}),
        "configuration": to_dict(config),
    }
    if histograms := [breast.histogram for breast in breasts if breast.histogram is not None]:
        provenance["histogram"] = list(histograms[0])
    if projected := [cohort for cohort in config.data.train if cohort.input == "msp"]:
        provenance["suspicion"] = str(find_suspicion(projected[0], config))
    return provenance


def _describe_plan(config: TrainConfig, folder: Path) -> str:
    """The stages of a training and their steps."""
    loop, dense = config.loop, config.dense
    detector = f"{_count_steps(loop.steps)} of the detector with {loop.batch * loop.accumulate} breasts each"
    if not config.dense_first or find_checkpoints(folder):
        return f"To do: {detector}."
    return (
        f"To do: first {_count_steps(dense.steps)} of the dense stage with {dense.batch} breasts each, then {detector}."
    )


def _count_steps(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


class DetectorLearner(nn.Module):
    """The whole detector: the loss of a batch, and the prediction of a breast for the validation.

    The network may run in bfloat16; the loss is in float32. The autocast is ours: Fabric's mixed precision would round
    the boxes to bfloat16 too, which is 8 pixels at 2,000.
    """

    stage = "training"

    def __init__(self, detector: Detector, weights: LossWeights, autocast: bool) -> None:
        super().__init__()
        self.detector = detector
        self.weights = weights
        self.autocast = autocast
        self.done = 0.0  # the share of the training that is done; `fit` sets it

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The total, which is minimised, and its terms, each summed over the heads, which are logged."""
        breasts = batch.breasts
        with torch.autocast(breasts.images.device.type, torch.bfloat16, enabled=self.autocast):
            detections = self.detector(breasts)
        late = self.done >= self.weights.matches_until
        weights = replace(self.weights, matches=1) if late else self.weights
        losses = detection_losses(detections, batch.targets, breasts.sizes, weights)
        return losses.total, {name: term.sum() for name, term in losses.terms.items()}

    def predict(self, breast: TrainingBreast) -> BreastPrediction:
        return predict_breast(self.detector, breast.prepared, breast.input, breast.histogram)


def fit(
    fabric: Fabric,
    config: TrainConfig,
    state: State,
    breasts: Sequence[TrainingBreast],
    cohorts: Sequence[ValidationCohort],
    console: Console,
) -> None:
    """Train from the last checkpoint of the state's folder, or from the start, to the last step."""
    loop, rank, ranks = config.loop, fabric.global_rank, fabric.world_size
    for note in load_checkpoint(state):
        say(console, note)
    if state.step:
        say(console, f"{state.learner.stage.capitalize()} continues at step {state.step} of {loop.steps}.")
    model, state.optimiser = fabric.setup(state.learner, state.optimiser)
    batches = read_batches(breasts, config, state.step * loop.accumulate, rank, ranks)
    rows, since = [], time.perf_counter()  # the numbers of the steps since the last line of the log
    first, began = state.step, since
    with closing(batches), Log(state, loop, rank == 0, console) as log:
        while state.step < loop.steps and not state.stopped:
            rate = learning_rate(state.step, loop.steps, config.optimiser)
            for group in state.optimiser.param_groups:
                group["lr"] = rate * group["factor"]
            # The generator of a step follows from its number, so checkpoints need not keep it.
            state.learner.done = state.step / loop.steps
            torch.manual_seed((loop.seed << 32) + state.step * ranks + rank)
            rows.append(_step(fabric, config, state, model, batches))
            state.step += 1
            if state.average is not None:
                state.average.update_parameters(state.learner)
            last = state.step == loop.steps
            if state.step - first == TIMED and not last:
                left = (time.perf_counter() - began) / TIMED * (loop.steps - state.step)
                say(
                    console,
                    f"The other {loop.steps - state.step} steps take about {describe_time(left)}, without validations.",
                )
            if last or state.step % loop.log_every == 0:
                summary = _summarise(rows, time.perf_counter() - since, loop)
                log.write({"step": state.step, "learning_rate": rate, **summary})
                rows, since = [], time.perf_counter()
            validated = last or state.step % config.validate.every == 0
            if validated:
                before = time.perf_counter()
                validate(fabric, config.validate, state, cohorts, log)
                since += time.perf_counter() - before  # the log's speed is that of the steps
            if rank == 0 and (validated or state.step % loop.save_every == 0):
                save_checkpoint(state)


def learning_rate(step: int, steps: int, config: OptimiserConfig) -> float:
    """The learning rate of a step, counted from 0."""
    rate = config.learning_rate
    if step < config.warmup:
        return rate * (step + 1) / config.warmup
    if config.schedule == "cosine":
        done = (step - config.warmup) / max(1, steps - config.warmup)
        return rate * (config.final + (1 - config.final) * (1 + math.cos(math.pi * done)) / 2)
    if config.schedule == "step":
        return rate * (1.0 if 3 * step < 2 * steps else 0.1 if 9 * step < 8 * steps else 0.01)
    return rate


def _step(fabric: Fabric, config: TrainConfig, state: State, model: Any, batches: Iterator[Batch]) -> dict[str, Any]:
    """Make one update. Returns the epoch, the loss terms over all ranks, the norm of the gradients, and the seconds
    spent waiting for data."""
    losses, waited = [], 0.0
    state.optimiser.zero_grad()
    for i in range(config.loop.accumulate):
        start = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - start
        with fabric.no_backward_sync(model, enabled=i < config.loop.accumulate - 1):
            total, terms = model(batch.to(fabric.device))
            # A mean over the ranks is not finite if one of them is not, so all stop together.
            values = torch.stack([total.detach(), *(term.detach() for term in terms.values())])
            together: Any = fabric.all_reduce(values, reduce_op="mean")
            losses.append(dict(zip(("total", *terms), together.tolist(), strict=True)))
            _check_finite(fabric, state, batch, losses[-1])
            fabric.backward(total / config.loop.accumulate)
    limit = config.optimiser.clip or math.inf
    norm: Any = fabric.clip_gradients(model, state.optimiser, max_norm=limit, error_if_nonfinite=False)
    numbers = {"gradient_norm": float(norm)}
    _check_finite(fabric, state, batch, numbers)
    state.optimiser.step()
    return {"epoch": batch.epoch, "loss": _mean(losses), "wait": waited, **numbers}


def _mean(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: fmean(row[name] for row in rows) for name in rows[0]}


def _summarise(rows: Sequence[dict[str, Any]], seconds: float, loop: LoopConfig) -> dict[str, Any]:
    """A line of the log: the means of some steps, which took `seconds` together."""
    return {
        "epoch": rows[-1]["epoch"],
        "loss": _mean([row["loss"] for row in rows]),
        "gradient_norm": fmean(row["gradient_norm"] for row in rows),
        "wait": sum(row["wait"] for row in rows) / seconds,  # share of the time
        "breasts_per_second": len(rows) * loop.batch * loop.accumulate / seconds,
        "memory_mb": peak_memory(),
    }


def _check_finite(fabric: Fabric, state: State, batch: Batch, numbers: dict[str, float]) -> None:
    """If a number is not finite, save the batch and the state before it, and stop."""
    wrong = ", ".join(f"{name} {value}" for name, value in numbers.items() if not math.isfinite(value))
    if not wrong:
        return
    path = state.folder / "failed" / f"batch-rank-{fabric.global_rank}.safetensors"
    about = {"step": state.step, "breasts": list(batch.names), "loss": {name: str(v) for name, v in numbers.items()}}
    weights.save_tensors(batch.tensors(), path, {"mm3d-batch": json.dumps(about)})
    if fabric.is_global_zero:
        save_checkpoint(state)
    raise InputError(
        f"The loss is not finite at step {state.step + 1} ({wrong}), with the breasts {', '.join(batch.names)}; that "
        f"batch is in {path} and the state before it in {state.folder / CHECKPOINTS}: look at the images, or start "
        "again with a lower optimiser.learning_rate."
    )
