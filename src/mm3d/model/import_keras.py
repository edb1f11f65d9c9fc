"""ResNets of Keras as TensorFlow.js has them: a model.json that describes the layers, and files with their weights.

They differ from our ResNet in four ways. The first convolution of a block has its stride (a setting of ours). Their
convolutions have a bias, and their BatchNorm another epsilon; our fixed statistics take both in. And they saw colour
pictures from 0 to 255, in BGR, less a mean colour.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mm3d.model.config import BackboneConfig, ModelConfig
from mm3d.model.import_backbone import CLASSIFIER, Translation
from mm3d.model.weights import BODY
from mm3d.shared.config import parse_json
from mm3d.shared.errors import InputError

MEAN_COLOUR = (103.939, 116.779, 123.68)  # blue, green, red
MEAN_GREY = sum(MEAN_COLOUR) / 3
OUR_EPS = 1e-5  # of the BatchNorm of our ResNet
MOST_LAYERS = 1000  # a ResNet-152 has about 500
MOST_PADDING = 16  # pixels; the ResNets have up to 3
BLOCK = re.compile(r"res(\d)([a-z])_branch(1|2[abc])")


@dataclass(frozen=True)
class KerasNetwork:
    """The layers of a network as Keras describes them, and their tensors, such as conv1/kernel."""

    layers: list[dict[str, Any]]
    tensors: dict[str, Tensor]
    sha256: str  # of the files with the weights, one after the other


def read_network(path: Path) -> KerasNetwork:
    """Read a model.json and the files beside it."""
    try:
        described = parse_json(path.read_text(encoding="utf-8"))
        layers = described["modelTopology"]["model_config"]["config"]["layers"]
        if not all(type(layer["name"]) is str and type(layer["config"]) is dict for layer in layers):
            raise ValueError
        groups = [(group["paths"], group["weights"]) for group in described["weightsManifest"]]
        _check_parts(path, [name for files, _ in groups for name in files], len(layers))
        is_plain = all(entry["dtype"] == "float32" and "quantization" not in entry for _, w in groups for entry in w)
        tensors: dict[str, Tensor] = {}
        digest = hashlib.sha256()
        for files, entries in groups:
            content = bytearray().join(_read_part(path, name) for name in files)
            digest.update(content)
            if not is_plain or len(content) != sum(4 * math.prod(entry["shape"]) for entry in entries):
                raise InputError(f"{path} does not fit its files of weights, or they are not float32; download again.")
            values = torch.frombuffer(content, dtype=torch.float32).split([math.prod(e["shape"]) for e in entries])
            tensors |= {e["name"]: part.view(e["shape"]) for e, part in zip(entries, values, strict=True)}
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{path} does not describe a network of Keras for TensorFlow.js; give its model.json."
        ) from error
    return KerasNetwork(layers, tensors, digest.hexdigest())


def _check_parts(path: Path, names: list[str], layer_count: int) -> None:
    """Each file is read once, so that a description has no more numbers than its files."""
    parts = [Path(name).name for name in names]
    if len(set(parts)) < len(parts) or layer_count > MOST_LAYERS:
        raise InputError(f"{path} names a file twice, or has over {MOST_LAYERS} layers; give the published file.")


def _read_part(path: Path, name: str) -> bytes:
    part = path.parent / Path(name).name
    if not part.is_file():
        raise InputError(f"{part} is missing; keep the weights' files beside {path.name}.")
    return part.read_bytes()


def translate_network(path: Path, network: KerasNetwork) -> Translation:
    """A ResNet with bottlenecks, under our names."""
    config = ModelConfig(backbone=_find_backbone(path, network), pixel_mean=MEAN_GREY / 255)
    state: dict[str, Tensor] = {}
    converted: dict[str, str] = {}
    dropped = dict.fromkeys(network.tensors, CLASSIFIER)
    for layer in network.layers:
        name = layer["name"]
        place = _find_place(name)
        if place is None:
            continue
        norm = "bn_conv1" if name == "conv1" else f"bn{name.removeprefix('res')}"
        names = [f"{name}/{part}" for part in ("kernel", "bias")]
        names += [f"{norm}/{part}" for part in ("gamma", "beta", "moving_mean", "moving_variance")]
        try:
            kernel, bias, gain, shift, mean, var = (network.tensors[one] for one in names)
            eps = next(other["config"]["epsilon"] for other in network.layers if other["name"] == norm)
        except (KeyError, StopIteration) as error:
            raise InputError(f"{path} lacks a part of its layer {name}; download it again.") from error
        kernel = kernel.permute(3, 2, 0, 1)
        if name == "conv1":
            # Grey values v as our model normalises them, in the scale of these weights, are 255 v - MEAN_GREY.
            offset = (kernel * _frame()).sum(dim=(1, 2, 3))
            kernel, bias = 255 * config.pixel_std * kernel, bias + offset
        state |= {
            f"{place}.convolution.weight": kernel.contiguous(),
            f"{place}.normalization.weight": gain,
            f"{place}.normalization.bias": shift,
            f"{place}.normalization.running_mean": mean - bias,
            f"{place}.normalization.running_var": var + (eps - OUR_EPS),
        }
        converted[f"{place}.normalization.running_mean"] = "less the convolution's bias"
        converted[f"{place}.normalization.running_var"] = "with the other epsilon"
        for one in names:
            del dropped[one]
    return Translation(config, state, dropped, converted, lambda picture: _compute_stages(path, network, picture))


def _find_place(name: str) -> str | None:
    """Our layer for a convolution of Keras."""
    if name == "conv1":
        return f"{BODY}embedder.embedder"
    if not (found := BLOCK.fullmatch(name)):
        return None
    stage, block, branch = int(found[1]) - 2, ord(found[2]) - ord("a"), found[3]
    inner = "shortcut" if branch == "1" else f"layer.{'abc'.index(branch[1])}"
    return f"{BODY}encoder.stages.{stage}.layers.{block}.{inner}"


def _find_backbone(path: Path, network: KerasNetwork) -> BackboneConfig:
    blocks = [found for layer in network.layers if (found := BLOCK.fullmatch(layer["name"])) and found[3] == "2c"]
    stages = [[found for found in blocks if found[1] == number] for number in "2345"]
    if not all(stages) or "conv1/kernel" not in network.tensors:
        raise InputError(f"{path} is no ResNet with bottlenecks; give the ResNet-50 of Keras.")
    return BackboneConfig(
        widths=tuple(network.tensors[f"{stage[0][0]}/kernel"].shape[-1] for stage in stages),
        depths=tuple(len(stage) for stage in stages),
        stem=network.tensors["conv1/kernel"].shape[-1],
        stride_in="1x1",
    )


def _frame() -> Tensor:
    """Mean grey in the scale and channels of Keras, (3, 1, 1)."""
    return (MEAN_GREY - torch.tensor(MEAN_COLOUR))[:, None, None]


def _compute_stages(path: Path, network: KerasNetwork, picture: Tensor) -> list[Tensor]:
    """The stages, by the layers that the file describes."""
    values: dict[str, Tensor] = {}
    stages: dict[int, Tensor] = {}  # by width: the last activation of each, because strides come first in a block
    for layer in network.layers:
        if layer["class_name"] == "GlobalAveragePooling2D":
            break
        try:
            sources = [source for source, *_ in (layer["inbound_nodes"] or [[]])[0]]
            y = _apply(layer, [values[source] for source in sources] or [picture], network.tensors, path)
        except (RuntimeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: its layer {layer['name']} does not fit the one before; download it again."
            ) from error
        values[layer["name"]] = y
        if layer["class_name"] == "Activation":
            stages[y.shape[-1]] = y
    return list(stages.values())[1:]  # without the one of stride 2


def _apply(layer: dict[str, Any], inputs: list[Tensor], tensors: dict[str, Tensor], path: Path) -> Tensor:
    """One layer. A layer of the kind InputLayer has the picture as its input.

    One thing is as in our model and not as in Keras: the frame of the picture, which the first convolution sees, is
    mean grey and not the mean colour, because our model has one channel.
    """
    name, config, x = layer["name"], layer["config"], inputs[0]
    match layer["class_name"]:
        case "InputLayer":
            return 255 * x - torch.tensor(MEAN_COLOUR)[:, None, None]
        case "ZeroPadding2D":
            (top, bottom), (left, right) = config["padding"]
            if max(top, bottom, left, right) > MOST_PADDING:
                raise ValueError
            frame = _frame() if x.shape[1] == 3 else torch.zeros(())
            return F.pad(x - frame, (left, right, top, bottom)) + frame
        case "Conv2D":
            kernel = tensors[f"{name}/kernel"].permute(3, 2, 0, 1)
            padding = kernel.shape[-1] // 2 if config["padding"] == "same" else 0
            return F.conv2d(x, kernel, tensors[f"{name}/bias"], config["strides"], padding)
        case "BatchNormalization":
            parts = ("moving_mean", "moving_variance", "gamma", "beta")
            mean, var, gain, shift = (tensors[f"{name}/{part}"] for part in parts)
            return F.batch_norm(x, mean, var, gain, shift, eps=config["epsilon"])
        case "Activation" if config["activation"] == "relu":
            return F.relu(x)
        case "MaxPooling2D":
            return F.max_pool2d(x, config["pool_size"], config["strides"])
        case "Add":
            return x + inputs[1]
    raise InputError(f"{path} has the layer {name}, which no ResNet of Keras has; give the ResNet-50.")
