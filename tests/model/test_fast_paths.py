"""Every fast path gives what the plain one gives: outputs and losses in float32 to 1e-5.

The plain path is the training's forward pass with torch's own products, everything at once. If a fast path gave
something else, a user would find or learn something else on another machine, at another size or with another option.
Gradients are in test_full_size.py (recomputation) and below.
"""

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.examples import build, random_breasts, targets, tiny
from torch import Tensor, nn

from mm3d.model import linear, memory
from mm3d.model.config import BACKBONES, ModelConfig
from mm3d.model.detector import Breasts, Detections, Detector
from mm3d.model.group_norm import GroupNorm
from mm3d.model.losses import detection_losses

LARGE, SMALL = (200, 136), (72, 64)  # output convolutions come after RoIAlign in inference, or before
TOLERANCE = 1e-5  # relative; absolute below 1
SLICES = 5
BOTTLENECKS = dataclasses.replace(BACKBONES["resnet50"], widths=(16, 32, 48, 64), depths=(1, 2, 1, 1), stem=8)
TRUTH = targets(
    [True, False], [[True, True], [True, False]], [(0, 0, (5, 9, 40, 50), 0), (0, 1, (8, 8, 30, 30), SLICES - 1)]
)


def make_breasts(size: tuple[int, int]) -> Breasts:
    """Two breasts, one without MLO; views of two sizes."""
    batch = random_breasts(SLICES, *size, present=((True, True), (True, False)))
    height, width = size
    sizes = torch.tensor([[[height, width], [height - 9, width - 14]], [[height, width], [0, 0]]])
    return dataclasses.replace(batch, sizes=sizes)


def list_results(detections: Detections, breasts: Breasts) -> dict[str, Tensor]:
    assert detections.slice_logits is not None
    losses = detection_losses(detections, TRUTH, breasts.sizes)
    found = {
        **{"logits": detections.logits, "boxes": detections.boxes, "slices": detections.slice_logits},
        **{"images": detections.image_logits, "breasts": detections.breast_logits, "total": losses.total},
    }
    return {name: value.detach() for name, value in (found | losses.terms).items()}


def train(model: Detector, breasts: Breasts) -> Detections:
    return model.train()(breasts)


def infer(model: Detector, breasts: Breasts) -> Detections:
    with torch.inference_mode():
        return model(breasts)


# What runs, and the settings of the model that it needs.
PATHS: dict[str, tuple[Callable[[Detector, Breasts], Detections], dict[str, object]]] = {
    "training": (train, {}),
    "recomputation": (train, {"recompute": True}),
    "recomputation, two slices at a time": (train, {"recompute": True, "chunk": 2}),
    "inference": (infer, {}),
    "inference, two slices at a time": (infer, {"chunk": 2}),
    "for_inference": (lambda model, breasts: infer(model.for_inference(), breasts), {}),
    "openvino": (lambda model, breasts: infer(model.for_inference("openvino"), breasts), {}),
}


@pytest.mark.parametrize(
    ("backbone", "size"), [(BACKBONES["small"], SMALL), (BOTTLENECKS, LARGE)], ids=["small", "large"]
)
def test_every_path_has_the_results_of_the_plain_one(
    backbone: object, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config: ModelConfig = tiny(backbone=backbone)
    breasts = make_breasts(size)
    monkeypatch.setattr(linear, "HAS_ONEDNN", False)
    plain = list_results(train(build(config), breasts), breasts)
    monkeypatch.undo()
    monkeypatch.setattr(linear, "SMALLEST", 0)  # so that small products are fast, too
    monkeypatch.setattr(memory, "CACHED_FLOATS", 1)  # one proposal at a time
    monkeypatch.setattr(memory, "RECOMPUTED_FLOATS", 40_000)  # a few
    wrong = []
    for name, (run, changes) in PATHS.items():
        found = list_results(run(build(dataclasses.replace(config, **changes)), breasts), breasts)  # type: ignore[arg-type]
        for what, value in found.items():
            difference = float((value - plain[what]).abs().max() / plain[what].abs().max().clamp(min=1))
            if not difference <= TOLERANCE:
                wrong.append(f"{name}: {what} differs by {difference:.1e}")
    assert not wrong


def test_products_are_those_of_torch_with_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear layer, and a convolution with a kernel of one pixel. In float64 torch's own."""
    monkeypatch.setattr(linear, "SMALLEST", 0)
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, requires_grad=True)  # noqa: E731
    place = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    image = torch.randn(2, 6, 9, 7, generator=generator).to(memory_format=torch.channels_last).requires_grad_()
    for x, weight, ours, theirs in (
        (draw(3, 5, 8), draw(4, 8), linear.linear, F.linear),
        (image, draw(4, 6, 1, 1), lambda x, weight, bias: linear.convolve(x, weight, bias, place), F.conv2d),
    ):
        bias = draw(4)
        inputs = (x, weight, bias)
        product = ours(*inputs)
        wanted = theirs(*(tensor.double() for tensor in inputs))
        torch.testing.assert_close(product.double(), wanted, atol=TOLERANCE, rtol=TOLERANCE)
        gradient = torch.randn(product.shape, generator=generator)
        found = torch.autograd.grad(product, inputs, gradient)
        for one, other in zip(found, torch.autograd.grad(wanted, inputs, gradient.double()), strict=True):
            torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=TOLERANCE)


def test_the_gradient_of_group_norm_in_bfloat16_is_that_of_torch() -> None:
    """Training in bfloat16 would otherwise learn something else. In float64 from the same rounded numbers."""
    generator = torch.Generator().manual_seed(0)
    ours = GroupNorm(4, 8)
    nn.init.normal_(ours.weight, generator=generator)
    x, gradient = (torch.randn(3, 8, 10, 6, generator=generator).to(torch.bfloat16) for _ in range(2))
    image = (x + 1).to(memory_format=torch.channels_last).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(image)
    assert "_GroupNorm" in str(y.grad_fn)
    found = torch.autograd.grad(y, (image, ours.weight, ours.bias), gradient.to(y.dtype))
    exact, weight, bias = (tensor.detach().double().requires_grad_() for tensor in (image, ours.weight, ours.bias))
    wanted = torch.autograd.grad(F.group_norm(exact, 4, weight, bias), (exact, weight, bias), gradient.double())
    for one, other, tolerance in zip(found, wanted, (0.02, 1e-3, 1e-3), strict=True):
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=tolerance)
