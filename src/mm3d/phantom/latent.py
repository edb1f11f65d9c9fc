"""What both views of a breast share: random fields and strands in the breast before compression.

Axes: u from the nipple backwards, s across, t upwards, in mm. The fields are drawn on a torus (they repeat, and nobody
sees where) and then drawn together towards the nipple, as everything in a breast is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, sparse

from mm3d.phantom.anatomy import Array, Form
from mm3d.phantom.strands import Strand, wander

Amplitude = Callable[[Array], Array]  # at frequencies in 1/mm

TORUS = 128.0  # mm, the period of the fields
HALF = 96.0  # mm: after the drawing together they reach from -HALF to HALF in s and t,
FRONT, BACK = -12.0, 108.0  # and so far along u
APEX, MIDDLE = 40.0, 45.0  # mm: structures point to a place APEX before the nipple, and have their size at MIDDLE
LARGEST, EXPONENT = 45.0, 3.3  # the lobes' power law: flat beyond LARGEST mm, f^-EXPONENT in 3D below
SHEET_FEATURES = (22.0, 13.0, 8.0)  # mm, typical distance between the ligaments of each family
DUCTS, VESSELS, FIBRES = 14, 5, 60


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
        field = _random_field(rng, round(TORUS / sheet_voxel), sheet_voxel, _bump(feature))
        field = _fanned(field, sheet_voxel, drawn=2.0)
        slopes = [np.gradient(field, sheet_voxel, axis=i) for i in range(3)]
        sheets.append((field, np.sqrt(slopes[0] ** 2 + slopes[1] ** 2 + slopes[2] ** 2)))
    return Latent(
        voxel=voxel,
        lobes=_fanned(_random_field(rng, size, voxel, _power_law), voxel),
        sheets=tuple(sheets),
        sheet_voxel=sheet_voxel,
        compact=rng.uniform(3.5, 6.5),
        centre=(float(rng.normal(0, 9)), float(rng.normal(6, 9))),
        ducts=tuple(_duct(rng) for _ in range(DUCTS)),
        vessels=tuple(_vessel(rng) for _ in range(VESSELS)),
        fibres=tuple(_fibre(rng) for _ in range(FIBRES)),
    )


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


def _duct(rng: np.random.Generator) -> Strand:
    """From the nipple backwards."""
    s, t = rng.normal(0, 0.9, 2)
    return wander(rng, (0.0, 0.0, 0.0), (1.0, s, t), 70.0, 1.3, 0.6, bend=0.10)


def _vessel(rng: np.random.Generator) -> Strand:
    """From behind, below the skin, towards the nipple."""
    angle = rng.uniform(0, 2 * np.pi)
    start = (rng.uniform(50, 75), 40 * np.cos(angle), 40 * np.sin(angle))
    towards = (-1.0, -0.5 * np.cos(angle) + rng.normal(0, 0.3), -0.5 * np.sin(angle) + rng.normal(0, 0.3))
    return wander(rng, start, towards, rng.uniform(50, 90), rng.uniform(1.6, 2.6), rng.uniform(0.8, 1.4), bend=0.06)


def _fibre(rng: np.random.Generator) -> Strand:
    """A strand of connective tissue somewhere in the fat, roughly towards the nipple."""
    s, t = rng.uniform(-65, 65, 2)
    u = rng.uniform(8, 70)
    towards = (-1.0, -s / (u + APEX) + rng.normal(0, 0.35), -t / (u + APEX) + rng.normal(0, 0.35))
    thick = float(np.clip(0.8 * np.exp(0.45 * rng.standard_normal()), 0.3, 2.2))
    return wander(rng, (u, s, t), towards, rng.uniform(10, 40), thick, 0.5 * thick, bend=0.07)


def sampled(form: Form, field: Array, voxel: float, z: Array) -> Array:
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
