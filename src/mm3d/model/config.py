"""The settings of a model. They are plain data: a weights file carries them as JSON."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from mm3d.shared.config import check, show
from mm3d.shared.errors import InputError

GROUPS = 8  # of GroupNorm
# The largest values of settings. A weights file is made by others, and may ask for a model without end.
LARGEST = {
    **{"channels": 4096, "proposals": 10_000, "heads": 100, "attention_heads": 256, "dynamic_channels": 4096},
    **{"feedforward": 65_536, "slices": 1000, "widths": 16_384, "depths": 200, "stem": 4096},
}
LARGEST_SETTING = 100_000  # of any number in the settings of a backbone of `transformers`
EngineName = Literal["torch", "openvino"]
FusionName = Literal["weighted", "mean", "max", "timesform", "query", "mlp"]
PrecisionName = Literal["auto", "float32", "bfloat16"]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class BackboneConfig:
    """The shape of the feature extractor. Its four stages have strides 4, 8, 16, 32."""

    family: Literal["resnet", "pvt_v2_li", "efficientnet_lite", "auto"] = "resnet"
    """ResNet, PVTv2 with linear attention ("li"), EfficientNet-Lite, or auto: another one of `transformers`."""
    name: str = ""
    """For auto: the model type in `transformers`, such as convnext or swin. It does not use widths and depths."""
    settings: dict[str, Any] = field(default_factory=dict)
    """For auto: settings of `transformers` that differ from its own, such as depths and hidden_sizes."""
    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    """Channels of the four stages, or of the seven parts of an EfficientNet."""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks in each of them."""
    layer: Literal["basic", "bottleneck"] = "bottleneck"
    """The ResNet's block."""
    stride_in: Literal["3x3", "1x1"] = "3x3"
    """Which convolution of a ResNet's bottleneck has the stride: the middle one, or the first, as Keras has it."""
    stem: int = 64
    """Channels of the first convolution. PVTv2 does not use it."""
    norm: Literal["frozen", "group"] = "frozen"
    """What replaces BatchNorm, because batches are small: "frozen" keeps its pretrained statistics, and "group" is
    GroupNorm, for training from scratch. PVTv2 has LayerNorm and keeps it."""

    def __post_init__(self) -> None:
        check(self)
        if (self.family == "auto") != bool(self.name) or (self.settings and not self.name):
            raise InputError("backbone.name and backbone.settings belong to family = auto, which needs a name.")
        if self.family == "auto":
            if any(abs(number) > LARGEST_SETTING for number in _find_numbers(self.settings)):
                raise InputError(f"backbone.settings has a number beyond {LARGEST_SETTING:,}.")
            return
        has_batch_norm = self.family != "pvt_v2_li"
        inner = [width // 4 for width in self.widths if self.family == "resnet" and self.layer == "bottleneck"]
        if has_batch_norm and self.norm == "group" and any(w % GROUPS for w in (self.stem, *self.widths, *inner)):
            raise InputError(
                f"With norm = group, stem {self.stem} and widths {self.widths} must be multiples of {GROUPS}, and of "
                f"{4 * GROUPS} with bottlenecks."
            )
        parts = 7 if self.family == "efficientnet_lite" else 4
        if len(self.widths) != parts or len(self.depths) != parts:
            raise InputError(
                f"{self.family} needs {parts} widths and {parts} depths, not {self.widths} and {self.depths}."
            )
        for name, numbers in (("widths", self.widths), ("depths", self.depths), ("stem", (self.stem,))):
            if not all(1 <= number <= LARGEST[name] for number in numbers):
                raise InputError(f"backbone.{name} must be from 1 to {LARGEST[name]:,}.")


def _find_numbers(value: Any) -> Iterator[float]:
    """The numbers in tables and lists. One that is none counts as infinite."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _find_numbers(item)
    elif isinstance(value, int | float):
        yield value if math.isfinite(value) else math.inf


# The named backbones. "small" is for CPUs and trains from scratch.
BACKBONES = {
    "small": BackboneConfig(widths=(32, 48, 64, 96), depths=(1, 1, 1, 1), layer="basic", stem=32, norm="group"),
    "resnet18": BackboneConfig(widths=(64, 128, 256, 512), depths=(2, 2, 2, 2), layer="basic"),
    "resnet50": BackboneConfig(),
    "resnet101": BackboneConfig(depths=(3, 4, 23, 3)),
    "pvt_v2_b2_li": BackboneConfig(family="pvt_v2_li", widths=(64, 128, 320, 512), depths=(3, 4, 6, 3)),
    "efficientnet_lite0": BackboneConfig(
        family="efficientnet_lite", widths=(16, 24, 40, 80, 112, 192, 320), depths=(1, 2, 2, 3, 3, 4, 1), stem=32
    ),
    "efficientnet_lite1": BackboneConfig(
        family="efficientnet_lite", widths=(16, 24, 40, 80, 112, 192, 320), depths=(1, 3, 3, 4, 4, 5, 1), stem=32
    ),
    "efficientnet_lite2": BackboneConfig(
        family="efficientnet_lite", widths=(16, 24, 48, 88, 120, 208, 352), depths=(1, 3, 3, 4, 4, 5, 1), stem=32
    ),
}


@dataclass(frozen=True)
class ModelConfig:
    """One detector. The defaults are the paper's, where it gives one."""

    backbone: BackboneConfig = BACKBONES["resnet50"]
    """The feature extractor. BACKBONES has the named ones."""
    channels: int = 256
    """D: channels of the pyramid, of the RoI features and of the proposals."""
    proposals: int = 100
    """N: number of proposals in each view."""
    heads: int = 6
    """Number of cascade heads that refine the proposals, one after the other."""
    attention_heads: int = 8
    """Heads of SelfAttn, CrossAttn and of the fusions with attention. D must be a multiple of it."""
    dynamic_channels: int = 64
    """Inner width of DynamicConv."""
    feedforward: int = 2048
    """Inner width of the feed-forward block."""
    fusion: FusionName = "weighted"
    """How slices become a volume: the paper's weighted average, or mean or max, none of which has parameters; or
    timesform, query or mlp, which have some."""
    slices: int = 16
    """S: number of slices that inputs are prepared to, 16 for volumes and 1 for mammograms. Only fusion = mlp has
    parameters that depend on it: its layers have room for this many slices."""
    canonical_box: float = 224.0
    """A box with this side (in model pixels) pools from p4, one half as large from p3. Scale it with the image."""
    proposal_start: Literal["image", "grid", "fitted"] = "image"
    """Where proposal boxes are before any training: all as large as the image (Sparse R-CNN), a grid of lesion-sized
    boxes, or fitted to the boxes that a training learns from. The boxes are learned, so this is only their start."""
    pixel_mean: float = 0.449
    """Subtracted from the grey values (0 to 1): the mean that COCO and ImageNet weights were trained with."""
    pixel_std: float = 0.226
    """Divides the grey values after that: their standard deviation."""
    chunk: int = 0
    """Number of slices that go through the backbone at a time in inference and with `recompute`; 0 means as many as
    have the pixels of one full-size slice. It changes memory and time, not the result."""
    pyramid: Literal["float32", "bfloat16"] = "float32"
    """Number format of the pyramid in inference and with `recompute`. bfloat16 needs half the memory, 103 MB for a
    full-size slice, and rounds the features by about 0.1%."""
    recompute: bool = False
    """Training keeps only the pyramid and the RoI features, and computes the rest again in the backward pass, a few
    slices at a time: docs/full-size.md."""

    def __post_init__(self) -> None:
        check(self)
        for name in ("channels", "proposals", "heads", "attention_heads", "dynamic_channels", "feedforward", "slices"):
            if not 1 <= getattr(self, name) <= LARGEST[name]:
                raise InputError(f"{name} = {show(getattr(self, name))} must be from 1 to {LARGEST[name]:,}.")
        if not (0 < self.canonical_box < math.inf and 0 < self.pixel_std < math.inf and math.isfinite(self.pixel_mean)):
            raise InputError("canonical_box and pixel_std must be above 0, and pixel_mean a number.")
        if self.channels % self.attention_heads:
            raise InputError(
                f"channels = {self.channels} must be a multiple of attention_heads = {self.attention_heads}."
            )
        if self.chunk < 0:
            raise InputError(f"chunk = {self.chunk} must be 0 (as many as fit) or more.")


PRESETS = {
    "tiny": ModelConfig(
        backbone=BackboneConfig(widths=(8, 16, 24, 32), depths=(1, 1, 1, 1), layer="basic", stem=8, norm="group"),
        channels=32,
        proposals=8,
        heads=3,
        attention_heads=4,
        dynamic_channels=8,
        feedforward=64,
        slices=4,
        canonical_box=56.0,
        proposal_start="grid",
    ),
    "mini": ModelConfig(
        backbone=BACKBONES["small"],
        channels=64,
        proposals=24,
        heads=4,
        dynamic_channels=16,
        feedforward=256,
        slices=8,
        canonical_box=56.0,
        proposal_start="grid",
    ),
    "paper": ModelConfig(pyramid="bfloat16"),
}
"""Complete settings by name.

"tiny" runs in seconds on one core, for tests. "mini" trains on synthetic breasts of about 192 x 96 pixels on two CPU
cores. "paper" is the paper's model for volumes of 16 x 2200 x 1100.
"""
