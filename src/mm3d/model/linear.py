"""Matrix products in float32 by oneDNN. They give the same numbers as torch's own, up to rounding.

On CPUs torch gives products in float32 to MKL, but convolutions, and everything in bfloat16, to oneDNN. On AMD
processors MKL leaves half of their vector units unused: oneDNN takes 0.4 to 0.5 of its time. A convolution with a
kernel of one pixel is such a product as well. As a product it takes 0.5 of its time on large images, forwards and
backwards.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SMALLEST = 1_000_000  # multiplications; below, to call oneDNN takes longer than the product
IN_PLACE = ((1, 1), (0, 0), 1)  # stride, padding and groups of a convolution that leaves pixels where they are
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """torch's layer, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Conv2d(nn.Conv2d):
    """torch's layer, computed by `convolve`."""

    def forward(self, x: Tensor) -> Tensor:
        place = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}
        return convolve(x, self.weight, self.bias, place)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, place: dict[str, Any]) -> Tensor:
    """As `F.conv2d`; place has its stride, padding, dilation and groups."""
    of_pixels = weight.shape[2:] == (1, 1) and (place["stride"], place["padding"], place["groups"]) == IN_PLACE
    pixels = x.permute(0, 2, 3, 1)
    if of_pixels and pixels.is_contiguous() and can_multiply(x, weight):
        return linear(pixels, weight.flatten(1), bias).permute(0, 3, 1, 2)
    return F.conv2d(x, weight, bias, **place)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `F.linear`: x (..., K) and weight (O, K) -> (..., O)."""
    if x.numel() * len(weight) < SMALLEST or not can_multiply(x, weight):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    product = _Linear.apply(rows, weight, bias) if torch.is_grad_enabled() else multiply(rows, weight, bias)
    return product.view(*x.shape[:-1], len(weight))


def can_multiply(x: Tensor, weight: Tensor) -> bool:
    """Whether `multiply` is for these tensors. Autocast wants bfloat16, which torch gives to oneDNN itself.

    Not where the model is recorded: OpenVINO and ONNX know torch's layers only.
    """
    of_cpu = x.device.type == weight.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    recorded = torch.jit.is_tracing() or torch.compiler.is_exporting()  # type: ignore[attr-defined]
    other = torch.is_autocast_enabled("cpu") or recorded
    return of_cpu and HAS_ONEDNN and not other


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (n, K) and weight (O, K) -> (n, O), without a graph."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        gradient = gradients[0].contiguous()
        return (
            multiply(gradient, weight.T) if of_x else None,
            multiply(gradient.T, x.T) if of_weight else None,
            gradient.sum(dim=0) if of_bias else None,
        )
