"""Backbones trained on ImageNet: their tensors under our names, and their layer outputs, computed without our modules.

The names, shapes and facts are those of the published files. A file holds no code, so nobody can run its own network;
`Translation.compute_stages` does it with plain functions, and the import compares our backbone with it on a picture.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mm3d.model.config import BackboneConfig, ModelConfig
from mm3d.model.efficientnet import EPS, STRIDES
from mm3d.model.weights import BODY
from mm3d.shared.errors import InputError

Rules = list[tuple[str, str]]  # parts of names and what replaces them, applied in this order

NOT_A_WEIGHT = "not a weight"
CLASSIFIER = "belongs to the classifier of ImageNet"
EFFICIENTNET_CLASSIFIER = ("_conv_head.", "_bn1.", "_fc.")
COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Translation:
    """A file's tensors under our names, and the model they fit."""

    config: ModelConfig
    state: dict[str, Tensor]
    dropped: dict[str, str]  # the file's tensors that are not used, and why
    converted: dict[str, str] = field(default_factory=dict)  # our tensors that took changed values, and the change
    # The four stages of the file's own network, of a grey picture (1, 1, H, W) with values from 0 to 1.
    compute_stages: Callable[[Tensor], list[Tensor]] | None = None


# ---- EfficientNet-Lite of the package efficientnet_lite_pytorch ------------------------------------------------------


def translate_efficientnet(path: Path, source: dict[str, Tensor]) -> Translation:
    """EfficientNet-Lite, whose grey values were (v - 127) / 128 in all three channels when it was trained."""
    widths: list[int] = []
    while (name := f"_blocks.{len(widths)}._project_conv.weight") in source:
        widths.append(source[name].shape[0])
    parts = [(width, len(list(same))) for width, same in groupby(widths)]
    if len(parts) != len(STRIDES):
        raise InputError(
            f"{path} is no complete EfficientNet-Lite: its blocks have {len(parts)} different widths instead of "
            f"{len(STRIDES)}; give one of the package efficientnet_lite_pytorch."
        )
    places = [(part, block) for part, (_, depth) in enumerate(parts) for block in range(depth)]
    rules: Rules = [
        *[(f"{BODY}_blocks.{n}.", f"{BODY}parts.{part}.{block}.") for n, (part, block) in enumerate(places)],
        (f"{BODY}_conv_stem.", f"{BODY}stem.convolution."),
        (f"{BODY}_bn0.", f"{BODY}stem.normalization."),
        ("._expand_conv.", ".expand.convolution."),
        ("._bn0.", ".expand.normalization."),
        ("._depthwise_conv.", ".depthwise.convolution."),
        ("._bn1.", ".depthwise.normalization."),
        ("._project_conv.", ".project.convolution."),
        ("._bn2.", ".project.normalization."),
    ]
    dropped = {name: CLASSIFIER for name in source if name.startswith(EFFICIENTNET_CLASSIFIER)}
    dropped |= {name: NOT_A_WEIGHT for name in source if name.endswith(COUNTER)}
    state = {rename(rules, BODY + name): tensor for name, tensor in source.items() if name not in dropped}
    backbone = BackboneConfig(
        family="efficientnet_lite",
        widths=tuple(width for width, _ in parts),
        depths=tuple(depth for _, depth in parts),
        stem=source["_conv_stem.weight"].shape[0],
    )
    config = ModelConfig(backbone=backbone, pixel_mean=127 / 255, pixel_std=128 / 255)
    strides = [STRIDES[part] if block == 0 else 1 for part, block in places]
    return Translation(
        config, state, dropped, compute_stages=lambda picture: _compute_efficientnet(source, strides, picture)
    )


def _compute_efficientnet(source: dict[str, Tensor], strides: list[int], picture: Tensor) -> list[Tensor]:
    """The stages of a picture whose sizes are multiples of 32."""

    def convolve(x: Tensor, name: str, norm: str, stride: int = 1) -> Tensor:
        weight = source[f"{name}.weight"]
        kernel = weight.shape[-1]
        before, after = ((kernel - 2) // 2, (kernel - 1) // 2) if stride == 2 else (kernel // 2, kernel // 2)
        x = F.pad(x, (before, after, before, after))
        x = F.conv2d(x, weight, stride=stride, groups=x.shape[1] // weight.shape[1])
        mean, var, gain, shift = (
            source[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, var, gain, shift, eps=EPS)

    stages = []
    x = (255 * picture.expand(-1, 3, -1, -1) - 127) / 128
    x = F.relu6(convolve(x, "_conv_stem", "_bn0", stride=2))
    for number, stride in enumerate(strides):
        block, y = f"_blocks.{number}.", x
        if stride == 2:
            stages.append(x)
        if f"{block}_expand_conv.weight" in source:
            y = F.relu6(convolve(y, f"{block}_expand_conv", f"{block}_bn0"))
        y = F.relu6(convolve(y, f"{block}_depthwise_conv", f"{block}_bn1", stride))
        y = convolve(y, f"{block}_project_conv", f"{block}_bn2")
        x = x + y if x.shape == y.shape else y
    return [*stages[1:], x]  # without the one of stride 2


def rename(rules: Rules, name: str) -> str:
    """Replace parts of a name, in the order of the rules."""
    for theirs, ours in rules:
        name = name.replace(theirs, ours)
    return name


# ---- the check -------------------------------------------------------------------------------------------------------


def draw_picture() -> Tensor:
    """A grey picture (1, 1, 160, 128) from 0 to 1 with large and small structures, always the same."""
    generator = torch.Generator().manual_seed(0)
    layers = [torch.rand(1, 1, 160 // size, 128 // size, generator=generator) for size in (32, 8, 2, 1)]
    resized = [F.interpolate(layer, size=(160, 128), mode="bilinear") for layer in layers]
    return torch.stack(resized).mean(dim=0)
