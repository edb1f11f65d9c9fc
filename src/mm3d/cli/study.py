"""`mm3d study` on the command line."""

import argparse
import os
import signal
from pathlib import Path

from mm3d.cli.options import FOR_TORCH
from mm3d.shared.errors import InputError


def add_study(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    study = commands.add_parser(
        "study",
        help="run the paper's comparisons, and write the page that tells what came out",
        description="Run a study: 'virtual-trial', on synthetic breasts; 'bcs-dbt DOWNLOAD --start WEIGHTS', on "
        "BCS-DBT; or your own .toml. Whatever ends it, the same command continues. 'report [STUDY]' writes "
        "docs/study.md of the results there are; 'ship' puts the best weights of virtual-trial into the package. Exit "
        "code 1: some runs failed, the others are done.",
    )
    study.add_argument("study", metavar="STUDY", help="virtual-trial, bcs-dbt, a .toml; or report, or ship")
    study.add_argument(
        "download",
        nargs="?",
        metavar="DOWNLOAD",
        help="for bcs-dbt: the folder of the download; for report: the study (default: virtual-trial)",
    )
    study.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="for images and weights, gigabytes of them (default: ~/mm3d-studies/STUDY); for report: where study.md "
        "and study/ go (default: docs, of other studies DIR)",
    )
    study.add_argument("--results", type=Path, metavar="DIR", help="a small JSON for each run (default: results/STUDY)")
    study.add_argument("--only", nargs="+", metavar="RUN", help="these runs, and those that they start from")
    study.add_argument("--jobs", type=int, help="runs at a time, with as many cores each (default: one for each core)")
    study.add_argument("--dry-run", action="store_true", help="only show the runs that are left, and about how long")
    study.add_argument(
        "--start", action="append", metavar="[NAME=]WEIGHTS", help="start weights that the study does not train; repeat"
    )
    study.set_defaults(run=_study)


def _study(arguments: argparse.Namespace) -> int:
    os.environ.update(FOR_TORCH | os.environ)  # before torch is imported
    if arguments.study in ("report", "ship"):
        for option in ("only", "jobs", "dry_run", "start"):
            if getattr(arguments, option):
                raise InputError(f"--{option.replace('_', '-')} is not for {arguments.study}; leave it out.")
        name = arguments.download or "virtual-trial"
        results = arguments.results or Path("results", Path(name).stem)
        if arguments.study == "report":
            from mm3d.experiments.report import write_report

            usual = Path("docs") if name == "virtual-trial" else results  # another study's page must not replace ours
            return write_report(name, results, arguments.output or usual)
        if name != "virtual-trial":
            raise InputError(f"ship is for the weights that come with mm3d; use those of {name} with --weights FILE.")
        from mm3d.experiments.ship import ship

        return ship(name, results, arguments.output or Path.home() / "mm3d-studies" / name)
    from mm3d.experiments.run import Settings, run

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # kill and schedulers end it as Ctrl-C does
    name = Path(arguments.study).stem
    settings = Settings(
        folder=arguments.output or Path.home() / "mm3d-studies" / name,
        results=arguments.results or Path("results", name),
        only=tuple(arguments.only or ()),
        jobs=arguments.jobs,
        dry_run=arguments.dry_run,
        download=Path(arguments.download) if arguments.download else None,
        start=tuple(arguments.start or ()),
    )
    return run(arguments.study, settings)
