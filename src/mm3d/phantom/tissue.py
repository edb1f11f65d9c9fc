"""The inside of a breast: fat, gland, ligaments, ducts, vessels, skin and muscle, as attenuation between the plates.

A view interpolates the latent fields on its own grid, adds what is finer than their voxels, and makes tissue of the sum
by thresholds, which gives borders where a Gaussian field alone would give clouds.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy import fft

from mm3d.phantom.anatomy import STRETCH, Array, Form, Grid
from mm3d.phantom.latent import EXPONENT, LARGEST, Latent, sampled
from mm3d.phantom.strands import splat

# Attenuation in 1/mm, weighted with a mammographic spectrum behind 5.5 cm of breast.
FAT, GLAND, SKIN, LIGAMENT, MUSCLE = 0.0472, 0.0695, 0.0765, 0.0797, 0.0787
MASS = (0.0712, 0.0735)  # lesions, benign and malignant alike: drawn from this range
CALCIUM = 0.72

EDGE = 0.35  # of the gland's score: how soft the border between gland and fat is
FULLNESS = 0.78  # of gland with gland: there is fat in it, too
DETAIL = 0.36  # of the strength with which the lobes' power law would go on below the latent voxels
SHEET_THICKNESS, SHEET_SHARE = 0.7, 0.3  # mm of a ligament, and how much of it is ligament at most
SUBSAMPLE = 60_000  # voxels that the gland's threshold is found from
SLAB = 300_000  # voxels of a view that are made at once: what fits into the processor's cache is several times faster


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
        families = [sampled(form, field, latent.sheet_voxel, z) for field, _ in latent.sheets]
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


def _slabs(form: Form) -> Iterator[slice]:
    per = max(1, SLAB // (form.grid.shape[1] * form.grid.shape[2]))
    return (slice(first, first + per) for first in range(0, form.grid.shape[0], per))


def _smooth_step(value: Array) -> Array:
    value = np.clip(0.5 + value / 2, 0, 1)
    return value * value * (3 - 2 * value)


def _gland_score(form: Form, latent: Latent, z: Array) -> Array:
    """(z, y, x): where this is high, there is gland. The lobes' field less what keeps gland away from the outside."""
    return sampled(form, latent.lobes, latent.voxel, z) - _away(form, latent, z)


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


def _ligaments(form: Form, latent: Latent, families: list[Array], z: Array) -> Array:
    """(z, y, x) share of ligament: thin sheets; what is thinner than a voxel fills as much of it as it can.

    A sheet is strong where another family's field is high and ends where that is low: strands, not closed cells."""
    width = max(SHEET_THICKNESS, form.scale.pixel)
    total = np.zeros_like(families[0])
    for number, (_, slope) in enumerate(latent.sheets):
        distance = families[number] / np.maximum(sampled(form, slope, latent.sheet_voxel, z), 0.02)
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


def muscle_depth(form: Form) -> Array:
    """(y, x) mm inside the pectoral muscle of MLO, negative outside: a wedge at the top of the chest wall."""
    anatomy, y, x = form.anatomy, form.grid.y[:, None], form.grid.x[None, :]
    width, height = anatomy.muscle[0] * 0.75 * anatomy.depth, anatomy.muscle[1] * 1.1 * anatomy.length
    down = (y - form.grid.y[0]) / height
    border = width * (1 - down) * (1 + 0.12 * np.sin(np.pi * np.clip(down, 0, 1)))
    return (border - x) / math.hypot(1, width / height)


class _Muscle:
    """The pectoral muscle, with fibres along its border."""

    def __init__(self, form: Form, rng: np.random.Generator) -> None:
        self.form = form
        self.distance = muscle_depth(form)
        along = 0.15 * form.grid.y[:, None]
        waves = zip(rng.uniform(0.15, 0.6, 12), rng.normal(0, 0.15, 12), rng.uniform(0, 2 * np.pi, 12), strict=True)
        fibres = [np.sin(float(a) * self.distance + float(b) * along + float(c)) for a, b, c in waves]
        self.fibres = np.sum(fibres, axis=0) / math.sqrt(12)

    def fill(self, tissue: Array, z: Array) -> None:
        half = self.form.anatomy.thickness / 2
        depth = half * (0.25 + 0.35 * np.clip(self.distance / 25, 0, 1))
        edge = np.minimum(self.distance[None] / 1.5, (depth[None] - np.abs(z)[:, None, None]) / 2)
        share = _smooth_step(edge)
        texture = MUSCLE + 0.10 * (MUSCLE - FAT) * self.fibres[None]
        tissue += share * (texture - tissue)
