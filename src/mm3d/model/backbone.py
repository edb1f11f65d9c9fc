"""The feature extractor: a body, such as a ResNet, and a feature pyramid (FPN) on its four stages.

To add a family of backbones, write a function that builds its body, and its line in `FAMILIES`; then add it to
`BackboneConfig.family` and its members to `BACKBONES` (config.py).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mm3d.model import depthwise
from mm3d.model.auto_backbone import AutoBody
from mm3d.model.config import GROUPS, BackboneConfig, ModelConfig
from mm3d.model.efficientnet import EfficientNetLite
from mm3d.model.group_norm import GroupNorm
from mm3d.model.linear import Conv2d, convolve
from mm3d.model.resnet import ResNet
from mm3d.shared.errors import InputError


class Backbone(nn.Module):
    """Grey slices to pyramid levels p2 to p5, all with D channels."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.body = _build_body(config.backbone)
        widths: Any = self.body.channels  # of its four stages
        self.lateral = nn.ModuleList(Conv2d(width, config.channels, 1) for width in widths)
        self.output = nn.ModuleList(nn.Conv2d(config.channels, config.channels, 3, padding=1) for _ in range(4))
        for conv in [*self.lateral, *self.output]:
            nn.init.kaiming_uniform_(conv.weight, a=1)
            nn.init.zeros_(conv.bias)
        # RoIAlign reads all channels of a pixel at once, so channels come last in memory.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, slices: Tensor) -> list[Tensor]:
        """slices: (n, H, W) grey values. Returns p2 to p5, each (n, D, H_l, W_l) with H_l = ceil(H / stride)."""
        return [output(level) for output, level in zip(self.output, self.merge_stages(slices), strict=True)]

    def merge_stages(self, slices: Tensor) -> list[Tensor]:
        """The inputs of the 3 x 3 output convolutions of p2 to p5: each stage plus the level above it."""
        x = (slices - self.config.pixel_mean) / self.config.pixel_std
        x = x[:, None].to(next(self.lateral.parameters()).dtype)
        stages = list(self.body(x.contiguous(memory_format=torch.channels_last)).feature_maps)
        levels: list[Tensor] = []
        for lateral in reversed(self.lateral):
            level = lateral(stages.pop())  # each stage is released as soon as it was used: they are large
            if levels:
                level += F.interpolate(levels[0], size=level.shape[-2:], mode="nearest")
            levels.insert(0, level)
        return levels


class FrozenBatchNorm2d(nn.Module):
    """BatchNorm with fixed statistics and weights. All four are buffers, so nothing of it trains.

    It is a factor and a shift of each channel, which `FoldedConv2d` applies. So it has nothing left to do itself.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x


class FoldedConv2d(nn.Module):
    """A convolution without bias and the frozen BatchNorm after it, as one convolution.

    Against one after the other this saves a pass over the image, and in training half of what is kept of it.
    """

    def __init__(self, convolution: nn.Conv2d, norm: FrozenBatchNorm2d) -> None:
        super().__init__()
        self.weight = convolution.weight
        self.place: Any = {
            "stride": convolution.stride,
            "padding": convolution.padding,
            "dilation": convolution.dilation,
            "groups": convolution.groups,
        }
        self.norm = (norm,)  # in a tuple, so that it stays a part of its own layer alone

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.fold()
        if depthwise.is_slow(x, weight, **self.place):
            return depthwise.convolve(x, weight, bias, self.place["stride"], self.place["padding"])
        return convolve(x, weight, bias, self.place)

    def fold(self) -> tuple[Tensor, Tensor]:
        (norm,) = self.norm
        factor = norm.weight * (norm.running_var + norm.eps).rsqrt()
        return self.weight * factor[:, None, None, None], norm.bias - norm.running_mean * factor


def freeze_stages(backbone: Backbone, count: int) -> None:
    """Keep the first stages of the body as they are: their parameters get no gradient, so no time goes into it."""
    if count:
        parameters = list(backbone.body.parameters())
        stage = backbone.body(torch.rand(1, 1, 64, 64, device=parameters[0].device)).feature_maps[count - 1]
        gradients = torch.autograd.grad(stage.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.requires_grad_(gradient is None)  # what the stage does not depend on comes after it


def _build_body(config: BackboneConfig) -> nn.Module:
    """A body with one grey input channel, random weights, and another norm instead of BatchNorm."""
    body = FAMILIES[config.family](config)
    for layer in list(body.modules()):
        if isinstance(layer, nn.ReLU):
            layer.inplace = True
        norm = getattr(layer, "normalization", None)
        if isinstance(norm, nn.BatchNorm2d) and config.norm == "frozen":
            assert isinstance(layer.convolution, nn.Conv2d)
            layer.normalization = FrozenBatchNorm2d(norm.num_features, norm.eps)
            layer.convolution = FoldedConv2d(layer.convolution, layer.normalization)
        elif isinstance(norm, nn.BatchNorm2d):
            layer.normalization = GroupNorm(GROUPS, norm.num_features)
    if any(isinstance(layer, nn.BatchNorm2d) for layer in body.modules()):
        raise InputError(f"The backbone {config.name} has a BatchNorm that cannot be frozen; choose another.")
    return body


def _build_pvt(config: BackboneConfig) -> nn.Module:
    from transformers import AutoBackbone, PvtV2Config  # takes longer than to import torch: only if it is needed

    settings = PvtV2Config(
        num_channels=1,
        hidden_sizes=list(config.widths),
        depths=list(config.depths),
        out_features=["stage1", "stage2", "stage3", "stage4"],
        num_attention_heads=[1, 2, 5, 8],
        mlp_ratios=[8, 8, 4, 4],
        linear_attention=True,
    )
    return AutoBackbone.from_config(settings)


# For each family, the function that builds a body. A body has `channels`, and its output has `feature_maps`.
FAMILIES: dict[str, Callable[[BackboneConfig], nn.Module]] = {
    "resnet": ResNet,
    "pvt_v2_li": _build_pvt,
    "efficientnet_lite": EfficientNetLite,
    "auto": AutoBody,
}
