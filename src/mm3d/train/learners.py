"""What a step computes: a module that takes a batch's tensors and gives its loss terms.

Tensors go in and out by themselves, not in our dataclasses: that is what Fabric and data-parallel training can handle.
"""

import torch
from torch import Tensor, nn

from mm3d.model.detector import Breasts, Detector
from mm3d.model.losses import LossWeights, Targets, detection_losses

TOTAL = "total"


class Learner(nn.Module):
    """The detector with its loss. The network may run in bfloat16; the loss is in float32."""

    def __init__(self, detector: Detector, weights: LossWeights, autocast: bool) -> None:
        super().__init__()
        self.detector = detector
        self.weights = weights
        self.autocast = autocast

    def forward(
        self,
        images: Tensor,
        sizes: Tensor,
        present: Tensor,
        malignant: Tensor,
        annotated: Tensor,
        boxes: Tensor,
        slices: Tensor,
        places: Tensor,
    ) -> dict[str, Tensor]:
        """The terms of `detection_losses`, each summed over heads, and the weighted total."""
        # Ours, not Fabric's: its mixed precision would round the boxes to bfloat16, which is 8 pixels at 2,000.
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.autocast):
            detections = self.detector(Breasts(images, sizes, present))
        losses = detection_losses(detections, Targets(malignant, annotated, boxes, slices, places), sizes, self.weights)
        return {TOTAL: losses.total, **{name: term.sum() for name, term in losses.terms.items()}}
