"""Any backbone of `transformers` with four stages at strides 4, 8, 16 and 32: ConvNeXt, Swin, HGNet and others."""

import json
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mm3d.model.config import BackboneConfig
from mm3d.model.resnet import Stages
from mm3d.shared.errors import InputError

STRIDES = (4, 8, 16, 32)


class AutoBody(nn.Module):
    """Grey images (n, 1, H, W) to four stages (n, C_l, H_l, W_l) with H_l = ceil(H / stride).

    Some of these networks drop the rest of an image that their strides do not divide, others need a size that they do.
    So the image is padded to multiples of 32, with the mean grey, and the stages are cropped.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.network = build_network(config.name, config.settings)
        make_grey(self.network)
        device = next(self.network.parameters()).device
        try:
            with torch.no_grad():
                stages = self.network.eval()(torch.zeros(1, 1, 64, 96, device=device)).feature_maps
        except Exception as error:  # whatever an unknown network does
            raise InputError(
                f"The backbone {config.name} does not take grey images of any size; choose another."
            ) from error
        self.network.train()
        if [stage.shape[-2:] for stage in stages] != [(64 // stride, 96 // stride) for stride in STRIDES]:
            raise InputError(
                f"The backbone {config.name} has not four stages with strides 4, 8, 16 and 32; choose another."
            )
        self.channels = [stage.shape[1] for stage in stages]

    def forward(self, x: Tensor) -> Stages:
        height, width = x.shape[-2:]
        x = F.pad(x, (0, -width % STRIDES[-1], 0, -height % STRIDES[-1]))
        stages = self.network(x).feature_maps
        return Stages(
            [
                stage[..., : math.ceil(height / stride), : math.ceil(width / stride)]
                for stage, stride in zip(stages, STRIDES, strict=True)
            ]
        )


def build_network(name: str, settings: dict[str, Any]) -> nn.Module:
    """A network for RGB images of a model type of `transformers`, with its last four stages as output."""
    from transformers import AutoBackbone, AutoConfig  # slow to import: only when a model is built

    try:
        stages = list(AutoConfig.for_model(name, **settings).stage_names)
        described = AutoConfig.for_model(name, **settings, out_features=stages[-4:])
        described = described.from_dict(json.loads(described.to_json_string()))  # some need lists, and have tuples
        network: nn.Module = AutoBackbone.from_config(described)
    except InputError:
        raise
    except Exception as error:  # whatever its settings do to an unknown network
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:100]
        raise InputError(
            f"transformers cannot build the backbone {name} with these settings ({reason}); give a model type such as "
            "convnext, and settings that it has."
        ) from error
    return network


def make_grey(network: nn.Module) -> None:
    """Let a network for RGB images take one grey channel: a grey image in R, G and B meets the sum of their weights."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and layer.in_channels == 3:
            layer.weight = nn.Parameter(layer.weight.detach().sum(dim=1, keepdim=True))
            layer.in_channels = 1
        if getattr(layer, "num_channels", None) == 3:
            layer.num_channels = 1  # type: ignore[assignment]
