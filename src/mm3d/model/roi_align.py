"""The feature pyramid as one table, and RoIAlign on it: where a box looks is computed once for all slices.

The rule is the published one (detectron2's ROIAlignV2: aligned, 7 x 7 bins, 2 x 2 samples in each, bilinear). A bin is
the mean of 4 samples, and a sample is the weighted sum of 4 pixels. So a bin is a weighted sum of 16 pixels, its taps.
Their indices and weights depend on the box but not on the slice. A row of the table holds the channels of all slices at
one position of the pyramid, so the whole of RoIAlign is one weighted `embedding_bag`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

BINS = 7
SAMPLES = 2  # per bin and axis
POSITIONS = BINS * BINS  # K
STRIDES = (4, 8, 16, 32)  # p2 to p5
CANONICAL_LEVEL = 4


@dataclass(frozen=True)
class Pyramid:
    """Feature pyramids of M views with S slices each. Every view has its own size."""

    table: Tensor  # (rows, S, D): view after view, level after level, one row per position
    shapes: Tensor  # (M, 4, 2): height and width of p2 to p5 of each view
    first_row: Tensor  # (M, 4): the row where each of these levels begins

    @classmethod
    def from_table(cls, table: Tensor, sizes: Sequence[Sequence[int]], **more: Any) -> Self:
        """The pyramids of images with these sizes (height, width), whose rows stand in the table in this order."""
        shapes = torch.tensor([level_shapes(size) for size in sizes], device=table.device)
        rows = shapes.prod(dim=-1)
        return cls(table, shapes, (rows.flatten().cumsum(0) - rows.flatten()).view_as(rows), **more)

    def pool(self, boxes: Tensor, canonical_box: float) -> Tensor:
        """f_{b,s}: the RoI features of every box on every slice, (M, N, 4) -> (M, N, K, S, D)."""
        return roi_align(self, boxes, canonical_box)


def build_pyramid(backbone: Callable[[Tensor], list[Tensor]], views: list[Tensor]) -> Pyramid:
    """The pyramids of M views (S, H, W). Views of one size go through the backbone together.

    No view is padded. GroupNorm and PVT's pooling look at the whole image, so padding would make the result of a breast
    depend on the other breasts in its batch.
    """
    tables = [torch.empty(0)] * len(views)
    for members in group_by_size(views):
        levels = backbone(torch.cat([views[m] for m in members]))
        table = make_table([level.unflatten(0, (len(members), -1)) for level in levels])
        for m, rows in zip(members, table.chunk(len(members)), strict=True):
            tables[m] = rows
    return Pyramid.from_table(torch.cat(tables), [view.shape[1:] for view in views])


def group_by_size(views: list[Tensor]) -> list[list[int]]:
    """The indices of views (S, H, W) that have the same height and width, one list for each size."""
    groups: dict[torch.Size, list[int]] = {}
    for m, view in enumerate(views):
        groups.setdefault(view.shape[1:], []).append(m)
    return list(groups.values())


def level_shapes(size: Sequence[int]) -> list[tuple[int, int]]:
    """Height and width of p2 to p5 for an image's height and width."""
    return [(math.ceil(size[0] / stride), math.ceil(size[1] / stride)) for stride in STRIDES]


def make_table(levels: list[Tensor]) -> Tensor:
    """The table's rows for M views of one size: p2 to p5, each (M, S, D, H_l, W_l) -> (rows, S, D).

    The channels come last before all else: then the gradient is copied in this order, in a tenth of the time.
    """
    pixels = [level.flatten(0, 1).permute(0, 2, 3, 1).flatten(1, 2) for level in levels]  # (M * S, H_l * W_l, D)
    rows = [of.unflatten(0, level.shape[:2]).transpose(1, 2) for of, level in zip(pixels, levels, strict=True)]
    return torch.cat(rows, dim=1).flatten(0, 1)


def roi_align(pyramid: Pyramid, boxes: Tensor, canonical_box: float = 224.0) -> Tensor:
    """The RoI features of every box on every slice.

    boxes: (M, N, 4) xyxy in model pixels. Returns (M, N, K, S, D) with K = 49 positions, row by row. The result is
    differentiable with respect to the pyramid. Boxes are detached, as in Sparse R-CNN.
    """
    boxes = boxes.detach().float()
    level = choose_level(boxes, canonical_box)
    rows, columns = find_taps(pyramid, boxes, level)
    index, weight = cross_taps(pyramid.first_row.gather(1, level), rows, columns)
    return sum_taps(pyramid.table, index, weight).view(*boxes.shape[:2], POSITIONS, *pyramid.table.shape[1:])


def choose_level(boxes: Tensor, canonical_box: float) -> Tensor:
    """(..., 4) -> (...): the level each box pools from, 0 for p2 to 3 for p5. A side of `canonical_box` means p4."""
    size = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    level = torch.floor(CANONICAL_LEVEL + torch.log2(size.sqrt() / canonical_box + 1e-8))
    # The clamp is on integers: a diverged training has NaN boxes. Their level must still be an index.
    return (level.long() - 2).clamp(0, len(STRIDES) - 1)


class Taps(NamedTuple):
    """What the bins of every box read along one axis of its level."""

    pixels: Tensor  # (M, N, BINS, 4)
    weights: Tensor  # (M, N, BINS, 4)
    length: Tensor  # (M, N): pixels of the level along this axis


def find_taps(pyramid: Pyramid, boxes: Tensor, level: Tensor) -> tuple[Taps, Taps]:
    """The taps of boxes (M, N, 4) along the rows and along the columns of their levels (M, N)."""
    heights, widths = (pyramid.shapes[..., axis].gather(1, level) for axis in (0, 1))
    stride = torch.tensor(STRIDES, device=boxes.device, dtype=boxes.dtype)[level]
    x1, y1, x2, y2 = (boxes / stride[..., None]).unbind(-1)
    return _find_axis_taps(y1, y2, heights), _find_axis_taps(x1, x2, widths)


def _find_axis_taps(start: Tensor, end: Tensor, length: Tensor) -> Taps:
    """The taps along one axis, for boxes from start to end (M, N) in the level's pixels."""
    steps = (torch.arange(BINS * SAMPLES, device=start.device, dtype=start.dtype) + 0.5) / (BINS * SAMPLES)
    # "aligned": the centre of pixel 0 is at 0.5.
    at = start[..., None] - 0.5 + steps * (end - start)[..., None]  # (M, N, 14)
    last = length[..., None] - 1
    # Samples more than one pixel outside are zero. Closer ones take the value of the border pixel.
    inside = (at >= -1) & (at <= length[..., None])
    at = torch.minimum(at.clamp(min=0), last.to(at.dtype))
    low = at.floor()
    high_weight = at - low
    weight = torch.stack([1 - high_weight, high_weight], dim=-1) * (inside[..., None] / SAMPLES)
    low_index = torch.minimum(low.long().clamp(min=0), last)
    index = torch.stack([low_index, torch.minimum(low_index + 1, last)], dim=-1)
    pixels, weights = (x.unflatten(-2, (BINS, SAMPLES)).flatten(-2) for x in (index, weight))
    return Taps(pixels, weights, length)


def cross_taps(first_row: Tensor, rows: Taps, columns: Taps) -> tuple[Tensor, Tensor]:
    """A bin's 4 rows times its 4 columns: the table's rows and their weights, both (..., M, N, 7, 7, 4, 4)."""
    start = first_row[..., None, None] + rows.pixels * columns.length[..., None, None]
    index = start[..., :, None, :, None] + columns.pixels[..., None, :, None, :]
    weight = rows.weights[..., :, None, :, None] * columns.weights[..., None, :, None, :]
    return index, weight


def sum_taps(table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """The weighted sums over the 16 taps of all bins: index and weight (..., 4, 4) -> (bins, S * D)."""
    taps = (2 * SAMPLES) ** 2
    if torch.compiler.is_exporting():  # ONNX has no weighted embedding_bag
        pairs = zip(index.reshape(-1, taps).unbind(1), weight.reshape(-1, taps).unbind(1), strict=True)
        return torch.stack([table.flatten(1)[row] * share[:, None] for row, share in pairs]).sum(dim=0)
    return _SumTaps.apply(table.flatten(1), index.reshape(-1, taps), weight.reshape(-1, taps).to(table.dtype))


class _SumTaps(torch.autograd.Function):
    """A weighted `embedding_bag`, whose gradient with respect to the table is another one.

    A bin is the sum of its taps' rows. So the gradient of a row is the sum of the gradients of the bins that read it.
    torch's own backward pass adds tap by tap to a table of zeros and takes more than twice the time.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(index, weight)
        ctx.rows = len(table)
        return F.embedding_bag(index, table, mode="sum", per_sample_weights=weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,), (index, weight) = gradients, ctx.saved_tensors
        order = index.flatten().int().argsort()  # the taps, row by row; 32 bits are sorted in half the time
        count = torch.bincount(index.flatten(), minlength=ctx.rows)
        bins = order // index.shape[1]
        weights = weight.flatten()[order]
        of_rows = F.embedding_bag(bins, gradient, count.cumsum(0) - count, mode="sum", per_sample_weights=weights)
        return of_rows, None, None
