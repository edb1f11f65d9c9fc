"""Which proposal answers for which annotation: the cheapest one-to-one assignment, for each head and view."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mm3d.model.boxes import iou_and_giou

FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0


@dataclass(frozen=True)
class CostWeights:
    """The weights of class, box distance and overlap, both in matching and in the loss (Sparse R-CNN's 2, 5, 2)."""

    focal: float = 2.0
    """Malignancy of the proposal."""
    l1: float = 5.0
    """Distance of the corners, as a share of the image."""
    giou: float = 2.0
    """Generalised intersection over union."""


def matching_cost(logits: Tensor, boxes: Tensor, truth: Tensor, size: Tensor, weights: CostWeights) -> Tensor:
    """The cost of every proposal for every annotation of one view.

    logits: (..., N), boxes: (..., N, 4), truth: (G, 4) annotated boxes, size: (2,) height and width -> (..., N, G)
    """
    p = logits.float().sigmoid()
    positive = FOCAL_ALPHA * (1 - p) ** FOCAL_GAMMA * -(p + 1e-8).log()
    negative = (1 - FOCAL_ALPHA) * p**FOCAL_GAMMA * -(1 - p + 1e-8).log()
    boxes, truth = boxes.float()[..., :, None, :], truth.float()
    scale = size.flip(-1).repeat(2).float()  # width, height, width, height
    l1 = (boxes / scale - truth / scale).abs().sum(dim=-1)
    giou = iou_and_giou(boxes, truth)[1]
    return weights.focal * (positive - negative)[..., None] + weights.l1 * l1 - weights.giou * giou


def match(cost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Costs of I heads (I, N, G) -> heads, proposals and annotations of the pairs, min(N, G) for each head."""
    # A diverged training has NaN costs. The loss reports that, so the matching only has to survive it.
    numbers = torch.nan_to_num(cost.detach(), nan=1e6, posinf=1e6, neginf=-1e6).cpu().numpy()
    pairs = [linear_sum_assignment(of_head) for of_head in numbers]
    head = np.repeat(np.arange(len(pairs)), [len(proposals) for proposals, _ in pairs])
    proposal, annotation = np.concatenate(pairs, axis=1)
    return tuple(torch.as_tensor(index, device=cost.device) for index in (head, proposal, annotation))  # type: ignore[return-value]
