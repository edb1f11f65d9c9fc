"""RoIAlign for volumes: where a box looks is computed once, and every slice is read there.

The rule is the published one (detectron2's ROIAlignV2: aligned, 7 x 7 bins, 2 x 2 samples in each, bilinear). A bin is
the mean of 4 samples and a sample the weighted sum of 4 pixels, so a bin is a weighted sum of 16 pixels: 16 indices and
16 weights that depend on the box but not on the slice. With the pyramid stored as one table, a row per position holding
the channels of all slices, the whole of RoIAlign is one weighted `embedding_bag`.

RoIAlign is a weighted sum and FPN's 3 x 3 output convolution another, so either may come first. At full size p2 to p5
have 201,137 positions and the RoIs of 100 proposals and six heads 29,400: with RoIAlign first, the convolution has a
seventh to do.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BINS = 7
SAMPLES = 2  # per bin and axis
POSITIONS = BINS * BINS  # K
STRIDES = (4, 8, 16, 32)  # p2 to p5
CANONICAL_LEVEL = 4
# Pooled features in work at a time where they are to be convolved: 8 MB for a CPU's cache, 256 MB elsewhere.
FLOATS_ON_CPU, FLOATS_ELSEWHERE = 2_000_000, 64_000_000


@dataclass(frozen=True)
class Pyramid:
    """Feature pyramids of M views, each of its own size, with S slices each."""

    table: Tensor  # (rows, S, D): for view after view and level after level, a row per position
    shapes: Tensor  # (M, 4, 2): height and width of p2 to p5 of each view
    first_row: Tensor  # (M, 4): where each of them begins
    outputs: nn.ModuleList | None = None  # the output convolutions of p2 to p5, if they come after RoIAlign
    dtype: torch.dtype | None = None  # of RoI features; None: the table's
    watch: Callable[[Tensor, Tensor], Tensor] | None = None  # if the table has no graph, features' and boxes' way to it

    @classmethod
    def of(cls, table: Tensor, sizes: Sequence[Sequence[int]], outputs: nn.ModuleList | None = None) -> "Pyramid":
        """The pyramids of images with these sizes (height, width), whose rows are in the table in this order."""
        shapes = torch.tensor([level_shapes(size) for size in sizes], device=table.device)
        rows = shapes.prod(dim=-1)
        return cls(table, shapes, (rows.flatten().cumsum(0) - rows.flatten()).view_as(rows), outputs)


def level_shapes(size: Sequence[int]) -> list[tuple[int, int]]:
    """Height and width of p2 to p5 for an image's height and width."""
    return [(math.ceil(size[0] / stride), math.ceil(size[1] / stride)) for stride in STRIDES]


def table_of(levels: list[Tensor]) -> Tensor:
    """Rows of the table for M views of one size: p2 to p5, each (M, S, D, H_l, W_l) -> (rows, S, D)."""
    rows = [level.permute(0, 3, 4, 1, 2).flatten(1, 2) for level in levels]
    return torch.cat(rows, dim=1).flatten(0, 1)


def pool_level(boxes: Tensor, canonical_box: float) -> Tensor:
    """(..., 4) -> (...): the level each box pools from, 0 for p2 to 3 for p5; with side `canonical_box` from p4."""
    size = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    level = torch.floor(CANONICAL_LEVEL + torch.log2(size.sqrt() / canonical_box + 1e-8))
    # Clamped as integers: the level of a NaN box (a diverged training) must still be an index, its features are NaN.
    return (level.long() - 2).clamp(0, len(STRIDES) - 1)


def _axis_taps(start: Tensor, end: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The pixels and weights of each bin along one axis; start and end (M, N) in the level's pixels, length its size.

    Returns indices and weights (M, N, BINS, 2 * SAMPLES).
    """
    steps = (torch.arange(BINS * SAMPLES, device=start.device, dtype=start.dtype) + 0.5) / (BINS * SAMPLES)
    # "aligned": the centre of pixel 0 is at 0.5
    at = start[..., None] - 0.5 + steps * (end - start)[..., None]  # (M, N, 14)
    length = length[..., None]
    # Samples more than one pixel outside are zero; closer ones take the border pixel's value.
    inside = (at >= -1) & (at <= length)
    at = torch.minimum(at.clamp(min=0), (length - 1).to(at.dtype))
    low = at.floor()
    high_weight = at - low
    weights = torch.stack([1 - high_weight, high_weight], dim=-1) * (inside[..., None] / SAMPLES)
    low_index = torch.minimum(low.long().clamp(min=0), length - 1)
    indices = torch.stack([low_index, torch.minimum(low_index + 1, length - 1)], dim=-1)
    return indices.unflatten(-2, (BINS, SAMPLES)).flatten(-2), weights.unflatten(-2, (BINS, SAMPLES)).flatten(-2)


def _shifted(indices: Tensor, weights: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Taps (M, N, BINS, 4) moved by -1, 0 and 1 pixel: (3, M, N, BINS, 4). Beyond the image there are zeros."""
    moved = indices + torch.arange(-1, 2, device=indices.device).view(3, 1, 1, 1, 1)
    last = (length - 1)[..., None, None]
    inside = (moved >= 0) & (moved <= last)
    return torch.minimum(moved.clamp(min=0), last), weights * inside


def roi_align(pyramid: Pyramid, boxes: Tensor, canonical_box: float = 224.0) -> Tensor:
    """RoI features of every box on every slice.

    boxes: (M, N, 4) xyxy in model pixels. Returns (M, N, K, S, D), K = 49 positions row by row. Differentiable with
    respect to the pyramid; boxes are detached, as in Sparse R-CNN.
    """
    boxes = boxes.detach().float()
    if pyramid.watch is not None:
        with torch.no_grad():
            features = _features(pyramid, boxes, canonical_box)
        return pyramid.watch(features, boxes)
    return _features(pyramid, boxes, canonical_box)


def _features(pyramid: Pyramid, boxes: Tensor, canonical_box: float) -> Tensor:
    level = pool_level(boxes, canonical_box)  # (M, N)
    heights, widths = (pyramid.shapes[..., axis].gather(1, level) for axis in (0, 1))
    first_row = pyramid.first_row.gather(1, level)
    stride = torch.tensor(STRIDES, device=boxes.device, dtype=boxes.dtype)[level]

    x1, y1, x2, y2 = (boxes / stride[..., None]).unbind(-1)
    rows, row_weights = _axis_taps(y1, y2, heights)
    columns, column_weights = _axis_taps(x1, x2, widths)
    if pyramid.outputs is not None:
        inside = row_weights.sum(dim=-1)[..., :, None] * column_weights.sum(dim=-1)[..., None, :]  # (M, N, 7, 7)
        rows, row_weights = _shifted(rows, row_weights, heights)
        columns, column_weights = _shifted(columns, column_weights, widths)
        rows, row_weights = rows[:, None], row_weights[:, None]  # 3 x 3 shifts before everything else
    # A bin's 4 rows times its 4 columns; bins row by row.
    row_starts = first_row[..., None, None] + rows * widths[..., None, None]
    index = row_starts[..., :, None, :, None] + columns[..., None, :, None, :]  # (M, N, 7, 7, 4, 4)
    weight = row_weights[..., :, None, :, None] * column_weights[..., None, :, None, :]
    if pyramid.outputs is None:
        return _pooled(pyramid, index, weight).view(*boxes.shape[:2], POSITIONS, *pyramid.table.shape[1:])
    return _convolved(pyramid, level, index.flatten(0, 1).flatten(1, 2), weight.flatten(0, 1).flatten(1, 2), inside)


def _pooled(pyramid: Pyramid, index: Tensor, weight: Tensor) -> Tensor:
    """The sums over the 16 taps of all bins: index and weight (..., 4, 4) -> (bins, S * D)."""
    taps = (2 * SAMPLES) ** 2
    sums = F.embedding_bag(
        index.reshape(-1, taps),
        pyramid.table.flatten(1),
        mode="sum",
        per_sample_weights=weight.reshape(-1, taps).to(pyramid.table.dtype),
    )
    return sums.to(pyramid.dtype or sums.dtype)


def _convolved(pyramid: Pyramid, level: Tensor, index: Tensor, weight: Tensor, inside: Tensor) -> Tensor:
    """RoI features where the output convolution comes last: the RoIs of 9 images, each the level moved by a place of
    the 3 x 3 kernel, each times that place's matrix.

    level: (M, N); index, weight: (9, M * N, 7, 7, 4, 4); inside: (M, N, 7, 7) how much of a bin is in the image.
    """
    assert pyramid.outputs is not None
    _, S, D = pyramid.table.shape
    few = level.numel()
    if not torch.is_grad_enabled():
        floats = FLOATS_ON_CPU if level.device.type == "cpu" else FLOATS_ELSEWHERE
        few = max(1, floats // (9 * POSITIONS * S * D))
    features, order = [], []
    for number, convolution in enumerate(pyramid.outputs):
        assert isinstance(convolution, nn.Conv2d)
        assert convolution.bias is not None
        matrices = convolution.weight.permute(2, 3, 0, 1).flatten(0, 1)  # (9, D, D), row by row
        for rois in (level.flatten() == number).nonzero()[:, 0].split(few):
            pooled = _pooled(pyramid, index[:, rois], weight[:, rois]).view(9, -1, D)
            bias = inside.flatten(0, 1)[rois].view(-1, 1, 1) * convolution.bias
            sums = bias.expand(-1, S, D).reshape(-1, D)
            for place, matrix in zip(pooled, matrices, strict=True):
                sums = sums + F.linear(place, matrix)
            features.append(sums.to(pooled.dtype).view(-1, POSITIONS, S, D))
            order.append(rois)
    return torch.cat(features)[torch.cat(order).argsort()].unflatten(0, level.shape)
