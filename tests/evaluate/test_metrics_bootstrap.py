"""The bootstrap over patients: an interval that is too narrow makes noise look like progress."""

import numpy as np
import pytest
from support.boxes import array, make_scores

from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.calibration import operating_point
from mm3d.evaluate.metrics.froc import FrocScores, limit_at, recall_at

INF = np.inf
RATES = np.array([0.0, 0.25, 0.5, 1.0])


def some_patients(random: np.random.Generator, patients: int) -> FrocScores:
    """Patients with 4 volumes; a quarter have cancers, found together or not, which makes a naive error too small."""
    found, found_owner = [], []
    for patient in range(patients):
        if random.random() < 0.25:
            difficulty = random.normal()
            for _ in range(random.integers(1, 5)):
                found.append(1.2 * random.normal() + 1 - difficulty if random.random() < 0.9 else -INF)
                found_owner.append(patient)
    texture = random.normal(size=patients)
    false_owner = np.repeat(np.arange(patients), random.poisson(np.exp(1 + 0.5 * texture)))
    false = 0.5 * texture[false_owner] + random.normal(size=len(false_owner))
    return FrocScores(
        array(found), false, np.array(found_owner, dtype=np.int64), false_owner, np.repeat(np.arange(patients), 4)
    )


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(0)
    truth = recall_at(some_patients(random, 40_000), 0.25)
    trials, covered, errors, values = 200, 0, [], []
    for trial in range(trials):
        d = some_patients(random, 160)
        replicates = bootstrap.recalls_at(d, np.array([0.25]), bootstrap.draw(160, 200, trial))[:, 0]
        low, high = bootstrap.interval(replicates)
        covered += low <= truth <= high
        errors.append(bootstrap.standard_error(replicates))
        values.append(recall_at(d, 0.25))
    assert 0.90 <= covered / trials <= 0.99
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)
    assert bootstrap.interval(np.arange(1001.0)) == (25, 975)


def test_a_replicate_is_what_the_patients_drawn_would_give() -> None:
    """The fast way with counts against a cohort that really has its patients several times."""
    random = np.random.default_rng(1)
    d = some_patients(random, 30)
    weights = bootstrap.draw(30, 20, 3)
    recalls, limits = bootstrap.recalls_and_limits(d, RATES, weights)
    for b, drawn in enumerate(weights):
        copy = FrocScores(
            np.repeat(d.hit, drawn[d.hit_patient]),
            np.repeat(d.false, drawn[d.false_patient]),
            np.repeat(d.hit_patient, drawn[d.hit_patient]),
            np.repeat(d.false_patient, drawn[d.false_patient]),
            np.repeat(d.volume_patient, drawn[d.volume_patient]),
        )
        for i, rate in enumerate(RATES):
            assert recalls[b, i] == pytest.approx(recall_at(copy, rate), abs=1e-12)
            assert limits[b, i] == limit_at(copy, rate)


def test_every_replicate_draws_as_many_patients_and_a_seed_is_a_seed() -> None:
    weights = bootstrap.draw(50, 100, 7)
    assert weights.shape == (100, 50)
    assert (weights.sum(axis=1) == 50).all()
    assert (weights == bootstrap.draw(50, 100, 7)).all()
    assert (weights != bootstrap.draw(50, 100, 8)).any()
    assert abs(weights.mean(axis=0) - 1).max() < 0.5  # each as often as the others


def test_a_replicate_without_a_finding_has_no_recall_and_does_not_count() -> None:
    d = FrocScores(array([0.9]), array([0.5]), np.array([0]), np.array([1]), np.array([0, 1]))
    recalls = bootstrap.recalls_at(d, np.array([1.0]), np.array([[2, 0], [0, 2], [1, 1]]))[:, 0]
    assert np.isnan(recalls[1])
    assert recalls[[0, 2]].tolist() == [1.0, 1.0]
    assert bootstrap.standard_error(recalls) == 0.0
    assert bootstrap.standard_error(np.array([1.0, np.nan, 3.0])) == pytest.approx(np.sqrt(2))
    assert bootstrap.interval(recalls) == (1.0, 1.0)
    assert np.isnan(bootstrap.interval(np.array([np.nan]))).all()


def test_p_of_differences() -> None:
    assert bootstrap.p_of_difference(np.array([0.0] * 50)) == 1.0
    assert bootstrap.p_of_difference(np.array([0.1] * 999)) == pytest.approx(2 / 1000)
    assert bootstrap.p_of_difference(np.array([-0.1] * 999)) == pytest.approx(2 / 1000)
    mixed = np.array([0.1] * 95 + [-0.1] * 4)
    assert bootstrap.p_of_difference(mixed) == pytest.approx(2 * 5 / 100)
    assert np.isnan(bootstrap.p_of_difference(np.array([np.nan])))


def test_an_operating_point_by_hand() -> None:
    d = make_scores(hit=[0.9, 0.6, 0.4, -INF], false=[0.7, 0.5, 0.3], volumes=4)
    draws = np.array([[1, 1, 1, 1], [2, 2, 0, 0], [0, 0, 2, 2]])  # of three replicates: intervals are the extremes
    point = operating_point(d, 0.25, draws)
    assert (point["threshold"], point["recall"], point["fp_per_volume"]) == (0.6, 0.5, 0.25)
    assert point["recall_interval"] == (0.0, 1.0)  # at 0.6, both findings of the second draw and none of the third's
    assert point["fp_per_volume_interval"] == (0.0, 0.5)  # 0.7 twice in four volumes, or nothing
    assert point["threshold_interval"] == (0.3, 0.7)  # the first false positive too many of the third and of the second
    never = operating_point(make_scores([-INF], [], 2), 0.25, bootstrap.draw(2, 50, 0))
    assert (never["threshold"], never["recall"], never["fp_per_volume"]) == (INF, 0.0, 0.0)
