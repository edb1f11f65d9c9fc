"""Inference at the paper's size on this machine: 16 x 2200 x 1100, both views, ResNet-50, N = 100."""

import dataclasses
import json
import resource
import time

import torch
from timing import Row, in_its_own_process, seconds_of_each
from torch.utils.flop_counter import FlopCounterMode

from mm3d.model.config import PRESETS
from mm3d.model.detector import Breasts, Detector

S, HEIGHT, WIDTH = 16, 2200, 1100


def rows() -> list[Row]:
    found = in_its_own_process(__file__)  # whose peak memory is that of the inference and of nothing before it
    return [
        Row(
            f"Peak memory of inference at {S} x {HEIGHT} x {WIDTH}, both views, ResNet-50, N = 100",
            f"{found['gigabytes']:.1f} GB",
            "below 9 GB",
            "the whole process; one slice at a time through the backbone",
        ),
        Row(
            "Speed of that inference against the machine's own matrix multiplication (float32)",
            f"{found['gflops'] / found['peak_gflops']:.2f} of the peak",
            "reported",
            f"{found['tera']:.1f} TFLOP; channels-last, BatchNorm folded into the convolutions, eager",
        ),
    ]


def measure() -> dict[str, float]:
    matrix = torch.randn(2048, 2048)
    (multiply,) = seconds_of_each(lambda: matrix @ matrix)
    model = Detector(dataclasses.replace(PRESETS["paper"], chunk=1)).for_inference()
    breasts = Breasts(
        images=torch.rand(1, 2, S, HEIGHT, WIDTH),
        sizes=torch.tensor([HEIGHT, WIDTH]).expand(1, 2, 2),
        present=torch.ones(1, 2, dtype=torch.bool),
    )
    model.requires_grad_(False)  # the counter below cannot stand gradients
    counter = FlopCounterMode(display=False)
    start = time.perf_counter()
    with torch.inference_mode(), counter:
        model(breasts)
    seconds = time.perf_counter() - start
    return {
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "tera": counter.get_total_flops() / 1e12,
        "gflops": counter.get_total_flops() / seconds / 1e9,
        "peak_gflops": 2 * 2048**3 / multiply / 1e9,
        "seconds": seconds,
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
