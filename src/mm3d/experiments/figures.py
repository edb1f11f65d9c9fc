"""The page's curves: figures against the size of the training data."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D

from mm3d.evaluate.figures import COLOURS, STYLE
from mm3d.experiments.published import FIELD_OF, published
from mm3d.experiments.spec import RunSpec
from mm3d.experiments.statistics import Metric, Statistics
from mm3d.shared.files import replacing

DPI = 110
PUBLISHED: dict[str, Any] = {"linestyle": "--", "linewidth": 0.8, "marker": "."}


def draw_efficiency(statistics: Statistics, folder: Path) -> str:
    """Recall and AUC against data, recall against annotations; the paper's dashed. The file's name, or nothing."""
    panels: tuple[tuple[str, str, Metric], ...] = (
        ("data", "data", "recall3d@0.25"),
        ("data", "data", "auc"),
        ("annotations", "annotated", "recall3d@0.25"),
    )
    return _draw(statistics, folder / "efficiency.png", panels)


def draw_start(statistics: Statistics, folder: Path) -> str:
    """The same for the two starts."""
    panels: tuple[tuple[str, str, Metric], ...] = (
        ("start", "data", "recall3d@0.25"),
        ("start", "data", "auc"),
        ("start", "annotated", "recall3d@0.25"),
    )
    return _draw(statistics, folder / "start.png", panels)


def _draw(statistics: Statistics, path: Path, panels: tuple[tuple[str, str, Metric], ...]) -> str:
    with rc_context(STYLE):
        picture = Picture(figsize=(10.5, 3.4), layout="constrained")
        FigureCanvasAgg(picture)
        drawn = [_panel(axes, statistics, *panel) for axes, panel in zip(picture.subplots(1, 3), panels, strict=True)]
        lines, names = picture.axes[0].get_legend_handles_labels()
        if any(line.get_linestyle() == PUBLISHED["linestyle"] for line in picture.axes[0].lines):
            lines, names = [*lines, Line2D([], [], color="0.4", **PUBLISHED)], [*names, "published"]
        picture.legend(lines, names, loc="outside lower center", ncols=max(1, len(names)))
        if not any(drawn):
            path.unlink(missing_ok=True)  # that of an earlier report would pass for ours
            return ""
        with replacing(path) as partial:
            picture.savefig(partial, format="png", dpi=DPI)
    return path.name


def _panel(axes: Axes, statistics: Statistics, table: str, axis: str, metric: Metric) -> bool:
    """A curve for each method; whether there was anything to draw."""
    other = "annotated" if axis == "data" else "data"
    full = max((getattr(run, other) for run in statistics.study.runs if table in run.tables), default=1.0)
    runs = [run for run in statistics.study.runs if table in run.tables and getattr(run, other) == full]
    drawn = False
    for colour, label in zip(COLOURS, dict.fromkeys(_label(table, run) for run in runs), strict=False):
        own = sorted((run for run in runs if _label(table, run) == label), key=lambda run: float(getattr(run, axis)))
        figures = [(getattr(run, axis), statistics.figure(run.name, metric)) for run in own]
        there = [(share, figure.value, figure.error) for share, figure in figures if figure is not None]
        if there:
            places, values, errors = zip(*there, strict=True)
            down = np.minimum(errors, values)  # no figure is below 0
            axes.errorbar(
                places, values, (down, errors), color=colour, marker="o", markersize=4, capsize=2, label=label
            )
            drawn = True
        paper = [(getattr(run, axis), value) for run in own if (value := _paper(statistics, table, run, metric))]
        if paper:
            axes.plot(*zip(*paper, strict=True), color=colour, **PUBLISHED)
    shares = sorted({float(getattr(run, axis)) for run in runs})
    name = {"recall3d@0.25": "R@0.25 (3D)", "auc": "AUC"}[metric]
    axes.set(xscale="log", xlabel=f"share of {'data' if axis == 'data' else 'malignant breasts annotated'}", title=name)
    axes.set_xticks(shares, [f"{share:.0%}" for share in shares])
    axes.set_xticks([], minor=True)
    return drawn


def _label(table: str, run: RunSpec) -> str:
    """Methods by their labels; starts by where they start."""
    return "from FFDM" if table == "start" and not run.against else run.label


def _paper(statistics: Statistics, table: str, run: RunSpec, metric: Metric) -> float | None:
    row: Any = published(statistics.study, table, run)
    value = None if row is None else getattr(row, FIELD_OF[metric])
    return None if value is None else value[0]
