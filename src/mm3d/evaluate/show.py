"""Print the metrics on the terminal."""

import math
from typing import Any

from rich.table import Column, Table

from mm3d.evaluate import table as metrics
from mm3d.evaluate.table import FrocMetric, Summary, UnitMetric
from mm3d.shared.console import Console, say

Result = dict[str, Any]
NONE = "–"
ARROW = {True: "↑", False: "↓"}  # whether higher is better
LABELS, SYSTEM = 40, 31  # columns of the terminal: for the names of metrics, and for each system


def print_tables(console: Console, result: Result) -> None:
    """Print the metrics of all systems side by side, their differences, the subgroups and the notes."""
    systems = result["systems"]
    # As many systems side by side as the terminal has room for; no cell is broken or cut.
    beside = max(1, (console.width - LABELS) // SYSTEM)
    for first in range(0, len(systems), beside):
        console.print(_metrics(systems[first : first + beside], result["truth"]["name"]))
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
        say(console, f"note: {whose}{note}")


def _metrics(systems: list[Result], truth: str) -> Table:
    counts = [system["counts"] for system in systems]
    patients = " or ".join(f"{count:,}" for count in sorted({count["patients"] for count in counts}))
    caption = "95% intervals: bootstrap over patients; AUC by DeLong; ↑ higher is better, ↓ lower is better"
    table = Table("", title=f"{truth}: {patients} patients", caption=caption)
    for system in systems:
        table.add_column(system["name"], justify="right", overflow="fold")
    rows = {"volumes": "volumes", "malignant_findings": "malignant annotations", "proposals": "findings"}
    for name, label in rows.items():
        table.add_row(label, *(f"{count[name]:,}" for count in counts))
    for metric in metrics.METRICS:
        table.add_section()
        cells = [_cells(metric, system[metric.name]) for system in systems]
        for label in dict.fromkeys(label for column in cells for label in column):
            row = [column.get(label, NONE) for column in cells]
            if any(cell != NONE for cell in row):
                table.add_row(label, *row)
    return table


def _cells(metric: FrocMetric | UnitMetric | Summary, content: Any) -> dict[str, str]:
    """The cells of one metric and system, by their labels."""
    if isinstance(metric, Summary):
        return metric.cells(content) if content else {}
    if isinstance(metric, UnitMetric):
        rows = {f"{metric.label} of {level}s": content[level] for level in ("breast", "image", "case")}
    else:
        rows = {
            f"{metric.label.format(**row)} of {level}s, {rule}": row
            for rule, levels in content.items()
            for level, rows in levels.items()
            for row in rows
        }
    cells = {}
    for label, row in rows.items():
        interval = "[{:.2f}, {:.2f}]".format(*row["interval"]) if math.isfinite(row["interval"][0]) else ""
        cells[f"{label} {ARROW[metric.higher_is_better]}"] = f"{_number(row[metric.name])} {interval}".rstrip()
    return cells


def _differences(rows: list[Result]) -> Table:
    """Those of findings and breasts; metrics.json has the rest."""
    table = Table(
        *(Column(heading, overflow="fold") for heading in ("first", "second", "metric")),
        title="Differences",
        caption="p: paired, by bootstrap over patients; of the AUC by DeLong's test",
    )
    for column in ("first − second", "p"):
        table.add_column(column, justify="right")
    for metric in metrics.METRICS:
        level = "finding" if isinstance(metric, FrocMetric) else "breast"
        for row in rows:
            if isinstance(metric, Summary) or (row["metric"], row["level"]) != (metric.name, level):
                continue
            of = f", {row['rule']}" if isinstance(metric, FrocMetric) else " of breasts"
            label = f"{metric.label.format(**row)}{of} {ARROW[metric.higher_is_better]}"
            p = "< 0.001" if row["p"] < 0.001 else _number(row["p"])
            table.add_row(row["a"], row["b"], label, _number(row["difference"], "+.3f", row["standard_error"]), p)
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
                cells[metric.label.format(**part)] = _number(part[metric.name], ".2f", part["standard_error"])
    return cells


def _number(value: float, form: str = ".3f", error: float = math.nan) -> str:
    """A number, with its standard error if that is known."""
    if not math.isfinite(value):
        return NONE
    return f"{value:{form}} ± {error:{form.lstrip('+')}}" if math.isfinite(error) else f"{value:{form}}"
