"""make bench and make bench-full: run the benchmarks, print the table, and keep it in docs/benchmarks.md."""

import argparse
from pathlib import Path

import detector
import evaluation
import full_size
import node
import page
import phantom
import predict
import preparation
import training

INTRODUCTION = """Written by `make bench`; "Full size" by `make bench-full`, and "Against another commit"
by `make bench BASE=<commit>`. Each figure is a ratio of two things measured in turn in one run on one
machine: times alone would say more of the machine than of mm3d."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the markdown file to keep the table in")
    parser.add_argument("--full-size", action="store_true", help="what takes half an hour, instead of the rest")
    arguments = parser.parse_args()
    parts = (
        (full_size,) if arguments.full_size else (detector, preparation, evaluation, phantom, training, predict, node)
    )
    rows = [row for part in parts for row in part.rows()]
    page.show(rows)
    if arguments.write and arguments.full_size:
        page.keep(arguments.write, "## Full size", "", rows)
    elif arguments.write:
        page.keep(arguments.write, "# Benchmarks", INTRODUCTION, rows)


if __name__ == "__main__":
    main()
