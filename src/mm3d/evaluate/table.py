"""The table of metrics.

A line of METRICS is all that a metric needs to appear in metrics.json and in the printed table. A `FrocMetric` and a
`UnitMetric` also get standard errors, comparisons of systems with p, and subgroups.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm3d.evaluate.match import MatchedPredictions, UnitScores
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.bootstrap import Draws
from mm3d.evaluate.metrics.calibration import operating_point, reliability
from mm3d.evaluate.metrics.dbtex import LEAST_DISTANCE, dbtex
from mm3d.evaluate.metrics.froc import FrocScores, recall_at
from mm3d.evaluate.metrics.hits import Annotations, BoolArray, FloatArray, best_findings
from mm3d.evaluate.metrics.roc import Areas, auc, delong
from mm3d.evaluate.metrics.slice_errors import slice_errors

Content = Any  # of metrics.json
Rates = tuple[float, ...]


@dataclass(frozen=True)
class FrocMetric:
    """A metric of hits and false positives: by rule (2D, 3D) and by level (finding, lesion, breast)."""

    name: str  # its key in metrics.json
    label: str  # in the printed tables; {fp_per_volume} is X
    function: Callable[..., float]  # of FrocScores and X, or of FrocScores only
    higher_is_better: bool = True
    at_rates: bool = True  # whether it is a function of X, the false positives per volume
    replicates: Callable[[FrocScores, FloatArray, Draws], FloatArray] | None = None  # a faster bootstrap, (R, rates)

    def places(self, rates: Rates) -> list[dict[str, float]]:
        """Where it has a value: at each X, or once."""
        return [{"fp_per_volume": rate} for rate in rates] if self.at_rates else [{}]

    def values(self, scores: FrocScores, rates: Rates) -> list[float]:
        return [self.function(scores, *place.values()) for place in self.places(rates)]

    def replicate(self, scores: FrocScores, rates: Rates, draws: Draws) -> FloatArray:
        """The values of every replicate, (R, number of places)."""
        if self.replicates is not None:
            return self.replicates(scores, np.array(rates), draws)
        patients = (scores.hit_patient, scores.false_patient, scores.volume_patient)
        arrays = [(scores.hit, patients[0]), (scores.false, patients[1]), *zip(patients, patients, strict=True)]
        return bootstrap.replicate(lambda *drawn: self.values(FrocScores(*drawn), rates), arrays, draws)


@dataclass(frozen=True)
class UnitMetric:
    """A metric of the scores of units: by level (breast, image, case)."""

    name: str
    label: str
    function: Callable[[FloatArray, BoolArray], float]  # of scores (n,) and whether they are of malignant units (n,)
    higher_is_better: bool = True
    areas: Callable[[FloatArray, BoolArray], Areas] | None = None  # errors by DeLong; None: by the bootstrap

    def replicate(self, units: UnitScores, draws: Draws) -> FloatArray:
        """The value of every replicate (R,)."""
        arrays = [(units.scores, units.patient), (units.positive, units.patient)]
        return bootstrap.replicate(self.function, arrays, draws)


@dataclass(frozen=True)
class Summary:
    """Several numbers of a system as a whole, without errors."""

    name: str
    function: Callable[[MatchedPredictions, Draws], Content]  # None: there is no such number
    lines: tuple[tuple[str, bool, Callable[[Content], str]], ...] = ()  # label, higher is better, text ("": none)
    note: Callable[[MatchedPredictions], str] = lambda _: ""  # what a user must know about it


def _dbtex(matched: MatchedPredictions, _: Draws) -> dict[str, float] | None:
    if matched.modality != "DBT" or not matched.records or _dbtex_lacks(matched):
        return None
    return dbtex(matched.findings, matched.annotations, matched.of_views("slice_count"), len(matched.views))


def _dbtex_lacks(matched: MatchedPredictions) -> str:
    slice_counts = matched.of_views("slice_count")[matched.annotations.volume]
    if np.isnan(matched.annotations.slices).any() or np.isnan(slice_counts).any():
        return "a slice of every finding and the number of slices of its volume"
    return "a slice of every proposal" if np.isnan(matched.findings.slices).any() else ""


def _dbtex_note(matched: MatchedPredictions) -> str:
    if matched.modality != "DBT" or not matched.records:
        return ""
    if lacks := _dbtex_lacks(matched):
        return f"There is no DBTex score: it needs {lacks}."
    boxes = matched.annotations.boxes
    half = float(np.median(np.linalg.norm(boxes[:, 2:] - boxes[:, :2], axis=1))) / 2
    if half >= LEAST_DISTANCE / 2:
        return ""
    return (
        f"The DBTex score says little here: it takes a centre {LEAST_DISTANCE:.0f} pixels away as a hit, and half the "
        f"diagonal of a box is {half:.0f} pixels in the median."
    )


def reference_slices(annotations: Annotations) -> FloatArray:
    """The slice that a prediction is compared with (A,): the annotated slice, otherwise the middle of the range."""
    middle = (annotations.first + annotations.last) / 2
    return np.where(np.isnan(annotations.slices), middle, annotations.slices)


def _slice_errors(matched: MatchedPredictions, _: Draws) -> dict[str, float] | None:
    if "3D" not in matched.rules:
        return None
    rule, volume = matched.rules["2D"], matched.annotations.volume
    best = best_findings(rule.hits, matched.findings, len(matched.records))
    hit = rule.judged & matched.counted[volume] & (best >= 0)
    first, last = matched.visible
    return slice_errors(
        matched.findings.slices[best[hit]],
        reference_slices(matched.annotations)[hit],
        (first[hit], last[hit]),
        matched.of_views("slice_spacing")[volume[hit]],
    )


def _median_error(errors: dict[str, float]) -> str:
    mm = f" ({errors['median_mm']:.1f} mm)" if errors["findings_mm"] else ""
    return f"{errors['median_slices']:.1f}{mm}, {errors['findings']:,} findings" if errors["findings"] else ""


def _visible_share(errors: dict[str, float]) -> str:
    return f"{errors['visible']:.1%} of {errors['findings_visible']:,}" if errors["findings_visible"] else ""


def _calibration(matched: MatchedPredictions, _: Draws) -> dict[str, Content]:
    return {level: _reliability(matched.units[level]) for level in ("breast", "image")}


def _reliability(units: UnitScores) -> Content:
    """None if the scores are no probabilities or there are none. Units without a prediction have the score 0."""
    scores = np.where(np.isneginf(units.scores), 0.0, units.scores)
    if not np.isfinite(units.scores).any() or scores.min() < 0 or scores.max() > 1:
        return None
    return reliability(scores, units.positive)


def _operating_points(matched: MatchedPredictions, draws: Draws) -> list[dict[str, Content]]:
    points: list[dict[str, Content]] = []
    for rule in matched.rules:
        for rate in matched.settings.rates:
            point = operating_point(matched.froc[rule, "finding"], rate, draws)
            points.append({"of": "findings", "rule": rule, "wanted": {"fp_per_volume": rate}} | point)
    breasts = matched.units["breast"]
    for specificity in matched.settings.specificities if len(breasts.names) else ():
        point = operating_point(breasts.as_froc(), round(1 - specificity, 12), draws)
        low, high = point["fp_per_volume_interval"]
        points.append(
            {
                "of": "breasts",
                "wanted": {"specificity": specificity},
                "threshold": point["threshold"],
                "threshold_interval": point["threshold_interval"],
                "sensitivity": point["recall"],
                "sensitivity_interval": point["recall_interval"],
                "specificity": 1 - point["fp_per_volume"],
                "specificity_interval": (1 - high, 1 - low),
            }
        )
    return points


METRICS: tuple[FrocMetric | UnitMetric | Summary, ...] = (
    FrocMetric("recall", "R@{fp_per_volume:g}", recall_at, replicates=bootstrap.recalls_at),
    UnitMetric("auc", "AUC", auc, areas=delong),
    Summary(
        "dbtex",
        _dbtex,
        lines=(
            ("DBTex: mean sensitivity (ranking)", True, lambda score: f"{score['mean_sensitivity_positive']:.3f}"),
            ("DBTex: at 2 FP on all volumes", True, lambda score: f"{score['sensitivity_at_2_fps_all']:.3f}"),
        ),
        note=_dbtex_note,
    ),
    Summary(
        "depth",
        _slice_errors,
        lines=(("slice error, median", False, _median_error), ("slice in the visible range", True, _visible_share)),
    ),
    Summary(
        "calibration",
        _calibration,
        lines=(
            (
                "calibration error of breasts",
                False,
                lambda of: f"{of['breast']['expected_calibration_error']:.3f}" if of["breast"] else "",
            ),
        ),
    ),
    Summary("operating_points", _operating_points),
)
