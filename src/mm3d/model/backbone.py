"""The feature extractor: a backbone of `transformers` and a feature pyramid (FPN) on its four stages."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from mm3d.model.config import GROUPS, BackboneConfig, ModelConfig

PVT_ATTENTION_HEADS = (1, 2, 5, 8)
PVT_MLP_RATIOS = (8, 8, 4, 4)


class FrozenBatchNorm2d(nn.Module):
    """BatchNorm with fixed statistics and weights: all four are buffers, so nothing of it trains."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class Backbone(nn.Module):
    """Grey slices to pyramid levels p2 to p5, all with D channels."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.body = _build_body(config.backbone)
        self.lateral = nn.ModuleList(nn.Conv2d(width, config.channels, 1) for width in config.backbone.widths)
        self.output = nn.ModuleList(nn.Conv2d(config.channels, config.channels, 3, padding=1) for _ in range(4))
        for conv in [*self.lateral, *self.output]:
            nn.init.kaiming_uniform_(conv.weight, a=1)
            nn.init.zeros_(conv.bias)
        # RoIAlign reads all channels of a pixel at once, so the levels are wanted with the channels last.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, slices: Tensor) -> list[Tensor]:
        """slices: (n, H, W) grey values. Returns p2 to p5, each (n, D, H_l, W_l) with H_l = ceil(H / stride)."""
        return [output(level) for output, level in zip(self.output, self.merged(slices), strict=True)]

    def merged(self, slices: Tensor) -> list[Tensor]:
        """What the 3 x 3 output convolutions of p2 to p5 are given: each stage, with what comes down from above."""
        x = ((slices - self.config.pixel_mean) / self.config.pixel_std)[:, None]
        stages = list(self.body(x.contiguous(memory_format=torch.channels_last)).feature_maps)
        levels: list[Tensor] = []
        for lateral in reversed(self.lateral):
            level = lateral(stages.pop())  # each stage is let go as soon as it was used: they are large
            if levels:
                level += F.interpolate(levels[0], size=level.shape[-2:], mode="nearest")
            levels.insert(0, level)
        return levels


def _build_body(config: BackboneConfig) -> nn.Module:
    """An AutoBackbone with one grey input channel, random weights, and no BatchNorm left."""
    from transformers import AutoBackbone, PvtV2Config, ResNetConfig  # heavy: only when a model is built

    stages = ["stage1", "stage2", "stage3", "stage4"]
    described: Any
    if config.family == "resnet":
        described = ResNetConfig(
            num_channels=1,
            embedding_size=config.stem,
            hidden_sizes=list(config.widths),
            depths=list(config.depths),
            layer_type=config.layer,
            out_features=stages,
        )
    else:
        described = PvtV2Config(
            num_channels=1,
            hidden_sizes=list(config.widths),
            depths=list(config.depths),
            num_attention_heads=list(PVT_ATTENTION_HEADS),
            mlp_ratios=list(PVT_MLP_RATIOS),
            linear_attention=True,
            out_features=stages,
        )
    body: nn.Module = AutoBackbone.from_config(described)
    for parent in list(body.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                frozen = config.norm == "frozen"
                channels = child.num_features
                norm = FrozenBatchNorm2d(channels, child.eps) if frozen else nn.GroupNorm(GROUPS, channels)
                setattr(parent, name, norm)
    return body


def folded(backbone: Backbone) -> Backbone:
    """A copy for inference: each frozen BatchNorm made part of the convolution before it, ReLUs in place. The same
    output, sooner. What need not change is shared."""
    tensors = [*backbone.parameters(), *backbone.buffers()]
    backbone = copy.deepcopy(backbone, {id(tensor): tensor for tensor in tensors})
    for module in backbone.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = True
        norm = getattr(module, "normalization", None)
        if isinstance(norm, FrozenBatchNorm2d):
            conv = module.convolution
            assert isinstance(conv, nn.Conv2d)
            conv.weight, conv.bias = fuse_conv_bn_weights(
                conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
            module.normalization = nn.Identity()
    return backbone
