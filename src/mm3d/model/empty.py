"""A model without values, for weights to be loaded into: its start values would be drawn in vain.

And a limit for models that a file describes: a few words can ask for one that no computer can hold.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mm3d.model.config import ModelConfig
from mm3d.model.detector import Detector
from mm3d.shared.errors import InputError

LARGEST_MODEL = 500_000_000  # numbers; the paper's detector has 0.1 thousand million
MOST_TENSORS = 20_000  # of a model; the paper's detector has 500
TOO_LARGE = "the header describes a larger model than the file has tensors for; write it again."
FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.arange)


def build_empty(config: ModelConfig) -> Detector:
    """A model whose weights are whatever is in memory."""
    with _WithoutDraws():
        return Detector(config)


def limit_size(numbers: int = LARGEST_MODEL // 2) -> TorchFunctionMode:
    """Refuse to build a model, in a `with` block, that has many more numbers than the file that it is for.

    While a model is built, it has up to twice as many.
    """
    return _SizeLimit(min(2 * numbers + 1_000_000, LARGEST_MODEL))


class _SizeLimit(TorchFunctionMode):
    """Counts the tensors that are made, and what is in them, and stops when there are too many."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.tensors = room, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function not in FACTORIES:
            return function(*args, **(kwargs or {}))
        try:
            made = function(*args, **(kwargs or {}))
        except RuntimeError as error:  # there is not so much memory
            raise InputError(TOO_LARGE) from error
        if isinstance(made, Tensor):
            self.room -= made.numel()
            self.tensors += 1
            if self.room < 0 or self.tensors > MOST_TENSORS:
                raise InputError(TOO_LARGE)
        return made


class _WithoutDraws(TorchFunctionMode):
    """Nothing random is drawn.

    Tensors on "meta" would do the same. But for these, torch imports its compiler, which takes as long as all of torch.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.randn:
            return torch.empty(*args, **kwargs)
        if getattr(function, "__name__", "").endswith(("normal_", "uniform_")):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)
