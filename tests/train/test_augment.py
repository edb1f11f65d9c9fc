"""After augmentation, the truth must still be true: a box stays on its lesion."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm3d.data.inputs import Image
from mm3d.train.config import AugmentConfig
from mm3d.train.data import Change, change_boxes, change_image, draw_changes

S, H, W = 3, 80, 60
NOTHING = Change(False, False, (0.0, 0.0), 0.0, 1.0, 1.0, 0.0)
# How large a change is, where its absolute value is not it.
SIZES: dict[str, Callable[[Any], float]] = {
    "shift": lambda shift: max(map(abs, shift)),
    "scale": lambda scale: abs(scale - 1),
    "gamma": lambda gamma: abs(math.log(gamma)),
}
changes = st.builds(
    Change,
    mirror=st.booleans(),
    flip=st.booleans(),
    shift=st.tuples(st.floats(-0.1, 0.1), st.floats(-0.1, 0.1)),
    angle=st.floats(-0.5, 0.5),
    scale=st.floats(0.8, 1.2),
    gamma=st.just(1.0),
    noise=st.just(0.0),
)


def disc(cx: float, cy: float, radius: float) -> Image:
    y, x = np.mgrid[:H, :W] + 0.5
    return np.repeat((np.hypot(x - cx, y - cy) <= radius)[None], S, axis=0).astype(np.float32)


@settings(deadline=None)
@given(changes, st.floats(20, 40), st.floats(25, 55))
def test_boxes_stay_on_their_lesions(change: Change, cx: float, cy: float) -> None:
    radius = 8.0
    image = change_image(disc(cx, cy, radius), change, np.random.default_rng(0))
    box = np.array([[cx - radius, cy - radius, cx + radius, cy + radius]])
    boxes, shown = change_boxes(box, change, (H, W))
    assert shown.all()
    rows, columns = (np.flatnonzero(image[0].max(axis=axis) > 0.5) for axis in (1, 0))
    np.testing.assert_allclose(boxes[0], [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], atol=1.5)


def test_all_slices_change_alike() -> None:
    config = AugmentConfig(shift=0.1, rotate=30.0, scale=0.2, gamma=0.5)
    for seed in range(5):
        random = np.random.default_rng(seed)
        for change in draw_changes(config, random):
            image = change_image(disc(30, 40, 10) * np.float32(0.5), change, random)
            assert (image == image[:1]).all()


def test_flips_are_of_the_breast() -> None:
    config = AugmentConfig(shift=0.1, rotate=30.0, scale=0.2, gamma=0.5, noise=0.05)
    drawn = [draw_changes(config, np.random.default_rng(seed)) for seed in range(40)]
    assert all((cc.mirror, cc.flip) == (mlo.mirror, mlo.flip) for cc, mlo in drawn)
    assert {(cc.mirror, cc.flip) for cc, _ in drawn} == {(a, b) for a in (True, False) for b in (True, False)}
    # Each view has its own other changes. In 80 draws the greatest is near its limit and never beyond it.
    greatest = {"shift": 0.1, "angle": math.radians(30), "scale": 0.2, "gamma": math.log(1.5), "noise": 0.05}
    for name, limit in greatest.items():
        size = SIZES.get(name, abs)
        assert any(getattr(cc, name) != getattr(mlo, name) for cc, mlo in drawn), name
        assert 0.9 * limit < max(size(getattr(change, name)) for pair in drawn for change in pair) <= limit, name


def test_air_stays_air_and_grey_values_stay_grey_values() -> None:
    image = disc(30, 40, 10) * np.float32(0.9)
    change = Change(False, False, (0.0, 0.0), 0.0, 1.0, 1.5, 0.3)
    changed = change_image(image, change, np.random.default_rng(0))
    assert (changed[image == 0] == 0).all()
    assert 0 <= changed.min()
    assert changed.max() <= 1
    assert changed[image > 0].std() > 0.1
    darker = change_image(image, dataclasses.replace(NOTHING, gamma=1.5), np.random.default_rng(0))
    np.testing.assert_allclose(darker, image**1.5, rtol=1e-5)


def test_nothing_is_exactly_nothing() -> None:
    image = np.random.default_rng(0).random((S, H, W), dtype=np.float32)
    assert (change_image(image, NOTHING, np.random.default_rng(0)) == image).all()
    box = np.array([[1.0, 2.0, 30.0, 40.0]])
    assert (change_boxes(box, NOTHING, (H, W))[0] == box).all()


def test_a_lesion_that_left_the_image_is_not_shown() -> None:
    moved = Change(False, False, (0.0, 0.5), 0.0, 1.0, 1.0, 0.0)
    boxes = np.array([[40.0, 10.0, 50.0, 20.0], [2.0, 10.0, 12.0, 20.0]])
    clipped, shown = change_boxes(boxes, moved, (H, W))
    assert shown.tolist() == [False, True]
    assert clipped[1] == pytest.approx([32, 10, 42, 20])
