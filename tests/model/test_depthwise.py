"""The gradients of depthwise convolutions in bfloat16 are torch's own, up to rounding.

A wrong one would train a backbone to something else, without a word.
"""

import pytest
import torch
import torch.nn.functional as F

from mm3d.model import depthwise


@pytest.mark.parametrize("size", [(8, 8), (9, 12), (13, 7)])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 1), (5, 2)])
def test_the_gradients_are_those_of_torch(kernel: int, stride: int, padding: int, size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, *size, generator=generator).to(torch.bfloat16).requires_grad_()
    weight = torch.randn(6, 1, kernel, kernel, generator=generator).to(torch.bfloat16).requires_grad_()
    bias = torch.randn(6, generator=generator)
    steps, frame = (stride, stride), (padding, padding)
    assert depthwise.is_slow(x, weight, steps, frame, (1, 1), 6)
    ours = depthwise.convolve(x, weight, bias, steps, frame)
    exact, kernels = (tensor.detach().double().requires_grad_() for tensor in (x, weight))
    wanted = F.conv2d(exact, kernels, bias.to(torch.bfloat16).double(), stride, padding, groups=6)
    torch.testing.assert_close(ours.double(), wanted, atol=0.05, rtol=0.02)
    gradient = torch.randn(ours.shape, generator=generator).to(torch.bfloat16)
    found = torch.autograd.grad(ours, (x, weight), gradient)
    for tensor, expected in zip(found, torch.autograd.grad(wanted, (exact, kernels), gradient.double()), strict=True):
        assert tensor.shape == expected.shape
        torch.testing.assert_close(tensor.double(), expected, atol=0.1, rtol=0.02)


def test_all_other_convolutions_are_left_to_torch() -> None:
    x, weight = torch.rand(1, 6, 9, 9), torch.rand(6, 1, 5, 5)
    place = ((1, 1), (2, 2), (1, 1), 6)
    assert not depthwise.is_slow(x, weight, *place)  # float32
    with torch.autocast("cpu", torch.bfloat16):
        assert depthwise.is_slow(x, weight, *place)
        with torch.no_grad():
            assert not depthwise.is_slow(x, weight, *place)
        assert not depthwise.is_slow(x, weight, (1, 1), (2, 2), (2, 2), 6)  # with dilation
        assert not depthwise.is_slow(x, weight, (1, 1), "same", (1, 1), 6)
        assert not depthwise.is_slow(x, torch.rand(6, 1, 3, 3), *place)
        assert not depthwise.is_slow(x, torch.rand(6, 6, 5, 5), (1, 1), (2, 2), (1, 1), 1)
