"""The inside of a breast: fat, gland, ligaments, ducts, vessels, skin and muscle, as attenuation between the plates.

Both views of a breast look at one latent tissue: random fields on a torus (they repeat, and nobody sees where), with
axes u from the nipple backwards, s across and t upwards. A view interpolates them on its own grid, adds what is finer
than the fields' voxels, and makes tissue of the sum by thresholds, which gives borders where a Gaussian field alone
would give clouds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import fft, sparse

from mm3d.phantom.anatomy import STRETCH, Array, Form, Grid
from mm3d.phantom.strands import Strand, splat, wander

# Attenuation in 1/mm, weighted with a mammographic spectrum behind 5.5 cm of breast.
FAT, GLAND, SKIN, LIGAMENT, MUSCLE = 0.0472, 0.0695, 0.0765, 0.0797, 0.0787
MASS = (0.0712, 0.0735)  # lesions, benign and malignant alike: drawn from this range
CALCIUM = 0.72

Amplitude = Callable[[Array], Array]  # at frequencies in 1/mm

TORUS = 128.0  # mm, the period of the latent fields
SLAB = 300_000  # voxels of a view that are made at once: what fits into the processor's cache is several times faster


@dataclass(frozen=True)
class Latent:
    """The random fields of one breast, each (s, t, u) with mean 0 and variance 1 but for the slopes."""

    voxel: float  # mm of the fine field
    lobes: Array  # power law, all scales down to its voxel
    sheets: tuple[tuple[Array, Array], ...]  # smooth fields whose zero levels are ligaments, and their slopes (1/mm)
    sheet_voxel: float
    centre: tuple[float, float]  # where most of the gland is: s, t of its middle
    compact: float  # how much the gland keeps together there
    ducts: tuple[Strand, ...]  # in latent mm
    vessels: tuple[Strand, ...]
    fibres: tuple[Strand, ...]


def draw_latent(rng: np.random.Generator, voxel: float) -> Latent:
    size = round(TORUS / voxel)
    sheet_voxel = TORUS / round(TORUS / max(2.0, voxel))
    sheets = []
    for feature in SHEET_FEATURES:
        field = _fanned(
            _random_field(rng, round(TORUS / sheet_voxel), sheet_voxel, _bump(feature)), sheet_voxel, drawn=2.0
        )
        slopes = [np.gradient(field, sheet_voxel, axis=i) for i in range(3)]
        sheets.append((field, np.sqrt(slopes[0] ** 2 + slopes[1] ** 2 + slopes[2] ** 2)))
    return Latent(
        voxel=voxel,
        lobes=_fanned(_random_field(rng, size, voxel, _power_law), voxel),
        sheets=tuple(sheets),
        sheet_voxel=sheet_voxel,
        compact=rng.uniform(3.5, 6.5),
        centre=(float(rng.normal(0, 9)), float(rng.normal(6, 9))),
        ducts=tuple(wander(rng, (0.0, 0.0, 0.0), _fan(rng, 0.9), 70.0, 1.3, 0.6, bend=0.10) for _ in range(14)),
        vessels=tuple(_vessel(rng) for _ in range(5)),
        fibres=tuple(_fibre(rng) for _ in range(FIBRES)),
    )


SHEET_FEATURES = (22.0, 13.0, 8.0)  # mm, typical distance between the ligaments of each field
LARGEST = 45.0  # mm: the power law is flat beyond
EXPONENT = 3.3  # of the latent field in 3D
DETAIL = 0.45  # of the strength with which the power law would go on below the latent voxels


def _power_law(f: Array) -> Array:
    return (f**2 + LARGEST**-2.0) ** (-EXPONENT / 4)


def _bump(feature: float) -> Amplitude:
    def amplitude(f: Array) -> Array:
        return np.exp(-0.5 * ((f * feature - 0.5) / 0.28) ** 2)

    return amplitude


def _random_field(rng: np.random.Generator, size: int, voxel: float, amplitude: Amplitude) -> Array:
    """A periodic Gaussian field with the given amplitude at each frequency (1/mm), mean 0 and variance 1."""
    frequency = fft.fftfreq(size, voxel).astype(np.float32)
    last = fft.rfftfreq(size, voxel).astype(np.float32)
    f = np.sqrt(frequency[:, None, None] ** 2 + frequency[None, :, None] ** 2 + last**2)
    spectrum = fft.rfftn(rng.standard_normal((size, size, size), dtype=np.float32)) * amplitude(f)
    spectrum[0, 0, 0] = 0
    field = fft.irfftn(spectrum, (size, size, size))
    return field / field.std()


HALF = 96.0  # mm: latent fields reach from -HALF to HALF in s and t
FRONT, BACK = -12.0, 108.0  # mm: and so far along u
APEX, MIDDLE = 40.0, 45.0  # mm: structures point to a place APEX before the nipple, and have their size at MIDDLE


def _fanned(field: Array, voxel: float, drawn: float = 1.0) -> Array:
    """(s, t, u): a periodic field drawn together towards the nipple, as lobes, ducts and ligaments are, and drawn out
    along the way there."""
    size = len(field)
    across = np.arange(-HALF, HALF, voxel)
    along = np.arange(FRONT, BACK, voxel)
    fanned = np.empty((len(across), len(across), len(along)), np.float32)
    for i, u in enumerate(along):
        weights = _linear(across * (MIDDLE + APEX) / (u + APEX) / voxel, size).toarray()
        fanned[:, :, i] = weights @ _between(field, u / voxel / drawn) @ weights.T
    return fanned


def _between(field: Array, place: float) -> Array:
    """(s, t): the plane at a place between two planes of a periodic field."""
    low, size = int(np.floor(place)), field.shape[2]
    return field[:, :, low % size] * (low + 1 - place) + field[:, :, (low + 1) % size] * (place - low)


def _linear(place: NDArray[np.floating], size: int) -> sparse.csr_array:
    """(places, size): the weights of linear interpolation at places in a periodic row of `size` values."""
    low = np.floor(place)
    share = place - low
    index = np.concatenate([low, low + 1]).astype(np.int64) % size
    rows = np.tile(np.arange(len(place)), 2)
    weights = np.concatenate([1 - share, share]).astype(np.float32)
    return sparse.csr_array((weights, (rows, index)), shape=(len(place), size))


def _fan(rng: np.random.Generator, width: float) -> tuple[float, float, float]:
    """A direction from the nipple backwards."""
    s, t = rng.normal(0, width, 2)
    return (1.0, float(s), float(t))


def _vessel(rng: np.random.Generator) -> Strand:
    """From behind, below the skin, towards the nipple."""
    angle = rng.uniform(0, 2 * np.pi)
    start = (rng.uniform(50, 75), 40 * np.cos(angle), 40 * np.sin(angle))
    towards = (-1.0, -0.5 * np.cos(angle) + rng.normal(0, 0.3), -0.5 * np.sin(angle) + rng.normal(0, 0.3))
    return wander(rng, start, towards, rng.uniform(50, 90), rng.uniform(1.6, 2.6), rng.uniform(0.8, 1.4), bend=0.06)


FIBRES = 60


def _fibre(rng: np.random.Generator) -> Strand:
    """A strand of connective tissue somewhere in the fat, roughly towards the nipple."""
    s, t = rng.uniform(-65, 65, 2)
    u = rng.uniform(8, 70)
    towards = (-1.0, -s / (u + APEX) + rng.normal(0, 0.35), -t / (u + APEX) + rng.normal(0, 0.35))
    thick = float(np.clip(0.8 * np.exp(0.45 * rng.standard_normal()), 0.3, 2.2))
    return wander(rng, (u, s, t), towards, rng.uniform(10, 40), thick, 0.5 * thick, bend=0.07)


def attenuation(form: Form, latent: Latent, rng: np.random.Generator) -> Array:
    """(z, y, x) 1/mm of the breast between the plates, without findings; air is 0."""
    volume = np.empty(form.grid.shape, np.float32)
    level = _gland_level(form, latent)
    detail = _Detail(form, latent, rng)
    muscle = _Muscle(form, rng) if form.position == "MLO" else None
    for part in _slabs(form):
        z = form.grid.z[part]
        outer, inner = form.occupied(z), form.occupied(z, form.anatomy.skin)
        score = _gland_score(form, latent, z) + detail.of(len(z))
        gland = _smooth_step((score - level) / EDGE)
        families = [_sampled(form, field, latent.sheet_voxel, z) for field, _ in latent.sheets]
        gland *= np.clip(FULLNESS + 0.2 * families[-1] + 0.5 * detail.last, 0.3, 1.0)
        tissue = FAT + (GLAND - FAT) * gland
        ligaments = _ligaments(form, latent, families, z)
        tissue += (LIGAMENT - tissue) * ligaments
        if muscle:
            muscle.fill(tissue, z)
        volume[part] = tissue * inner + SKIN * (outer - inner)
    strands = [strand.moved(form.compressed) for strand in (*latent.ducts, *latent.vessels, *latent.fibres)]
    added = splat(form.grid, strands, rng)
    added *= LIGAMENT - FAT
    for part in _slabs(form):
        volume[part] += added[part] * form.occupied(form.grid.z[part], form.anatomy.skin)
    return volume


def beside(form: Form) -> Array:
    """(z, y, x) 1/mm of fat where between the plates there is no breast: what evens out the rim of an image."""
    return FAT * (1 - form.occupied(form.grid.z))


EDGE = 0.35  # of the gland's score: how soft the border between gland and fat is
SUBSAMPLE = 60_000
FULLNESS = 0.78  # of gland with gland: there is fat in it, too


def _slabs(form: Form) -> Iterator[slice]:
    per = max(1, SLAB // (form.grid.shape[1] * form.grid.shape[2]))
    return (slice(first, first + per) for first in range(0, form.grid.shape[0], per))


def _smooth_step(value: Array) -> Array:
    value = np.clip(0.5 + value / 2, 0, 1)
    return value * value * (3 - 2 * value)


def _sampled(form: Form, field: Array, voxel: float, z: Array) -> Array:
    """(z, y, x): a latent field on (some slices of) the grid of a view, by linear interpolation.

    u depends on x alone and (s, t) on (y, z) alone, so that this is a sparse matrix from the left and a small one from
    the right."""
    wide, _, deep = field.shape
    zz, yy = np.meshgrid(z, form.grid.y, indexing="ij")
    u, _, _ = form.latent(form.grid.x, form.grid.x, form.grid.x)
    _, s, t = form.latent(yy.ravel(), yy.ravel(), zz.ravel())
    s, t = (np.clip((place + HALF) / voxel, 0, wide - 1.001) for place in (s, t))
    i, j = np.floor(s).astype(np.int64), np.floor(t).astype(np.int64)
    a, b = s - i, t - j
    columns = np.concatenate([i * wide + j, i * wide + j + 1, (i + 1) * wide + j, (i + 1) * wide + j + 1])
    weights = np.concatenate([(1 - a) * (1 - b), (1 - a) * b, a * (1 - b), a * b]).astype(np.float32)
    rows = np.tile(np.arange(len(s)), 4)
    across = sparse.csr_array((weights, (rows, columns)), shape=(len(s), wide * wide))
    along = _linear(np.clip((u - FRONT) / voxel, 0, deep - 1.001), deep).toarray()
    values = (across @ field.reshape(wide * wide, deep)) @ along.T
    return values.reshape(len(z), len(form.grid.y), len(form.grid.x))


def _gland_score(form: Form, latent: Latent, z: Array) -> Array:
    """(z, y, x): where this is high, there is gland. The lobes' field less what keeps gland away from the outside."""
    return _sampled(form, latent.lobes, latent.voxel, z) - _away(form, latent, z)


def _away(form: Form, latent: Latent, z: Array) -> Array:
    """(z, y, x): under the skin, before the chest wall and far from the nipple's axis there is fat."""
    anatomy = form.anatomy
    _, middle, _ = form.compressed(0.0, *latent.centre)
    surface = form.half_thickness()[None] - np.abs(z)[:, None, None]
    below = np.minimum(form.inside[None], 1.6 * surface)
    under_skin = np.clip(1 - (below - anatomy.skin) / anatomy.fat, 0, 1.5)
    behind = np.clip(1 - form.grid.x / (0.16 * anatomy.depth), 0, 1)
    across = (form.grid.y - middle) / (0.5 * anatomy.length)
    front = (form.grid.x - 0.55 * anatomy.depth) / (0.62 * anatomy.depth)
    outside = np.clip(across[:, None] ** 2 * 1.6 + front[None, :] ** 2, 0, None)
    if form.position == "MLO":
        behind = behind * 0.5
    under_skin *= 2.5
    under_skin += 1.2 * behind + latent.compact * outside
    return under_skin


def _gland_level(form: Form, latent: Latent) -> float:
    """The score above which the share of gland is the breast's density, from every so many voxels."""
    step = max(1, round((np.prod(form.grid.shape) / SUBSAMPLE) ** (1 / 3)))
    grid = Grid(form.grid.z[::step], form.grid.y[::step], form.grid.x[::step], form.grid.voxel)
    coarse = replace(form, grid=grid, inside=form.inside[::step, ::step], nipple=form.nipple[::step, ::step])
    inner = coarse.occupied(grid.z, form.anatomy.skin) > 0.5
    return float(
        np.quantile(_gland_score(coarse, latent, grid.z)[inner], 1 - min(0.95, form.anatomy.density / FULLNESS))
    )


SHEET_THICKNESS, SHEET_SHARE = 0.7, 0.3  # mm, and how much of a sheet is ligament at most


def _ligaments(form: Form, latent: Latent, families: list[Array], z: Array) -> Array:
    """(z, y, x) share of ligament: thin sheets; what is thinner than a voxel fills as much of it as it can.

    A sheet is strong where another family's field is high and ends where that is low: strands, not closed cells."""
    width = max(SHEET_THICKNESS, form.scale.pixel)
    total = np.zeros_like(families[0])
    for number, (_, slope) in enumerate(latent.sheets):
        distance = families[number] / np.maximum(_sampled(form, slope, latent.sheet_voxel, z), 0.02)
        strength = np.clip(0.2 + 0.7 * families[number - 1], 0, 1.5)
        total += strength * np.exp(-0.5 * (distance / (0.5 * width)) ** 2)
    total = np.minimum(total, 1.5)
    total *= SHEET_SHARE * min(1.0, SHEET_THICKNESS / width)
    return total


class _Detail:
    """What is finer than the latent voxels: the power law goes on in each slice of the view by itself."""

    def __init__(self, form: Form, latent: Latent, rng: np.random.Generator) -> None:
        self.rng = rng
        self.shape = tuple(fft.next_fast_len(n, real=True) for n in form.grid.shape[1:])
        self.cut = form.grid.shape[1:]
        fy = fft.fftfreq(self.shape[0], form.scale.pixel)[:, None]
        fx = fft.rfftfreq(self.shape[1], form.scale.pixel)
        f = np.hypot(fy, fx)
        limit = 0.35 / (latent.voxel * STRETCH[1])
        # A plane through a 3D power law has the exponent less one. Where structures are smaller than the slice is
        # thick, the slice is a projection, and has the law's own.
        plane = (f**2 + LARGEST**-2.0) ** (-(EXPONENT - 1) / 2)
        steeper = plane * limit / np.maximum(f, limit)
        power = steeper * (1 - np.exp(-((f / limit) ** 4))) / (2 * plane.sum())
        self.amplitude = (DETAIL * np.sqrt(power * np.prod(self.shape))).astype(np.float32)
        self.last = np.zeros((1, 1, 1), np.float32)

    def of(self, slices: int) -> Array:
        noise = self.rng.standard_normal((slices, *self.shape), dtype=np.float32)
        field = fft.irfft2(fft.rfft2(noise) * self.amplitude, self.shape)
        self.last = field[:, : self.cut[0], : self.cut[1]].astype(np.float32)
        return self.last


class _Muscle:
    """The pectoral muscle of MLO: a wedge at the top of the chest wall, with fibres along its border."""

    def __init__(self, form: Form, rng: np.random.Generator) -> None:
        self.form = form
        anatomy, y, x = form.anatomy, form.grid.y[:, None], form.grid.x[None, :]
        width, height = anatomy.muscle[0] * 0.75 * anatomy.depth, anatomy.muscle[1] * 1.1 * anatomy.length
        down = (y - form.grid.y[0]) / height
        bulge = 1 + 0.12 * np.sin(np.pi * np.clip(down, 0, 1))
        border = width * (1 - down) * bulge
        self.distance = ((border - x) / np.hypot(1, width / height)).astype(np.float32)  # mm inside the muscle
        across = (x - border).astype(np.float32)
        along = (y * 0.15).astype(np.float32)
        waves = rng.uniform(0.15, 0.6, 12), rng.normal(0, 0.15, 12), rng.uniform(0, 2 * np.pi, 12)
        self.fibres = sum(np.sin(a * across + b * along + c) for a, b, c in zip(*waves, strict=True)) / np.sqrt(12)

    def fill(self, tissue: Array, z: Array) -> None:
        half = self.form.anatomy.thickness / 2
        depth = half * (0.3 + 0.5 * np.clip(self.distance / 25, 0, 1))
        edge = np.minimum(self.distance[None] / 1.5, (depth[None] - np.abs(z)[:, None, None]) / 2)
        share = _smooth_step(edge)
        texture = MUSCLE + 0.10 * (MUSCLE - FAT) * self.fibres[None]
        tissue += share * (texture - tissue)
