"""Which findings of CC and MLO may be one lesion: those as far from the nipple.

Between the plates the breast is turned, but what lies behind the nipple stays about as far behind it; radiologists
look for a lesion of the other view in that distance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mm3d.data.prepare.geometry import Box, Geometry
from mm3d.data.records import Position

TOLERANCE = 10.0  # mm, between the distances
SHARE = 0.1  # of the breast's depth, where the spacing of pixels is not known


@dataclass(frozen=True)
class Placed:
    """A finding of a breast as far as it matters here."""

    position: Position
    score: float
    depth: float  # from the nipple, see `depth`


def depth(box: Box, geometry: Geometry, pixel_spacing: float | None) -> float:
    """How far behind the nipple the middle of a box (stored pixels) is: in units of the tolerance."""
    x1, _, x2, _ = geometry.crop
    middle = (box[0] + box[2]) / 2
    pixels = middle - x1 if geometry.mirrored else x2 - middle  # mirrored: the chest wall is on the right
    return pixels / (SHARE * (x2 - x1)) if pixel_spacing is None else pixels * pixel_spacing / TOLERANCE


def pair(findings: Sequence[Placed]) -> list[int | None]:
    """A number for each finding: the same for a CC and an MLO finding that are taken for one lesion, None if alone.

    The highest scores choose first, each its nearest.
    """
    groups: list[int | None] = [None] * len(findings)
    number = 0
    for i in sorted(range(len(findings)), key=lambda i: -findings[i].score):
        if groups[i] is not None:
            continue
        near = [
            (abs(findings[i].depth - other.depth), j)
            for j, other in enumerate(findings)
            if groups[j] is None and other.position != findings[i].position
        ]
        distance, j = min(near, default=(2.0, i))
        if distance <= 1:
            groups[i] = groups[j] = number
            number += 1
    return groups
