"""How batches are made of the breasts of a training: their order, their images and annotations, their augmentation.

Everything follows from the configuration and from (seed, epoch, batch, place). So a run can be resumed anywhere, and
neither the number of loader threads nor the number of devices changes what is drawn.
"""

import itertools
import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mm3d.data.batches import stack
from mm3d.data.inputs import (
    Histogram,
    Image,
    InputName,
    draw_slice,
    find_repeated_slice,
    grey,
    is_visible,
    read_image,
    repeat_slices,
)
from mm3d.data.prepare.prepared import PreparedBreast, PreparedView
from mm3d.model.detector import Breasts
from mm3d.model.losses import Targets
from mm3d.train.config import AugmentConfig, TrainConfig

FloatArray = NDArray[np.float64]
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
    groups: dict[int, list[int]] = {}
    batches = []
    for index in order:
        group = groups.setdefault(slice_counts[index], [])
        group.append(index)
        if len(group) % size == 0:
            batches.append(group[-size:])
    for group in groups.values():
        if rest := len(group) % size:
            batches.append(list(itertools.islice(itertools.chain(group[-rest:], itertools.cycle(group)), size)))
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
    """Read and augment the breasts of some draws. If a breast has several CC or MLO views, a pair of them is drawn."""
    drawn, samples = [breasts[draw.breast] for draw in draws], []
    for breast, draw in zip(drawn, draws, strict=True):
        random = np.random.default_rng([seed, draw.epoch, draw.batch, draw.place, SAMPLE])
        pairs = breast.prepared.pairs()
        pair = pairs[random.integers(len(pairs))]
        changed = zip(pair, draw_changes(augment, random), strict=True)
        samples.append([None if view is None else _load_view(view, breast, by, random) for view, by in changed])
    present = [(b, v, view) for b, views in enumerate(samples) for v, view in enumerate(views) if view is not None]
    targets = Targets(
        malignant=torch.tensor([breast.malignant for breast in drawn]),
        annotated=torch.tensor([[view is not None and view.annotated for view in views] for views in samples]),
        boxes=torch.from_numpy(np.concatenate([view.boxes for _, _, view in present])).float(),
        slices=torch.from_numpy(np.concatenate([view.slices for _, _, view in present])),
        places=_repeat_places([(b, v, len(view.boxes)) for b, v, view in present]),
        benign_boxes=torch.from_numpy(np.concatenate([view.benign for _, _, view in present])).float(),
        benign_places=_repeat_places([(b, v, len(view.benign)) for b, v, view in present]),
    )
    images = [(None if cc is None else cc.image, None if mlo is None else mlo.image) for cc, mlo in samples]
    return Batch(draws[0].epoch, tuple(breast.name for breast in drawn), stack(images), targets)


def _repeat_places(counts: list[tuple[int, int, int]]) -> Tensor:
    """(F, 2): the breast and the view of each box, where (breast, view, count) says how many boxes a view has."""
    return torch.tensor([(b, v) for b, v, count in counts for _ in range(count)], dtype=torch.long).reshape(-1, 2)


@dataclass(frozen=True)
class ViewSample:
    """One view of a batch."""

    image: Image  # (S, H, W)
    annotated: bool
    boxes: np.ndarray  # (G, 4) of malignant annotations, model pixels
    slices: np.ndarray  # (G,), -1: not known
    benign: np.ndarray  # boxes (..., 4) of benign annotations


@dataclass(frozen=True)
class Change:
    """The random changes of one view, the same for all its slices."""

    mirror: bool  # left to right
    flip: bool  # top to bottom
    shift: tuple[float, float]  # of the content, shares of height and width
    angle: float  # radians
    scale: float
    gamma: float
    noise: float  # standard deviation


def _load_view(view: PreparedView, breast: TrainingBreast, change: Change, random: np.random.Generator) -> ViewSample:
    known = view.view.annotations if breast.boxed else None
    annotated = known is not None or not breast.malignant
    malignant = tuple(annotation for annotation in known or () if annotation.malignant)
    benign = tuple(annotation for annotation in known or () if not annotation.malignant)
    geometry = view.file.geometry
    if breast.input == "slices":
        if any(annotation.slice is None for annotation in malignant):  # it may or may not be on the slice that is drawn
            annotated, malignant = False, ()
        z, malignant = draw_slice(malignant, geometry.stored_slices, random)
        benign = tuple(annotation for annotation in benign if is_visible(annotation, z, geometry.stored_slices))
        s = geometry.slice_to_model(z)
        image = grey(np.asarray(view.image()[s : s + 1]))
    else:
        image = read_image(view, breast.input, breast.histogram)
    own, wanted = len(image), breast.slice_count
    slices = [
        find_repeated_slice(geometry.slice_to_model(a.slice), own, wanted) if a.slice is not None and own > 1 else -1
        for a in malignant
    ]
    boxes = np.array([geometry.box_to_model(a.box) for a in malignant + benign], dtype=float).reshape(-1, 4)
    boxes, shown = change_boxes(boxes, change, (image.shape[1], image.shape[2]))
    image = change_image(repeat_slices(image, wanted), change, random)
    count = len(malignant)
    return ViewSample(
        image,
        annotated,
        boxes=boxes[:count][shown[:count]],
        slices=np.array(slices, dtype=np.int64)[shown[:count]],
        benign=boxes[count:][shown[count:]],
    )


def draw_changes(config: AugmentConfig, random: np.random.Generator) -> tuple[Change, Change]:
    """Draw the changes of CC and MLO. Both are mirrored and flipped together, because they show one breast. The other
    changes are drawn for each view, because each has its own positioning and exposure."""
    mirror, flip = bool(random.random() < config.horizontal_flip), bool(random.random() < config.vertical_flip)

    def one() -> Change:
        down, right, angle, scale, gamma, noise = random.uniform(-1, 1, 6).tolist()
        return Change(
            mirror=mirror,
            flip=flip,
            shift=(down * config.shift, right * config.shift),
            angle=math.radians(angle * config.rotate),
            scale=1 + scale * config.scale,
            gamma=(1 + config.gamma) ** gamma,
            noise=abs(noise) * config.noise,
        )

    return one(), one()


def change_image(image: Image, change: Change, random: np.random.Generator) -> Image:
    """Change an image (S, H, W). What comes in from outside is air."""
    if change.mirror:
        image = image[:, :, ::-1]
    if change.flip:
        image = image[:, ::-1]
    if change.angle or change.scale != 1:
        image = _resample(image, change)
    elif any(change.shift):
        image = _shift(image, *_whole_shift(image.shape, change))
    inside = image > 0
    if change.gamma != 1:
        image = np.power(image, np.float32(change.gamma))
    if change.noise:
        noise = random.standard_normal(image.shape, dtype=np.float32) * np.float32(change.noise)
        image = np.where(inside, np.clip(image + noise, 0, 1), image)
    return np.ascontiguousarray(image)


def change_boxes(boxes: FloatArray, change: Change, size: tuple[int, int]) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Move boxes (G, 4) xyxy along with their image of this height and width, and cut them at its edges.

    Also returns which of them still show: those whose centre is in the image.

    A rotated box becomes the upright box around the ellipse in it, because lesions are round. A box around its rotated
    corners would be too large.
    """
    height, width = size
    x1, y1, x2, y2 = boxes.T
    if change.mirror:
        x1, x2 = width - x2, width - x1
    if change.flip:
        y1, y2 = height - y2, height - y1
    cx, cy, w, h = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
    if change.angle or change.scale != 1:
        cos, sin = math.cos(change.angle), math.sin(change.angle)
        dx, dy = cx - width / 2, cy - height / 2
        cx = width / 2 + change.scale * (cos * dx - sin * dy) + change.shift[1] * width
        cy = height / 2 + change.scale * (sin * dx + cos * dy) + change.shift[0] * height
        w, h = change.scale * np.hypot(cos * w, sin * h), change.scale * np.hypot(sin * w, cos * h)
    elif any(change.shift):
        down, right = _whole_shift((1, height, width), change)
        cx, cy = cx + right, cy + down
    moved = np.column_stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2])
    shown: NDArray[np.bool_] = (cx > 0) & (cx < width) & (cy > 0) & (cy < height)
    return np.clip(moved, 0, [width, height, width, height]), shown


def _whole_shift(shape: tuple[int, ...], change: Change) -> tuple[int, int]:
    """The shift in whole pixels, down and to the right."""
    return round(change.shift[0] * shape[1]), round(change.shift[1] * shape[2])


def _shift(image: Image, down: int, right: int) -> Image:
    height, width = image.shape[1:]
    moved = np.zeros_like(image)
    moved[:, max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = image[
        :, max(-down, 0) : height + min(-down, 0), max(-right, 0) : width + min(-right, 0)
    ]
    return moved


def _resample(image: Image, change: Change) -> Image:
    """Rotate about the middle, scale and shift in one bilinear step."""
    height, width = image.shape[1:]
    cos, sin = math.cos(change.angle) / change.scale, math.sin(change.angle) / change.scale
    down, right = 2 * change.shift[0], 2 * change.shift[1]  # grid_sample's image is 2 wide and 2 high
    ratio = height / width
    # From a place in the result to its place in the source: shift back, then rotate back, in pixels of one size.
    theta = torch.tensor(
        [
            [cos, sin * ratio, -cos * right - sin * ratio * down],
            [-sin / ratio, cos, sin / ratio * right - cos * down],
        ]
    )
    source = torch.from_numpy(np.ascontiguousarray(image))[None]  # slices as channels: one grid for all
    grid = F.affine_grid(theta[None], list(source.shape), align_corners=False)
    return F.grid_sample(source, grid, align_corners=False)[0].numpy()
