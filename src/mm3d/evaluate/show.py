"""Print the metrics on the terminal."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from mm3d.evaluate import table as metrics
from mm3d.evaluate.table import FrocMetric, Summary, UnitMetric

Result = dict[str, Any]
NONE = "–"


def print_tables(console: Console, result: Result) -> None:
    """Print the metrics of all systems side by side, their differences, the subgroups and the notes."""
    systems = result["systems"]
    console.print(_metrics(systems, result["truth"]["name"]))
    if result["comparisons"]:
        console.print(_differences(result["comparisons"]))
    for column in result["settings"]["by"]:
        if any(system["subgroups"][column] for system in systems):
            console.print(_subgroups(systems, column))
    names_of: dict[str, list[str]] = {note: [] for note in result["truth"]["notes"]}
    for system in systems:
        for note in system["notes"]:
            names_of.setdefault(note, []).append(system["name"])
    for note, names in names_of.items():
        whose = "" if not names or len(names) == len(systems) else f"{', '.join(names)}: "
        console.print(f"note: {whose}{note}", soft_wrap=True, highlight=False, markup=False)


def _metrics(systems: list[Result], truth: str) -> Table:
    counts = [system["counts"] for system in systems]
    patients = " or ".join(f"{count:,}" for count in sorted({count["patients"] for count in counts}))
    caption = "95% intervals: bootstrap over patients; AUC by DeLong\n↑ higher is better, ↓ lower is better"
    table = Table(title=f"{truth}: {patients} patients", caption=caption)
    table.add_column("")
    for system in systems:
        table.add_column(system["name"], justify="right")
    for name in ("volumes", "malignant_findings", "proposals"):
        table.add_row(name.replace("_", " "), *(f"{count[name]:,}" for count in counts))
    for metric in metrics.METRICS:
        table.add_section()
        cells = [_cells(metric, system[metric.name]) for system in systems]
        for label in dict.fromkeys(label for column in cells for label in column):
            table.add_row(label, *(column.get(label, NONE) for column in cells))
    return table


def _cells(metric: FrocMetric | UnitMetric | Summary, content: Any) -> dict[str, str]:
    """The cells of one metric and system, by their labels."""
    if isinstance(metric, Summary):
        lines = metric.lines if content else ()
        return {f"{label} {_arrow(better)}": text(content) for label, better, text in lines if text(content)}
    arrow = _arrow(metric.higher_is_better)
    if isinstance(metric, UnitMetric):
        levels = ("breast", "image", "case")
        return {f"{metric.label} of {level}s {arrow}": _with_interval(content[level], metric.name) for level in levels}
    return {
        f"{metric.label.format(**row)} of {level}s, {rule} {arrow}": _with_interval(row, metric.name)
        for rule, levels in content.items()
        for level, rows in levels.items()
        for row in rows
    }


def _differences(rows: list[Result]) -> Table:
    """Those of findings and breasts; metrics.json has the rest."""
    table = Table(title="Differences", caption="p: paired, by bootstrap over patients; of the AUC by DeLong's test")
    for column in ("first", "second", "metric"):
        table.add_column(column)
    for column in ("first − second", "p"):
        table.add_column(column, justify="right")
    for metric in metrics.METRICS:
        for row in rows:
            if row["metric"] != metric.name or isinstance(metric, Summary):
                continue
            if row["level"] != ("finding" if isinstance(metric, FrocMetric) else "breast"):
                continue
            of = f", {row['rule']}" if isinstance(metric, FrocMetric) else " of breasts"
            label = f"{metric.label.format(**row)}{of} {_arrow(metric.higher_is_better)}"
            spread = f" ± {row['standard_error']:.3f}" if _known(row["standard_error"]) else ""
            difference = f"{row['difference']:+.3f}{spread}" if _known(row["difference"]) else NONE
            p = NONE if not _known(row["p"]) else "< 0.001" if row["p"] < 0.001 else f"{row['p']:.3f}"
            table.add_row(row["a"], row["b"], label, difference, p)
        table.add_section()
    return table


def _subgroups(systems: list[Result], column: str) -> Table:
    """By the 3D rule if all systems have it; metrics.json has both, with intervals."""
    rule = "3D" if all("3D" in system["recall"] for system in systems) else "2D"
    rows = [(row, system["name"]) for system in systems for row in system["subgroups"][column]]
    title = f"By {column}: findings in {rule}, AUC of {rows[0][0]['auc']['of']}"
    table = Table(title=title, caption="± standard error; metrics.json has intervals")
    names = ["system"] if len(systems) > 1 else []
    for heading in (column, *names):
        table.add_column(heading, overflow="fold")
    for heading in ("findings", *_subgroup_cells(rows[0][0], rule)):
        table.add_column(heading, justify="right", no_wrap=True)
    order = list(dict.fromkeys(row["value"] for row, _ in rows))
    for row, name in sorted(rows, key=lambda pair: order.index(pair[0]["value"])):
        recalls = row["recall"][rule]
        count = f"{recalls[0]['count']:,}" if recalls else NONE
        table.add_row(row["value"], *(name for _ in names), count, *_subgroup_cells(row, rule).values())
    return table


def _subgroup_cells(row: Result, rule: str) -> dict[str, str]:
    """The cells of one subgroup and system, by their headings."""
    cells = {}
    for metric in metrics.METRICS:
        if isinstance(metric, FrocMetric | UnitMetric):
            content = row[metric.name]
            for part in content[rule] if isinstance(metric, FrocMetric) else [content]:
                cells[metric.label.format(**part)] = _with_error(part, metric.name)
    return cells


def _arrow(higher_is_better: bool) -> str:
    return "↑" if higher_is_better else "↓"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _with_interval(row: Result, name: str) -> str:
    if not _known(row[name]):
        return NONE
    low, high = row["interval"]
    return f"{row[name]:.3f} \\[{low:.2f}, {high:.2f}]" if _known(low) else f"{row[name]:.3f}"


def _with_error(row: Result, name: str) -> str:
    if not _known(row[name]):
        return NONE
    return f"{row[name]:.2f} ± {row['standard_error']:.2f}" if _known(row["standard_error"]) else f"{row[name]:.2f}"
