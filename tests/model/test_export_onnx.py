"""ONNX files give what the model gives, in another runtime."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from support.examples import build, random_breasts, tiny

from mm3d.model.backbone import Backbone
from mm3d.model.export_onnx import OUTPUTS, export_onnx
from mm3d.model.int8 import Int8Backbone
from mm3d.shared.errors import InputError

SLICES, HEIGHT, WIDTH = 2, 64, 48
CLOSE = 1e-3


def run(path: Path, image: torch.Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path)
    (given,) = session.get_inputs()
    assert given.shape == list(image.shape)
    return [np.asarray(output) for output in session.run(None, {given.name: image.numpy()})]


def test_the_whole_detector(tmp_path: Path) -> None:
    model = build(tiny(heads=2, proposals=4))
    names = export_onnx(model, tmp_path / "model.onnx", HEIGHT, WIDTH, SLICES)
    assert list(names) == list(OUTPUTS)
    breasts = random_breasts(SLICES, HEIGHT, WIDTH)
    found = dict(zip(names, run(tmp_path / "model.onnx", breasts.images[0]), strict=True))
    with torch.inference_mode():
        detections = model(breasts)
    assert detections.slice_weights is not None
    for name, wanted in (
        ("logits", detections.logits),
        ("boxes", detections.boxes),
        ("slice_weights", detections.slice_weights),
        ("slices", detections.slices),
        ("image_logits", detections.image_logits),
    ):
        np.testing.assert_allclose(found[name], wanted[-1, 0], atol=CLOSE, err_msg=name)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_the_backbone(tmp_path: Path) -> None:
    model = build(tiny())
    export_onnx(model, tmp_path / "backbone.onnx", HEIGHT, WIDTH, SLICES, part="backbone")
    slices = random_breasts(SLICES, HEIGHT, WIDTH).images[0, 0]
    found = run(tmp_path / "backbone.onnx", slices)
    with torch.inference_mode():
        wanted = model.backbone(slices)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=CLOSE)


def test_int8_weights_are_refused(tmp_path: Path) -> None:
    model = build()
    backbone = Int8Backbone.__new__(Int8Backbone)
    Backbone.__init__(backbone, model.config)
    model.backbone = backbone
    with pytest.raises(InputError, match="export the weights that they were made from"):
        export_onnx(model, tmp_path / "model.onnx", HEIGHT, WIDTH, SLICES)
