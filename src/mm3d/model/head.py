"""One head of the cascade: proposals (h, b) in, refined proposals out. Letters and equation numbers are the paper's."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mm3d.model.boxes import apply_deltas
from mm3d.model.config import ModelConfig
from mm3d.model.fusion import FUSIONS
from mm3d.model.linear import Linear
from mm3d.model.memory import few_proposals_at_a_time, in_float32, recompute_in_backward
from mm3d.model.roi_align import POSITIONS, Pyramid


@dataclass(frozen=True)
class Proposals:
    """The N proposals of M views, as a head refined them."""

    h: Tensor  # (M, N, D) features
    b: Tensor  # (M, N, 4) boxes, xyxy in model pixels
    m: Tensor  # (M, N) malignancy, as a logit
    log_w: Tensor | None  # (M, N, S): its softmax over the slices is w; None if the fusion has no w
    z: Tensor  # (M, N) the most suspicious slice, from 0 to S - 1


class CascadeHead(nn.Module):
    """SelfAttn, CrossAttn, RoIAlign and DynamicConv on every slice, classification, fusion, regression."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D = config.channels
        self.config = config
        self.self_attn = nn.MultiheadAttention(D, config.attention_heads, batch_first=True)
        self.norm1 = nn.LayerNorm(D)
        self.cross_attn = CrossAttn(D, config.attention_heads)
        self.dynamic_conv = DynamicConv(D, config.dynamic_channels)
        self.norm2 = nn.LayerNorm(D)
        self.linear1 = Linear(D, config.feedforward)
        self.linear2 = Linear(config.feedforward, D)
        self.norm3 = nn.LayerNorm(D)
        self.cls_tower = _make_tower(D, 1)
        self.cls_logit = Linear(D, 1)
        self.reg_tower = _make_tower(D, 3)
        self.reg_deltas = Linear(D, 4)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        nn.init.constant_(self.cls_logit.bias, -math.log(99))  # every proposal starts at a score of 0.01
        # Sparse R-CNN starts this at random and first has to learn not to move its boxes about. At zero they start
        # where they are: after 30 steps from scratch the slices of 24 of 24 blobs were right, against 14 of 24.
        nn.init.zeros_(self.reg_deltas.weight)
        nn.init.zeros_(self.reg_deltas.bias)
        self.fusion = FUSIONS[config.fusion](config)

    def forward(self, h: Tensor, b: Tensor, pyramid: Pyramid, partner: Tensor) -> Proposals:
        """h: (M, N, D) and b: (M, N, 4), the proposals; partner: (M,) the index of each view's other view."""
        h_prime = self.attend(h)  # Eq. 1: h', the proposals of a view look at each other
        h_tilde = self.cross_attn(h_prime, partner)  # Eq. 3: h~, and at those of the breast's other view
        h_s, m_s = self.look_at_slices(h_tilde, b, pyramid)  # Eq. 5: h_{i,s} and m_{i,s}, every slice by itself
        h, log_w, z = self.fusion(h_s, m_s)  # Eq. 6: h_i, w_i and z_i, the slices become a volume
        b = self.regress(h, b)  # b_i
        m = self.classify(h)  # m_i
        return Proposals(h, b, m, log_w, z)

    @in_float32
    def attend(self, h: Tensor) -> Tensor:
        """Eq. 1."""
        return self.norm1(h + self.self_attn(h, h, h, need_weights=False)[0])

    @few_proposals_at_a_time
    def look_at_slices(self, h_tilde: Tensor, b: Tensor, pyramid: Pyramid) -> tuple[Tensor, Tensor]:
        """The features h_{i,s} (M, N, S, D) and the malignancy m_{i,s} (M, N, S) of every slice."""
        f_s = pyramid.pool(b, self.config.canonical_box)  # f_{b,s}: (M, N, K, S, D), what is in box b on slice s
        f_s, m_s = self.fusion.fuse_rois(f_s)  # only TimeSform fuses here, Eq. 8
        h_s = self.interact(h_tilde, f_s)
        return h_s, self.classify(h_s) if m_s is None else m_s

    @recompute_in_backward
    def interact(self, h_tilde: Tensor, f_s: Tensor) -> Tensor:
        """Eq. 5 and the feed-forward block: h~ (M, N, D), f_{b,s} (M, N, K, S, D) -> h_{i,s} (M, N, S, D)."""
        h_s = self.norm2(h_tilde[:, :, None] + self.dynamic_conv(h_tilde, f_s))
        return self.norm3(h_s + self.linear2(self.linear1(h_s).relu_()))

    def classify(self, h: Tensor) -> Tensor:
        """The one classification module, for slices and volumes alike: (..., D) -> malignancy logits (...)."""
        return self.cls_logit(self.cls_tower(h))[..., 0].float()

    def regress(self, h: Tensor, b: Tensor) -> Tensor:
        """The boxes (M, N, 4), moved and scaled as the features (M, N, D) say."""
        return apply_deltas(b, self.reg_deltas(self.reg_tower(h)))


class CrossAttn(nn.Module):
    """Eq. 3: each proposal attends to the proposals of the other view.

    The normalised attention is added: h + norm(attention). The norm's weight starts at zero, so a fresh CrossAttn is
    the identity, and an imported Sparse R-CNN keeps its output. The form of the other blocks, norm(h + attention),
    would normalise h a second time. A view without a partner adds nothing, which is the same identity.
    """

    def __init__(self, channels: int, attention_heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, attention_heads, batch_first=True)
        self.norm = nn.LayerNorm(channels)
        nn.init.zeros_(self.norm.weight)

    @in_float32
    def forward(self, h: Tensor, partner: Tensor) -> Tensor:
        """h: (M, N, D); partner: (M,) index of the view's other view, or of itself where there is none."""
        other = h[partner]
        paired = partner != torch.arange(len(partner), device=partner.device)
        added = self.norm(self.attention(h, other, other, need_weights=False)[0])
        return h + added * paired[:, None, None]


class DynamicConv(nn.Module):
    """Eq. 5: two kernels are made from the proposal's feature once, and convolve the RoI features of every slice."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.inner = inner
        self.make_kernels = Linear(channels, 2 * channels * inner)
        self.norm1 = nn.LayerNorm(inner)
        self.norm2 = nn.LayerNorm(channels)
        self.out = Linear(POSITIONS * channels, channels)
        self.norm3 = nn.LayerNorm(channels)

    def forward(self, h: Tensor, f_s: Tensor) -> Tensor:
        """h: (M, N, D), f_s: (M, N, K, S, D). Returns (M, N, S, D)."""
        M, N, K, S, D = f_s.shape
        kernel1, kernel2 = self.make_kernels(h).view(M * N, 2, D * self.inner).unbind(1)
        x = torch.bmm(f_s.view(M * N, K * S, D), kernel1.view(M * N, D, self.inner))
        x = self.norm1(x).relu_()
        # From here on slices come before positions. They are exchanged here because the feature is narrow.
        x = x.view(M * N, K, S, self.inner).transpose(1, 2).reshape(M * N, S * K, self.inner)
        x = torch.bmm(x, kernel2.view(M * N, self.inner, D))
        x = self.norm2(x).relu_()
        x = self.out(x.view(M, N, S, K * D))
        return self.norm3(x).relu_()


def _make_tower(channels: int, layers: int) -> nn.Sequential:
    blocks = [[Linear(channels, channels, bias=False), nn.LayerNorm(channels), nn.ReLU()] for _ in range(layers)]
    return nn.Sequential(*[module for block in blocks for module in block])
