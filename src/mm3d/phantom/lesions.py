"""Findings: what they are made of, how large they are, and how they are laid into a breast.

A mass is told from another by its shape alone: all are of one attenuation. A lesion is stiff, so it is turned with the
compression but not pressed; its shape is drawn from its own seed, and is therefore the same in both views.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mm3d.data.records import Position
from mm3d.phantom.anatomy import Array, Form, Grid
from mm3d.phantom.strands import Strand, deposit, splat, wander
from mm3d.phantom.tissue import CALCIUM, FAT, LIGAMENT, MASS

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """A kind of finding, with how often it is drawn and the median and spread (of the logarithm) of its size in mm."""

    name: str
    malignant: bool
    frequency: float
    median: float
    spread: float
    smallest: float
    largest: float


# Malignant sizes are those of the boxes of BCS-DBT (5/25/50/75/95%: 9/14/22/32/50 mm), benign diameters have a median
# of 12 mm. A spiculated mass's box holds its spicules, and a core about half as wide.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("spiculated mass", True, 0.40, 27.0, 0.42, 12, 55),
        Kind("irregular mass", True, 0.22, 21.0, 0.50, 8, 50),
        Kind("architectural distortion", True, 0.13, 32.0, 0.35, 18, 55),
        Kind("calcification cluster", True, 0.25, 17.0, 0.40, 10, 40),
        Kind("round mass", False, 0.20, 11.0, 0.40, 5, 30),
        Kind("oval mass", False, 0.25, 13.0, 0.40, 5, 35),
        Kind("cyst", False, 0.20, 12.0, 0.45, 5, 35),
        Kind("lymph node", False, 0.13, 9.0, 0.30, 5, 18),
        Kind("coarse calcification", False, 0.13, 5.0, 0.35, 3, 12),
        Kind("vascular calcification", False, 0.09, 24.0, 0.30, 12, 40),
    )
}


@dataclass(frozen=True)
class Lesion:
    """A finding in the breast before compression."""

    kind: Kind
    size: float  # mm, the side of a box around it
    attenuation: float  # 1/mm, of a mass
    calcium: float  # 1/mm, of a speck
    seed: int  # of its shape
    views: tuple[Position, ...]  # where it is seen: sometimes it lies outside one view's field


@dataclass(frozen=True)
class Change:
    """What a lesion does to a volume: added attenuation in a part of it."""

    where: tuple[slice, slice, slice]
    added: Array  # (z, y, x)


def draw_lesion(rng: np.random.Generator, malignant: bool, one_view: float, contrast: float) -> Lesion:
    """`one_view`: the share of findings that only one view shows; `contrast`: times their difference from fat."""
    kinds = [kind for kind in KINDS.values() if kind.malignant == malignant]
    shares = np.array([kind.frequency for kind in kinds])
    kind = kinds[rng.choice(len(kinds), p=shares / shares.sum())]
    size = float(np.clip(kind.median * np.exp(kind.spread * rng.standard_normal()), kind.smallest, kind.largest))
    views: tuple[Position, ...] = ("CC", "MLO")
    if rng.random() < one_view:
        views = (views[rng.integers(2)],)
    attenuation = FAT + contrast * (rng.uniform(*MASS) - FAT)
    return Lesion(kind, size, attenuation, contrast**4 * CALCIUM, int(rng.integers(2**31)), views)


def insert(volume: Array, form: Form, lesion: Lesion, place: tuple[float, float, float]) -> Change:
    """Lays a lesion into a volume (z, y, x) at a place (x, y, z mm). Nothing outside the returned part changes."""
    where, grid = form.grid.around(place, 0.68 * lesion.size + 2)
    before = volume[where].copy()
    rng = np.random.default_rng(lesion.seed)
    after = SHAPES[lesion.kind.name](before, _Local(grid, place, form.tilt), lesion, rng)
    breast = form.occupied(grid.z, form.anatomy.skin)[:, where[1], where[2]]
    added = (after - before) * breast
    volume[where] += added
    return Change(where, added)


@dataclass(frozen=True)
class _Local:
    """The surroundings of a lesion, seen from its middle in the directions of the breast before compression."""

    grid: Grid
    place: tuple[float, float, float]
    tilt: float

    def offsets(self) -> NDArray[np.float32]:
        """(z, y, x, 3) mm from the middle, along u, s and t."""
        dz, dy, dx = np.meshgrid(
            self.grid.z - self.place[2], self.grid.y - self.place[1], self.grid.x - self.place[0], indexing="ij"
        )
        c, s = np.cos(self.tilt), np.sin(self.tilt)
        return np.stack([-dx, dy * c - dz * s, dy * s + dz * c], axis=-1).astype(np.float32)

    def in_view(self, points: Points, press: float = 1.0) -> Points:
        """Points (n, 3) along u, s, t from the middle, as x, y, z of the view; `press`: what is left of heights."""
        u, s, t = points.T
        c, sin = np.cos(self.tilt), np.sin(self.tilt)
        return np.stack([-u, s * c + t * sin, press * (t * c - s * sin)], axis=1) + np.array(self.place)

    def tubes(self, strands: list[Strand], rng: np.random.Generator) -> Array:
        return splat(self.grid, [Strand(self.in_view(strand.path), strand.radius) for strand in strands], rng)

    def specks(
        self,
        places: Points,
        diameters: NDArray[np.float64],
        stretch: float,
        rng: np.random.Generator,
        press: float = 1.0,
    ) -> Array:
        """(z, y, x) calcium in each voxel, as a share: every speck is a handful of points in a crooked rod."""
        points = 12
        axes = _directions(rng, len(places))
        along = rng.uniform(-0.5, 0.5, (len(places), points, 1)) * (1 + stretch * rng.random((len(places), 1, 1)))
        blur = rng.normal(0, 0.22, (len(places), points, 3))
        cloud = places[:, None] + diameters[:, None, None] * (along * axes[:, None] + blur)
        volume = np.pi / 6 * diameters**3
        total = np.zeros(self.grid.shape, np.float32)
        shares = np.repeat(volume / points / np.prod(self.grid.voxel), points)
        deposit(self.grid, total, self.in_view(cloud.reshape(-1, 3), press), shares)
        return total


def _directions(rng: np.random.Generator, count: int) -> Points:
    vectors = rng.standard_normal((count, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _turn(rng: np.random.Generator) -> Points:
    """(3, 3) some orientation."""
    turn: Points = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    return turn


def _core(
    local: _Local,
    diameter: float,
    rng: np.random.Generator,
    ratio: float = 1.0,
    lobes: float = 0.0,
    angles: float = 0.0,
    margin: float = 0.0,
) -> Array:
    """(z, y, x) share of a star-shaped body: `ratio` of its axes, large `lobes` and small `angles` in its surface, and
    a `margin` (mm) over which it fades."""
    d = (local.offsets() @ _turn(rng).astype(np.float32)) / np.array([1, np.sqrt(ratio), ratio], np.float32)
    distance = np.sqrt((d**2).sum(axis=-1)) + 1e-3
    radius = np.full(distance.shape, diameter / 2, np.float32)
    for amplitude, low, high in ((lobes, 1.5, 3.5), (angles, 5, 10)):
        if amplitude:
            waves = _directions(rng, 10) * rng.uniform(low, high, (10, 1))
            phases = rng.uniform(0, 2 * np.pi, 10)
            bumps = np.cos((d / distance[..., None]) @ waves.T.astype(np.float32) + phases).sum(axis=-1) / np.sqrt(5)
            radius *= 1 + amplitude * bumps
    edge = max(margin, local.grid.voxel[1])
    return np.clip((radius - distance) / edge + 0.5, 0, 1).astype(np.float32)


def _spicules(
    rng: np.random.Generator, count: int, start: float, reach: float, first: float, last: float
) -> list[Strand]:
    """Strands from `start` mm off the middle out to about `reach`, tapering."""
    strands = []
    for direction in _directions(rng, count):
        length = max(1.5, reach * rng.uniform(0.8, 1.15) - start)
        strands.append(
            wander(rng, direction * start, direction, length, first * rng.uniform(0.7, 1.3), last, bend=0.04)
        )
    return strands


def _filled(before: Array, share: Array, attenuation: float) -> Array:
    return before + share * (attenuation - before)


def _spiculated(before: Array, local: _Local, lesion: Lesion, rng: np.random.Generator) -> Array:
    diameter = 0.5 * lesion.size
    core = _core(local, diameter, rng, rng.uniform(0.7, 1), lobes=0.15, angles=0.10, margin=1.5)
    spicules = _spicules(rng, int(rng.integers(22, 40)), 0.4 * diameter, 0.5 * lesion.size, 2.2, 0.6)
    return _filled(before, np.maximum(core, local.tubes(spicules, rng)), lesion.attenuation)


def _irregular(before: Array, local: _Local, lesion: Lesion, rng: np.random.Generator) -> Array:
    diameter = 0.78 * lesion.size
    core = _core(local, diameter, rng, rng.uniform(0.6, 1), lobes=0.22, angles=0.16, margin=1.5)
    spicules = _spicules(rng, int(rng.integers(4, 10)), 0.4 * diameter, 0.5 * lesion.size, 1.6, 0.6)
    return _filled(before, np.maximum(core, local.tubes(spicules, rng)), lesion.attenuation)


PULL = 0.55  # how far a distortion draws its surroundings in


def _distortion(before: Array, local: _Local, lesion: Lesion, rng: np.random.Generator) -> Array:
    """No mass: strands that radiate, and tissue drawn towards their middle."""
    reach = 0.5 * lesion.size
    distance = np.linalg.norm(local.offsets(), axis=-1)
    # Nothing moves in the middle and at the rim, so that the picture is whole.
    pull = 1 + PULL * np.clip(1 - (distance / reach) ** 2, 0, 1)
    middle = [
        (local.place[2 - i] - axis[0]) / local.grid.voxel[i]
        for i, axis in enumerate((local.grid.z, local.grid.y, local.grid.x))
    ]
    index = np.indices(before.shape, dtype=np.float32)
    moved = [middle[i] + (index[i] - middle[i]) * pull for i in range(3)]
    drawn = ndimage.map_coordinates(before, moved, order=1, mode="nearest")
    spicules = _spicules(rng, int(rng.integers(26, 44)), 0.5, reach, 1.7, 0.6)
    return _filled(drawn, 0.9 * local.tubes(spicules, rng), max(lesion.attenuation, LIGAMENT))


PRESSED = 0.4  # a cluster is no body: its specks come together in height as the breast is compressed


def _cluster(before: Array, local: _Local, lesion: Lesion, rng: np.random.Generator) -> Array:
    """4 to 25 specks of 0.15 to 0.8 mm, of many forms, in a part of a duct's tree."""
    count = int(np.clip(rng.normal(9 + 0.5 * lesion.size, 4), 5, 25))
    axes = np.array([1.0, *rng.uniform(0.6, 1, 2)])
    places = _directions(rng, count) * rng.uniform(0.45, 1, (count, 1)) * axes * 0.5 * lesion.size
    diameters = np.clip(0.40 * np.exp(0.35 * rng.standard_normal(count)), 0.15, 0.8)
    return before + lesion.calcium * local.specks(places @ _turn(rng), diameters, 0.8, rng, PRESSED)


def _smooth(ratio: tuple[float, float], lobes: float) -> "Shape":
    def shape(before: Array, local: _Local, lesion: Lesion, rng: np.random.Generator) -> Array:
        core = _core(local, 0.95 * lesion.size, rng, rng.uniform(*ratio), lobes=lobes, margin=0.5)
        return _filled(before, core, lesion.attenuation)

    return shape


def _lymph_node(before: Array, local: _Local, lesion: Lesion, rng: np.random.Generator) -> Array:
    """A bean: oval, with fat in its notch."""
    seed = int(rng.integers(2**31))
    body = _core(local, 0.95 * lesion.size, np.random.default_rng(seed), 0.65, lobes=0.04, margin=0.5)
    short_axis = _turn(np.random.default_rng(seed))[:, 2]  # the body's own
    hilum = local.offsets() - (0.22 * lesion.size * short_axis).astype(np.float32)
    inside = np.clip((0.2 * lesion.size - np.linalg.norm(hilum, axis=-1)) / local.grid.voxel[1] + 0.5, 0, 1)
    return _filled(_filled(before, body, lesion.attenuation), body * inside, FAT)


def _coarse(before: Array, local: _Local, lesion: Lesion, rng: np.random.Generator) -> Array:
    """Popcorn: a few smooth, large pieces."""
    count = int(rng.integers(1, 4))
    places = _directions(rng, count) * 0.22 * lesion.size * (count > 1)
    diameters = lesion.size * rng.uniform(0.35, 0.55, count)
    pieces = 40  # each large piece is many specks, and dense
    cloud = places[:, None] + diameters[:, None, None] * _directions(rng, count * pieces).reshape(count, pieces, 3) * (
        0.45 * rng.random((count, pieces, 1)) ** (1 / 3)
    )
    small = np.repeat(diameters * (0.5 / pieces) ** (1 / 3), pieces)
    return before + lesion.calcium * local.specks(cloud.reshape(-1, 3), small, 0.0, rng)


def _vascular(before: Array, local: _Local, lesion: Lesion, rng: np.random.Generator) -> Array:
    """Tram tracks: specks along both walls of a vessel."""
    towards = _directions(rng, 1)[0]
    path = wander(rng, -0.47 * lesion.size * towards, towards, 0.94 * lesion.size, 2, 2, bend=0.03).path
    beside = np.cross(towards, _directions(rng, 1)[0])
    beside *= rng.uniform(0.9, 1.4) / np.linalg.norm(beside)
    each = np.repeat(np.concatenate([path + beside, path - beside]), 2, axis=0)
    kept = each[rng.random(len(each)) < 0.6] + rng.normal(0, 0.25, 3)
    return before + lesion.calcium * local.specks(kept, np.clip(rng.normal(0.42, 0.1, len(kept)), 0.15, 0.7), 1.0, rng)


Shape = Callable[[Array, _Local, Lesion, np.random.Generator], Array]
SHAPES: dict[str, Shape] = {
    "spiculated mass": _spiculated,
    "irregular mass": _irregular,
    "architectural distortion": _distortion,
    "calcification cluster": _cluster,
    "round mass": _smooth((0.9, 1.0), 0.03),
    "oval mass": _smooth((0.6, 0.85), 0.06),
    "cyst": _smooth((0.8, 1.0), 0.0),
    "lymph node": _lymph_node,
    "coarse calcification": _coarse,
    "vascular calcification": _vascular,
}
