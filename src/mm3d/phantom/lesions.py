"""Lesions: their kinds, sizes and places, and how they are inserted into a breast.

Only the shape tells one kind of mass from another: all have the same attenuation. A lesion is stiff, so compression
turns it but does not press it. Its shape is drawn from its own seed, so it is the same in both views.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mm3d.data.records import Position
from mm3d.phantom.anatomy import TILT, Array, CompressedBreast, Grid, Place
from mm3d.phantom.strands import Strand, deposit, draw_strand, rasterise
from mm3d.phantom.tissue import CALCIUM, FAT, GLAND, LIGAMENT, MASS

Points = NDArray[np.float64]  # (n, 3)


@dataclass(frozen=True)
class Kind:
    """A kind of lesion, with how often it is drawn, and its size in mm: median, spread of the logarithm, limits."""

    name: str
    malignant: bool
    frequency: float
    median: float
    spread: float
    smallest: float
    largest: float
    add: Callable[[Array, "_Surroundings", "Lesion", np.random.Generator], Array]  # attenuation before to after
    calcium: bool = False  # it is made of specks of calcium, and of nothing else


@dataclass(frozen=True)
class Lesion:
    """A lesion in the uncompressed breast."""

    kind: Kind
    size: float  # mm, the side of a box around it
    attenuation: float  # 1/mm, of a mass
    calcium: float  # 1/mm, of a speck
    seed: int  # of its shape
    views: tuple[Position, ...]  # that show it; sometimes it lies outside the field of one view


@dataclass(frozen=True)
class Insertion:
    """What a lesion adds to the attenuation of a view."""

    lesion: Lesion
    where: tuple[slice, slice, slice]  # the part of the volume that changes
    added: Array  # (z, y, x) 1/mm


def draw_lesion(rng: np.random.Generator, malignant: bool, one_view: float, contrast: float) -> Lesion:
    """`one_view` is the probability that only one view shows it; `contrast` multiplies its difference from fat."""
    kinds = [kind for kind in KINDS.values() if kind.malignant == malignant]
    shares = np.array([kind.frequency for kind in kinds])
    kind = kinds[rng.choice(len(kinds), p=shares / shares.sum())]
    size = float(np.clip(kind.median * np.exp(kind.spread * rng.standard_normal()), kind.smallest, kind.largest))
    views: tuple[Position, ...] = ("CC", "MLO")
    if rng.random() < one_view:
        views = (views[rng.integers(2)],)
    attenuation = mass_attenuation(rng.uniform(*MASS), contrast)
    return Lesion(kind, size, attenuation, calcium_attenuation(contrast), int(rng.integers(2**31)), views)


def mass_attenuation(real: float, contrast: float) -> float:
    return FAT + contrast * (real - FAT)


def calcium_attenuation(contrast: float) -> float:
    """Coarse pixels wash specks out, so that calcium needs a higher power of the contrast."""
    return contrast**4 * CALCIUM


# ---- places -------------------------------------------------------------------------------------------------------

CANDIDATES, TRIES = 10, 400


def draw_place(
    rng: np.random.Generator,
    lesion: Lesion,
    breasts: Sequence[CompressedBreast],
    volumes: Sequence[Array],
    taken: Sequence[Place],
) -> Place:
    """u, s, t of a lesion: inside the breast in both views, away from other lesions, and preferably in gland."""
    cc, anatomy = breasts[0], breasts[0].anatomy
    candidates, weights = [], []
    for attempt in range(TRIES):
        ease = 1 - attempt / TRIES  # a large lesion in a small breast may have to lie near the skin
        x = rng.uniform(0.08, 0.9) * anatomy.nipple_distance
        y = rng.uniform(-0.45, 0.45) * anatomy.length
        z = rng.uniform(-0.45, 0.45) * anatomy.thickness
        candidate = cc.to_uncompressed(x, y, z)
        places = [breast.to_view(*candidate) for breast in breasts]
        room = min(_distance_to_surface(breast, place) for breast, place in zip(breasts, places, strict=True))
        if room < ease * (0.35 * lesion.size + 2) or any(
            np.linalg.norm(np.subtract(candidate, other)) < 0.6 * lesion.size + 8 for other in taken
        ):
            continue
        candidates.append(candidate)
        gland = [_gland_share(v, breast, place) for v, breast, place in zip(volumes, breasts, places, strict=True)]
        weights.append(0.1 + np.mean(gland))
        if len(candidates) == CANDIDATES:
            break
    if not candidates:  # a very small breast has its lesion in the middle
        return (anatomy.nipple_distance / 3, 0.0, 0.0)
    return candidates[rng.choice(len(candidates), p=np.array(weights) / np.sum(weights))]


def _distance_to_surface(breast: CompressedBreast, place: Place) -> float:
    """mm from a place to the nearest surface. Distances to the plates count double: a lesion may fill the height."""
    x, y, z = place
    grid, anatomy = breast.grid, breast.anatomy
    if not (grid.y[0] < y < grid.y[-1] and 4 < x < grid.x[-1]):
        return -1.0
    in_plane = float(breast.inside[np.searchsorted(grid.y, y), np.searchsorted(grid.x, x)])
    return min(in_plane, 2 * (anatomy.thickness / 2 - anatomy.skin - abs(z)), 2.5 * x)


def _gland_share(volume: Array, breast: CompressedBreast, place: Place) -> float:
    """The share of gland around a place."""
    where, _ = breast.grid.crop(place, 6.0)
    return float(np.clip((volume[where].mean() - FAT) / (GLAND - FAT), 0, 1))


# ---- insertion ----------------------------------------------------------------------------------------------------


def insert_lesion(volume: Array, breast: CompressedBreast, lesion: Lesion, place: Place) -> Insertion:
    """Insert a lesion into a volume (z, y, x) at a place (x, y, z mm). Nothing changes outside the returned part."""
    where, grid = breast.grid.crop(place, 0.68 * lesion.size + 2)
    before = volume[where].copy()
    surroundings = _Surroundings(grid, place, TILT[breast.position])
    after = lesion.kind.add(before, surroundings, lesion, np.random.default_rng(lesion.seed))
    added = (after - before) * breast.surface(breast.anatomy.skin).part(*where[1:]).occupancy(grid.z)
    volume[where] += added
    return Insertion(lesion, where, added)


@dataclass(frozen=True)
class _Surroundings:
    """The surroundings of a lesion, seen from its middle along the axes of the uncompressed breast."""

    grid: Grid
    place: Place
    tilt: float

    def offsets(self, planes: slice = slice(None)) -> Array:
        """(z, y, x, 3) mm from the middle, along u, s and t, in all slices or in some."""
        dz, dy, dx = (
            axis - middle
            for axis, middle in zip((self.grid.z[planes], self.grid.y, self.grid.x), self.place[::-1], strict=True)
        )
        c, s = np.cos(self.tilt), np.sin(self.tilt)
        offsets = np.empty((len(dz), len(dy), len(dx), 3), np.float32)
        offsets[..., 0] = -dx
        offsets[..., 1] = np.subtract.outer(-dz * s, -dy * c)[..., None]
        offsets[..., 2] = np.add.outer(dz * c, dy * s)[..., None]
        return offsets

    def planes(self) -> Iterator[slice]:
        """One slice after the other: what is computed of a lesion takes many times the memory of the lesion."""
        return (slice(z, z + 1) for z in range(len(self.grid.z)))

    def to_view(self, points: Points, press: float = 1.0) -> Points:
        """Points along u, s, t from the middle, as x, y, z of the view. Heights are multiplied with `press`."""
        u, s, t = points.T
        c, sin = np.cos(self.tilt), np.sin(self.tilt)
        return np.stack([-u, s * c + t * sin, press * (t * c - s * sin)], axis=1) + np.array(self.place)

    def tubes(self, strands: list[Strand], rng: np.random.Generator) -> Array:
        """(z, y, x) share of each voxel that tubes fill."""
        return rasterise(self.grid, [Strand(self.to_view(strand.path), strand.radius) for strand in strands], rng)

    def specks(
        self,
        places: Points,
        diameters: NDArray[np.float64],
        stretch: float,
        rng: np.random.Generator,
        press: float = 1.0,
    ) -> Array:
        """(z, y, x) share of calcium in each voxel. Every speck is a few points along a crooked rod."""
        points = 12
        axes = _directions(rng, len(places))
        along = rng.uniform(-0.5, 0.5, (len(places), points, 1)) * (1 + stretch * rng.random((len(places), 1, 1)))
        blur = rng.normal(0, 0.22, (len(places), points, 3))
        cloud = places[:, None] + diameters[:, None, None] * (along * axes[:, None] + blur)
        volume = np.pi / 6 * diameters**3
        total = np.zeros(self.grid.shape, np.float32)
        shares = np.repeat(volume / points / np.prod(self.grid.voxel), points)
        deposit(self.grid, total, self.to_view(cloud.reshape(-1, 3), press), shares)
        return total


def _directions(rng: np.random.Generator, count: int) -> Points:
    vectors = rng.standard_normal((count, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _rotation(rng: np.random.Generator) -> Points:
    """(3, 3) a random orientation."""
    rotation: Points = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    return rotation


def _core(
    around: _Surroundings,
    diameter: float,
    rng: np.random.Generator,
    ratio: float = 1.0,
    lobes: float = 0.0,
    angles: float = 0.0,
    margin: float = 0.0,
) -> Array:
    """(z, y, x) share of a star-shaped body. `ratio` is that of its shortest to its longest axis, `lobes` and `angles`
    are the amplitudes of large and small bumps of its surface, and it fades over a `margin` in mm."""
    rotation = _rotation(rng).astype(np.float32)
    axes = np.array([1, np.sqrt(ratio), ratio], np.float32)
    bumps = []
    for amplitude, low, high in ((lobes, 1.5, 3.5), (angles, 5, 10)):
        if amplitude:
            waves = _directions(rng, 10) * rng.uniform(low, high, (10, 1))
            bumps.append((amplitude, waves.T.astype(np.float32), rng.uniform(0, 2 * np.pi, 10)))
    edge = max(margin, around.grid.voxel[1])
    share = np.empty(around.grid.shape, np.float32)
    for plane in around.planes():
        d = (around.offsets(plane) @ rotation) / axes
        distance = np.sqrt((d**2).sum(axis=-1)) + 1e-3
        radius = np.full(distance.shape, diameter / 2, np.float32)
        for amplitude, directions, phases in bumps:
            height = np.cos((d / distance[..., None]) @ directions + phases).sum(axis=-1) / np.sqrt(5)
            radius *= 1 + amplitude * height
        share[plane] = np.clip((radius - distance) / edge + 0.5, 0, 1)
    return share


def _spicules(
    rng: np.random.Generator, count: int, start: float, end: float, first: float, last: float
) -> list[Strand]:
    """Tapering strands from `start` mm off the middle to about `end`, with diameters from `first` to `last`."""
    strands = []
    for direction in _directions(rng, count):
        length = max(1.5, end * rng.uniform(0.8, 1.15) - start)
        strands.append(
            draw_strand(rng, direction * start, direction, length, first * rng.uniform(0.7, 1.3), last, bend=0.04)
        )
    return strands


def _fill(before: Array, share: Array, attenuation: float) -> Array:
    return before + share * (attenuation - before)


# ---- kinds --------------------------------------------------------------------------------------------------------


def _add_spiculated_mass(before: Array, around: _Surroundings, lesion: Lesion, rng: np.random.Generator) -> Array:
    """The box holds the spicules, and a core about half as wide."""
    diameter = 0.5 * lesion.size
    core = _core(around, diameter, rng, rng.uniform(0.7, 1), lobes=0.15, angles=0.10, margin=1.5)
    spicules = _spicules(rng, int(rng.integers(22, 40)), 0.4 * diameter, 0.5 * lesion.size, 2.2, 0.6)
    return _fill(before, np.maximum(core, around.tubes(spicules, rng)), lesion.attenuation)


def _add_irregular_mass(before: Array, around: _Surroundings, lesion: Lesion, rng: np.random.Generator) -> Array:
    diameter = 0.78 * lesion.size
    core = _core(around, diameter, rng, rng.uniform(0.6, 1), lobes=0.22, angles=0.16, margin=1.5)
    spicules = _spicules(rng, int(rng.integers(4, 10)), 0.4 * diameter, 0.5 * lesion.size, 1.6, 0.6)
    return _fill(before, np.maximum(core, around.tubes(spicules, rng)), lesion.attenuation)


PULL = 0.55  # how far a distortion pulls the tissue inwards


def _add_distortion(before: Array, around: _Surroundings, lesion: Lesion, rng: np.random.Generator) -> Array:
    """No mass: strands that radiate, and tissue pulled towards their middle."""
    radius = 0.5 * lesion.size
    grid = around.grid
    middle = [(around.place[2 - i] - axis[0]) / grid.voxel[i] for i, axis in enumerate((grid.z, grid.y, grid.x))]
    index = [np.arange(n, dtype=np.float32) for n in before.shape]
    pulled = np.empty_like(before)
    for plane in around.planes():
        distance = np.linalg.norm(around.offsets(plane), axis=-1)
        # Nothing moves in the middle and at the rim, so that there is no gap.
        pull = 1 + PULL * np.clip(1 - (distance / radius) ** 2, 0, 1)
        places = np.meshgrid(index[0][plane], index[1], index[2], indexing="ij")
        source = [middle[i] + (places[i] - middle[i]) * pull for i in range(3)]
        pulled[plane] = ndimage.map_coordinates(before, source, order=1, mode="nearest")
    spicules = _spicules(rng, int(rng.integers(26, 44)), 0.5, radius, 1.7, 0.6)
    return _fill(pulled, 0.9 * around.tubes(spicules, rng), max(lesion.attenuation, LIGAMENT))


PRESS = 0.4  # a cluster is no body: compression brings its specks together in height


def _add_cluster(before: Array, around: _Surroundings, lesion: Lesion, rng: np.random.Generator) -> Array:
    """5 to 25 specks of 0.15 to 0.8 mm, of many shapes, in a part of a duct's tree."""
    count = int(np.clip(rng.normal(9 + 0.5 * lesion.size, 4), 5, 25))
    axes = np.array([1.0, *rng.uniform(0.6, 1, 2)])
    places = _directions(rng, count) * rng.uniform(0.45, 1, (count, 1)) * axes * 0.5 * lesion.size
    diameters = np.clip(0.40 * np.exp(0.35 * rng.standard_normal(count)), 0.15, 0.8)
    return before + lesion.calcium * around.specks(places @ _rotation(rng), diameters, 0.8, rng, PRESS)


def _add_smooth_mass(
    before: Array,
    around: _Surroundings,
    lesion: Lesion,
    rng: np.random.Generator,
    ratio: tuple[float, float],
    lobes: float,
) -> Array:
    core = _core(around, 0.95 * lesion.size, rng, rng.uniform(*ratio), lobes=lobes, margin=0.5)
    return _fill(before, core, lesion.attenuation)


def _add_lymph_node(before: Array, around: _Surroundings, lesion: Lesion, rng: np.random.Generator) -> Array:
    """A bean: oval, with fat in its notch."""
    seed = int(rng.integers(2**31))
    body = _core(around, 0.95 * lesion.size, np.random.default_rng(seed), 0.65, lobes=0.04, margin=0.5)
    short_axis = _rotation(np.random.default_rng(seed))[:, 2]  # the same as in the body
    hilum = around.offsets() - (0.22 * lesion.size * short_axis).astype(np.float32)
    inside = np.clip((0.2 * lesion.size - np.linalg.norm(hilum, axis=-1)) / around.grid.voxel[1] + 0.5, 0, 1)
    return _fill(_fill(before, body, lesion.attenuation), body * inside, FAT)


def _add_coarse_calcification(before: Array, around: _Surroundings, lesion: Lesion, rng: np.random.Generator) -> Array:
    """Popcorn: a few smooth, large pieces. Each is a dense cloud of specks."""
    count, pieces = int(rng.integers(1, 4)), 40
    places = _directions(rng, count) * 0.22 * lesion.size * (count > 1)
    diameters = lesion.size * rng.uniform(0.35, 0.55, count)
    cloud = places[:, None] + diameters[:, None, None] * _directions(rng, count * pieces).reshape(count, pieces, 3) * (
        0.45 * rng.random((count, pieces, 1)) ** (1 / 3)
    )
    small = np.repeat(diameters * (0.5 / pieces) ** (1 / 3), pieces)
    return before + lesion.calcium * around.specks(cloud.reshape(-1, 3), small, 0.0, rng)


def _add_vascular_calcification(
    before: Array, around: _Surroundings, lesion: Lesion, rng: np.random.Generator
) -> Array:
    """Tram tracks: specks along both walls of a vessel."""
    towards = _directions(rng, 1)[0]
    path = draw_strand(rng, -0.47 * lesion.size * towards, towards, 0.94 * lesion.size, 2, 2, bend=0.03).path
    wall = np.cross(towards, _directions(rng, 1)[0])
    wall *= rng.uniform(0.9, 1.4) / np.linalg.norm(wall)
    places = np.repeat(np.concatenate([path + wall, path - wall]), 2, axis=0)
    places = places[rng.random(len(places)) < 0.6] + rng.normal(0, 0.25, 3)
    diameters = np.clip(rng.normal(0.42, 0.1, len(places)), 0.15, 0.7)
    return before + lesion.calcium * around.specks(places, diameters, 1.0, rng)


# Malignant sizes follow the boxes of BCS-DBT (Buda et al. 2021, JAMA Netw Open 4:e2119100), whose 5/25/50/75/95% are
# 9/14/22/32/50 mm. Benign diameters have a median of 12 mm.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("spiculated mass", True, 0.40, 27.0, 0.42, 12, 55, _add_spiculated_mass),
        Kind("irregular mass", True, 0.22, 21.0, 0.50, 8, 50, _add_irregular_mass),
        Kind("architectural distortion", True, 0.13, 32.0, 0.35, 18, 55, _add_distortion),
        Kind("calcification cluster", True, 0.25, 17.0, 0.40, 10, 40, _add_cluster, calcium=True),
        Kind("round mass", False, 0.20, 11.0, 0.40, 5, 30, partial(_add_smooth_mass, ratio=(0.9, 1.0), lobes=0.03)),
        Kind("oval mass", False, 0.25, 13.0, 0.40, 5, 35, partial(_add_smooth_mass, ratio=(0.6, 0.85), lobes=0.06)),
        Kind("cyst", False, 0.20, 12.0, 0.45, 5, 35, partial(_add_smooth_mass, ratio=(0.8, 1.0), lobes=0.0)),
        Kind("lymph node", False, 0.13, 9.0, 0.30, 5, 18, _add_lymph_node),
        Kind("coarse calcification", False, 0.13, 5.0, 0.35, 3, 12, _add_coarse_calcification, calcium=True),
        Kind("vascular calcification", False, 0.09, 24.0, 0.30, 12, 40, _add_vascular_calcification, calcium=True),
    )
}
