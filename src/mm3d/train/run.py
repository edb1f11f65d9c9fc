"""`mm3d train`: the configuration made a run.

runs/name/
    config.json           the whole configuration; `mm3d train` reads it, too
    log.jsonl             a line every few steps, and one for every validation
    curves.png            the same as a picture
    best.safetensors      weights of the best validation; last.safetensors: of the last
    checkpoints/          what --resume continues from
    dense/                the same for the stage before, with start = "dense"
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console

from mm3d import __version__
from mm3d.data.prepare.prepared import read_notes
from mm3d.model import weights
from mm3d.model.detector import Detector
from mm3d.shared.config import difference, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import remove_partial, replacing
from mm3d.train import checkpoint
from mm3d.train.checkpoint import Position
from mm3d.train.cohorts import read_training, read_validation, suspicion_of
from mm3d.train.config import DENSE, RANDOM, TrainConfig, read_config
from mm3d.train.data import TrainingBreast
from mm3d.train.dense import DenseLearner
from mm3d.train.learners import Learner
from mm3d.train.loop import Stage, fit
from mm3d.train.validate import Validation, ValidationCohort, validate_dense, validate_detector

CONFIG = "config.json"
STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # see docs/training.md
# What may differ when a run is resumed, because it does not change what is learned.
FREE = {"data.workers", "loop.devices", "loop.save_every", "loop.log_every", "loop.tensorboard"}
# Settings of a model that change its meaning without changing the shape of any weight.
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
    folder = output or Path("runs") / path.stem
    console = Console()
    try:
        train(config, folder, resume, console)
    except KeyboardInterrupt:
        console.print(f"Interrupted; the same command with --resume continues {folder}.", highlight=False)
        return 130
    return 0


def train(config: TrainConfig, folder: Path, resume: bool, console: Console) -> Position:
    """One training in its folder: a new one, or with `resume` the one that is there."""
    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # torchrun starts a lost rank again
    check_folder(config, folder, resume)
    fabric = make_fabric(config)
    fabric.launch()
    if fabric.is_global_zero and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) and STORE not in os.environ:
        console.print(f"note: set {STORE}=1 for torchrun; without it, restarts of lost ranks fail now and then.")
    if fabric.is_global_zero:
        with replacing(folder / CONFIG) as partial:
            partial.write_text(json.dumps(to_dict(config), indent=1), encoding="utf-8")
        remove_partial(folder)
    breasts = read_training(config, folder, fabric, console)
    cohorts = read_validation(config, folder, fabric)
    torch.manual_seed(config.loop.seed)
    detector = Detector(config.model)
    told = describe(config, breasts, console if fabric.is_global_zero else None)
    if config.start == DENSE and not checkpoint.exists(folder):
        fit(
            fabric,
            dense_stage(fabric, config, detector, breasts, cohorts, folder / DENSE, told),
            folder / DENSE,
            console,
        )
    elif config.start not in (RANDOM, DENSE):
        told |= {"start": load_start(detector, config, console if fabric.is_global_zero else None)}
    position = fit(fabric, main_stage(fabric, config, detector, breasts, cohorts, folder, told), folder, console)
    if fabric.is_global_zero:
        best = f", best at step {position.best_step} ({position.best:.3f})" if position.best is not None else ""
        console.print(f"Wrote {folder}: {position.step} steps{best}.", soft_wrap=True, highlight=False)
    return position


def make_fabric(config: TrainConfig) -> Fabric:
    """Devices as configured; under torchrun, as it says."""
    devices, nodes = config.loop.devices, 1
    if "LOCAL_WORLD_SIZE" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    ranks = devices * nodes
    for name, batch in (("loop.batch", config.loop.batch), ("dense.batch", config.dense.batch)):
        if batch % ranks and (name == "loop.batch" or config.start == DENSE):
            raise InputError(f"{name} = {batch} cannot be shared by {ranks} processes; make it a multiple.")
    if config.loop.accelerator == "cuda" and not torch.cuda.is_available():
        raise InputError("loop.accelerator is cuda, but there is no GPU that torch can use; set it to auto or cpu.")
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


def check_folder(config: TrainConfig, folder: Path, resume: bool) -> None:
    """A folder holds one run; a resumed one must be of the same configuration."""
    path = folder / CONFIG
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder with -o.")
    if not checkpoint.exists(folder) and not checkpoint.exists(folder / DENSE):
        return  # nothing would be lost: a run that did not get far may be started again
    if not resume:
        raise InputError(f"{folder} holds a run already; continue it with --resume, or give another folder with -o.")
    there = json.loads(path.read_text(encoding="utf-8"))
    if found := difference(there, to_dict(config), FREE):
        raise InputError(
            f"{folder} is a run with {found}; resume it with its own configuration ({path}), or give another folder "
            "with -o."
        )


def load_start(detector: Detector, config: TrainConfig, console: Console | None) -> dict[str, Any]:
    """Load the start weights, say what became of them, and return where they come from."""
    header = weights.read_header(config.start)
    for name in MEANING:
        theirs, ours = getattr(header.config, name), getattr(config.model, name)
        if theirs != ours:
            raise InputError(
                f"{config.start} was trained with {name} = {theirs}, and the configuration's model has {ours}; leave "
                f"model.preset and model.{name} out to take the weights' own."
            )
    transfer = weights.start_from(detector, config.start)
    if console is not None:
        new = f", {len(transfer.new)} new ({', '.join(transfer.new[:2])}, …)" if transfer.new else ""
        dropped = f", {len(transfer.dropped)} dropped" if transfer.dropped else ""
        console.print(f"Start: {config.start}, {len(transfer.loaded)} tensors loaded{new}{dropped}.", highlight=False)
    return {"file": config.start, "provenance": header.provenance}


def describe(config: TrainConfig, breasts: Sequence[TrainingBreast], console: Console | None) -> dict[str, Any]:
    """What weights files say of the training, and what the user is told."""
    malignant = [breast for breast in breasts if breast.malignant]
    boxed = sum(breast.boxed and breast.prepared.annotated for breast in malignant)
    if console is not None:
        console.print(
            f"Training on {len(breasts)} breasts: {len(malignant)} malignant, {boxed} of them with boxes.",
            highlight=False,
        )
    inputs = sorted({breast.input for breast in breasts})
    histogram = next((breast.histogram for breast in breasts if breast.histogram is not None), None)
    told: dict[str, Any] = {
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
    if histogram is not None:
        told["histogram"] = list(histogram)
    projected = [cohort for cohort in config.data.train if cohort.input == "msp"]
    if projected:
        told["suspicion"] = str(suspicion_of(projected[0], config))
    return told


def dense_stage(
    fabric: Fabric,
    config: TrainConfig,
    detector: Detector,
    breasts: Sequence[TrainingBreast],
    cohorts: Sequence[ValidationCohort],
    folder: Path,
    told: dict[str, Any],
) -> Stage:
    """Backbone and FPN on the map of lesions, with the training's data and augmentation."""
    learner = DenseLearner(detector, config.dense.levels, config.loop.precision == "bfloat16")
    validate = Validation(fabric, cohorts, folder) if cohorts else None
    return Stage(
        name="dense",
        learner=learner,
        breasts=breasts,
        data=config.data,
        augment=config.augment,
        optimiser=replace(
            config.optimiser,
            learning_rate=config.dense.learning_rate,
            warmup=config.dense.warmup,
            schedule="cosine",
            backbone_factor=1.0,
            ema=0.0,
        ),
        loop=replace(config.loop, steps=config.dense.steps, batch=config.dense.batch, accumulate=1),
        every=config.validate.every,
        patience=0,
        validate=None if validate is None else lambda: validate_dense(validate, learner),
        save_weights=lambda path, position: save_weights(detector, path, position, told | {"stage": "dense"}),
    )


def main_stage(
    fabric: Fabric,
    config: TrainConfig,
    detector: Detector,
    breasts: Sequence[TrainingBreast],
    cohorts: Sequence[ValidationCohort],
    folder: Path,
    told: dict[str, Any],
) -> Stage:
    """The whole detector on its own losses."""
    validate = Validation(fabric, cohorts, folder) if cohorts else None
    return Stage(
        name="training",
        learner=Learner(detector, config.loss, config.loop.precision == "bfloat16"),
        breasts=breasts,
        data=config.data,
        augment=config.augment,
        optimiser=config.optimiser,
        loop=config.loop,
        every=config.validate.every,
        patience=config.validate.patience,
        validate=None if validate is None else lambda: validate_detector(validate, detector, config.validate.metric),
        save_weights=lambda path, position: save_weights(detector, path, position, told),
    )


def save_weights(detector: Detector, path: Path, position: Position, told: dict[str, Any]) -> None:
    """A weights file that says how it came about."""
    reached = {"step": position.step, "validation": position.figures if path.name.startswith("best") else {}}
    # That breasts were synthetic must be read everywhere.
    use = " ".join([weights.RESEARCH_ONLY, *(f"Of the training data: {note}" for note in told["notes"])])
    weights.save(detector, path, told | reached, use)
