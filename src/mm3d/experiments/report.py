"""`mm3d study report`: the results as a page with its figures. Nothing is shown that is not there.

`page.md` is the template of the page, with all its texts and tables, and `paper.toml` has the paper's figures. Here are
the cells of the tables and the curves.
"""

import re
import tomllib
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from mm3d.evaluate.figures import COLOURS
from mm3d.evaluate.match import EvaluateSettings
from mm3d.evaluate.metrics.bootstrap import least_p
from mm3d.experiments.gallery import ROW, W_CURVES, new_picture
from mm3d.experiments.results import read_cohort, read_results
from mm3d.experiments.scaling import draw_scaling, saved, scaling_curves
from mm3d.experiments.spec import Expectation, RunSpec, StudySpec
from mm3d.experiments.statistics import (
    METRICS,
    RECALLS,
    REPLICATES,
    Difference,
    Figure,
    Metric,
    Statistics,
    together,
    verdict,
)
from mm3d.shared.console import Console, say, show_progress
from mm3d.shared.files import replacing

HERE = Path(__file__).parent
PAPER = tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8"))
PAGE, FIGURES, LEARNING, SCALING = "study.md", "study", "learning.png", "scaling.png"
HEADS = dict(zip(METRICS, ("R@0.25", "R@0.5", "R@0.25, 3D", "R@0.5, 3D", "AUC"), strict=True))
FLAT, DEEP, AUC = METRICS[0], METRICS[2], METRICS[4]
NOTHING = "–"
Tested = Metric | Literal["recall"]  # recall: R@0.25 by the 3D rule where both runs have it, otherwise by the 2D rule


def write_report(study: StudySpec, results: Path, output: Path) -> int:
    """Write the page and its figures. Returns the exit code."""
    statistics = Statistics(study, read_cohort(results), read_results(study, results))
    console = Console()
    with show_progress(console, "bootstrap", len(study.runs)) as advance:
        for run in study.runs:
            for metric in METRICS:
                statistics.figure(run.name, metric)  # most of the work; it is kept
            advance()
    (output / FIGURES).mkdir(parents=True, exist_ok=True)
    pictures = [name for name in CURVES if draw_curves(statistics, name, output / FIGURES)]
    if draw_learning(statistics, output / FIGURES / LEARNING):
        pictures.append(LEARNING)
    if draw_scaling(scaling_curves(statistics, DEEP), output / FIGURES / SCALING, HEADS[DEEP]):
        pictures.append(SCALING)
    for name in (W_CURVES, ROW):  # the study left them beside its results
        if (results / name).is_file():
            with replacing(output / FIGURES / name) as partial:
                partial.write_bytes((results / name).read_bytes())
            pictures.append(name)
    with replacing(output / PAGE) as partial:
        partial.write_text(render_page(statistics, results, pictures), encoding="utf-8")
    say(console, f"Wrote {output / PAGE}: {len(statistics.results)} of {len(study.jobs)} runs are done.")
    return 0


def render_page(statistics: Statistics, results: Path, pictures: Sequence[str]) -> str:
    """The whole page, as Markdown."""
    study, finished = statistics.study, statistics.results
    environment = Environment(
        loader=FileSystemLoader(HERE), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False
    )
    text = environment.get_template("page.md").render(
        study=study,
        statistics=statistics,
        cells=Cells(statistics),
        heads=list(HEADS.values()),
        cohort=statistics.cohort,
        results=results,
        pictures=pictures,
        missing=[name for name in study.jobs if name not in finished],
        methods=PAPER["methods"],
        settings_line=settings_line,
        image_settings=study.trial | {"width": study.width, "length": study.length},
        iou=f"{EvaluateSettings().iou:g}",
        replicates=f"{REPLICATES:,}",
        least_p=f"{least_p(REPLICATES):.4f}",
        spent=duration(sum(sum(result.seconds.values()) for result in finished.values())),
        commits=sorted({result.commit for result in finished.values() if result.commit}),
        cohorts_read=dict.fromkeys(
            of for run in study.runs for name in study.cohorts_of(run) for of in study.sources_of(name)
        ),
        curves=scaling_curves(statistics, DEEP),
        saved=saved,
        by_slices=sorted(study.runs_of("slices"), key=lambda run: study.slices(run.train)),
        parts=[(run, m) for m in (FLAT, DEEP) for run in study.runs_of("finetuned") if statistics.values(run.name, m)],
        several_seeds=[run for run in study.runs if len(statistics.of(run.name)) > 1],
        tested=[run for run in study.runs if run.against and statistics.of(run.name)],
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def duration(seconds: float) -> str:
    """For people: 40 s, 12 min, 3 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def settings_line(settings: dict[str, Any], prefix: str = "") -> str:
    """Settings on a line."""
    return ", ".join(
        settings_line(value, f"{prefix}{name}.") if isinstance(value, dict) else f"{prefix}{name} {value}"
        for name, value in settings.items()
    )


def published(study: StudySpec, table: str, run: RunSpec) -> dict[str, Any]:
    """The paper's figures for a row of a table. Empty where it has none."""
    keys = {"label": run.label, "data": run.data, "annotated": run.annotated}
    if table == "slices":
        keys["slices"] = study.slices(run.train)
    rows = PAPER[study.published].get(table, ())
    return next((row for row in rows if all(row[key] == own for key, own in keys.items() if key in row)), {})


class Cells:
    """The cells of the page's tables. A list is for several columns."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics, self.study, cohort = statistics, statistics.study, statistics.cohort
        self.kinds = sorted({kind for judged in cohort.annotations.values() for kind in judged.kinds})
        self.groups = {  # of breasts (B,), by what the page calls them
            f"{attribute} {one}": np.array(values) == one
            for attribute, values in (("density", cohort.density), ("vendor", cohort.vendor))
            for one in sorted(set(values))
        }

    def figure(self, run: RunSpec, metric: Metric, table: str) -> str:
        """A run's figure, and the paper's, where it has one for this row of the table."""
        shown = show_figure(self.statistics.figure(run.name, metric))
        paper = published(self.study, table, run).get(metric)
        return f"{shown} [{paper[0]:.2f}]" if paper else shown

    def figures(self, run: RunSpec, table: str) -> list[str]:
        return [self.figure(run, metric, table) for metric in METRICS]

    def tests(self, run: RunSpec) -> list[str]:
        """p by recall and by AUC."""
        if not run.against:
            return ["", ""]
        return [show_p(self.difference(run.name, run.against, metric)) for metric in ("recall", AUC)]

    def difference(self, a: str, b: str, metric: Tested) -> Difference | None:
        return self.statistics.difference(a, b, self.recall(a, b) if metric == "recall" else metric)

    def recall(self, a: str, b: str) -> Metric:
        return DEEP if all(self.statistics.values(name, DEEP) for name in (a, b)) else FLAT

    def judged(self, a: str, b: str, metric: Tested) -> list[str]:
        """Whether a is ahead of b: the difference, p and the verdict."""
        difference = self.difference(a, b, metric)
        if difference is None:
            return [NOTHING, NOTHING, "missing"]
        rule = f" ({RECALLS[self.recall(a, b)][0]})" if metric == "recall" else ""
        return [f"{show_change(difference)}{rule}", show_p(difference), f"**{verdict(difference)}**"]

    def joint_verdict(self, expectation: Expectation, metric: Tested) -> str:
        return f"**{together([verdict(self.difference(a, b, metric)) for a, b in expectation.ahead])}**"

    def changes(self, run: RunSpec) -> list[str]:
        """The paired tests of all figures."""
        found = [self.statistics.difference(run.name, run.against, metric) for metric in METRICS]
        return [NOTHING if one is None else f"{show_change(one)}, p {show_p(one)}" for one in found]

    def beside(self, run: RunSpec, metric: Metric) -> list[str]:
        """A figure of the run that this one is tested against, its own, and p."""
        figures = [show_figure(self.statistics.figure(name, metric)) for name in (run.against, run.name)]
        return [*figures, show_p(self.statistics.difference(run.against, run.name, metric))]

    def cost(self, run: RunSpec) -> list[str]:
        """Memory and time of a training."""
        memory = seconds = NOTHING
        if results := self.statistics.of(run.name):
            memory = f"{np.mean([result.memory_mb for result in results]):,.0f}"
            seconds = duration(float(np.mean([result.seconds["train"] for result in results])))
        if paper := published(self.study, "slices", run):
            memory, seconds = f"{memory} [{paper['memory_gb']} GB]", f"{seconds} [{paper['hours']} h]"
        return [memory, seconds]

    def part_heads(self) -> list[str]:
        """The kinds of cancers and the groups of breasts of the cohort, with how many there are."""
        cohort = self.statistics.cohort
        counts = [max(judged.kinds.count(kind) for judged in cohort.annotations.values()) for kind in self.kinds]
        kinds = [f"{kind} ({count} findings)" for kind, count in zip(self.kinds, counts, strict=True)]
        return kinds + [f"{name} ({breasts.sum()} breasts)" for name, breasts in self.groups.items()]

    def parts(self, run: RunSpec, metric: Metric) -> list[str]:
        """The rule, and the recall of each of these parts."""
        figure = self.statistics.figure_of_part
        found = [figure(run.name, metric, kind=kind) for kind in self.kinds]
        found += [figure(run.name, metric, breasts=breasts) for breasts in self.groups.values()]
        return [RECALLS[metric][0], *map(show_figure, found)]

    def seeds(self, run: RunSpec) -> list[str]:
        values = [self.statistics.values(run.name, metric) for metric in METRICS]
        return [", ".join(f"{value:.3f}" for value in own) or NOTHING for own in values]

    def seed_spread(self, stage: str) -> list[str]:
        spread = [self.statistics.seed_spread(stage, metric) for metric in METRICS]
        return [f"**{s:.3f}** ({n} degrees of freedom)" if n else NOTHING for s, n in spread]

    def patients_share(self) -> str:
        """How large the patients' share of the standard errors is: whether the test cohort is large enough."""
        parts = []
        for metric, name in ((FLAT, "R@0.25"), (DEEP, "R@0.25 in 3D")):
            runs = [run.name for run in self.study.runs_of("finetuned") if self.statistics.values(run.name, metric)]
            if errors := [self.statistics.patients_error(run, metric) for run in runs]:
                parts.append(f"{min(errors):.3f} to {max(errors):.3f} for {name}")
        return " and ".join(parts)

    def grid(self, table: str, axis: str, metric: Metric) -> list[list[str]]:
        """A table of methods against shares of the data or of the annotations, the head first."""
        runs = self.study.runs_of(table)
        shares = sorted({getattr(run, axis) for run in runs})
        rows = [[HEADS[metric], *(f"{share:.0%} {table}" for share in shares)]]
        for label in dict.fromkeys(run.label for run in runs):
            own = {}
            for run in (run for run in runs if run.label == label):
                difference = self.statistics.difference(run.name, run.against, metric)
                tested = "" if difference is None else f", p {show_p(difference)}"
                own[getattr(run, axis)] = self.figure(run, metric, table) + tested
            rows.append([label, *(own.get(share, NOTHING) for share in shares)])
        return rows


def show_figure(figure: Figure | None) -> str:
    return NOTHING if figure is None else f"{figure.value:.3f} ± {figure.error:.3f}"


def show_change(difference: Difference) -> str:
    return f"{difference.value:+.3f} ± {difference.error:.3f}"


def show_p(difference: Difference | None) -> str:
    if difference is None:
        return NOTHING
    return f"{difference.p:.3f}" if difference.p >= 0.001 else "< 0.001"


# The curves: the table whose runs are drawn, the share that they are drawn against, and the metric of each panel.
CURVES: dict[str, tuple[tuple[str, str, Metric], ...]] = {
    "efficiency.png": (("data", "data", DEEP), ("data", "data", AUC), ("annotations", "annotated", DEEP)),
    "start.png": (("start", "data", DEEP), ("start", "data", AUC), ("start", "annotated", DEEP)),
}
PUBLISHED: dict[str, Any] = {"linestyle": "--", "linewidth": 0.8, "marker": "."}


def draw_curves(statistics: Statistics, name: str, folder: Path) -> bool:
    """Draw figures against the size of the training data, the paper's dashed. Returns whether there is anything."""
    tables = {table for table, _, _ in CURVES[name]}
    if not any(statistics.of(run.name) for run in statistics.study.runs_of(*tables)):
        (folder / name).unlink(missing_ok=True)  # that of an earlier report would pass for ours
        return False
    with new_picture(folder / name, 1, 3, (10.5, 3.4), dpi=110) as rows:
        for axes, panel in zip(rows[0], CURVES[name], strict=True):
            _draw_panel(axes, statistics, *panel)
        lines, names = rows[0][0].get_legend_handles_labels()
        if any(line.get_linestyle() == PUBLISHED["linestyle"] for line in rows[0][0].lines):
            lines, names = [*lines, Line2D([], [], color="0.4", **PUBLISHED)], [*names, "published"]
        rows[0][0].figure.legend(lines, names, loc="outside lower center", ncols=max(1, len(names)))
    return True


def _draw_panel(axes: Axes, statistics: Statistics, table: str, axis: str, metric: Metric) -> None:
    """Draw a curve for each method."""
    other = "annotated" if axis == "data" else "data"
    all_runs = statistics.study.runs_of(table)
    full = max((getattr(run, other) for run in all_runs), default=1.0)
    methods: dict[str, list[RunSpec]] = {}
    for run in sorted((run for run in all_runs if getattr(run, other) == full), key=lambda run: getattr(run, axis)):
        label = "from FFDM" if table == "start" and not run.against else run.label
        methods.setdefault(label, []).append(run)
    for colour, (label, own) in zip(COLOURS, methods.items(), strict=False):
        figures = [(getattr(run, axis), statistics.figure(run.name, metric)) for run in own]
        there = [(share, figure.value, figure.error) for share, figure in figures if figure is not None]
        if there:
            places, values, errors = zip(*there, strict=True)
            down = np.minimum(errors, values)  # no figure is below 0
            style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "capsize": 2, "label": label}
            axes.errorbar(places, values, (down, errors), **style)
        known = [(getattr(run, axis), published(statistics.study, table, run).get(metric)) for run in own]
        if paper := [(share, value[0]) for share, value in known if value]:
            axes.plot(*zip(*paper, strict=True), color=colour, **PUBLISHED)
    shares = sorted({getattr(run, axis) for own in methods.values() for run in own})
    name = {DEEP: "R@0.25 (3D)", AUC: "AUC"}[metric]
    axes.set(xscale="log", xlabel=f"share of {'data' if axis == 'data' else 'malignant breasts annotated'}", title=name)
    axes.set_xticks(shares, [f"{share:.0%}" for share in shares])
    axes.set_xticks([], minor=True)


def draw_learning(statistics: Statistics, path: Path) -> bool:
    """Draw what the trainings with a learning curve find after how many steps. Returns whether there is any."""
    curves = [(run.label, one.curve) for run in statistics.study.runs for one in statistics.of(run.name) if one.curve]
    if not curves:
        path.unlink(missing_ok=True)
        return False
    with new_picture(path, 1, 2, (7.0, 3.4), dpi=110) as rows:
        for axes, name, title in zip(rows[0], ("recall@0.25", "auc"), ("R@0.25 (2D)", "AUC"), strict=True):
            for colour, (label, curve) in zip(cycle(COLOURS), curves, strict=False):
                steps, values = zip(*((point["step"], point[name]) for point in curve), strict=True)
                axes.plot(steps, values, color=colour, marker="o", markersize=4, label=label)
            axes.set(xlabel="steps", title=title)
        lines, names = rows[0][0].get_legend_handles_labels()
        rows[0][0].figure.legend(lines, names, loc="outside lower center", ncols=min(5, len(names)))
    return True
