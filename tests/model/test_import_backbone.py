"""Import of ImageNet backbones: a wrong stride, padding or name loads without a word and costs what ImageNet taught.

The tests write files under the published names and shapes, at small width. What the published files give was compared
with their own packages' models by hand; here the file's network is computed from its tensors, without our modules.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from mm3d.cli import main
from mm3d.model import weights
from mm3d.model.config import BACKBONES, ModelConfig
from mm3d.model.detector import Detector
from mm3d.model.efficientnet import pad_same
from mm3d.model.import_backbone import draw_picture, translate_efficientnet
from mm3d.model.import_checkpoint import check_stages, import_checkpoint
from mm3d.shared.errors import InputError

WIDTHS = (4, 6, 8, 10, 12, 14, 16)
DEPTHS = (1, 2, 1, 2, 1, 2, 1)
STEM = 8
# Kernel, stride and expansion of the published parts, once more: the program must not be its own witness.
PARTS = ((3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6))


def make_efficientnet() -> dict[str, Tensor]:
    """The tensors of a small EfficientNet-Lite under the names of the package efficientnet_lite_pytorch."""
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}

    def add(convolution: str, norm: str, *shape: int) -> None:
        tensors[f"{convolution}.weight"] = (
            torch.randn(shape, generator=generator) / torch.Size(shape[1:]).numel() ** 0.5
        )
        for part, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5), ("running_var", 0.5)):
            tensors[f"{norm}.{part}"] = low + torch.rand(shape[0], generator=generator)
        tensors[f"{norm}.num_batches_tracked"] = torch.tensor(7)

    add("_conv_stem", "_bn0", STEM, 3, 3, 3)
    inputs, number = STEM, 0
    for width, depth, (kernel, _, expansion) in zip(WIDTHS, DEPTHS, PARTS, strict=True):
        for _ in range(depth):
            block, inner = f"_blocks.{number}.", inputs * expansion
            if expansion > 1:
                add(f"{block}_expand_conv", f"{block}_bn0", inner, inputs, 1, 1)
            add(f"{block}_depthwise_conv", f"{block}_bn1", inner, 1, kernel, kernel)
            add(f"{block}_project_conv", f"{block}_bn2", width, inner, 1, 1)
            inputs, number = width, number + 1
    add("_conv_head", "_bn1", 20, inputs, 1, 1)
    return tensors | {"_fc.weight": torch.zeros(10, 20), "_fc.bias": torch.zeros(10)}


def write(tmp_path: Path, tensors: dict[str, Tensor]) -> Path:
    path = tmp_path / "efficientnet.pth"
    torch.save(tensors, path)
    return path


def test_an_efficientnet_gives_the_features_of_its_own_network(tmp_path: Path) -> None:
    tensors = make_efficientnet()
    imported = import_checkpoint(write(tmp_path, tensors))
    assert imported.difference is not None
    assert imported.difference < 1e-5
    config = imported.model.config
    assert (config.backbone.widths, config.backbone.depths, config.backbone.stem) == (WIDTHS, DEPTHS, STEM)
    state = imported.model.state_dict()
    for theirs, ours in (
        ("_bn0.running_var", "stem.normalization.running_var"),
        ("_blocks.0._depthwise_conv.weight", "parts.0.0.depthwise.convolution.weight"),
        ("_blocks.2._expand_conv.weight", "parts.1.1.expand.convolution.weight"),
        ("_blocks.9._project_conv.weight", "parts.6.0.project.convolution.weight"),
        ("_blocks.9._bn2.bias", "parts.6.0.project.normalization.bias"),
    ):
        assert torch.equal(state[f"backbone.body.{ours}"], tensors[theirs]), theirs

    # The whole network in RGB, of a picture with odd sizes, which the import's own check does not draw.
    picture = torch.rand(1, 1, 75, 53)
    with torch.no_grad():
        stages = imported.model.backbone.body((picture - config.pixel_mean) / config.pixel_std).feature_maps
    for features, wanted in zip(stages, run_in_rgb(tensors, picture), strict=True):
        torch.testing.assert_close(features, wanted, atol=1e-4, rtol=1e-4)


def run_in_rgb(tensors: dict[str, Tensor], picture: Tensor) -> list[Tensor]:
    """TensorFlow's "same" convolutions, each pixel's window cut out by hand."""

    def convolve(x: Tensor, name: str, norm: str, stride: int = 1) -> Tensor:
        weight = tensors[f"{name}.weight"]
        kernel, outputs = weight.shape[-1], [-(-size // stride) for size in x.shape[-2:]]
        rows, columns = (
            max((n - 1) * stride + kernel - size, 0) for n, size in zip(outputs, x.shape[-2:], strict=True)
        )
        x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        windows = F.unfold(x, kernel, stride=stride).unflatten(1, (x.shape[1], -1))  # (1, C, k * k, positions)
        if weight.shape[1] == 1:
            y = torch.einsum("nckp,ck->ncp", windows, weight.flatten(1))
        else:
            y = torch.einsum("nckp,ock->nop", windows, weight.flatten(2))
        mean, var, gain, shift = (
            tensors[f"{norm}.{part}"][:, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return ((y - mean) / (var + 1e-3).sqrt() * gain + shift).unflatten(-1, outputs)

    x = (picture.expand(-1, 3, -1, -1) * 255 - 127) / 128
    x = convolve(x, "_conv_stem", "_bn0", stride=2).clamp(0, 6)
    number, ends = 0, []
    for depth, (_, stride, expansion) in zip(DEPTHS, PARTS, strict=True):
        for i in range(depth):
            block, y = f"_blocks.{number}.", x
            if expansion > 1:
                y = convolve(y, f"{block}_expand_conv", f"{block}_bn0").clamp(0, 6)
            y = convolve(y, f"{block}_depthwise_conv", f"{block}_bn1", stride if i == 0 else 1).clamp(0, 6)
            y = convolve(y, f"{block}_project_conv", f"{block}_bn2")
            x, number = (x + y if i else y), number + 1
        ends.append(x)
    return [ends[1], ends[2], ends[4], ends[6]]


def test_a_backbone_that_differs_from_its_file_is_not_imported(tmp_path: Path) -> None:
    """The check of the import must be able to fail."""
    path = write(tmp_path, make_efficientnet())
    imported = import_checkpoint(path)
    translation = translate_efficientnet(path, make_efficientnet())
    assert check_stages(path, imported.model, translation) == imported.difference
    with torch.no_grad():
        imported.model.get_parameter("backbone.body.parts.3.1.depthwise.convolution.weight").mul_(1.1)
    with pytest.raises(InputError, match=r"efficientnet\.pth was not imported: our backbone's features differ .* by"):
        check_stages(path, imported.model, translation)


@pytest.mark.parametrize("size", [(1, 1), (7, 8), (8, 7), (33, 20)])
@pytest.mark.parametrize("kernel", [3, 5])
def test_every_size_is_halved_and_rounded_up(size: tuple[int, int], kernel: int) -> None:
    padded = pad_same(torch.rand(1, 1, *size), kernel, 2)
    halved = F.conv2d(padded, torch.ones(1, 1, kernel, kernel), stride=2)
    assert halved.shape[2:] == tuple((side + 1) // 2 for side in size)


def test_other_networks_of_that_kind_are_refused_by_name(tmp_path: Path) -> None:
    squeezed = make_efficientnet()
    squeezed["_blocks.0._se_reduce.weight"] = torch.zeros(2, STEM, 1, 1)
    wrong = make_efficientnet()
    wrong["_blocks.1._depthwise_conv.weight"] = torch.zeros(24, 1, 5, 5)
    short = {name: tensor for name, tensor in make_efficientnet().items() if not name.startswith("_blocks.9.")}
    lacking = {name: tensor for name, tensor in make_efficientnet().items() if name != "_blocks.4._bn1.bias"}
    for tensors, message in (
        (squeezed, r"looks like EfficientNet-Lite, but has names that are not understood .*_se_reduce"),
        (wrong, r"not as EfficientNet-Lite was published: .*parts\.1\.0\.depthwise.* instead of \(24, 1, 3, 3\)"),
        (short, r"no complete EfficientNet-Lite: its blocks have 6 different widths instead of 7"),
        (lacking, r"looks like EfficientNet-Lite, but lacks \(1\): .*parts\.3\.0\.depthwise\.normalization\.bias"),
    ):
        with pytest.raises(InputError, match=message):
            import_checkpoint(write(tmp_path, tensors))


def test_the_command_writes_a_body_that_only_a_training_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    source, output = write(tmp_path, make_efficientnet()), tmp_path / "start.safetensors"
    assert main(["import-weights", str(source), "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "EfficientNet-Lite, the backbone efficientnet_lite 4-6-8-10-12-14-16" in printed
    assert "on a drawn picture its features differ from those of the file's own network by" in printed
    assert "belongs to the classifier of ImageNet" in printed
    assert all(name.startswith("backbone.body.") for name in load_file(output))
    header = weights.read_header(output)
    assert header.config.pixel_mean == 127 / 255
    assert "never trained on mammograms" in header.intended_use
    with pytest.raises(InputError, match=r"start\.safetensors has only the body of a backbone; start a training"):
        weights.load(output)


def test_the_named_backbones_have_the_published_number_of_parameters() -> None:
    """Without head and classifier: 4.65, 5.42 and 6.09 million less those of the last 1 x 1 convolution and classes."""
    for name, millions, last in (("0", 4652008, 320), ("1", 5416680, 320), ("2", 6092072, 352)):
        backbone = BACKBONES[f"efficientnet_lite{name}"]
        body = Detector(replace(ModelConfig(), backbone=backbone, heads=1)).backbone.body
        tensors = sum(tensor.numel() for part, tensor in body.state_dict().items() if "running" not in part)
        rgb = 2 * backbone.stem * 9  # two input channels more
        assert tensors + rgb + last * 1280 + 2 * 1280 + 1281 * 1000 == millions, name


def test_the_picture_of_the_check_is_grey_and_always_the_same() -> None:
    picture = draw_picture()
    assert 0 <= picture.min() < 0.3 < 0.7 < picture.max() <= 1
    assert torch.equal(picture, draw_picture())
