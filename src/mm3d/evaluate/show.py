"""Print the metrics on the terminal."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from mm3d.evaluate import table as metrics
from mm3d.evaluate.match import LEVELS
from mm3d.evaluate.settings import EvaluateSettings
from mm3d.evaluate.table import FrocMetric, UnitMetric

Result = dict[str, Any]
NONE = "–"


def print_tables(console: Console, result: Result, settings: EvaluateSettings) -> None:
    """Print the metrics of all systems side by side, their differences, the subgroups and the notes."""
    systems = result["systems"]
    console.print(_metrics(systems, settings, result["truth"]["name"]))
    if result["comparisons"]:
        console.print(_differences(result["comparisons"]))
    for column in settings.by:
        if any(system["subgroups"][column] for system in systems):
            console.print(_subgroups(systems, column, settings))
    names_of: dict[str, list[str]] = {note: [] for note in result["truth"]["notes"]}
    for system in systems:
        for note in system["notes"]:
            names_of.setdefault(note, []).append(system["name"])
    for note, names in names_of.items():
        whose = "" if not names or len(names) == len(systems) else f"{', '.join(names)}: "
        console.print(f"note: {whose}{note}", soft_wrap=True, highlight=False, markup=False)


def _metrics(systems: list[Result], settings: EvaluateSettings, truth: str) -> Table:
    counts = [system["counts"] for system in systems]
    patients = " or ".join(f"{count:,}" for count in sorted({count["patients"] for count in counts}))
    caption = "95% intervals: bootstrap over patients; AUC by DeLong\n↑ higher is better, ↓ lower is better"
    table = Table(title=f"{truth}: {patients} patients", caption=caption)
    table.add_column("")
    for system in systems:
        table.add_column(system["name"], justify="right")
    for name in ("volumes", "malignant_findings", "proposals"):
        table.add_row(name.replace("_", " "), *(f"{count[name]:,}" for count in counts))

    def add(label: str, higher_is_better: bool, cells: list[str]) -> None:
        if any(cell != NONE for cell in cells):
            table.add_row(f"{label} {_arrow(higher_is_better)}", *cells)

    for metric in metrics.METRICS:
        contents = [system[metric.name] for system in systems]
        table.add_section()
        if isinstance(metric, FrocMetric):
            for rule in ("2D", "3D"):
                for level in LEVELS:
                    for i, place in enumerate(metric.places(settings.rates)):
                        rows = [content[rule][level][i] if rule in content else None for content in contents]
                        label = f"{metric.label.format(**place)} of {level}s, {rule}"
                        add(label, metric.higher_is_better, [_with_interval(row, metric.name) for row in rows])
                table.add_section()
        elif isinstance(metric, UnitMetric):
            for level in ("breast", "image", "case"):
                cells = [_with_interval(content[level], metric.name) for content in contents]
                add(f"{metric.label} of {level}s", metric.higher_is_better, cells)
        else:
            for label, higher_is_better, text in metric.lines:
                add(label, higher_is_better, [(content and text(content)) or NONE for content in contents])
    return table


def _differences(rows: list[Result]) -> Table:
    """Those of findings and breasts; metrics.json has the rest."""
    table = Table(title="Differences", caption="p: paired, by bootstrap over patients; of the AUC by DeLong's test")
    for column in ("first", "second", "metric"):
        table.add_column(column)
    for column in ("first − second", "p"):
        table.add_column(column, justify="right")
    by_name = {metric.name: metric for metric in metrics.METRICS}
    pair = (rows[0]["a"], rows[0]["b"])
    for row in rows:
        metric = by_name[row["metric"]]
        if isinstance(metric, FrocMetric) and row["level"] == "finding":
            label = f"{metric.label.format(**row)}, {row['rule']}"
        elif isinstance(metric, UnitMetric) and row["level"] == "breast":
            label = f"{metric.label} of breasts"
        else:
            continue
        if (row["a"], row["b"]) != pair:
            pair = (row["a"], row["b"])
            table.add_section()
        spread = f" ± {row['standard_error']:.3f}" if _known(row["standard_error"]) else ""
        difference = f"{row['difference']:+.3f}{spread}" if _known(row["difference"]) else NONE
        p = NONE if not _known(row["p"]) else "< 0.001" if row["p"] < 0.001 else f"{row['p']:.3f}"
        table.add_row(*pair, f"{label} {_arrow(metric.higher_is_better)}", difference, p)
    return table


def _subgroups(systems: list[Result], column: str, settings: EvaluateSettings) -> Table:
    """By the 3D rule if all systems have it; metrics.json has both, with intervals."""
    rule = "3D" if all("3D" in system["recall"] for system in systems) else "2D"
    rows = [(row, system["name"]) for system in systems for row in system["subgroups"][column]]
    title = f"By {column}: findings in {rule}, AUC of {rows[0][0]['auc']['of']}"
    table = Table(title=title, caption="± standard error; metrics.json has intervals")
    table.add_column(column, overflow="fold")
    if len(systems) > 1:
        table.add_column("system", overflow="fold")
    table.add_column("findings", justify="right", no_wrap=True)
    for metric in metrics.METRICS:
        if isinstance(metric, FrocMetric | UnitMetric):
            places = metric.places(settings.rates) if isinstance(metric, FrocMetric) else [{}]
            for place in places:
                table.add_column(metric.label.format(**place), justify="right", no_wrap=True)
    order = {row["value"]: number for number, (row, _) in reversed(list(enumerate(rows)))}
    for row, name in sorted(rows, key=lambda pair: order[pair[0]["value"]]):
        recalls = row["recall"][rule]
        cells = [f"{recalls[0]['count']:,}" if recalls else NONE]
        for metric in metrics.METRICS:
            if isinstance(metric, FrocMetric):
                cells += [_with_error(part, metric.name) for part in row[metric.name][rule]]
            elif isinstance(metric, UnitMetric):
                cells.append(_with_error(row[metric.name], metric.name))
        table.add_row(row["value"], *([name] if len(systems) > 1 else []), *cells)
    return table


def _arrow(higher_is_better: bool) -> str:
    return "↑" if higher_is_better else "↓"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _with_interval(row: Result | None, name: str) -> str:
    if row is None or not _known(row[name]):
        return NONE
    low, high = row["interval"]
    return f"{row[name]:.3f} \\[{low:.2f}, {high:.2f}]" if _known(low) else f"{row[name]:.3f}"


def _with_error(row: Result, name: str) -> str:
    if not _known(row[name]):
        return NONE
    return f"{row[name]:.2f} ± {row['standard_error']:.2f}" if _known(row["standard_error"]) else f"{row[name]:.2f}"
