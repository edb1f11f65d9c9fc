"""What saves memory and time. It gives the same numbers as the plain code, so a reader of the method may skip it.

Plain training keeps all that the backward pass needs (`roi_align.build_pyramid`), 4.3 GB for a full-size slice in a
ResNet-50. Inference, and training with `recompute`, keep nothing of a slice but its pyramid, 206 MB:

    forward    A few slices at a time go through the backbone. Their pyramids are written into one table.
    backward   Each head leaves the gradient of its RoI features. When all heads have done so, a few slices at a time go
               through the backbone again, now with a graph. The RoIs of all heads are pooled again from their pyramid,
               and the gradients go back from there.

RoIAlign is a weighted sum, and FPN's 3 x 3 output convolution is another one, so either may come first. At full size p2
to p5 have 201,137 positions, but the RoIs of 100 proposals and six heads only 29,400: with RoIAlign first, the
convolution has a seventh of the work. docs/full-size.md tells more.
"""

import ctypes
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from mm3d.model import roi_align
from mm3d.model.linear import linear
from mm3d.model.roi_align import POSITIONS, Pyramid, Taps, group_by_size, level_shapes, make_table

if TYPE_CHECKING:
    from mm3d.model.backbone import Backbone

PIXELS_AT_ONCE = 2_500_000  # one full-size slice: a ResNet-50 needs about 0.7 GB for it
# RoI features that are in work at a time: as many as fit into a CPU's cache (16 MB and 8 MB), or 256 MB elsewhere.
CACHED_FLOATS = 4_000_000
RECOMPUTED_FLOATS = 16_000_000  # of RoI features, whose heads are recomputed together: 64 MB
CONVOLVED_FLOATS_ON_CPU, CONVOLVED_FLOATS_ELSEWHERE = 2_000_000, 64_000_000


# ---- for the whole process -----------------------------------------------------------------------------------------

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's names and numbers


def keep_freed_memory() -> None:
    """Let the process keep up to 2 GB of memory that a training step frees, for the next step.

    Otherwise the C library returns large blocks to the system, which clears every page before it hands it out again. At
    mini scale this took a seventh of a step's time. Only glibc (Linux) has this setting.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


# ---- for the heads -------------------------------------------------------------------------------------------------

Look = Callable[[Any, Tensor, Tensor, Pyramid], tuple[Tensor, Tensor]]


def few_proposals_at_a_time(look: Look) -> Look:
    """Decorates a head's method look(h, b, pyramid), in which proposals do not meet.

    Where nothing is kept for a backward pass, a CPU takes a few proposals at a time, so that their RoI features stay in
    its cache. This needs about 0.65 of the time, measured at S = 16, N = 100, D = 256.
    """

    @functools.wraps(look)
    def look_at_few(head: Any, h: Tensor, b: Tensor, pyramid: Pyramid) -> tuple[Tensor, Tensor]:
        _, S, D = pyramid.table.shape
        few = max(1, CACHED_FLOATS // (len(b) * POSITIONS * S * D))
        if b.device.type != "cpu" or torch.is_grad_enabled() or few >= b.shape[1]:
            return look(head, h, b, pyramid)
        parts = [look(head, *part, pyramid) for part in zip(h.split(few, dim=1), b.split(few, dim=1), strict=True)]
        h_s, m_s = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
        return h_s, m_s

    return look_at_few


def in_float32(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorates a module's method that attends to proposals: it is computed in float32, also under autocast.

    It is a small part of the work, and torch's attention on a CPU takes nine times as long in bfloat16.
    """

    @functools.wraps(method)
    def in_full(module: Any, h: Tensor, *others: Tensor) -> Tensor:
        device = h.device.type
        if device == "meta" or not torch.is_autocast_enabled(device):
            return method(module, h, *others)
        with torch.autocast(device, enabled=False):
            return method(module, h.float(), *others)

    return in_full


def recompute_in_backward(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorates a method of a module that has a `config`: with `config.recompute`, training keeps its inputs only.

    The method is for proposals that do not meet: (M, N, ...) -> (M, N, ...). They are computed a few at a time, because
    what is computed from the RoI features of all 32 slices would take more memory than all the rest of a step.
    """

    @functools.wraps(method)
    def recomputed(module: Any, *inputs: Tensor) -> Tensor:
        if not (module.config.recompute and torch.is_grad_enabled()):
            return method(module, *inputs)
        M, N = inputs[0].shape[:2]
        few = max(1, RECOMPUTED_FLOATS * M * N // max(1, *(tensor.numel() for tensor in inputs)))
        parts = zip(*(tensor.flatten(0, 1)[None].split(few, dim=1) for tensor in inputs), strict=True)
        found = [checkpoint(method, module, *part, use_reentrant=False) for part in parts]
        return torch.cat(found, dim=1).unflatten(1, (M, N))[0]

    return recomputed


def attend_to_slices(attention: nn.MultiheadAttention, query: Tensor, tokens: Tensor, S: int) -> tuple[Tensor, Tensor]:
    """The attention of a query (R, K, D) to tokens (R, K * S, D), and the share w that each slice has of it (R, S).

    The shares come from the product that also fuses the values: every value carries its slice as S more channels, and
    queries and keys are padded with zeros to the same width. So torch's own kernel does it all, and the attention
    weights, by far the largest tensor, are never written out.
    """
    D, heads = query.shape[-1], attention.num_heads
    q = linear(query, attention.in_proj_weight[:D], attention.in_proj_bias[:D])
    k, v = linear(tokens, attention.in_proj_weight[D:], attention.in_proj_bias[D:]).chunk(2, dim=-1)
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))  # (R, heads, tokens, D / heads)
    slice_of = torch.eye(S, dtype=v.dtype, device=v.device).repeat(v.shape[2] // S, 1)  # (tokens, S)
    v = torch.cat([v, slice_of.expand(*v.shape[:2], -1, -1)], dim=-1)
    both = F.scaled_dot_product_attention(F.pad(q, (0, S)), F.pad(k, (0, S)), v, scale=(D // heads) ** -0.5)
    fused, shares = both.split((D // heads, S), dim=-1)
    return attention.out_proj(fused.transpose(1, 2).flatten(2)), shares.mean(dim=(1, 2))


# ---- the pyramid ---------------------------------------------------------------------------------------------------


def build_pyramid(backbone: "Backbone", views: list[Tensor]) -> Pyramid:
    """The pyramids of M views (S, H, W): all of the graph is kept for plain training, otherwise only the pyramid."""
    if torch.is_grad_enabled() and not backbone.config.recompute:
        return roi_align.build_pyramid(backbone, views)
    convolve_last = _is_less_work_last(backbone, views)
    with torch.no_grad():
        table, dtype = _fill_table(backbone, views, convolve_last)
    pyramid = LeanPyramid.from_table(
        table, [view.shape[1:] for view in views], convolutions=backbone.output if convolve_last else None, dtype=dtype
    )
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in backbone.parameters()):
        recomputation = _Recomputation(backbone, views, convolve_last)
        node = _BackboneNode.apply(recomputation, *recomputation.parameters)
        return replace(pyramid, recomputation=recomputation, node=node)
    return pyramid


@dataclass(frozen=True)
class LeanPyramid(Pyramid):
    """A pyramid whose table has no graph, or whose output convolutions come after RoIAlign, or both."""

    convolutions: nn.ModuleList | None  # the output convolutions of p2 to p5, if they come after RoIAlign
    dtype: torch.dtype  # of RoI features
    recomputation: "_Recomputation | None" = None  # takes the gradients of RoI features, if they are wanted
    node: Tensor | None = None  # stands for the backbone in the graph of these features

    def pool(self, boxes: Tensor, canonical_box: float) -> Tensor:
        if self.recomputation is None:
            return self._pool(boxes, canonical_box)
        with torch.no_grad():
            features = self._pool(boxes, canonical_box)
        return _RoINode.apply(self.node, features, self.recomputation, boxes.detach())

    def _pool(self, boxes: Tensor, canonical_box: float) -> Tensor:
        if self.convolutions is None:
            return roi_align.roi_align(self, boxes, canonical_box).to(self.dtype)
        return _pool_and_convolve(self, self.convolutions, boxes.detach().float(), canonical_box)


def _slices_at_once(backbone: "Backbone", view: Tensor) -> int:
    return backbone.config.chunk or max(1, PIXELS_AT_ONCE // (view.shape[1] * view.shape[2]))


def _compute_levels(backbone: "Backbone", slices: Tensor, convolve_last: bool) -> list[Tensor]:
    return backbone.merge_stages(slices) if convolve_last else backbone(slices)


def _count_rows(view: Tensor) -> int:
    return sum(height * width for height, width in level_shapes(view.shape[1:]))


def _fill_table(backbone: "Backbone", views: list[Tensor], convolve_last: bool) -> tuple[Tensor, torch.dtype]:
    """The views' table, and the type it was computed in. Every slice goes straight to its place, without a copy."""
    config, S = backbone.config, len(views[0])
    counts = [_count_rows(view) for view in views]
    table, dtype = torch.empty(0), torch.float32
    for members in group_by_size(views):
        slices = [(m, s) for m in members for s in range(S)]
        at_once = _slices_at_once(backbone, views[members[0]])
        for done in range(0, len(slices), at_once):
            few = slices[done : done + at_once]
            levels = _compute_levels(backbone, torch.stack([views[m][s] for m, s in few]), convolve_last)
            if not table.numel():
                dtype = levels[0].dtype
                kept = torch.bfloat16 if config.pyramid == "bfloat16" else dtype
                table = levels[0].new_empty(sum(counts), S, config.channels, dtype=kept)
            for i, (m, s) in enumerate(few):
                start = sum(counts[:m])
                for level in levels:
                    end = start + level[i, 0].numel()
                    table[start:end, s] = level[i].flatten(1).T
                    start = end
            del level, levels  # otherwise they would stay in memory while the next slices need it
    return table, dtype


# ---- RoIAlign before the output convolution ------------------------------------------------------------------------


def _is_less_work_last(backbone: "Backbone", views: list[Tensor]) -> bool:
    """Whether the RoIs of all heads have fewer positions to convolve than the pyramids."""
    rois = backbone.config.heads * backbone.config.proposals * POSITIONS
    return sum(_count_rows(view) for view in views) > len(views) * rois


def _pool_and_convolve(
    pyramid: LeanPyramid, convolutions: nn.ModuleList, boxes: Tensor, canonical_box: float
) -> Tensor:
    """RoI features (M, N, K, S, D) where the output convolution comes last.

    The RoIs are pooled from 9 images, which are the level shifted by each place of the 3 x 3 kernel. Each is multiplied
    by the matrix of its place.
    """
    level = roi_align.choose_level(boxes, canonical_box)
    rows, columns = roi_align.find_taps(pyramid, boxes, level)
    # (M, N, 7, 7): how much of a bin lies in the image
    inside = (rows.weights.sum(dim=-1)[..., :, None] * columns.weights.sum(dim=-1)[..., None, :]).flatten(0, 1)
    rows, columns = _shift(rows), _shift(columns)
    rows = rows._replace(pixels=rows.pixels[:, None], weights=rows.weights[:, None])  # 3 x 3 shifts before all else
    index, weight = roi_align.cross_taps(pyramid.first_row.gather(1, level), rows, columns)
    index, weight = (x.flatten(0, 1).flatten(1, 2) for x in (index, weight))  # (9, M * N, 7, 7, 4, 4)

    _, S, D = pyramid.table.shape
    few = level.numel()
    if not torch.is_grad_enabled():
        floats = CONVOLVED_FLOATS_ON_CPU if level.device.type == "cpu" else CONVOLVED_FLOATS_ELSEWHERE
        few = max(1, floats // (9 * POSITIONS * S * D))
    features, order = [], []
    for number, convolution in enumerate(convolutions):
        assert isinstance(convolution, nn.Conv2d)
        assert convolution.bias is not None
        matrices = convolution.weight.permute(2, 3, 0, 1).flatten(0, 1)  # (9, D, D), row by row
        for rois in (level.flatten() == number).nonzero()[:, 0].split(few):
            pooled = roi_align.sum_taps(pyramid.table, index[:, rois], weight[:, rois]).to(pyramid.dtype).view(9, -1, D)
            sums = (inside[rois].view(-1, 1, 1) * convolution.bias).expand(-1, S, D).reshape(-1, D)
            for place, matrix in zip(pooled, matrices, strict=True):
                sums = sums + linear(place, matrix)
            features.append(sums.to(pooled.dtype).view(-1, POSITIONS, S, D))
            order.append(rois)
    return torch.cat(features)[torch.cat(order).argsort()].unflatten(0, level.shape)


def _shift(taps: Taps) -> Taps:
    """Taps moved by -1, 0 and 1 pixel, (3, M, N, BINS, 4). Beyond the image there are zeros."""
    moved = taps.pixels + torch.arange(-1, 2, device=taps.pixels.device).view(3, 1, 1, 1, 1)
    last = (taps.length - 1)[..., None, None]
    inside = (moved >= 0) & (moved <= last)
    return Taps(torch.minimum(moved.clamp(min=0), last), taps.weights * inside, taps.length)


# ---- recomputation in the backward pass ----------------------------------------------------------------------------


class _Recomputation:
    """Collects the gradients of the RoI features of all heads. Then it computes the gradients of the backbone."""

    def __init__(self, backbone: "Backbone", views: list[Tensor], convolve_last: bool) -> None:
        self.backbone, self.views, self.convolve_last = backbone, views, convolve_last
        self.parameters = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
        self.device = views[0].device.type
        self.autocast = torch.is_autocast_enabled(self.device)
        self.autocast_dtype = torch.get_autocast_dtype(self.device)
        self.heads: list[tuple[Tensor, Tensor]] = []  # boxes (M, N, 4) and gradient (M, N, K, S, D) of each head

    def compute_gradients(self) -> list[Tensor]:
        """The gradients of the parameters. What the heads left here is gone afterwards."""
        heads, self.heads = self.heads, []
        total = [torch.zeros_like(parameter) for parameter in self.parameters]
        for m, view in enumerate(self.views):
            boxes = torch.cat([boxes[m : m + 1] for boxes, _ in heads], dim=1)  # (1, I * N, 4)
            size = _slices_at_once(self.backbone, view)
            for s in range(0, len(view), size):
                features = self._pool_again(view[s : s + size], boxes)
                gradient = torch.cat([gradient[m : m + 1, :, :, s : s + size] for _, gradient in heads], dim=1)
                parts = torch.autograd.grad(features, self.parameters, gradient.to(features.dtype), allow_unused=True)
                for whole, part in zip(total, parts, strict=True):
                    if part is not None:
                        whole += part
        return total

    def _pool_again(self, slices: Tensor, boxes: Tensor) -> Tensor:
        """The RoI features of boxes (1, I * N, 4) on a few slices of one view, with their graph."""
        # A new autocast for every few slices: it caches casts of the weights, which would keep their graph alive.
        with torch.enable_grad(), torch.autocast(self.device, self.autocast_dtype, enabled=self.autocast):
            table = make_table([level[None] for level in _compute_levels(self.backbone, slices, self.convolve_last)])
            convolutions = self.backbone.output if self.convolve_last else None
            pyramid = LeanPyramid.from_table(table, [slices.shape[1:]], convolutions=convolutions, dtype=table.dtype)
            return pyramid.pool(boxes, self.backbone.config.canonical_box)


class _BackboneNode(torch.autograd.Function):
    """Stands for the backbone in the graph. Autograd comes here when the RoI features of all heads have their gradient.

    The parameters are its inputs and get their gradients in the usual way, once a step. So accumulation and DDP's hooks
    work as always.
    """

    @staticmethod
    def forward(ctx: Any, recomputation: _Recomputation, *parameters: Tensor) -> Tensor:
        ctx.recomputation = recomputation
        return parameters[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, *ctx.recomputation.compute_gradients()


class _RoINode(torch.autograd.Function):
    """Returns RoI features as they are, and leaves their gradient for the recomputation."""

    @staticmethod
    def forward(
        ctx: Any,
        node: Tensor,  # noqa: ARG004 (makes this a child of the backbone's node)
        features: Tensor,
        recomputation: _Recomputation,
        boxes: Tensor,
    ) -> Tensor:
        ctx.recomputation, ctx.boxes = recomputation, boxes
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.recomputation.heads.append((ctx.boxes, gradients[0]))
        return gradients[0].new_zeros((), dtype=torch.float32), None, None, None
