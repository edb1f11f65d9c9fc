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
        stages = list(self.body(x.contiguous(memory_format=torch.channels_last)).feature_maps)
        levels: list[Tensor] = []
        above = None
        for lateral, output in zip(reversed(self.lateral), reversed(self.output), strict=True):
            level = lateral(stages.pop())  # each stage is let go as soon as it was used: they are large
            if above is not None:
                level += F.interpolate(above, size=level.shape[-2:], mode="nearest")
            levels.insert(0, output(level))
            above = level
        return levels

    def pyramid(self, views: list[Tensor]) -> Pyramid:
        """views: M of (S, H, W), each of its own size. `config.chunk` slices are in work at a time.

        Views of one size go together. None is padded, so neither GroupNorm nor PVT's pooling, which look at the whole
        image, can let a breast's result depend on the others in its batch.
        """
        groups: dict[torch.Size, list[int]] = {}
        for m, view in enumerate(views):
            groups.setdefault(view.shape[1:], []).append(m)
        order = [m for members in groups.values() for m in members]
        grouped = [[views[m] for m in members] for members in groups.values()]
        table = self._table(grouped) if torch.is_grad_enabled() else self._table_in_place(grouped)
        pyramid = Pyramid.of(table, [views[m].shape[1:] for m in order])
        back = torch.tensor(order, device=table.device).argsort()
        return Pyramid(table, pyramid.shapes[back], pyramid.first_row[back])

    def _table(self, groups: list[list[Tensor]]) -> Tensor:
        """For training: every chunk's features are kept for the backward pass, or computed again in it."""
        recompute = self.config.recompute and self.training
        tables = []
        for views in groups:
            chunks = [torch.stack(chunk) for chunk in self._chunks(views)]
            done = [checkpoint(self, chunk, use_reentrant=False) if recompute else self(chunk) for chunk in chunks]
            levels = [torch.cat(parts).unflatten(0, (len(views), -1)) for parts in zip(*done, strict=True)]
            tables.append(table_of(levels))
        return torch.cat(tables) if len(tables) > 1 else tables[0]

    def _table_in_place(self, groups: list[list[Tensor]]) -> Tensor:
        """For inference: every slice goes straight to its place, because a full-size table is 3.3 GB a view and there
        is no room for a second copy."""
        shapes = [level_shapes(views[0].shape[1:]) for views in groups]
        counts = [sum(height * width for height, width in of_group) for of_group in shapes]
        rows = sum(len(views) * count for views, count in zip(groups, counts, strict=True))
        table, first = None, 0
        for views, count in zip(groups, counts, strict=True):
            S, done = len(views[0]), 0
            for chunk in self._chunks(views):
                levels = self(torch.stack(chunk))
                if table is None:
                    table = levels[0].new_empty(rows, S, self.config.channels)
                for i in range(len(chunk)):
                    view, s = divmod(done + i, S)
                    start = first + view * count
                    for level in levels:
                        end = start + level[i, 0].numel()
                        table[start:end, s] = level[i].flatten(1).T
                        start = end
                done += len(chunk)
            first += len(views) * count
        assert table is not None
        return table

    def _chunks(self, views: list[Tensor]) -> list[list[Tensor]]:
        """The slices of views of one size, `config.chunk` of them at a time."""
        slices = [one for view in views for one in view]
        size = self.config.chunk or len(slices)
        return [slices[i : i + size] for i in range(0, len(slices), size)]


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
