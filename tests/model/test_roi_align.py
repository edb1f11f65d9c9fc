"""RoIAlign: a shifted or wrongly weighted sample would make every pretrained weight see another picture."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import DEVICES
from torch import Tensor

from mm3d.model.roi_align import STRIDES, Pyramid, level_shapes, make_table, roi_align

SIZE = (96, 64)
SHAPES = ((24, 16), (12, 8), (6, 4), (3, 2))


def levels(S: int = 3, D: int = 5, M: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(M, S, D, height, width, generator=generator) for height, width in SHAPES]


def pyramid(levels: list[Tensor]) -> Pyramid:
    return Pyramid.from_table(make_table(levels), [SIZE] * len(levels[0]))


def by_the_definition(image: Tensor, box: list[float], stride: int) -> Tensor:
    """One box on one level (D, H, W) in plain loops, from the published rule. Returns (49, D)."""
    D, H, W = image.shape
    x1, y1, x2, y2 = (coordinate / stride - 0.5 for coordinate in box)
    out = torch.zeros(49, D)
    for bin_y in range(7):
        for bin_x in range(7):
            for sample_y in range(2):
                for sample_x in range(2):
                    y = y1 + (y2 - y1) / 7 * (bin_y + (sample_y + 0.5) / 2)
                    x = x1 + (x2 - x1) / 7 * (bin_x + (sample_x + 0.5) / 2)
                    if y < -1 or y > H or x < -1 or x > W:
                        continue
                    y, x = min(max(y, 0.0), H - 1), min(max(x, 0.0), W - 1)
                    top, left = math.floor(y), math.floor(x)
                    bottom, right = min(top + 1, H - 1), min(left + 1, W - 1)
                    dy, dx = y - top, x - left
                    value = (1 - dy) * ((1 - dx) * image[:, top, left] + dx * image[:, top, right])
                    value = value + dy * ((1 - dx) * image[:, bottom, left] + dx * image[:, bottom, right])
                    out[bin_y * 7 + bin_x] += value / 4
    return out


coordinate = st.floats(-60, 120, width=32)
size = st.floats(0, 150, width=32)


@settings(max_examples=40, deadline=None)
@given(x=coordinate, y=coordinate, width=size, height=size)
def test_equals_the_definition_for_any_box(x: float, y: float, width: float, height: float) -> None:
    box = torch.tensor([x, y, x + width, y + height])
    x1, y1, x2, y2 = box.tolist()
    side = torch.tensor((x2 - x1) * (y2 - y1), dtype=torch.float32).sqrt()
    if abs(float(torch.log2(side / 56 + 1e-8)) % 1) < 1e-4:
        return  # on the border between two levels rounding decides
    level = min(max(int(torch.floor(4 + torch.log2(side / 56 + 1e-8))), 2), 5) - 2
    stack = levels()
    ours = roi_align(pyramid(stack), box.expand(2, 1, 4), canonical_box=56.0)
    for view in range(2):
        for s in range(3):
            expected = by_the_definition(stack[level][view, s], [x1, y1, x2, y2], STRIDES[level])
            torch.testing.assert_close(ours[view, 0, :, s], expected, atol=1e-4, rtol=1e-4)


BOXES = torch.tensor(
    [[[0.0, 0, 64, 96], [10, 20, 30, 45], [-8, -9, 5, 120]], [[3.0, 3, 4, 4], [0, 0, 20, 20], [40, 80, 90, 99]]]
)


def test_views_of_different_sizes_share_a_table() -> None:
    """A tall and a wide view in one batch: each must be read within its own borders."""
    small = [level[1:, ..., : level.shape[-2] // 2, :] for level in levels()]
    sizes = [SIZE, (SIZE[0] // 2 - 2, SIZE[1])]  # levels of 12, 6, 3 and 2 rows; a row is missing at p5
    small[3] = torch.nn.functional.pad(small[3], (0, 0, 0, 1))
    assert [tuple(level.shape[-2:]) for level in small] == level_shapes(sizes[1])
    tables = [make_table([level[:1] for level in levels()]), make_table(small)]
    together = roi_align(Pyramid.from_table(torch.cat(tables), sizes), BOXES, 56.0)
    for view in range(2):
        alone = roi_align(Pyramid.from_table(tables[view], sizes[view : view + 1]), BOXES[view : view + 1], 56.0)
        torch.testing.assert_close(together[view : view + 1], alone)


def test_all_slices_at_once_equal_each_slice_alone() -> None:
    stack = levels()
    together = roi_align(pyramid(stack), BOXES, 56.0)
    for s in range(3):
        alone = roi_align(pyramid([level[:, s : s + 1] for level in stack]), BOXES, 56.0)
        torch.testing.assert_close(together[:, :, :, s : s + 1], alone)


def test_gradients_reach_the_features_and_not_the_boxes() -> None:
    stack = [level[:1, :2, :2, :, :].double().requires_grad_() for level in levels()]
    boxes = BOXES[:1].clone().requires_grad_()

    def pooled(*features: Tensor) -> Tensor:
        return roi_align(pyramid(list(features)), boxes, 56.0)

    assert torch.autograd.gradcheck(pooled, stack)
    pooled(*stack).sum().backward()
    assert boxes.grad is None


def test_a_box_that_is_not_a_number_gives_no_number_instead_of_a_crash() -> None:
    boxes = torch.tensor([[[math.nan, 0, 10, 10], [math.inf, 0, math.inf, 10], [0, 0, 1e30, 1e30]]]).expand(2, 3, 4)
    features = roi_align(pyramid(levels()), boxes)
    assert features[:, :2].isnan().all()
    assert features[:, 2].isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.05)], ids=str
)
def test_every_device_and_precision_agrees(device: str, dtype: torch.dtype, tolerance: float) -> None:
    there = pyramid([level.to(device, dtype) for level in levels()])
    ours = roi_align(there, BOXES.to(device), 56.0)
    assert ours.dtype == dtype
    expected = roi_align(pyramid(levels()), BOXES, 56.0)
    torch.testing.assert_close(ours.cpu().float(), expected, atol=tolerance, rtol=tolerance)


def test_under_torch_compile() -> None:
    plain = pyramid(levels())
    table = plain.table

    def pooled(table: Tensor, boxes: Tensor) -> Tensor:
        return roi_align(Pyramid(table, plain.shapes, plain.first_row), boxes, 56.0)

    compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(pooled, fullgraph=True)
    leaf = table.clone().requires_grad_()
    out = compiled(leaf, BOXES)
    torch.testing.assert_close(out, pooled(table, BOXES))
    out.sum().backward()
    eager = table.clone().requires_grad_()
    pooled(eager, BOXES).sum().backward()
    torch.testing.assert_close(leaf.grad, eager.grad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_features_and_weights_agree_on_their_type(device: str, dtype: torch.dtype) -> None:
    convolution = torch.nn.Conv2d(5, 5, 1).to(device)
    with torch.autocast(device, dtype):
        stack = [convolution(level.flatten(0, 1).to(device)).unflatten(0, (2, 3)) for level in levels()]
        features = roi_align(pyramid(stack), BOXES.to(device), 56.0)
    assert features.dtype == dtype
    features.float().sum().backward()
    assert convolution.weight.grad is not None
    assert convolution.weight.grad.isfinite().all()
