"""Checkpoints: all that a training needs to go on, in one safetensors file with a JSON header. No pickle.

A file appears under its name complete or not at all, and the one before it is kept. Random states need no room: order,
augmentation and the generator of each step are functions of the position.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mm3d.model.weights import save_tensors
from mm3d.shared.config import check, from_dict, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import remove_partial
from mm3d.train.optimiser import Average

HEADER = "mm3d-training"
FOLDER = "checkpoints"
KEPT = 2
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class Position:
    """Where a training stands."""

    step: int = 0
    """Steps done."""
    best: float | None = None
    """The best validation's deciding figure."""
    best_step: int = 0
    """Its step."""
    worse: int = 0
    """Validations since then."""
    stopped: bool = False
    """Early stopping has ended the training."""
    figures: dict[str, float] = field(default_factory=dict)
    """Of the best validation."""

    def __post_init__(self) -> None:
        check(self)


def save(
    folder: Path, position: Position, learner: nn.Module, optimiser: torch.optim.Optimizer, average: Average | None
) -> Path:
    """Write a checkpoint, then remove all but the last two."""
    tensors = {f"learner/{name}": tensor for name, tensor in learner.state_dict().items()}
    for name, parameter in learner.named_parameters():
        for moment, tensor in optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser/{name}/{moment}"] = tensor
    if average is not None:
        tensors |= {f"average/{name}": tensor for name, tensor in average.weights.items()}
    path = folder / FOLDER / f"step-{position.step:08d}.safetensors"
    try:
        save_tensors(tensors, path, {HEADER: json.dumps(to_dict(position))})
    except InputError as error:
        raise InputError(f"{error} The checkpoint before it is kept: continue with --resume.") from error
    for old in _all(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def exists(folder: Path) -> bool:
    return bool(_all(folder))


def restore(
    folder: Path, learner: nn.Module, optimiser: torch.optim.Optimizer, average: Average | None
) -> tuple[Position, list[str]]:
    """Load the newest whole checkpoint into all that trains; also what is worth saying. Without any: from the start."""
    remove_partial(folder / FOLDER)
    notes = []
    for path in reversed(_all(folder)):
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[HEADER])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            notes.append(f"{path} is damaged ({error}); the one before it is used.")
            continue
        _load(tensors, learner, optimiser, average, path)
        return from_dict(Position, header, str(path)), notes
    if notes:
        raise InputError(f"{notes[0].split(';')[0]}; and no other checkpoint is there: start anew with another -o.")
    return Position(), notes


def _load(
    tensors: dict[str, Tensor],
    learner: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average | None,
    path: Path,
) -> None:
    parts: dict[str, dict[str, Tensor]] = {"learner": {}, "optimiser": {}, "average": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = tensor
    try:
        learner.load_state_dict(parts["learner"])
        if average is not None:
            for name, own in average.weights.items():
                own.copy_(parts["average"][name])
        for name, parameter in learner.named_parameters():
            state = {m: parts["optimiser"][f"{name}/{m}"] for m in MOMENTS if f"{name}/{m}" in parts["optimiser"]}
            if state:  # the count of steps stays where AdamW keeps it, on the CPU; moments lie as their parameters do
                optimiser.state[parameter] = {
                    m: t if m == "step" else torch.empty_like(parameter).copy_(t) for m, t in state.items()
                }
    except (RuntimeError, KeyError) as error:
        raise InputError(
            f"{path} is of another model ({str(error).splitlines()[0]}); start anew with another -o."
        ) from error


def _all(folder: Path) -> list[Path]:
    """The checkpoints there are, oldest first."""
    return sorted((folder / FOLDER).glob("step-*.safetensors"))
