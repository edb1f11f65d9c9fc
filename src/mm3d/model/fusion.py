"""From slices to a volume: how the slice features h_{i,s} of a proposal become its feature h_i.

`WeightedAverage`, `MeanPool` and `MaxPool` have no parameters: this is where M&M becomes M&M-3D. The other three are
the paper's "complex" variants, whose parameters have to be learned from tomosynthesis. To add a fusion, write its class
and its line in the table `FUSIONS`, at the end; then add its name to `FusionName` (config.py).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from mm3d.model.config import FusionName, ModelConfig
from mm3d.model.linear import Linear
from mm3d.model.memory import attend_to_slices
from mm3d.model.roi_align import POSITIONS
from mm3d.shared.errors import InputError

Fused = tuple[Tensor, Tensor | None, Tensor]


class Fusion(nn.Module):
    """What all fusions have in common. A head calls `fuse_rois`, then DynamicConv (Eq. 5), then the fusion itself:

        h, log_w, z = fusion(h_s, m_s)

    h_s: (M, N, S, D) features of the slices; m_s: (M, N, S) how malignant each slice looks, as a logit. Returns h
    (M, N, D), the feature of the volume; log_w (M, N, S), whose softmax over the slices is w, or None if the fusion has
    no w; z (M, N), the most suspicious slice from 0 to S - 1.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    def fuse_rois(self, f_s: Tensor) -> tuple[Tensor, Tensor | None]:
        """For a fusion before DynamicConv: f_s (M, N, K, S, D) -> f (M, N, K, 1, D) and m_s. The others do nothing."""
        return f_s, None


class WeightedAverage(Fusion):
    """Eq. 6, the paper's: the average of h_{i,s}, weighted by the softmax of how malignant the slices look."""

    def forward(self, h_s: Tensor, m_s: Tensor) -> Fused:
        w = m_s.softmax(dim=-1)
        h = (w[..., None] * h_s).sum(dim=-2)
        return h, m_s, m_s.argmax(dim=-1)


class MeanPool(Fusion):
    """Ablation: every slice counts the same, and m_s only decides on the slice."""

    def forward(self, h_s: Tensor, m_s: Tensor) -> Fused:
        return h_s.mean(dim=-2), m_s, m_s.argmax(dim=-1)


class MaxPool(Fusion):
    """Ablation: in each channel the largest value over the slices, and m_s only decides on the slice."""

    def forward(self, h_s: Tensor, m_s: Tensor) -> Fused:
        return h_s.amax(dim=-2), m_s, m_s.argmax(dim=-1)


def _log(weights: Tensor) -> Tensor:
    """The logarithm of attention weights. A weight that underflowed becomes tiny, not -inf."""
    return weights.float().clamp(min=torch.finfo(torch.float32).tiny).log()


class TimeSform(Fusion):
    """Eq. 8: joint attention over slices and positions fuses the RoI features, before DynamicConv.

    Each of the K positions of the mean RoI attends to all S x K positions. A learned embedding says where in the RoI a
    position lies. The result is added to the mean after a norm whose weight starts at zero. So a fresh module is mean
    pooling, and pretrained weights keep their meaning.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.position = nn.Parameter(torch.randn(POSITIONS, config.channels) * 0.02)
        self.attention = nn.MultiheadAttention(config.channels, config.attention_heads, batch_first=True)
        self.norm = nn.LayerNorm(config.channels)
        nn.init.zeros_(self.norm.weight)

    def fuse_rois(self, f_s: Tensor) -> tuple[Tensor, Tensor]:
        M, N, K, S, D = f_s.shape
        tokens = (f_s + self.position[:, None]).reshape(M * N, K * S, D)
        mean = f_s.mean(dim=3)
        query = (mean + self.position).reshape(M * N, K, D)
        attended, w = attend_to_slices(self.attention, query, tokens, S)
        f = mean + self.norm(attended).reshape(M, N, K, D)
        return f[:, :, :, None], _log(w.reshape(M, N, S))

    def forward(self, h_s: Tensor, m_s: Tensor) -> Fused:
        return h_s[:, :, 0], m_s, m_s.argmax(dim=-1)  # one slice is left


class QuerySummary(Fusion):
    """Eq. 9: a learned query for each proposal attends to the slices. Its attention weights are w."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.query = nn.Parameter(torch.randn(config.proposals, config.channels))
        self.attention = nn.MultiheadAttention(config.channels, config.attention_heads, batch_first=True)

    def forward(self, h_s: Tensor, m_s: Tensor) -> Fused:  # noqa: ARG002 (w comes from the attention)
        M, N, _, D = h_s.shape
        slices = h_s.flatten(0, 1)
        query = self.query.repeat(M, 1)[:, None]
        h, w = self.attention(query, slices, slices, need_weights=True)
        log_w = _log(w[:, 0]).unflatten(0, (M, N))
        return h.view(M, N, D), log_w, log_w.argmax(dim=-1)


class MLPRegress(Fusion):
    """Eq. 10: an MLP over the features of all slices, and a regression of the slice z from its result."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.mlp = nn.Sequential(
            Linear(config.slices * config.channels, config.channels),
            nn.ReLU(),
            Linear(config.channels, config.channels),
            nn.LayerNorm(config.channels),
        )
        self.regress = Linear(config.channels, 1)

    def forward(self, h_s: Tensor, m_s: Tensor) -> Fused:  # noqa: ARG002 (z comes from the regression)
        S, room = h_s.shape[2], self.config.slices
        if S > room:
            raise InputError(
                f"The fusion 'mlp' of this model has room for {room} slices and was given {S}: "
                f"prepare volumes to {room} slices."
            )
        h = self.mlp(pad(h_s, (0, 0, 0, room - S)).flatten(-2))
        return h, None, self.regress(h)[..., 0].float().sigmoid() * (S - 1)


FUSIONS: dict[FusionName, type[Fusion]] = {
    "weighted": WeightedAverage,
    "mean": MeanPool,
    "max": MaxPool,
    "timesform": TimeSform,
    "query": QuerySummary,
    "mlp": MLPRegress,
}
