"""From slices to a volume: how the slice features h_{i,s} of a proposal become its feature h_i.

The first three have no parameter: this is where M&M becomes M&M-3D. The other three are the paper's "complex" variants,
whose parameters have to be learned from tomosynthesis. Each returns the slice scores with which it looked at the slices
(logits whose softmax over s is w), or, `MLPRegress`, the slice itself.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, scaled_dot_product_attention

from mm3d.model.config import ModelConfig
from mm3d.model.roi_align import POSITIONS
from mm3d.shared.errors import InputError


def weighted(h_s: Tensor, m_s: Tensor) -> Tensor:
    """Eq. 6, the paper's: the average of h_{i,s} weighted by the softmax of the slices' malignancy.

    h_s: (M, N, S, D), m_s: (M, N, S). Returns (M, N, D).
    """
    w = m_s.softmax(dim=-1)
    return (w[..., None] * h_s).sum(dim=-2)


def mean(h_s: Tensor, m_s: Tensor) -> Tensor:  # noqa: ARG001 (the same arguments as its siblings)
    """Ablation "MeanPool": every slice counts the same; m_s only tells the slice."""
    return h_s.mean(dim=-2)


def maximum(h_s: Tensor, m_s: Tensor) -> Tensor:  # noqa: ARG001
    """Ablation "MaxPool": channel by channel, the largest value over the slices; m_s only tells the slice."""
    return h_s.amax(dim=-2)


PARAMETER_FREE = {"weighted": weighted, "mean": mean, "max": maximum}


def _log(weights: Tensor) -> Tensor:
    """Attention weights as logits, whose softmax gives them back; a weight that underflowed is tiny, not -inf."""
    return weights.float().clamp(min=torch.finfo(torch.float32).tiny).log()


class TimeSform(nn.Module):
    """Eq. 8: joint attention over slices and positions fuses the RoI features, before DynamicConv.

    Each of the K positions of the mean RoI asks all S x K positions; a learned embedding tells where in the RoI a
    position lies. What comes back is added to the mean after a norm whose weight starts at zero, so a fresh module is
    mean pooling and pretrained weights keep their meaning.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(POSITIONS, config.channels) * 0.02)
        self.attention = nn.MultiheadAttention(config.channels, config.attention_heads, batch_first=True)
        self.norm = nn.LayerNorm(config.channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """f: (M, N, K, S, D). Returns the RoI features as one slice (M, N, K, 1, D), and slice logits (M, N, S)."""
        M, N, K, S, D = f.shape
        tokens = (f + self.position[:, None]).reshape(M * N, K * S, D)
        mean_f = f.mean(dim=3)
        query = (mean_f + self.position).reshape(M * N, K, D)
        fused, w = self._attend(query, tokens, S)
        fused = mean_f + self.norm(fused).reshape(M, N, K, D)
        return fused[:, :, :, None], _log(w.reshape(M, N, S))

    def _attend(self, query: Tensor, tokens: Tensor, S: int) -> tuple[Tensor, Tensor]:
        """`attention` of a query (R, K, D) to tokens (R, K * S, D), and the share that each slice has of it (R, S).

        What nn.MultiheadAttention gives. The slices' shares come from the product that also fuses the values: every
        value carries its slice as S more channels, and queries and keys are as wide with zeros. So torch's own kernel
        does it all and the weights, by far the largest tensor, are never written out.
        """
        D, heads = query.shape[-1], self.attention.num_heads
        in_weight, in_bias = self.attention.in_proj_weight, self.attention.in_proj_bias
        q = linear(query, in_weight[:D], in_bias[:D])
        k, v = linear(tokens, in_weight[D:], in_bias[D:]).chunk(2, dim=-1)
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))  # (R, heads, tokens, D / heads)
        slice_of = torch.eye(S, dtype=v.dtype, device=v.device).repeat(v.shape[2] // S, 1)  # (tokens, S)
        fused, shares = scaled_dot_product_attention(
            pad(q, (0, S)),
            pad(k, (0, S)),
            torch.cat([v, slice_of.expand(*v.shape[:2], -1, -1)], dim=-1),
            scale=(D // heads) ** -0.5,
        ).split((D // heads, S), dim=-1)
        return self.attention.out_proj(fused.transpose(1, 2).flatten(2)), shares.mean(dim=(1, 2))


class QuerySummary(nn.Module):
    """Eq. 9: a learned query per proposal attends over the slices; its attention weights are w."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(config.proposals, config.channels))
        self.attention = nn.MultiheadAttention(config.channels, config.attention_heads, batch_first=True)

    def forward(self, h_s: Tensor) -> tuple[Tensor, Tensor]:
        """h_s: (M, N, S, D). Returns h (M, N, D) and slice logits (M, N, S)."""
        M, N, _, D = h_s.shape
        slices = h_s.flatten(0, 1)
        query = self.query.repeat(M, 1)[:, None]
        h, weights = self.attention(query, slices, slices, need_weights=True)
        return h.view(M, N, D), _log(weights[:, 0]).unflatten(0, (M, N))


class MLPRegress(nn.Module):
    """Eq. 10: an MLP over the features of all slices, and a regression of the slice from its result."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.slices = config.slices
        self.mlp = nn.Sequential(
            nn.Linear(config.slices * config.channels, config.channels),
            nn.ReLU(),
            nn.Linear(config.channels, config.channels),
            nn.LayerNorm(config.channels),
        )
        self.regress = nn.Linear(config.channels, 1)

    def forward(self, h_s: Tensor) -> tuple[Tensor, Tensor]:
        """h_s: (M, N, S, D). Returns h (M, N, D) and the slice's place (M, N), 0 for the first and 1 for the last."""
        S = h_s.shape[2]
        if S > self.slices:
            raise InputError(
                f"The fusion 'mlp' of this model has room for {self.slices} slices and was given {S}: "
                f"prepare volumes to {self.slices} slices."
            )
        h = self.mlp(pad(h_s, (0, 0, 0, self.slices - S)).flatten(-2))
        return h, self.regress(h)[..., 0].float().sigmoid()


WITH_PARAMETERS: dict[str, type[TimeSform] | type[QuerySummary] | type[MLPRegress]] = {
    "timesform": TimeSform,
    "query": QuerySummary,
    "mlp": MLPRegress,
}
