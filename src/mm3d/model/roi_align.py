"""RoIAlign for volumes: where a box looks is computed once, and every slice is read there.

The rule is the published one (detectron2's ROIAlignV2: aligned, 7 x 7 bins, 2 x 2 samples in each, bilinear). A bin is
the mean of 4 samples and a sample the weighted sum of 4 pixels, so a bin is a weighted sum of 16 pixels: 16 indices and
16 weights that depend on the box but not on the slice. With the pyramid stored as one table, a row per position holding
the channels of all slices, the whole of RoIAlign is one weighted `embedding_bag`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 7
SAMPLES = 2  # per bin and axis
POSITIONS = BINS * BINS  # K
STRIDES = (4, 8, 16, 32)  # p2 to p5
CANONICAL_LEVEL = 4


@dataclass(frozen=True)
class Pyramid:
    """Feature pyramids of M views, each of its own size, with S slices each."""

    table: Tensor  # (rows, S, D): for view after view and level after level, a row per position
    shapes: Tensor  # (M, 4, 2): height and width of p2 to p5 of each view
    first_row: Tensor  # (M, 4): where each of them begins

    @classmethod
    def of(cls, table: Tensor, sizes: Sequence[Sequence[int]]) -> "Pyramid":
        """The pyramids of images with these sizes (height, width), whose rows are in the table in this order."""
        shapes = torch.tensor([level_shapes(size) for size in sizes], device=table.device)
        rows = shapes.prod(dim=-1)
        return cls(table, shapes, (rows.flatten().cumsum(0) - rows.flatten()).view_as(rows))


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


def roi_align(pyramid: Pyramid, boxes: Tensor, canonical_box: float = 224.0) -> Tensor:
    """RoI features of every box on every slice.

    boxes: (M, N, 4) xyxy in model pixels. Returns (M, N, K, S, D), K = 49 positions row by row. Differentiable with
    respect to the pyramid; boxes are detached, as in Sparse R-CNN.
    """
    _, S, D = pyramid.table.shape
    M, N = boxes.shape[:2]
    boxes = boxes.detach().float()
    level = pool_level(boxes, canonical_box)  # (M, N)
    heights, widths = (pyramid.shapes[..., axis].gather(1, level) for axis in (0, 1))
    first_row = pyramid.first_row.gather(1, level)
    stride = torch.tensor(STRIDES, device=boxes.device, dtype=boxes.dtype)[level]

    x1, y1, x2, y2 = (boxes / stride[..., None]).unbind(-1)
    rows, row_weights = _axis_taps(y1, y2, heights)
    columns, column_weights = _axis_taps(x1, x2, widths)
    # A bin's 4 rows times its 4 columns; bins row by row.
    row_starts = first_row[..., None, None] + rows * widths[..., None, None]
    index = row_starts[:, :, :, None, :, None] + columns[:, :, None, :, None, :]  # (M, N, 7, 7, 4, 4)
    weight = row_weights[:, :, :, None, :, None] * column_weights[:, :, None, :, None, :]

    taps = (2 * SAMPLES) ** 2
    features = F.embedding_bag(
        index.reshape(-1, taps),
        pyramid.table.flatten(1),
        mode="sum",
        per_sample_weights=weight.reshape(-1, taps).to(pyramid.table.dtype),
    )
    return features.view(M, N, POSITIONS, S, D)
