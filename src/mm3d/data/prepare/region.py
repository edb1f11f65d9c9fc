"""Where the breast is in an image: the largest connected bright region, without the letters and markers beside it."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mm3d.shared.errors import InputError

WORKING_SIDE = 400  # the image is reduced to about this size, so that noise and thin things vanish
MARGIN = 0.01  # of the longer side, added around the breast


def breast_region(image: NDArray[np.integer] | NDArray[np.floating]) -> tuple[int, int, int, int]:
    """x1, y1, x2, y2 of the breast in an image (rows, columns) in which tissue is brighter than air.

    Letters, clips and markers are separate regions that are smaller than the breast. The paddle's edge and scratches
    are thin, and the opening removes them. An image that is breast all over is kept whole.
    """
    step = max(1, max(image.shape) // WORKING_SIDE)
    small = _block_median(image, step)
    tissue = small > tissue_threshold(small)
    opened = ndimage.binary_opening(tissue, structure=np.ones((3, 3), dtype=bool), iterations=2)
    regions, count = ndimage.label(opened if opened.any() else tissue)
    if count == 0:
        raise InputError("no breast was found in the image")
    largest = 1 + int(np.argmax(np.bincount(regions.ravel())[1:]))
    rows, columns = np.nonzero(regions == largest)
    # The opening removed a rim of two pixels of the small image, each `step` pixels wide.
    margin = 3 * step + round(MARGIN * max(image.shape))
    height, width = image.shape
    return (
        max(0, int(columns.min()) * step - margin),
        max(0, int(rows.min()) * step - margin),
        min(width, (int(columns.max()) + 1) * step + margin),
        min(height, (int(rows.max()) + 1) * step + margin),
    )


def tissue_threshold(image: NDArray[np.integer] | NDArray[np.floating]) -> float:
    """The value above which a pixel is tissue: a little above the darkest values, which are air."""
    step = max(1, max(image.shape) // WORKING_SIDE)
    low, high = np.percentile(image[::step, ::step], (1, 99))
    if not high > low:
        raise InputError("the image has only one grey value")
    return float(low + 0.05 * (high - low))


def _block_median(image: NDArray[np.integer] | NDArray[np.floating], step: int) -> NDArray[np.float32]:
    """The medians of blocks of step x step pixels: thin bright things vanish."""
    rows, columns = (max(1, side // step) for side in image.shape)
    blocks = image[: rows * step, : columns * step].reshape(rows, min(step, image.shape[0]), columns, -1)
    return np.median(blocks, axis=(1, 3)).astype(np.float32)


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
