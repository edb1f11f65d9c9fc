"""The outline of the breast in pictures: a border that stays looks like a cancer, a lesion that is cut off is lost."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage
from support.dicom_files import breast

from mm3d.data.prepare.geometry import Geometry
from mm3d.data.prepare.region import bounds, find_largest_body, find_outline
from mm3d.data.prepare.run import _find_cut_annotations
from mm3d.shared.errors import InputError

SIDE = 800


def film() -> NDArray[np.uint8]:
    """A breast at the left edge of a film, about 160 of 255 bright, in 800 x 800 pixels."""
    return (breast(rows=SIDE, columns=SIDE) // 2.6).astype(np.uint8)


def overlap(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    return float((one & other).sum() / (one | other).sum())


def test_the_outline_has_the_breast_and_a_rim_of_air() -> None:
    inside = film() > 0
    outline = find_outline(film())
    assert outline[inside].mean() > 0.995
    assert overlap(outline, inside) > 0.85


@pytest.mark.parametrize("slope", [0, 0.02, -0.03])
def test_white_borders_are_no_breast_even_if_they_are_askew(slope: float) -> None:
    pixels, plain = film(), find_outline(film())
    y, x = np.mgrid[:SIDE, :SIDE]
    white = (y > 760 + slope * x) | (x < 20 + slope * y)  # along the lower edge, and along the chest wall
    pixels[white] = 250
    outline = find_outline(pixels)
    assert outline[white].mean() < 0.001  # where the border is less than a pixel wide
    assert outline[plain & ~white].mean() > 0.97


def test_breast_that_is_white_at_the_edge_is_no_border() -> None:
    pixels = film().astype(float)
    y, x = np.mgrid[:SIDE, :SIDE]
    pixels += 200 * np.exp(-(x**2) / 60**2 - (y - 400) ** 2 / 200**2) * (pixels > 0)  # a muscle, say
    bright = pixels > 240
    assert bright[400, :10].all()
    assert find_outline(pixels.clip(0, 255).astype(np.uint8))[bright].all()


def test_labels_and_lines_are_cut_off_even_if_they_touch_the_breast() -> None:
    pixels = film()
    air = find_outline(pixels)
    pixels[395:405, 470:700] = 255  # a line from the breast
    pixels[340:460, 700:760] = 255  # to a label
    pixels[:, :15] = np.maximum(pixels[:, :15], 90)  # what a scanner leaves at the edge of a film
    outline = find_outline(pixels)
    assert not outline[:, 560:].any()
    assert overlap(outline, air) > 0.95
    x1, y1, x2, y2 = bounds(outline)
    assert (x1, x2 < 540) == (0, True)
    assert (y1 > 40, y2 < 760) == (True, True)


def test_an_empty_picture_is_refused() -> None:
    with pytest.raises(InputError, match="only one grey value"):
        find_outline(np.full((100, 100), 7, dtype=np.uint8))


def test_annotations_that_the_crop_cuts_are_counted() -> None:
    geometry = Geometry((100, 100, 200, 300), mirrored=True, height=200, width=100, stored_slices=1, slices=1)
    assert geometry.visible_share((150, 150, 160, 160)) == 1
    assert geometry.visible_share((90, 100, 110, 200)) == pytest.approx(0.5)
    assert geometry.visible_share((0, 0, 50, 50)) == 0
    assert _find_cut_annotations([]) == []


def test_the_largest_body_is_that_of_scipy() -> None:
    """Two bodies that are taken for one would widen the crop; one that falls apart would cut the breast."""
    random = np.random.default_rng(0)
    for trial in range(300):
        mask = random.random(random.integers(1, 40, 2)) < random.random()
        if trial % 2:
            mask = ndimage.binary_opening(mask, np.ones((2, 2), dtype=bool))
        if mask.any():
            labels, _ = ndimage.label(mask)
            largest = 1 + np.argmax(np.bincount(labels.ravel())[1:])
            assert (find_largest_body(mask) == (labels == largest)).all()
    with pytest.raises(InputError, match="no breast"):
        find_largest_body(np.zeros((3, 3), dtype=bool))
