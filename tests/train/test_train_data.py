"""Which breasts a training sees, in which order, and what it knows of them."""

import dataclasses
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.blobs import SLICES, write_blobs

from mm3d.data.inputs import prepared_breasts, training_histogram
from mm3d.data.prepare.prepared import PreparedBreast
from mm3d.data.records import Breast
from mm3d.model.boxes import from_cxcywh, iou_and_giou
from mm3d.model.config import PRESETS
from mm3d.model.detector import Detector
from mm3d.shared.errors import InputError
from mm3d.train.cohorts import choose
from mm3d.train.config import AugmentConfig, CohortConfig, DataConfig, LoopConfig, TrainConfig
from mm3d.train.data import (
    Batch,
    Draw,
    TrainingBreast,
    epoch_batches,
    epoch_order,
    load_batch,
    plan_batches,
    read_batches,
)
from mm3d.train.dense import DenseLearner
from mm3d.train.start_boxes import fit_start_boxes

STILL = AugmentConfig(horizontal_flip=0.0, vertical_flip=0.0)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> list[TrainingBreast]:
    """60 breasts, 20 of them malignant, of which 10 have boxes."""
    folder = write_blobs(tmp_path_factory.mktemp("data") / "pool", breasts=60, malignant=3, annotated=10)
    return [TrainingBreast(breast, "volume") for breast in prepared_breasts(folder, None, "DBT")]


def regime(**changes: Any) -> DataConfig:
    return DataConfig(train=(CohortConfig(Path("x")),), **changes)


def names(breasts: list[TrainingBreast]) -> set[str]:
    return {breast.name for breast in breasts}


def test_fractions_are_nested_and_keep_the_mix(pool: list[TrainingBreast]) -> None:
    tenth, fifth, all_ = (choose(pool, regime(fraction=share)) for share in (0.1, 0.2, 1.0))
    assert names(tenth) < names(fifth) < names(all_)
    for share, breasts in ((0.1, tenth), (0.2, fifth), (1.0, all_)):
        kinds = Counter((b.malignant, b.prepared.annotated if b.malignant else True) for b in breasts)
        assert kinds == {(True, True): 10 * share, (True, False): 10 * share, (False, True): 40 * share}
    assert names(choose(pool, regime(fraction=0.1, seed=1))) != names(tenth)


def test_annotated_fractions_drop_boxes_and_keep_images(pool: list[TrainingBreast]) -> None:
    few, more = (choose(pool, regime(annotated_fraction=share)) for share in (0.2, 0.5))

    def boxed(breasts: list[TrainingBreast]) -> set[str]:
        return names([b for b in breasts if b.malignant and b.boxed])

    assert names(few) == names(more) == names(pool)
    assert len(boxed(few)) == 2
    assert len(boxed(more)) == 5
    assert boxed(few) < boxed(more)
    assert boxed(choose(pool, regime(annotated_fraction=0.0))) == set()


def test_starred_methods_leave_out_malignant_breasts_without_boxes(pool: list[TrainingBreast]) -> None:
    kept = choose(pool, regime(annotated_fraction=0.5, drop_unannotated_malignant=True))
    assert Counter(breast.malignant for breast in kept) == {True: 5, False: 40}


def test_breasts_without_boxes_train_by_their_label(pool: list[TrainingBreast]) -> None:
    chosen = choose(pool, regime(annotated_fraction=0.5))
    for index, breast in enumerate(chosen):
        targets = load_batch(chosen, [Draw(0, 0, 0, index)], STILL, 0).targets
        assert targets.malignant.item() == breast.malignant
        assert targets.annotated.all().item() == (not breast.malignant or breast.boxed)
        assert len(targets.boxes) == (2 if breast.malignant and breast.boxed else 0)


@given(
    st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda kinds: 0 < sum(kinds) < len(kinds)),
    st.integers(0, 99),
)
def test_balanced_order_takes_turns_and_uses_all_of_the_scarcer_kind(malignant: list[bool], epoch: int) -> None:
    order = epoch_order(malignant, "balanced", 7, epoch)
    assert order == epoch_order(malignant, "balanced", 7, epoch)
    assert [malignant[index] for index in order] == [True, False] * (len(order) // 2)
    assert len(order) == len(malignant) - len(malignant) % 2
    for kind in (True, False):
        counts = Counter(index for index in order if malignant[index] == kind)
        of_kind = sum(k == kind for k in malignant)
        assert max(counts.values()) - (min(counts.values()) if len(counts) == of_kind else 0) <= 1


def test_natural_order_has_every_breast_once_and_epochs_differ() -> None:
    first, second = (epoch_order([True] * 3 + [False] * 9, "natural", 0, epoch) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


@given(st.lists(st.sampled_from([1, 4, 8]), min_size=1, max_size=30), st.integers(1, 5))
def test_batches_have_one_slice_count_and_leave_nobody_out(slices: list[int], size: int) -> None:
    batches = epoch_batches(range(len(slices)), slices, size)
    assert {index for batch in batches for index in batch} == set(range(len(slices)))
    for batch in batches:
        assert len(batch) == size
        assert len({slices[index] for index in batch}) == 1


def test_ranks_share_a_batch(pool: list[TrainingBreast]) -> None:
    """Augmented by its place in the whole batch: which rank has a breast makes no difference to it."""
    chosen = choose(pool, regime())
    augment = AugmentConfig(shift=0.1, rotate=10.0, scale=0.1, gamma=0.3, noise=0.05)
    config = TrainConfig(regime(), augment=augment, loop=LoopConfig(batch=4))
    plans = [plan_batches(chosen, config), plan_batches(chosen, config, 0, 2), plan_batches(chosen, config, 1, 2)]
    for draws in islice(zip(*plans, strict=True), 3):
        whole, *parts = (load_batch(chosen, own, augment, 0) for own in draws)
        for rank, part in enumerate(parts):
            assert part.names == whole.names[rank::2]
            torch.testing.assert_close(part.breasts.images, whole.breasts.images[rank::2], rtol=0, atol=0)
        assert sum(len(part.targets.boxes) for part in parts) == len(whole.targets.boxes)


def test_workers_make_the_planned_batches(pool: list[TrainingBreast]) -> None:
    """From any batch on, as a resumed run reads them, and whoever reads them."""
    chosen = choose(pool, regime())
    for workers in (1, 3):
        config = TrainConfig(regime(workers=workers), loop=LoopConfig(batch=4, seed=3))
        batches = read_batches(chosen, config, 2)
        for draws in islice(plan_batches(chosen, config), 2, 20):
            batch, wanted = next(batches), load_batch(chosen, draws, config.augment, 3)
            assert (batch.epoch, batch.names) == (draws[0].epoch, wanted.names)
            assert all(torch.equal(tensor, wanted.tensors()[name]) for name, tensor in batch.tensors().items())
        batches.close()


def at_box(batch: Batch, number: int) -> torch.Tensor:
    """(S,) how bright each slice is at the middle of a finding's box."""
    breast, view = batch.targets.places[number].tolist()
    x1, y1, x2, y2 = batch.targets.boxes[number].tolist()
    cx, cy = round((x1 + x2) / 2), round((y1 + y2) / 2)
    return batch.breasts.images[breast, view, :, cy - 2 : cy + 2, cx - 2 : cx + 2].mean(dim=(1, 2))


def test_volumes_carry_the_slice_of_their_findings(pool: list[TrainingBreast]) -> None:
    chosen = [breast for breast in pool if breast.malignant and breast.prepared.annotated]
    batch = load_batch(chosen, [Draw(0, 0, place, place) for place in range(len(chosen))], STILL, 0)
    assert batch.targets.places.tolist() == [[breast, view] for breast in range(10) for view in range(2)]
    assert set(batch.targets.slices.tolist()) == set(range(SLICES))
    for number, z in enumerate(batch.targets.slices):
        assert int(at_box(batch, number).argmax()) == int(z)


def test_slices_are_drawn_where_the_finding_is(pool: list[TrainingBreast]) -> None:
    """Buda's sampling: the blob is on every slice that is drawn, and its box with it."""
    chosen = [dataclasses.replace(b, input="slices") for b in pool if b.malignant and b.prepared.annotated]
    seen = set()
    config = TrainConfig(regime(sampling="natural"), loop=LoopConfig(batch=2))
    for draws in islice(plan_batches(chosen, config), 30):
        batch = load_batch(chosen, draws, STILL, 0)
        assert batch.breasts.images.shape[2] == 1
        assert len(batch.targets.boxes) == 4
        assert min(float(at_box(batch, number)) for number in range(4)) > 0.35  # without the blob it is 0.2
        seen |= {float(image.max()) for image in batch.breasts.images.flatten(0, 1)}
    assert len(seen) > 2 * len(chosen)  # not always the same slice
    hidden = [dataclasses.replace(b, boxed=False) for b in chosen]
    batch = load_batch(hidden, draws, STILL, 0)
    assert not batch.targets.annotated.any()
    assert batch.targets.malignant.all()


def test_benign_boxes_are_no_targets_of_the_detector_but_the_dense_stage_knows_them(pool: list[TrainingBreast]) -> None:
    cancer = next(breast for breast in pool if breast.malignant and breast.prepared.annotated)
    views = []
    for prepared in cancer.prepared.views:
        annotations = tuple(dataclasses.replace(a, malignant=False) for a in prepared.view.annotations or ())
        views.append(dataclasses.replace(prepared, view=dataclasses.replace(prepared.view, annotations=annotations)))
    record = dataclasses.replace(cancer.prepared.breast, label="benign", views=tuple(view.view for view in views))
    benign = TrainingBreast(PreparedBreast(record, tuple(views)), "volume")
    before, batch = (load_batch([breast], [Draw(0, 0, 0, 0)], STILL, 0) for breast in (cancer, benign))
    assert len(batch.targets.boxes) == 0
    assert torch.equal(batch.targets.benign_boxes, before.targets.boxes)
    assert torch.equal(batch.targets.benign_places, before.targets.places)
    torch.manual_seed(0)
    learner = DenseLearner(Detector(PRESETS["tiny"]), levels=1, benign=True, autocast=False)
    for _ in range(40):  # only the map's own 1 x 1 convolution and its bias
        learner.zero_grad()
        learner(batch)[0].backward()
        for parameter in learner.map.parameters():
            assert parameter.grad is not None
            parameter.data -= 0.002 * parameter.grad
    image = batch.breasts.images[0, 0]
    cancers, lesions = learner.maps(image)[0][0]
    assert lesions.max() > cancers.max()


def test_fitted_proposals_start_where_lesions_are(pool: list[TrainingBreast]) -> None:
    boxes = fit_start_boxes(pool, 8, STILL)
    assert boxes.shape == (8, 4)
    true = torch.cat([load_batch([b], [Draw(0, 0, 0, 0)], STILL, 0).targets.boxes for b in pool if b.malignant])
    image = pool[0].prepared.views[0].file.geometry
    scale = torch.tensor([image.width, image.height] * 2)
    iou = iou_and_giou((from_cxcywh(boxes) * scale)[:, None], true[None])[0].amax(dim=0)
    grid = Detector(dataclasses.replace(PRESETS["tiny"], proposals=8)).proposal_boxes.data
    of_grid = iou_and_giou((from_cxcywh(grid) * scale)[:, None], true[None])[0].amax(dim=0)
    assert float(iou.median()) > float(of_grid.median())
    assert torch.equal(boxes, fit_start_boxes(pool, 8, STILL))
    with pytest.raises(InputError, match="too few for 500 proposals"):
        fit_start_boxes(pool, 500, STILL)


def test_views_with_different_slice_counts(tmp_path: Path) -> None:
    """A thin view has fewer slices; the breast still goes through the model, and its slice is the right one."""
    deep = write_blobs(tmp_path / "deep", breasts=2)
    thin = write_blobs(tmp_path / "thin", breasts=2, slices=3)
    (first, *_), (other, *_) = (prepared_breasts(folder, None, "DBT") for folder in (deep, thin))
    mixed = dataclasses.replace(first, views=(first.views[0], other.views[1]))
    breasts = [TrainingBreast(mixed, "volume")]
    batch = load_batch(breasts, [Draw(0, 0, 0, 0)], STILL, 0)
    assert batch.breasts.images.shape[2] == SLICES
    assert batch.targets.places.tolist() == [[0, 0], [0, 1]]
    for (_, view), z in zip(batch.targets.places.tolist(), batch.targets.slices.tolist(), strict=True):
        box = batch.targets.boxes[view].round().int().tolist()
        around = batch.breasts.images[0, view, :, box[1] : box[3], box[0] : box[2]].mean(dim=(1, 2))
        assert around[z] == around.max()


def without_label(breast: Breast) -> Breast:
    views = tuple(dataclasses.replace(view, annotations=None) for view in breast.views)
    return dataclasses.replace(breast, label=None, views=views)


def test_only_what_is_labelled_can_be_sampled(pool: list[TrainingBreast]) -> None:
    malignant = [breast for breast in pool if breast.malignant]
    with pytest.raises(InputError, match=r"All training breasts are malignant.*data.sampling natural"):
        choose(malignant, regime())
    assert len(choose(malignant, regime(sampling="natural"))) == len(malignant)
    first = pool[0].prepared
    unlabelled = [TrainingBreast(dataclasses.replace(first, breast=without_label(first.breast)), "volume")]
    assert choose([*unlabelled, *pool[1:]], regime()) == choose(pool[1:], regime())
    with pytest.raises(InputError, match=r"fraction = 1\.5 must be from 0 to 1"):
        regime(fraction=1.5)


def test_mammograms_without_splits_match_volumes_of_a_split(tmp_path: Path) -> None:
    """Mammograms are often of another dataset than the volumes, and only one of the two has splits."""
    whole = write_blobs(tmp_path / "whole", breasts=4)
    assert training_histogram(whole, "train") == training_histogram(whole, None)
    parts = write_blobs(tmp_path / "parts", breasts=4, split="validation")
    with pytest.raises(InputError, match="no breast of the split 'train'; known: validation"):
        training_histogram(parts, "train")
