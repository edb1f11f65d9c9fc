"""Which findings of CC and MLO may be one lesion: those that are equally far from the nipple.

The breast is turned between the two views, but the distance of a lesion from the nipple stays about the same.
Radiologists look for a lesion in the other view at that distance.
"""

from collections.abc import Sequence
from dataclasses import replace

from mm3d.data.prepare.prepared import PreparedView
from mm3d.output.predictions import Finding, ViewPrediction

TOLERANCE = 10.0  # mm, between the two distances
SHARE = 0.1  # of the breast's extent, if the spacing of pixels is not known


def match_lesions(
    images: Sequence[PreparedView], views: Sequence[ViewPrediction], threshold: float
) -> list[ViewPrediction]:
    """Give the same lesion number to a CC and an MLO finding that are taken for one lesion; numbers are per breast.

    Only findings that score at least `threshold` are matched. The highest scores choose first, each its nearest.
    """
    marked = [
        (finding.score, v, n, nipple_distance(finding, image))
        for v, (view, image) in enumerate(zip(views, images, strict=True))
        for n, finding in enumerate(view.findings)
        if finding.score >= threshold
    ]
    lesions: dict[tuple[int, int], int] = {}
    for _, v, n, distance in sorted(marked, key=lambda item: -item[0]):
        if (v, n) in lesions:
            continue
        others = [
            (abs(distance - other), (w, m))
            for _, w, m, other in marked
            if (w, m) not in lesions and views[w].position != views[v].position
        ]
        apart, partner = min(others, default=(2.0, (v, n)))
        if apart <= 1:
            lesions[v, n] = lesions[partner] = len(lesions) // 2
    return [
        replace(view, findings=tuple(replace(f, lesion=lesions.get((v, n))) for n, f in enumerate(view.findings)))
        for v, view in enumerate(views)
    ]


def nipple_distance(finding: Finding, image: PreparedView) -> float:
    """How far the middle of a finding is behind the nipple, in units of the tolerance."""
    x1, _, x2, _ = image.file.geometry.crop
    middle = (finding.box[0] + finding.box[2]) / 2
    pixels = middle - x1 if image.file.geometry.mirrored else x2 - middle  # mirrored: the chest wall is on the right
    spacing = image.file.pixel_spacing
    return pixels / (SHARE * (x2 - x1)) if spacing is None else pixels * spacing / TOLERANCE
