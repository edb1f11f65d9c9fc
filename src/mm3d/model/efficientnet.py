"""EfficientNet-Lite: convolutions with few multiplications, ReLU6, no squeeze-and-excitation, for small processors.

Its seven parts are those of EfficientNet-B0 (Tan and Le, 2019, table 1). Widths and depths of the parts are settings:
Lite0 to Lite4 differ in nothing else.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from mm3d.model.config import BackboneConfig
from mm3d.model.resnet import Stages

KERNELS = (3, 3, 5, 3, 5, 5, 3)  # of the depthwise convolutions of each part
STRIDES = (1, 2, 2, 2, 1, 2, 1)  # of the first block of each part
EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)  # how much wider a block is inside
STAGE_ENDS = (1, 2, 4, 6)  # the last part with stride 4, 8, 16 and 32
EPS = 1e-3  # of BatchNorm


class EfficientNetLite(nn.Module):
    """Grey images (n, 1, H, W) to four stages (n, C_l, H_l, W_l) with H_l = ceil(H / stride)."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.channels = [config.widths[part] for part in STAGE_ENDS]
        self.stem = ConvLayer(1, config.stem, kernel=3, stride=2)
        self.parts = nn.ModuleList()
        inputs = config.stem
        rows = zip(config.widths, config.depths, KERNELS, STRIDES, EXPANSIONS, strict=True)
        for width, depth, kernel, stride, expansion in rows:
            blocks = [Block(inputs, width, kernel, stride, expansion)]
            blocks += [Block(width, width, kernel, 1, expansion) for _ in range(depth - 1)]
            self.parts.append(nn.Sequential(*blocks))
            inputs = width

    def forward(self, x: Tensor) -> Stages:
        x, stages = self.stem(x), []
        for number, part in enumerate(self.parts):
            x = part(x)
            if number in STAGE_ENDS:
                stages.append(x)
        return Stages(stages)


class Block(nn.Module):
    """MBConv: a 1 x 1 convolution widens the features, a depthwise one looks around, and a 1 x 1 one narrows them."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.adds = stride == 1 and inputs == outputs
        self.expand = ConvLayer(inputs, inner) if expansion > 1 else nn.Identity()
        self.depthwise = ConvLayer(inner, inner, kernel, stride, groups=inner)
        self.project = ConvLayer(inner, outputs, activates=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return y.add_(x) if self.adds else y


class ConvLayer(nn.Module):
    """A convolution whose output has ceil(size / stride) pixels, BatchNorm and, except at the end of a block, ReLU6."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, activates: bool = True
    ) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        padding = kernel // 2 if stride == 1 else 0  # with a stride it depends on the image
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        self.normalization = nn.BatchNorm2d(outputs, EPS)
        self.activation = nn.ReLU6(inplace=True) if activates else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            x = pad_same(x, self.kernel, self.stride)
        return self.activation(self.normalization(self.convolution(x)))


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad with zeros as TensorFlow does ("same"), where the weights were trained: an odd pixel goes to the end."""
    total = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:]]
    (top, bottom), (left, right) = ((one // 2, one - one // 2) for one in total)
    return F.pad(x, (left, right, top, bottom))
