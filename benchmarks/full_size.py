"""make bench-full: what full-size volumes cost, in time and memory. Half an hour on two cores that do nothing else.

Every part is measured in a process of its own, whose peak memory is then its own:
    python benchmarks/full_size.py train --slices 16 --recompute
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__" and not {"straightforward", "slice_by_slice"} & {*sys.argv}:
    from mm3d.shared.environment import prepare_torch

    prepare_torch()  # as `mm3d predict` and `mm3d train` do, before torch is imported

import numpy as np
import torch
from straightforward import scores
from timing import Row, in_its_own_process, seconds_of_each
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from mm3d.model.backbone import Backbone
from mm3d.model.config import PRESETS, ModelConfig
from mm3d.model.detector import Breasts, Detector
from mm3d.model.head import CascadeHead
from mm3d.model.roi_align import POSITIONS, Pyramid, level_shapes

FULL, HALF, QUARTER = (2200, 1100), (1088, 544), (544, 272)
SLICES = 16
ENGINES = ("torch", "openvino")


# ---- what is measured ----------------------------------------------------------------------------------------------


def rows(full: tuple[int, int] = FULL, half: tuple[int, int] = HALF, quarter: tuple[int, int] = QUARTER) -> list[Row]:
    part = lambda *arguments: in_its_own_process(__file__, *map(str, arguments))  # noqa: E731
    size = ("--size", *full)
    exact, rounded = (
        [part("infer", *size, "--slices", SLICES, "--engine", engine, "--precision", name) for engine in ENGINES]
        for name in ("float32", "bfloat16")
    )
    torch_, openvino = exact
    fastest = min(found["seconds"] for found in (*exact, *rounded))
    others = {
        name: part("slice_by_slice", *size, "--slices", 2, "--detector", name) for name in ("detr", "rt-detr")
    }  # two slices: all take the same time
    listing = part("straightforward", *size, "--slices", 2)
    plain_one = part("train", *size, "--slices", 1, "--views", 1)
    plain, again = (part("train", *size, "--slices", 1, *flag) for flag in ([], ["--recompute"]))
    trained, deep = (
        part("train", *size, "--slices", S, "--recompute", "--stand-in") for S in (SLICES, 2 * SLICES)
    )  # the whole step takes a quarter of an hour: docs/full-size.md has what it took
    would_take = plain_one["gigabytes"] + (2 * SLICES - 1) * (plain["gigabytes"] - plain_one["gigabytes"])
    many = {S: part("infer", "--size", *half, "--slices", S) for S in (8, 16, 32, 64)}
    sides = [(full[0] * share // 8, full[1] * share // 8) for share in (4, 6, 8)]  # a quarter of the pixels and more
    large = {side[0] * side[1]: part("infer", "--size", *side, "--slices", 4) for side in sides}
    crowded = {N: part("infer", "--size", *half, "--slices", 8, "--proposals", N) for N in (50, 100, 200, 300)}
    many_trained = {S: part("train", "--size", *quarter, "--slices", S, "--recompute") for S in (8, 16, 32)}
    where = f"{SLICES} x {full[0]} x {full[1]}, both views, ResNet-50, N = 100, 6 heads"
    int8 = part("int8", *size, "--slices", 2)
    return [
        _speed_row(where, "torch", torch_, 0.7),
        _speed_row(where, "OpenVINO", openvino, 0.8),
        Row(
            f"Backbone (ResNet-50 and FPN's sums) in int8 against float32, both OpenVINO, {full[0]} x {full[1]}",
            f"{int8['float32'] / int8['int8']:.1f}x faster",
            "at least 2x with VNNI",
            f"one thread, slice by slice; {'with' if int8['vnni'] else 'without'} VNNI",
        ),
        Row(
            "That inference (torch) against the paper's listing in eager torch, slice by slice",
            f"{listing['seconds'] / 2 / (torch_['seconds'] / SLICES):.1f}x faster",
            "at least 2.5x",
            f"with OpenVINO {listing['seconds'] / 2 / (openvino['seconds'] / SLICES):.1f}x; the listing on 2 slices",
        ),
        *(
            Row(
                f"bfloat16 against float32 of that inference, {engine}",
                f"{one['seconds'] / other['seconds']:.2f}x faster",
                "at least 1.5x",
                f"{one['processor'] / other['processor']:.2f}x in processor time; peak memory {other['gigabytes']:.1f} "
                f"against {one['gigabytes']:.1f} GB",
            )
            for engine, one, other in zip(ENGINES, exact, rounded, strict=True)
        ),
        *(
            Row(
                f"That inference (torch, float32) against {label} (ResNet-50, eager torch) slice by slice",
                f"{others[name]['seconds'] / 2 / (torch_['seconds'] / SLICES):.1f}x faster",
                f"at least {wanted[0]}x",
                f"our fastest engine and precision {others[name]['seconds'] / 2 / (fastest / SLICES):.1f}x, wanted "
                f"{wanted[1]}x; {label} with random weights, on 2 slices",
            )
            for name, label, wanted in (("detr", "DETR", (2, 4)), ("rt-detr", "RT-DETR", (2.5, 5)))
        ),
        Row(
            f"Peak memory of inference at {where}",
            f"{torch_['gigabytes']:.2f} GB",
            "below 4 GB",
            f"the whole process; with OpenVINO {openvino['gigabytes']:.1f} GB",
        ),
        Row(
            f"Peak memory of a training step at {where}",
            f"{trained['gigabytes']:.1f} GB",
            "at most 8 GB",
            "the backbone's levels of the first slices stand for those of the others, which have the same size",
        ),
        Row(f"The same with {2 * SLICES} slices", f"{deep['gigabytes']:.1f} GB", "at most 10 GB"),
        Row(
            f"Memory of the step without recomputation against with it, {SLICES} slices",
            f"{would_take / trained['gigabytes']:.1f}x less",
            "at least 5x",
            f"without: {would_take:.0f} GB, from {plain_one['gigabytes']:.1f} GB for one slice of one view and "
            f"{plain['gigabytes']:.1f} GB for one of each",
        ),
        Row(
            "Time of the step with recomputation against without, one slice, both views",
            f"{again['seconds'] / plain['seconds']:.2f} of the time",
            "at most 1.5",
        ),
        _growth_row(f"Inference at {half[0]} x {half[1]}", "slices", many),
        _growth_row(f"A training step at {quarter[0]} x {quarter[1]}", "slices", many_trained),
        _growth_row("Inference with 4 slices", "pixels", large),
        _growth_row(f"Inference at 8 x {half[0]} x {half[1]}", "proposals", crowded),
    ]


def _speed_row(where: str, engine: str, found: dict[str, Any], wanted: float) -> Row:
    """Two shares of the peak: of what is computed, and of what the model is, with FPN's output everywhere."""
    total = found["seconds"]
    return Row(
        f"Speed of inference at {where} against the machine's own matrix multiplication (float32), {engine}",
        f"{found['gflop'] / total / found['peak']:.2f} of the peak",
        f"at least {wanted}",
        f"{found['gflop'] / 1e3:.1f} TFLOP; of the time, backbone and FPN {found['backbone'] / total:.0%}, heads with "
        f"RoIAlign and FPN's output {found['heads'] / total:.0%}. With FPN's output everywhere the model has "
        f"{found['whole_gflop'] / 1e3:.1f} TFLOP: {found['whole_gflop'] / total / found['peak']:.2f}",
    )


def _growth_row(what: str, things: str, found: dict[int, dict[str, Any]]) -> Row:
    """Exponents of processor time and of memory, fitted to counts of things; other programs change wall time more."""
    count = np.array(list(found), dtype=float)
    seconds = np.array([one["processor"] for one in found.values()])
    gigabytes = np.array([one["gigabytes"] for one in found.values()])
    time_exponent, memory_exponent = (np.polyfit(np.log(count), np.log(y), 1)[0] for y in (seconds, gigabytes))
    slope, fixed = np.polyfit(count, gigabytes, 1)
    listed = ", ".join(
        f"{int(n)}: {t / seconds[0]:.2f}, {g:.1f} GB" for n, t, g in zip(count, seconds, gigabytes, strict=True)
    )
    return Row(
        f"{what}, both views: growth with the {things}",
        f"time to the power {time_exponent:.2f}, memory {memory_exponent:.2f}",
        "at most 1.1",
        f"memory {fixed:.1f} GB + {slope * count[0] * 1e3:.0f} MB for each {int(count[0])}; {things}, processor time "
        f"against the first, peak: {listed}",
    )


# ---- the parts, each a process -------------------------------------------------------------------------------------


def infer(arguments: argparse.Namespace) -> dict[str, float]:
    config = dataclasses.replace(PRESETS["paper"], proposals=arguments.proposals)
    model = _model(config).for_inference(arguments.engine, arguments.precision)
    if arguments.stand_in:
        _stand_in(model.backbone)
    breasts = _breasts(arguments)
    spent = {"heads": 0.0}
    for head in model.heads:
        _time(head, spent, "heads")
    before = _peak()
    with torch.inference_mode():
        start, processor = time.perf_counter(), time.process_time()
        model(breasts)
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
    gflop, whole = _gflop(arguments, config)
    return {
        "seconds": seconds,
        "processor": processor,
        "heads": spent["heads"],
        "backbone": seconds - spent["heads"],
        "gflop": gflop,
        "whole_gflop": whole,
        "peak": max(before, _peak()),
    }


def int8(arguments: argparse.Namespace) -> dict[str, Any]:
    """The backbone in float32 and in int8, in turn. Times do not depend on what it was calibrated with."""
    from mm3d.model.quantize import quantize

    torch.set_num_threads(1)
    model = _model(PRESETS["paper"]).eval()
    noise = list(torch.rand(4, 272, 136).numpy())
    backbones = [one.for_inference("openvino").backbone for one in (model, quantize(model, noise, lambda one: one))]
    slices = torch.rand(arguments.slices, 1, *arguments.size)
    run = lambda backbone: [backbone.merge_stages(one) for one in slices]  # noqa: E731
    float32, in_int8 = seconds_of_each(*(partial(run, backbone) for backbone in backbones), rounds=3)
    vnni = any("vnni" in line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    return {"float32": float32, "int8": in_int8, "vnni": vnni}


def straightforward(arguments: argparse.Namespace) -> dict[str, float]:
    model = _model(PRESETS["paper"]).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    with torch.inference_mode():
        small = _breasts(argparse.Namespace(slices=2, size=(128, 96), views=2))
        torch.testing.assert_close(scores(model, small), model(small).logits[-1, 0], atol=2e-2, rtol=2e-2)
        breasts = _breasts(arguments)
        start = time.perf_counter()
        scores(model, breasts)
    return {"seconds": time.perf_counter() - start}


def slice_by_slice(arguments: argparse.Namespace) -> dict[str, float]:
    from slice_by_slice import seconds  # `transformers`: the memory of the other parts is to be their own

    wall, processor = seconds(arguments.detector, arguments.size, arguments.slices, arguments.views)
    return {"seconds": wall, "processor": processor}


def train(arguments: argparse.Namespace) -> dict[str, float]:
    # Not above: inference does not need them, and its memory is to be its own.
    from mm3d.model.losses import LossWeights, Targets
    from mm3d.train.config import OptimiserConfig
    from mm3d.train.data import Batch
    from mm3d.train.run import DetectorLearner
    from mm3d.train.state import make_optimiser

    config = dataclasses.replace(PRESETS["paper"], recompute=arguments.recompute)
    learner = DetectorLearner(_model(config), LossWeights(), autocast=False)
    optimiser = make_optimiser(learner, OptimiserConfig())

    def step(breasts: Breasts) -> None:
        targets = Targets(
            malignant=torch.tensor([True]),
            annotated=breasts.present,
            boxes=torch.tensor([[20.0, 40.0, 60.0, 90.0]]),
            slices=torch.tensor([0]),
            places=torch.tensor([[0, 0]]),
        )
        total, _ = learner(Batch(0, ("one",), breasts, targets))
        total.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    step(_breasts(argparse.Namespace(slices=1, size=(128, 96), views=2)))  # AdamW's own memory is there afterwards
    if arguments.stand_in:
        _stand_in(learner.detector.backbone)
    breasts = _breasts(arguments)
    start, processor = time.perf_counter(), time.process_time()
    step(breasts)
    return {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}


def _model(config: ModelConfig) -> Detector:
    """Random weights, and proposals of all sizes all over the image: a fresh model would look at p5 alone."""
    torch.manual_seed(0)
    model = Detector(config)
    side = 2 ** (-6 + 5 * torch.rand(config.proposals, 2))
    centre = side / 2 + torch.rand(config.proposals, 2) * (1 - side)
    with torch.no_grad():
        model.proposal_boxes.copy_(torch.cat([centre, side], dim=1))
    return model


def _breasts(arguments: argparse.Namespace) -> Breasts:
    return Breasts(
        images=torch.rand(1, 2, arguments.slices, *arguments.size),
        sizes=torch.tensor(arguments.size).expand(1, 2, 2),
        present=torch.tensor([[True, arguments.views == 2]]),
    )


def _stand_in(backbone: Backbone) -> None:
    """From the third slice on, forwards and backwards, give the levels of the first: the same memory, soon."""
    real, calls = backbone.merge_stages, {False: 0, True: 0}
    first: list[Tensor] = []

    def merge_stages(slices: Tensor) -> list[Tensor]:
        grad = torch.is_grad_enabled()
        calls[grad] += 1
        if calls[grad] > 2:
            return list(first)
        levels = real(slices)
        if not first:
            first.extend(level.detach().clone() for level in levels)
        return levels

    backbone.merge_stages = merge_stages  # type: ignore[method-assign]


def _time(module: torch.nn.Module, spent: dict[str, float], name: str) -> None:
    """Add the seconds that a module's forward takes to spent[name]."""
    started = [0.0]

    def before(*_: Any) -> None:
        started[0] = time.perf_counter()

    def after(*_: Any) -> None:
        spent[name] += time.perf_counter() - started[0]

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)


def _gflop(arguments: argparse.Namespace, config: ModelConfig) -> tuple[float, float]:
    """Of an inference: as it is computed, and with FPN's output convolutions everywhere. Counted without computing."""
    with torch.device("meta"), torch.inference_mode():
        backbone, head = Backbone(config).eval(), CascadeHead(config).eval()
        one = torch.empty(1, *arguments.size)
        merged, whole = _count(lambda: backbone.merge_stages(one)), _count(lambda: backbone(one))
        M, S, N, D = arguments.views, arguments.slices, config.proposals, config.channels
        rows = M * sum(height * width for height, width in level_shapes(arguments.size))
        pyramid = Pyramid.from_table(torch.empty(rows, S, D), [arguments.size] * M)
        proposals = torch.empty(M, N, D), torch.empty(M, N, 4)
        heads = config.heads * _count(lambda: head(*proposals, pyramid, torch.arange(M)))
    convolved = whole - merged
    if rows > M * config.heads * N * POSITIONS:
        convolved = 2 * 9 * D * D * config.heads * N * POSITIONS / 1e9
    return M * S * (merged + convolved) + heads, M * S * whole + heads


def _count(run: Callable[[], object]) -> float:
    counter = FlopCounterMode(display=False)
    with counter:
        run()
    return counter.get_total_flops() / 1e9


def _peak() -> float:
    """GFLOP/s of the machine's fastest matrix multiplication: torch's own, or the same product as a convolution of one
    pixel, which another library computes. On AMD processors with AVX512 the second is twice as fast."""
    size = 2048
    matrix = torch.randn(size, size)
    picture = torch.randn(1, size, 64, 32).to(memory_format=torch.channels_last)
    kernel = torch.randn(size, size, 1, 1)
    with torch.inference_mode():
        both = seconds_of_each(lambda: matrix @ matrix, lambda: functional.conv2d(picture, kernel))
    return 2 * size**3 / min(both) / 1e9


def _most_memory() -> float:
    """Of this process so far, in GB. Not ru_maxrss: a child process inherits its parent's."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {
        "infer": infer,
        "int8": int8,
        "straightforward": straightforward,
        "slice_by_slice": slice_by_slice,
        "train": train,
    }
    parser.add_argument("part", choices=parts)
    parser.add_argument("--slices", type=int, default=SLICES)
    parser.add_argument("--size", type=int, nargs=2, default=FULL, metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--views", type=int, choices=(1, 2), default=2)
    parser.add_argument("--engine", choices=ENGINES, default="torch")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--proposals", type=int, default=100)
    parser.add_argument("--detector", choices=("detr", "rt-detr"), default="detr", help="for slice_by_slice")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--stand-in", action="store_true", help="compute the first slices only: for memory alone")
    arguments = parser.parse_args()
    arguments.size = tuple(arguments.size)
    found = parts[arguments.part](arguments)
    print(json.dumps(found | {"gigabytes": _most_memory()}))


if __name__ == "__main__":
    main()
