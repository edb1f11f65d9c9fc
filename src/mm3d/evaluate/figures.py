"""FROC, ROC and reliability as figures for a page or a talk, PNG and SVG."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mm3d.evaluate.measure import Measured
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import froc, recall_at
from mm3d.evaluate.metrics.roc import roc
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.shared.files import replacing

# Okabe and Ito's colours, which people who do not see red and green tell apart, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",  # letters stay letters
    "svg.hashsalt": "mm3d",
}
INCHES = (4.4, 3.9)
SUFFIXES = (".png", ".svg")


def draw_figures(
    systems: list[Measured], weights: bootstrap.Weights, settings: EvaluateSettings, folder: Path
) -> list[str]:
    """Draw what there is to draw; returns the names of the files."""
    pictures: dict[str, Callable[[Axes], None]] = {
        "froc": lambda axes: _froc(axes, systems, weights, settings),
        "roc": lambda axes: _roc(axes, systems),
    }
    if any(system.result["calibration"]["breast"] for system in systems):
        pictures["reliability"] = lambda axes: _reliability(axes, systems)
    else:  # that of an earlier run would pass for ours
        for suffix in SUFFIXES:
            (folder / f"reliability{suffix}").unlink(missing_ok=True)
    for name, draw in pictures.items():
        _save(folder / name, draw)
    return [name + suffix for name in pictures for suffix in SUFFIXES]


def _save(stem: Path, draw: Callable[[Axes], None]) -> None:
    with rc_context(STYLE):
        figure = Figure(figsize=INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.add_subplot())
        for suffix in SUFFIXES:
            metadata = {"Date": None} if suffix == ".svg" else {}  # the same figures give the same file
            with replacing(stem.with_suffix(suffix)) as partial:
                figure.savefig(partial, dpi=200, format=suffix[1:], metadata=metadata)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _froc(axes: Axes, systems: list[Measured], weights: bootstrap.Weights, settings: EvaluateSettings) -> None:
    right = max(1.0, 4 * max(settings.rates, default=0.5))
    grid = np.linspace(0, right, 101)
    for number, system in enumerate(systems):
        colour = _colour(number)
        for rule in system.judged.rules:
            detections = system.detections[rule, "finding"]
            if not len(detections.found):
                continue
            false, recall, _ = froc(detections)
            # A step: between two thresholds nothing can be had.
            false, recall = np.append(false, max(right, false[-1])), np.append(recall, recall[-1])
            main = rule == "2D"
            label = f"{system.name}, {rule}" if len(system.judged.rules) > 1 else system.name
            axes.step(
                *(false, recall), where="post", color=colour, label=label,
                linewidth=1.6 if main else 1.2, linestyle="-" if main else (0, (4, 1.5)),
            )  # fmt: skip
            if main:
                replicates = bootstrap.recalls_at(detections, grid, weights)
                if np.isfinite(replicates).any():
                    low, high = np.nanquantile(replicates, [0.025, 0.975], axis=0)
                    axes.fill_between(grid, low, high, color=colour, alpha=0.13, linewidth=0)
            rates = np.array(settings.rates)
            axes.plot(
                rates, [recall_at(detections, rate) for rate in rates], color=colour, linestyle="", marker="o",
                markersize=4.5, markerfacecolor=colour if main else "white", zorder=3,
            )  # fmt: skip
    axes.set(xlabel="False positives per volume", ylabel="Recall of malignant findings", title="FROC")
    told = f"IoU ≥ {settings.iou:g}; band: 95% over patients, 2D"
    axes.set_title(told, loc="right", fontsize=7.5, fontweight="normal", color="#666666")
    axes.set(xlim=(0, right), ylim=(0, 1))
    _legend(axes, "lower right" if _high(systems, right) else "upper left")


def _high(systems: list[Measured], right: float) -> bool:
    """Whether the curves leave the lower right corner free."""
    return all(
        recall_at(system.detections["2D", "finding"], right / 2) > 0.55
        for system in systems
        if len(system.detections["2D", "finding"].found)
    )


def _roc(axes: Axes, systems: list[Measured]) -> None:
    """One system: breast, image and case. Several: their breasts."""
    axes.plot([0, 1], [0, 1], color="#AAAAAA", linewidth=0.8, linestyle=(0, (2, 2)))
    levels = ("breast", "image", "case") if len(systems) == 1 else ("breast",)
    curves = [(system, level) for system in systems for level in levels]
    for number, (system, level) in enumerate(curves):
        units, found = system.scored[level], system.result["auc"][level]
        if np.isnan(found["auc"]):
            continue
        error = "" if np.isnan(found["standard_error"]) else f" ± {found['standard_error']:.3f}"
        name = level.capitalize() if len(systems) == 1 else system.name
        false, true = roc(units.scores, units.positive)
        axes.plot(false, true, color=_colour(number), linewidth=1.6, label=f"{name}, AUC {found['auc']:.3f}{error}")
    of = f": {systems[0].name}" if len(systems) == 1 else " of breasts"
    axes.set(xlabel="1 − specificity", ylabel="Sensitivity", title=f"ROC{of}", xlim=(-0.005, 1), ylim=(0, 1.005))
    axes.set_aspect("equal")
    _legend(axes, "lower right")


def _reliability(axes: Axes, systems: list[Measured]) -> None:
    axes.plot([0, 1], [0, 1], color="#AAAAAA", linewidth=0.8, linestyle=(0, (2, 2)))
    for number, system in enumerate(systems):
        found = system.result["calibration"]["breast"]
        if not found:
            continue
        x, y = ([row[name] for row in found["bins"]] for name in ("score", "malignant"))
        low, high = np.array([row["interval"] for row in found["bins"]]).T
        axes.errorbar(
            x, y, yerr=np.abs([y - low, high - y]), color=_colour(number), linewidth=1.4, elinewidth=0.8, marker="o",
            markersize=4, label=f"{system.name}, ECE {found['expected_calibration_error']:.3f}",
        )  # fmt: skip
    axes.set(xlabel="Mean score of breasts", ylabel="Share that is malignant", title="Reliability")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_aspect("equal")
    _legend(axes, "upper left")


def _legend(axes: Axes, place: Literal["lower right", "upper left"]) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=place, handlelength=1.8, borderaxespad=0.6)
