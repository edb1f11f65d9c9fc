"""ResNet: the backbone of most models. Its tensors have the names of those of `transformers`.

`transformers` has the same network, and gives the same output. But its import takes longer than that of torch.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

from torch import Tensor, nn

from mm3d.model.config import BackboneConfig

REDUCTION = 4  # the width of a stage against that of the 3 x 3 convolutions in its bottleneck blocks


class Stages(NamedTuple):
    """The output of a body, named as in `transformers`."""

    feature_maps: list[Tensor]


class ResNet(nn.Module):
    """Grey images (n, 1, H, W) to four stages (n, C_l, H_l, W_l) with H_l = ceil(H / stride)."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.channels = config.widths
        # The largest values are the same before and after a ReLU, which has a quarter of the work after the pooling.
        stem = _convolve(1, config.stem, kernel=7, stride=2, relu=False)
        pooler = nn.MaxPool2d(3, stride=2, padding=1)
        self.embedder = nn.Sequential(OrderedDict(embedder=stem, pooler=pooler, activation=nn.ReLU()))
        stages = nn.ModuleList()
        channels = config.stem
        for width, depth in zip(config.widths, config.depths, strict=True):
            blocks = []
            for number in range(depth):
                stride = 2 if stages and number == 0 else 1  # the stem has made the first stage small already
                blocks.append(_Block(channels, width, stride, config))
                channels = width
            stages.append(nn.Sequential(OrderedDict(layers=nn.Sequential(*blocks))))
        self.encoder = nn.ModuleDict({"stages": stages})
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight)  # `transformers` draws twice; so a seed gives the same weights as there
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Stages:
        x, outputs = self.embedder(x), []
        stages: Any = self.encoder["stages"]
        for stage in stages:
            x = stage(x)
            outputs.append(x)
        return Stages(outputs)


class _Block(nn.Module):
    """Two or three convolutions, whose result is added to their input."""

    def __init__(self, channels: int, width: int, stride: int, config: BackboneConfig) -> None:
        super().__init__()
        same = channels == width and stride == 1
        self.shortcut = nn.Identity() if same else _convolve(channels, width, 1, stride, relu=False)
        if config.layer == "basic":
            layers = [_convolve(channels, width, 3, stride), _convolve(width, width, 3, relu=False)]
        else:
            narrow = width // REDUCTION
            first, middle = (stride, 1) if config.stride_in == "1x1" else (1, stride)
            layers = [
                _convolve(channels, narrow, 1, first),
                _convolve(narrow, narrow, 3, middle),
                _convolve(narrow, width, 1, relu=False),
            ]
        self.layer = nn.Sequential(*layers)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        y += self.shortcut(x)
        return self.activation(y)


def _convolve(channels: int, width: int, kernel: int, stride: int = 1, relu: bool = True) -> nn.Sequential:
    """A convolution, its norm, and a ReLU."""
    return nn.Sequential(
        OrderedDict(
            convolution=nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False),
            normalization=nn.BatchNorm2d(width),
            activation=nn.ReLU() if relu else nn.Identity(),
        )
    )
