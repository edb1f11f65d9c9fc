"""AUC and DeLong's test, against what their definitions say, computed the slow way."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.boxes import array

from mm3d.evaluate.metrics.hits import BoolArray, FloatArray
from mm3d.evaluate.metrics.roc import delong, midranks, roc
from mm3d.shared.errors import InputError


def slow_placements(scores: FloatArray, positive: BoolArray) -> tuple[list[float], list[float]]:
    """DeLong's structural components, pair by pair."""
    malignant, others = scores[positive].tolist(), scores[~positive].tolist()

    def wins(a: float, b: float) -> float:
        return 1.0 if a > b else 0.5 if a == b else 0.0

    above = [sum(wins(a, b) for b in others) / len(others) for a in malignant]
    below = [sum(wins(a, b) for a in malignant) / len(malignant) for b in others]
    return above, below


def slow_covariance(x: list[float], y: list[float]) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / (len(x) - 1)


@st.composite
def two_systems(draw: st.DrawFn) -> tuple[FloatArray, BoolArray]:
    m, n = draw(st.integers(2, 9)), draw(st.integers(2, 9))
    values = st.integers(-4, 4).map(float) | st.just(-math.inf)  # many ties, and views without a prediction
    rows = [draw(st.lists(values, min_size=m + n, max_size=m + n)) for _ in range(2)]
    positive = np.array(draw(st.permutations([True] * m + [False] * n)))
    return np.array(rows), positive


@given(case=two_systems())
def test_areas_and_covariances_are_those_of_the_definition(case: tuple[FloatArray, BoolArray]) -> None:
    scores, positive = case
    areas = delong(scores, positive)
    parts = [slow_placements(row, positive) for row in scores]
    for k in range(2):
        assert areas.values[k] == pytest.approx(sum(parts[k][0]) / len(parts[k][0]), abs=1e-12)
    for i, j in product(range(2), repeat=2):
        expected = slow_covariance(parts[i][0], parts[j][0]) / positive.sum()
        expected += slow_covariance(parts[i][1], parts[j][1]) / (~positive).sum()
        assert areas.covariance[i, j] == pytest.approx(expected, abs=1e-12)


@given(case=two_systems(), seed=st.integers(0, 99))
def test_neither_order_nor_scale_matters(case: tuple[FloatArray, BoolArray], seed: int) -> None:
    scores, positive = case
    order = np.random.default_rng(seed).permutation(len(positive))
    grown = np.where(np.isfinite(scores), np.exp(scores / 3), -1.0)
    a, b = delong(scores, positive), delong(grown[:, order], positive[order])
    assert b.values == pytest.approx(a.values, abs=1e-12)
    assert b.covariance == pytest.approx(a.covariance, abs=1e-12)


def test_the_paired_test_by_hand() -> None:
    """Two systems on 3 malignant and 2 other breasts; variances written out from the definition."""
    positive = np.array([True, True, True, False, False])
    scores = np.array([[5.0, 4, 1, 2, 3], [5.0, 1, 2, 3, 4]])
    areas = delong(scores, positive)
    assert areas.values == pytest.approx([4 / 6, 2 / 6])
    # above: (1, 1, 0) and (1, 0, 0); below: (2/3, 2/3) and (1/3, 1/3)
    variance = (1 / 3 + 1 / 3 - 2 * 1 / 6) / 3
    difference, error, p = areas.difference(0, 1)
    assert (difference, error) == pytest.approx((1 / 3, math.sqrt(variance)))
    assert p == pytest.approx(math.erfc(1 / 3 / math.sqrt(variance) / math.sqrt(2)))


def test_one_system_against_itself_is_no_difference() -> None:
    scores = np.tile(np.array([0.1, 0.5, 0.3, 0.9, 0.7]), (2, 1))
    scores[1] = scores[1] ** 3
    assert delong(scores, np.array([False, True, False, True, False])).difference(0, 1)[0::2] == (0.0, 1.0)


def test_perfect_against_blind_has_no_variance_and_no_test() -> None:
    scores = np.array([[1.0, 1, 0, 0], [0.0, 0, 0, 0]])
    difference, error, p = delong(scores, np.array([True, True, False, False])).difference(0, 1)
    assert (difference, error) == (0.5, 0.0)
    assert math.isnan(p)


def test_too_few_units_have_no_area_or_no_error() -> None:
    assert math.isnan(delong(np.ones((1, 3)), np.ones(3, dtype=bool)).values[0])
    assert math.isnan(delong(np.zeros((1, 0)), np.zeros(0, dtype=bool)).values[0])
    one = delong(np.array([[2.0, 1.0, 3.0]]), np.array([True, False, False]))
    assert one.values[0] == 0.5
    assert math.isnan(one.standard_error())


def test_nan_is_refused() -> None:
    with pytest.raises(InputError, match="not a number"):
        delong(np.array([[1.0, np.nan]]), np.array([True, False]))


def test_ranks_of_equal_values_are_shared() -> None:
    assert midranks(array([3.0, 1.0, 3.0, 2.0, 3.0])).tolist() == [4, 1, 4, 2, 4]


@given(case=two_systems())
def test_the_area_under_the_drawn_curve_is_the_area(case: tuple[FloatArray, BoolArray]) -> None:
    scores, positive = case
    false, true = roc(scores[0], positive)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(true, false) == pytest.approx(delong(scores[:1], positive).values[0], abs=1e-12)
