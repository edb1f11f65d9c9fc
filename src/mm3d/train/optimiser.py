"""AdamW, its learning rate as a function of the step, and an average of the weights."""

import math

import torch
from torch import Tensor, nn

from mm3d.train.config import OptimiserConfig


def make_optimiser(learner: nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    """Two groups: backbone and FPN, and the rest. `rate_at` gives their rates at every step."""
    backbone: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in learner.named_parameters():
        (backbone if "backbone." in name else others).append(parameter)
    return torch.optim.AdamW(
        [{"params": backbone, "factor": config.backbone_factor}, {"params": others, "factor": 1.0}],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
    )


def rate_at(step: int, steps: int, config: OptimiserConfig) -> float:
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


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate * group["factor"]


class Average:
    """An exponential moving average of a module's weights: it evens out the noise of single steps."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    def update(self, module: nn.Module, step: int) -> None:
        """After step number `step`, counted from 0; young averages forget faster, or the start value would stay."""
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, tensor in module.state_dict().items():
                if tensor.is_floating_point():
                    self.weights[name].lerp_(tensor, 1 - decay)
                else:
                    self.weights[name].copy_(tensor)


class Swapped:
    """For as long as the block runs, the module has other weights."""

    def __init__(self, module: nn.Module, weights: dict[str, Tensor] | None) -> None:
        self.module, self.weights = module, weights

    def __enter__(self) -> None:
        if self.weights is not None:
            self.own = {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}
            self.module.load_state_dict(self.weights)

    def __exit__(self, *_: object) -> None:
        if self.weights is not None:
            self.module.load_state_dict(self.own)
