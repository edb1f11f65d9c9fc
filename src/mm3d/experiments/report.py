"""`mm3d study report`: the results there are, as docs/study.md with its figures. Nothing is computed that is not
there."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from mm3d.evaluate.metrics.bootstrap import least_p
from mm3d.experiments.cohorts import slices_of
from mm3d.experiments.figures import draw_efficiency, draw_start
from mm3d.experiments.gallery import ROW, W_CURVES
from mm3d.experiments.method import method, methods
from mm3d.experiments.plan import duration, jobs_of
from mm3d.experiments.published import SETTING, SLICES, START, cell, published
from mm3d.experiments.results import read_cohort, read_results
from mm3d.experiments.spec import RunSpec, StudySpec, read_study
from mm3d.experiments.statistics import (
    METRICS,
    REPLICATES,
    Difference,
    Figure,
    Metric,
    Statistics,
    rule_and_rate,
    together,
    verdict,
)
from mm3d.shared.console import show_progress
from mm3d.shared.files import replacing

PAGE, FIGURES = "study.md", "study"
HEADS: dict[Metric, str] = {
    "recall@0.25": "R@0.25",
    "recall@0.5": "R@0.5",
    "recall3d@0.25": "R@0.25, 3D",
    "recall3d@0.5": "R@0.5, 3D",
    "auc": "AUC",
}
NOTHING = "–"
ABOUT = (
    "The comparisons of the M&M-3D paper, made here. R@0.25 is the share of cancers that are found at 0.25 false "
    "positives per view, AUC is of breasts with and without cancer. [The methods](#the-methods) has the names, [how it "
    "was done](#how-it-was-done) the rest."
)
READING = (
    "Figures are ours ± their standard error, those in [brackets] the paper's. p is of the paired test against M&M-3D "
    "with the same data, or what else the last table names: of R@0.25 by the 3D rule where both have slices, by the 2D "
    f"rule otherwise. With {REPLICATES:,} replicates no p can be below {least_p(REPLICATES):.4f}."
)
NEAR_ZERO = "Errors have the spread of seeds of all runs, which is too much where R@0.25 is near 0."


def write_report(name: str, results: Path, output: Path) -> int:
    """Write the page and its figures. Returns the exit code."""
    study = read_study(name)
    statistics = Statistics(study, read_cohort(results), read_results(study, results))
    console = Console()
    with show_progress(console, "bootstrap", len(study.runs)) as advance:
        for run in study.runs:
            for metric in METRICS:
                statistics.figure(run.name, metric)  # most of the work; it is kept
            advance()
    (output / FIGURES).mkdir(parents=True, exist_ok=True)
    pictures = [draw(statistics, output / FIGURES) for draw in (draw_efficiency, draw_start)]
    with replacing(output / PAGE) as partial:
        drawn = [name for name in pictures if name]
        partial.write_text(page(statistics, results, drawn, _gallery(results, output)), encoding="utf-8")
    done, all_runs = len(statistics.results), len(jobs_of(study))
    console.print(f"Wrote {output / PAGE}: {done} of {all_runs} runs are done.", highlight=False, soft_wrap=True)
    return 0


def _gallery(results: Path, output: Path) -> list[str]:
    """Pictures that the study left beside its results, copied to the page's."""
    found = []
    for name in (W_CURVES, ROW):
        if (results / name).is_file():
            with replacing(output / FIGURES / name) as partial:
                partial.write_bytes((results / name).read_bytes())
            found.append(name)
    return found


def page(statistics: Statistics, results: Path, pictures: Sequence[str], gallery: Sequence[str]) -> str:
    """The whole page, Markdown. A section whose tables and pictures have nothing to show is not there."""
    study = statistics.study
    parts = [
        f"# {study.title}",
        f"Written by `mm3d study report` from the results in `{results}`; do not edit it.",
        ABOUT,
        _state(statistics),
        _expected(statistics),
        *(["## What we make of it", *study.discussion] if study.discussion else []),
        methods(study),
        method(statistics),
        "## The tables",
        f"{READING} {SETTING}" if study.published == "in-house" else READING,
        _section(
            "1. Inference only",
            _shown("No DBT training: weights of mammograms as they are.", table(statistics, "inference")),
        ),
        _section(
            "2. Fine-tuned",
            _shown("(*) malignant breasts without boxes are left out.", table(statistics, "finetuned")),
        ),
        _section(
            "3. Less data, fewer annotations",
            grid(statistics, "data", "recall3d@0.25"),
            grid(statistics, "data", "auc"),
            grid(statistics, "annotations", "recall3d@0.25"),
            _picture("efficiency.png", pictures),
        ),
        _section(
            "4. A start that never saw a breast",
            _shown(f"{_foreign(study)} {START} {NEAR_ZERO}", start_table(statistics)),
            _picture("start.png", pictures),
        ),
        _section(
            "5. Depth, and fusion without parameters",
            _shown(
                "Memory is the training process's peak, time that of its steps. Runs may have had machines of "
                "different speed, or other work beside them: `docs/benchmarks.md` compares steps on one.",
                slices_table(statistics),
            ),
            table(statistics, "fusion"),
        ),
        _section("6. Where the model looks", *_drawn(study, gallery)),
        _section(
            "7. Beyond the paper",
            _shown(
                "Mammograms and volumes of the same breasts mixed, for as many breasts as volumes alone:",
                table(statistics, "mixed"),
            ),
            _shown(
                "R@0.25 by kind of cancer (with the false positives of all volumes), and by density (with those of "
                "its own volumes); a cancer counts in each view:",
                parts_table(statistics),
            ),
        ),
        _section("The spread of seeds", seeds_table(statistics)),
        _section("All figures of 3 and 4", table(statistics, "data", "annotations", "start")),
        _section("All paired tests", tests_table(statistics)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, *parts: str) -> str:
    there = [part for part in parts if part]
    return "\n\n".join([f"## {title}", *there]) if there else ""


def _shown(words: str, shown: str) -> str:
    """What is shown with words before it, if there is anything to show."""
    return f"{words}\n\n{shown}" if shown else ""


def _picture(name: str, pictures: Sequence[str]) -> str:
    return f"![{name}]({FIGURES}/{name})" if name in pictures else ""


def _state(statistics: Statistics) -> str:
    jobs = jobs_of(statistics.study)
    missing = [job.name for job in jobs if (job.run.name, job.seed) not in statistics.results]
    if not missing:
        return f"All {len(jobs)} runs are done."
    named = ", ".join(missing[:12]) + (f" and {len(missing) - 12} more" if len(missing) > 12 else "")
    done = f"{len(jobs) - len(missing)} of {len(jobs)} runs are done"
    return f"**{done}.** What is not is {NOTHING} below. Missing: {named}."


def _expected(statistics: Statistics) -> str:
    """Each statement with its verdict, by R@0.25 and by AUC."""
    head = ["statement", "difference", "R@0.25", "p", "verdict", "AUC", "p", "verdict"]
    lines = ["## What we expected", *_rows([head])]
    for expectation in statistics.study.expect:
        found = {"recall": [], "auc": []}  # type: dict[str, list[Difference | None]]
        pairs = []
        for a, b in expectation.ahead:
            metric = common_recall(statistics, a, b)
            recall, auc = statistics.difference(a, b, metric), statistics.difference(a, b, "auc")
            found["recall"].append(recall)
            found["auc"].append(auc)
            shown = _verdict_cells(recall, f" ({rule_and_rate(metric)[0]})")
            pairs.append(["", _pair(statistics.study, a, b), *shown, *_verdict_cells(auc)])
        of = {name: together([verdict(one) for one in ones]) for name, ones in found.items()}
        if len(pairs) == 1:
            lines.append(_row([expectation.statement, *pairs[0][1:]]))
        else:
            lines.append(
                _row([expectation.statement, "all", "", "", f"**{of['recall']}**", "", "", f"**{of['auc']}**"])
            )
            lines += [_row(pair) for pair in pairs]
    rule = (
        "A statement holds if the first of the pair is ahead and p is below 0.05, does not if the second is ahead with "
        "such a p, and is undecided otherwise; one of several pairs holds if all do. R@0.25 is by the 3D rule, on the "
        "right slice, where both have slices, by the 2D rule otherwise. p values are not corrected for their number."
    )
    return "\n\n".join([lines[0], "\n".join(lines[1:]), rule]) if statistics.study.expect else ""


def _verdict_cells(difference: Difference | None, rule: str = "") -> list[str]:
    if difference is None:
        return [NOTHING, NOTHING, "missing"]
    return [f"{_change(difference)}{rule}", _p(difference), f"**{verdict(difference)}**"]


def common_recall(statistics: Statistics, a: str, b: str) -> Metric:
    """By the 3D rule where both have it."""
    deep = all(statistics.values(name, "recall3d@0.25") for name in (a, b))
    return "recall3d@0.25" if deep else "recall@0.25"


def table(statistics: Statistics, *names: str) -> str:
    """The runs of a table, or of several, with all figures and the paired tests."""
    rows = [["method", "input", "seeds", *HEADS.values(), "p, R@0.25", "p, AUC"]]
    runs = {run: name for name in reversed(names) for run in runs_of(statistics.study, name)}
    for run in (run for run in statistics.study.runs if run in runs):
        row = published(statistics.study, runs[run], run)
        figures = [_cell(statistics.figure(run.name, metric), cell(row, metric)) for metric in METRICS]
        seeds = str(len(statistics.of(run.name)))
        rows.append([_name(run), run.input, seeds, *figures, *_tests(statistics, run)])
    return "\n".join(_rows(rows)) if len(rows) > 1 else ""


def _tests(statistics: Statistics, run: RunSpec) -> list[str]:
    if not run.against:
        return ["", ""]
    recall = statistics.difference(run.name, run.against, common_recall(statistics, run.name, run.against))
    return [_p(recall), _p(statistics.difference(run.name, run.against, "auc"))]


def grid(statistics: Statistics, name: str, metric: Metric) -> str:
    """Methods against the share of data, or of annotations."""
    runs = runs_of(statistics.study, name)
    axis = "data" if name == "data" else "annotated"
    shares = sorted({getattr(run, axis) for run in runs})
    head = "data" if name == "data" else "annotations"
    rows = [[f"{HEADS[metric]}", *(f"{share:.0%} {head}" for share in shares)]]
    for label in dict.fromkeys(run.label for run in runs):
        cells = []
        for share in shares:
            run = next((run for run in runs if run.label == label and getattr(run, axis) == share), None)
            cells.append(NOTHING if run is None else _grid_cell(statistics, name, run, metric))
        rows.append([label, *cells])
    return "\n".join(_rows(rows)) if runs else ""


def _grid_cell(statistics: Statistics, name: str, run: RunSpec, metric: Metric) -> str:
    paper = cell(published(statistics.study, name, run), metric)
    shown = _cell(statistics.figure(run.name, metric), paper)
    difference = statistics.difference(run.name, run.against, metric) if run.against else None
    return shown if difference is None else f"{shown}, p {_p(difference)}"


def _foreign(study: StudySpec) -> str:
    if any(cohort.source == "pictures" for cohort in study.cohorts.values()):
        return (
            "Pictures: synthetic pictures of rings among polygons, crosses and gratings (`study/pictures.py`), in the "
            "place that COCO has in the paper."
        )
    return "COCO: weights of a public Sparse R-CNN, imported." if "coco" in study.given else ""


def start_table(statistics: Statistics) -> str:
    """Runs of the foreign start beside those from mammograms, size by size."""
    foreign = next((run.label for run in runs_of(statistics.study, "start") if run.against), "")
    rows = [["training", "R@0.25, 3D, from FFDM", foreign, "p", "AUC, from FFDM", foreign, "p"]]
    metrics: tuple[Metric, Metric] = ("recall3d@0.25", "auc")
    for run in runs_of(statistics.study, "start"):
        if not run.against:
            continue
        cells = []
        for metric in metrics:
            ours = [_cell(statistics.figure(name, metric), "") for name in (run.against, run.name)]
            cells += [*ours, _p(statistics.difference(run.against, run.name, metric))]
        rows.append([f"{run.data:.0%} data, {run.annotated:.0%} annotated", *cells])
    return "\n".join(_rows(rows)) if len(rows) > 1 else ""


def slices_table(statistics: Statistics) -> str:
    """z resolution, with memory and time."""
    study = statistics.study
    rows = [["slices", "memory, MB", "training", *HEADS.values(), "p, R@0.25", "p, AUC"]]
    for run in sorted(runs_of(study, "slices"), key=lambda run: slices_of(study, run.train)):
        depth = slices_of(study, run.train)
        results = statistics.of(run.name)
        memory = f"{np.mean([r.memory_mb for r in results]):,.0f}" if results else NOTHING
        seconds = duration(float(np.mean([r.seconds["train"] for r in results]))) if results else NOTHING
        paper = SLICES.get(depth) if study.published == "in-house" else None
        if paper is not None:
            memory, seconds = f"{memory} [{paper.memory_gb:g} GB]", f"{seconds} [{paper.hours:g} h]"
        figures = [_cell(statistics.figure(run.name, metric), cell(paper, metric)) for metric in METRICS]
        rows.append([str(depth), memory, seconds, *figures, *_tests(statistics, run)])
    return "\n".join(_rows(rows)) if len(rows) > 1 else ""


def parts_table(statistics: Statistics) -> str:
    """The fine-tuned methods by kind of finding and by density, R@0.25 by each rule that they have."""
    cohort, runs = statistics.cohort, runs_of(statistics.study, "finetuned")
    kinds = sorted({kind for marks in cohort.marks.values() for kind in marks.kinds})
    classes = sorted(set(cohort.density))
    counts = {kind: max(marks.kinds.count(kind) for marks in cohort.marks.values()) for kind in kinds}
    heads = [f"{kind} ({counts[kind]} findings)" for kind in kinds] + [
        f"density {c} ({cohort.density.count(c)} breasts)" for c in classes
    ]
    rows = [["method", "rule", *heads]]
    density = np.array(cohort.density)
    rules: tuple[tuple[str, Metric], ...] = (("2D", "recall@0.25"), ("3D", "recall3d@0.25"))
    for rule, metric in rules:
        for run in (run for run in runs if statistics.values(run.name, metric)):
            own = np.array(cohort.marks[run.modality].kinds)
            found = [statistics.recall_of(run.name, metric, findings=own == kind) for kind in kinds]
            found += [statistics.recall_of(run.name, metric, breasts=density == c) for c in classes]
            rows.append([_name(run), rule, *(_cell(figure, "") for figure in found)])
    return "\n".join(_rows(rows)) if len(rows) > 1 else ""


def seeds_table(statistics: Statistics) -> str:
    """Every figure of every seed, and what is pooled of them."""
    rows = [["run", *HEADS.values()]]
    for run in statistics.study.runs:
        if len(statistics.of(run.name)) > 1:
            values = [", ".join(f"{v:.3f}" for v in statistics.values(run.name, m)) or NOTHING for m in METRICS]
            rows.append([run.name, *values])
    if len(rows) == 1:
        return "No run has several seeds yet: errors and p values are those of the patients alone."
    for stage in statistics.study.stages:
        spread = [statistics.seed_spread(stage, metric) for metric in METRICS]
        if any(freedom for _, freedom in spread):
            cells = [f"**{s:.3f}** ({n} degrees of freedom)" if n else NOTHING for s, n in spread]
            rows.append([f"**standard deviation, {stage}**", *cells])
    return "\n".join(_rows(rows))


def _drawn(study: StudySpec, gallery: Sequence[str]) -> list[str]:
    labels = [study.run(name).label for name in study.gallery]
    told = {
        W_CURVES: "How much each slice counts (w of the last head), for calcification clusters and for masses, against "
        "the slices on which they are visible (the bar). Right: the mean of all that M&M-3D finds at 0.25 false "
        "positives per volume. Left: of these, the one whose w has the highest peak, right or wrong.",
        ROW: f"The same cancer as {', '.join(labels)} see it: the truth in green, proposals with their scores, dotted "
        "where they are below the system's score at 0.25 false positives per volume. Of the cancers that the first "
        "proposes and the last proposes on a right slice, it is the one whose score, compared with that, gains most "
        "from the first to the last: a best case, not a typical one.",
    }
    return [_shown(told[name], _picture(name, gallery)) for name in gallery]


def tests_table(statistics: Statistics) -> str:
    """Every paired test of every figure."""
    rows = [["difference", *HEADS.values()]]
    for run in (run for run in statistics.study.runs if run.against and statistics.of(run.name)):
        found = [statistics.difference(run.name, run.against, metric) for metric in METRICS]
        cells = [NOTHING if one is None else f"{_change(one)}, p {_p(one)}" for one in found]
        rows.append([_pair(statistics.study, run.name, run.against), *cells])
    return "\n".join(_rows(rows)) if len(rows) > 1 else ""


def runs_of(study: StudySpec, name: str) -> list[RunSpec]:
    return [run for run in study.runs if name in run.tables]


def _name(run: RunSpec) -> str:
    return f"{run.label} ({run.name})"


def _pair(study: StudySpec, a: str, b: str) -> str:
    return f"{_name(study.run(a))} minus {_name(study.run(b))}"


def _cell(figure: Figure | None, paper: str) -> str:
    shown = NOTHING if figure is None else f"{figure.value:.3f} ± {figure.error:.3f}"
    return f"{shown} [{paper}]" if paper else shown


def _change(difference: Difference) -> str:
    return f"{difference.value:+.3f} ± {difference.error:.3f}"


def _p(difference: Difference | None) -> str:
    if difference is None:
        return NOTHING
    least = f"{difference.p:.3f}"
    return least if difference.p >= 0.001 else "< 0.001"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *others = rows
    return [_row(head), _row(["---"] * len(head)), *map(_row, others)]
