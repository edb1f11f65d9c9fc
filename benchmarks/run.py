"""make bench: run every benchmark, print the table, and keep it in docs/benchmarks.md."""

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

Written by `make bench`. Each figure is a ratio of two things measured in turn in one run on one machine: times alone
would say more of the machine than of mm3d.
"""


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
    return INTRODUCTION + "\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the markdown file to keep the table in")
    arguments = parser.parse_args()
    parts = (detector, full_size, preparation, evaluation, phantom, training, predict)
    rows = [row for part in parts for row in part.rows()]
    table = Table(title=machine())
    for column in ("what", "measured", "wanted"):
        table.add_column(column)
    for row in rows:
        table.add_row(row.what, row.measured, row.wanted)
    Console().print(table)
    if arguments.write:
        arguments.write.write_text(as_markdown(rows))


if __name__ == "__main__":
    main()
