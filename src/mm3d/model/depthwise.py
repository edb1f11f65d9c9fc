"""Depthwise convolutions whose gradients in bfloat16 are fast on a CPU. A reader of the method may skip it.

torch takes the slow way for two of them: the gradient of a 5 x 5 kernel, and that of the input of a convolution with
stride 2. In an EfficientNet-Lite these are most of a training step. Both are other convolutions, which are fast: the
gradient of a 5 x 5 kernel is put together from four of 3 x 3; and the gradient of the input is a convolution of the
output's gradient with zeros between its pixels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Pair = tuple[int, int]


def is_slow(x: Tensor, weight: Tensor, stride: Pair, padding: Any, dilation: Pair, groups: int) -> bool:
    """Whether torch's gradients of this convolution are slow, and will be wanted."""
    in_bfloat16 = x.dtype == torch.bfloat16 or (
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    )
    kernel = weight.shape[2:]
    return (
        in_bfloat16
        and x.device.type == "cpu"
        and torch.is_grad_enabled()
        and groups == x.shape[1] == len(weight) > 1
        and (stride == (2, 2) or (stride == (1, 1) and kernel == (5, 5)))
        and kernel in ((3, 3), (5, 5))
        and dilation == (1, 1)
        and isinstance(padding, tuple)
    )


def convolve(x: Tensor, weight: Tensor, bias: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """A depthwise convolution in bfloat16. Its bias is that of a frozen BatchNorm and gets no gradient."""
    x, weight, bias = (tensor.to(torch.bfloat16) for tensor in (x, weight, bias))
    convolved: Tensor = _Convolution.apply(x, weight, bias, stride, padding)
    return convolved


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: Pair, padding: Pair) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x, weight, bias, stride, padding, groups=len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            if ctx.stride == (2, 2):
                of_x = _differentiate_input(gradient, weight, x, ctx.padding)
            else:
                of_x = _differentiate(gradient, x, weight, ctx.stride, ctx.padding, (True, False))[0]
        if ctx.needs_input_grad[1]:
            if weight.shape[2:] == (5, 5):
                of_weight = _differentiate_kernel(gradient, weight, x, ctx.stride, ctx.padding)
            else:
                of_weight = _differentiate(gradient, x, weight, ctx.stride, ctx.padding, (False, True))[1]
        return of_x, of_weight, None, None, None


def _differentiate(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """torch's own gradients of input and kernel, those of the two that are wanted."""
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, stride, padding, (1, 1), False, (0, 0), len(weight), (*wanted, False)
    )
    return of_x, of_weight


def _differentiate_input(gradient: Tensor, weight: Tensor, x: Tensor, padding: Pair) -> Tensor:
    """The gradient of the input of a convolution with stride 2."""
    n, channels, height, width = gradient.shape
    spread = gradient.new_zeros(n, 2 * height - 1, 2 * width - 1, channels).permute(0, 3, 1, 2)  # channels last
    spread[:, :, ::2, ::2] = gradient
    whole = F.conv2d(spread, weight.flip(2, 3), padding=weight.shape[-1] - 1, groups=channels)
    # The padding goes. A last row or column that no kernel reached comes back, as zeros.
    (top, left), (rows, columns) = padding, x.shape[2:]
    return F.pad(whole, (-left, columns + left - whole.shape[3], -top, rows + top - whole.shape[2]))


def _differentiate_kernel(gradient: Tensor, weight: Tensor, x: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The gradient of a 5 x 5 kernel: its four corners of 3 x 3, which overlap."""
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    of_weight, corner = torch.empty_like(weight), weight.new_empty(len(weight), 1, 3, 3)
    height, width = ((size - 1) * step + 3 for size, step in zip(gradient.shape[2:], stride, strict=True))
    for top in (0, 2):
        for left in (0, 2):
            seen = x[:, :, top : top + height, left : left + width].contiguous(memory_format=torch.channels_last)
            of_corner = _differentiate(gradient, seen, corner, stride, (0, 0), (False, True))[1]
            of_weight[:, :, top : top + 3, left : left + 3] = of_corner
    return of_weight
