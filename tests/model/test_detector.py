"""The claims the paper rests on: one model for mammograms and volumes, and nothing that depends on how it is fed."""

import dataclasses
from typing import Any

import pytest
import torch
from support.examples import DEVICES, TINY, build, max_difference, random_breasts, tiny

from mm3d.model.backbone import FrozenBatchNorm2d
from mm3d.model.boxes import from_cxcywh
from mm3d.model.config import BACKBONES, BackboneConfig
from mm3d.model.detector import Breasts, Detections, Detector
from mm3d.model.fusion import FUSIONS, TimeSform
from mm3d.model.head import CascadeHead
from mm3d.shared.errors import InputError

PARAMETER_FREE = ("weighted", "mean", "max")


def shapes(model: Detector) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def assert_same(a: Detections, b: Detections, tolerance: float = 2e-4) -> None:
    for field in dataclasses.fields(Detections):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


# ---- one model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", PARAMETER_FREE)
def test_the_3d_model_has_no_parameter_the_2d_model_lacks(fusion: str) -> None:
    two_d, three_d = Detector(tiny(slices=1)), Detector(tiny(slices=16, fusion=fusion))
    assert shapes(two_d) == shapes(three_d)
    assert sum(p.numel() for p in two_d.parameters()) == sum(p.numel() for p in three_d.parameters())


def test_a_mammogram_gets_the_same_bits_from_every_fusion_without_parameters() -> None:
    state = build().state_dict()
    breasts = random_breasts(slices=1)
    results = []
    for fusion in PARAMETER_FREE:
        model = build(tiny(fusion=fusion))
        model.load_state_dict(state)
        with torch.no_grad():
            results.append(model(breasts))
    for other in results[1:]:
        for name in ("logits", "boxes", "slice_logits", "features"):
            assert torch.equal(getattr(results[0], name), getattr(other, name))


@pytest.mark.parametrize("fusion", PARAMETER_FREE)
def test_equal_slices_say_what_one_slice_says(fusion: str) -> None:
    model = build(tiny(fusion=fusion))
    one = random_breasts(slices=1)
    many = dataclasses.replace(one, images=one.images.expand(-1, -1, 5, -1, -1))
    with torch.no_grad():
        single, volume = model(one), model(many)
    torch.testing.assert_close(volume.logits, single.logits, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(volume.boxes, single.boxes, atol=2e-3, rtol=2e-4)
    assert volume.slice_weights is not None
    torch.testing.assert_close(volume.slice_weights, torch.full_like(volume.slice_weights, 0.2), atol=1e-4, rtol=0)


# ---- nothing but the breast decides --------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", ["weighted", "mean", "max", "timesform", "query"])
def test_permuting_slices_permutes_w_and_changes_nothing_else(fusion: str) -> None:
    model = build(tiny(fusion=fusion))
    breasts = random_breasts()
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        plain = model(breasts)
        permuted = model(dataclasses.replace(breasts, images=breasts.images[:, :, order]))
    assert plain.slice_logits is not None
    assert max_difference(plain.slice_logits, plain.slice_logits[:, :, :, order]) > 1e-3  # slices do differ
    moved = {"slice_logits": plain.slice_logits[:, :, :, order], "z": order.argsort()[plain.z]}
    assert_same(permuted, dataclasses.replace(plain, **moved))


def test_permuting_views_permutes_the_output() -> None:
    model = build()
    breasts = random_breasts(present=((True, True), (True, False)))
    swapped = Breasts(breasts.images.flip(1), breasts.sizes.flip(1), breasts.present.flip(1))
    with torch.no_grad():
        plain, permuted = model(breasts), model(swapped)
    flipped = {name: getattr(plain, name).flip(2) for name in ("logits", "boxes", "slice_logits", "z", "features")}
    assert_same(permuted, dataclasses.replace(plain, **flipped, present=plain.present.flip(1)))
    torch.testing.assert_close(permuted.breast_logits, plain.breast_logits, atol=1e-5, rtol=1e-5)


def test_a_breast_does_not_depend_on_the_others_in_its_batch() -> None:
    model = build()
    batch = random_breasts(present=((True, True), (False, True)))
    with torch.no_grad():
        together = model(batch)
        alone = model(Breasts(batch.images[1:], batch.sizes[1:], batch.present[1:]))
    torch.testing.assert_close(together.logits[:, 1:], alone.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together.boxes[:, 1:], alone.boxes, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("backbone", ["small", "resnet18", "pvt_v2_b2_li", "efficientnet_lite0"])
def test_padding_a_batch_changes_nothing(backbone: str) -> None:
    """Boxes scaled by the padded size would land half an image away; and GroupNorm must not see the padding either."""
    model = build(tiny(backbone=BACKBONES[backbone], proposal_start="image"))
    breasts = random_breasts(slices=2, height=96, width=64)
    padded = dataclasses.replace(breasts, images=torch.nn.functional.pad(breasts.images, (0, 64, 0, 32)))
    with torch.no_grad():
        assert_same(model(padded), model(breasts))


def test_views_of_different_sizes_in_one_batch_are_as_each_alone() -> None:
    model = build()
    sizes = torch.tensor([[[96, 64], [80, 48]], [[61, 64], [96, 64]]])
    batch = dataclasses.replace(random_breasts(present=((True, True), (True, True))), sizes=sizes)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            together = model(batch)
            for i in range(2):
                alone = model(Breasts(batch.images[i : i + 1], sizes[i : i + 1], batch.present[i : i + 1]))
                torch.testing.assert_close(together.logits[:, i : i + 1], alone.logits, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(together.boxes[:, i : i + 1], alone.boxes, atol=1e-3, rtol=1e-4)


def test_a_fresh_model_leaves_its_proposals_where_they_start() -> None:
    model = Detector(tiny(proposal_start="image")).eval()
    with torch.no_grad():
        boxes = model(random_breasts(height=96, width=64)).boxes
    assert (boxes == torch.tensor([0, 0, 64, 96])).all()


@pytest.mark.parametrize("chunk", [1, 3, 5])
@pytest.mark.parametrize("training", [False, True])
def test_the_chunk_size_changes_nothing(chunk: int, training: bool) -> None:
    breasts = random_breasts(present=((True, True), (True, False)))
    whole = build().train(training)
    chunked = build(tiny(chunk=chunk, recompute=True)).train(training)
    with torch.set_grad_enabled(training):
        a, b = whole(breasts), chunked(breasts)
        assert_same(a, b)
        if training:
            a.logits.sum().backward()
            b.logits.sum().backward()
            for p, q in zip(whole.parameters(), chunked.parameters(), strict=True):
                torch.testing.assert_close(q.grad, p.grad, atol=1e-3, rtol=1e-3)


def test_inference_and_training_build_the_same_pyramid() -> None:
    model = build()
    breasts = random_breasts()
    with torch.no_grad():
        written_in_place = model(breasts)
    assert_same(written_in_place, model(breasts))


@pytest.mark.parametrize(
    "backbone", [dataclasses.replace(TINY.backbone, norm="frozen"), BACKBONES["efficientnet_lite0"]]
)
def test_folded_batchnorms_change_nothing_and_leave_the_model_alone(backbone: BackboneConfig) -> None:
    model = build(tiny(backbone=backbone))
    for module in model.modules():
        if isinstance(module, FrozenBatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2)
            module.weight.uniform_(0.5, 1.5)
            module.bias.uniform_(-0.2, 0.2)
    breasts = random_breasts()
    before = shapes(model)
    with torch.no_grad():
        plain, fast = model(breasts), model.for_inference()(breasts)
        assert torch.equal(model(breasts).logits, plain.logits)
    assert shapes(model) == before
    assert_same(plain, fast)


# ---- views that are not there --------------------------------------------------------------------------------------


def test_a_missing_view_makes_cross_attention_the_identity() -> None:
    model = build()
    without = build()
    for name, parameter in without.named_parameters():
        if ".cross_attn.norm." in name:
            torch.nn.init.zeros_(parameter)
    single = random_breasts(present=((True, False),))
    pair = random_breasts()
    with torch.no_grad():
        torch.testing.assert_close(model(single).logits[:, :, 0], without(single).logits[:, :, 0])
        assert max_difference(model(pair).logits, without(pair).logits) > 1e-3  # and otherwise it is not


def test_a_missing_view_does_not_count_in_the_breast_score() -> None:
    with torch.no_grad():
        detections = build()(random_breasts(present=((True, False), (False, True), (True, True))))
    images, breasts = detections.image_logits[-1].sigmoid(), detections.breast_logits[-1].sigmoid()
    assert images[0, 1] == 0
    assert images[1, 0] == 0
    torch.testing.assert_close(breasts[0], images[0, 0])
    torch.testing.assert_close(breasts[1], images[1, 1])
    torch.testing.assert_close(breasts[2], images[2].mean())


def test_what_a_missing_view_holds_is_never_looked_at() -> None:
    model = build()
    breasts = random_breasts(present=((True, False),))
    spoiled = breasts.images.clone()
    spoiled[:, 1] = torch.nan
    with torch.no_grad():
        assert torch.equal(model(dataclasses.replace(breasts, images=spoiled)).logits, model(breasts).logits)


def test_a_breast_without_any_view_is_refused() -> None:
    with pytest.raises(InputError, match="at least one view"):
        build()(random_breasts(present=((True, True), (False, False))))


@pytest.mark.parametrize(
    ("images", "sizes", "present", "words"),
    [
        ((1, 3, 4, 8, 8), (1, 3, 2), (1, 3), r"Images must be \(B, 2, S, H, W\), CC and MLO, not \(1, 3, 4, 8, 8\)"),
        ((1, 2, 4, 8, 8), (1, 2), (1, 2), r"sizes must be \(1, 2, 2\) .* not \(1, 2\) and \(1, 2\)"),
        ((1, 2, 4, 8, 8), (1, 2, 2), (2, 2), r"present \(1, 2\) of bool, not \(1, 2, 2\) and \(2, 2\)"),
    ],
)
def test_batches_of_the_wrong_shape_are_refused(
    images: tuple[int, ...], sizes: tuple[int, ...], present: tuple[int, ...], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        Breasts(torch.zeros(images), torch.ones(sizes, dtype=torch.long), torch.ones(present, dtype=torch.bool))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": torch.zeros(1, 2, 4, 96, 64, dtype=torch.uint8)}, "from 0 to 1 as float32"),
        ({"images": torch.full((1, 2, 4, 96, 64), 200.0)}, "CC: grey values go from 0 to 1, not 200 to 200"),
        ({"images": torch.full((1, 2, 4, 96, 64), torch.nan)}, "grey values go from 0 to 1"),
        ({"sizes": torch.tensor([[[64, 96], [96, 64]]])}, r"64 x 96 \(height x width\) does not fit"),
        ({"sizes": torch.tensor([[[0, 64], [96, 64]]])}, "does not fit"),
        ({"sizes": torch.tensor([[[96.0, 64], [96, 64]]])}, "whole pixels"),
        ({"images": torch.zeros(0)}, r"Images must be \(B, 2, S, H, W\)"),
    ],
)
def test_batches_that_are_not_what_they_should_be_are_refused(change: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(InputError, match=words):
        dataclasses.replace(random_breasts(), **change)


# ---- every choice --------------------------------------------------------------------------------------------------


def of_the_first_head(model: Detector, part: str) -> tuple[Detections, Any]:
    """What the model says of some breasts, and what a part of its first head gave."""
    given = []
    hook = model.heads[0].get_submodule(part).register_forward_hook(lambda _, __, output: given.append(output))
    with torch.no_grad():
        detections = model(random_breasts())
    hook.remove()
    return detections, given[0]


@pytest.mark.parametrize("fusion", PARAMETER_FREE)
def test_slices_are_fused_as_the_paper_says(fusion: str) -> None:
    """Eq. 6: the average of the slices' features, weighted by w, which is the softmax of how malignant they look."""
    model = build(tiny(fusion=fusion))
    detections, h_s = of_the_first_head(model, "norm3")  # (M, N, S, D)
    head = model.heads[0]
    assert isinstance(head, CascadeHead)
    with torch.no_grad():
        m_s = head.classify(h_s)
    w = m_s.exp() / m_s.exp().sum(dim=2, keepdim=True)
    expected = {
        "weighted": torch.einsum("mns,mnsd->mnd", w, h_s),
        "mean": h_s.sum(dim=2) / 4,
        "max": h_s.sort(dim=2).values[:, :, -1],
    }
    torch.testing.assert_close(detections.features[0, 0], expected[fusion], atol=1e-5, rtol=1e-5)
    assert detections.slice_weights is not None
    torch.testing.assert_close(detections.slice_weights[0, 0], w.transpose(1, 2), atol=1e-5, rtol=1e-5)
    assert max_difference(expected["weighted"], expected["mean"]) > 1e-3  # or it would tell nothing


def test_the_weights_of_slices_are_what_the_query_attends_to() -> None:
    detections, (_, attention) = of_the_first_head(build(tiny(fusion="query")), "fusion.attention")
    w = attention[:, 0].unflatten(0, (2, 8))  # (M * N, queries, keys)
    assert detections.slice_weights is not None
    torch.testing.assert_close(detections.slice_weights[0, 0], w.transpose(1, 2), atol=1e-5, rtol=1e-5)
    assert max_difference(w, torch.full_like(w, 0.25)) > 1e-3


def test_the_weights_of_slices_are_what_timesform_attends_to() -> None:
    detections, (_, log_w, _) = of_the_first_head(build(tiny(fusion="timesform")), "fusion")
    w = log_w.softmax(dim=-1)
    assert detections.slice_weights is not None
    torch.testing.assert_close(detections.slice_weights[0, 0], w.transpose(1, 2), atol=1e-5, rtol=1e-5)
    assert max_difference(w, torch.full_like(w, 0.25)) > 1e-3


def test_timesform_attends_as_torch_does_and_tells_what_each_slice_had_of_it() -> None:
    fusion, f = TimeSform(TINY), torch.rand(2, 8, 49, 4, TINY.channels, requires_grad=True)
    torch.nn.init.normal_(fusion.norm.weight)
    torch.nn.init.normal_(fusion.attention.in_proj_bias)
    fused, m_s = fusion.fuse_rois(f)
    tokens = (f + fusion.position[:, None]).reshape(16, 49 * 4, -1)
    query = f.mean(dim=3) + fusion.position
    attended, attention = fusion.attention(query.flatten(0, 1), tokens, tokens)
    expected = f.mean(dim=3) + fusion.norm(attended).reshape(query.shape)
    torch.testing.assert_close(fused[:, :, :, 0], expected, atol=1e-5, rtol=1e-5)
    w = attention.unflatten(2, (49, 4)).sum(dim=2).mean(dim=1).reshape(2, 8, 4)
    torch.testing.assert_close(m_s.softmax(dim=-1), w, atol=1e-5, rtol=1e-5)
    assert max_difference(w, torch.full_like(w, 0.25)) > 1e-3
    pull = torch.randn_like(w)
    learned = [f, fusion.position, fusion.attention.in_proj_weight]
    ours = torch.autograd.grad(fused.square().sum() + (m_s.softmax(dim=-1) * pull).sum(), learned)
    theirs = torch.autograd.grad(expected.square().sum() + (w * pull).sum(), learned)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fusion_tells_score_box_and_slice(fusion: str) -> None:
    model = build(tiny(fusion=fusion))
    with torch.no_grad():
        detections = model(random_breasts())
    assert detections.logits.shape == (3, 1, 2, 8)
    assert detections.boxes.shape == (3, 1, 2, 8, 4)
    assert detections.features.shape == (3, 1, 2, 8, 32)
    assert detections.slices.shape == (3, 1, 2, 8)
    assert detections.slices.min() >= 0
    assert detections.slices.max() <= 3
    if fusion == "mlp":
        assert detections.slice_weights is None
    else:
        assert detections.slice_weights is not None
        assert detections.slice_weights.shape == (3, 1, 2, 4, 8)
        torch.testing.assert_close(detections.slice_weights.sum(dim=3), torch.ones(3, 1, 2, 8))


def test_mlp_fusion_takes_fewer_slices_but_refuses_more() -> None:
    model = build(tiny(fusion="mlp", slices=4))
    with torch.no_grad():
        assert model(random_breasts(slices=2)).slices.max() <= 1
        assert model(random_breasts(slices=1)).slices.max() == 0
    with pytest.raises(InputError, match="room for 4 slices and was given 5"):
        model(random_breasts(slices=5))


def test_a_fresh_timesform_is_mean_pooling_of_the_roi_features() -> None:
    """So that FFDM weights still mean something when it starts to train."""
    torch.manual_seed(0)
    fresh = Detector(tiny(fusion="timesform")).eval()
    plain = Detector(TINY).eval()
    plain.load_state_dict({n: t for n, t in fresh.state_dict().items() if ".fusion." not in n})
    one = random_breasts(slices=1)
    with torch.no_grad():
        torch.testing.assert_close(fresh(one).logits, plain(one).logits, atol=1e-5, rtol=1e-5)
        several = torch.rand(2, 8, 49, 4, TINY.channels)  # one slice is its own mean: only several tell
        fused, _ = TimeSform(TINY).fuse_rois(several)
    torch.testing.assert_close(fused, several.mean(dim=3, keepdim=True))


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_takes_any_image_size(name: str) -> None:
    model = Detector(tiny(backbone=BACKBONES[name])).eval()
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())
    with torch.no_grad():
        detections = model(random_breasts(slices=2, height=101, width=67))
    assert detections.logits.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_keeps_boxes_and_scores_in_float32(device: str) -> None:
    model, breasts = build().to(device), random_breasts().to(device)
    with torch.no_grad():
        exact = model(breasts)
        with torch.autocast(device, torch.bfloat16):
            rough = model(breasts)
    assert rough.boxes.dtype == rough.logits.dtype == torch.float32
    torch.testing.assert_close(rough.logits, exact.logits, atol=0.1, rtol=0.1)
    torch.testing.assert_close(rough.boxes, exact.boxes, atol=2, rtol=0.05)
    # A fresh model leaves its boxes alone, so nothing but arithmetic in bfloat16 could move them.
    fresh = Detector(TINY).eval().to(device)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        boxes = fresh(random_breasts(height=101, width=67).to(device)).boxes
    start = from_cxcywh(fresh.proposal_boxes.detach()) * torch.tensor([67, 101, 67, 101], device=device)
    assert max_difference(start, start.bfloat16().float()) > 0.01
    torch.testing.assert_close(boxes, start.expand_as(boxes), atol=1e-4, rtol=0)
