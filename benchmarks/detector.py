"""What sharing the work between slices saves: RoIAlign, one head, the whole model."""

import dataclasses
from functools import partial

import torch
import torch.nn.functional as F
from timing import Row, seconds_of_each
from torch import Tensor

from mm3d.model.config import PRESETS, ModelConfig
from mm3d.model.detector import Breasts, Detector
from mm3d.model.head import CascadeHead
from mm3d.model.roi_align import STRIDES, Pyramid, choose_level, level_shapes, make_table, roi_align

S, N, D = 16, 100, 256
SIZE = (1088, 544)


def rows() -> list[Row]:
    with torch.inference_mode():
        return [*_roi_align(), _head(), *_whole_model()]


def _levels(slices: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, slices, D, height, width, generator=generator) for height, width in level_shapes(SIZE)]


def _boxes(views: int) -> Tensor:
    """Lesion-sized to breast-sized boxes all over the image."""
    generator = torch.Generator().manual_seed(1)
    height, width = SIZE
    centre = torch.rand(views, N, 2, generator=generator) * torch.tensor([width, height])
    half = 2 ** (4 + 4 * torch.rand(views, N, 2, generator=generator)) / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def usual_roi_align(levels: list[Tensor], boxes: Tensor) -> Tensor:
    """RoIAlign of one image as it is usually put together from torch: level by level, grid_sample, mean of samples."""
    level_of = choose_level(boxes, 224.0)
    pooled = boxes.new_empty(len(boxes), levels[0].shape[1], 7, 7)
    steps = (torch.arange(14) + 0.5) / 14
    for number, level in enumerate(levels):
        chosen = (level_of == number).nonzero()[:, 0]
        if len(chosen):
            height, width = level.shape[-2:]
            box = boxes[chosen] / STRIDES[number]
            x = (box[:, None, 0] + steps * (box[:, None, 2] - box[:, None, 0])) * 2 / width - 1
            y = (box[:, None, 1] + steps * (box[:, None, 3] - box[:, None, 1])) * 2 / height - 1
            grid = torch.stack([x[:, None, :].expand(-1, 14, -1), y[:, :, None].expand(-1, -1, 14)], dim=-1)
            image = level.expand(len(chosen), -1, -1, -1)
            samples = F.grid_sample(image, grid, padding_mode="border", align_corners=False)
            pooled[chosen] = F.avg_pool2d(samples, 2)
    return pooled


def _roi_align() -> list[Row]:
    levels, boxes = _levels(S), _boxes(1)
    together = Pyramid.from_table(make_table(levels), [SIZE])
    alone = [Pyramid.from_table(make_table([level[:, s : s + 1] for level in levels]), [SIZE]) for s in range(S)]
    slices = [[level[:, s].contiguous(memory_format=torch.channels_last) for level in levels] for s in range(S)]
    ours, usual_loop, our_loop = seconds_of_each(
        lambda: roi_align(together, boxes),
        lambda: [usual_roi_align(slice_, boxes[0]) for slice_ in slices],
        lambda: [roi_align(pyramid, boxes) for pyramid in alone],
        rounds=15,
    )
    shape = f"S = {S}, N = {N}, D = {D}, {SIZE[0]} x {SIZE[1]}"
    return [
        Row(
            f"RoIAlign of all slices against a loop over slices of a grid_sample RoIAlign ({shape})",
            f"{usual_loop / ours:.1f}x faster",
            "at least 3x",
        ),
        Row(
            "RoIAlign of all slices against a loop over slices of itself",
            f"{our_loop / ours:.1f}x as fast",
            "at least 3x, read strictly",
            "reading the pixels, most of the time, is the same; the box arithmetic is saved, but 80 MB of fresh memory "
            "cost as much in page faults (where malloc keeps its memory, it was 1.5x to 1.8x)",
        ),
    ]


def _head() -> Row:
    config = ModelConfig()
    head = CascadeHead(config).eval()
    levels = [level.expand(2, -1, -1, -1, -1) for level in _levels(S)]
    together = Pyramid.from_table(make_table(levels), [SIZE] * 2)
    alone = [Pyramid.from_table(make_table([level[:, s : s + 1] for level in levels]), [SIZE] * 2) for s in range(S)]
    h, b, partner = torch.randn(2, N, D), _boxes(2), torch.tensor([1, 0])
    volume, slices = seconds_of_each(
        lambda: head(h, b, together, partner), lambda: [head(h, b, pyramid, partner) for pyramid in alone], rounds=3
    )
    return Row(
        f"One head on S = {S} against {S} passes of it on one slice (both views)",
        f"{volume / slices:.2f} of the time",
        "at most 0.7",
    )


def _whole_model() -> list[Row]:
    cases = {
        "ResNet-50, N = 100, 6 heads": (ModelConfig(), (544, 272)),
        "preset mini": (PRESETS["mini"], (192, 96)),
    }
    rows = []
    for name, (config, (height, width)) in cases.items():
        model = Detector(dataclasses.replace(config, chunk=2)).eval().for_inference()
        volume = Breasts(
            images=torch.rand(1, 2, S, height, width),
            sizes=torch.tensor([height, width]).expand(1, 2, 2),
            present=torch.ones(1, 2, dtype=torch.bool),
        )
        slices = [dataclasses.replace(volume, images=volume.images[:, :, s : s + 1]) for s in range(S)]
        together, alone = seconds_of_each(partial(model, volume), partial(_each, model, slices), rounds=3)
        rows.append(
            Row(
                f"Whole model on S = {S} against {S} passes on one slice ({name}, {height} x {width}, both views)",
                f"{together / alone:.2f} of the time",
                "at most 0.95",
            )
        )
    return rows


def _each(model: Detector, batches: list[Breasts]) -> None:
    for batch in batches:
        model(batch)
