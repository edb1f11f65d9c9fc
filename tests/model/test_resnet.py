"""Our ResNet is the public one: weights that were trained with that of `transformers` must give the same numbers."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoBackbone, ResNetConfig

from mm3d.model.config import BACKBONES, BackboneConfig
from mm3d.model.resnet import ResNet

KERAS = replace(BACKBONES["resnet50"], stride_in="1x1")


@pytest.mark.parametrize("config", [*(BACKBONES[name] for name in ("small", "resnet18", "resnet50")), KERAS])
def test_the_resnet_is_that_of_transformers(config: BackboneConfig) -> None:
    settings = ResNetConfig(
        num_channels=1,
        embedding_size=config.stem,
        layer_type=config.layer,
        downsample_in_bottleneck=config.stride_in == "1x1",
        hidden_sizes=list(config.widths),
        depths=list(config.depths),
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    torch.manual_seed(0)
    theirs = AutoBackbone.from_config(settings).eval()
    after_theirs = torch.rand(1)
    torch.manual_seed(0)
    ours = ResNet(config).eval()
    assert torch.equal(torch.rand(1), after_theirs), "what is drawn after the body has changed"
    expected, state = theirs.state_dict(), ours.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[tensor], expected[tensor]) for tensor in state)
    image = torch.rand(2, 1, 97, 70)
    with torch.no_grad():
        pairs = zip(ours(image).feature_maps, theirs(image).feature_maps, strict=True)
        assert all(torch.equal(our, their) for our, their in pairs)
