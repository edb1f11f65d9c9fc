"""What the model is given of a view: the axis on which the paper's baselines differ."""

import numpy as np
import pytest

from mm3d.data.inputs import (
    draw_slice,
    find_repeated_slice,
    grey,
    make_input,
    match_histogram,
    mean_histogram,
    repeat_slices,
    suspicion_projection,
)
from mm3d.data.records import Annotation
from mm3d.shared.errors import InputError

RANDOM = np.random.default_rng(0)


def test_a_projection_has_the_brightest_pixel_of_every_place() -> None:
    pixels = RANDOM.integers(0, 65536, (5, 7, 6)).astype(np.uint16)
    assert (make_input(pixels, "mip") == grey(pixels).max(axis=0)).all()
    assert make_input(pixels, "mip").shape == (1, 7, 6)
    assert (make_input(pixels, "volume") == grey(pixels)).all()
    assert grey(np.array([0, 65535], np.uint16)).tolist() == [0, 1]


def test_matched_projections_look_like_mammograms() -> None:
    """Same distribution of grey values as the mammograms, same order of pixels as before, air still air."""
    mammograms = [np.clip(RANDOM.normal(0.6, 0.1, (1, 60, 50)), 0, 1).astype(np.float32) for _ in range(5)]
    reference = mean_histogram(mammograms)
    assert sum(reference) == pytest.approx(1)
    image = (RANDOM.random((1, 80, 40)) ** 3).astype(np.float32)
    image[:, :, 30:] = 0
    matched = match_histogram(image, reference)
    assert (matched[image == 0] == 0).all()
    inside = image > 0
    wanted = np.concatenate([mammogram.ravel() for mammogram in mammograms])
    for q in (0.1, 0.5, 0.9):
        assert np.quantile(matched[inside], q) == pytest.approx(np.quantile(wanted, q), abs=0.01)
    assert matched[inside].min() > 0.1  # no mammogram has anything darker
    order = np.argsort(image[inside])
    assert (np.diff(matched[inside][order]) >= 0).all()
    pixels = (image * 65535).astype(np.uint16)
    assert np.median(np.abs(make_input(pixels, "hm", reference) - matched)) < 0.01


def test_hm_without_mammograms_is_said() -> None:
    with pytest.raises(InputError, match="no mammogram"):
        mean_histogram([np.zeros((1, 4, 4), np.float32)])
    with pytest.raises(InputError, match="needs the average histogram"):
        make_input(np.ones((2, 3, 3), np.uint16), "hm")


def test_every_place_is_taken_from_its_most_suspicious_slice() -> None:
    volume = np.arange(3, dtype=np.uint16)[:, None, None] * np.ones((3, 4, 4), np.uint16)
    suspicion = np.zeros((3, 4, 4), np.float32)
    suspicion[0, :2, :2] = 0.3
    suspicion[2, :2, :3] = 0.2
    projection = suspicion_projection(volume, suspicion)[0]
    assert projection[0].tolist() == [0, 0, 2, 1]  # where nothing is suspected, the middle slice


def test_slices_are_drawn_within_the_reach_of_a_finding() -> None:
    """Box of 50 x 22: int(sqrt(36)) = 6 slices either side."""
    finding = Annotation((0.0, 0.0, 50.0, 22.0), True, slice=10)
    far = Annotation((0.0, 0.0, 8.0, 8.0), True, slice=30)
    random = np.random.default_rng(0)
    drawn = [draw_slice((finding,), 60, random) for _ in range(300)]
    assert {z for z, _ in drawn} == set(range(4, 17))
    assert all(found == (finding,) for _, found in drawn)
    both = [draw_slice((finding, far), 60, random) for _ in range(100)]
    assert {found for _, found in both} == {(finding,), (far,)}
    assert {z for z, _ in (draw_slice((), 5, random) for _ in range(100))} == set(range(5))
    edge = Annotation((0.0, 0.0, 50.0, 22.0), True, slice=1)
    assert min(draw_slice((edge,), 60, random)[0] for _ in range(100)) == 0


@pytest.mark.parametrize(("own", "slices"), [(3, 4), (5, 8), (7, 16), (8, 8)])
def test_repeated_slices_stand_where_they_were(own: int, slices: int) -> None:
    image = np.arange(own, dtype=np.float32)[:, None, None] * np.ones((own, 2, 2), np.float32)
    deep = repeat_slices(image, slices)
    assert len(deep) == slices
    assert [deep[find_repeated_slice(s, own, slices), 0, 0] for s in range(own)] == list(range(own))
