"""The outside of a breast: size, thickness, density and outline, and its form between the plates of a view."""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mm3d.data.records import Position
from mm3d.phantom.scale import FIELD, Scale

Array = NDArray[np.float32]
Mm = TypeVar("Mm", float, NDArray[np.floating])  # a place, or many: as floats of Python, which leave float32 as it is

# Volumetric density: mean 19%, 80% of women below 27%, 95% below 45% (a log-normal through the last two has that mean).
DENSITY_MEDIAN, DENSITY_SPREAD = 0.158, 0.636
DENSITY_CLASSES = {"A": 0.10, "B": 0.24, "C": 0.45, "D": 1.0}  # upper limits, between the classes of VICTRE
THICKNESS_MEAN, THICKNESS_SPREAD = 59.0, 16.0  # mm, compressed
SHARE = 0.3  # dense breasts are thinner: the correlation of thickness with (minus) density
TILT = {"CC": 0.0, "MLO": math.pi / 4}  # of the compression, about the axis from chest wall to nipple


@dataclass(frozen=True)
class Anatomy:
    """One breast. Lengths in mm."""

    density: float  # share of the volume that is glandular
    thickness: float  # compressed
    depth: float  # from chest wall to nipple
    length: float  # along the chest wall
    skin: float  # thickness of the skin
    fat: float  # thickness of the fat under the skin
    roundness: float  # exponent of the outline
    lean: float  # where the nipple is along the chest wall: -1 to 1 of the half length, small
    waves: tuple[tuple[float, float], ...]  # amplitude and phase of the outline's harmonics
    muscle: tuple[float, float]  # width at the top and height of the pectoral muscle in MLO, as shares
    nipple: float  # radius

    @property
    def density_class(self) -> str:
        return next(name for name, limit in DENSITY_CLASSES.items() if self.density < limit)


def draw_anatomy(patient: np.random.Generator, breast: np.random.Generator) -> Anatomy:
    """A breast of a patient: both breasts of a patient are nearly alike."""
    a, b, c, d = patient.standard_normal(4) * math.sqrt(0.95) + breast.standard_normal(4) * math.sqrt(0.05)
    density = float(np.clip(DENSITY_MEDIAN * np.exp(DENSITY_SPREAD * a), 0.03, 0.65))
    thickness = THICKNESS_MEAN + THICKNESS_SPREAD * (np.sqrt(1 - SHARE**2) * b - SHARE * a)
    thickness = float(np.clip(thickness, 25.0, 100.0))
    depth = float(np.clip(92.0 + 0.45 * (thickness - THICKNESS_MEAN) + 15.0 * c, 55.0, 150.0))
    return Anatomy(
        density=density,
        thickness=thickness,
        depth=depth,
        length=float(np.clip(depth * (1.95 + 0.15 * d), 120.0, 235.0)),
        skin=breast.uniform(1.3, 2.0),
        fat=breast.uniform(4.0, 9.0),
        roundness=breast.uniform(1.9, 2.6),
        lean=breast.uniform(-0.12, 0.12),
        waves=tuple((breast.normal(0, 0.006), breast.uniform(0, 2 * np.pi)) for _ in range(3)),
        muscle=(breast.uniform(0.35, 0.65), breast.uniform(0.5, 0.85)),
        nipple=breast.uniform(4.0, 6.5),
    )


@dataclass(frozen=True)
class Grid:
    """The middles of voxels in mm of a view: x from the chest wall, y from the nipple, z from half the thickness."""

    z: Array
    y: Array
    x: Array
    voxel: tuple[float, float, float]

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.z), len(self.y), len(self.x)

    def around(self, place: tuple[float, float, float], reach: float) -> tuple[tuple[slice, slice, slice], "Grid"]:
        """The part within `reach` of a place (x, y, z), as slices of this grid and as a grid of its own."""
        where = []
        for axis, middle in zip((self.z, self.y, self.x), reversed(place), strict=True):
            first, last = np.searchsorted(axis, (middle - reach, middle + reach))
            where.append(slice(int(first), max(int(first) + 1, int(last))))
        z, y, x = where
        return (z, y, x), Grid(self.z[z], self.y[y], self.x[x], self.voxel)


@dataclass(frozen=True)
class Form:
    """A breast between the plates of one view, on the grid of its image: a box around the breast."""

    anatomy: Anatomy
    position: Position
    scale: Scale
    grid: Grid
    top: int  # the box's first row in the image; its first column is the chest wall
    inside: Array  # (y, x) mm to the skin line, negative outside
    nipple: Array  # (y, x) mm inside the nipple, negative outside

    @property
    def tilt(self) -> float:
        return TILT[self.position]

    def half_thickness(self, shrink: float = 0.0) -> Array:
        """(y, x) mm from the middle to the surface of the breast, or to what is `shrink` below it (no nipple there)."""
        half = self.anatomy.thickness / 2 - shrink
        rim = np.clip((self.inside - shrink) / half, 0, 1)
        surface = (half * np.sqrt(rim * (2 - rim))).astype(np.float32)
        if shrink:
            return surface
        radius = self.anatomy.nipple
        return np.maximum(surface, np.sqrt(np.clip(radius**2 - (radius - self.nipple) ** 2, 0, None)))

    def occupied(self, z: Array, shrink: float = 0.0) -> Array:
        """(z, y, x) share of each voxel that is breast; surfaces are ramps of a voxel, which avoids rings."""
        half = self.half_thickness(shrink)
        across = self.inside - shrink if shrink else np.maximum(self.inside, self.nipple)
        across = np.clip(across / self.scale.pixel + 0.5, 0, 1)
        return np.clip((half - np.abs(z[:, None, None])) / self.scale.slice + 0.5, 0, 1) * across

    def latent(self, x: Mm, y: Mm, z: Mm) -> tuple[Mm, Mm, Mm]:
        """Places (mm, this view) in the breast before compression: u from the nipple, s across, t upwards."""
        a, b = y / STRETCH[1], z / STRETCH[2]
        u = (self.anatomy.depth - x) / STRETCH[0]
        return u, a * math.cos(self.tilt) - b * math.sin(self.tilt), a * math.sin(self.tilt) + b * math.cos(self.tilt)

    def compressed(self, u: Mm, s: Mm, t: Mm) -> tuple[Mm, Mm, Mm]:
        """The other way round: x, y, z of this view."""
        a, b = s * math.cos(self.tilt) + t * math.sin(self.tilt), t * math.cos(self.tilt) - s * math.sin(self.tilt)
        return self.anatomy.depth - u * STRETCH[0], a * STRETCH[1], b * STRETCH[2]


# What compression does to tissue along x, y and z: spread over the plate, pressed in height. Along x it is also drawn
# out towards the nipple, as ducts and lobes are.
STRETCH = (1.5, 1.2, 0.7)


def form(anatomy: Anatomy, position: Position, scale: Scale) -> Form:
    """The breast between the plates."""
    pixel = scale.pixel
    rows, columns = scale.shape
    y = (np.arange(rows, dtype=np.float64) + 0.5) * pixel - FIELD[0] / 2
    if position == "MLO":  # the nipple hangs lower, and the armpit is in the picture
        y = y - 0.1 * anatomy.length
    edge = _outline(anatomy, position, y)
    x = (np.arange(columns) + 0.5) * pixel
    inside = _signed_distance(x[None, :] < edge[:, None], pixel)
    nipple = anatomy.nipple - np.hypot(x[None, :] - anatomy.depth - 0.2 * anatomy.nipple, y[:, None])
    near = np.maximum(inside, nipple) > -2 * pixel
    used = np.flatnonzero(near.any(axis=1))
    wide = int(np.flatnonzero(near.any(axis=0))[-1]) + 1
    top, bottom = int(used[0]), int(used[-1]) + 1
    slices = max(2, round(anatomy.thickness / scale.slice))
    z = (np.arange(slices) + 0.5 - slices / 2) * scale.slice
    box = (slice(top, bottom), slice(wide))
    return Form(
        anatomy=anatomy,
        position=position,
        scale=scale,
        grid=Grid(_single(z), _single(y[box[0]]), _single(x[box[1]]), (scale.slice, pixel, pixel)),
        top=top,
        inside=_single(inside[box]),
        nipple=_single(nipple[box]),
    )


def _single(array: NDArray[np.floating]) -> Array:
    return array.astype(np.float32)


def _outline(anatomy: Anatomy, position: Position, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """x of the skin line for each y; the nipple is at y = 0."""
    along = y / (anatomy.length / 2) + anatomy.lean * (1 - np.abs(y) / (anatomy.length / 2))
    along = along - anatomy.lean
    bow = np.clip(1 - np.abs(along) ** anatomy.roundness, 0, None) ** (1 / 2.0)
    if position == "MLO":  # above, the skin line runs up to the armpit
        shoulder = 0.12 + 0.75 * anatomy.muscle[0]
        slope = np.cos(np.pi / 2 * np.clip(along / 1.9, -1, 0)) ** 2.6
        bow = np.where(along < 0, shoulder + (1 - shoulder) * slope, bow)
    for number, (amplitude, phase) in enumerate(anatomy.waves, start=2):
        bow = bow * (1 + amplitude * (np.sin(number * np.pi * along + phase) - np.sin(phase)))
    return anatomy.depth * bow


def _signed_distance(mask: NDArray[np.bool_], pixel: float) -> NDArray[np.float64]:
    """mm to the border of a mask, negative outside. What continues beyond the picture has no border there."""
    padded = np.pad(mask, 1, mode="edge")
    distance = ndimage.distance_transform_edt(padded) - ndimage.distance_transform_edt(~padded)
    return (distance[1:-1, 1:-1] - 0.5 * np.sign(distance[1:-1, 1:-1])) * pixel
