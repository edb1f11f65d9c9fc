"""The breasts of a training: which are used, in which order, and how batches are made of them.

Everything follows from the configuration and from (seed, epoch, batch, place). So a run can be resumed anywhere, and
neither the number of loader threads nor the number of devices changes what is drawn.
"""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mm3d.data.inputs import (
    Histogram,
    Image,
    InputName,
    draw_slice,
    find_repeated_slice,
    grey,
    read_image,
    repeat_slices,
    stack,
)
from mm3d.data.prepare.prepared import PreparedBreast, PreparedView
from mm3d.model.detector import Breasts
from mm3d.model.losses import Targets
from mm3d.shared.errors import InputError
from mm3d.train.augment import Change, change_boxes, change_image, clip_boxes, draw_changes
from mm3d.train.config import AugmentConfig, DataConfig, TrainConfig

ORDER, SAMPLE = range(2)  # order and samples draw from random generators of their own


@dataclass(frozen=True)
class TrainingBreast:
    """A breast, and what a training may know and see of it."""

    prepared: PreparedBreast
    input: InputName
    histogram: Histogram | None = None  # for input hm
    boxed: bool = True  # whether the training may use its boxes

    @property
    def name(self) -> str:
        return self.prepared.breast.name

    @property
    def malignant(self) -> bool:
        return self.prepared.malignant

    @property
    def slice_count(self) -> int:
        """S of its images."""
        if self.input != "volume":
            return 1
        return max(view.file.geometry.slices for view in self.prepared.views)


def choose(pool: Sequence[TrainingBreast], config: DataConfig) -> list[TrainingBreast]:
    """The breasts of a regime: `fraction`, then `annotated_fraction`, then `drop_unannotated_malignant`."""
    labelled = [breast for breast in pool if breast.prepared.breast.label is not None]
    kept = _take_share(labelled, _stratum, config.fraction, f"{config.seed} breasts")
    with_boxes = [breast for breast in kept if breast.malignant and breast.prepared.annotated]
    boxed = {id(b) for b in _take_share(with_boxes, lambda _: "", config.annotated_fraction, f"{config.seed} boxes")}
    chosen = [replace(breast, boxed=id(breast) in boxed) if breast.malignant else breast for breast in kept]
    if config.drop_unannotated_malignant:
        chosen = [breast for breast in chosen if not breast.malignant or breast.boxed]
    malignant = sum(breast.malignant for breast in chosen)
    if not malignant:
        raise InputError(
            "There is no malignant breast to train on: the cohorts of data.train have none with a label, or the regime "
            "(fraction, drop_unannotated_malignant) left none; give a cohort that has some."
        )
    if config.sampling == "balanced" and malignant == len(chosen):
        raise InputError(
            "All training breasts are malignant, so nothing can be balanced; add others, or set data.sampling natural."
        )
    return chosen


def _stratum(breast: TrainingBreast) -> str:
    """Fractions keep the mix of inputs, of labels, and of annotated and other malignant breasts."""
    label = breast.prepared.breast.label
    return f"{breast.input} {label} {breast.prepared.annotated if label == 'malignant' else ''}"


def _take_share(
    breasts: list[TrainingBreast], group: Callable[[TrainingBreast], str], share: float, salt: str
) -> list[TrainingBreast]:
    """The first breasts of each group, in the order of hashes of their names: a larger share contains a smaller one.
    Each group keeps at least one breast, unless the share is 0."""
    groups: dict[str, list[TrainingBreast]] = {}
    for breast in breasts:
        groups.setdefault(group(breast), []).append(breast)
    kept = set()
    for members in groups.values():
        ranked = sorted(members, key=lambda breast: hashlib.sha256(f"{salt} {breast.name}".encode()).digest())
        count = max(round(share * len(members)), 1) if share > 0 else 0
        kept |= {id(breast) for breast in ranked[:count]}
    return [breast for breast in breasts if id(breast) in kept]


def epoch_order(
    malignant: Sequence[bool], sampling: Literal["balanced", "natural"], seed: int, epoch: int
) -> list[int]:
    """Which breast comes when in an epoch. An epoch has as many draws as there are breasts.

    balanced: malignant and other breasts take turns, each kind in a shuffled order. The kind with fewer breasts starts
    over in another order when all of them were drawn.
    """
    random = np.random.default_rng([seed, epoch, ORDER])
    if sampling == "natural":
        return random.permutation(len(malignant)).tolist()

    def cycle(kind: bool) -> Iterator[int]:
        members = np.flatnonzero(np.asarray(malignant) == kind)
        while True:
            yield from random.permutation(members).tolist()

    draws = len(malignant) - len(malignant) % 2 or 2
    # One kind is drawn after the other, because both draw from the same generator.
    kinds = [list(itertools.islice(cycle(kind), draws // 2)) for kind in (True, False)]
    return [index for pair in zip(*kinds, strict=True) for index in pair]


def epoch_batches(order: Sequence[int], slice_counts: Sequence[int], size: int) -> list[list[int]]:
    """Batches in this order, each of one slice count. At the end of an epoch, a batch that is not full is filled up
    with the first breasts of the same slice count, so that no breast is left out."""
    waiting: dict[int, list[int]] = {}
    first: dict[int, list[int]] = {}
    batches = []
    for index in order:
        group = waiting.setdefault(slice_counts[index], [])
        first.setdefault(slice_counts[index], []).append(index)
        group.append(index)
        if len(group) == size:
            batches.append(list(group))
            group.clear()
    for count, group in waiting.items():
        if group:
            batches.append(list(itertools.islice(itertools.chain(group, itertools.cycle(first[count])), size)))
    return batches


class Draw(NamedTuple):
    """One breast of one batch. Its augmentation follows from (epoch, batch, place)."""

    epoch: int
    batch: int  # number of the batch in its epoch
    place: int  # in the batch
    breast: int  # number of the breast


def plan_batches(
    breasts: Sequence[TrainingBreast], config: TrainConfig, rank: int = 0, ranks: int = 1
) -> Iterator[list[Draw]]:
    """The batches of all epochs, without end. With several ranks, each takes every `ranks`-th breast of a batch."""
    malignant, slice_counts = [breast.malignant for breast in breasts], [breast.slice_count for breast in breasts]
    for epoch in itertools.count():
        order = epoch_order(malignant, config.data.sampling, config.loop.seed, epoch)
        for number, members in enumerate(epoch_batches(order, slice_counts, config.loop.batch)):
            yield [Draw(epoch, number, place, members[place]) for place in range(rank, len(members), ranks)]


@dataclass(frozen=True)
class Batch:
    """Some breasts with all that is known of them."""

    epoch: int
    names: tuple[str, ...]
    breasts: Breasts
    targets: Targets

    def to(self, device: torch.device) -> "Batch":
        if self.breasts.images.device == device:
            return self  # a copy would be checked again
        return replace(self, breasts=self.breasts.to(device), targets=self.targets.to(device))

    def tensors(self) -> dict[str, Tensor]:
        return {**vars(self.breasts), **vars(self.targets)}


def read_batches(
    breasts: Sequence[TrainingBreast], config: TrainConfig, first: int = 0, rank: int = 0, ranks: int = 1
) -> Generator[Batch, None, None]:
    """The batches of a training from number `first` on. Threads make them ahead of time: reading files and arithmetic
    release Python's lock, so the training goes on meanwhile."""
    plan = itertools.islice(plan_batches(breasts, config, rank, ranks), first, None)
    workers = config.data.workers
    # Each of them computes with one thread: torch's own threads would take the training's cores.
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def submit() -> Future[Batch]:
        return pool.submit(load_batch, breasts, next(plan), config.augment, config.loop.seed)

    ahead = deque(submit() for _ in range(workers + 2))
    try:
        while True:
            yield ahead.popleft().result()
            ahead.append(submit())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def load_batch(breasts: Sequence[TrainingBreast], draws: list[Draw], augment: AugmentConfig, seed: int) -> Batch:
    """Read and augment the breasts of some draws."""
    drawn, samples = [breasts[draw.breast] for draw in draws], []
    for breast, draw in zip(drawn, draws, strict=True):
        random = np.random.default_rng([seed, draw.epoch, draw.batch, draw.place, SAMPLE])
        samples.append(_load_breast(breast, augment, random))
    present = [(b, v, view) for b, views in enumerate(samples) for v, view in enumerate(views) if view is not None]
    targets = Targets(
        malignant=torch.tensor([breast.malignant for breast in drawn]),
        annotated=torch.tensor([[view is not None and view.annotated for view in views] for views in samples]),
        boxes=torch.from_numpy(np.concatenate([view.boxes for _, _, view in present])).float(),
        slices=torch.from_numpy(np.concatenate([view.slices for _, _, view in present])),
        places=torch.tensor([(b, v) for b, v, view in present for _ in view.boxes], dtype=torch.long).reshape(-1, 2),
    )
    images = [(None if cc is None else cc.image, None if mlo is None else mlo.image) for cc, mlo in samples]
    return Batch(draws[0].epoch, tuple(breast.name for breast in drawn), stack(images), targets)


@dataclass(frozen=True)
class ViewSample:
    """One view of a batch."""

    image: Image  # (S, H, W)
    annotated: bool
    boxes: np.ndarray  # (G, 4) of malignant annotations, model pixels
    slices: np.ndarray  # (G,), -1: not known


def _load_breast(
    breast: TrainingBreast, augment: AugmentConfig, random: np.random.Generator
) -> tuple[ViewSample | None, ViewSample | None]:
    """CC and MLO of a breast. Where there are several of one kind, a pair is drawn."""
    pairs = breast.prepared.pairs()
    pair = pairs[random.integers(len(pairs))]
    changes = draw_changes(augment, random)
    cc, mlo = (
        None if view is None else _load_view(view, breast, change, random)
        for view, change in zip(pair, changes, strict=True)
    )
    return cc, mlo


def _load_view(view: PreparedView, breast: TrainingBreast, change: Change, random: np.random.Generator) -> ViewSample:
    known = view.view.annotations if breast.boxed else None
    annotated = known is not None or not breast.malignant
    malignant = tuple(one for one in known or () if one.malignant) if breast.malignant else ()
    geometry = view.file.geometry
    if breast.input == "slices":
        if any(annotation.slice is None for annotation in malignant):  # it may or may not be on the slice that is drawn
            annotated, malignant = False, ()
        z, malignant = draw_slice(malignant, geometry.stored_slices, random)
        s = geometry.slice_to_model(z)
        image = grey(np.asarray(view.image()[s : s + 1]))
    else:
        image = read_image(view, breast.input, breast.histogram)
    own, wanted = len(image), breast.slice_count
    moved = [geometry.annotation_to_model(annotation) for annotation in malignant]
    slices = np.array(
        [find_repeated_slice(m.slice, own, wanted) if m.slice is not None and own > 1 else -1 for m in moved]
    )
    boxes = np.array([m.box for m in moved], dtype=float).reshape(-1, 4)
    size = image.shape[1], image.shape[2]
    boxes, shown = clip_boxes(change_boxes(boxes, change, size), size)
    image = change_image(repeat_slices(image, wanted), change, random)
    return ViewSample(image, annotated, boxes[shown], slices.astype(np.int64)[shown])
