"""The loss: a wrong switch here trains a detector that finds benign findings, or never learns from unannotated ones."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.examples import build, random_breasts, targets, tiny
from torch.multiprocessing.spawn import spawn

from mm3d.model.detector import Breasts, Detections
from mm3d.model.fusion import FUSIONS
from mm3d.model.losses import CostWeights, Losses, LossWeights, Targets, detection_losses, match
from mm3d.shared.errors import InputError

PRESENT = ((True, True), (True, False), (True, True))
BOX = (10.0, 20.0, 30.0, 50.0)
ALL = [[True, True]] * 3
NOTHING_ANNOTATED = targets([True, True, True], [[False, False]] * 3, [])
ALL_NEGATIVE = targets([False, False, False], ALL, [])
MIXED = targets(
    [True, True, False],
    [[True, True], [False, False], [True, True]],
    [(0, 0, BOX, 2), (0, 0, (30.0, 30.0, 60.0, 90.0), -1), (0, 1, BOX, 3)],
)
BATCHES = {"nothing annotated": NOTHING_ANNOTATED, "all negative": ALL_NEGATIVE, "mixed": MIXED}


def hand_made(logits: list[float], boxes: list[tuple[float, ...]], slice_logits: list[list[float]]) -> Detections:
    """One head, one breast, both views saying the same. slice_logits: a list of slices for every proposal."""
    N, S = len(logits), len(slice_logits[0])
    return Detections(
        logits=torch.tensor(logits).expand(1, 1, 2, N),
        boxes=torch.tensor(boxes).expand(1, 1, 2, N, 4),
        slice_logits=torch.tensor(slice_logits).T.expand(1, 1, 2, S, N),
        z=torch.tensor(slice_logits).argmax(dim=1).expand(1, 1, 2, N),
        features=torch.zeros(1, 1, 2, N, 4),
        present=torch.ones(1, 2, dtype=torch.bool),
        slice_count=S,
    )


SIZES = torch.tensor([100, 50]).expand(1, 2, 2)
FAR = (0.0, 0.0, 5.0, 5.0)


def test_the_slice_term_is_minus_log_w_of_the_matched_proposal() -> None:
    detections = hand_made([3.0, -3.0], [BOX, FAR], [[0.0, 2.0, 1.0], [9.0, 0.0, 0.0]])
    w = torch.tensor([0.0, 2.0, 1.0]).softmax(0)
    losses = detection_losses(detections, targets([True], [[True, True]], [(0, 0, BOX, 1)]), SIZES)
    assert losses.terms["slice"].tolist() == pytest.approx([-math.log(w[1])])
    assert losses.terms["l1"].item() == pytest.approx(0)
    assert losses.terms["giou"].item() == pytest.approx(0)


def test_a_finding_without_an_annotated_slice_trains_its_box_only() -> None:
    detections = hand_made([3.0, -3.0], [FAR, FAR], [[0.0, 2.0, 1.0]] * 2)
    losses = detection_losses(detections, targets([True], [[True, True]], [(0, 0, BOX, -1)]), SIZES)
    assert losses.terms["slice"].item() == 0
    assert losses.terms["giou"].item() > 0


def test_the_slice_term_stays_finite_when_w_underflows() -> None:
    detections = hand_made([3.0], [BOX], [[0.0, 500.0]])
    losses = detection_losses(detections, targets([True], [[True, True]], [(0, 0, BOX, 0)]), SIZES)
    assert losses.terms["slice"].item() == pytest.approx(500)


def test_unannotated_views_have_no_finding_terms_but_do_have_labels() -> None:
    detections = hand_made([3.0, -3.0], [BOX, FAR], [[0.0, 0.0]] * 2)
    losses = detection_losses(detections, targets([True], [[False, False]], []), SIZES)
    for name in ("focal", "l1", "giou", "slice"):
        assert losses.terms[name].item() == 0
    score = 1 - (1 - torch.tensor([3.0, -3.0]).sigmoid()).prod()
    assert losses.terms["image"].item() == pytest.approx(-math.log(score), rel=1e-4)
    assert losses.terms["breast"].item() == pytest.approx(-math.log(score), rel=1e-4)


def test_negative_and_benign_breasts_push_every_proposal_down() -> None:
    detections = hand_made([3.0, -3.0], [BOX, FAR], [[0.0, 0.0]] * 2)
    detections = dataclasses.replace(detections, logits=detections.logits.clone().requires_grad_())
    losses = detection_losses(detections, targets([False], [[True, True]], []), SIZES)
    for name in ("focal", "image", "breast"):  # each by itself: one that is lost would hide behind the others
        (gradient,) = torch.autograd.grad(losses.terms[name].sum(), detections.logits, retain_graph=True)
        assert (gradient > 0).all(), name


def test_image_labels_follow_the_annotation_and_otherwise_the_breast() -> None:
    one_view_only = targets([True, True, False], [[True, True], [False, True], [True, True]], [(0, 1, BOX, 0)])
    assert one_view_only.image_labels.tolist() == [[False, True], [True, False], [False, False]]


def test_finding_terms_do_not_grow_with_the_number_of_findings() -> None:
    detections = hand_made([0.0] * 4, [FAR] * 4, [[0.0, 0.0]] * 4)
    one = detection_losses(detections, targets([True], [[True, True]], [(0, 0, BOX, 0)]), SIZES)
    two = detection_losses(detections, targets([True], [[True, True]], [(0, 0, BOX, 0), (0, 1, BOX, 0)]), SIZES)
    for name in ("l1", "giou", "slice"):
        assert two.terms[name].item() == pytest.approx(one.terms[name].item())


def test_the_total_is_the_weighted_sum_of_the_named_terms() -> None:
    model, breasts = build(), random_breasts(present=PRESENT)
    weights = LossWeights(CostWeights(focal=1.5, l1=4.0, giou=3.0), slice=0.5, image=0.25, breast=2.0)
    losses = detection_losses(model(breasts), MIXED, breasts.sizes, weights)
    factors = {"focal": 1.5, "l1": 4.0, "giou": 3.0, "slice": 0.5, "image": 0.25, "breast": 2.0}
    assert set(losses.terms) == set(factors)
    assert all(term.shape == (3,) for term in losses.terms.values())
    expected = sum(factors[name] * term.sum() for name, term in losses.terms.items())
    torch.testing.assert_close(losses.total, expected)


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("batch", BATCHES)
def test_every_batch_trains_every_parameter_without_nan(fusion: str, batch: str) -> None:
    """A parameter without a gradient stops data-parallel training; a NaN stops any."""
    model, breasts = build(tiny(fusion=fusion)).train(), random_breasts(present=PRESENT)
    losses = detection_losses(model(breasts), BATCHES[batch], breasts.sizes)
    losses.total.backward()
    assert losses.total.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("fusion", FUSIONS)
def test_gradients_reach_every_parameter(fusion: str) -> None:
    model, breasts = build(tiny(fusion=fusion, canonical_box=28.0)).train(), random_breasts(present=PRESENT)
    with torch.no_grad():  # from 4 to 78 pixels, so that every level of the pyramid is pooled from
        model.proposal_boxes[:, 2:] = torch.linspace(0.05, 1, 8)[:, None]
    detection_losses(model(breasts), MIXED, breasts.sizes).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0, name


def test_batches_of_single_views_still_have_a_path_to_cross_attention() -> None:
    model, breasts = build().train(), random_breasts(present=((True, False),))
    detection_losses(model(breasts), targets([True], [[False, False]], []), breasts.sizes).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_bfloat16_training_step_is_finite() -> None:
    model, breasts = build().train(), random_breasts(present=PRESENT)
    with torch.autocast("cpu", torch.bfloat16):
        losses = detection_losses(model(breasts), MIXED, breasts.sizes)
    losses.total.backward()
    assert losses.total.dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_more_findings_than_proposals_match_what_they_can() -> None:
    head, proposal, finding = match(torch.rand(2, 2, 5))
    assert head.tolist() == [0, 0, 1, 1]
    assert sorted(proposal[:2].tolist()) == [0, 1]
    assert len(set(finding[:2].tolist())) == 2


def test_several_proposals_answer_for_an_annotation_and_each_for_one_only() -> None:
    cost = torch.rand(3, 9, 2, generator=torch.Generator().manual_seed(0))
    head, proposal, annotation = match(cost, matches=4)
    for number in range(3):
        chosen = proposal[head == number]
        assert len(set(chosen.tolist())) == 8
        assert annotation[head == number].bincount().tolist() == [4, 4]
    assert len(match(cost[:, :5], matches=4)[0]) == 3 * 4  # 5 proposals give each of 2 annotations two
    one = [index.tolist() for index in match(cost)]
    assert [index.tolist() for index in match(cost, matches=1)] == one


def test_diverged_boxes_give_a_nan_loss_to_report_and_not_a_crash() -> None:
    detections = hand_made([3.0, -3.0], [(math.nan,) * 4] * 2, [[0.0, 0.0]] * 2)
    losses = detection_losses(detections, targets([True], [[True, True]], [(0, 0, BOX, 0)]), SIZES)
    assert losses.total.isnan()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (targets([True] * 3, ALL, [(1, 1, BOX, 0)]), "absent or not annotated"),
        (targets([True] * 3, [[False, True]] * 3, [(0, 0, BOX, 0)]), "absent or not annotated"),
        (targets([True] * 3, ALL, [(0, 0, BOX, 4)]), "beyond its last, 3"),
    ],
)
def test_targets_that_contradict_the_batch_are_refused(wrong: Targets, message: str) -> None:
    model, breasts = build(), random_breasts(present=PRESENT)
    with pytest.raises(InputError, match=message):
        detection_losses(model(breasts), wrong, breasts.sizes)


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        ((0, 0, (30.0, 20.0, 10.0, 50.0), 0), "box without area"),
        ((0, 0, (math.nan, 20.0, 10.0, 50.0), 0), "box without area"),
        ((0, 0, BOX, -5), "-1 means not annotated"),
        ((1, 0, BOX, 0), "not malignant"),
        ((7, 0, BOX, 0), "the batch has 2 breasts"),
    ],
)
def test_findings_that_cannot_be_are_refused(finding: tuple[int, int, tuple[float, ...], int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        targets([True, False], [[True, True]] * 2, [finding])


RANKS = ((True, True), (True, False))  # the second rank has a view less than the first


def one_rank(rank: int, folder: str) -> None:
    """Breast 0 (with two findings) on rank 0 and breast 1 (negative) on rank 1; leaves the gradients in a file."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model, breasts = build().train(), random_breasts(present=RANKS)
    mine = Breasts(*(getattr(breasts, f.name)[rank : rank + 1] for f in dataclasses.fields(Breasts)))
    loss_of(rank, model(mine), mine).total.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    dist.all_reduce(gradient)
    if rank == 0:
        torch.save(gradient / 2, Path(folder) / "gradient.pt")
    dist.destroy_process_group()


def loss_of(rank: int | None, detections: Detections, breasts: Breasts) -> Losses:
    both = [(0, 0, BOX, 2), (0, 1, BOX, 3)]
    if rank is None:
        return detection_losses(detections, targets([True, False], [[True, True]] * 2, both), breasts.sizes)
    return detection_losses(detections, targets([rank == 0], [[True, True]], both if rank == 0 else []), breasts.sizes)


def test_two_ranks_train_like_one_with_the_whole_batch(tmp_path: Path) -> None:
    spawn(one_rank, args=(str(tmp_path),), nprocs=2)
    model, breasts = build().train(), random_breasts(present=RANKS)
    loss_of(None, model(breasts), breasts).total.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    gradient = torch.load(tmp_path / "gradient.pt", weights_only=True)
    torch.testing.assert_close(gradient, expected, atol=1e-3, rtol=1e-3)
