"""int8 weights: a file that hides what it is, or a graph that is not ours, would give results nobody has measured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.blobs import write_blobs
from support.examples import build, random_breasts, tiny

from mm3d.cli import main
from mm3d.cli.demo import make_exam
from mm3d.cli.quantize import share_of_same_slices
from mm3d.model import weights
from mm3d.model.config import BACKBONES
from mm3d.model.detector import Detector
from mm3d.model.int8 import CONSTANTS, GRAPH, Int8Backbone
from mm3d.model.quantize import quantize
from mm3d.output.predictions import BreastPrediction, Finding, ViewPrediction
from mm3d.shared.config import to_dict
from mm3d.shared.errors import InputError

CARD: dict[str, Any] = {"int8": {"accuracy": {}}}


def make_int8(model: Detector) -> Detector:
    random = np.random.default_rng(0)
    slices = random.random((4, 96, 64), dtype=np.float32)
    return quantize(model, range(len(slices)), lambda s: slices[s])


@pytest.fixture(scope="module")
def int8() -> Detector:
    return make_int8(build())


def altered(path: Path, **changes: torch.Tensor) -> Path:
    """Another file, with some tensors changed."""
    copy = path.with_name("altered.safetensors")
    header = weights.read_header(path)
    metadata = {weights.HEADER: json.dumps(to_dict(header))}
    weights.save_tensors(load_file(path) | {f"backbone.{name}": one for name, one in changes.items()}, copy, metadata)
    return copy


@pytest.mark.parametrize("backbone", ["small", "resnet18"])
def test_int8_is_near_float32_at_every_level(backbone: str) -> None:
    """With GroupNorm and with folded BatchNorms, for a size that it was not calibrated with."""
    model = build(tiny(backbone=BACKBONES[backbone]))
    slices = torch.rand(2, 80, 112, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        exact = model.backbone.merge_stages(slices)
        rounded = make_int8(model).for_inference("openvino").backbone.merge_stages(slices)
    for ours, theirs in zip(exact, rounded, strict=True):
        assert not torch.equal(ours, theirs)  # it is not float32 under another name
        assert float((ours - theirs).std() / ours.std()) < 0.2


def test_a_file_gives_the_same_results_as_the_model_that_was_measured(tmp_path: Path, int8: Detector) -> None:
    path = tmp_path / "w.safetensors"
    weights.save(int8, path, CARD)
    loaded = weights.load(path)
    assert isinstance(loaded.backbone, Int8Backbone)
    assert weights.read_header(path).precision == "int8"
    assert not any(name.startswith("backbone.body.") for name in load_file(path))
    breasts = random_breasts()
    with torch.inference_mode():
        measured, found = (one.for_inference("openvino")(breasts) for one in (int8, loaded))
    assert torch.equal(measured.logits, found.logits)
    assert torch.equal(measured.boxes, found.boxes)


def test_int8_weights_are_not_written_without_the_table_of_their_accuracy(tmp_path: Path, int8: Detector) -> None:
    with pytest.raises(InputError, match="need the table of their accuracy"):
        weights.save(int8, tmp_path / "w.safetensors", {"int8": {"nncf": "3"}})
    assert not list(tmp_path.iterdir())


def test_int8_runs_on_openvino_only_and_is_not_trained(tmp_path: Path, int8: Detector) -> None:
    with pytest.raises(InputError, match="run on the engine openvino only"):
        int8.for_inference("torch")
    with pytest.raises(InputError, match="run on the engine openvino only"):
        int8(random_breasts())
    weights.save(int8, tmp_path / "w.safetensors", CARD)
    with pytest.raises(InputError, match="is int8, which cannot be trained"):
        weights.start_from(build(), tmp_path / "w.safetensors")


def test_a_graph_that_is_damaged_or_not_ours_is_not_run(tmp_path: Path, int8: Detector) -> None:
    path = tmp_path / "w.safetensors"
    weights.save(int8, path, CARD)
    state = load_file(path)
    graph, constants = state[GRAPH], state[CONSTANTS]
    text = graph.numpy().tobytes()
    as_tensor = lambda content: torch.from_numpy(np.frombuffer(content, np.uint8).copy())  # noqa: E731
    for changes in (
        {"graph": graph[:-500]},
        {"graph": as_tensor(b"\x08\x07" + text)},
        {"graph": as_tensor(text.replace(b'type="MaxPool"', b'type="AvgPool"'))},
        {"graph": torch.zeros(16_000_001, dtype=torch.uint8)},
        {"graph": graph.float()},
        {"constants": constants[: len(constants) // 2]},
        {"constants": torch.zeros(10_000_000, dtype=torch.uint8)},
    ):
        with pytest.raises(InputError, match="int8 backbone of these weights is damaged"):
            weights.load(altered(path, **changes)).for_inference("openvino")
    assert weights.load(altered(path, graph=graph)).for_inference("openvino")


def test_the_command_measures_and_says_everywhere_that_weights_are_int8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs = [write_blobs(tmp_path / name, breasts=4, seed=seed) for seed, name in enumerate(("some", "others"))]
    source, made, out = tmp_path / "w.safetensors", tmp_path / "w8.safetensors", tmp_path / "out"
    weights.save(build(), source, {"operating_point": 0.3})
    command = ["quantize", str(source), "-o", str(made), "--calibrate", str(blobs[0])]
    assert main([*command, "--validate", str(blobs[0])]) == 1
    assert "is given twice" in capsys.readouterr().err
    assert main([*command, "--validate", str(write_blobs(tmp_path / "healthy", breasts=2, malignant=0))]) == 1
    assert "needs breasts with annotated cancers" in capsys.readouterr().err
    assert not made.exists()

    assert main([*command, "--validate", str(blobs[1])]) == 0
    assert [item.name for item in tmp_path.glob(".quantize*")] == []
    header = weights.read_header(made)
    assert header.int8 is not None
    accuracy: dict[str, Any] = header.int8["accuracy"]
    for row in ("float32", "int8"):
        assert {"recall@0.25", "recall@0.5", "auc"} <= accuracy[row].keys()
        assert all(0 <= value <= 1 for value in accuracy[row].values())
    assert 0 <= accuracy["int8"]["same_slice"] <= 1
    assert header.int8["breasts"] == 4
    assert "chosen with float32" in header.provenance["operating_point"]["source"]
    assert "The backbone is int8. In brackets float32" in header.intended_use

    capsys.readouterr()
    assert main(["predict", str(blobs[1]), "--weights", str(made), "-o", str(out)]) == 0
    assert "The backbone is int8" in capsys.readouterr().out.replace("\n", " ")
    assert "The backbone is int8" in json.loads((out / "predictions.json").read_text())["model"]["use"]
    assert main(["info", str(made), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["given_weights"]
    assert told["precision"] == "int8"
    assert main(["info", str(made)]) == 0
    assert "int8, made of weights trained on input" in capsys.readouterr().out
    assert main(["predict", str(blobs[1]), "--weights", str(made), "-o", str(out), "--engine", "torch"]) == 1
    assert "run on the engine openvino only" in capsys.readouterr().err
    assert main(["predict", str(blobs[1]), "--weights", str(made), "-o", str(out), "--precision", "bfloat16"]) == 1
    assert "leave out --precision" in capsys.readouterr().err
    assert main(["quantize", str(made), "-o", str(tmp_path / "again.safetensors")]) == 1
    assert "is int8 already" in capsys.readouterr().err


def test_results_of_an_exam_say_that_weights_are_int8(tmp_path: Path, int8: Detector) -> None:
    path, out = tmp_path / "w8.safetensors", tmp_path / "out"
    prepare = {"width": 48, "length": 96, "slices": 4}
    weights.save(int8, path, CARD | {"prepare": prepare}, "For tests only. The backbone is int8.")
    make_exam(tmp_path / "exam", 0, "tiny")
    assert main(["predict", str(tmp_path / "exam"), "--weights", str(path), "-o", str(out), "--jobs", "1"]) == 0
    method = json.loads((out / "run.json").read_text())["method"]
    assert method["precision"] == "int8"
    assert method["engine"] == "openvino"
    assert "The backbone is int8." in (out / "report.html").read_text()


def test_a_virtual_trial_is_made_with_the_preparation_of_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, made = tmp_path / "w.safetensors", tmp_path / "w8.safetensors"
    weights.save(build(), source, {})
    command = ["quantize", str(source), "-o", str(made), "--breasts", "8", "--jobs", "1"]
    assert main(command) == 1
    assert "does not say to which size its views were prepared" in capsys.readouterr().err
    weights.save(build(), source, {"prepare": {"width": 48, "length": 96, "slices": 4}})
    assert main(command) == 0
    header = weights.read_header(made)
    assert header.int8 is not None
    assert header.int8["measured_on"] == "a virtual trial (scale tiny, contrast 1.7, seed 1)"
    assert header.int8["calibrated_on"] == "64 slices of a virtual trial (scale tiny, contrast 1.7, seed 0)"
    assert {item.name for item in tmp_path.iterdir()} == {source.name, made.name}


def test_the_share_of_same_slices_counts_findings_that_are_gone_or_moved() -> None:
    def predict(*findings: Finding) -> BreastPrediction:
        return BreastPrediction("P", "E", "L", (ViewPrediction("lcc", findings, "DBT", 0.5),), 0.5)

    box, far = (0.0, 0.0, 10.0, 10.0), (50.0, 50.0, 60.0, 60.0)
    before = [predict(Finding(box, 0.9, 3.0), Finding(far, 0.1, 1.0)), predict(Finding(far, 0.8, 2.0))]
    assert share_of_same_slices(before, before) == 1
    moved = [predict(Finding(box, 0.2, 4.0), Finding(far, 0.9, 1.0)), before[1]]
    assert share_of_same_slices(before, moved) == 0.5
    gone = [predict(Finding(far, 0.9, 3.0)), predict()]
    assert share_of_same_slices(before, gone) == 0
    flat = [predict(Finding(box, 0.9, None))]
    assert share_of_same_slices(flat, flat) is None
