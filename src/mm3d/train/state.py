"""The state of a training: all that its steps change, and all that a checkpoint keeps.

A checkpoint is one safetensors file with a JSON header. It appears under its name complete or not at all, and the one
before it is kept. It holds no random state: order, augmentation and the generator of each step follow from the step.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim.swa_utils import PARAM_LIST, AveragedModel

from mm3d.model.weights import BODY, save_tensors
from mm3d.shared.config import from_dict, parse_json
from mm3d.shared.errors import InputError
from mm3d.shared.files import remove_partial
from mm3d.train.config import OptimiserConfig

CHECKPOINTS = "checkpoints"
HEADER = "mm3d-training"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # of AdamW, for each parameter
KEPT = 2


@dataclass(kw_only=True)
class Progress:
    """How far a training is: the header of its checkpoints."""

    step: int = 0  # steps done
    best: float | None = None  # the deciding figure of the best validation
    best_step: int = 0  # its step
    worse: int = 0  # validations since then
    stopped: bool = False  # whether early stopping has ended the training
    figures: dict[str, Any] = field(default_factory=dict)  # all figures of the best validation: numbers

    def __post_init__(self) -> None:
        if min(self.step, self.best_step, self.worse) < 0:
            raise InputError("steps and validations cannot be negative.")


@dataclass(kw_only=True)
class State(Progress):
    """What learns, where it is kept, and how far it is."""

    learner: Any  # DetectorLearner or DenseLearner: a module that returns its loss, and predicts
    optimiser: torch.optim.Optimizer
    average: AveragedModel | None  # the moving average of the learner, if there is one
    folder: Path  # of the run, or of its dense stage
    provenance: dict[str, Any]  # what weights files say of the training

    @property
    def result(self) -> Any:
        """What is validated and saved as weights."""
        return self.learner if self.average is None else self.average.module


def make_state(
    learner: nn.Module,
    config: OptimiserConfig,
    folder: Path,
    provenance: dict[str, Any],
    new: Collection[str] = (),
) -> State:
    """The state before the first step. `new` has the names of the detector's tensors that the start weights lack."""
    average = make_average(learner, config.ema) if config.ema else None
    optimiser = make_optimiser(learner, config, new)
    return State(learner=learner, optimiser=optimiser, average=average, folder=folder, provenance=provenance)


def make_optimiser(model: nn.Module, config: OptimiserConfig, new: Collection[str] = ()) -> torch.optim.AdamW:
    """AdamW with four groups: the backbone's body, FPN, what is new beside the start weights, and the rest. Each has
    its factor of the learning rate."""
    groups: dict[str, list[nn.Parameter]] = {"body": [], "pyramid": [], "new": [], "rest": []}
    for name, parameter in model.named_parameters():
        in_backbone = "pyramid" if "backbone." in name else "new" if name.removeprefix("detector.") in new else "rest"
        groups["body" if BODY in name else in_backbone].append(parameter)
    factors = {
        "body": config.backbone_factor * config.body_factor,
        "pyramid": config.backbone_factor,
        "new": config.new_factor,
        "rest": 1.0,
    }
    return torch.optim.AdamW(
        [{"params": parameters, "factor": factors[name]} for name, parameters in groups.items()],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
    )


def make_average(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of the weights. A young average forgets faster, or the start values would stay."""

    def mix(average: PARAM_LIST, current: PARAM_LIST, count: Tensor | int) -> None:
        if average[0].is_floating_point():
            torch._foreach_lerp_(average, current, 1 - min(decay, int(count) / (9 + int(count))))
        else:
            torch._foreach_copy_(average, current)

    averaged = AveragedModel(model, multi_avg_fn=mix, use_buffers=True)
    averaged.n_averaged.fill_(1)  # the start values count as the first of the averaged weights
    averaged.eval()
    return averaged


def save_checkpoint(state: State) -> None:
    """Write a checkpoint, then remove all but the last two."""
    tensors = {f"learner/{name}": tensor for name, tensor in state.learner.state_dict().items()}
    for name, parameter in state.learner.named_parameters():
        for moment, tensor in state.optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser/{name}/{moment}"] = tensor
    if state.average is not None:
        tensors |= {f"average/{name}": tensor for name, tensor in state.average.module.state_dict().items()}
    header = json.dumps({item.name: getattr(state, item.name) for item in fields(Progress)})
    try:
        save_tensors(tensors, state.folder / CHECKPOINTS / f"step-{state.step:08d}.safetensors", {HEADER: header})
    except InputError as error:
        raise InputError(f"{error} The checkpoint before it is kept: continue with --resume.") from error
    for old in find_checkpoints(state.folder)[:-KEPT]:
        old.unlink(missing_ok=True)


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((folder / CHECKPOINTS).glob("step-*.safetensors"))


def load_checkpoint(state: State) -> list[str]:
    """Load the newest checkpoint that can be read, if there is any. Returns what to tell the user of the others."""
    remove_partial(state.folder / CHECKPOINTS)
    notes: list[str] = []
    for path in reversed(find_checkpoints(state.folder)):
        try:
            with safe_open(path, framework="pt") as file:
                header = parse_json((file.metadata() or {})[HEADER])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            notes.append(f"{path} is damaged ({error}); the checkpoint before it is used.")
            continue
        try:
            _load_tensors(state, tensors)
            for name, value in vars(from_dict(Progress, header, "its header")).items():
                setattr(state, name, value)
        except (RuntimeError, KeyError, InputError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{path} is of another model or version of mm3d ({reason}); start again with another -o."
            ) from error
        if state.average is not None:
            state.average.n_averaged.fill_(state.step + 1)
        return notes
    if notes:
        raise InputError(f"{notes[0].split(';')[0]}, and there is no other checkpoint; start again with another -o.")
    return notes


def _load_tensors(state: State, tensors: dict[str, Tensor]) -> None:
    parts: dict[str, dict[str, Tensor]] = {"learner": {}, "optimiser": {}, "average": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = tensor
    state.learner.load_state_dict(parts["learner"])
    if state.average is not None:
        state.average.module.load_state_dict(parts["average"])
    for name, parameter in state.learner.named_parameters():
        saved = {m: parts["optimiser"][f"{name}/{m}"] for m in MOMENTS if f"{name}/{m}" in parts["optimiser"]}
        if saved:  # AdamW keeps the count of steps on the CPU, and the moments beside the parameter
            moved = {m: torch.empty_like(parameter).copy_(saved[m]) for m in MOMENTS if m != "step"}
            state.optimiser.state[parameter] = saved | moved
