"""`mm3d prepare`."""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

from mm3d.cli.options import (
    Commands,
    add_max_pixels,
    add_pictures,
    add_preparation,
    given_pictures,
    given_preparation,
    share,
)
from mm3d.data.datasets import DATASETS, find_reader
from mm3d.data.records import Cohort
from mm3d.shared.errors import InputError


def add_prepare(commands: Commands) -> None:
    prepare = commands.add_parser(
        "prepare",
        help="make a downloaded dataset, or your own exams, ready for training and evaluation",
        description="Read a dataset as it was downloaded, check it, and write prepared views: images that are cropped "
        "to the breast, have the chest wall on the left, and are resized; the slices of volumes are max-pooled. A "
        "second run does only what is missing. Exit code 1 means that something could not be read (see "
        "OUT/problems.csv) or that nothing could be done. docs/data.md describes the datasets.",
    )
    known = "; ".join(f"{name}: {about}" for name, (_, about) in DATASETS.items())
    prepare.add_argument("dataset", choices=DATASETS, metavar="DATASET", help=known)
    prepare.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the download, or of your own exams")
    prepare.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the folder to write")
    add_preparation(prepare)
    validation = (
        "for a dataset without splits: give this share of the patients, chosen by a hash of their codes, to a split "
        "validation, and the others to train"
    )
    prepare.add_argument("--validation-share", type=share, metavar="P", help=validation)
    prepare.add_argument(
        "--jobs", type=int, metavar="N", help="number of worker processes (default: one for each core)"
    )
    add_max_pixels(prepare)
    add_pictures(prepare.add_argument_group("for DATASET images only"), "FOLDER")
    prepare.set_defaults(run=_prepare)


def _prepare(arguments: argparse.Namespace) -> int:
    from mm3d.data.datasets.assemble import split_patients
    from mm3d.data.prepare.geometry import PrepareSettings
    from mm3d.data.prepare.run import run

    read: Callable[..., Cohort] = find_reader(arguments.dataset)
    given = given_pictures(arguments)
    if given and arguments.dataset != "images":
        raise InputError(f"--{next(iter(given))} is for the dataset images only; leave it out.")
    read = functools.partial(read, **given)

    def read_and_split(folder: Path) -> Cohort:
        cohort = read(folder)
        chosen = arguments.validation_share
        return cohort if chosen is None else split_patients(cohort, chosen)

    settings = PrepareSettings(**given_preparation(arguments))
    pixels = arguments.max_pixels * 1_000_000
    return run(read_and_split, arguments.folder, arguments.output, settings, arguments.jobs, pixels)
