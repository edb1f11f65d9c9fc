"""M&M-3D as the paper's listing has it, to measure against: eager torch, slice by slice, nothing arranged for speed."""

import torch
import torch.nn.functional as F
from detector import usual_roi_align
from torch import Tensor

from mm3d.model.boxes import apply_deltas, from_cxcywh
from mm3d.model.detector import Breasts, Detector
from mm3d.model.head import CascadeHead


def scores(model: Detector, breasts: Breasts) -> Tensor:
    """The last head's logits (2, N) of one breast with both views."""
    size = breasts.sizes[0, 0]
    backbone_feat = [[_levels(model, image[None]) for image in view] for view in breasts.images[0]]
    b = (from_cxcywh(model.proposal_boxes) * size.flip(-1).repeat(2)).expand(2, -1, -1)
    h = model.proposal_features.expand(2, -1, -1)
    m = torch.zeros(())
    for head in model.heads:
        assert isinstance(head, CascadeHead)
        h = head.norm1(h + head.self_attn(h, h, h, need_weights=False)[0])  # Eq. 1
        h = head.cross_attn(h, torch.tensor([1, 0]))  # Eq. 3
        slice_h, slice_scores = [], []
        for s in range(breasts.images.shape[2]):
            roi = torch.stack([usual_roi_align(backbone_feat[v][s], b[v]) for v in range(2)])  # (2, N, D, 7, 7)
            f = roi.flatten(-2).transpose(-1, -2).unsqueeze(3)  # (2, N, K, 1, D)
            slice_h.append(head.interact(h, f.contiguous())[:, :, 0])  # Eq. 5
            slice_scores.append(head.classify(slice_h[-1]))
        w = torch.stack(slice_scores).softmax(dim=0)
        h = (w[..., None] * torch.stack(slice_h)).sum(dim=0)  # Eq. 6
        b = apply_deltas(b, head.reg_deltas(head.reg_tower(h)))
        m = head.classify(h)
    return m


def _levels(model: Detector, image: Tensor) -> list[Tensor]:
    """p2 to p5 of one slice (1, H, W), channels first as torch has them."""
    backbone, config = model.backbone, model.config
    stages = backbone.body(((image - config.pixel_mean) / config.pixel_std)[:, None].contiguous()).feature_maps
    merged = [lateral(stage) for lateral, stage in zip(backbone.lateral, stages, strict=True)]
    for below in (2, 1, 0):
        size = merged[below].shape[-2:]
        merged[below] = merged[below] + F.interpolate(merged[below + 1], size=size, mode="nearest")
    return [output(level) for output, level in zip(backbone.output, merged, strict=True)]
