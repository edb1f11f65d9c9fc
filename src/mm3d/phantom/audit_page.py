"""The realism table as it is shown: on the terminal, as JSON and as a figure."""

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from mm3d.phantom.audit import Measured, Row, measure_breast, table
from mm3d.phantom.montage import montage
from mm3d.phantom.trial import Trial
from mm3d.shared.config import to_dict
from mm3d.shared.console import show_progress
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing
from mm3d.shared.workers import Task, Workers, worker_count

SECONDS_PER_BREAST = 6 * 3600.0
VERDICT = {True: "pass", False: "FAIL", None: ""}
COLOUR = {True: "#009E73", False: "#D55E00", None: "#555555"}


def audit(trial: Trial, output: Path, jobs: int | None) -> int:
    """Measure a trial, show its first findings, and write it all down. Returns 1 if a gate fails."""
    console = Console()
    output.mkdir(parents=True, exist_ok=True)
    rows = table(trial, _measured(trial, worker_count(jobs), console))
    content = {"trial": to_dict(trial), "rows": [to_dict(row) | {"passed": row.passed} for row in rows]}
    with replacing(output / "audit.json") as target:
        target.write_text(json.dumps(content, indent=1))
    with replacing(output / "audit.png") as target:
        _draw(rows, trial, target)
    with replacing(output / "montage.png") as target:
        montage(trial).save(target, format="png", optimize=True)
    console.print(_told(rows, trial))
    for note in dict.fromkeys(row.note for row in rows if row.note):
        names = ", ".join(row.measure for row in rows if row.note == note)
        console.print(f"{names}: {note}.", soft_wrap=True, highlight=False)
    failed = sum(row.passed is False for row in rows)
    judged = sum(row.passed is not None for row in rows)
    ending = f"{judged - failed} of {judged} gates pass"
    console.print(f"Wrote {output}/audit.json, audit.png and montage.png: {ending}.", soft_wrap=True, highlight=False)
    return 1 if failed else 0


def _measured(trial: Trial, workers: int, console: Console) -> list[Measured]:
    """The views of all breasts, in order, whoever measured them."""
    views: dict[int, tuple[Measured, ...]] = {}
    with Workers(workers) as pool, show_progress(console, "measuring", trial.breasts) as advance:
        for index in range(trial.breasts):
            pool.submit(Task(index, measure_breast, (trial, index), SECONDS_PER_BREAST, "use fewer --jobs."))
        for outcome in pool.outcomes():
            if outcome.failure:
                raise InputError(f"Breast {outcome.key} was not measured: {outcome.failure}")
            views[outcome.key] = outcome.result
            advance()
    return [view for index in sorted(views) for view in views[index]]


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) >= 0.001 else "0"


def _gate(row: Row) -> str:
    if row.passed is None:
        return ""
    if row.high is None:
        return f"at least {row.low:g}"
    return f"{row.low:.3g} to {row.high:.3g}"


def _told(rows: Sequence[Row], trial: Trial) -> Table:
    shown = Table(title=f"{trial.breasts} breasts, scale {trial.scale}, {trial.system}, seed {trial.seed}")
    shown.add_column("measure", no_wrap=True)
    shown.add_column("ours", justify="right")
    shown.add_column("of", justify="right")
    for name in ("published", "gate", "verdict"):
        shown.add_column(name)
    for row in rows:
        verdict = VERDICT[row.passed]
        shown.add_row(row.measure, _number(row.ours), f"{row.count:,}", row.published, _gate(row), verdict)
    return shown


def _draw(rows: Sequence[Row], trial: Trial, path: Path) -> None:
    """A line per measure: the gate as a bar, ours as a dot."""
    figure = Figure(figsize=(9.5, 0.28 * len(rows) + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_xlim(-2.55, 1.75)
    axes.set_ylim(len(rows) - 0.4, -1.4)
    axes.axis("off")
    for text, x in (("measure", -2.5), ("ours", -1.02), ("published", -0.85), ("gate", -0.02), ("verdict", 1.45)):
        axes.text(x, -1, text, weight="bold", fontsize=9, va="center", ha="right" if text == "ours" else "left")
    for y, row in enumerate(rows):
        colour = COLOUR[row.passed]
        if y % 2:
            axes.axhspan(y - 0.5, y + 0.5, color="#F4F4F4", lw=0)
        axes.text(-2.5, y, row.measure, fontsize=8.5, va="center")
        axes.text(-1.02, y, _number(row.ours), fontsize=8.5, va="center", ha="right", color=colour, weight="bold")
        axes.text(-0.85, y, row.published, fontsize=8, va="center", color="#333333")
        axes.text(1.45, y, VERDICT[row.passed], fontsize=8.5, va="center", color=colour)
        if row.passed is not None and row.low is not None and row.high is not None:
            # The gate takes the middle half of the strip, so that what lies outside is seen as well.
            place = 0.25 + 0.5 * (row.ours - row.low) / (row.high - row.low)
            axes.plot([0.3, 0.9], [y, y], color="#BBBBBB", lw=5, solid_capstyle="butt")
            axes.plot(min(max(0.6 + 1.2 * (place - 0.5), 0.0), 1.3), y, "o", color=colour, ms=5)
            axes.text(0.28, y, f"{row.low:.3g}", fontsize=7, va="center", ha="right", color="#777777")
            axes.text(0.92, y, f"{row.high:.3g}", fontsize=7, va="center", color="#777777")
        elif gate := _gate(row):
            axes.text(0.3, y, gate, fontsize=8, va="center", color="#777777")
    title = f"Virtual trial against published figures: {trial.breasts} breasts, {trial.scale}, {trial.system}"
    axes.set_title(title, loc="left", fontsize=10, weight="bold")
    figure.savefig(path, dpi=110, format="png")
