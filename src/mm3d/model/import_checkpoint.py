"""Start weights from other projects: Sparse R-CNN checkpoints of detectron2, mmdetection and PVT, and backbones.

The three checkpoints hold the same network under other names. mmdetection's names are translated to detectron2's, and
those to ours. What a checkpoint lacks (cross-attention, our one class) is new. What we lack (80 COCO classes) is
dropped. A file with an unknown name is refused, because a model that is loaded in part is worse than none.

Backbones that were trained on ImageNet are translated by `import_backbone`. All but the backbone's body is new then.
"""

import hashlib
import math
import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from mm3d.model.checkpoint_file import check_file
from mm3d.model.config import BackboneConfig, ModelConfig
from mm3d.model.detector import Detector
from mm3d.model.empty import limit_size
from mm3d.model.import_backbone import (
    NOT_A_WEIGHT,
    Rules,
    Translation,
    draw_picture,
    rename,
    translate_efficientnet,
)
from mm3d.model.import_keras import read_network, translate_network
from mm3d.model.import_transformers import is_pretrained, translate_pretrained
from mm3d.model.weights import BODY, Transfer
from mm3d.shared.errors import InputError

Family = Literal["detectron2", "mmdetection", "PVT", "EfficientNet-Lite", "Keras ResNet", "transformers"]
BACKBONE_FAMILIES = ("EfficientNet-Lite", "Keras ResNet", "transformers")

MMDETECTION_TO_DETECTRON2: Rules = [
    ("roi_head.bbox_head.", "head.head_series."),
    (".attention.attn.", ".self_attn."),
    (".attention_norm.", ".norm1."),
    (".instance_interactive_conv.norm_in.", ".inst_interact.norm1."),
    (".instance_interactive_conv.norm_out.", ".inst_interact.norm2."),
    (".instance_interactive_conv.fc_norm.", ".inst_interact.norm3."),
    (".instance_interactive_conv.fc_layer.", ".inst_interact.out_layer."),
    (".instance_interactive_conv.dynamic_layer.", ".inst_interact.dynamic_layer."),
    (".instance_interactive_conv_norm.", ".norm2."),
    (".ffn.layers.0.0.", ".linear1."),
    (".ffn.layers.1.", ".linear2."),
    (".ffn_norm.", ".norm3."),
    (".cls_fcs.", ".cls_module."),
    (".reg_fcs.", ".reg_module."),
    (".fc_cls.", ".class_logits."),
    (".fc_reg.", ".bboxes_delta."),
    ("rpn_head.init_proposal_bboxes.", "init_proposal_boxes."),
    ("rpn_head.init_proposal_features.", "init_proposal_features."),
    *[(f"neck.lateral_convs.{i}.conv.", f"backbone.fpn_lateral{i + 2}.") for i in range(4)],
    *[(f"neck.fpn_convs.{i}.conv.", f"backbone.fpn_output{i + 2}.") for i in range(4)],
    # ResNet: mmdetection has torchvision's names
    ("backbone.conv1.", "backbone.bottom_up.stem.conv1."),
    ("backbone.bn1.", "backbone.bottom_up.stem.conv1.norm."),
    *[(f"backbone.layer{i}.", f"backbone.bottom_up.res{i + 1}.") for i in range(1, 5)],
    *[(f".bn{i}.", f".conv{i}.norm.") for i in range(1, 4)],
    (".downsample.0.", ".shortcut."),
    (".downsample.1.", ".shortcut.norm."),
]

DETECTRON2_TO_OURS: Rules = [
    ("head.head_series.", "heads."),
    (".inst_interact.dynamic_layer.", ".dynamic_conv.make_kernels."),
    (".inst_interact.out_layer.", ".dynamic_conv.out."),
    (".inst_interact.", ".dynamic_conv."),
    (".cls_module.", ".cls_tower."),
    (".reg_module.", ".reg_tower."),
    (".class_logits.", ".cls_logit."),
    (".bboxes_delta.", ".reg_deltas."),
    ("init_proposal_boxes.weight", "proposal_boxes"),
    ("init_proposal_features.weight", "proposal_features"),
    *[(f"backbone.fpn_lateral{i + 2}.", f"backbone.lateral.{i}.") for i in range(4)],
    *[(f"backbone.fpn_output{i + 2}.", f"backbone.output.{i}.") for i in range(4)],
    ("backbone.bottom_up.stem.conv1.norm.", "backbone.body.embedder.embedder.normalization."),
    ("backbone.bottom_up.stem.conv1.", "backbone.body.embedder.embedder.convolution."),
    *[(f"backbone.bottom_up.res{i + 2}.", f"backbone.body.encoder.stages.{i}.layers.") for i in range(4)],
    (".shortcut.norm.", ".shortcut.normalization."),
    (".shortcut.weight", ".shortcut.convolution.weight"),
    *[(f".conv{i + 1}.norm.", f".layer.{i}.normalization.") for i in range(3)],
    *[(f".conv{i + 1}.", f".layer.{i}.convolution.") for i in range(3)],
]

PVT_TO_OURS: Rules = [
    *[(f"backbone.patch_embed{i + 1}.", f"backbone.body.encoder.layers.{i}.patch_embedding.") for i in range(4)],
    (".patch_embedding.norm.", ".patch_embedding.layer_norm."),
    *[(f"backbone.block{i + 1}.", f"backbone.body.encoder.layers.{i}.blocks.") for i in range(4)],
    *[(f"backbone.norm{i + 1}.", f"backbone.body.encoder.layers.{i}.layer_norm.") for i in range(4)],
    (".attn.q.", ".attention.query."),
    (".attn.sr.", ".attention.spatial_reduction."),
    (".attn.norm.", ".attention.layer_norm."),
    (".attn.proj.", ".attention.proj."),
    (".norm1.", ".layer_norm_1."),
    (".norm2.", ".layer_norm_2."),
    (".mlp.fc1.", ".mlp.dense1."),
    (".mlp.fc2.", ".mlp.dense2."),
]

# Tensors that are not weights: counters, and image statistics, which our configuration holds.
NOT_WEIGHTS = ("num_batches_tracked", "pixel_mean", "pixel_std")
ARCHIVES = (".whl", ".zip", ".tgz", ".gz", ".tar")  # as packages are downloaded
MOST_SHARED = 4  # times that a number of the file may count, because tensors may share them
TOLERANCE = 1e-3  # of a backbone's features; rounding alone makes about 1e-5


@dataclass(frozen=True)
class Import:
    """A model made from a checkpoint, and what happened to each tensor."""

    model: Detector
    family: Family
    sha256: str
    transfer: Transfer
    difference: float | None  # of a backbone's features on a picture from those of the file's own network

    @property
    def only_body(self) -> bool:
        """Whether the checkpoint has nothing but the body of a backbone."""
        return self.family in BACKBONE_FAMILIES


def import_checkpoint(path: Path | str) -> Import:
    """Read a public checkpoint and build the detector it fits, with our one class and one grey channel.

    A checkpoint is a Sparse R-CNN, or a backbone that was trained on ImageNet.
    """
    path = Path(path)
    family, translation, sha256 = _read_translated(path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # new tensors start the same every time: one checkpoint gives one imported file
        with limit_size():
            model = Detector(translation.config)
    transfer = _load_state(path, family, model, translation)
    return Import(model, family, sha256, transfer, check_stages(path, model, translation))


def _read_translated(path: Path) -> tuple[Family, Translation, str]:
    """What a file is, its tensors under our names, and its hash."""
    if path.suffix == ".json":
        network = read_network(path)
        return "Keras ResNet", translate_network(path, network), network.sha256
    if is_pretrained(path):
        translation, sha256 = translate_pretrained(path)
        return "transformers", translation, sha256
    source = _read(path)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    family = _find_family(path, source)
    try:
        if family == "EfficientNet-Lite":
            return family, translate_efficientnet(path, source), sha256
        state, dropped = _translate(family, source)
        return family, Translation(_find_config(path, family, state), state, dropped), sha256
    except (ValueError, IndexError, RuntimeError) as error:
        raise InputError(
            f"{path} looks like {family}, but has tensors of other shapes; give a checkpoint as it was published."
        ) from error


def _load_state(path: Path, family: Family, model: Detector, translation: Translation) -> Transfer:
    """Load a translated checkpoint into the model that was built for it. It must be complete."""
    state, own = dict(translation.state), model.state_dict()
    converted, dropped = dict(translation.converted), dict(translation.dropped)
    if family in BACKBONE_FAMILIES:
        remedy = "give the published file unchanged"
        is_new = {name for name in own if not name.startswith(BODY)}
    else:
        remedy = "give a complete Sparse R-CNN on ResNet or PVTv2-Li (the other PVTs differ)"
        is_new = {name for name in own if ".cross_attn." in name}
    problems = {
        "has names that are not understood": [name for name in state if name not in own],
        "lacks": [name for name in own if name not in state and name not in is_new],
        "holds tensors of whole numbers": [name for name, tensor in state.items() if not tensor.is_floating_point()],
        "holds values that are not numbers": [name for name, tensor in state.items() if not tensor.isfinite().all()],
    }
    for problem, names in problems.items():
        if names:
            raise InputError(
                f"{path} looks like {family}, but {problem} ({len(names)}): {_list_some(names)}; {remedy}, or download "
                "it again."
            )

    for name in list(state):
        shape, wanted = state[name].shape, own[name].shape
        if ".cls_logit." in name and shape != wanted:
            dropped[name] = f"{shape[0]} classes; ours is one, malignant"
            is_new.add(name)
            del state[name]
        elif len(shape) == 4 and shape[1] == 3 and wanted[1] == 1:
            # A grey image repeated into R, G and B meets the sum of their weights.
            state[name] = state[name].sum(dim=1, keepdim=True)
            converted[name] = "RGB weights summed to one grey channel"
        if name in state and state[name].shape != wanted:
            raise InputError(
                f"{path} is not as {family} was published: {name} has shape {tuple(shape)} instead of "
                f"{tuple(wanted)}; give an unchanged checkpoint."
            )
    model.load_state_dict(state, strict=False)
    return Transfer(
        loaded=tuple(name for name in state if name not in converted),
        converted=converted,
        new=() if family in BACKBONE_FAMILIES else tuple(name for name in own if name in is_new),
        dropped=dropped,
    )


def check_stages(path: Path, model: Detector, translation: Translation) -> float | None:
    """Compare the stages of a backbone with those of the file's own network, if they can be computed.

    Returns the greatest difference, as a share of the stage's greatest value.
    """
    if translation.compute_stages is None:
        return None
    picture, body = draw_picture(), model.backbone.body.eval()  # without dropout
    with torch.no_grad():
        wanted = translation.compute_stages(picture)
        stages = list(body((picture - model.config.pixel_mean) / model.config.pixel_std).feature_maps)
    body.train()
    if [stage.shape for stage in stages] != [stage.shape for stage in wanted]:
        difference = math.inf
    else:
        difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(stages, wanted, strict=True))
    if not difference < TOLERANCE:
        raise InputError(
            f"{path} was not imported: our backbone's features differ from the file's own by {difference:.1%}; "
            "give the published file unchanged."
        )
    return difference


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a .pth file that cannot run code."""
    if not path.is_file():
        wrong = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {wrong}; give the path of a downloaded checkpoint.")
    if path.suffix in ARCHIVES:
        raise InputError(f"{path} is an archive; unpack it, and give the .pth, .safetensors or model.json in it.")
    if path.suffix == ".bin" and (path.parent / "model.json").is_file():
        raise InputError(f"{path} is a part of a network of Keras; give the model.json beside it.")
    if path.suffix != ".safetensors":
        check_file(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch asks for a bug report where we have a message
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is refused: loading it could run code; if you trust it, save its state dict as safetensors and "
            "import that."
        ) from error
    except Exception as error:  # any exception means a damaged file
        raise InputError(f"{path} is damaged or no checkpoint at all; download it again.") from error
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    is_state = isinstance(content, dict) and all(
        isinstance(v, Tensor) and isinstance(k, str) for k, v in content.items()
    )
    if not is_state or not content:
        raise InputError(f"{path} holds no state dict; give a checkpoint as it was published.")
    # A tensor may be a view that repeats a few numbers without end, and computing with it would write them all out.
    if sum(tensor.numel() * tensor.element_size() for tensor in content.values()) > MOST_SHARED * path.stat().st_size:
        raise InputError(f"{path} holds tensors that are larger than the file; give a checkpoint as it was published.")
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}  # the prefix is DDP's


def _find_family(path: Path, source: dict[str, Tensor]) -> Family:
    if any(name.startswith("head.head_series.") for name in source):
        return "detectron2"
    if any(name.startswith("roi_head.bbox_head.") for name in source):
        return "PVT" if any(name.startswith("backbone.patch_embed1.") for name in source) else "mmdetection"
    if "_conv_stem.weight" in source and "_blocks.0._depthwise_conv.weight" in source:
        return "EfficientNet-Lite"
    if "proposal_features" in source:
        raise InputError(f"{path} is a weights file of mm3d already; use it as it is.")
    raise InputError(
        f"{path} is of no known layout; give a Sparse R-CNN of detectron2, mmdetection or PVT, an "
        f"EfficientNet-Lite or a ResNet of Keras, not one whose {len(source)} names begin {_list_some(list(source))}."
    )


def _translate(family: Family, source: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The checkpoint's tensors under our names, and what was dropped."""
    rules = DETECTRON2_TO_OURS if family == "detectron2" else MMDETECTION_TO_DETECTRON2 + DETECTRON2_TO_OURS
    state, dropped = {}, {}
    for name, tensor in source.items():
        if name.endswith(NOT_WEIGHTS):
            dropped[name] = NOT_A_WEIGHT
            continue
        ours = rename(PVT_TO_OURS if family == "PVT" and name.startswith("backbone.") else rules, name)
        if ".attn.kv." in ours:  # PVT makes keys and values with one layer, transformers with two
            key, value = tensor.chunk(2)
            state[ours.replace(".attn.kv.", ".attention.key.")] = key
            state[ours.replace(".attn.kv.", ".attention.value.")] = value
        else:
            state[ours] = tensor
    return state, dropped


def _find_config(path: Path, family: Family, state: dict[str, Tensor]) -> ModelConfig:
    """The configuration that fits the tensors' shapes."""
    try:
        proposals, channels = state["proposal_features"].shape
        if channels % ModelConfig.attention_heads:
            raise InputError(f"{path} has {channels} channels; give a Sparse R-CNN with a multiple of 8.")
        blocks = "backbone.body.encoder." + ("layers.{}.blocks." if family == "PVT" else "stages.{}.layers.")
        widths = tuple(state[f"backbone.lateral.{i}.weight"].shape[1] for i in range(4))
        depths = tuple(_count(state, blocks.format(i)) for i in range(4))
        if family == "PVT":
            backbone = BackboneConfig(family="pvt_v2_li", widths=widths, depths=depths)
        else:
            layer: Any = "bottleneck" if f"{blocks.format(0)}0.layer.2.convolution.weight" in state else "basic"
            stem = state["backbone.body.embedder.embedder.convolution.weight"].shape[0]
            backbone = BackboneConfig(widths=widths, depths=depths, layer=layer, stem=stem)
        return ModelConfig(
            backbone=backbone,
            channels=channels,
            proposals=proposals,
            heads=_count(state, "heads."),
            dynamic_channels=state["heads.0.dynamic_conv.norm1.weight"].shape[0],
            feedforward=state["heads.0.linear1.weight"].shape[0],
        )
    except KeyError as error:
        raise InputError(f"{path} looks like {family}, but lacks {error}; give a complete checkpoint.") from error


def _count(state: dict[str, Tensor], prefix: str) -> int:
    """How many numbers follow a prefix: heads.0., heads.1., … -> 2."""
    return len({name[len(prefix) :].split(".")[0] for name in state if name.startswith(prefix)})


def _list_some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
