"""Random changes of a breast's images. All slices of a volume are changed in the same way."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from mm3d.data.inputs import Image
from mm3d.train.config import AugmentConfig

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """The changes of one view."""

    mirror: bool  # left to right
    flip: bool  # top to bottom
    shift: tuple[float, float]  # of the content, shares of height and width
    angle: float  # radians
    scale: float
    gamma: float
    noise: float  # standard deviation


def draw_changes(config: AugmentConfig, random: np.random.Generator) -> tuple[Change, Change]:
    """Draw the changes of CC and MLO. Both are mirrored and flipped together, because they show one breast. The other
    changes are drawn for each view, because each has its own positioning and exposure."""
    mirror, flip = bool(random.random() < config.horizontal_flip), bool(random.random() < config.vertical_flip)

    def one() -> Change:
        down, right, angle, scale, gamma, noise = random.uniform(-1, 1, 6).tolist()
        return Change(
            mirror=mirror,
            flip=flip,
            shift=(down * config.shift, right * config.shift),
            angle=math.radians(angle * config.rotate),
            scale=1 + scale * config.scale,
            gamma=(1 + config.gamma) ** gamma,
            noise=abs(noise) * config.noise,
        )

    return one(), one()


def change_image(image: Image, change: Change, random: np.random.Generator) -> Image:
    """Change an image (S, H, W). What comes in from outside is air."""
    if change.mirror:
        image = image[:, :, ::-1]
    if change.flip:
        image = image[:, ::-1]
    if change.angle or change.scale != 1:
        image = _resample(image, change)
    elif any(change.shift):
        image = _shift(image, *_whole_shift(image.shape, change))
    inside = image > 0
    if change.gamma != 1:
        image = np.power(image, np.float32(change.gamma))
    if change.noise:
        noise = random.standard_normal(image.shape, dtype=np.float32) * np.float32(change.noise)
        image = np.where(inside, np.clip(image + noise, 0, 1), image)
    return np.ascontiguousarray(image)


def change_boxes(boxes: FloatArray, change: Change, size: tuple[int, int]) -> FloatArray:
    """Move boxes (G, 4) xyxy along with their image of this height and width. They may leave it (see `clip_boxes`).

    A rotated box becomes the upright box around the ellipse in it, because lesions are round. A box around its rotated
    corners would be too large.
    """
    height, width = size
    x1, y1, x2, y2 = boxes.T
    if change.mirror:
        x1, x2 = width - x2, width - x1
    if change.flip:
        y1, y2 = height - y2, height - y1
    cx, cy, w, h = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
    if change.angle or change.scale != 1:
        cos, sin = math.cos(change.angle), math.sin(change.angle)
        dx, dy = cx - width / 2, cy - height / 2
        cx = width / 2 + change.scale * (cos * dx - sin * dy) + change.shift[1] * width
        cy = height / 2 + change.scale * (sin * dx + cos * dy) + change.shift[0] * height
        w, h = change.scale * np.hypot(cos * w, sin * h), change.scale * np.hypot(sin * w, cos * h)
    elif any(change.shift):
        down, right = _whole_shift((1, height, width), change)
        cx, cy = cx + right, cy + down
    return np.column_stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2])


def clip_boxes(boxes: FloatArray, size: tuple[int, int]) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Cut boxes at the edges of the image. Also returns which of them still show: those whose centre is in it."""
    height, width = size
    limits = np.array([width, height, width, height], dtype=float)
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    shown: NDArray[np.bool_] = np.all((centre > 0) & (centre < limits[:2]), axis=1)
    return np.clip(boxes, 0, limits), shown


def _whole_shift(shape: tuple[int, ...], change: Change) -> tuple[int, int]:
    """The shift in whole pixels, down and to the right."""
    return round(change.shift[0] * shape[1]), round(change.shift[1] * shape[2])


def _shift(image: Image, down: int, right: int) -> Image:
    height, width = image.shape[1:]
    moved = np.zeros_like(image)
    moved[:, max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = image[
        :, max(-down, 0) : height + min(-down, 0), max(-right, 0) : width + min(-right, 0)
    ]
    return moved


def _resample(image: Image, change: Change) -> Image:
    """Rotate about the middle, scale and shift in one bilinear step."""
    height, width = image.shape[1:]
    cos, sin = math.cos(change.angle) / change.scale, math.sin(change.angle) / change.scale
    down, right = 2 * change.shift[0], 2 * change.shift[1]  # grid_sample's image is 2 wide and 2 high
    ratio = height / width
    # From a place in the result to its place in the source: shift back, then rotate back, in pixels of one size.
    theta = torch.tensor(
        [
            [cos, sin * ratio, -cos * right - sin * ratio * down],
            [-sin / ratio, cos, sin / ratio * right - cos * down],
        ]
    )
    source = torch.from_numpy(np.ascontiguousarray(image))[None]  # slices as channels: one grid for all
    grid = F.affine_grid(theta[None], list(source.shape), align_corners=False)
    return F.grid_sample(source, grid, align_corners=False)[0].numpy()
