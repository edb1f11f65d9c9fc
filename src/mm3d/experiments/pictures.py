"""Synthetic pictures of other things, as a prepared folder: a start for trainings that never saw a breast.

What COCO is in the paper. On a textured ground lie rings, which are to be found, among polygons, crosses and gratings,
which are not. A "breast" is a scene, its CC and MLO are two looks at it: other ground, things moved and turned. To the
training it is a folder of mammograms; rings are its malignant findings, everything else is benign.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.ndimage import gaussian_filter

from mm3d.data.prepare.geometry import Geometry
from mm3d.data.prepare.prepared import ViewFile, finish_view, write_cohort
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.data.prepare.view import WHITE
from mm3d.data.records import Annotation, Breast, Cohort, Label, Position, View
from mm3d.shared.console import show_progress
from mm3d.shared.files import partial_path, remove_partial

NOTE = "These are synthetic pictures of rings, polygons, crosses and gratings: no breast is among them."
RING = "ring"
OTHERS = ("polygon", "cross", "grating")
LARGEST = 0.22  # radius of a thing, as a share of the picture's width
SMALLEST = 0.07
Array = NDArray[np.float64]


def write_pictures(
    folder: Path, scenes: int, seed: int, share: float, shape: tuple[int, int], console: Console
) -> None:
    """Write a prepared folder of `scenes`, a share of which have rings, as pictures (1, H, W) of `shape`."""
    (folder / "views").mkdir(parents=True, exist_ok=True)
    remove_partial(folder / "views")
    breasts: list[Breast] = []
    keys: dict[str, str] = {}
    with show_progress(console, "drawing pictures", scenes) as advance:
        for number in range(scenes):
            breast, own = _write_scene(folder, number, seed, share, shape)
            breasts.append(breast)
            keys |= own
            advance()
    write_cohort(folder, Cohort(folder.name, tuple(breasts), notes=(NOTE,)), keys, [])


def _write_scene(
    folder: Path, number: int, seed: int, share: float, shape: tuple[int, int]
) -> tuple[Breast, dict[str, str]]:
    random = np.random.default_rng([seed, number])
    label: Label = "malignant" if random.random() < share else "benign"
    kinds = [str(kind) for kind in random.choice(OTHERS, size=random.integers(1, 4))]
    if label == "malignant":
        kinds.append(RING)
    things = [(kind, random.uniform(SMALLEST, LARGEST) * shape[1], random.uniform(0.15, 0.45)) for kind in kinds]
    views, keys = [], {}
    for position in ("CC", "MLO"):
        view, key = _write_view(folder, number, seed, position, things, random, shape)
        views.append(view)
        keys[view.name] = key
    return Breast(f"picture-{seed}-{number:05d}", f"scene-{number:05d}", "L", label, tuple(views)), keys


def _write_view(
    folder: Path,
    number: int,
    seed: int,
    position: Position,
    things: list[tuple[str, float, float]],
    random: np.random.Generator,
    shape: tuple[int, int],
) -> tuple[View, str]:
    H, W = shape
    picture = ground(shape, random)
    findings: list[Annotation] = []
    for kind, radius, contrast in things:
        x, y = random.uniform(radius, W - radius), random.uniform(radius, H - radius)
        picture += contrast * drawn(kind, (x, y), radius, shape, random)
        box = (max(0.0, x - radius), max(0.0, y - radius), min(float(W), x + radius), min(float(H), y + radius))
        findings.append(Annotation(box, kind == RING, kind=kind))
    key = f"{seed:06d}-{number:06d}-{position.lower()}"
    geometry = Geometry((0, 0, W, H), mirrored=False, height=H, width=W, stored_slices=1, slices=1)
    partial = partial_path(folder / "views" / f"{key}.npy")
    try:
        with partial.open("wb") as file:
            np.save(file, np.rint(picture.clip(0.02, 1)[None] * WHITE).astype(np.uint16), allow_pickle=False)
        finish_view(folder, key, partial, ViewFile(geometry, False, None, None, "", PrepareSettings(W, H, 1)))
    finally:
        partial.unlink(missing_ok=True)
    name = f"picture {seed} {number} {position}"
    return View(name, "L", position, "FFDM", (Path("views", f"{key}.npy"),), tuple(findings)), key


def ground(shape: tuple[int, int], random: np.random.Generator) -> Array:
    """Noise of several coarsenesses, with a slope, (H, W)."""
    picture = np.zeros(shape)
    for sigma, weight in ((1.0, 0.05), (4.0, 0.10), (12.0, 0.10)):
        noise = gaussian_filter(random.standard_normal(shape), sigma)
        picture += weight * noise / noise.std()
    slope = np.linspace(-1, 1, shape[1]) * random.uniform(-0.1, 0.1)
    return 0.35 + picture + slope


def drawn(
    kind: str, centre: tuple[float, float], radius: float, shape: tuple[int, int], random: np.random.Generator
) -> Array:
    """How much of a thing there is at each pixel, from 0 to 1, (H, W); it fits in a circle of the radius."""
    y, x = np.mgrid[: shape[0], : shape[1]] + 0.5
    turn = random.uniform(0, 2 * np.pi)
    dx, dy = x - centre[0], y - centre[1]
    u, v = dx * np.cos(turn) + dy * np.sin(turn), dy * np.cos(turn) - dx * np.sin(turn)
    distance = np.hypot(u, v)
    if kind == RING:
        return _edge(0.22 * radius - np.abs(distance - 0.75 * radius))
    if kind == "cross":
        arms = np.minimum(np.abs(u), np.abs(v))
        return _edge(np.minimum(0.18 * radius - arms, radius - distance))
    if kind == "grating":
        return _edge(0.9 * radius - distance) * (0.5 + 0.5 * np.sin(2 * np.pi * u / max(3.0, radius / 2)))
    corners = int(random.integers(3, 6))  # a polygon: within all of its sides
    sides = [u * np.cos(2 * np.pi * k / corners) + v * np.sin(2 * np.pi * k / corners) for k in range(corners)]
    return _edge(radius * np.cos(np.pi / corners) - np.max(sides, axis=0))


def _edge(inside: Array) -> Array:
    """1 where a signed distance in pixels is well inside, 0 outside, smooth over a pixel."""
    return np.clip(inside + 0.5, 0.0, 1.0)
