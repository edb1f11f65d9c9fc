"""Detectors that a user would run on a volume slice by slice: of `transformers`, as they come, with random weights."""

import math
import time

import torch
from torch import Tensor, nn
from transformers import (
    DetrConfig,
    DetrForObjectDetection,
    ResNetConfig,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrResNetConfig,
)

MULTIPLE = 32  # of pixels, which RT-DETR's sides must have


def build(name: str) -> nn.Module:
    """A detector with a ResNet-50 for one class, from its own settings."""
    torch.manual_seed(0)
    if name == "detr":
        body = ResNetConfig(out_features=["stage4"])
        config = DetrConfig(backbone_config=body, use_timm_backbone=False, backbone=None, num_labels=1)
        return DetrForObjectDetection(config).eval()
    body = RTDetrResNetConfig(out_features=["stage2", "stage3", "stage4"])
    return RTDetrForObjectDetection(RTDetrConfig(backbone_config=body, num_labels=1)).eval()


def seconds(name: str, size: tuple[int, int], slices: int, views: int) -> tuple[float, float]:
    """Wall and processor time for the slices of all views, one after the other."""
    model = build(name)
    height, width = (math.ceil(side / MULTIPLE) * MULTIPLE for side in size)
    with torch.inference_mode():
        model(_grey(256, 256))
        image = _grey(height, width)
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(slices * views):
            model(image)
        return time.perf_counter() - wall, time.process_time() - processor


def _grey(height: int, width: int) -> Tensor:
    return torch.rand(1, 1, height, width).expand(-1, 3, -1, -1).contiguous()
