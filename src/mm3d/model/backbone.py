"""The feature extractor: a backbone of `transformers` and a feature pyramid (FPN) on its four stages."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.utils.checkpoint import checkpoint

from mm3d.model.config import GROUPS, BackboneConfig, ModelConfig
from mm3d.model.roi_align import Pyramid, level_shapes, table_of

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
        x = ((slices - self.config.pixel_mean) / self.config.pixel_std)[:, None]
        stages = self.body(x.contiguous(memory_format=torch.channels_last)).feature_maps
        merged = [lateral(stage) for lateral, stage in zip(self.lateral, stages, strict=True)]
        for fine, coarse in ((2, 3), (1, 2), (0, 1)):
            above = F.interpolate(merged[coarse], size=merged[fine].shape[-2:], mode="nearest")
            merged[fine] = merged[fine] + above
        return [output(level) for output, level in zip(self.output, merged, strict=True)]

    def pyramid(self, views: list[Tensor]) -> Pyramid:
        """views: M of (S, H, W), each of its own size. `config.chunk` slices are in work at a time.

        Views of one size go together. None is padded, so neither GroupNorm nor PVT's pooling, which look at the whole
        image, can let a breast's result depend on the others in its batch.
        """
        groups: dict[torch.Size, list[int]] = {}
        for m, view in enumerate(views):
            groups.setdefault(view.shape[1:], []).append(m)
        order = [m for members in groups.values() for m in members]
        stacks = [torch.stack([views[m] for m in members]) for members in groups.values()]
        table = self._table(stacks) if torch.is_grad_enabled() else self._table_in_place(stacks)
        pyramid = Pyramid.of(table, [views[m].shape[1:] for m in order])
        back = torch.tensor(order, device=table.device).argsort()
        return Pyramid(table, pyramid.shapes[back], pyramid.first_row[back])

    def _table(self, stacks: list[Tensor]) -> Tensor:
        """For training: every chunk's features are kept for the backward pass, or computed again in it."""
        tables = []
        for stack in stacks:
            recompute = self.config.recompute and self.training
            done = [checkpoint(self, c, use_reentrant=False) if recompute else self(c) for c in self._chunks(stack)]
            levels = [torch.cat(chunks).unflatten(0, stack.shape[:2]) for chunks in zip(*done, strict=True)]
            tables.append(table_of(levels))
        return torch.cat(tables) if len(tables) > 1 else tables[0]

    def _table_in_place(self, stacks: list[Tensor]) -> Tensor:
        """For inference: every slice goes straight to its place, because a full-size table is 3.3 GB a view and there
        is no room for a second copy."""
        counts = [sum(height * width for height, width in level_shapes(stack.shape[2:])) for stack in stacks]
        rows = sum(len(stack) * count for stack, count in zip(stacks, counts, strict=True))
        table, first = None, 0
        for stack, count in zip(stacks, counts, strict=True):
            done = 0
            for chunk in self._chunks(stack):
                levels = self(chunk)
                if table is None:
                    table = levels[0].new_empty(rows, stack.shape[1], self.config.channels)
                for i in range(len(chunk)):
                    view, s = divmod(done + i, stack.shape[1])
                    start = first + view * count
                    table[start : start + count, s] = torch.cat([level[i].flatten(1).T for level in levels])
                done += len(chunk)
            first += len(stack) * count
        assert table is not None
        return table

    def _chunks(self, stack: Tensor) -> tuple[Tensor, ...]:
        slices = stack.flatten(0, 1)
        return slices.split(self.config.chunk or len(slices))


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
    """A copy for inference: each frozen BatchNorm made part of the convolution before it. The same output, sooner."""
    backbone = copy.deepcopy(backbone)
    for module in backbone.modules():
        norm = getattr(module, "normalization", None)
        if isinstance(norm, FrozenBatchNorm2d):
            conv = module.convolution
            assert isinstance(conv, nn.Conv2d)
            conv.weight, conv.bias = fuse_conv_bn_weights(
                conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
            module.normalization = nn.Identity()
    return backbone
