"""How recall grows with the number of annotated cancers, and how many of them a start from mammograms saves.

The share of cancers that are missed falls about as a power of the number of annotated cancers in the training,
1 - R = a n^-b: a straight line if both axes are logarithmic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mm3d.evaluate.figures import COLOURS
from mm3d.experiments.gallery import new_picture
from mm3d.experiments.spec import RunSpec
from mm3d.experiments.statistics import Figure, Metric, Statistics

LEAST_MISS = 0.01  # a recall of 1 has no logarithm


@dataclass(frozen=True)
class PowerLaw:
    """The share that is missed after n annotated cancers, a n^-b."""

    a: float
    b: float

    def missed(self, n: float) -> float:
        return self.a * n**-self.b

    def needed(self, missed: float) -> float:
        """The number of annotated cancers after which this share is missed. Infinite if more do not help."""
        return (self.a / missed) ** (1 / self.b) if self.b > 0 else float("inf")


def fit_power_law(counts: Sequence[float], figures: Sequence[Figure]) -> PowerLaw:
    """The line through the logarithms that is nearest, in units of the standard errors, to the shares missed."""
    missed = np.maximum([1 - figure.value for figure in figures], LEAST_MISS)
    errors = np.maximum([figure.error for figure in figures], 1e-3)
    slope, offset = np.polyfit(np.log(counts), np.log(missed), 1, w=missed / errors)
    return PowerLaw(float(np.exp(offset)), float(-slope))


@dataclass(frozen=True)
class Curve:
    """The runs of one start: how many annotated cancers they had, and what they found."""

    label: str
    counts: tuple[float, ...]
    figures: tuple[Figure, ...]

    @property
    def law(self) -> PowerLaw:
        return fit_power_law(self.counts, self.figures)


def scaling_curves(statistics: Statistics, metric: Metric) -> list[Curve]:
    """The curve of each start in the study's table "start", by the share of the data. At least two points each."""
    study = statistics.study
    full = max((run.annotated for run in study.runs_of("start")), default=1.0)
    starts: dict[str, dict[float, Figure]] = {}
    for run in study.runs_of("start"):
        figure, count = statistics.figure(run.name, metric), annotated_cancers(statistics, run)
        if run.annotated == full and figure is not None and count > 0:
            starts.setdefault(run.start, {})[count] = figure
    return [
        Curve(start, *zip(*sorted(found.items()), strict=True)) for start, found in starts.items() if len(found) > 1
    ]


def annotated_cancers(statistics: Statistics, run: RunSpec) -> float:
    """How many malignant breasts with boxes a run trains on, as its cohort is drawn. 0 for a download, which is not."""
    source = statistics.study.cohorts[statistics.study.sources_of(run.train)[0]]
    return source.breasts * source.malignant * run.data * run.annotated


def saved(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """For each number of annotated cancers of the first curve, how many the second needs to miss as few."""
    first, second = curves
    return [(n, second.law.needed(first.law.missed(n))) for n in first.counts]


def draw_scaling(curves: Sequence[Curve], path: Path, title: str) -> bool:
    """Draw the curves with their power laws. Returns whether there is any."""
    if not curves:
        path.unlink(missing_ok=True)  # that of an earlier report would pass for ours
        return False
    with new_picture(path, 1, 1, (4.6, 3.6), dpi=130) as rows:
        axes = rows[0][0]
        for colour, curve in zip(COLOURS, curves, strict=False):
            missed = np.array([1 - figure.value for figure in curve.figures])
            errors = [figure.error for figure in curve.figures]
            axes.errorbar(curve.counts, missed, errors, fmt="o", color=colour, capsize=2, label=f"from {curve.label}")
            line = np.geomspace(min(curve.counts), max(curve.counts), 50)
            axes.plot(line, [curve.law.missed(n) for n in line], color=colour, lw=1)
        axes.set(
            xscale="log", yscale="log", xlabel="annotated cancers in the training", ylabel="share missed", title=title
        )
        axes.legend()
    return True
