"""make bench and make bench-full: run the benchmarks, print the table, and keep it in docs/benchmarks.md."""

import argparse
import datetime
import platform
from pathlib import Path

import detector
import evaluation
import full_size
import phantom
import predict
import preparation
import torch
import training
from rich.console import Console
from rich.table import Table
from timing import Row

INTRODUCTION = """# Benchmarks

Written by `make bench` and, the second table, by `make bench-full`. Each figure is a ratio of two things measured in
turn in one run on one machine: times alone would say more of the machine than of mm3d.
"""
FULL_SIZE = "## Full size\n"


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    threads = torch.get_num_threads()
    return f"{cpu}, {threads} threads, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def as_markdown(rows: list[Row]) -> str:
    measured = f"Measured on {datetime.date.today()}: {machine()}."
    lines = [measured, "", "| what | measured | wanted | note |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.measured} | {row.wanted} | {row.note} |" for row in rows]
    return "\n".join(lines) + "\n"


def keep(path: Path, table: str, full_size: bool) -> None:
    """Write one of the page's two tables, and leave the other as it is."""
    first, _, second = path.read_text().partition(FULL_SIZE) if path.exists() else (INTRODUCTION, "", "")
    if full_size:
        second = "\n" + table
    else:
        first = f"{INTRODUCTION}\n{table}\n"
    path.write_text(first.rstrip() + "\n" + (f"\n{FULL_SIZE}{second}" if second else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the markdown file to keep the table in")
    parser.add_argument("--full-size", action="store_true", help="what takes half an hour, instead of the rest")
    arguments = parser.parse_args()
    parts = (full_size,) if arguments.full_size else (detector, preparation, evaluation, phantom, training, predict)
    rows = [row for part in parts for row in part.rows()]
    table = Table(title=machine())
    for column in ("what", "measured", "wanted"):
        table.add_column(column)
    for row in rows:
        table.add_row(row.what, row.measured, row.wanted)
    Console().print(table)
    if arguments.write:
        keep(arguments.write, as_markdown(rows), arguments.full_size)


if __name__ == "__main__":
    main()
