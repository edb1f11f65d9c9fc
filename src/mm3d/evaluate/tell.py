"""The evaluation on the terminal."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from mm3d.evaluate.settings import EvaluateSettings

Result = dict[str, Any]
LEVELS = ("finding", "lesion", "breast")


def tell(console: Console, result: Result, settings: EvaluateSettings) -> None:
    """Print the figures of all systems side by side, the differences, the subgroups and the notes."""
    systems = result["systems"]
    console.print(_summary(systems, settings, result["truth"]["name"]))
    if result["comparisons"]:
        console.print(_differences(result["comparisons"]))
    for column in settings.by:
        if any(system["subgroups"][column] for system in systems):
            console.print(_subgroups(systems, column, settings))
    said: dict[str, list[str]] = {note: [] for note in result["truth"]["notes"]}
    for system in systems:
        for note in system["notes"]:
            said.setdefault(note, []).append(system["name"])
    for note, names in said.items():
        whose = "" if not names or len(names) == len(systems) else f"{', '.join(names)}: "
        console.print(f"note: {whose}{note}", soft_wrap=True, highlight=False, markup=False)


def _summary(systems: list[Result], settings: EvaluateSettings, truth: str) -> Table:
    counts = [system["counts"] for system in systems]
    caption = "95% intervals: recall by bootstrap over patients,\nAUC by DeLong"
    table = Table(title=f"{truth}: {_range(counts, 'patients')} patients", caption=caption)
    table.add_column("")
    for system in systems:
        table.add_column(system["name"], justify="right")
    for name in ("volumes", "malignant_findings", "proposals"):
        table.add_row(name.replace("_", " "), *(f"{count[name]:,}" for count in counts))
    for rule in ("2D", "3D"):
        if not any(rule in system["recall"] for system in systems):
            continue
        table.add_section()
        for level in LEVELS:
            for i, rate in enumerate(settings.rates):
                cells = [
                    _figure(system["recall"][rule][level][i], "recall") if rule in system["recall"] else "–"
                    for system in systems
                ]
                table.add_row(f"R@{rate:g} of {level}s, {rule}", *cells)
    table.add_section()
    for level in ("breast", "image", "case"):
        table.add_row(f"AUC of {level}s", *(_figure(system["auc"][level], "auc") for system in systems))
    if any(system["depth"] for system in systems):
        table.add_section()
        table.add_row("slice error, median", *(_depth(system["depth"]) for system in systems))
        table.add_row("slice in the visible range", *(_share(system["depth"]) for system in systems))
    if any(system["dbtex"] for system in systems):
        table.add_section()
        for label, name in (
            ("DBTex: mean sensitivity (ranking)", "mean_sensitivity_positive"),
            ("DBTex: at 2 FP on all volumes", "sensitivity_at_2_fps_all"),
        ):
            table.add_row(label, *(_number(system["dbtex"] and system["dbtex"][name]) for system in systems))
    if any(system["calibration"]["breast"] for system in systems):
        table.add_section()
        errors = [(system["calibration"]["breast"] or {}).get("expected_calibration_error") for system in systems]
        table.add_row("calibration error of breasts", *map(_number, errors))
    return table


def _range(counts: list[dict[str, int]], name: str) -> str:
    return " or ".join(f"{count:,}" for count in sorted({count[name] for count in counts}))


def _differences(rows: list[Result]) -> Table:
    """Findings and breasts; metrics.json has the rest."""
    table = Table(title="Differences", caption="p: paired, by bootstrap over patients and by DeLong's test")
    for column in ("first", "second", "metric"):
        table.add_column(column)
    for column in ("first − second", "p"):
        table.add_column(column, justify="right")
    for row in rows:
        if row["metric"] == "recall" and row["level"] != "finding":
            continue
        if row["metric"] == "auc" and row["level"] != "breast":
            continue
        metric = f"R@{row['fp_per_volume']:g}, {row['rule']}" if row["metric"] == "recall" else "AUC of breasts"
        spread = f" ± {row['standard_error']:.3f}" if _known(row["standard_error"]) else ""
        difference = f"{row['difference']:+.3f}{spread}" if _known(row["difference"]) else "–"
        table.add_row(row["a"], row["b"], metric, difference, _p(row["p"]), end_section=row["metric"] == "auc")
    return table


def _subgroups(systems: list[Result], column: str, settings: EvaluateSettings) -> Table:
    """By the 3D rule, where there is one; metrics.json has both, with intervals."""
    rule = "3D" if all("3D" in system["recall"] for system in systems) else "2D"
    rows = [(row, system["name"]) for system in systems for row in system["subgroups"][column]]
    title = f"By {column}: findings in {rule}, AUC of {rows[0][0]['auc']['of']}"
    table = Table(title=title, caption="± standard error; metrics.json has intervals")
    table.add_column(column, overflow="fold")
    if len(systems) > 1:
        table.add_column("system", overflow="fold")
    for name in ("findings", *(f"R@{rate:g}" for rate in settings.rates), "AUC"):
        table.add_column(name, justify="right", no_wrap=True)
    order = {row["value"]: number for number, (row, _) in reversed(list(enumerate(rows)))}
    for row, name in sorted(rows, key=lambda pair: order[pair[0]["value"]]):
        found = row["recall"][rule]
        cells = [f"{found[0]['count']:,}" if found else "–", *(_short(part, "recall") for part in found)]
        table.add_row(row["value"], *([name] if len(systems) > 1 else []), *cells, _short(row["auc"], "auc"))
    return table


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _number(value: float | None) -> str:
    return f"{value:.3f}" if value is not None and math.isfinite(value) else "–"


def _figure(row: Result, name: str) -> str:
    if not _known(row[name]):
        return "–"
    low, high = row["interval"]
    return f"{row[name]:.3f} \\[{low:.2f}, {high:.2f}]" if _known(low) else f"{row[name]:.3f}"


def _short(row: Result, name: str) -> str:
    if not _known(row[name]):
        return "–"
    return f"{row[name]:.2f} ± {row['standard_error']:.2f}" if _known(row["standard_error"]) else f"{row[name]:.2f}"


def _depth(depth: Result | None) -> str:
    if not depth or not depth["findings"]:
        return "–"
    mm = f" ({depth['median_mm']:.1f} mm)" if depth["findings_mm"] else ""
    return f"{depth['median_slices']:.1f}{mm}, {depth['findings']:,} findings"


def _share(depth: Result | None) -> str:
    return f"{depth['visible']:.1%} of {depth['findings_visible']:,}" if depth and depth["findings_visible"] else "–"


def _p(p: float) -> str:
    return "–" if not _known(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"
