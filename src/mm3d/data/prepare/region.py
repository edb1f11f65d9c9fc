"""Where the breast is in an image, and which way it lies.

In files of mammography there is breast, air, and a few small bright things: `breast_region` finds what is cropped.
Pictures of scanned films also have labels, and white strips along their edges, where the scanner saw past the film. The
strips touch the breast and are brighter than it. `find_outline` takes them away first, as far as they are straight.
Then the breast is the largest body that is left, after an opening has cut off what is thin.
"""

from collections.abc import Callable
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from mm3d.shared.errors import InputError

Pixels = NDArray[np.integer] | NDArray[np.floating]  # (rows, columns), tissue brighter than air
Mask = NDArray[np.bool_]  # (rows, columns)
Region = tuple[int, int, int, int]  # x1, y1, x2, y2

WORKING_SIDE = 400  # the image is reduced to about this size, so that noise and thin things vanish
MARGIN = 0.01  # of the longer side, added around the breast

# Shares of the side of a picture that a border lies on, or ends at
BORDER_DEPTH = 0.10  # of the deepest border
BORDER_GAP = 0.03  # of black between the picture's edge and the border
BORDER_LENGTH = 0.15  # of the shortest border: less white at the edge is breast
BORDER_TOLERANCE = 0.006  # between a border's inner edge and a straight line
BORDER_SLOPES = np.linspace(-0.04, 0.04, 17)  # films lie askew in the scanner
# Shares of the brightest value of a picture
BORDER_WHITE = 0.85  # what is as bright may be border: film that was not exposed at all
BORDER_DROP = 0.1  # from the border to the breast: the brightest breast comes down more slowly
BORDER_BLUR = 2  # pixels of the reduced image, in which this happens
# Shares of the longer side of a picture
OPENING = 0.025  # half the width of what is too thin to be breast
RIM = 0.02  # of air that is kept around the breast
TISSUE = 0.06  # of the range of grey values above the darkest: what is brighter is not air


def breast_region(image: Pixels) -> Region:
    """x1, y1, x2, y2 of the breast in an image (rows, columns) in which tissue is brighter than air.

    Letters, clips and markers are separate regions that are smaller than the breast. The paddle's edge and scratches
    are thin, and the opening removes them. An image that is breast all over is kept whole.
    """
    step = max(1, max(image.shape) // WORKING_SIDE)
    small = block_median(image, step)
    tissue = small > tissue_threshold(small)
    opened = _look_around(_look_around(tissue, np.logical_and), np.logical_or)
    rows, columns = np.nonzero(find_largest_body(opened if opened.any() else tissue))
    # The opening removed a rim of two pixels of the small image, each `step` pixels wide.
    margin = 3 * step + round(MARGIN * max(image.shape))
    height, width = image.shape
    return (
        max(0, int(columns.min()) * step - margin),
        max(0, int(rows.min()) * step - margin),
        min(width, (int(columns.max()) + 1) * step + margin),
        min(height, (int(rows.max()) + 1) * step + margin),
    )


def _look_around(mask: Mask, combine: Callable[[Mask, Mask], Mask]) -> Mask:
    """Combine each pixel with those up to two pixels away: with "and" this is an erosion, with "or" a dilation."""
    (rows, columns), padded = mask.shape, np.pad(mask, 2)
    return reduce(combine, (padded[y : y + rows, x : x + columns] for y in range(5) for x in range(5)))


def find_largest_body(mask: Mask) -> Mask:
    """The largest body of pixels that touch at an edge; the first of equal ones.

    scipy has this, too. But each process would have to import it, which takes longer than the work.
    """
    steps = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    width = steps.shape[1]
    begins, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)  # of the runs of pixels along the rows
    if not len(begins):
        raise InputError("no breast was found in the image")
    body = list(range(len(begins)))  # for each run an earlier one of its body, or itself if it is the first

    def find_first(run: int) -> int:
        while body[run] != run:
            body[run] = run = body[body[run]]
        return run

    firsts, lasts = np.searchsorted(ends, begins - width, "right"), np.searchsorted(begins, ends - width, "left")
    for run, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        for above in range(first, last):  # the runs in the row above that touch it
            one, other = find_first(run), find_first(above)
            body[max(one, other)] = min(one, other)
    bodies = np.array([find_first(run) for run in range(len(body))])
    largest = np.argmax(np.bincount(bodies, weights=ends - begins))
    found = np.zeros_like(mask)
    found[mask] = np.repeat(bodies == largest, ends - begins)
    return found


def tissue_threshold(image: Pixels) -> float:
    """The value above which a pixel is tissue: a little above the darkest values, which are air."""
    step = max(1, max(image.shape) // WORKING_SIDE)
    low, high = np.percentile(image[::step, ::step], (1, 99))
    if not high > low:
        raise InputError("the image has only one grey value")
    return float(low + 0.05 * (high - low))


def block_median(image: Pixels, step: int) -> NDArray[np.float32]:
    """The medians of blocks of step x step pixels: thin bright things vanish."""
    rows, columns = (max(1, side // step) for side in image.shape)
    blocks = image[: rows * step, : columns * step].reshape(rows, min(step, image.shape[0]), columns, -1)
    return np.median(blocks, axis=(1, 3)).astype(np.float32)


def find_outline(image: Pixels) -> Mask:
    """Where the breast is in a picture, with a rim of air, but without borders and labels."""
    from scipy import ndimage  # slow to import, and only pictures need it

    step = max(1, max(image.shape) // WORKING_SIDE)
    small = block_median(image, step)
    border = ndimage.binary_dilation(find_borders(small), np.ones((3, 3), dtype=bool))
    inside = small[~border]
    low, high = np.percentile(inside, (1, 99)) if inside.size else (0, 0)
    if not high > low:
        raise InputError("the image has only one grey value")
    tissue = (small > low + TISSUE * (high - low)) & ~border
    longer = max(small.shape)
    reach = OPENING * longer
    margin = int(reach) + 2
    padded = np.pad(tissue, margin)
    body = find_largest_body(ndimage.distance_transform_edt(padded) > reach)
    distance = ndimage.distance_transform_edt(~body)[margin:-margin, margin:-margin]
    breast = (distance <= reach + RIM * longer) & ~border
    rows, columns = (
        np.minimum(np.arange(side) // step, limit - 1) for side, limit in zip(image.shape, breast.shape, strict=True)
    )
    return breast[np.ix_(rows, columns)]


def bounds(outline: Mask) -> Region:
    rows, columns = np.flatnonzero(outline.any(axis=1)), np.flatnonzero(outline.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def find_borders(image: Pixels) -> Mask:
    """The straight white strips along the four edges of an image."""
    borders = np.zeros(image.shape, dtype=bool)
    for turns in range(4):
        borders |= np.rot90(_find_top_border(np.rot90(image, turns)), -turns)
    return borders


def _find_top_border(image: Pixels) -> Mask:
    """The straight strip of white along the upper edge, if there is one."""
    rows, columns = image.shape
    border = np.zeros(image.shape, dtype=bool)
    depth, gap = max(2, round(BORDER_DEPTH * rows)), max(1, round(BORDER_GAP * rows))
    white = image[:depth] >= BORDER_WHITE * image.max()
    down = np.arange(len(white))[:, None]
    begins = np.where(white[:gap].any(axis=0), white[:gap].argmax(axis=0), len(white))  # the first white row
    dark = ~white & (down >= begins)
    ends = np.where(dark.any(axis=0), dark.argmax(axis=0), len(white))  # the first row below the white
    beyond = np.take_along_axis(image, np.minimum(ends + BORDER_BLUR, rows - 1)[None], axis=0)[0]
    sharp = (begins < gap) & (ends < len(white)) & (beyond < (BORDER_WHITE - BORDER_DROP) * image.max())
    found = np.flatnonzero(sharp)
    if not len(found):
        return border
    tolerance = max(1.0, BORDER_TOLERANCE * rows)
    best, line = 0, np.zeros(columns)
    for slope in BORDER_SLOPES:
        offsets = ends[found] - slope * found
        fitting = (np.abs(offsets[:, None] - offsets) <= tolerance).sum(axis=1)
        if fitting.max() > best:
            best, line = int(fitting.max()), offsets[fitting.argmax()] + slope * np.arange(columns)
    if best >= BORDER_LENGTH * columns:
        # White behind the line is breast, unless the line is only not exact there.
        limit = np.where(sharp, np.minimum(ends, line + tolerance), line)
        border[: len(white)] = white & (begins <= down) & (down < np.minimum(limit, ends))
    return border


def chest_wall(image: NDArray[np.integer]) -> str:
    """The side of the image, "L" or "R", that the chest wall is on, as the official BCS-DBT reader decides it.

    The edge column with the larger sum is the chest wall's. In a view that lies as it should, the chest wall of a left
    breast is on the left.
    """
    left, right = image[:, 0].sum(dtype=np.float64), image[:, -1].sum(dtype=np.float64)
    return "R" if left < right else "L"


def heavier_side(image: NDArray[np.integer]) -> str:
    """The half of the image, "L" or "R", that is brighter: the chest wall is there, whatever is at the edges."""
    middle = image.shape[1] // 2
    left, right = image[:, :middle].mean(dtype=np.float64), image[:, middle:].mean(dtype=np.float64)
    return "R" if left < right else "L"
