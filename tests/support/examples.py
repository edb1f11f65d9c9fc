"""Small batches and models that several tests share."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mm3d.model.config import PRESETS, ModelConfig
from mm3d.model.detector import Breasts, Detector
from mm3d.model.losses import Targets

TINY = PRESETS["tiny"]
BOTH = ((True, True),)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def tiny(**changes: Any) -> ModelConfig:
    return dataclasses.replace(TINY, **changes)


def build(config: ModelConfig = TINY, seed: int = 0) -> Detector:
    """A detector with every part at work: what starts at zero (CrossAttn, box deltas, biases) is made random."""
    torch.manual_seed(seed)
    model = Detector(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1)
    return model


def random_breasts(
    slices: int = 4, height: int = 96, width: int = 64, present: tuple[tuple[bool, bool], ...] = BOTH, seed: int = 0
) -> Breasts:
    generator = torch.Generator().manual_seed(seed)
    B = len(present)
    return Breasts(
        images=torch.rand(B, 2, slices, height, width, generator=generator),
        sizes=torch.tensor([height, width]).expand(B, 2, 2),
        present=torch.tensor(present),
    )


def targets(
    malignant: Sequence[bool],
    annotated: Sequence[Sequence[bool]],
    findings: Sequence[tuple[int, int, tuple[float, ...], int]],
) -> Targets:
    """findings: (breast, view, box, slice) each."""
    return Targets(
        malignant=torch.tensor(malignant),
        annotated=torch.tensor(annotated),
        boxes=torch.tensor([box for _, _, box, _ in findings]).reshape(-1, 4),
        slices=torch.tensor([z for _, _, _, z in findings], dtype=torch.long),
        places=torch.tensor([(b, v) for b, v, _, _ in findings], dtype=torch.long).reshape(-1, 2),
    )


def max_difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())
