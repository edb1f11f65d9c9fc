"""Draw FROC, ROC and reliability curves as PNG and SVG, for a page or a talk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mm3d.evaluate.measure import System
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import froc, recall_at
from mm3d.evaluate.metrics.roc import roc
from mm3d.shared.files import replacing

# The colours of Okabe and Ito, which colour-blind people can tell apart.
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
    "svg.fonttype": "none",  # keep letters as text
    "svg.hashsalt": "mm3d",
}
INCHES = (4.4, 3.9)
SUFFIXES = (".png", ".svg")


def draw_figures(systems: list[System], folder: Path) -> list[str]:
    """Draw the figures that the systems have; returns the names of the files."""
    pictures: dict[str, Callable[[Axes, list[System]], None]] = {}
    if not all(system.matched.unlabelled for system in systems):
        pictures |= {"froc": _froc, "roc": _roc}
    if any(system.result["calibration"]["breast"] for system in systems):
        pictures["reliability"] = _reliability
    for name in {"froc", "roc", "reliability"} - pictures.keys():
        for suffix in SUFFIXES:  # a figure of an earlier run must not stay beside this run's
            (folder / f"{name}{suffix}").unlink(missing_ok=True)
    for name, draw in pictures.items():
        with rc_context(STYLE):
            figure = Figure(figsize=INCHES, layout="constrained")
            FigureCanvasAgg(figure)
            axes = figure.add_subplot()
            axes.set_prop_cycle(color=COLOURS)
            draw(axes, systems)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="best", handlelength=1.8, borderaxespad=0.6)
            for suffix in SUFFIXES:
                metadata = {"Date": None} if suffix == ".svg" else {}  # the same curves give the same file
                with replacing(folder / f"{name}{suffix}") as partial:
                    figure.savefig(partial, dpi=200, format=suffix[1:], metadata=metadata)
    return [name + suffix for name in pictures for suffix in SUFFIXES]


def _froc(axes: Axes, systems: list[System]) -> None:
    settings = systems[0].matched.settings
    right = max(1.0, 4 * max(settings.rates, default=0.5))
    grid = np.linspace(0, right, 101)
    for number, system in enumerate(systems):
        colour = COLOURS[number % len(COLOURS)]
        for rule in system.matched.rules:
            scores = system.matched.froc[rule, "finding"]
            if not len(scores.hit):
                continue
            false, recall, _ = froc(scores)
            # The curve is a step, because there is nothing between two thresholds.
            false, recall = np.append(false, max(right, false[-1])), np.append(recall, recall[-1])
            width, line, fill = (1.6, "-", colour) if rule == "2D" else (1.2, (0, (4, 1.5)), "white")
            label = f"{system.name}, {rule}" if len(system.matched.rules) > 1 else system.name
            axes.step(false, recall, where="post", color=colour, label=label, linewidth=width, linestyle=line)
            if rule == "2D":
                replicates = bootstrap.recalls_at(scores, grid, system.draws)
                if np.isfinite(replicates).any():
                    low, high = np.nanquantile(replicates, [0.025, 0.975], axis=0)
                    axes.fill_between(grid, low, high, color=colour, alpha=0.13, linewidth=0)
            recalls = [recall_at(scores, rate) for rate in settings.rates]
            axes.plot(settings.rates, recalls, "o", color=colour, markersize=4.5, markerfacecolor=fill, zorder=3)
    axes.set(xlabel="False positives per volume", ylabel="Recall of malignant annotations", title="FROC")
    rule = f"IoU ≥ {settings.iou:g}; band: 95% over patients, 2D"
    axes.set_title(rule, loc="right", fontsize=7.5, fontweight="normal", color="#666666")
    axes.set(xlim=(0, right), ylim=(0, 1))


def _roc(axes: Axes, systems: list[System]) -> None:
    """Of one system the curves of breasts, images and cases; of several systems those of their breasts."""
    _draw_diagonal(axes)
    levels = ("breast", "image", "case") if len(systems) == 1 else ("breast",)
    for system, level in ((system, level) for system in systems for level in levels):
        units, area = system.matched.units[level], system.result["auc"][level]
        if np.isnan(area["auc"]):
            continue
        error = "" if np.isnan(area["standard_error"]) else f" ± {area['standard_error']:.3f}"
        name = level.capitalize() if len(systems) == 1 else system.name
        axes.plot(*roc(units.scores, units.positive), linewidth=1.6, label=f"{name}, AUC {area['auc']:.3f}{error}")
    of = f": {systems[0].name}" if len(systems) == 1 else " of breasts"
    axes.set(xlabel="1 − specificity", ylabel="Sensitivity", title=f"ROC{of}", xlim=(-0.005, 1), ylim=(0, 1.005))


def _reliability(axes: Axes, systems: list[System]) -> None:
    _draw_diagonal(axes)
    for system in systems:
        if calibration := system.result["calibration"]["breast"]:
            x, y = ([row[name] for row in calibration["bins"]] for name in ("score", "malignant"))
            low, high = np.array([row["interval"] for row in calibration["bins"]]).T
            error = np.abs([y - low, high - y])
            label = f"{system.name}, ECE {calibration['expected_calibration_error']:.3f}"
            axes.errorbar(x, y, error, label=label, linewidth=1.4, elinewidth=0.8, marker="o", markersize=4)
    axes.set(xlabel="Mean score of breasts", ylabel="Share that is malignant", title="Reliability")
    axes.set(xlim=(0, 1), ylim=(0, 1))


def _draw_diagonal(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color="#AAAAAA", linewidth=0.8, linestyle=(0, (2, 2)))
    axes.set_aspect("equal")
