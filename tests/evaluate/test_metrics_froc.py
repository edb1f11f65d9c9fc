"""Hits, FROC and R@X: the figures that papers are compared by."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.boxes import SQUARE, make_annotations, make_findings, make_scores

from mm3d.evaluate.metrics.froc import FrocScores, allowed, froc, recall_at, threshold_at
from mm3d.evaluate.metrics.hits import best_findings, best_scores, hits_in_2d, hits_in_3d, iou, visible_ranges
from mm3d.shared.errors import InputError

INF = np.inf


def test_overlap_by_hand() -> None:
    a = np.array([[0, 0, 2, 2], [0, 0, 2, 2], [0, 0, 2, 2], [0, 0, 0, 0], [0, 0, 4, 4]], dtype=float)
    b = np.array([[1, 0, 3, 2], [2, 0, 4, 2], [0, 0, 2, 2], [0, 0, 0, 0], [1, 1, 3, 3]], dtype=float)
    assert iou(a, b) == pytest.approx([2 / 6, 0, 1, 0, 4 / 16])


def test_an_overlap_of_exactly_the_least_is_a_hit() -> None:
    given_boxes = make_findings((0, (0, 0, 50, 50), 0, 0.9), (0, (0, 0, 50, 49), 0, 0.8), (1, (0, 0, 50, 50), 0, 0.7))
    hits = hits_in_2d(given_boxes, make_annotations((0, SQUARE, 0)), 0.25)
    assert hits.finding.tolist() == [0]  # 0.25; the second has 0.245, the third is in another volume


def test_two_findings_under_one_box_are_both_found_by_it() -> None:
    both = make_annotations((0, (0, 0, 50, 100), 3), (0, (50, 0, 100, 100), 5), (1, SQUARE, 0))
    hits = hits_in_2d(make_findings((0, SQUARE, 4, 0.9)), both, 0.25)
    assert hits.finding.tolist() == [0, 0]
    assert hits.annotation.tolist() == [0, 1]
    assert best_scores(hits, np.array([0.9]), 3).tolist() == [0.9, 0.9, -INF]


def test_a_slice_is_right_in_the_annotated_range_or_near_the_one_annotated_slice() -> None:
    true = make_annotations((0, SQUARE, 10), (1, SQUARE, 10), (2, SQUARE, np.nan), ranges={1: (9, 12)})
    visible = visible_ranges(true, np.array([2.0, 2.0, 2.0]))
    rows = [(volume, SQUARE, float(z), 1.0) for volume in range(3) for z in range(7, 15)]
    given_boxes = make_findings(*rows, (0, SQUARE, np.nan, 1.0))
    hits = hits_in_3d(hits_in_2d(given_boxes, true, 0.25), given_boxes, visible)
    right = [
        (int(true.volume[f]), int(given_boxes.slices[p])) for p, f in zip(hits.finding, hits.annotation, strict=True)
    ]
    assert right == [(0, z) for z in (8, 9, 10, 11, 12)] + [(1, z) for z in (9, 10, 11, 12)]
    assert np.isnan(visible[0][2])  # no slice at all: nobody can say


def test_the_best_proposal_does_not_depend_on_the_order_of_rows() -> None:
    rows = [(0, SQUARE, 1.0, 0.5), (0, (0, 0, 90, 100), 2.0, 0.9), (0, SQUARE, 7.0, 0.9), (0, SQUARE, 3.0, 0.9)]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        given_boxes = make_findings(*[rows[i] for i in order])
        hits = hits_in_2d(given_boxes, make_annotations((0, SQUARE, 0), (1, SQUARE, 0)), 0.25)
        best = best_findings(hits, given_boxes, 2)
        assert order[best[0]] == 3  # the highest score, then the larger overlap, then the earlier slice
        assert best[1] == -1


def test_recall_by_hand() -> None:
    """4 volumes, 4 findings. At 0.25 one false positive is allowed, at 0.5 two."""
    d = make_scores(hit=[0.9, 0.6, 0.4, -INF], false=[0.7, 0.5, 0.3], volumes=4)
    assert [recall_at(d, rate) for rate in (0, 0.2, 0.25, 0.49, 0.5, 0.75, 9)] == [
        0.25,
        0.25,
        0.5,
        0.5,
        0.75,
        0.75,
        0.75,
    ]
    assert [threshold_at(d, rate) for rate in (0, 0.25, 0.5, 0.75)] == [0.9, 0.6, 0.4, 0.3]


def test_proposals_of_one_score_enter_together() -> None:
    d = make_scores(hit=[0.9, 0.5], false=[0.5, 0.5, 0.2], volumes=4)
    assert recall_at(d, 0.25) == 0.5  # the finding at 0.5 would bring two false positives along
    assert recall_at(d, 0.5) == 1.0
    assert threshold_at(d, 0.25) == 0.9


def test_repeated_rows_are_so_many_proposals() -> None:
    """On a finding they count once; elsewhere each is a false positive."""
    true = make_annotations((0, SQUARE, 0))
    twice = make_findings((0, SQUARE, 0, 0.9), (0, SQUARE, 0, 0.9))
    hits = hits_in_2d(twice, true, 0.25)
    assert best_scores(hits, twice.scores, 1).tolist() == [0.9]
    assert recall_at(make_scores([0.3], [0.5], 1), 1) == 1.0
    assert recall_at(make_scores([0.3], [0.5, 0.5], 1), 1) == 0.0


def test_without_findings_without_predictions_without_volumes() -> None:
    assert np.isnan(recall_at(make_scores([], [0.5], 3), 0.5))
    assert np.isnan(recall_at(make_scores([], [], 0), 0.5))
    assert recall_at(make_scores([-INF, -INF], [], 3), 0.5) == 0.0
    assert threshold_at(make_scores([-INF], [], 3), 0.5) == INF
    nothing = hits_in_2d(make_findings(), make_annotations((0, SQUARE, 0)), 0.25)
    assert best_scores(nothing, np.zeros(0), 1).tolist() == [-INF]
    assert best_findings(nothing, make_findings(), 1).tolist() == [-1]
    assert len(hits_in_2d(make_findings((0, SQUARE, 0, 1)), make_annotations(), 0.25).finding) == 0


def test_a_score_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(InputError, match="1 of 2 scores are not a number"):
        make_findings((0, SQUARE, 0, 0.5), (0, SQUARE, 0, np.nan))
    for found, false in (([np.nan], []), ([], [np.nan])):
        with pytest.raises(InputError, match="1 of 1 scores are not a number"):
            make_scores(found, false, 1)


@given(volumes=st.integers(1, 3000), n=st.integers(0, 3000))
def test_the_allowed_number_survives_rounding(volumes: int, n: int) -> None:
    assert allowed(volumes, n / volumes) == n
    assert allowed(volumes, np.nextafter(n / volumes, -1)) == n - 1


scores = st.lists(st.integers(-3, 3).map(float), max_size=12)


@st.composite
def any_detections(draw: st.DrawFn) -> FrocScores:
    found = [-INF if draw(st.booleans()) else score for score in draw(scores)]
    return make_scores(found, draw(scores), draw(st.integers(1, 8)))


@given(d=any_detections(), rate=st.sampled_from([0, 0.1, 0.25, 0.5, 1, 2, 5]))
def test_recall_is_the_best_of_the_curve_within_the_rate(d: FrocScores, rate: float) -> None:
    false, recall, thresholds = froc(d)
    assert (np.diff(false) >= 0).all()
    assert (np.diff(recall) >= 0).all()
    if len(d.hit):
        assert recall_at(d, rate) == recall[false <= rate].max()
    t = threshold_at(d, rate)
    called = false[thresholds >= t] if np.isfinite(t) else np.zeros(1)
    assert called.max() <= rate


@given(d=any_detections(), rate=st.sampled_from([0.1, 0.25, 0.5, 1]))
def test_recall_keeps_under_any_growing_function_of_the_scores(d: FrocScores, rate: float) -> None:
    def grown(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
        return [float(np.exp(value / 2)) if np.isfinite(value) else -INF for value in values]

    other = make_scores(grown(d.hit), grown(d.false), len(d.volume_patient))
    assert recall_at(other, rate) == recall_at(d, rate) or not len(d.hit)
