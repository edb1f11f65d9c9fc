"""What a benchmark shows: a table on the terminal, and a section of docs/benchmarks.md."""

import datetime
import platform
import re
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from timing import Row


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    threads = torch.get_num_threads()
    return f"{cpu}, {threads} threads, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def show(rows: list[Row]) -> None:
    table = Table(title=machine())
    for column in ("what", "measured", "wanted", "note"):
        table.add_column(column)
    for row in rows:
        table.add_row(row.what, row.measured, row.wanted, row.note)
    Console().print(table)


def keep(page: Path, heading: str, introduction: str, rows: list[Row]) -> None:
    """Write one section of the page, and leave the others as they are."""
    measured = f"Measured on {datetime.date.today()}: {machine()}."
    lines = [heading, "", *([introduction, ""] if introduction else []), measured, ""]
    lines += ["| what | measured | wanted | note |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.measured} | {row.wanted} | {row.note} |" for row in rows]
    sections = re.split(r"(?m)^(?=##? )", page.read_text())[1:] if page.exists() else []
    by_heading = {section.splitlines()[0]: section.strip() for section in sections}
    by_heading[heading] = "\n".join(lines)
    page.write_text("\n\n".join(by_heading.values()) + "\n")
