"""The DBTex score: a number that is not the challenge's cannot be compared with the challenge's."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.boxes import SQUARE, Box, make_annotations, make_findings

from mm3d.evaluate.metrics.dbtex import assign, dbtex
from mm3d.evaluate.metrics.hits import Annotations, Findings, FloatArray

SLICES = np.full(4, 40.0)


def sensitivities(result: dict[str, float]) -> list[float]:
    return [result[f"sensitivity_at_{rate}_fps_positive"] for rate in (1, 2, 3, 4)]


def test_a_hit_is_a_matter_of_centres() -> None:
    """Centre at (50, 50), slice 20 of 40: within 100 pixels and 10 slices, both included."""
    true = make_annotations((0, SQUARE, 20))

    def moved(x: float, y: float) -> Box:
        return (x, y, 100 + x, 100 + y)

    rows = [
        (0, moved(100, 0), 20.0, 1.0),  # no overlap at all
        (0, moved(60, 80), 20.0, 1.0),  # exactly 100
        (0, moved(101, 0), 20.0, 1.0),
        (0, (40, 40, 60, 60), 30.0, 1.0),  # a small box in the middle, 10 slices off
        (0, SQUARE, 30.5, 1.0),
        (1, SQUARE, 20.0, 1.0),  # a volume without findings
    ]
    assert assign(make_findings(*rows), true, SLICES).tolist() == [0, 0, -1, 0, -1, -1]


def test_a_large_finding_is_hit_within_half_its_diagonal() -> None:
    true = make_annotations((0, (0, 0, 600, 800), 20))  # half a diagonal is 500
    rows = [(0, (290 + x, 390 + y, 310 + x, 410 + y), 20.0, 1.0) for x, y in ((300, 400), (301, 400), (500, 0))]
    assert assign(make_findings(*rows), true, SLICES).tolist() == [0, -1, 0]


@pytest.mark.parametrize(("depth", "centre"), [(0, 30), (-1, 29.5), (1, 30.5), (9, 34.5)])
def test_the_depth_counts_from_the_first_slice(depth: float, centre: float) -> None:
    """Z is 30: slices of a proposal are kept as their middle, the official rule wants Z + Depth / 2."""
    middle = 30 + (max(depth, 1) - 1) / 2
    one = make_findings((0, SQUARE, middle, 1.0), span=depth)
    assert assign(one, make_annotations((0, SQUARE, centre - 10)), SLICES).tolist() == [0]
    assert assign(one, make_annotations((0, SQUARE, centre + 10)), SLICES).tolist() == [0]
    assert assign(one, make_annotations((0, SQUARE, centre - 10.5)), SLICES).tolist() == [-1]


def test_of_two_findings_the_nearest_is_hit_and_only_that() -> None:
    near, far = (0, SQUARE, 20.0), (0, (50, 0, 150, 100), 20.0)
    one = make_findings((0, (20, 0, 120, 100), 20.0, 1.0))
    assert assign(one, make_annotations(near, far), SLICES).tolist() == [0]
    assert assign(one, make_annotations(far, near), SLICES).tolist() == [1]
    even = make_findings((0, (25, 0, 125, 100), 20.0, 1.0))
    assert assign(even, make_annotations(near, far), SLICES).tolist() == [0]  # equally near: the first
    deep = make_annotations((0, SQUARE, 26.0), (0, (5, 0, 105, 100), 20.0))
    assert assign(make_findings((0, SQUARE, 20.0, 1.0)), deep, SLICES).tolist() == [
        1
    ]  # 6 slices are more than 5 pixels


def test_sensitivity_by_hand_with_repeats_and_interpolation() -> None:
    """2 findings in 2 of 4 volumes. Thresholds 1.9, 0.9, 0.8, 0.5, -0.6; on volumes with findings."""
    true = make_annotations((0, SQUARE, 20), (1, SQUARE, 20))
    away: Box = (900, 900, 950, 950)
    rows = [
        (0, SQUARE, 20.0, 0.9),
        (0, SQUARE, 20.0, 0.8),  # a repeat: neither a second hit nor a false positive
        (0, away, 20.0, 0.7),
        (1, away, 20.0, 0.6),
        (1, away, 20.0, 0.6),
        (1, away, 20.0, 0.6),
        (1, SQUARE, 20.0, 0.5),
        (2, away, 20.0, 0.4),
    ]
    result = dbtex(make_findings(*rows), true, SLICES, volumes=4)
    # (0, 0), (0, 0.5), (0, 0.5), (2, 1), (2, 1) per volume with findings; the last of equal places counts.
    assert sensitivities(result) == [0.75, 1, 1, 1]
    assert result["mean_sensitivity_positive"] == 0.9375
    assert result["sensitivity_at_2_fps_all"] == 1


def test_without_predictions_all_is_zero_and_without_findings_there_is_no_score() -> None:
    assert set(dbtex(make_findings(), make_annotations((0, SQUARE, 20)), SLICES, 4).values()) == {0.0}
    with pytest.raises(ValueError, match="needs an annotation"):
        dbtex(make_findings((0, SQUARE, 20, 1)), make_annotations(), SLICES, 4)


def slow_dbtex(given_boxes: Findings, true: Annotations, slices: FloatArray, volumes: int) -> dict[str, float]:
    """The same, as the rules are told: row by row, threshold by threshold."""
    first = given_boxes.slices - (np.maximum(given_boxes.spans, 1) - 1) / 2
    rows: list[dict[str, Any]] = []
    for p, score in enumerate(given_boxes.scores.tolist()):
        x1, y1, x2, y2 = given_boxes.boxes[p]
        centre = ((x1 + x2) / 2, (y1 + y2) / 2, first[p] + given_boxes.spans[p] / 2)
        volume = given_boxes.volume[p]
        near = []
        for f in np.flatnonzero(true.volume == volume):
            tx1, ty1, tx2, ty2 = true.boxes[f]
            other = ((tx1 + tx2) / 2, (ty1 + ty2) / 2, true.slices[f])
            radius = max(math.dist((tx1, ty1), (tx2, ty2)) / 2, 100)
            if math.dist(centre[:2], other[:2]) <= radius and abs(centre[2] - other[2]) <= slices[volume] / 4:
                near.append((math.dist(centre, other), f))
        rows.append({"score": score, "finding": min(near)[1] if near else None, "positive": volume in true.volume})
    scores = [row["score"] for row in rows]
    thresholds = [max(scores) + 1, *(row["score"] for row in rows if row["finding"] is not None), min(scores) - 1]

    def curve(kept: list[dict[str, Any]], count: int, rates: tuple[int, ...]) -> list[float]:
        false, sensitivity = [], []
        for threshold in sorted(thresholds, reverse=True):
            called = [row for row in kept if row["score"] >= threshold]
            false.append(sum(row["finding"] is None for row in called) / count)
            sensitivity.append(len({row["finding"] for row in called} - {None}) / len(true.volume))
            if false[-1] > max(rates):
                break
        return [float(np.interp(rate, false, sensitivity)) for rate in rates]

    positive = curve([row for row in rows if row["positive"]], len(set(true.volume.tolist())), (1, 2, 3, 4))
    names = [f"sensitivity_at_{rate}_fps_positive" for rate in (1, 2, 3, 4)]
    result = {"sensitivity_at_2_fps_all": curve(rows, volumes, (2,))[0]} | dict(zip(names, positive, strict=True))
    return result | {"mean_sensitivity_positive": sum(positive) / 4}


places = st.integers(0, 12).map(lambda step: 25.0 * step)


@st.composite
def any_boxes(draw: st.DrawFn, depth: bool) -> list[Any]:
    rows = []
    for _ in range(draw(st.integers(1, 25 if depth else 5))):
        x, y = draw(places), draw(places)
        box = (x, y, x + draw(places), y + draw(places))
        rows.append((draw(st.integers(0, 3)), box, float(draw(st.integers(0, 39)))))
    return rows


@settings(max_examples=150)
@given(rows=any_boxes(depth=True), true=any_boxes(depth=False), depth=st.sampled_from([-1, 0, 1, 4]), data=st.data())
def test_the_fast_way_gives_what_the_rules_give(rows: Any, true: Any, depth: float, data: st.DataObject) -> None:
    scores = data.draw(st.lists(st.integers(0, 9).map(float), min_size=len(rows), max_size=len(rows)))
    given_boxes = make_findings(*((*row, score) for row, score in zip(rows, scores, strict=True)), span=depth)
    slices = np.array([40.0, 30.0, 20.0, 50.0])
    found = dbtex(given_boxes, make_annotations(*true), slices, 4)
    assert found == pytest.approx(slow_dbtex(given_boxes, make_annotations(*true), slices, 4), abs=1e-9)
