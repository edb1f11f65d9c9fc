"""A model without values, for weights to be loaded into: its start values would be drawn in vain."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mm3d.model.config import ModelConfig
from mm3d.model.detector import Detector


def build_empty(config: ModelConfig) -> Detector:
    """A model whose weights are whatever is in memory."""
    with _WithoutDraws():
        return Detector(config)


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
