"""What makes full-size volumes fit must not change what is found or learned."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.blobs import write_blobs
from support.examples import build, max_difference, random_breasts, targets, tiny
from torch import Tensor

from mm3d.cli import main
from mm3d.model import memory
from mm3d.model.backbone import Backbone
from mm3d.model.config import BACKBONES, EngineName, ModelConfig
from mm3d.model.detector import Breasts, Detections, Detector
from mm3d.model.head import CascadeHead
from mm3d.model.losses import LossWeights, Targets, detection_losses
from mm3d.model.memory import LeanPyramid, build_pyramid
from mm3d.model.weights import save
from mm3d.output.predictions import read
from mm3d.shared.errors import InputError
from mm3d.train.data import Batch
from mm3d.train.run import DetectorLearner

FROZEN = dataclasses.replace(BACKBONES["resnet18"], widths=(8, 16, 24, 32), depths=(1, 1, 1, 1), stem=8)
# The views' pyramids have more positions than all RoIs (8 proposals, 3 heads), or fewer.
LARGE, SMALL = (200, 136), (72, 64)


def mixed_breasts(size: tuple[int, int], slices: int, seed: int = 0) -> Breasts:
    """Two breasts, one without MLO, each view of its own size; two sizes agree."""
    batch = random_breasts(slices, *size, present=((True, True), (True, False)), seed=seed)
    height, width = size
    sizes = torch.tensor([[[height, width], [height - 9, width - 14]], [[height, width], [0, 0]]])
    return dataclasses.replace(batch, sizes=sizes)


def truth(slices: int) -> Targets:
    annotated = [[True, True], [True, False]]
    return targets([True, False], annotated, [(0, 0, (5.0, 9.0, 40.0, 50.0), 0), (0, 1, (8, 8, 30, 30), slices - 1)])


def in_training(config: ModelConfig, dtype: torch.dtype) -> Detector:
    model = build(config).train().to(dtype)
    model.backbone.body.register_forward_pre_hook(lambda _, given: (given[0].to(dtype),))  # images are float32
    return model


def gradients(
    config: ModelConfig, breasts: Breasts, wanted: Targets, dtype: torch.dtype = torch.float32
) -> tuple[Detections, dict[str, Tensor]]:
    model = in_training(config, dtype)
    detections = model(breasts)
    detection_losses(detections, wanted, breasts.sizes).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    return detections, {name: parameter.grad for name, parameter in model.named_parameters()}  # type: ignore[misc]


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest over all parameters: the length of the gradients' difference as a share of their length."""
    # Not Python's max, which passes over a NaN.
    return float(torch.stack([(value - b[name]).norm() / (value.norm() + 1e-9) for name, value in a.items()]).max())


# ---- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [1, 5])
@pytest.mark.parametrize("size", [LARGE, SMALL])
@pytest.mark.parametrize("changes", [{}, {"backbone": FROZEN}, {"chunk": 2}, {"fusion": "timesform"}], ids=str)
def test_recomputed_gradients_are_the_plain_ones(
    changes: dict[str, object], size: tuple[int, int], slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64 of every image; in float32 of one of three, for a rounding may fall on the other side of a ReLU's or a
    maximum's kink. Of such an image, plain gradients differ from plain ones by 6e-5 as well, once it is moved by 1e-7.
    """
    if "chunk" in changes:
        monkeypatch.setattr(memory, "RECOMPUTED_FLOATS", 20_000)  # a few proposals at a time
    breasts, wanted = mixed_breasts(size, slices), truth(slices)
    _, plain = gradients(tiny(**changes), breasts, wanted, torch.float64)
    _, recomputed = gradients(tiny(recompute=True, **changes), breasts, wanted, torch.float64)
    assert difference(plain, recomputed) <= 1e-6  # boxes and losses are in float32 all the same
    differences = []
    for seed in range(3):
        breasts, wanted = mixed_breasts(size, slices, seed), truth(slices)
        plain_detections, plain = gradients(tiny(**changes), breasts, wanted)
        detections, recomputed = gradients(tiny(recompute=True, **changes), breasts, wanted)
        torch.testing.assert_close(detections.logits, plain_detections.logits, atol=1e-4, rtol=1e-4)
        differences.append(difference(plain, recomputed))
        if differences[-1] <= 1e-5:
            return
    raise AssertionError(f"gradients differ by {differences}")


def test_large_views_are_convolved_after_pooling_and_small_ones_before() -> None:
    """Otherwise the tests here would compare a way with itself."""
    backbone = build(tiny()).backbone
    with torch.no_grad():
        for size, last in ((LARGE, True), (SMALL, False)):
            pyramid = build_pyramid(backbone, [torch.rand(2, *size)])
            assert isinstance(pyramid, LeanPyramid)
            assert (pyramid.convolutions is not None) == last


def test_two_backward_passes_add_up() -> None:
    """Accumulation: the gradients of two batches are the sum of each one's."""
    model, wanted = build(tiny(recompute=True)).train(), truth(2)
    parts, single = [mixed_breasts(SMALL, 2), mixed_breasts(LARGE, 2)], []
    for repeat in (1, 2):
        for breasts in parts:
            if repeat == 1:
                model.zero_grad()
            detection_losses(model(breasts), wanted, breasts.sizes).total.backward()
            if repeat == 1:
                single.append([parameter.grad.clone() for parameter in model.parameters()])  # type: ignore[union-attr]
        if repeat == 1:
            model.zero_grad()
    for parameter, *each in zip(model.parameters(), *single, strict=True):
        torch.testing.assert_close(parameter.grad, sum(each), atol=1e-5, rtol=1e-4)


def test_a_loss_on_one_head_alone_still_reaches_the_backbone() -> None:
    found = []
    for recompute in (False, True):
        model = in_training(tiny(recompute=recompute), torch.float64)  # no rounding at a kink: see above
        model(mixed_breasts(LARGE, 2)).logits[0].sum().backward()
        found.append({name: p.grad for name, p in model.backbone.named_parameters() if p.grad is not None})
    assert difference(found[0], found[1]) <= 1e-6


def test_a_frozen_backbone_trains_its_heads() -> None:
    model = build(tiny(recompute=True)).train()
    model.backbone.requires_grad_(False)
    breasts = mixed_breasts(LARGE, 2)
    detection_losses(model(breasts), truth(2), breasts.sizes).total.backward()
    assert all(parameter.grad is None for parameter in model.backbone.parameters())
    assert all(parameter.grad is not None for parameter in model.heads.parameters())


def kept_numbers(backbone: Backbone, views: list[Tensor]) -> int:
    """How many numbers the graph of the views' pyramid holds."""
    count = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal count
        count += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        build_pyramid(backbone, views)
    return count


def test_recomputation_keeps_a_few_slices_however_many_there_are() -> None:
    """What a step keeps for the backward pass of the backbone must not grow with the slices."""
    kept = {}
    for recompute in (False, True):
        model = build(tiny(recompute=recompute, chunk=1)).train()
        for slices in (2, 8):
            kept[recompute, slices] = kept_numbers(model.backbone, list(random_breasts(slices).images[0]))
    assert kept[True, 8] == kept[True, 2] == 0
    assert kept[False, 8] > 3 * kept[False, 2] > 0


@pytest.mark.parametrize("recompute", [False, True])
def test_bfloat16_learns_without_nan_from_hard_values(recompute: bool) -> None:
    """Saturated scores and boxes far out: the noisy-or, the losses and the box arithmetic must be in float32."""
    breasts, wanted = mixed_breasts(LARGE, 2), truth(2)
    detector = build(tiny(recompute=recompute, pyramid="bfloat16")).train()
    with torch.no_grad():
        for head, bias in zip(detector.heads, (60.0, -60.0, 0.0), strict=True):
            assert isinstance(head, CascadeHead)
            head.cls_logit.bias.fill_(bias)
            head.reg_deltas.bias.copy_(torch.tensor([3.0, -3.0, 2.0, -2.0]))
    learner = DetectorLearner(detector, LossWeights(), autocast=True)
    optimiser = torch.optim.AdamW(learner.parameters(), lr=1e-3)
    totals = []
    for _ in range(4):
        total, terms = learner(Batch(0, ("one", "two"), breasts, wanted))
        assert all(term.dtype == torch.float32 and term.isfinite() for term in (total, *terms.values()))
        optimiser.zero_grad()
        total.backward()
        assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in learner.parameters())
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimiser.step()
        totals.append(float(total.detach()))
    assert totals[-1] < totals[0]


def test_bfloat16_recomputed_gradients_are_about_the_plain_ones() -> None:
    """The backward pass must run under the forward pass's autocast, or the two would not belong together."""
    breasts = mixed_breasts(LARGE, 2)
    found = []
    for recompute in (False, True):
        model = build(tiny(recompute=recompute)).train()
        with torch.autocast("cpu", torch.bfloat16):
            detections = model(breasts)
        detections.logits[-1].sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.backbone.parameters() if p.grad is not None]))
    assert torch.nn.functional.cosine_similarity(found[0], found[1], dim=0) > 0.97


# ---- inference -----------------------------------------------------------------------------------------------------


def random_boxes(size: tuple[int, int], count: int = 40) -> Tensor:
    """All over the image and beyond its edges, of all sizes: (1, count, 4)."""
    generator = torch.Generator().manual_seed(3)
    centre = torch.rand(1, count, 2, generator=generator) * torch.tensor([size[1], size[0]])
    half = 2 ** (1 + 6 * torch.rand(1, count, 2, generator=generator))
    return torch.cat([centre - half, centre + half], dim=-1)


def test_convolving_after_pooling_is_the_same() -> None:
    """At the image's edges, too, where the convolution meets zeros and boxes look beyond."""
    backbone: Backbone = build(tiny()).backbone
    views, boxes = [torch.rand(3, *LARGE)], random_boxes(LARGE)
    plain = build_pyramid(backbone, views).pool(boxes, 56.0)
    with torch.no_grad():
        pooled_first = build_pyramid(backbone, views).pool(boxes, 56.0)
    torch.testing.assert_close(pooled_first, plain, atol=1e-5, rtol=1e-4)


def test_a_bfloat16_pyramid_changes_little() -> None:
    breasts = mixed_breasts(LARGE, 4)
    with torch.no_grad():
        exact, rounded = (build(tiny(pyramid=kept))(breasts) for kept in ("float32", "bfloat16"))
    assert rounded.logits.dtype == torch.float32
    assert not torch.equal(exact.logits, rounded.logits)
    assert max_difference(exact.logits.sigmoid(), rounded.logits.sigmoid()) < 3e-3
    assert max_difference(exact.boxes[0], rounded.boxes[0]) < 0.2


@pytest.mark.parametrize("backbone", ["small", "resnet18", "resnet50"])
def test_openvino_says_what_torch_says(backbone: str) -> None:
    """Both where output convolutions come first and where they come last, for every size that a view may have."""
    model = build(tiny(backbone=BACKBONES[backbone]))
    exported = model.for_inference("openvino")
    for size in (LARGE, SMALL):
        breasts = mixed_breasts(size, 3)
        with torch.inference_mode():
            ours, theirs = model(breasts), exported(breasts)
        torch.testing.assert_close(theirs.logits, ours.logits, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(theirs.boxes, ours.boxes, atol=1e-2, rtol=1e-3)
        assert ours.slice_logits is not None
        torch.testing.assert_close(theirs.slice_logits, ours.slice_logits, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("engine", ["torch", "openvino"])
@pytest.mark.parametrize("backbone", ["small", "resnet50"])
def test_bfloat16_is_float32_with_fewer_digits(backbone: str, engine: EngineName) -> None:
    """Where output convolutions come first and where they come last. On every processor: some imitate bfloat16."""
    model = build(tiny(backbone=BACKBONES[backbone]))
    exact, rounded = model.for_inference(engine), model.for_inference(engine, "bfloat16")
    for size in (LARGE, SMALL):
        breasts = mixed_breasts(size, 3)
        with torch.inference_mode():
            ours, theirs = exact(breasts), rounded(breasts)
        assert not torch.equal(theirs.logits, ours.logits)
        assert theirs.boxes.dtype == theirs.logits.dtype == torch.float32
        assert max_difference(theirs.logits.sigmoid(), ours.logits.sigmoid()) < 3e-2
        assert max_difference(theirs.boxes[0], ours.boxes[0]) < 1.0
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}  # the model itself is as it was


def test_bfloat16_is_used_when_asked_for_and_refused_where_the_processor_does_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_blobs(tmp_path / "blobs", breasts=2)
    save(build(), tmp_path / "w.safetensors", {})
    command = ["predict", str(folder), "--weights", str(tmp_path / "w.safetensors")]
    found = {}
    for has_it in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has_it=has_it: has_it)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        for precision in ("auto", "float32", "bfloat16"):
            out = tmp_path / f"{precision}-{has_it}"
            refused = precision == "bfloat16" and not has_it
            assert main([*command, "-o", str(out), "--precision", precision]) == int(refused)
            if not refused:
                found[precision, has_it] = (out / "predictions.csv").read_text()
    assert "cannot compute in bfloat16; use --precision float32" in capsys.readouterr().err
    assert len({found["auto", True], found["auto", False], found["float32", True]}) == 1
    assert found["bfloat16", True] != found["float32", True]


def test_predictions_with_openvino_are_the_same_and_nothing_is_reported_to_its_makers(tmp_path: Path) -> None:
    """Its telemetry leaves a folder at home when it is about to send."""
    folder = write_blobs(tmp_path / "blobs", breasts=2)
    save(build(), tmp_path / "w.safetensors", {})
    home = tmp_path / "home"
    home.mkdir()
    found = {}
    for engine in ("torch", "openvino"):
        out = tmp_path / engine
        command = [sys.executable, "-m", "mm3d", "predict", str(folder), "-o", str(out), "--engine", engine]
        environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"HOME": str(home)}
        done = subprocess.run(
            [*command, "--weights", str(tmp_path / "w.safetensors")],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        found[engine] = read(out / "predictions.json").breasts
    assert not list(home.rglob("*openvino*"))
    for ours, theirs in zip(found["torch"], found["openvino"], strict=True):
        assert theirs.score == pytest.approx(ours.score, abs=1e-3)
        for a, b in zip(ours.views, theirs.views, strict=True):
            assert b.score == pytest.approx(a.score, abs=1e-3)


def test_openvino_that_is_not_installed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(InputError, match=r"pip install 'mm3d\[openvino\]'"):
        build().for_inference("openvino")
    folder = write_blobs(tmp_path / "blobs", breasts=2)
    save(build(), tmp_path / "w.safetensors", {})
    command = ["predict", str(folder), "--weights", str(tmp_path / "w.safetensors"), "-o", str(tmp_path / "out")]
    assert main([*command, "--engine", "openvino"]) == 1  # so the engine that is asked for is the one that is used
    assert "The engine openvino is not installed" in capsys.readouterr().err


def test_openvino_refuses_a_backbone_that_it_cannot_record() -> None:
    with pytest.raises(InputError, match="ResNet backbones only"):
        build(tiny(backbone=BACKBONES["pvt_v2_b2_li"])).for_inference("openvino")
