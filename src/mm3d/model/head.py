"""One head of the cascade: proposals (h, b) in, refined proposals out. Letters and equation numbers are the paper's."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mm3d.model import fusion
from mm3d.model.boxes import apply_deltas
from mm3d.model.config import ModelConfig
from mm3d.model.roi_align import POSITIONS, Pyramid, roi_align

CACHED_FLOATS = 4_000_000  # RoI features in work at a time on a CPU: 16 MB


@dataclass(frozen=True)
class HeadOutput:
    """What a head says of the N proposals of M views."""

    h: Tensor  # (M, N, D) fused object features
    b: Tensor  # (M, N, 4) boxes, xyxy in model pixels
    m: Tensor  # (M, N) malignancy logits
    slice_logits: Tensor | None  # (M, N, S); softmax over S gives w
    slice_place: Tensor | None  # (M, N) from 0 (first slice) to 1 (last), of fusion "mlp", which has no w


class CrossAttn(nn.Module):
    """Eq. 3: each proposal attends to the proposals of the other view.

    The normalised attention is added: h + norm(attention). The norm's weight starts at zero, so a fresh CrossAttn is
    the identity and an imported Sparse R-CNN keeps its output; norm(h + attention), as in the other blocks, would
    normalise h a second time and could not. A view without a partner adds nothing: the same identity.
    """

    def __init__(self, channels: int, attention_heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, attention_heads, batch_first=True)
        self.norm = nn.LayerNorm(channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, h: Tensor, partner: Tensor) -> Tensor:
        """h: (M, N, D); partner: (M,) index of the view's other view, or of itself where there is none."""
        other = h[partner]
        paired = partner != torch.arange(len(partner), device=partner.device)
        added = self.norm(self.attention(h, other, other, need_weights=False)[0])
        return h + added * paired[:, None, None]


class DynamicConv(nn.Module):
    """Eq. 5: the RoI features of every slice meet two kernels made from the proposal's feature, once per proposal."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.channels, self.inner = channels, inner
        self.make_kernels = nn.Linear(channels, 2 * channels * inner)
        self.norm1 = nn.LayerNorm(inner)
        self.norm2 = nn.LayerNorm(channels)
        self.out = nn.Linear(POSITIONS * channels, channels)
        self.norm3 = nn.LayerNorm(channels)

    def forward(self, h: Tensor, f: Tensor) -> Tensor:
        """h: (M, N, D), f: (M, N, K, S, D). Returns (M, N, S, D)."""
        M, N, K, S, D = f.shape
        kernel1, kernel2 = self.make_kernels(h).view(M * N, 2, D * self.inner).unbind(1)
        x = torch.bmm(f.view(M * N, K * S, D), kernel1.view(M * N, D, self.inner))
        x = self.norm1(x).relu_()
        # Slices before positions from here on, turned while the feature is narrow.
        x = x.view(M * N, K, S, self.inner).transpose(1, 2).reshape(M * N, S * K, self.inner)
        x = torch.bmm(x, kernel2.view(M * N, self.inner, D))
        x = self.norm2(x).relu_()
        x = self.out(x.view(M, N, S, K * D))
        return self.norm3(x).relu_()


def _tower(channels: int, layers: int) -> nn.Sequential:
    blocks = [[nn.Linear(channels, channels, bias=False), nn.LayerNorm(channels), nn.ReLU()] for _ in range(layers)]
    return nn.Sequential(*[module for block in blocks for module in block])


class CascadeHead(nn.Module):
    """SelfAttn, CrossAttn, DynamicConv on every slice, feed-forward, classification, fusion, regression."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D = config.channels
        self.config = config
        self.self_attn = nn.MultiheadAttention(D, config.attention_heads, batch_first=True)
        self.norm1 = nn.LayerNorm(D)
        self.cross_attn = CrossAttn(D, config.attention_heads)
        self.dynamic_conv = DynamicConv(D, config.dynamic_channels)
        self.norm2 = nn.LayerNorm(D)
        self.linear1 = nn.Linear(D, config.feedforward)
        self.linear2 = nn.Linear(config.feedforward, D)
        self.norm3 = nn.LayerNorm(D)
        self.cls_tower = _tower(D, 1)
        self.cls_logit = nn.Linear(D, 1)
        self.reg_tower = _tower(D, 3)
        self.reg_deltas = nn.Linear(D, 4)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        nn.init.constant_(self.cls_logit.bias, -math.log(99))  # every proposal starts at a score of 0.01
        # Sparse R-CNN starts this at random, too, and throws its boxes about until it has learned not to. At zero they
        # start where they are: after 30 steps from scratch the slices of 24 of 24 blobs were right, against 14 of 24.
        nn.init.zeros_(self.reg_deltas.weight)
        nn.init.zeros_(self.reg_deltas.bias)
        if config.fusion in fusion.WITH_PARAMETERS:
            self.fusion = fusion.WITH_PARAMETERS[config.fusion](config)

    def forward(self, h: Tensor, b: Tensor, pyramid: Pyramid, partner: Tensor) -> HeadOutput:
        """h: (M, N, D) and b: (M, N, 4), the proposals; partner: (M,) the index of each view's other view."""
        h = self.norm1(h + self.self_attn(h, h, h, need_weights=False)[0])  # Eq. 1
        h = self.cross_attn(h, partner)  # Eq. 3
        h_s, slice_logits = self._meet_slices(h, b, pyramid)  # h_{i,s}: (M, N, S, D)
        slice_place = None
        if self.config.fusion == "timesform":
            h = h_s[:, :, 0]  # fused already
        elif self.config.fusion == "query":
            h, slice_logits = self.fusion(h_s)  # Eq. 9
        elif self.config.fusion == "mlp":
            h, slice_place = self.fusion(h_s)  # Eq. 10
        else:
            slice_logits = self.classify(h_s)  # m_{i,s}: (M, N, S)
            h = fusion.PARAMETER_FREE[self.config.fusion](h_s, slice_logits)  # Eq. 6
        b = apply_deltas(b, self.reg_deltas(self.reg_tower(h)))
        return HeadOutput(h, b, self.classify(h), slice_logits, slice_place)

    def _meet_slices(self, h: Tensor, b: Tensor, pyramid: Pyramid) -> tuple[Tensor, Tensor | None]:
        """RoIAlign and DynamicConv on every slice. Returns h_{i,s} (M, N, S, D); with timesform S = 1, and its logits.

        Proposals do not meet here. Where nothing is kept for a backward pass, a CPU takes a few of them at a time,
        whose RoI features stay in its cache: about 0.65 of the time, measured at S = 16, N = 100, D = 256.
        """
        M, N = b.shape[:2]
        _, S, D = pyramid.table.shape
        at_once = N
        if b.device.type == "cpu" and not torch.is_grad_enabled():
            at_once = max(1, CACHED_FLOATS // (M * POSITIONS * S * D))
        features, logits = [], []
        for h_few, b_few in zip(h.split(at_once, dim=1), b.split(at_once, dim=1), strict=True):
            f = roi_align(pyramid, b_few, self.config.canonical_box)  # f_{b,s}: (M, few, K, S, D)
            if self.config.fusion == "timesform":
                f, slice_logits = self.fusion(f)  # Eq. 8: one slice is left
                logits.append(slice_logits)
            if self.config.recompute and torch.is_grad_enabled():  # f is kept; what follows is four times as much
                features.append(checkpoint(self.object_features, h_few, f, use_reentrant=False))
            else:
                features.append(self.object_features(h_few, f))
        return torch.cat(features, dim=1), torch.cat(logits, dim=1) if logits else None

    def object_features(self, h: Tensor, f: Tensor) -> Tensor:
        """Eq. 5 with the feed-forward block behind it: h (M, N, D), f (M, N, K, S, D) -> h_{i,s} (M, N, S, D)."""
        h_s = self.norm2(h[:, :, None] + self.dynamic_conv(h, f))
        return self.norm3(h_s + self.linear2(self.linear1(h_s).relu_()))

    def classify(self, h: Tensor) -> Tensor:
        """The one classification module, for slices and volumes alike: (..., D) -> malignancy logits (...)."""
        return self.cls_logit(self.cls_tower(h))[..., 0].float()
