"""Thin tubes that wander: ducts, vessels, fibres, spicules. Their mass in a volume is right at any voxel size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mm3d.phantom.anatomy import Array, Grid

STEP = 1.0  # mm between the points of a path
POINTS_PER_VOXEL = 6.0


@dataclass(frozen=True)
class Strand:
    """A tube along a path."""

    path: NDArray[np.float64]  # (n, 3) mm
    radius: NDArray[np.float64]  # (n,) mm

    def move(self, to_other: Callable[..., tuple[float, float, float]]) -> "Strand":
        """The same tube with its path in other coordinates."""
        moved = np.stack(np.broadcast_arrays(*to_other(*self.path.T)), axis=1)
        return Strand(moved, self.radius)


def draw_strand(
    rng: np.random.Generator,
    start: Sequence[float],
    towards: Sequence[float],
    length: float,
    first_diameter: float,
    last_diameter: float,
    bend: float,
) -> Strand:
    """A tapering tube. Its direction changes by a random walk of `bend` radians per mm."""
    n = max(3, round(length / STEP))
    drift = np.cumsum(rng.normal(0, bend, (n, 3)), axis=0)
    direction = np.asarray(towards, float) / np.linalg.norm(towards) + drift
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    path = np.asarray(start, float) + np.cumsum(direction * length / n, axis=0)
    return Strand(path, np.linspace(first_diameter, last_diameter, n) / 2)


def rasterise(grid: Grid, strands: Sequence[Strand], rng: np.random.Generator) -> Array:
    """(z, y, x) share of each voxel that tubes fill, at most 1. Their paths are in x, y, z mm of the view.

    Points drawn inside the tubes carry the volume and give it to the voxels around them.
    """
    voxel = float(np.prod(grid.voxel))
    places, volumes = [], []
    for strand in strands:
        pieces = np.diff(strand.path, axis=0)
        lengths = np.linalg.norm(pieces, axis=1)
        radius = (strand.radius[1:] + strand.radius[:-1]) / 2
        volume = np.pi * radius**2 * lengths
        count = np.maximum(2, np.ceil(volume / voxel * POINTS_PER_VOXEL)).astype(int)
        which = np.repeat(np.arange(len(count)), count)
        along = rng.random(len(which))[:, None]
        offset = rng.standard_normal((len(which), 3))
        offset *= (rng.random(len(which)) ** (1 / 3) / np.linalg.norm(offset, axis=1))[:, None] * radius[which][:, None]
        places.append(strand.path[which] + along * pieces[which] + offset)
        volumes.append((volume / count)[which])
    total = np.zeros(grid.shape, np.float32)
    if places:
        deposit(grid, total, np.concatenate(places), np.concatenate(volumes) / voxel)
    return np.minimum(total, 1, out=total)


def deposit(grid: Grid, total: Array, places: NDArray[np.float64], shares: NDArray[np.float64]) -> None:
    """Add shares of a voxel at places (n, 3), x, y, z mm, to a volume (z, y, x): to the eight voxels around each."""
    firsts = (grid.z[0], grid.y[0], grid.x[0])
    index = [(places[:, 2 - i] - firsts[i]) / grid.voxel[i] for i in range(3)]
    low = [np.floor(value).astype(np.int64) for value in index]
    for corner in np.ndindex(2, 2, 2):
        weight = shares.copy()
        flat = np.zeros(len(shares), np.int64)
        valid = np.ones(len(shares), bool)
        for i in range(3):
            at = low[i] + corner[i]
            part = index[i] - low[i]
            weight *= part if corner[i] else 1 - part
            valid &= (at >= 0) & (at < total.shape[i])
            flat = flat * total.shape[i] + np.clip(at, 0, total.shape[i] - 1)
        np.add.at(total.reshape(-1), flat[valid], weight[valid].astype(np.float32))
