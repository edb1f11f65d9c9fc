"""Box arithmetic. Boxes are xyxy in pixels unless a name says otherwise; every function takes (..., 4)."""

import math

import torch
from torch import Tensor

# Those of Sparse R-CNN: a delta of 1 in x or y moves a box by half its size. No box grows more than 100000 / 16 times.
DELTA_WEIGHTS = (2.0, 2.0, 1.0, 1.0)
MAX_LOG_SCALE = math.log(100000.0 / 16)
TINY_AREA = 1e-6  # square pixels: keeps the overlap of two empty boxes at 0 instead of 0 / 0


def from_cxcywh(boxes: Tensor) -> Tensor:
    """Centre and size to corners."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


def apply_deltas(boxes: Tensor, deltas: Tensor) -> Tensor:
    """Move and scale `boxes` by a regression's output. The result may leave the image."""
    # Always in float32, also under autocast: near 2000, bfloat16 coordinates are 8 pixels apart.
    dx, dy, dw, dh = (deltas.float() / deltas.new_tensor(DELTA_WEIGHTS, dtype=torch.float32)).unbind(-1)
    x1, y1, x2, y2 = boxes.float().unbind(-1)
    width, height = x2 - x1, y2 - y1
    cx = x1 + width / 2 + dx * width
    cy = y1 + height / 2 + dy * height
    width = width * dw.clamp(max=MAX_LOG_SCALE).exp()
    height = height * dh.clamp(max=MAX_LOG_SCALE).exp()
    return from_cxcywh(torch.stack([cx, cy, width, height], dim=-1))


def area(boxes: Tensor) -> Tensor:
    """Square pixels; 0 for a box whose corners are the wrong way round."""
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return size[..., 0] * size[..., 1]


def iou_and_giou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union and its generalisation for boxes that broadcast: a[:, None], b[None] for all pairs."""
    intersection = area(
        torch.cat([torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])], dim=-1)
    )
    hull = area(torch.cat([torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])], dim=-1))
    union = (area(a) + area(b) - intersection).clamp(min=TINY_AREA)
    iou = intersection / union
    return iou, iou - (hull - union) / hull.clamp(min=TINY_AREA)
