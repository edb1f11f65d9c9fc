"""Import of Keras' ResNet-50 in the layout of TensorFlow.js.

The test writes a small one under its names and layers, and computes it by hand: the stride, the biases, the epsilon and
the colours are where it differs from our ResNet.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mm3d.cli import main
from mm3d.model import weights
from mm3d.model.import_checkpoint import import_checkpoint
from mm3d.shared.errors import InputError

STEM, WIDTHS, DEPTHS = 8, (16, 24, 32, 40), (1, 2, 1, 1)
BGR = torch.tensor([103.939, 116.779, 123.68])[:, None, None]  # what Keras subtracts
SHARD = 40_000  # bytes in a file of weights


class Writer:
    """Layers and tensors of a network, as TensorFlow.js keeps them."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Any]] = []
        self.tensors: dict[str, Tensor] = {}
        self.generator = torch.Generator().manual_seed(0)
        self.number = 0

    def add(self, kind: str, name: str, *sources: str, **config: Any) -> str:
        inbound = [[[source, 0, 0, {}] for source in sources]] if sources else []
        self.layers.append({"class_name": kind, "name": name, "config": config, "inbound_nodes": inbound})
        return name

    def convolve(self, name: str, norm: str, source: str, shape: tuple[int, ...], stride: int, same: bool) -> str:
        """A convolution and its BatchNorm. shape: (height, width, inputs, outputs)."""
        padding = "same" if same else "valid"
        self.add("Conv2D", name, source, strides=[stride, stride], padding=padding, kernel_size=list(shape[:2]))
        random = [torch.rand(shape[-1], generator=self.generator) for _ in range(5)]
        scale = 0.1 * (shape[0] * shape[1] * shape[2]) ** -0.5
        self.tensors[f"{name}/kernel"] = scale * torch.randn(shape, generator=self.generator)
        self.tensors[f"{name}/bias"] = 0.1 * random[0] - 0.05
        self.tensors |= {f"{norm}/gamma": random[1] + 0.5, f"{norm}/beta": random[2] - 0.5}
        # A variance that is not much larger than the epsilon: with another epsilon the features would be others.
        self.tensors |= {f"{norm}/moving_mean": 0.1 * random[3] - 0.05, f"{norm}/moving_variance": 0.01 * random[4]}
        return self.add("BatchNormalization", norm, name, epsilon=1e-3)

    def activate(self, source: str) -> str:
        self.number += 1
        return self.add("Activation", f"activation_{self.number}", source, activation="relu")

    def save(self, folder: Path) -> Path:
        content = b"".join(tensor.contiguous().numpy().tobytes() for tensor in self.tensors.values())
        paths = [f"group1-shard{i // SHARD + 1}.bin" for i in range(0, len(content), SHARD)]
        for i, name in enumerate(paths):
            (folder / name).write_bytes(content[i * SHARD : (i + 1) * SHARD])
        entries = [{"name": n, "shape": list(t.shape), "dtype": "float32"} for n, t in self.tensors.items()]
        topology = {"model_config": {"class_name": "Model", "config": {"layers": self.layers}}}
        described = {"modelTopology": topology, "weightsManifest": [{"paths": paths, "weights": entries}]}
        path = folder / "model.json"
        path.write_text(json.dumps(described))
        return path


def make_resnet() -> Writer:
    net = Writer()
    x = net.add("ZeroPadding2D", "conv1_pad", net.add("InputLayer", "input_1"), padding=[[3, 3], [3, 3]])
    x = net.activate(net.convolve("conv1", "bn_conv1", x, (7, 7, 3, STEM), 2, same=False))
    net.tensors["bn_conv1/moving_variance"] += 20.0  # of pixels up to 255
    x = net.add("ZeroPadding2D", "pool1_pad", x, padding=[[1, 1], [1, 1]])
    x = net.add("MaxPooling2D", "max_pooling2d", x, pool_size=[3, 3], strides=[2, 2], padding="valid")
    inputs = STEM
    for stage, (width, depth) in enumerate(zip(WIDTHS, DEPTHS, strict=True), start=2):
        for block in "ab"[:depth]:
            name, norm, inner = f"res{stage}{block}_branch", f"bn{stage}{block}_branch", width // 4
            stride = 2 if block == "a" and stage > 2 else 1
            y = net.activate(net.convolve(f"{name}2a", f"{norm}2a", x, (1, 1, inputs, inner), stride, same=False))
            y = net.activate(net.convolve(f"{name}2b", f"{norm}2b", y, (3, 3, inner, inner), 1, same=True))
            y = net.convolve(f"{name}2c", f"{norm}2c", y, (1, 1, inner, width), 1, same=False)
            if block == "a":
                x = net.convolve(f"{name}1", f"{norm}1", x, (1, 1, inputs, width), stride, same=False)
            x = net.activate(net.add("Add", f"add_{stage}{block}", y, x))
            inputs = width
    x = net.add("GlobalAveragePooling2D", "avg_pool", x)
    net.tensors |= {"fc1000/kernel": torch.zeros(inputs, 10), "fc1000/bias": torch.zeros(10)}
    net.add("Dense", "fc1000", x, units=10)
    return net


def run(tensors: dict[str, Tensor], picture: Tensor) -> list[Tensor]:
    """Stem and stages of a grey picture, written out from the paper's network with Keras' differences."""

    def convolve(x: Tensor, name: str, norm: str, stride: int = 1, padding: int = 0) -> Tensor:
        kernel = torch.einsum("hwio->oihw", tensors[f"{name}/kernel"])
        x = F.conv2d(x, kernel, tensors[f"{name}/bias"], stride, padding)
        mean, var, gain, shift = (
            tensors[f"{norm}/{part}"][:, None, None] for part in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        return (x - mean) / (var + 0.001).sqrt() * gain + shift

    x = picture.expand(-1, 3, -1, -1) * 255 - BGR
    x = convolve(x, "conv1", "bn_conv1", 2, 3).relu()
    outputs = [x]
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    for stage, depth in enumerate(DEPTHS, start=2):
        for block in "ab"[:depth]:
            name, norm = f"res{stage}{block}_branch", f"bn{stage}{block}_branch"
            stride = 2 if block == "a" and stage > 2 else 1
            y = convolve(x, f"{name}2a", f"{norm}2a", stride).relu()
            y = convolve(y, f"{name}2b", f"{norm}2b", 1, 1).relu()
            y = convolve(y, f"{name}2c", f"{norm}2c")
            x = (y + (convolve(x, f"{name}1", f"{norm}1", stride) if block == "a" else x)).relu()
        outputs.append(x)
    return outputs


def test_a_resnet_of_keras_gives_its_own_features(tmp_path: Path) -> None:
    net = make_resnet()
    # The mean colour has no part in these filters. So the frame of zeros around it is the one of our grey picture.
    kernel, tint = net.tensors["conv1/kernel"], BGR.flatten() - BGR.mean()
    share = (kernel * tint[:, None]).sum(2, keepdim=True) / tint.square().sum()
    net.tensors["conv1/kernel"] = kernel - share * tint[:, None]
    imported = import_checkpoint(net.save(tmp_path))
    assert imported.difference is not None
    assert imported.difference < 1e-4
    config = imported.model.config
    assert (config.backbone.widths, config.backbone.depths, config.backbone.stride_in) == (WIDTHS, DEPTHS, "1x1")
    picture = torch.rand(1, 1, 75, 53)
    with torch.no_grad():
        stages = imported.model.backbone.body((picture - config.pixel_mean) / config.pixel_std).feature_maps
    for features, wanted in zip(stages, run(net.tensors, picture)[1:], strict=True):
        torch.testing.assert_close(features, wanted, atol=1e-3, rtol=1e-3)


def test_the_mean_colour_is_in_the_stem_but_for_the_frame(tmp_path: Path) -> None:
    net = make_resnet()
    imported = import_checkpoint(net.save(tmp_path))
    config, picture = imported.model.config, torch.rand(1, 1, 64, 64)
    with torch.no_grad():
        stem: Any = imported.model.backbone.body.get_submodule("embedder.embedder")
        ours = stem((picture - config.pixel_mean) / config.pixel_std).relu()  # the network has it after the pooling
    wanted = run(net.tensors, picture)[0]
    assert (ours - wanted).abs().max() > 0.01
    torch.testing.assert_close(ours[..., 2:-2, 2:-2], wanted[..., 2:-2, 2:-2], atol=1e-3, rtol=1e-3)


def cut(path: Path) -> None:
    shard = path.parent / "group1-shard1.bin"
    shard.write_bytes(shard.read_bytes()[:-4])


def rewrite(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        described = json.loads(path.read_text())
        change(described)
        path.write_text(json.dumps(described))

    return apply


def layers_of(described: dict[str, Any]) -> list[dict[str, Any]]:
    layers: list[dict[str, Any]] = described["modelTopology"]["model_config"]["config"]["layers"]
    return layers


def set_strides(described: dict[str, Any], **strides: int) -> None:
    for layer in layers_of(described):
        if layer["name"] in strides:
            layer["config"]["strides"] = [strides[layer["name"]]] * 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path.parent / "group1-shard1.bin").unlink(), r"group1-shard1\.bin is missing; keep .* beside"),
        (cut, r"model\.json does not fit its files of weights"),
        (lambda path: path.write_text("{}"), r"model\.json does not describe a network of Keras for TensorFlow\.js"),
        (lambda path: path.write_text("<html>"), r"model\.json does not describe a network of Keras"),
        (
            rewrite(lambda d: d["weightsManifest"][0]["weights"][0].update(quantization={"dtype": "uint8"})),
            r"does not fit its files of weights, or they are not float32",
        ),
        (rewrite(lambda d: layers_of(d)[5].update(class_name="Swish")), r"has the layer pool1_pad, which no ResNet"),
        (rewrite(lambda d: layers_of(d)[3].update(name="bn0")), r"lacks a part of its layer conv1"),
        (rewrite(lambda d: set_strides(d, res2a_branch2c=2)), r"its layer add_2a does not fit the one before"),
        (
            rewrite(lambda d: set_strides(d, res3a_branch2a=1, res3a_branch2b=2)),
            r"was not imported: our backbone's features differ",
        ),
    ],
)
def test_damaged_and_other_networks_are_refused(tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    path = make_resnet().save(tmp_path)
    damage(path)
    with pytest.raises(InputError, match=message):
        import_checkpoint(path)


def test_the_command_writes_a_body(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "start.safetensors"
    assert main(["import-weights", str(make_resnet().save(tmp_path)), "-o", str(output)]) == 0
    assert "Keras ResNet, the backbone resnet 16-24-32-40" in capsys.readouterr().out.replace("\n", " ")
    assert weights.has_only_body(output)
    assert weights.read_header(output).config.pixel_mean == pytest.approx(0.4502, abs=1e-4)
    assert main(["import-weights", str(tmp_path / "group1-shard1.bin"), "-o", str(output), "--overwrite"]) == 1
    assert "give the model.json beside it" in capsys.readouterr().err.replace("\n", " ")
