"""Backbones of `transformers` by name: any image size fits, trained ones keep what they know, others are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.examples import random_breasts
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageClassification

from mm3d.cli import main
from mm3d.model import weights
from mm3d.model.backbone import Backbone, freeze_stages
from mm3d.model.config import PRESETS, BackboneConfig, ModelConfig
from mm3d.model.detector import Detector
from mm3d.model.import_checkpoint import import_checkpoint
from mm3d.shared.errors import InputError

SMALL: dict[str, dict[str, Any]] = {
    "convnext": {"depths": [1, 1, 2, 1], "hidden_sizes": [8, 12, 16, 20]},
    "swinv2": {"embed_dim": 8, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 2, 4], "window_size": 4},
    "resnet": {"depths": [1, 1, 2, 1], "hidden_sizes": [8, 16, 24, 32], "embedding_size": 8, "layer_type": "basic"},
}


def configure(name: str) -> ModelConfig:
    return replace(PRESETS["tiny"], backbone=BackboneConfig(family="auto", name=name, settings=SMALL[name]))


@pytest.mark.parametrize("name", SMALL)
def test_a_model_type_of_transformers_is_a_backbone(name: str, tmp_path: Path) -> None:
    model = Detector(configure(name)).eval()
    with torch.no_grad():
        levels = model.backbone(torch.rand(2, 101, 67))
        detections = model(random_breasts(slices=2, height=101, width=67))
    assert [level.shape[-2:] for level in levels] == [(26, 17), (13, 9), (7, 5), (4, 3)]
    assert detections.logits.isfinite().all()
    weights.save(model, tmp_path / "model.safetensors", {})
    again = weights.load(tmp_path / "model.safetensors").eval()
    assert again.config == model.config
    with torch.no_grad():
        for level, wanted in zip(
            again.backbone(torch.ones(1, 64, 64)), model.backbone(torch.ones(1, 64, 64)), strict=True
        ):
            torch.testing.assert_close(level, wanted)


def save_trained(name: str, folder: Path) -> torch.nn.Module:
    """A classifier of RGB images as users find it, with values that no start has."""
    torch.manual_seed(0)
    network: torch.nn.Module = AutoModelForImageClassification.from_config(AutoConfig.for_model(name, **SMALL[name]))
    with torch.no_grad():
        for tensor_name, tensor in network.state_dict().items():
            if tensor.is_floating_point():
                low = 0.5 if "running_var" in tensor_name else -0.5
                tensor.copy_(low + torch.rand(tensor.shape))
    network.save_pretrained(folder)  # type: ignore[operator]
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.4, 0.5, 0.6], "image_std": [0.1, 0.2, 0.3]}')
    return network.eval()


@pytest.mark.parametrize("name", ["convnext", "resnet"])
def test_a_trained_network_gives_the_features_it_gave(name: str, tmp_path: Path) -> None:
    network = save_trained(name, tmp_path / "trained")
    output = tmp_path / "start.safetensors"
    assert main(["import-weights", str(tmp_path / "trained"), "-o", str(output)]) == 0
    config = weights.read_header(output).config
    assert config.pixel_mean == pytest.approx(0.5)
    assert config.pixel_std == pytest.approx(0.2)
    model = Detector(replace(PRESETS["tiny"], backbone=config.backbone)).eval()
    weights.start_from(model, output)
    x = torch.randn(1, 1, 64, 96)
    with torch.no_grad():
        states: tuple[Tensor, ...] = network(x.expand(-1, 3, -1, -1), output_hidden_states=True).hidden_states
        stages = model.backbone.body(x).feature_maps
    if name == "resnet":  # ConvNeXt's backbone has norms after its stages that the classifier does not have
        for stage, wanted in zip(stages, states[-4:], strict=True):
            torch.testing.assert_close(stage, wanted, rtol=1e-4, atol=1e-4)
    else:
        normalised = torch.nn.functional.layer_norm(states[-1].permute(0, 2, 3, 1), stages[-1].shape[1:2])
        torch.testing.assert_close(stages[-1].permute(0, 2, 3, 1), normalised, rtol=1e-3, atol=1e-3)


def test_frozen_stages_are_the_first_ones_of_any_network() -> None:
    backbone = Backbone(configure("convnext"))
    freeze_stages(backbone, 2)
    learning = {name for name, parameter in backbone.named_parameters() if parameter.requires_grad}
    assert not any("stages.0." in name or "stages.1." in name or "embeddings" in name for name in learning)
    assert any("stages.2." in name for name in learning)
    assert any("lateral.0" in name for name in learning)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("convnex", {}, r"transformers cannot build the backbone convnex with these settings"),
        ("bert", {}, r"transformers cannot build the backbone bert with these settings"),
        ("beit", {"num_hidden_layers": 4, "hidden_size": 24, "num_attention_heads": 2}, r"has not four stages"),
        ("textnet", {}, r"textnet has a BatchNorm that cannot be frozen"),
    ],
)
def test_networks_that_do_not_fit_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Backbone(replace(PRESETS["tiny"], backbone=BackboneConfig(family="auto", name=name, settings=settings)))


def test_a_name_belongs_to_auto() -> None:
    for wrong in ({"family": "auto"}, {"name": "convnext"}, {"settings": {"depths": [1]}}):
        with pytest.raises(InputError, match=r"belong to family = auto, which needs a name"):
            BackboneConfig(**wrong)


def test_a_folder_that_is_no_network_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "resnet"}')
    with pytest.raises(InputError, match=r"cannot be read, or is no backbone of transformers"):
        import_checkpoint(tmp_path)
