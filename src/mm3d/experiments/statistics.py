"""Figures of methods from the results of their runs: means over seeds, standard errors, paired tests, verdicts.

Two things vary: the patients and the training. The patients' share of an error is the bootstrap's, with the same draws
for all runs, of figures averaged over seeds. The training's share is the spread between seeds, divided by their number.
It is pooled over all runs of a stage that have several seeds, because three seeds are too few to tell it. A run that
trains nothing has no such share, and for a stage without a second seed it is not known. Every replicate of a bootstrap
is moved by a draw of the training's share, so that errors and p values have both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import recall_at
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray
from mm3d.evaluate.metrics.roc import delong
from mm3d.experiments.results import JudgedCohort, Result, froc_scores
from mm3d.experiments.spec import INFERENCE_ONLY, StudySpec

Metric = Literal["recall@0.25", "recall@0.5", "recall3d@0.25", "recall3d@0.5", "auc"]
# The rule and the false positives per volume of each recall.
RECALLS: dict[Metric, tuple[str, float]] = {
    "recall@0.25": ("2D", 0.25),
    "recall@0.5": ("2D", 0.5),
    "recall3d@0.25": ("3D", 0.25),
    "recall3d@0.5": ("3D", 0.5),
}
METRICS: tuple[Metric, ...] = (*RECALLS, "auc")
RATES = (0.25, 0.5)
REPLICATES = 10_000  # with 1,000, p near 0.05 fell on either side of it from one draw to the next
FEW = 1000  # replicates for an error without a test
SEED = 0
LEVEL = 0.05  # of p, below which a difference counts

Verdict = Literal["holds", "does not hold", "undecided", "missing"]


@dataclass(frozen=True)
class Figure:
    """A figure of a method."""

    value: float
    error: float


@dataclass(frozen=True)
class Difference(Figure):
    """One method against another. It is positive if the first is ahead."""

    p: float


class Statistics:
    """A study's results and what is computed from them. Replicates are kept, because each run is compared often."""

    def __init__(self, study: StudySpec, cohort: JudgedCohort, results: Mapping[str, Result]) -> None:
        self.study, self.cohort, self.results = study, cohort, results
        self.draws = bootstrap.draw(max(cohort.patients) + 1, REPLICATES, SEED)
        self._values = {(run.name, metric): self._by_seed(run.name, metric) for run in study.runs for metric in METRICS}
        self._replicates: dict[tuple[str, str], FloatArray] = {}

    def of(self, run: str) -> list[Result]:
        """The results of a run's seeds that are there."""
        return [result for result in self.results.values() if result.run == run]

    def values(self, run: str, metric: Metric) -> list[float]:
        """The figure of every seed. Empty if the run has no such figure."""
        return self._values.get((run, metric), [])

    def _by_seed(self, run: str, metric: Metric) -> list[float]:
        if metric == "auc":
            found = [float(delong(_breast_scores(one)[None], self.cohort.malignant).values[0]) for one in self.of(run)]
        else:
            rule, rate = RECALLS[metric]
            results = [one for one in self.of(run) if rule in one.scores.found]
            found = [recall_at(froc_scores(self.cohort, one, rule), rate) for one in results]
        return [value for value in found if np.isfinite(value)]

    def replicates(self, run: str, metric: Metric) -> FloatArray:
        """Replicates over patients of the figure averaged over seeds, (replicates,)."""
        rule, rate = RECALLS.get(metric, (metric, RATES[0]))
        if (run, rule) not in self._replicates:
            self._replicates[run, rule] = np.mean([self._replicate(one, rule) for one in self.of(run)], axis=0)
        return self._replicates[run, rule][:, RATES.index(rate)]

    def _replicate(self, result: Result, rule: str) -> FloatArray:
        """Replicates of one result: its AUC, (replicates, 1), or its recall at both rates, (replicates, 2)."""
        if rule == "auc":
            patients = np.array(self.cohort.patients)
            return bootstrap.areas(_breast_scores(result), self.cohort.malignant, patients, self.draws)[:, None]
        return bootstrap.recalls_at(froc_scores(self.cohort, result, rule), np.array(RATES), self.draws)

    def seed_spread(self, stage: str, metric: Metric) -> tuple[float, int]:
        """The standard deviation between seeds of a stage's runs, and its degrees of freedom. Both are 0 if no run has
        several seeds."""
        runs = [run for run in self.study.runs if run.stage == stage != INFERENCE_ONLY]
        several = [values for run in runs if len(values := self.values(run.name, metric)) > 1]
        freedom = sum(len(values) - 1 for values in several)
        squares = sum(float(np.var(values)) * len(values) for values in several)
        return float(np.sqrt(squares / max(freedom, 1))), freedom

    def training_variance(self, run: str, metric: Metric) -> float:
        """The training's share of the variance of a figure averaged over seeds. 0 where it is not known."""
        spread, _ = self.seed_spread(self.study.run(run).stage, metric)
        return spread**2 / len(self.of(run))

    def figure(self, run: str, metric: Metric) -> Figure | None:
        """A method's figure. None if there is no result, or the result has no such figure."""
        values = self.values(run, metric)
        return self._with_error(run, metric, values, self.patients_error(run, metric)) if values else None

    def patients_error(self, run: str, metric: Metric) -> float:
        """The patients' share of a figure's standard error. A larger test cohort would make it smaller."""
        return bootstrap.standard_error(self.replicates(run, metric))

    def _with_error(self, run: str, metric: Metric, values: list[float], patients_error: float) -> Figure:
        error = np.sqrt(patients_error**2 + self.training_variance(run, metric))
        return Figure(float(np.mean(values)), float(error))

    def difference(self, a: str, b: str, metric: Metric) -> Difference | None:
        """Run a minus run b on the same patients. None if one of them has no such figure."""
        ours, theirs = self.values(a, metric), self.values(b, metric)
        if not ours or not theirs:
            return None
        training = self.training_variance(a, metric) + self.training_variance(b, metric)
        sign = 1 if a <= b else -1  # so that b minus a is the same test, with the same p
        noise = sign * np.sqrt(training) * np.random.default_rng(SEED).standard_normal(len(self.draws))
        replicates = self.replicates(a, metric) - self.replicates(b, metric) + noise
        value = float(np.mean(ours) - np.mean(theirs))
        return Difference(value, bootstrap.standard_error(replicates), bootstrap.p_of_difference(replicates))

    def figure_of_part(
        self, run: str, metric: Metric, kind: str = "", breasts: BoolArray | None = None
    ) -> Figure | None:
        """R@X of the cancers of a kind, or of some of the breasts (B,) with their own false positives."""
        rule, rate = RECALLS[metric]
        parts = [froc_scores(self.cohort, one, rule, kind, breasts) for one in self.of(run)]
        if not parts or not len(parts[0].hit):
            return None
        rows = [bootstrap.recalls_at(part, np.array([rate]), self.draws[:FEW])[:, 0] for part in parts]
        error = bootstrap.standard_error(np.mean(rows, axis=0))
        return self._with_error(run, metric, [recall_at(part, rate) for part in parts], error)


def _breast_scores(result: Result) -> FloatArray:
    """(B,) millionths."""
    return np.array(result.scores.breasts, dtype=float)


def verdict(difference: Difference | None) -> Verdict:
    """Whether "a is ahead of b" holds. It holds if a is ahead and p is below LEVEL, and does not hold if b is ahead
    with such a p. Everything else is undecided: the study is too small to tell, or there is no difference."""
    if difference is None:
        return "missing"
    if not difference.p < LEVEL:
        return "undecided"
    return "holds" if difference.value > 0 else "does not hold"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a statement about several pairs. It holds if all hold, and does not if one does not."""
    for one in ("does not hold", "missing", "undecided"):
        if one in verdicts:
            return one
    return "holds"
