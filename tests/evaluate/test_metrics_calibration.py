"""Calibration and slice errors, by hand."""

import numpy as np
import pytest
from support.boxes import array

from mm3d.evaluate.metrics.calibration import reliability, wilson
from mm3d.evaluate.metrics.hits import slice_errors

NAN = np.nan


def test_reliability_by_hand() -> None:
    scores = array([0.05, 0.05, 0.1, 0.19, 1.0, 0.95, 0.98, 0.97])
    result = reliability(scores, np.array([False, True, False, False, True, True, True, True]))
    assert result is not None
    bins = result["bins"]
    assert [row["score"] for row in bins] == pytest.approx([0.05, 0.145, 0.975])
    assert [row["malignant"] for row in bins] == [0.5, 0.0, 1.0]
    assert [row["count"] for row in bins] == [2, 2, 4]
    assert result["expected_calibration_error"] == pytest.approx((2 * 0.45 + 2 * 0.145 + 4 * 0.025) / 8)
    assert all(row["interval"][0] <= row["malignant"] <= row["interval"][1] for row in bins)


def test_scores_that_are_probabilities_have_little_error_and_squared_ones_more() -> None:
    random = np.random.default_rng(0)
    p = random.random(20_000)
    malignant = random.random(20_000) < p
    good, bad = reliability(p, malignant), reliability(p**2, malignant)
    assert good is not None
    assert bad is not None
    assert good["expected_calibration_error"] < 0.015
    assert bad["expected_calibration_error"] > 0.1


def test_logits_are_no_probabilities() -> None:
    assert reliability(array([-2.0, 0.5]), np.array([True, False])) is None


def test_wilsons_interval_is_the_published_one() -> None:
    low, high = wilson(array([0.0, 0.1]), np.array([10, 100]))
    assert low == pytest.approx([0, 0.0552], abs=1e-4)
    assert high == pytest.approx([0.2775, 0.1744], abs=1e-4)


def test_slice_errors_by_hand() -> None:
    predicted = array([10, 20, 30, NAN, 5, 40])
    annotated = array([12, 20, 25, 9, NAN, 50])
    visible = (array([10, 19, 26, 5, NAN, NAN]), array([14, 21, 29, 12, NAN, NAN]))
    errors = slice_errors(predicted, annotated, visible, array([1.0, 0.5, NAN, 1.0, 1.0, 1.0]))
    assert errors | {"visible": 0} == {
        "findings": 4,
        "median_slices": 3.5,
        "mean_slices": 17 / 4,
        "p90_slices": pytest.approx(8.5),  # of 0, 2, 5 and 10
        "findings_mm": 3,
        "median_mm": 2.0,
        "mean_mm": 4.0,
        "visible": 0,
        "findings_visible": 3,
    }
    assert errors["visible"] == pytest.approx(2 / 3)
    none = slice_errors(*(array([]),) * 2, (array([]), array([])), array([]))
    assert none["findings"] == 0
    assert np.isnan(none["median_slices"])
