"""Which proposal answers for which finding: the cheapest one-to-one assignment, per head and view."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mm3d.model.boxes import iou_and_giou

FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0


@dataclass(frozen=True)
class CostWeights:
    """How much class, box distance and overlap count, in matching and in the loss alike (Sparse R-CNN's 2, 5, 2)."""

    focal: float = 2.0
    """Malignancy of the proposal."""
    l1: float = 5.0
    """Distance of the corners, as a share of the image."""
    giou: float = 2.0
    """Generalised intersection over union."""


def matching_cost(logits: Tensor, boxes: Tensor, found: Tensor, size: Tensor, weights: CostWeights) -> Tensor:
    """The cost of every proposal for every finding of one view.

    logits: (..., N), boxes: (..., N, 4), found: (G, 4) the findings' boxes, size: (2,) height and width. -> (..., N, G)
    """
    p = logits.float().sigmoid()
    positive = FOCAL_ALPHA * (1 - p) ** FOCAL_GAMMA * -(p + 1e-8).log()
    negative = (1 - FOCAL_ALPHA) * p**FOCAL_GAMMA * -(1 - p + 1e-8).log()
    boxes, found = boxes.float()[..., :, None, :], found.float()
    scale = size.flip(-1).repeat(2).float()  # width, height, width, height
    l1 = (boxes / scale - found / scale).abs().sum(dim=-1)
    giou = iou_and_giou(boxes, found)[1]
    return weights.focal * (positive - negative)[..., None] + weights.l1 * l1 - weights.giou * giou


def match(cost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Costs of I heads (I, N, G) -> heads, proposals and findings of the pairs, min(N, G) for each head."""
    # A diverged training has NaN costs: the loss is what stops it and says so, so the matching only has to survive.
    numbers = torch.nan_to_num(cost.detach(), nan=1e6, posinf=1e6, neginf=-1e6).cpu().numpy()
    pairs = [linear_sum_assignment(of_head) for of_head in numbers]
    head = np.repeat(np.arange(len(pairs)), [len(proposals) for proposals, _ in pairs])
    proposal, finding = np.concatenate(pairs, axis=1)
    return tuple(torch.as_tensor(index, device=cost.device) for index in (head, proposal, finding))  # type: ignore[return-value]
