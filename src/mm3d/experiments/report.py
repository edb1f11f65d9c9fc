"""`mm3d study report`: the results as a page with its figures. Nothing is shown that is not there.

`page.md` is the template of the page with all its text, and `paper.toml` has the paper's figures. The functions here
give the tables. To add a section, write it in the template; if it needs a new table, add a function to TABLES.
"""

import functools
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from rich.console import Console

from mm3d.evaluate.figures import COLOURS, STYLE
from mm3d.evaluate.match import EvaluateSettings
from mm3d.evaluate.metrics.bootstrap import least_p
from mm3d.experiments.gallery import ROW, W_CURVES
from mm3d.experiments.results import read_cohort, read_results
from mm3d.experiments.spec import RunSpec, StudySpec
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
from mm3d.shared.console import say, show_progress
from mm3d.shared.files import replacing

HERE = Path(__file__).parent
PAPER = tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8"))
PAGE, FIGURES = "study.md", "study"
HEADS: dict[Metric, str] = {
    "recall@0.25": "R@0.25",
    "recall@0.5": "R@0.5",
    "recall3d@0.25": "R@0.25, 3D",
    "recall3d@0.5": "R@0.5, 3D",
    "auc": "AUC",
}
FLAT, DEEP, AUC = METRICS[0], METRICS[2], METRICS[4]
NOTHING = "–"
FOREIGN = {
    "pictures": "The foreign start is trained on synthetic pictures of rings among polygons, crosses and gratings "
    "(`experiments/pictures.py`). They stand where COCO stands in the paper.",
    "coco": "The foreign start is a public Sparse R-CNN that was trained on COCO, imported.",
}


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
    sources = {cohort.source for cohort in study.cohorts.values()} | set(study.given)
    environment = Environment(
        loader=FileSystemLoader(HERE), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False
    )
    environment.globals |= {
        function.__name__: functools.cache(functools.partial(function, statistics)) for function in TABLES
    }
    text = environment.get_template("page.md").render(
        study=study,
        cohort=statistics.cohort,
        results=results,
        pictures=pictures,
        total=len(study.jobs),
        missing=[name for name in study.jobs if name not in finished],
        labels=dict.fromkeys(run.label for run in study.runs),
        methods=PAPER["methods"],
        gallery=[study.run(name).label for name in study.gallery],
        foreign=next((words for source, words in FOREIGN.items() if source in sources), ""),
        settings_line=settings_line,
        image_settings=study.trial | {"width": study.width, "length": study.length},
        iou=f"{EvaluateSettings().iou:g}",
        replicates=f"{REPLICATES:,}",
        least_p=f"{least_p(REPLICATES):.4f}",
        spent=duration(sum(sum(result.seconds.values()) for result in finished.values())),
        commits=sorted({result.commit for result in finished.values() if result.commit}),
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


def expected_table(statistics: Statistics) -> str:
    """Each statement with its verdict, by R@0.25 and by AUC."""
    rows = [["statement", "difference", "R@0.25", "p", "verdict", "AUC", "p", "verdict"]]
    for expectation in statistics.study.expect:
        pairs, recalls, areas = [], [], []
        for a, b in expectation.ahead:
            metric = common_recall(statistics, a, b)
            recalls.append(statistics.difference(a, b, metric))
            areas.append(statistics.difference(a, b, AUC))
            cells = [*_verdict_cells(recalls[-1], f" ({RECALLS[metric][0]})"), *_verdict_cells(areas[-1])]
            pairs.append(["", _pair(statistics.study, a, b), *cells])
        if len(pairs) == 1:
            pairs[0][0] = expectation.statement
        else:
            of = [f"**{together([verdict(one) for one in ones])}**" for ones in (recalls, areas)]
            rows.append([expectation.statement, "all", "", "", of[0], "", "", of[1]])
        rows += pairs
    return _markdown(rows)


def _verdict_cells(difference: Difference | None, rule: str = "") -> list[str]:
    if difference is None:
        return [NOTHING, NOTHING, "missing"]
    return [f"{_change(difference)}{rule}", _p(difference), f"**{verdict(difference)}**"]


def common_recall(statistics: Statistics, a: str, b: str) -> Metric:
    """R@0.25 by the 3D rule where both runs have it."""
    return DEEP if all(statistics.values(name, DEEP) for name in (a, b)) else FLAT


def cohorts_table(statistics: Statistics) -> str:
    """The cohorts that the runs read."""
    study = statistics.study
    rows = [["cohort", "source", "breasts", "seed", "P(malignant)", "P(benign)", "slices"]]
    read = dict.fromkeys(name for run in study.runs for name in study.cohorts_of(run))
    for name in dict.fromkeys(source for own in read for source in study.sources_of(own)):
        cohort, shares = study.cohorts[name], ["", "", "", ""]
        source = {"bcs-dbt": "BCS-DBT", "cohort": cohort.of}.get(cohort.source, cohort.source)
        if cohort.breasts:
            benign = f"{cohort.benign:.0%}" if cohort.source == "phantom" else ""
            shares = [f"{cohort.breasts:,}", str(cohort.seed), f"{cohort.malignant:.0%}", benign]
        part = f", {cohort.split}" if cohort.split else ""
        rows.append([name, source + part, *shares, str(study.slices(name))])
    return _markdown(rows)


def patients_share(statistics: Statistics) -> list[str]:
    """How large the patients' share of the standard errors is: whether the test cohort is large enough."""
    parts = []
    for metric, name in ((FLAT, "R@0.25"), (DEEP, "R@0.25 in 3D")):
        runs = [run.name for run in statistics.study.runs_of("finetuned") if statistics.values(run.name, metric)]
        errors = [statistics.patients_error(run, metric) for run in runs]
        if errors:
            parts.append(f"{min(errors):.3f} to {max(errors):.3f} for {name}")
    return parts


def table(statistics: Statistics, *names: str) -> str:
    """The runs of one table or of several, with all figures and the paired tests."""
    rows = [["method", "input", "seeds", *HEADS.values(), "p, R@0.25", "p, AUC"]]
    for run in statistics.study.runs:
        name = next((name for name in names if name in run.tables), None)
        if name is not None:
            seeds = str(len(statistics.of(run.name)))
            rows.append([_name(run), run.input, seeds, *_figures(statistics, name, run), *_tests(statistics, run)])
    return _markdown(rows)


def _figures(statistics: Statistics, name: str, run: RunSpec) -> list[str]:
    paper = published(statistics.study, name, run)
    return [_cell(statistics.figure(run.name, metric), paper.get(metric)) for metric in METRICS]


def _tests(statistics: Statistics, run: RunSpec) -> list[str]:
    if not run.against:
        return ["", ""]
    metrics = (common_recall(statistics, run.name, run.against), AUC)
    return [_p(statistics.difference(run.name, run.against, metric)) for metric in metrics]


def grid(statistics: Statistics, name: str, metric: Metric) -> str:
    """Methods against the share of data, or of annotations."""
    runs, axis = statistics.study.runs_of(name), "data" if name == "data" else "annotated"
    shares = sorted({getattr(run, axis) for run in runs})
    rows = [[HEADS[metric], *(f"{share:.0%} {name}" for share in shares)]]
    for label in dict.fromkeys(run.label for run in runs):
        own = {getattr(run, axis): _grid_cell(statistics, name, run, metric) for run in runs if run.label == label}
        rows.append([label, *(own.get(share, NOTHING) for share in shares)])
    return _markdown(rows)


def _grid_cell(statistics: Statistics, name: str, run: RunSpec, metric: Metric) -> str:
    shown = _cell(statistics.figure(run.name, metric), published(statistics.study, name, run).get(metric))
    difference = statistics.difference(run.name, run.against, metric) if run.against else None
    return shown if difference is None else f"{shown}, p {_p(difference)}"


def start_table(statistics: Statistics) -> str:
    """Runs of the foreign start beside those from mammograms, size by size."""
    runs = [run for run in statistics.study.runs_of("start") if run.against]
    label = runs[0].label if runs else ""
    rows = [["training", "R@0.25, 3D, from FFDM", label, "p", "AUC, from FFDM", label, "p"]]
    for run in runs:
        cells = []
        for metric in (DEEP, AUC):
            cells += [_cell(statistics.figure(name, metric)) for name in (run.against, run.name)]
            cells.append(_p(statistics.difference(run.against, run.name, metric)))
        rows.append([f"{run.data:.0%} data, {run.annotated:.0%} annotated", *cells])
    return _markdown(rows)


def slices_table(statistics: Statistics) -> str:
    """Numbers of slices, with memory and time."""
    study = statistics.study
    rows = [["slices", "memory, MB", "training", *HEADS.values(), "p, R@0.25", "p, AUC"]]
    for run in sorted(study.runs_of("slices"), key=lambda run: study.slices(run.train)):
        memory = seconds = NOTHING
        if results := statistics.of(run.name):
            memory = f"{np.mean([result.memory_mb for result in results]):,.0f}"
            seconds = duration(float(np.mean([result.seconds["train"] for result in results])))
        if paper := published(study, "slices", run):
            memory, seconds = f"{memory} [{paper['memory_gb']} GB]", f"{seconds} [{paper['hours']} h]"
        figures = _figures(statistics, "slices", run)
        rows.append([str(study.slices(run.train)), memory, seconds, *figures, *_tests(statistics, run)])
    return _markdown(rows)


def parts_table(statistics: Statistics) -> str:
    """The fine-tuned methods by kind of finding and by density, R@0.25 by each rule that they have."""
    cohort, density = statistics.cohort, np.array(statistics.cohort.density)
    kinds = sorted({kind for judged in cohort.marks.values() for kind in judged.kinds})
    heads = [f"{k} ({max(judged.kinds.count(k) for judged in cohort.marks.values())} findings)" for k in kinds]
    heads += [f"density {c} ({cohort.density.count(c)} breasts)" for c in sorted(set(cohort.density))]
    rows = [["method", "rule", *heads]]
    for metric in (FLAT, DEEP):
        for run in statistics.study.runs_of("finetuned"):
            if statistics.values(run.name, metric):
                own = np.array(cohort.marks[run.modality].kinds)
                found = [statistics.recall_of(run.name, metric, findings=own == kind) for kind in kinds]
                found += [statistics.recall_of(run.name, metric, breasts=density == c) for c in sorted(set(density))]
                rows.append([_name(run), RECALLS[metric][0], *map(_cell, found)])
    return _markdown(rows)


def seeds_table(statistics: Statistics) -> str:
    """Every figure of every seed, and the spread that is pooled from them."""
    rows = [["run", *HEADS.values()]]
    for run in statistics.study.runs:
        if len(statistics.of(run.name)) > 1:
            values = [", ".join(f"{v:.3f}" for v in statistics.values(run.name, m)) or NOTHING for m in METRICS]
            rows.append([run.name, *values])
    for stage in statistics.study.stages:
        spread = [statistics.seed_spread(stage, metric) for metric in METRICS]
        if any(freedom for _, freedom in spread):
            cells = [f"**{s:.3f}** ({n} degrees of freedom)" if n else NOTHING for s, n in spread]
            rows.append([f"**standard deviation, {stage}**", *cells])
    return _markdown(rows)


def tests_table(statistics: Statistics) -> str:
    """Every paired test of every figure."""
    rows = [["difference", *HEADS.values()]]
    for run in statistics.study.runs:
        if run.against and statistics.of(run.name):
            found = [statistics.difference(run.name, run.against, metric) for metric in METRICS]
            cells = [NOTHING if one is None else f"{_change(one)}, p {_p(one)}" for one in found]
            rows.append([_pair(statistics.study, run.name, run.against), *cells])
    return _markdown(rows)


TABLES: tuple[Callable[..., Any], ...] = (
    *(expected_table, cohorts_table, patients_share, table, grid, start_table, slices_table, parts_table),
    *(seeds_table, tests_table),
)


def _name(run: RunSpec) -> str:
    return f"{run.label} ({run.name})"


def _pair(study: StudySpec, a: str, b: str) -> str:
    return f"{_name(study.run(a))} minus {_name(study.run(b))}"


def _cell(figure: Figure | None, paper: Sequence[float] | None = None) -> str:
    shown = NOTHING if figure is None else f"{figure.value:.3f} ± {figure.error:.3f}"
    return f"{shown} [{paper[0]:.2f}]" if paper else shown


def _change(difference: Difference) -> str:
    return f"{difference.value:+.3f} ± {difference.error:.3f}"


def _p(difference: Difference | None) -> str:
    if difference is None:
        return NOTHING
    return f"{difference.p:.3f}" if difference.p >= 0.001 else "< 0.001"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table. Empty if it has only a head."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) if len(rows) > 1 else ""


# The curves: the table whose runs are drawn, the share that they are drawn against, and the metric of each panel.
CURVES: dict[str, tuple[tuple[str, str, Metric], ...]] = {
    "efficiency.png": (("data", "data", DEEP), ("data", "data", AUC), ("annotations", "annotated", DEEP)),
    "start.png": (("start", "data", DEEP), ("start", "data", AUC), ("start", "annotated", DEEP)),
}
PUBLISHED: dict[str, Any] = {"linestyle": "--", "linewidth": 0.8, "marker": "."}


def draw_curves(statistics: Statistics, name: str, folder: Path) -> bool:
    """Draw figures against the size of the training data, the paper's dashed. Returns whether there is anything."""
    with rc_context(STYLE):
        picture = Picture(figsize=(10.5, 3.4), layout="constrained")
        FigureCanvasAgg(picture)
        panels = zip(picture.subplots(1, 3), CURVES[name], strict=True)
        drawn = [_draw_panel(axes, statistics, *panel) for axes, panel in panels]
        lines, names = picture.axes[0].get_legend_handles_labels()
        if any(line.get_linestyle() == PUBLISHED["linestyle"] for line in picture.axes[0].lines):
            lines, names = [*lines, Line2D([], [], color="0.4", **PUBLISHED)], [*names, "published"]
        picture.legend(lines, names, loc="outside lower center", ncols=max(1, len(names)))
        if not any(drawn):
            (folder / name).unlink(missing_ok=True)  # that of an earlier report would pass for ours
            return False
        with replacing(folder / name) as partial:
            picture.savefig(partial, format="png", dpi=110)
    return True


def _draw_panel(axes: Axes, statistics: Statistics, table: str, axis: str, metric: Metric) -> bool:
    """Draw a curve for each method. Returns whether there was anything to draw."""
    other = "annotated" if axis == "data" else "data"
    all_runs = statistics.study.runs_of(table)
    full = max((getattr(run, other) for run in all_runs), default=1.0)
    methods: dict[str, list[RunSpec]] = {}
    for run in sorted((run for run in all_runs if getattr(run, other) == full), key=lambda run: getattr(run, axis)):
        label = "from FFDM" if table == "start" and not run.against else run.label
        methods.setdefault(label, []).append(run)
    drawn = False
    for colour, (label, own) in zip(COLOURS, methods.items(), strict=False):
        figures = [(getattr(run, axis), statistics.figure(run.name, metric)) for run in own]
        there = [(share, figure.value, figure.error) for share, figure in figures if figure is not None]
        if there:
            places, values, errors = zip(*there, strict=True)
            down = np.minimum(errors, values)  # no figure is below 0
            style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "capsize": 2, "label": label}
            axes.errorbar(places, values, (down, errors), **style)
            drawn = True
        known = [(getattr(run, axis), published(statistics.study, table, run).get(metric)) for run in own]
        if paper := [(share, value[0]) for share, value in known if value]:
            axes.plot(*zip(*paper, strict=True), color=colour, **PUBLISHED)
    shares = sorted({getattr(run, axis) for own in methods.values() for run in own})
    name = {DEEP: "R@0.25 (3D)", AUC: "AUC"}[metric]
    axes.set(xscale="log", xlabel=f"share of {'data' if axis == 'data' else 'malignant breasts annotated'}", title=name)
    axes.set_xticks(shares, [f"{share:.0%}" for share in shares])
    axes.set_xticks([], minor=True)
    return drawn
