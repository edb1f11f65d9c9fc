"""`mm3d demo`: the model at work on noise, and what each of its outputs means. Until there are trained weights."""

import dataclasses

import torch
from rich.console import Console
from rich.table import Table

from mm3d.model.config import PRESETS
from mm3d.model.detector import VIEWS, Breasts, Detections, Detector


def demo(seed: int) -> None:
    torch.manual_seed(seed)
    config = dataclasses.replace(PRESETS["mini"], slices=16)
    model = Detector(config).eval()
    H, W = 192, 96
    breasts = Breasts(
        images=torch.rand(1, 2, config.slices, H, W),
        sizes=torch.tensor([H, W]).expand(1, 2, 2),
        present=torch.ones(1, 2, dtype=torch.bool),
    )
    with torch.inference_mode():
        detections = model(breasts)

    console = Console(highlight=False)
    mammography = Detector(dataclasses.replace(config, slices=1))
    console.print(
        f"One breast, two views, {config.slices} slices of {H} x {W} random grey values, an untrained model.\n"
        f"Parameters of M&M-3D ({config.slices} slices): {_parameters(model):,}; "
        f"of M&M (1 slice): {_parameters(mammography):,}. The same model.\n"
    )
    console.print(_meaning(detections))
    console.print(_best(detections))
    console.print("The weights are random: the scores mean nothing, and the boxes have not learned to move.")


def _parameters(model: Detector) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _meaning(detections: Detections) -> Table:
    heads, B, V, N = detections.logits.shape
    S = detections.slice_count
    table = Table(title=f"What comes out, for {heads} heads, {B} breast, {V} views, {S} slices, {N} proposals")
    for column in ("output", "shape", "meaning"):
        table.add_column(column)
    assert detections.slice_weights is not None
    rows = [
        ("logits", detections.logits, "how malignant each proposal is (sigmoid gives the score)"),
        ("boxes", detections.boxes, "where it is: x1, y1, x2, y2 in pixels, for all slices; may leave the image"),
        ("slice_weights", detections.slice_weights, "how much each slice counts for it (w, sums to 1)"),
        ("slices", detections.slices, "the slice to look at, counted from 0: the largest w"),
        ("features", detections.features, "the proposal's fused feature, input of the next head"),
        ("image_logits", detections.image_logits, "is there any cancer in the view: noisy-or of the proposals"),
        ("breast_logits", detections.breast_logits, "is there any cancer in the breast: mean of its views' scores"),
    ]
    for name, tensor, meaning in rows:
        table.add_row(name, " x ".join(map(str, tensor.shape)), meaning)
    return table


def _best(detections: Detections) -> Table:
    breast = detections.breast_logits[-1, 0].sigmoid()
    table = Table(title=f"The most suspicious proposal of each view (last head); breast score {breast:.2f}")
    for column in ("view", "image score", "score", "box", "slice"):
        table.add_column(column)
    for v, view in enumerate(VIEWS):
        n = int(detections.logits[-1, 0, v].argmax())
        box = ", ".join(f"{x:.0f}" for x in detections.boxes[-1, 0, v, n])
        table.add_row(
            view,
            f"{detections.image_logits[-1, 0, v].sigmoid():.2f}",
            f"{detections.logits[-1, 0, v, n].sigmoid():.2f}",
            box,
            f"{int(detections.slices[-1, 0, v, n]) + 1} of {detections.slice_count}",
        )
    return table
