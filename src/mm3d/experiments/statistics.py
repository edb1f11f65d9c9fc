"""Figures of methods from the results of their runs: means over seeds, standard errors, paired tests, verdicts.

Two things vary: the patients, and the training. The patients' share is the bootstrap's, with the same draws for all
runs, of figures averaged over seeds. The training's share is the spread between seeds, pooled over all runs of a stage
that have several, because three seeds alone cannot tell it; it is divided by the number of seeds. A run that trains
nothing has none, and nobody knows that of a stage without a second seed. Every replicate of a bootstrap is moved by a
draw of the training's share, so that errors and p values have both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import FrocScores, recall_at
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray
from mm3d.evaluate.metrics.roc import delong
from mm3d.experiments.results import JudgedCohort, Result, breast_scores, detections
from mm3d.experiments.spec import INFERENCE_ONLY, RunSpec, StudySpec

Metric = Literal["recall@0.25", "recall@0.5", "recall3d@0.25", "recall3d@0.5", "auc"]
METRICS: tuple[Metric, ...] = ("recall@0.25", "recall@0.5", "recall3d@0.25", "recall3d@0.5", "auc")
RATES = (0.25, 0.5)  # false positives per volume
REPLICATES = 10_000  # with 1,000, p near 0.05 fell on either side of it from one draw to the next
FEW = 1000  # replicates for an error alone
SEED = 0
LEVEL = 0.05  # of p, below which a difference counts

Verdict = Literal["holds", "does not hold", "undecided", "missing"]


@dataclass(frozen=True)
class Figure:
    """A figure of a method."""

    value: float
    error: float
    seeds: int


@dataclass(frozen=True)
class Difference:
    """One method against another: positive if the first is ahead."""

    value: float
    error: float
    p: float


def rule_and_rate(metric: Metric) -> tuple[str, float]:
    return next((rule, rate) for rule in ("2D", "3D") for rate in RATES if _recall(rule, rate) == metric)


def _recall(rule: str, rate: float) -> Metric:
    """The name of a recall."""
    if rule == "2D":
        return "recall@0.25" if rate == 0.25 else "recall@0.5"
    return "recall3d@0.25" if rate == 0.25 else "recall3d@0.5"


class Statistics:
    """A study's results, and what is computed of them; replicates are kept, because each run is compared often."""

    def __init__(
        self,
        study: StudySpec,
        cohort: JudgedCohort,
        results: Mapping[tuple[str, int], Result],
        replicates: int = REPLICATES,
    ) -> None:
        self.study, self.cohort, self.results = study, cohort, results
        self.weights = bootstrap.draw(max(cohort.patients) + 1, replicates, SEED)
        self._values: dict[tuple[str, Metric], list[float]] = {}
        self._replicates: dict[tuple[str, Metric], FloatArray] = {}

    def of(self, run: str) -> list[Result]:
        """The results of a run's seeds that are there."""
        return [result for (name, _), result in self.results.items() if name == run]

    def values(self, run: str, metric: Metric) -> list[float]:
        """The figure of every seed; none where the run has no such figure."""
        if (run, metric) not in self._values:
            found = [one_value(self.cohort, result, metric) for result in self.of(run)]
            self._values[run, metric] = [value for value in found if value is not None and np.isfinite(value)]
        return self._values[run, metric]

    def replicates(self, run: str, metric: Metric) -> FloatArray:
        """Replicates over patients of the figure averaged over seeds, (replicates,)."""
        if (run, metric) not in self._replicates:
            if metric == "auc":
                self._replicates[run, metric] = np.mean([self._areas(result) for result in self.of(run)], axis=0)
            else:
                rule, _ = rule_and_rate(metric)
                both = [self._recalls(detections(self.cohort, result, rule), self.weights) for result in self.of(run)]
                for rate, column in zip(RATES, np.mean(both, axis=0).T, strict=True):
                    self._replicates[run, _recall(rule, rate)] = column
        return self._replicates[run, metric]

    def _areas(self, result: Result) -> FloatArray:
        owner = np.array(self.cohort.patients)
        return bootstrap.areas(breast_scores(result), self.cohort.malignant, owner, self.weights)

    def _recalls(self, found: FrocScores | None, weights: bootstrap.Draws) -> FloatArray:
        """At both rates, (replicates, 2)."""
        assert found is not None
        return bootstrap.recalls_at(found, np.array(RATES), weights)

    def seed_spread(self, stage: str, metric: Metric) -> tuple[float, int]:
        """The standard deviation between seeds of a stage's runs, and its degrees of freedom; 0 and 0 if no run has
        several."""
        runs = [run for run in self.study.runs if run.stage == stage != INFERENCE_ONLY]
        several = [values for run in runs if len(values := self.values(run.name, metric)) > 1]
        freedom = sum(len(values) - 1 for values in several)
        squares = sum(float(np.var(values)) * len(values) for values in several)
        return float(np.sqrt(squares / max(freedom, 1))), freedom

    def training_variance(self, run: RunSpec, metric: Metric) -> float:
        """The training's share of the variance of a figure averaged over seeds; 0 where nobody measured it."""
        spread, _ = self.seed_spread(run.stage, metric)
        return spread**2 / len(self.of(run.name))

    def figure(self, run: str, metric: Metric) -> Figure | None:
        """A method's figure; None if there is no result, or it has no such figure."""
        values = self.values(run, metric)
        if not values:
            return None
        training = self.training_variance(self.study.run(run), metric)
        error = np.sqrt(self.patients_error(run, metric) ** 2 + training)
        return Figure(float(np.mean(values)), float(error), len(values))

    def patients_error(self, run: str, metric: Metric) -> float:
        """The patients' share of a figure's standard error: what a larger test cohort would make smaller."""
        return bootstrap.standard_error(self.replicates(run, metric))

    def difference(self, a: str, b: str, metric: Metric) -> Difference | None:
        """Run a minus run b on the same patients; None if one of them has no such figure."""
        ours, theirs = self.values(a, metric), self.values(b, metric)
        if not ours or not theirs:
            return None
        training = sum(self.training_variance(self.study.run(name), metric) for name in (a, b))
        turned = 1 if a <= b else -1  # so that b minus a is the same test, with the same p
        noise = turned * np.sqrt(training) * np.random.default_rng(SEED).standard_normal(len(self.weights))
        replicates = self.replicates(a, metric) - self.replicates(b, metric) + noise
        value = float(np.mean(ours) - np.mean(theirs))
        return Difference(value, bootstrap.standard_error(replicates), bootstrap.p_of_difference(replicates))

    def recall_of(
        self, run: str, metric: Metric, findings: BoolArray | None = None, breasts: BoolArray | None = None
    ) -> Figure | None:
        """R@X of a part of the cohort: some findings (F,), or some breasts with their false positives (B,)."""
        rule, rate = rule_and_rate(metric)
        values, rows = [], []
        for result in self.of(run):
            found = detections(self.cohort, result, rule, findings, breasts)
            if found is not None and len(found.hit):
                values.append(recall_at(found, rate))
                rows.append(self._recalls(found, self.weights[:FEW])[:, RATES.index(rate)])
        if not values:
            return None
        patients = bootstrap.standard_error(np.mean(rows, axis=0))
        training = self.training_variance(self.study.run(run), metric)
        return Figure(float(np.mean(values)), float(np.sqrt(patients**2 + training)), len(values))


def one_value(cohort: JudgedCohort, result: Result, metric: Metric) -> float | None:
    """A figure of one result, from its scores."""
    if metric == "auc":
        return float(delong(breast_scores(result)[None], cohort.malignant).auc[0])
    rule, rate = rule_and_rate(metric)
    found = detections(cohort, result, rule)
    return None if found is None else recall_at(found, rate)


def verdict(difference: Difference | None) -> Verdict:
    """Whether "a is ahead of b" holds: it does if a is ahead and p is below LEVEL, it does not if b is, with such a p.
    Everything else is undecided: the study is too small to tell, or there is nothing to tell."""
    if difference is None:
        return "missing"
    if not difference.p < LEVEL:
        return "undecided"
    return "holds" if difference.value > 0 else "does not hold"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a statement about several pairs: it holds if all hold, and does not if one does not."""
    for one in ("does not hold", "missing", "undecided"):
        if one in verdicts:
            return one
    return "holds"
