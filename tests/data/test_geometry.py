"""Geometry: the one place where a finding can end up beside itself."""

from hypothesis import given
from hypothesis import strategies as st

from mm3d.data.prepare.geometry import Geometry


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    x1, y1 = draw(st.integers(0, 900)), draw(st.integers(0, 900))
    stored = draw(st.integers(1, 130))
    return Geometry(
        crop=(x1, y1, x1 + draw(st.integers(10, 2000)), y1 + draw(st.integers(10, 3000))),
        mirrored=draw(st.booleans()),
        height=draw(st.integers(1, 2200)),
        width=draw(st.integers(1, 1100)),
        stored_slices=stored,
        slices=min(stored, draw(st.integers(1, 32))),
    )


coordinate = st.floats(-100, 4000)


@given(geometries(), coordinate, coordinate, st.floats(1, 2000), st.floats(1, 2000))
def test_boxes_come_back_from_the_model_frame(g: Geometry, x: float, y: float, width: float, height: float) -> None:
    box = (x, y, x + width, y + height)
    there = g.box_to_model(box)
    assert there[0] < there[2]
    assert there[1] < there[3]
    assert all(abs(a - b) < 1e-6 for a, b in zip(g.box_to_stored(there), box, strict=True))


@given(geometries())
def test_the_crop_becomes_the_whole_prepared_view(g: Geometry) -> None:
    expected = (0, 0, g.width, g.height)
    assert all(abs(a - b) < 1e-9 for a, b in zip(g.box_to_model(g.crop), expected, strict=True))


@given(geometries())
def test_slices_come_back_from_the_stored_frame(g: Geometry) -> None:
    for s in range(g.slices):
        assert g.slice_to_stored(s) in g.region(s)
        assert g.slice_to_model(g.slice_to_stored(s)) == s


@given(geometries())
def test_regions_cover_the_volume_and_hold_their_slices(g: Geometry) -> None:
    assert {z for s in range(g.slices) for z in g.region(s)} == set(range(g.stored_slices))
    for z in range(g.stored_slices):
        assert z in g.region(g.slice_to_model(z))
    longest = max(len(g.region(s)) for s in range(g.slices))
    assert longest <= g.stored_slices / g.slices + 2


def test_mirroring_exchanges_left_and_right() -> None:
    g = Geometry(crop=(100, 50, 300, 450), mirrored=True, height=200, width=100, stored_slices=1, slices=1)
    assert g.box_to_model((100, 50, 120, 90)) == (90, 0, 100, 20)


def test_a_predicted_slice_is_the_middle_one_of_its_region() -> None:
    g = Geometry(crop=(0, 0, 10, 10), mirrored=False, height=10, width=10, stored_slices=64, slices=16)
    assert [g.slice_to_stored(s) for s in (0, 1, 15)] == [2, 6, 62]
