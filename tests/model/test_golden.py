"""The published Sparse R-CNN, number by number: a COCO checkpoint must mean the same here as where it comes from.

The fixture holds inputs, weights and outputs of the published implementation, run with random weights.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from mm3d.model.config import ModelConfig
from mm3d.model.detector import Detections
from mm3d.model.head import CascadeHead, Proposals
from mm3d.model.import_backbone import rename
from mm3d.model.import_checkpoint import DETECTRON2_TO_OURS
from mm3d.model.losses import CostWeights, Targets, detection_losses, match, matching_cost
from mm3d.model.roi_align import Pyramid, make_table, roi_align

FIXTURE = Path(__file__).parents[1] / "fixtures" / "sparse_rcnn_small.safetensors"


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@cache
def golden() -> tuple[dict[str, Tensor], dict[str, int]]:
    with safe_open(FIXTURE, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["config"])  # noqa: SIM118


def pyramid() -> Pyramid:
    tensors, given = golden()
    table = make_table([tensors[f"input.p{level}"][:, None] for level in range(2, 6)])
    return Pyramid.from_table(table, [(given["height"], given["width"])] * given["batch"])


@cache
def head_outputs() -> list[Proposals]:
    """The published weights in our heads, on the published inputs. Each image is a view without a partner."""
    tensors, given = golden()
    config = ModelConfig(
        channels=given["hidden_dim"],
        proposals=given["proposals"],
        heads=given["cascade_heads"],
        attention_heads=given["attention_heads"],
        dynamic_channels=given["dim_dynamic"],
        feedforward=given["dim_feedforward"],
    )
    # With partner = the other image: the fresh CrossAttn is there, and must change nothing.
    partner = torch.tensor([1, 0])
    h = tensors["weights.init_proposal_features.weight"].expand(given["batch"], -1, -1)
    b = tensors["input.boxes"]
    outputs = []
    for i in range(config.heads):
        head = CascadeHead(config).eval()
        prefix = f"weights.head.head_series.{i}."
        theirs = {name.removeprefix("weights."): t for name, t in tensors.items() if name.startswith(prefix)}
        state = {rename(DETECTRON2_TO_OURS, name).removeprefix(f"heads.{i}."): t for name, t in theirs.items()}
        missing, unexpected = head.load_state_dict(state, strict=False)
        assert not unexpected
        assert all(name.startswith("cross_attn.") for name in missing)
        with torch.no_grad():
            output = head(h, b, pyramid(), partner)
        outputs.append(output)
        h, b = output.h, output.b
    return outputs


def detections() -> Detections:
    """The two images as one view each of two breasts."""
    outputs = head_outputs()
    present = torch.tensor([[True, False], [True, False]])

    def place(values: list[Tensor], fill: float) -> Tensor:
        stacked = torch.stack(values)[:, :, None]
        return torch.cat([stacked, torch.full_like(stacked, fill)], dim=2)

    return Detections(
        logits=place([o.m for o in outputs], -100.0),
        boxes=place([o.b for o in outputs], 0.0),
        slice_logits=place([o.log_w.transpose(1, 2) for o in outputs if o.log_w is not None], 0.0),
        z=place([o.z for o in outputs], 0.0),
        features=place([o.h for o in outputs], 0.0),
        present=present,
        slice_count=1,
    )


def test_roi_features_of_boxes_inside_and_outside_the_image() -> None:
    tensors, given = golden()
    ours = roi_align(pyramid(), tensors["input.boxes"])[:, :, :, 0]  # (B, N, K, D)
    theirs = tensors["output.roi_features_head0"].flatten(2).transpose(1, 2).unflatten(0, (given["batch"], -1))
    assert_close(ours, theirs)


@pytest.mark.parametrize("head", range(3))
def test_logits_and_boxes_of_every_head(head: int) -> None:
    tensors, _ = golden()
    output = head_outputs()[head]
    assert_close(output.m, tensors["output.logits"][head, ..., 0])
    assert_close(output.b, tensors["output.boxes"][head])


@pytest.mark.parametrize("image", range(2))
def test_matching_of_every_head(image: int) -> None:
    tensors, _ = golden()
    found = tensors[f"target.boxes_xyxy.{image}"]
    size = tensors["input.image_whwh"][image, :2].flip(0)
    logits = torch.stack([o.m[image] for o in head_outputs()])
    boxes = torch.stack([o.b[image] for o in head_outputs()])
    head, proposal, finding = match(matching_cost(logits, boxes, found, size, CostWeights()))
    for i in range(3):
        pairs = torch.stack([proposal[head == i], finding[head == i]])
        assert pairs.tolist() == tensors[f"output.match.{i}.{image}"].tolist()


def test_losses_of_every_head() -> None:
    tensors, _ = golden()
    boxes = [tensors[f"target.boxes_xyxy.{image}"] for image in range(2)]
    targets = Targets(
        malignant=torch.tensor([True, False]),
        annotated=torch.ones(2, 2, dtype=torch.bool),
        boxes=torch.cat(boxes),
        slices=torch.full((sum(map(len, boxes)),), -1),
        places=torch.tensor([(image, 0) for image in range(2) for _ in boxes[image]]),
    )
    sizes = tensors["input.image_whwh"][:, None, :2].flip(-1).expand(2, 2, 2)
    losses = detection_losses(detections(), targets, sizes)
    for ours, theirs in (("focal", "ce"), ("l1", "bbox"), ("giou", "giou")):
        expected = torch.cat([tensors[f"output.loss_{theirs}.{head}"] for head in range(3)])
        assert_close(losses.terms[ours], expected)
