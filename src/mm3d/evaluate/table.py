"""The table of metrics.

A line of METRICS is all that a metric needs to appear in metrics.json and in the printed table. A `FrocMetric` and a
`UnitMetric` also get standard errors, comparisons of systems with p, and subgroups. A `FrocMetric` computes its values
for every draw of patients, a `UnitMetric` the covariance of systems.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm3d.evaluate.match import MatchedPredictions
from mm3d.evaluate.metrics.bootstrap import Draws, recalls_at
from mm3d.evaluate.metrics.calibration import operating_point, reliability
from mm3d.evaluate.metrics.dbtex import LEAST_DISTANCE, dbtex
from mm3d.evaluate.metrics.froc import FrocScores
from mm3d.evaluate.metrics.hits import BoolArray, FloatArray, best_findings, reference_slices, slice_errors
from mm3d.evaluate.metrics.roc import Estimates, delong

Content = Any  # of metrics.json
QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)  # of the scores of findings


@dataclass(frozen=True)
class FrocMetric:
    """A metric of hits and false positives: by rule (2D, 3D) and by level (finding, lesion, breast)."""

    name: str  # its key in metrics.json
    label: str  # in the printed tables; {fp_per_volume} is X
    replicates: Callable[[FrocScores, FloatArray, Draws], FloatArray]  # of scores, every X and draws: (R, values)
    higher_is_better: bool = True
    at_rates: bool = True  # whether it has a value for each X, the false positives per volume; otherwise it has one

    def places(self, rates: tuple[float, ...]) -> list[dict[str, float]]:
        """Where it has a value: at each X, or once."""
        return [{"fp_per_volume": rate} for rate in rates] if self.at_rates else [{}]


@dataclass(frozen=True)
class UnitMetric:
    """A metric of the scores of units: by level (breast, image, case)."""

    name: str
    label: str
    function: Callable[[FloatArray, BoolArray], Estimates]  # of K systems' scores (K, n) and the malignant units (n,)
    higher_is_better: bool = True


@dataclass(frozen=True)
class Summary:
    """Several numbers of a system as a whole, without errors."""

    name: str
    function: Callable[[MatchedPredictions, Draws, list[str]], Content]  # it may add notes to the list
    cells: Callable[[Content], dict[str, str]] = lambda _: {}  # what is printed, by label; not called without content


def _spread(matched: MatchedPredictions, *_: Any) -> dict[str, Content]:
    """How the findings are spread over the volumes, and how high they score: this needs no truth."""
    counts, scores = np.bincount(matched.findings.volume, minlength=len(matched.views)), matched.findings.scores
    return {
        "volumes": len(counts),
        "volumes_without": int((counts == 0).sum()),
        "per_volume": float(counts.mean()),
        "per_volume_median": float(np.median(counts)),
        "per_volume_most": int(counts.max()),
        "scores": {f"{q:g}": float(np.quantile(scores, q)) for q in QUANTILES} if len(scores) else {},
    }


def _spread_cells(spread: Content) -> dict[str, str]:
    cells = {
        "volumes without findings": f"{spread['volumes_without']:,} of {spread['volumes']:,}",
        "findings per volume": f"{spread['per_volume']:.2f} (at most {spread['per_volume_most']:,})",
    }
    if scores := list(spread["scores"].values()):
        cells["scores: lowest, median, highest"] = f"{scores[0]:.3g}, {scores[len(scores) // 2]:.3g}, {scores[-1]:.3g}"
    return cells


def _dbtex(matched: MatchedPredictions, _: Draws, notes: list[str]) -> dict[str, float] | None:
    findings, annotations, slice_counts = matched.findings, matched.annotations, matched.of_views("slice_count")
    if matched.modality != "DBT" or not matched.records:
        return None
    if np.isnan(annotations.slices).any() or np.isnan(slice_counts[annotations.volume]).any():
        needed = "a slice of every annotation and the number of slices of its volume"
    else:
        needed = "a slice of every finding" if np.isnan(findings.slices).any() else ""
    if needed:
        notes.append(f"There is no DBTex score: it needs {needed}.")
        return None
    half = float(np.median(np.linalg.norm(annotations.boxes[:, 2:] - annotations.boxes[:, :2], axis=1))) / 2
    if half < LEAST_DISTANCE / 2:
        notes.append(
            f"The DBTex score says little here: it takes a centre {LEAST_DISTANCE:.0f} pixels away as a hit, and half "
            f"the diagonal of a box is {half:.0f} pixels in the median."
        )
    return dbtex(findings, annotations, slice_counts, len(matched.views))


def _dbtex_cells(score: Content) -> dict[str, str]:
    return {
        "DBTex: mean sensitivity (ranking) ↑": f"{score['mean_sensitivity_positive']:.3f}",
        "DBTex: at 2 FP on all volumes ↑": f"{score['sensitivity_at_2_fps_all']:.3f}",
    }


def _slice_errors(matched: MatchedPredictions, *_: Any) -> dict[str, float] | None:
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


def _slice_cells(errors: Content) -> dict[str, str]:
    cells = {}
    if errors["findings"]:
        mm = f" ({errors['median_mm']:.1f} mm)" if errors["findings_mm"] else ""
        cells["slice error, median ↓"] = f"{errors['median_slices']:.1f}{mm}, {errors['findings']:,} findings"
    if errors["findings_visible"]:
        cells["slice in the visible range ↑"] = f"{errors['visible']:.1%} of {errors['findings_visible']:,}"
    return cells


def _calibration(matched: MatchedPredictions, *_: Any) -> dict[str, Content]:
    units = {level: matched.units[level] for level in ("breast", "image")}
    return {level: reliability(one.scores, one.positive) for level, one in units.items()}


def _calibration_cells(calibration: Content) -> dict[str, str]:
    breasts = calibration["breast"]
    return {"calibration error of breasts ↓": f"{breasts['expected_calibration_error']:.3f}"} if breasts else {}


def _operating_points(matched: MatchedPredictions, draws: Draws, _: list[str]) -> list[dict[str, Content]]:
    points: list[dict[str, Content]] = []
    for rule in matched.rules:
        for rate in matched.settings.rates:
            point = operating_point(matched.froc[rule, "finding"], rate, draws)
            points.append({"of": "findings", "rule": rule, "wanted": {"fp_per_volume": rate}} | point)
    breasts = matched.units["breast"]
    for specificity in matched.settings.specificities if breasts.names else ():
        point = operating_point(breasts.as_froc(), round(1 - specificity, 12), draws)
        low, high = point.pop("fp_per_volume_interval")
        point["sensitivity"], point["sensitivity_interval"] = point.pop("recall"), point.pop("recall_interval")
        point |= {"specificity": 1 - point.pop("fp_per_volume"), "specificity_interval": (1 - high, 1 - low)}
        points.append({"of": "breasts", "wanted": {"specificity": specificity}} | point)
    return points


METRICS: tuple[FrocMetric | UnitMetric | Summary, ...] = (
    Summary("spread", _spread, _spread_cells),
    FrocMetric("recall", "R@{fp_per_volume:g}", recalls_at),
    UnitMetric("auc", "AUC", delong),
    Summary("dbtex", _dbtex, _dbtex_cells),
    Summary("depth", _slice_errors, _slice_cells),
    Summary("calibration", _calibration, _calibration_cells),
    Summary("operating_points", _operating_points),
)
