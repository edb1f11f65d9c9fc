"""`mm3d study` on the command line."""

import argparse
import signal
from pathlib import Path

from mm3d.cli.options import Commands
from mm3d.shared.errors import InputError


def add_study(commands: Commands) -> None:
    study = commands.add_parser(
        "study",
        help="run the paper's comparisons, and write a page of their results",
        description="Run a study with Snakemake (pip install mm3d[study]): 'virtual-trial', on synthetic breasts; "
        "'bcs-dbt DOWNLOAD --start WEIGHTS', on BCS-DBT; or your own .toml. If it ends early, the same command "
        "continues. 'report [STUDY]' writes docs/study.md from the results that are there; 'ship' puts the best "
        "weights of virtual-trial into the package. Exit code 1: some runs failed, the others are done.",
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
        help="folder for images and weights, many gigabytes (default: ~/mm3d-studies/STUDY); for report: folder for "
        "study.md and study/ (default: docs; for another study than virtual-trial: DIR)",
    )
    study.add_argument(
        "--results", type=Path, metavar="DIR", help="folder for a small JSON of each run (default: results/STUDY)"
    )
    study.add_argument("--only", nargs="+", metavar="RUN", help="only these runs, and those that they start from")
    study.add_argument("--jobs", type=int, help="runs at a time, which share the cores (default: one for each core)")
    study.add_argument("--dry-run", action="store_true", help="only show what is left to do")
    study.add_argument(
        "--start", action="append", metavar="[NAME=]WEIGHTS", help="start weights that the study does not train; repeat"
    )
    study.add_argument(
        "--snakemake",
        nargs=argparse.REMAINDER,
        metavar="OPTION",
        help="options of Snakemake, to the end of the line, such as --executor slurm --jobs 50",
    )
    study.set_defaults(run=_study)


def _study(arguments: argparse.Namespace) -> int:
    if arguments.study in ("report", "ship"):
        for option in ("only", "jobs", "dry_run", "start", "snakemake"):
            if getattr(arguments, option):
                raise InputError(f"--{option.replace('_', '-')} is not for {arguments.study}; leave it out.")
        name = arguments.download or "virtual-trial"
        results = arguments.results or Path("results", Path(name).stem)
        if arguments.study == "report":
            from mm3d.experiments.report import write_report
            from mm3d.experiments.spec import read_study

            usual = Path("docs") if name == "virtual-trial" else results  # another study's page must not replace ours
            return write_report(read_study(name), results, arguments.output or usual)
        if name != "virtual-trial":
            raise InputError(f"ship is for the weights that come with mm3d; use those of {name} with --weights FILE.")
        from mm3d.experiments.ship import ship

        return ship(name, results, arguments.output or Path.home() / "mm3d-studies" / name)
    from mm3d.experiments.workflow import run

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` and schedulers end it as Ctrl-C does
    name = Path(arguments.study).stem
    return run(
        arguments.study,
        folder=arguments.output or Path.home() / "mm3d-studies" / name,
        results=arguments.results or Path("results", name),
        only=arguments.only or (),
        jobs=arguments.jobs,
        dry_run=arguments.dry_run,
        download=Path(arguments.download) if arguments.download else None,
        start=arguments.start or (),
        snakemake=arguments.snakemake or (),
    )
