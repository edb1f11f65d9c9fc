"""The inside of a breast: fat, gland, ligaments, ducts, vessels, skin and muscle, as attenuation between the plates.

First a `Structure` is drawn: random fields and strands in the uncompressed breast, which both views share. Axes: u from
the nipple backwards, s across, t upwards, in mm. Then each view samples the fields on its own grid, adds finer detail,
and turns the sum into tissue by thresholds. Thresholds give borders where a Gaussian field alone would give clouds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import fft, sparse

from mm3d.phantom.anatomy import STRETCH, Array, CompressedBreast, Grid
from mm3d.phantom.strands import Strand, draw_strand, rasterise

# Attenuation in 1/mm, weighted with a mammographic spectrum behind 5.5 cm of breast with 10% gland. The materials are
# those of VICTRE (Badano et al. 2018, JAMA Netw Open 1:e185474): a mass is gland of 1.06 times the density, a
# calcification is calcium oxalate.
FAT, GLAND, SKIN, LIGAMENT, MUSCLE = 0.0472, 0.0695, 0.0765, 0.0797, 0.0787
MASS = (0.0712, 0.0735)  # drawn from this range for benign and malignant masses alike
CALCIUM = 0.72

# The structure. Numbers without a source were chosen to look right and to pass tools/audit_phantom.py.
PERIOD = 128.0  # mm: the random fields repeat
HALF_WIDTH = 96.0  # mm: the structure extends so far to either side in s and t,
FRONT, BACK = -12.0, 108.0  # and so far along u
APEX, MIDDLE = 40.0, 45.0  # mm: structures point to a place APEX before the nipple, and are unscaled at u = MIDDLE
LARGEST, EXPONENT = 45.0, 3.3  # power law of the lobes: flat for structures beyond LARGEST mm, f^-EXPONENT (3D) below
SHEET_DISTANCES = (22.0, 13.0, 8.0)  # mm, typical distance between the ligaments of each family
DUCTS, VESSELS, FIBRES = 14, 5, 60

# The tissue of a view.
EDGE = 0.35  # softness of the border between gland and fat, in units of the gland's score
FULLNESS = 0.78  # share of gland within glandular tissue; the rest is fat
DETAIL = 0.36  # strength of detail below the structure's voxels; 1 would continue the power law of the lobes
SHEET_THICKNESS, SHEET_SHARE = 0.7, 0.3  # mm of a ligament, and the largest share of ligament in it
SUBSAMPLE = 60_000  # voxels that are enough to find the gland's threshold
SLAB = 300_000  # voxels that are computed at once: what fits into the processor's cache is several times faster


@dataclass(frozen=True)
class Structure:
    """An uncompressed breast. Fields are (s, t, u) with mean 0 and variance 1."""

    voxel: float  # mm, of the lobes
    lobes: Array  # power law down to the voxel
    sheets: tuple[tuple[Array, Array], ...]  # smooth fields whose zero levels are ligaments, and their slopes (1/mm)
    sheet_voxel: float
    centre: tuple[float, float]  # s and t of the middle of the gland
    compactness: float  # how much the gland keeps to its centre
    strands: tuple[Strand, ...]  # ducts, vessels and fibres


def draw_structure(rng: np.random.Generator, voxel: float) -> Structure:
    size = round(PERIOD / voxel)
    sheet_voxel = PERIOD / round(PERIOD / max(2.0, voxel))
    sheets = []
    for distance in SHEET_DISTANCES:
        field = _random_field(rng, round(PERIOD / sheet_voxel), sheet_voxel, _band_amplitude(distance))
        field = _fan_out(field, sheet_voxel, stretch=2.0)
        slopes = [np.gradient(field, sheet_voxel, axis=i) for i in range(3)]
        sheets.append((field, np.sqrt(slopes[0] ** 2 + slopes[1] ** 2 + slopes[2] ** 2)))
    lobes = _fan_out(_random_field(rng, size, voxel, _power_law_amplitude), voxel)
    compactness = rng.uniform(3.5, 6.5)
    centre = (float(rng.normal(0, 9)), float(rng.normal(6, 9)))
    counts = ((_draw_duct, DUCTS), (_draw_vessel, VESSELS), (_draw_fibre, FIBRES))
    strands = tuple(draw(rng) for draw, count in counts for _ in range(count))
    return Structure(voxel, lobes, tuple(sheets), sheet_voxel, centre, compactness, strands)


def _power_law_amplitude(f: Array) -> Array:
    return (f**2 + LARGEST**-2.0) ** (-EXPONENT / 4)


def _band_amplitude(distance: float) -> Callable[[Array], Array]:
    def amplitude(f: Array) -> Array:
        return np.exp(-0.5 * ((f * distance - 0.5) / 0.28) ** 2)

    return amplitude


def _random_field(rng: np.random.Generator, size: int, voxel: float, amplitude: Callable[[Array], Array]) -> Array:
    """A periodic Gaussian field with the given amplitude at each frequency (1/mm), mean 0 and variance 1."""
    frequency = fft.fftfreq(size, voxel).astype(np.float32)
    last = fft.rfftfreq(size, voxel).astype(np.float32)
    f = np.sqrt(frequency[:, None, None] ** 2 + frequency[None, :, None] ** 2 + last**2)
    spectrum = fft.rfftn(rng.standard_normal((size, size, size), dtype=np.float32)) * amplitude(f)
    spectrum[0, 0, 0] = 0
    field = fft.irfftn(spectrum, (size, size, size))
    return field / field.std()


def _fan_out(field: Array, voxel: float, stretch: float = 1.0) -> Array:
    """(s, t, u): a periodic field that converges towards the nipple, as lobes, ducts and ligaments do. It is also
    stretched along u."""
    size = len(field)
    across = np.arange(-HALF_WIDTH, HALF_WIDTH, voxel)
    along = np.arange(FRONT, BACK, voxel)
    fanned = np.empty((len(across), len(across), len(along)), np.float32)
    for i, u in enumerate(along):
        weights = _linear_weights(across * (MIDDLE + APEX) / (u + APEX) / voxel, size).toarray()
        place = u / voxel / stretch
        low = int(np.floor(place))
        plane = field[:, :, low % size] * (low + 1 - place) + field[:, :, (low + 1) % size] * (place - low)
        fanned[:, :, i] = weights @ plane @ weights.T
    return fanned


def _linear_weights(place: NDArray[np.floating], size: int) -> sparse.csr_array:
    """(places, size): weights of a linear interpolation at places in a periodic row of `size` values."""
    low = np.floor(place)
    share = place - low
    index = np.concatenate([low, low + 1]).astype(np.int64) % size
    rows = np.tile(np.arange(len(place)), 2)
    weights = np.concatenate([1 - share, share]).astype(np.float32)
    return sparse.csr_array((weights, (rows, index)), shape=(len(place), size))


def _draw_duct(rng: np.random.Generator) -> Strand:
    """From the nipple backwards."""
    s, t = rng.normal(0, 0.9, 2)
    return draw_strand(rng, (0.0, 0.0, 0.0), (1.0, s, t), 70.0, 1.3, 0.6, bend=0.10)


def _draw_vessel(rng: np.random.Generator) -> Strand:
    """From behind, below the skin, towards the nipple."""
    angle = rng.uniform(0, 2 * np.pi)
    start = (rng.uniform(50, 75), 40 * np.cos(angle), 40 * np.sin(angle))
    towards = (-1.0, -0.5 * np.cos(angle) + rng.normal(0, 0.3), -0.5 * np.sin(angle) + rng.normal(0, 0.3))
    length, first, last = rng.uniform(50, 90), rng.uniform(1.6, 2.6), rng.uniform(0.8, 1.4)
    return draw_strand(rng, start, towards, length, first, last, bend=0.06)


def _draw_fibre(rng: np.random.Generator) -> Strand:
    """A strand of connective tissue somewhere in the fat, roughly towards the nipple."""
    s, t = rng.uniform(-65, 65, 2)
    u = rng.uniform(8, 70)
    towards = (-1.0, -s / (u + APEX) + rng.normal(0, 0.35), -t / (u + APEX) + rng.normal(0, 0.35))
    thick = float(np.clip(0.8 * np.exp(0.45 * rng.standard_normal()), 0.3, 2.2))
    return draw_strand(rng, (u, s, t), towards, rng.uniform(10, 40), thick, 0.5 * thick, bend=0.07)


def make_tissue(breast: CompressedBreast, structure: Structure, rng: np.random.Generator) -> Array:
    """(z, y, x) attenuation in 1/mm of the breast between the plates, without lesions. Air is 0."""
    grid = breast.grid
    volume = np.empty(grid.shape, np.float32)
    threshold = _gland_threshold(breast, structure)
    detail = _Detail(breast, structure, rng)
    muscle = _Muscle(breast, rng) if breast.position == "MLO" else None
    bands = [(rows, _Band(breast, structure, rows)) for rows in _bands(grid)]
    for part in _slabs(grid):
        fine = detail.draw(part.stop - part.start)
        for rows, band in bands:
            tissue = band.make_tissue(grid.z[part], fine[:, rows], threshold)
            if muscle:
                muscle.add(tissue, grid.z[part], rows)
            volume[part, rows] = band.cover_with_skin(tissue, grid.z[part])
    added = rasterise(grid, [strand.move(breast.to_view) for strand in structure.strands], rng)
    for part in _slabs(grid):
        for rows, band in bands:
            more = added[part, rows] * np.float32(LIGAMENT - FAT)
            more *= band.below_skin.occupancy(grid.z[part])
            volume[part, rows] += more
    return volume


def make_surrounding_fat(breast: CompressedBreast) -> Array:
    """(z, y, x) attenuation in 1/mm of fat wherever there is no breast between the plates.

    Images get it in addition: it evens out the thinner rim of the breast, as a vendor's equalisation does.
    """
    surface = breast.surface()
    fat = np.empty(breast.grid.shape, np.float32)
    for part in _slabs(breast.grid):
        fat[part] = FAT * (1 - surface.occupancy(breast.grid.z[part]))
    return fat


def _slabs(grid: Grid) -> list[slice]:
    """Parts of the volume along z."""
    count = max(1, SLAB // (grid.shape[1] * grid.shape[2]))
    return [slice(first, min(first + count, grid.shape[0])) for first in range(0, grid.shape[0], count)]


def _bands(grid: Grid) -> list[slice]:
    """Parts of a slice along y: one, unless the slice is larger than a slab."""
    count = math.ceil(grid.shape[1] * grid.shape[2] / SLAB)
    rows = math.ceil(grid.shape[1] / count)
    return [slice(first, first + rows) for first in range(0, grid.shape[1], rows)]


class _Band:
    """Some rows of a view, with all that is the same in its slices."""

    def __init__(self, breast: CompressedBreast, structure: Structure, rows: slice) -> None:
        grid = replace(breast.grid, y=breast.grid.y[rows])
        breast = replace(breast, grid=grid, inside=breast.inside[rows], nipple=breast.nipple[rows])
        self.skin, self.below_skin = breast.surface(), breast.surface(breast.anatomy.skin)
        self.gland = _GlandScore(breast, structure)
        self.sheets = _Sampler(breast, structure.sheets[0][0].shape, structure.sheet_voxel)
        self.structure, self.pixel = structure, breast.scale.pixel

    def make_tissue(self, z: Array, fine: Array, threshold: float) -> Array:
        """(z, y, x) attenuation without skin, muscle and strands. `fine` is detail of the same shape."""
        score = self.gland.at(z)
        score += fine
        score -= threshold
        score /= EDGE
        gland = _smooth_step(score)
        weights = self.sheets.weights(z)
        sheets = [self.sheets.read(field, weights) for field, _ in self.structure.sheets]
        fullness = FULLNESS + 0.2 * sheets[-1]
        fullness += 0.5 * fine
        gland *= np.clip(fullness, 0.3, 1.0, out=fullness)
        gland *= GLAND - FAT
        gland += FAT
        gland += (LIGAMENT - gland) * self._ligaments(sheets, weights)
        return gland

    def _ligaments(self, sheets: list[Array], weights: sparse.csr_array) -> Array:
        """(z, y, x) share of ligament: thin sheets. A sheet that is thinner than a voxel fills a part of it.

        A sheet is strong where the field of another family is high and ends where that is low. So there are strands
        and no closed cells.
        """
        width = max(SHEET_THICKNESS, self.pixel)
        total = np.zeros_like(sheets[0])
        for number, (_, slope) in enumerate(self.structure.sheets):
            steepness = self.sheets.read(slope, weights)
            distance = sheets[number] / np.maximum(steepness, 0.02, out=steepness)
            distance /= 0.5 * width
            distance *= distance
            distance *= -0.5
            strength = 0.7 * sheets[number - 1]
            strength += 0.2
            np.clip(strength, 0, 1.5, out=strength)
            strength *= np.exp(distance, out=distance)
            total += strength
        np.minimum(total, 1.5, out=total)
        total *= SHEET_SHARE * min(1.0, SHEET_THICKNESS / width)
        return total

    def cover_with_skin(self, tissue: Array, z: Array) -> Array:
        with_skin, below_skin = self.skin.occupancy(z), self.below_skin.occupancy(z)
        tissue *= below_skin
        with_skin -= below_skin
        with_skin *= SKIN
        tissue += with_skin
        return tissue


def _smooth_step(value: Array) -> Array:
    """From 0 at -1 to 1 at 1."""
    value = np.clip(0.5 + value / 2, 0, 1)
    falling = 3 - 2 * value
    value *= value
    value *= falling
    return value


class _Sampler:
    """Reads fields of the structure on (some slices of) the grid of a view, by linear interpolation.

    u depends on x only and (s, t) on (y, z) only, so a sparse matrix from the left and a small one from the right do.
    """

    def __init__(self, breast: CompressedBreast, shape: tuple[int, ...], voxel: float) -> None:
        self.breast, self.voxel = breast, voxel
        self.size, _, self.length = shape
        u, _, _ = breast.to_uncompressed(breast.grid.x, breast.grid.x, breast.grid.x)
        place = np.clip((u - FRONT) / voxel, 0, self.length - 1.001)
        self.along = _linear_weights(place, self.length).toarray()

    def weights(self, z: Array) -> sparse.csr_array:
        """The matrix from the left."""
        zz, yy = np.meshgrid(z, self.breast.grid.y, indexing="ij")
        _, s, t = self.breast.to_uncompressed(yy.ravel(), yy.ravel(), zz.ravel())
        size = self.size
        s, t = (np.clip((place + HALF_WIDTH) / self.voxel, 0, size - 1.001) for place in (s, t))
        i, j = np.floor(s).astype(np.int64), np.floor(t).astype(np.int64)
        a, b = s - i, t - j
        columns = np.concatenate([i * size + j, i * size + j + 1, (i + 1) * size + j, (i + 1) * size + j + 1])
        shares = np.concatenate([(1 - a) * (1 - b), (1 - a) * b, a * (1 - b), a * b]).astype(np.float32)
        rows = np.tile(np.arange(len(s)), 4)
        return sparse.csr_array((shares, (rows, columns)), shape=(len(s), size * size))

    def read(self, field: Array, weights: sparse.csr_array) -> Array:
        """(z, y, x) of a field."""
        values = (weights @ field.reshape(self.size**2, self.length)) @ self.along.T
        return values.reshape(-1, len(self.breast.grid.y), len(self.breast.grid.x))


class _GlandScore:
    """There is gland where the score is high. It is the field of the lobes less a penalty for places under the skin, in
    front of the chest wall and far from the axis of the nipple, where there is fat."""

    def __init__(self, breast: CompressedBreast, structure: Structure) -> None:
        anatomy, grid = breast.anatomy, breast.grid
        self.breast, self.lobes = breast, structure.lobes
        self.sampler = _Sampler(breast, structure.lobes.shape, structure.voxel)
        self.half_thickness = breast.half_thickness()
        _, middle, _ = breast.to_view(0.0, *structure.centre)
        behind = np.clip(1 - grid.x / (0.16 * anatomy.nipple_distance), 0, 1)
        across = (grid.y - middle) / (0.5 * anatomy.length)
        front = (grid.x - 0.55 * anatomy.nipple_distance) / (0.62 * anatomy.nipple_distance)
        off_axis = np.clip(across[:, None] ** 2 * 1.6 + front[None, :] ** 2, 0, None)
        if breast.position == "MLO":
            behind = behind * 0.5
        self.far = 1.2 * behind + structure.compactness * off_axis

    def at(self, z: Array) -> Array:
        """(z, y, x)"""
        anatomy = self.breast.anatomy
        below = self.half_thickness - np.abs(z)[:, None, None]
        below *= 1.6
        np.minimum(self.breast.inside, below, out=below)
        below -= anatomy.skin
        below /= anatomy.fat_layer
        penalty = np.clip(1 - below, 0, 1.5, out=below)
        penalty *= 2.5
        penalty += self.far
        return self.sampler.read(self.lobes, self.sampler.weights(z)) - penalty


def _gland_threshold(breast: CompressedBreast, structure: Structure) -> float:
    """The score above which the share of gland is the breast's density, found on a part of the voxels."""
    step = max(1, round((np.prod(breast.grid.shape) / SUBSAMPLE) ** (1 / 3)))
    grid = Grid(breast.grid.z[::step], breast.grid.y[::step], breast.grid.x[::step], breast.grid.voxel)
    coarse = replace(breast, grid=grid, inside=breast.inside[::step, ::step], nipple=breast.nipple[::step, ::step])
    inner = coarse.surface(breast.anatomy.skin).occupancy(grid.z) > 0.5
    share = min(0.95, breast.anatomy.density / FULLNESS)
    return float(np.quantile(_GlandScore(coarse, structure).at(grid.z)[inner], 1 - share))


class _Detail:
    """What is finer than the voxels of the structure: the power law continues, in each slice of a view separately."""

    def __init__(self, breast: CompressedBreast, structure: Structure, rng: np.random.Generator) -> None:
        self.rng = rng
        self.size = breast.grid.shape[1:]
        self.shape = tuple(fft.next_fast_len(n, real=True) for n in self.size)
        fy = fft.fftfreq(self.shape[0], breast.scale.pixel)[:, None]
        fx = fft.rfftfreq(self.shape[1], breast.scale.pixel)
        f = np.hypot(fy, fx)
        limit = 0.35 / (structure.voxel * STRETCH[1])
        # A plane through a 3D power law has the exponent less one. Where structures are smaller than the slice is
        # thick, the slice is a projection and has the exponent of the 3D law.
        plane = (f**2 + LARGEST**-2.0) ** (-(EXPONENT - 1) / 2)
        steeper = plane * limit / np.maximum(f, limit)
        power = steeper * (1 - np.exp(-((f / limit) ** 4))) / (2 * plane.sum())
        self.amplitude = (DETAIL * np.sqrt(power * np.prod(self.shape))).astype(np.float32)

    def draw(self, slices: int) -> Array:
        """(slices, y, x)"""
        noise = self.rng.standard_normal((slices, *self.shape), dtype=np.float32)
        spectrum = fft.rfft2(noise, overwrite_x=True)
        spectrum *= self.amplitude
        field: Array = fft.irfft2(spectrum, self.shape, overwrite_x=True)
        return field[:, : self.size[0], : self.size[1]]


def muscle_distance(breast: CompressedBreast) -> Array:
    """(y, x) mm inside the pectoral muscle of MLO, negative outside: a wedge at the top of the chest wall."""
    anatomy, y, x = breast.anatomy, breast.grid.y[:, None], breast.grid.x[None, :]
    width, height = anatomy.muscle[0] * 0.75 * anatomy.nipple_distance, anatomy.muscle[1] * 1.1 * anatomy.length
    down = (y - breast.grid.y[0]) / height
    border = width * (1 - down) * (1 + 0.12 * np.sin(np.pi * np.clip(down, 0, 1)))
    return (border - x) / math.hypot(1, width / height)


class _Muscle:
    """The pectoral muscle, with fibres along its border."""

    def __init__(self, breast: CompressedBreast, rng: np.random.Generator) -> None:
        self.distance = muscle_distance(breast)
        self.half_thickness = breast.anatomy.thickness / 2 * (0.25 + 0.35 * np.clip(self.distance / 25, 0, 1))
        along = 0.15 * breast.grid.y[:, None]
        waves = zip(rng.uniform(0.15, 0.6, 12), rng.normal(0, 0.15, 12), rng.uniform(0, 2 * np.pi, 12), strict=True)
        fibres = [np.sin(float(a) * self.distance + float(b) * along + float(c)) for a, b, c in waves]
        self.attenuation = MUSCLE + 0.10 * (MUSCLE - FAT) * (np.sum(fibres, axis=0) / math.sqrt(12))

    def add(self, tissue: Array, z: Array, rows: slice) -> None:
        """To a part of the view: some slices, some rows."""
        above = (self.half_thickness[rows] - np.abs(z)[:, None, None]) / 2
        share = _smooth_step(np.minimum(self.distance[rows] / 1.5, above))
        share *= self.attenuation[rows] - tissue
        tissue += share
