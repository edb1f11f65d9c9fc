"""Synthetic pictures of other things, as a prepared folder: a start for trainings that never saw a breast.

They stand where COCO stands in the paper. On a textured ground lie rings, which are to be found, among polygons,
crosses and gratings, which are not. A "breast" is a scene, and its CC and MLO are two looks at it: another ground,
things moved and turned. To the training it is a folder of mammograms; rings are malignant, everything else is benign.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from mm3d.data.prepare.geometry import Geometry, PrepareSettings
from mm3d.data.prepare.prepared import ViewFile, write_cohort, write_view
from mm3d.data.prepare.view import WHITE
from mm3d.data.records import Annotation, Breast, Cohort, Label, View
from mm3d.shared.console import Console, show_progress
from mm3d.shared.files import remove_partial

NOTE = "These are synthetic pictures of rings, polygons, crosses and gratings: no breast is among them."
RING = "ring"
OTHERS = ("polygon", "cross", "grating")
SMALLEST, LARGEST = 0.07, 0.22  # radius of a thing, as a share of the picture's width
Array = NDArray[np.float64]


def write_pictures(
    folder: Path, scenes: int, seed: int, share: float, shape: tuple[int, int], console: Console
) -> None:
    """Write a prepared folder of `scenes`, a share of which have rings, as pictures (1, H, W) of `shape`."""
    remove_partial(folder / "views")
    breasts: list[Breast] = []
    keys: dict[str, str] = {}
    with show_progress(console, "drawing pictures", scenes) as advance:
        for number in range(scenes):
            random = np.random.default_rng([seed, number])
            label: Label = "malignant" if random.random() < share else "benign"
            kinds = [str(kind) for kind in random.choice(OTHERS, size=random.integers(1, 4))]
            kinds += [RING] if label == "malignant" else []
            things = [
                (kind, random.uniform(SMALLEST, LARGEST) * shape[1], random.uniform(0.15, 0.45)) for kind in kinds
            ]
            views = []
            for position in ("CC", "MLO"):
                name, key = f"picture {seed} {number} {position}", f"{seed:06d}-{number:06d}-{position.lower()}"
                annotations = _write_picture(folder, key, things, shape, random)
                views.append(View(name, "L", position, "FFDM", (Path("views", f"{key}.npy"),), annotations))
                keys[name] = key
            breasts.append(Breast(f"picture-{seed}-{number:05d}", f"scene-{number:05d}", "L", label, tuple(views)))
            advance()
    write_cohort(folder, Cohort(folder.name, tuple(breasts), notes=(NOTE,)), keys, [])


def _write_picture(
    folder: Path,
    key: str,
    things: list[tuple[str, float, float]],
    shape: tuple[int, int],
    random: np.random.Generator,
) -> tuple[Annotation, ...]:
    """Write one look at a scene, whose things have a kind, a radius and a contrast. Returns their boxes."""
    H, W = shape
    picture = draw_ground(shape, random)
    annotations: list[Annotation] = []
    for kind, radius, contrast in things:
        x, y = random.uniform(radius, W - radius), random.uniform(radius, H - radius)
        picture += contrast * draw_thing(kind, (x, y), radius, shape, random)
        box = (max(0.0, x - radius), max(0.0, y - radius), min(float(W), x + radius), min(float(H), y + radius))
        annotations.append(Annotation(box, kind == RING, kind=kind))
    geometry = Geometry((0, 0, W, H), mirrored=False, height=H, width=W, stored_slices=1, slices=1)
    pixels = np.rint(picture.clip(0.02, 1)[None] * WHITE).astype(np.uint16)
    write_view(folder, key, pixels, ViewFile(geometry, False, None, None, "", PrepareSettings(W, H, 1)))
    return tuple(annotations)


def draw_ground(shape: tuple[int, int], random: np.random.Generator) -> Array:
    """Noise of several coarsenesses, with a slope, (H, W)."""
    picture = np.zeros(shape)
    for sigma, weight in ((1.0, 0.05), (4.0, 0.10), (12.0, 0.10)):
        noise = gaussian_filter(random.standard_normal(shape), sigma)
        picture += weight * noise / noise.std()
    slope = np.linspace(-1, 1, shape[1]) * random.uniform(-0.1, 0.1)
    return 0.35 + picture + slope


def draw_thing(
    kind: str, centre: tuple[float, float], radius: float, shape: tuple[int, int], random: np.random.Generator
) -> Array:
    """How much of a thing each pixel shows, from 0 to 1, (H, W). It fits in a circle of the radius."""
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
