"""From the model's proposals to findings in the frame of the stored images."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.blobs import SLICES, STORED, H, W, write_blobs
from support.examples import TINY, build

from mm3d.cli import main
from mm3d.data.batches import stack
from mm3d.data.inputs import InputName, prepared_breasts, read_image
from mm3d.model import weights
from mm3d.model.detector import Detector
from mm3d.output.predictions import read
from mm3d.predict.detect import (
    SLICES_AT_ONCE,
    ViewProposals,
    predict_breast,
    suppress,
    suspicion_map,
    unite,
)
from mm3d.predict.settings import PredictSettings

ALL = PredictSettings(nms=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blobs(tmp_path_factory.mktemp("data") / "blobs", breasts=3)


@pytest.fixture(scope="module")
def model() -> Detector:
    return build()


def test_views_of_a_size_that_the_weights_do_not_know_are_told(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lesions of another size are found worse, and nothing else would say so."""
    for width, told in ((W, False), (2 * W, True)):
        path = tmp_path / f"{width}.safetensors"
        weights.save(build(), path, {"input": "ffdm", "prepare": {"width": width, "length": H}})
        assert main(["predict", str(folder), "--weights", str(path), "-o", str(tmp_path / f"{width}")]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert (f"prepared to {H} x {W}, and the weights know {H} x {2 * W}" in said) == told


def test_overlapping_boxes_are_shown_once_with_the_best_score() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [30, 30, 40, 40], [8, 0, 18, 10]], dtype=float)
    assert suppress(boxes, np.array([0.5, 0.9, 0.1, 0.3]), 0.3).tolist() == [1, 3, 2]
    assert suppress(boxes, np.array([0.5, 0.9, 0.1, 0.3]), 1.0).tolist() == [1, 0, 3, 2]
    assert suppress(np.zeros((0, 4)), np.zeros(0), 0.3).tolist() == []


def test_united_boxes_cover_what_they_were_made_of() -> None:
    boxes = np.array(
        [[0, 0, 0, 10, 10, 6], [0, 0, 1, 10, 10, 7], [0, 0, 2, 10, 10, 8], [0, 0, 2, 10, 10, 8]], dtype=float
    )
    united, scores = unite(boxes, np.array([0.9, 0.5, 0.2, 0.01]))
    assert united.tolist() == [[0, 0, 0, 10, 10, 8], [0, 0, 2, 10, 10, 8]]  # the last one's score is too low to join
    assert scores.tolist() == [0.9, 0.01]


def test_predictions_are_the_models_output_in_stored_pixels(folder: Path, model: Detector) -> None:
    breast = prepared_breasts(folder, None, "DBT")[0]
    predicted = predict_breast(model, breast, "volume", settings=ALL)
    images = [read_image(view, "volume") for view in breast.views]
    with torch.no_grad():
        detections = model(stack([(images[0], images[1])]))
    assert predicted.score == pytest.approx(detections.breast_logits[-1].sigmoid().item(), rel=1e-5)
    for v, view in enumerate(predicted.views):
        assert view.view == ("lcc", "lmlo")[v]
        assert view.score == pytest.approx(detections.image_logits[-1, 0, v].sigmoid().item(), rel=1e-5)
        scores = detections.logits[-1, 0, v].sigmoid()
        assert [f.score for f in view.findings] == pytest.approx(scores.sort(descending=True).values.tolist(), rel=1e-5)
        best = int(scores.argmax())
        first = view.findings[0]
        inside = detections.boxes[-1, 0, v, best].clamp(min=0).minimum(torch.tensor([48.0, 64.0, 48.0, 64.0]))
        assert first.box == pytest.approx((inside + torch.tensor([10.0, 20.0, 10.0, 20.0])).tolist(), rel=1e-4)
        assert detections.slice_weights is not None
        weights = detections.slice_weights[-1, 0, v, :, best]
        assert first.slice_weights == pytest.approx(weights.tolist(), abs=1e-5)
        assert first.slice == breast.views[v].file.geometry.slice_to_stored(int(weights.argmax()))


def test_slices_one_by_one_are_the_model_on_each(tmp_path: Path, model: Detector) -> None:
    """More slices than go through the model at once; their boxes by themselves, and as boxes in 3D."""
    slices = SLICES_AT_ONCE + 2
    (breast,) = prepared_breasts(write_blobs(tmp_path / "deep", breasts=1, slices=slices), None, "DBT")
    predicted = predict_breast(model, breast, "slices", settings=ALL)
    cc, mlo = (read_image(view, "volume") for view in breast.views)
    with torch.no_grad():
        each = [model(stack([(cc[s : s + 1], mlo[s : s + 1])])) for s in range(slices)]
    for v, view in enumerate(predicted.views):
        logits = torch.stack([detections.logits[-1, 0, v] for detections in each])
        assert view.findings[0].score == pytest.approx(logits.max().sigmoid().item(), rel=1e-5)
        s = int(logits.max(dim=1).values.argmax())
        assert view.findings[0].slice == breast.views[v].file.geometry.slice_to_stored(s)
        highest = max(detections.image_logits[-1, 0, v].item() for detections in each)
        assert view.score == pytest.approx(torch.tensor(highest).sigmoid().item(), rel=1e-5)
    united = predict_breast(model, breast, "slices", settings=PredictSettings(join="union"))
    for view, single in zip(united.views, predicted.views, strict=True):
        best, top = single.findings[0], view.findings[0]
        assert top.score == best.score
        assert top.box[0] <= best.box[0] < best.box[2] <= top.box[2]
        assert top.box[1] <= best.box[1] < best.box[3] <= top.box[3]
        assert best.slice is not None
        assert top.first_slice is not None
        assert top.first_slice <= best.slice < top.first_slice + top.depth
        for f in view.findings:
            assert f.first_slice is not None
            assert 0 <= f.first_slice < f.first_slice + f.depth <= STORED


def test_highest_scores_on_request(folder: Path, model: Detector) -> None:
    breast = prepared_breasts(folder, None, "FFDM")[0]
    predicted = predict_breast(model, breast, "ffdm", settings=PredictSettings(scores="max"))
    for view in predicted.views:
        assert view.score == view.findings[0].score
        assert view.findings[0].slice is None
    assert predicted.score == max(view.score for view in predicted.views if view.score is not None)


def test_a_repeated_view_is_predicted_too(folder: Path, model: Detector) -> None:
    """Two CC views and one MLO: all three have predictions, each once."""
    breast = prepared_breasts(folder, None, "DBT")[0]
    again = dataclasses.replace(breast.views[0], view=dataclasses.replace(breast.views[0].view, name="another CC"))
    record = dataclasses.replace(breast.breast, views=(*breast.breast.views, again.view))
    three = dataclasses.replace(breast, breast=record, views=(*breast.views, again))
    predicted = predict_breast(model, three, "volume", settings=ALL)
    assert [view.view for view in predicted.views] == ["lcc", "lmlo", "lcc1"]
    alone = predict_breast(model, breast, "volume", settings=ALL)
    assert predicted.views[:2] == alone.views
    assert predicted.views[2].findings == alone.views[0].findings  # the same pixels, beside the same MLO


def test_a_breast_with_one_view_is_predicted(folder: Path, model: Detector) -> None:
    breast = prepared_breasts(folder, None, "DBT")[0]
    one = dataclasses.replace(breast, views=breast.views[1:])
    predicted = predict_breast(model, one, "volume", settings=ALL)
    with torch.no_grad():
        detections = model(stack([(None, read_image(one.views[0], "volume"))]))
    (view,) = predicted.views
    assert view.view == "lmlo"
    assert view.score == pytest.approx(detections.image_logits[-1, 0, 1].sigmoid().item(), rel=1e-5)
    assert view.findings[0].score == pytest.approx(detections.logits[-1, 0, 1].max().sigmoid().item(), rel=1e-5)
    assert predicted.score == pytest.approx(view.score, rel=1e-6)


@pytest.mark.parametrize("name", ["volume", "ffdm"])
def test_a_volume_and_a_mammogram_are_one_breast(folder: Path, model: Detector, name: InputName) -> None:
    """As the model on both, the mammogram on every slice; only the volume's findings have one."""
    volume, flat = (prepared_breasts(folder, None, kind)[0] for kind in ("DBT", "FFDM"))
    mixed = dataclasses.replace(volume, views=(volume.views[0], flat.views[1]))
    predicted = predict_breast(model, mixed, name, settings=ALL)
    images = read_image(volume.views[0], "volume"), np.repeat(read_image(flat.views[1], "ffdm"), SLICES, axis=0)
    with torch.no_grad():
        detections = model(stack([images]))
    assert predicted.score == pytest.approx(detections.breast_logits[-1].sigmoid().item(), rel=1e-5)
    cc, mlo = predicted.views
    assert (cc.modality, mlo.modality) == ("DBT", "FFDM")
    for v, view in enumerate(predicted.views):
        assert view.findings[0].score == pytest.approx(detections.logits[-1, 0, v].max().sigmoid().item(), rel=1e-5)
    assert all(f.slice is not None and f.slice_weights is not None for f in cc.findings)
    assert all(f.slice is None and f.slice_weights is None for f in mlo.findings)


def test_suspicion_is_the_highest_score_that_covers_a_place() -> None:
    boxes = np.array([[1, 1, 3, 3], [0, 0, 2, 2], [-5, -5, 1, 1]], dtype=float)
    proposals = ViewProposals(boxes, np.array([0.8, 0.4, 0.9]), np.array([0, 0, 1]), None, 0.0)
    expected = np.zeros((2, 4, 4))
    expected[0, :2, :2] = 0.4
    expected[0, 1:3, 1:3] = 0.8
    expected[1, 0, 0] = 0.9
    assert suspicion_map(proposals, (2, 4, 4)) == pytest.approx(expected)


def test_the_command_and_what_it_refuses(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    file = tmp_path / "w.safetensors"
    weights.save(Detector(TINY), file, {"input": "ffdm"})
    arguments = ["predict", str(folder), "-o", str(tmp_path / "out"), "--weights", str(file)]
    assert main(arguments) == 0
    predictions = read(tmp_path / "out" / "predictions.json")
    assert {view.modality for _, view in predictions.views()} == {"FFDM"}
    assert predictions.model["weights"] == str(file)
    assert main([*arguments, "--input", "volume"]) == 0  # before any training on volumes
    assert "slice_weights" in json.dumps(json.loads((tmp_path / "out" / "predictions.json").read_text()))
    assert read(tmp_path / "out" / "predictions.csv").breasts
    capsys.readouterr()
    for more, said in (
        (["--split", "test"], "has no breast of the split 'test'"),
        (["--weights", str(tmp_path)], "has neither best.safetensors nor last.safetensors"),
        (["--input", "hm"], "Input hm needs the average histogram"),
    ):
        assert main([*arguments, *more]) == 1
        assert said in capsys.readouterr().err
