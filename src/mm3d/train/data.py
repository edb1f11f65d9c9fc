"""The breasts of a training: which are used, in which order, and how a batch is made of them.

Everything is a pure function of the configuration and of (seed, epoch, position), so that a run can be resumed
anywhere, and neither the number of loader threads nor that of devices changes what is drawn.
"""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from mm3d.data.batches import PreparedBreast, pixels_of, read_image, stack
from mm3d.data.inputs import Histogram, Image, InputName, deepened, deepened_slice, draw_slice, grey
from mm3d.data.prepare.prepared import PreparedView, to_model
from mm3d.data.records import Annotation
from mm3d.model.detector import Breasts
from mm3d.model.losses import Targets
from mm3d.shared.errors import InputError
from mm3d.train.augment import Change, change_boxes, change_image, clip_boxes, draw_changes
from mm3d.train.config import AugmentConfig, DataConfig

ORDER, SAMPLE = range(2)  # what random numbers are for: each purpose has its own


@dataclass(frozen=True)
class TrainingBreast:
    """A breast, and what a training may know and see of it."""

    prepared: PreparedBreast
    input: InputName
    histogram: Histogram | None = None  # of input hm
    boxed: bool = True  # its boxes may be used

    @property
    def name(self) -> str:
        return self.prepared.breast.name

    @property
    def malignant(self) -> bool:
        return self.prepared.malignant

    @property
    def slices(self) -> int:
        """S of its images."""
        if self.input != "volume":
            return 1
        return max(view.file.geometry.slices for view in self.prepared.views)


@dataclass(frozen=True)
class Batch:
    """Some breasts with all that is known of them."""

    names: tuple[str, ...]
    breasts: Breasts
    targets: Targets

    def tensors(self) -> dict[str, torch.Tensor]:
        return {**vars(self.breasts), **vars(self.targets)}


def choose(pool: Sequence[TrainingBreast], config: DataConfig) -> list[TrainingBreast]:
    """The breasts of a regime: `fraction`, then `annotated_fraction`, then `drop_unannotated_malignant`."""
    known = [breast for breast in pool if breast.prepared.breast.label is not None]
    kept = _share(known, _stratum, config.fraction, f"{config.seed} breasts")
    with_boxes = [breast for breast in kept if breast.malignant and breast.prepared.annotated]
    boxed = {id(b) for b in _share(with_boxes, lambda _: "", config.annotated_fraction, f"{config.seed} boxes")}
    chosen = [breast if not breast.malignant else replace(breast, boxed=id(breast) in boxed) for breast in kept]
    if config.drop_unannotated_malignant:
        chosen = [breast for breast in chosen if not breast.malignant or breast.boxed]
    _check_labels(chosen, config.sampling)
    return chosen


def _stratum(breast: TrainingBreast) -> str:
    """Fractions keep the mix: of labels, of what is annotated, of inputs."""
    label = breast.prepared.breast.label
    return f"{breast.input} {label} {breast.prepared.annotated if label == 'malignant' else ''}"


def _share(
    breasts: list[TrainingBreast], group: Callable[[TrainingBreast], str], share: float, salt: str
) -> list[TrainingBreast]:
    """The first breasts of each group, in an order made by hashes of their names: a larger share has all of a smaller
    one. At least one of each group, unless the share is 0."""
    groups: dict[str, list[TrainingBreast]] = {}
    for breast in breasts:
        groups.setdefault(group(breast), []).append(breast)
    kept = set()
    for members in groups.values():
        ranked = sorted(members, key=lambda breast: hashlib.sha256(f"{salt} {breast.name}".encode()).digest())
        count = max(round(share * len(members)), 1) if share > 0 else 0
        kept |= {id(breast) for breast in ranked[:count]}
    return [breast for breast in breasts if id(breast) in kept]


def _check_labels(breasts: list[TrainingBreast], sampling: str) -> None:
    malignant = sum(breast.malignant for breast in breasts)
    if not malignant:
        raise InputError(
            "There is no malignant breast to train on: the cohorts of data.train have none with a label, or the regime "
            "(fraction, drop_unannotated_malignant) left none; give a cohort that has some."
        )
    if sampling == "balanced" and malignant == len(breasts):
        raise InputError(
            "All training breasts are malignant, so nothing can be balanced; add others, or set data.sampling natural."
        )


def epoch_order(
    malignant: Sequence[bool], sampling: Literal["balanced", "natural"], seed: int, epoch: int
) -> list[int]:
    """Which breast comes when in an epoch, of as many draws as there are breasts.

    balanced: malignant and other in turn, each kind in a shuffled order; the scarcer one starts over when it is
    through, in another order.
    """
    random = np.random.default_rng([seed, epoch, ORDER])
    if sampling == "natural":
        return random.permutation(len(malignant)).tolist()

    def cycle(kind: bool) -> Iterator[int]:
        members = np.flatnonzero(np.asarray(malignant) == kind)
        while True:
            yield from random.permutation(members).tolist()

    draws = len(malignant) - len(malignant) % 2 or 2
    # Drawn kind by kind: in turns, the two would share random numbers in an order that is hard to tell.
    kinds = [list(itertools.islice(cycle(kind), draws // 2)) for kind in (True, False)]
    return [index for pair in zip(*kinds, strict=True) for index in pair]


def epoch_batches(order: Sequence[int], slices: Sequence[int], size: int) -> list[list[int]]:
    """Batches in this order, each of one slice count. What is left at the end of an epoch is filled up with the first
    breasts of the same slice count, so that no breast is ever left out."""
    waiting: dict[int, list[int]] = {}
    first: dict[int, list[int]] = {}
    batches = []
    for index in order:
        group = waiting.setdefault(slices[index], [])
        first.setdefault(slices[index], []).append(index)
        group.append(index)
        if len(group) == size:
            batches.append(list(group))
            group.clear()
    for count, group in waiting.items():
        if group:
            batches.append(list(itertools.islice(itertools.chain(group, itertools.cycle(first[count])), size)))
    return batches


@dataclass(frozen=True)
class Planned:
    """A batch to be made: where it stands, and the places of its members in it."""

    epoch: int
    index: int  # of the batch in its epoch
    members: tuple[int, ...]  # numbers of breasts

    @property
    def name(self) -> str:
        return f"epoch {self.epoch}, batch {self.index}"


def plan(
    breasts: Sequence[TrainingBreast], sampling: Literal["balanced", "natural"], size: int, seed: int
) -> Iterator[Planned]:
    """All batches of a training, epoch after epoch, without end."""
    malignant, slices = [b.malignant for b in breasts], [b.slices for b in breasts]
    for epoch in itertools.count():
        batches = epoch_batches(epoch_order(malignant, sampling, seed, epoch), slices, size)
        for index, members in enumerate(batches):
            yield Planned(epoch, index, tuple(members))


@dataclass(frozen=True)
class ViewSample:
    """One view as a batch takes it."""

    image: Image  # (S, H, W)
    annotated: bool
    boxes: np.ndarray  # (G, 4) of malignant findings, model pixels
    slices: np.ndarray  # (G,), -1: not known


def load_batch(
    breasts: Sequence[TrainingBreast],
    planned: Planned,
    augment: AugmentConfig,
    seed: int,
    rank: int = 0,
    ranks: int = 1,
) -> Batch:
    """Read and augment the members of a batch; with several ranks every `ranks`-th of them."""
    samples = []
    for position in range(rank, len(planned.members), ranks):
        breast = breasts[planned.members[position]]
        random = np.random.default_rng([seed, planned.epoch, planned.index, position, SAMPLE])
        samples.append((breast, _load_breast(breast, augment, random)))
    places, boxes, slices = [], [np.zeros((0, 4))], [np.zeros(0, dtype=np.int64)]
    for b, (_, views) in enumerate(samples):
        for v, view in enumerate(views):
            if view is not None:
                places += [(b, v)] * len(view.boxes)
                boxes.append(view.boxes)
                slices.append(view.slices)
    targets = Targets(
        malignant=torch.tensor([breast.malignant for breast, _ in samples]),
        annotated=torch.tensor([[view is not None and view.annotated for view in views] for _, views in samples]),
        boxes=torch.from_numpy(np.concatenate(boxes)).float(),
        slices=torch.from_numpy(np.concatenate(slices)),
        places=torch.tensor(places, dtype=torch.long).reshape(-1, 2),
    )
    images = [(_image(cc), _image(mlo)) for _, (cc, mlo) in samples]
    return Batch(tuple(breast.name for breast, _ in samples), stack(images), targets)


def _image(view: ViewSample | None) -> Image | None:
    return None if view is None else view.image


def _load_breast(
    breast: TrainingBreast, augment: AugmentConfig, random: np.random.Generator
) -> tuple[ViewSample | None, ViewSample | None]:
    pairs = breast.prepared.pairs()
    pair = pairs[random.integers(len(pairs))]
    changes = draw_changes(augment, random)
    depth = breast.slices
    cc, mlo = (
        None if view is None else _changed(_load_view(view, breast, depth, random), change, random)
        for view, change in zip(pair, changes, strict=True)
    )
    return cc, mlo


def _load_view(view: PreparedView, breast: TrainingBreast, depth: int, random: np.random.Generator) -> ViewSample:
    findings: tuple[Annotation, ...] | None = ()
    if breast.malignant:
        findings = view.view.annotations if breast.boxed else None
    annotated = findings is not None
    found = tuple(finding for finding in findings or () if finding.malignant)
    geometry = view.file.geometry
    if breast.input == "slices":
        if any(finding.slice is None for finding in found):  # on the slice drawn or not: nobody knows
            annotated, found = False, ()
        z, found = draw_slice(found, geometry.stored_slices, random)
        s = geometry.slice_to_model(z)
        image = grey(np.asarray(pixels_of(view)[s : s + 1]))
    else:
        image = read_image(view, breast.input, breast.histogram)
    own = len(image)
    moved = [to_model(finding, geometry) for finding in found]
    slices = [deepened_slice(m.slice, own, depth) if m.slice is not None and own > 1 else -1 for m in moved]
    boxes = np.array([m.box for m in moved], dtype=float).reshape(-1, 4)
    return ViewSample(deepened(image, depth), annotated, boxes, np.array(slices, dtype=np.int64))


def _changed(view: ViewSample, change: Change, random: np.random.Generator) -> ViewSample:
    size = view.image.shape[1], view.image.shape[2]
    boxes, shown = clip_boxes(change_boxes(view.boxes, change, size), size)
    return ViewSample(change_image(view.image, change, random), view.annotated, boxes[shown], view.slices[shown])


def stream(
    breasts: Sequence[TrainingBreast],
    planned: Iterator[Planned],
    augment: AugmentConfig,
    seed: int,
    workers: int,
    rank: int = 0,
    ranks: int = 1,
) -> Generator[tuple[Planned, Batch], None, None]:
    """The planned batches, made ahead by threads: reading and arithmetic leave Python's lock to the training."""
    ahead: deque[tuple[Planned, Future[Batch]]] = deque()
    # One thread of arithmetic each: torch's own would take the training's cores.
    pool = ThreadPoolExecutor(workers, "batches", initializer=torch.set_num_threads, initargs=(1,))
    try:
        while True:
            while len(ahead) < workers + 2:
                one = next(planned)
                ahead.append((one, pool.submit(load_batch, breasts, one, augment, seed, rank, ranks)))
            one, future = ahead.popleft()
            yield one, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
