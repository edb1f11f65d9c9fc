"""A few steps of training must find what is there: the box, the slice, and which breast it is in."""

import torch
from support.examples import TINY, targets

from mm3d.model.boxes import iou_and_giou
from mm3d.model.detector import Breasts, Detector
from mm3d.model.losses import Targets, detection_losses

S, H, W = 4, 96, 64


def two_blobs() -> tuple[Breasts, Targets]:
    """A breast with a blob in each view, sharp in one slice and fading in the others; a breast with none."""
    images = torch.rand(2, 2, S, H, W, generator=torch.Generator().manual_seed(0)) * 0.3
    y, x = torch.meshgrid(torch.arange(H) + 0.5, torch.arange(W) + 0.5, indexing="ij")
    findings = []
    for view, (cx, cy, radius, z) in enumerate([(20.0, 30.0, 9.0, 1), (40.0, 60.0, 11.0, 3)]):
        blob = 0.7 * torch.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * (radius / 2) ** 2))
        for s in range(S):
            images[0, view, s] += blob * 0.3 ** abs(s - z)
        findings.append((0, view, (cx - radius, cy - radius, cx + radius, cy + radius), z))
    breasts = Breasts(images.clamp(0, 1), torch.tensor([H, W]).expand(2, 2, 2), torch.ones(2, 2, dtype=torch.bool))
    return breasts, targets([True, False], [[True, True]] * 2, findings)


def test_thirty_steps_find_boxes_and_slices() -> None:
    breasts, truth = two_blobs()
    torch.manual_seed(1)
    model = Detector(TINY)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    totals = []
    for _ in range(30):
        losses = detection_losses(model(breasts), truth, breasts.sizes)
        optimiser.zero_grad()
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        totals.append(losses.total.item())

    with torch.no_grad():
        detections = model(breasts)
    assert totals[-1] < totals[0] / 5
    for (breast, view), box, z in zip(truth.places.tolist(), truth.boxes, truth.slices, strict=True):
        best = detections.logits[-1, breast, view].argmax()
        iou, _ = iou_and_giou(detections.boxes[-1, breast, view, best], box)
        assert iou > 0.5
        assert detections.slices[-1, breast, view, best] == z
    scores = detections.breast_logits[-1].sigmoid()
    assert scores[0] > 0.7
    assert scores[1] < 0.1
