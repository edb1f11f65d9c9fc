"""Trained backbones of `transformers`: a folder that it saved, or a name on its hub, such as hub:owner/model."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mm3d.model.auto_backbone import build_network
from mm3d.model.checkpoint_file import check_file
from mm3d.model.config import BackboneConfig, ModelConfig
from mm3d.model.import_backbone import COUNTER, NOT_A_WEIGHT, Translation
from mm3d.model.weights import BODY
from mm3d.shared.errors import InputError

HUB = "hub:"  # before a name on the hub
# Of a configuration, what says nothing about the network.
NOT_SETTINGS = {
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "model_type",
    "out_features",
    "out_indices",
    "problem_type",
    "stage_names",
    "torch_dtype",
    "transformers_version",
}


def is_pretrained(path: Path) -> bool:
    """Whether a path is a folder that `transformers` saved, or a name on its hub. Only a name asks the internet."""
    return (path / "config.json").is_file() or str(path).startswith(HUB)


def translate_pretrained(path: Path) -> tuple[Translation, str]:
    """The body of a trained network, and the hash of its tensors."""
    from transformers import AutoConfig

    name = str(path).removeprefix(HUB)
    for pickled in sorted(path.glob("*.bin")) if path.is_dir() else ():
        check_file(pickled)
    try:
        found = AutoConfig.from_pretrained(name, trust_remote_code=False)
        settings = {key: value for key, value in found.to_diff_dict().items() if key not in NOT_SETTINGS}
        settings = json.loads(json.dumps(settings))
        network, lacking = _load(name, found.model_type, settings)
        given = _read_normalisation(name)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{name} cannot be read, or is no backbone of transformers ({type(error).__name__}); give a folder that "
            f"transformers saved, or the name of a model on its hub, such as {HUB}owner/model."
        ) from error
    if lacking:
        raise InputError(
            f"{name} lacks {len(lacking)} tensors of its backbone, such as {lacking[0]}; download it again."
        )
    backbone = BackboneConfig(family="auto", name=found.model_type, settings=settings)
    config = replace(ModelConfig(backbone=backbone), **given)
    source: dict[str, Tensor] = network.state_dict()
    dropped = {one: NOT_A_WEIGHT for one in source if one.endswith(COUNTER)}
    state = {f"{BODY}network.{one}": tensor for one, tensor in source.items() if one not in dropped}

    def compute_stages(picture: Tensor) -> list[Tensor]:
        normalised = (picture - config.pixel_mean) / config.pixel_std
        return list(network(normalised.expand(-1, 3, -1, -1)).feature_maps)

    digest = hashlib.sha256()
    for tensor in source.values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return Translation(config, state, dropped, compute_stages=compute_stages), digest.hexdigest()


def _load(name: str, model_type: str, settings: dict[str, Any]) -> tuple[nn.Module, list[str]]:
    """The trained network, and the names of its tensors that are not in the file."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it would list the classifier, which is not used
    logging.disable_progress_bar()
    try:
        network: Any = build_network(model_type, settings)
        network, report = type(network).from_pretrained(
            name, config=network.config, dtype=torch.float32, output_loading_info=True
        )
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
    # Some backbones put norms after their stages that a classifier does not have. They start as plain norms.
    lacking = sorted(one for one in report["missing_keys"] if not one.startswith("hidden_states_norms."))
    return network.eval(), lacking


def _read_normalisation(name: str) -> dict[str, Any]:
    """The means over the channels of what images were normalised with, if the folder or the hub says it."""
    from transformers import ImageProcessingMixin

    try:
        said: dict[str, Any] = ImageProcessingMixin.get_image_processor_dict(name)[0]
        names = {"pixel_mean": said["image_mean"], "pixel_std": said["image_std"]}
    except (OSError, KeyError):
        return {}  # those of ImageNet
    return {name: sum(values) / len(values) for name, values in names.items()}
