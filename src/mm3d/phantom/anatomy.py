"""The outside of a breast: its size, thickness, density and outline, and its shape between the plates of a view."""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mm3d.data.records import Position

Array = NDArray[np.float32]
Place = tuple[float, float, float]  # x, y, z in mm of a view, or u, s, t in mm of the uncompressed breast
# Coordinates of one place or of many. Single ones are floats of Python, which leave float32 arrays as they are.
Mm = TypeVar("Mm", float, NDArray[np.floating])

FIELD = (270.27, 207.9)  # mm, rows and columns of the detector: 2457 x 1890 pixels of 0.11 mm


@dataclass(frozen=True)
class Scale:
    """How fine the images of a trial are. Sizes in mm."""

    pixel: float  # of the detector and of the reconstructed slices
    slice: float  # distance between slices, and height of the breast's own voxels
    structure: float  # voxel of the tissue that both views share; finer detail belongs to each view

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of an image."""
        return round(FIELD[0] / self.pixel), round(FIELD[1] / self.pixel)


SCALES = {
    "tiny": Scale(pixel=2.5, slice=4.0, structure=2.5),  # for tests
    "mini": Scale(pixel=0.8, slice=1.0, structure=1.0),  # for training on two cores
    "midi": Scale(pixel=0.5, slice=1.0, structure=1.0),  # the same, for prepared views of more than 128 x 256
    "full": Scale(pixel=0.11, slice=1.0, structure=1.0),  # as a scanner writes it
}

# Yaffe et al. 2009 (Med Phys 36:5437) measured 2,831 women. Volumetric density: mean 19%, 80% of the women below 27%,
# 95% below 45%. The log-normal distribution through the last two has that mean. Compressed thickness: 59 ± 16 mm.
DENSITY_MEDIAN, DENSITY_SPREAD = 0.158, 0.636
THICKNESS_MEAN, THICKNESS_SPREAD = 59.0, 16.0
THINNER_IF_DENSE = 0.3  # the correlation of thickness with density, without its sign
# Upper limits, between the volumetric densities of the four classes of VICTRE (Badano et al. 2018, JAMA Netw Open
# 1:e185474): fatty 5%, scattered 15%, heterogeneous 34%, dense 60%.
DENSITY_CLASSES = {"A": 0.10, "B": 0.24, "C": 0.45, "D": 1.0}
TILT = {"CC": 0.0, "MLO": math.pi / 4}  # of the compression, about the axis from the chest wall to the nipple
# How compression changes lengths along x, y and z: tissue spreads over the plate and loses height. Along x it is also
# stretched towards the nipple, as ducts and lobes are.
STRETCH = (1.5, 1.2, 0.7)


@dataclass(frozen=True)
class Anatomy:
    """One breast. Lengths in mm."""

    density: float  # share of the volume that is glandular
    thickness: float  # compressed
    nipple_distance: float  # from the chest wall
    length: float  # along the chest wall
    skin: float  # thickness of the skin
    fat_layer: float  # thickness of the fat under the skin
    roundness: float  # exponent of the outline
    nipple_shift: float  # of the nipple along the chest wall, as a share of half the length
    waves: tuple[tuple[float, float], ...]  # amplitude and phase of the outline's harmonics
    muscle: tuple[float, float]  # width at the top and height of the pectoral muscle in MLO, as shares
    nipple_radius: float

    @property
    def density_class(self) -> str:
        return next(name for name, limit in DENSITY_CLASSES.items() if self.density < limit)


def draw_anatomy(patient: np.random.Generator, breast: np.random.Generator) -> Anatomy:
    """Draw a breast of a patient. Both breasts of a patient are nearly alike."""
    a, b, c, d = patient.standard_normal(4) * math.sqrt(0.95) + breast.standard_normal(4) * math.sqrt(0.05)
    density = float(np.clip(DENSITY_MEDIAN * np.exp(DENSITY_SPREAD * a), 0.03, 0.65))
    thickness = THICKNESS_MEAN + THICKNESS_SPREAD * (np.sqrt(1 - THINNER_IF_DENSE**2) * b - THINNER_IF_DENSE * a)
    thickness = float(np.clip(thickness, 25.0, 100.0))
    nipple_distance = float(np.clip(92.0 + 0.45 * (thickness - THICKNESS_MEAN) + 15.0 * c, 55.0, 150.0))
    return Anatomy(
        density=density,
        thickness=thickness,
        nipple_distance=nipple_distance,
        length=float(np.clip(nipple_distance * (1.95 + 0.15 * d), 120.0, 235.0)),
        skin=breast.uniform(1.3, 2.0),
        fat_layer=breast.uniform(4.0, 9.0),
        roundness=breast.uniform(1.9, 2.6),
        nipple_shift=breast.uniform(-0.12, 0.12),
        waves=tuple((breast.normal(0, 0.006), breast.uniform(0, 2 * np.pi)) for _ in range(3)),
        muscle=(breast.uniform(0.35, 0.65), breast.uniform(0.5, 0.85)),
        nipple_radius=breast.uniform(4.0, 6.5),
    )


@dataclass(frozen=True)
class Grid:
    """The centres of voxels in mm of a view: x from the chest wall, y from the nipple, z from half the thickness."""

    z: Array
    y: Array
    x: Array
    voxel: tuple[float, float, float]  # size along z, y, x

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.z), len(self.y), len(self.x)

    def crop(self, place: Place, distance: float) -> tuple[tuple[slice, slice, slice], "Grid"]:
        """The part within a distance of a place (x, y, z), as slices of this grid and as a grid of its own."""
        where = []
        for axis, middle in zip((self.z, self.y, self.x), reversed(place), strict=True):
            first, last = np.searchsorted(axis, (middle - distance, middle + distance))
            where.append(slice(int(first), max(int(first) + 1, int(last))))
        z, y, x = where
        return (z, y, x), Grid(self.z[z], self.y[y], self.x[x], self.voxel)


@dataclass(frozen=True)
class Surface:
    """A surface of a breast between the plates: its skin, or what lies some way below."""

    half_thickness: Array  # (y, x) mm from the middle to the surface
    across: Array  # (y, x) share of each pixel that is inside the outline
    voxel: float  # mm, height of a voxel

    def part(self, rows: slice, columns: slice = slice(None)) -> "Surface":
        return Surface(self.half_thickness[rows, columns], self.across[rows, columns], self.voxel)

    def occupancy(self, z: Array) -> Array:
        """(z, y, x) share of each voxel that is breast. Surfaces are ramps of one voxel, which avoids rings."""
        share = self.half_thickness - np.abs(z)[:, None, None]
        share /= self.voxel
        share += 0.5
        np.clip(share, 0, 1, out=share)
        share *= self.across
        return share


@dataclass(frozen=True)
class CompressedBreast:
    """The shape of a breast between the plates of one view. Its grid is the part of the field that holds the breast."""

    anatomy: Anatomy
    position: Position
    scale: Scale
    grid: Grid
    top: int  # row of the image where the grid begins; its first column is the chest wall
    inside: Array  # (y, x) mm to the skin line, negative outside
    nipple: Array  # (y, x) mm inside the nipple, negative outside

    def half_thickness(self, shrink: float = 0.0) -> Array:
        """(y, x) mm from the middle to the surface, or to what lies `shrink` below it, which has no nipple."""
        half = self.anatomy.thickness / 2 - shrink
        rim = np.clip((self.inside - shrink) / half, 0, 1)
        surface = (half * np.sqrt(rim * (2 - rim))).astype(np.float32)
        if shrink:
            return surface
        radius = self.anatomy.nipple_radius
        return np.maximum(surface, np.sqrt(np.clip(radius**2 - (radius - self.nipple) ** 2, 0, None)))

    def surface(self, shrink: float = 0.0) -> Surface:
        """The surface of the breast, or what lies `shrink` below it."""
        across = self.inside - shrink if shrink else np.maximum(self.inside, self.nipple)
        across = np.clip(across / self.scale.pixel + 0.5, 0, 1)
        return Surface(self.half_thickness(shrink), across, self.scale.slice)

    def to_uncompressed(self, x: Mm, y: Mm, z: Mm) -> tuple[Mm, Mm, Mm]:
        """Places of this view in the uncompressed breast: u from the nipple backwards, s across, t upwards."""
        tilt = TILT[self.position]
        a, b = y / STRETCH[1], z / STRETCH[2]
        u = (self.anatomy.nipple_distance - x) / STRETCH[0]
        return u, a * math.cos(tilt) - b * math.sin(tilt), a * math.sin(tilt) + b * math.cos(tilt)

    def to_view(self, u: Mm, s: Mm, t: Mm) -> tuple[Mm, Mm, Mm]:
        """The inverse: x, y, z in this view of places in the uncompressed breast."""
        tilt = TILT[self.position]
        a, b = s * math.cos(tilt) + t * math.sin(tilt), t * math.cos(tilt) - s * math.sin(tilt)
        return self.anatomy.nipple_distance - u * STRETCH[0], a * STRETCH[1], b * STRETCH[2]


def compress(anatomy: Anatomy, position: Position, scale: Scale) -> CompressedBreast:
    """Put a breast between the plates."""
    pixel = scale.pixel
    rows, columns = scale.shape
    y = (np.arange(rows, dtype=np.float64) + 0.5) * pixel - FIELD[0] / 2
    if position == "MLO":  # the nipple hangs lower, and the armpit is in the image
        y = y - 0.1 * anatomy.length
    edge = _outline(anatomy, position, y)
    x = (np.arange(columns) + 0.5) * pixel
    inside = signed_distance(x[None, :] < edge[:, None], pixel)
    radius = anatomy.nipple_radius
    nipple = radius - np.hypot(x[None, :] - anatomy.nipple_distance - 0.2 * radius, y[:, None])
    near = np.maximum(inside, nipple) > -2 * pixel
    used_rows, used_columns = np.flatnonzero(near.any(axis=1)), np.flatnonzero(near.any(axis=0))
    part = (slice(int(used_rows[0]), int(used_rows[-1]) + 1), slice(int(used_columns[-1]) + 1))
    slices = max(2, round(anatomy.thickness / scale.slice))
    z = (np.arange(slices) + 0.5 - slices / 2) * scale.slice
    return CompressedBreast(
        anatomy=anatomy,
        position=position,
        scale=scale,
        grid=Grid(_single(z), _single(y[part[0]]), _single(x[part[1]]), (scale.slice, pixel, pixel)),
        top=part[0].start,
        inside=_single(inside[part]),
        nipple=_single(nipple[part]),
    )


def _single(array: NDArray[np.floating]) -> Array:
    return array.astype(np.float32)


def _outline(anatomy: Anatomy, position: Position, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """x of the skin line for each y. The nipple is at y = 0."""
    shift = anatomy.nipple_shift
    along = y / (anatomy.length / 2) + shift * (1 - np.abs(y) / (anatomy.length / 2))
    along = along - shift
    bow = np.clip(1 - np.abs(along) ** anatomy.roundness, 0, None) ** (1 / 2.0)
    if position == "MLO":  # above the nipple, the skin line runs up to the armpit
        shoulder = 0.12 + 0.75 * anatomy.muscle[0]
        slope = np.cos(np.pi / 2 * np.clip(along / 1.9, -1, 0)) ** 2.6
        bow = np.where(along < 0, shoulder + (1 - shoulder) * slope, bow)
    for number, (amplitude, phase) in enumerate(anatomy.waves, start=2):
        bow = bow * (1 + amplitude * (np.sin(number * np.pi * along + phase) - np.sin(phase)))
    return anatomy.nipple_distance * bow


def signed_distance(mask: NDArray[np.bool_], pixel: float) -> NDArray[np.float64]:
    """mm to the border of a mask, negative outside. The mask goes on beyond the image, without a border there."""
    padded = np.pad(mask, 1, mode="edge")
    distance = ndimage.distance_transform_edt(padded) - ndimage.distance_transform_edt(~padded)
    return (distance[1:-1, 1:-1] - 0.5 * np.sign(distance[1:-1, 1:-1])) * pixel
