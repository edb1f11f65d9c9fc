"""`mm3d evaluate` on the command line."""

import argparse
from pathlib import Path
from typing import Any

from mm3d.cli.options import Commands, seed


def add_evaluate(commands: Commands) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="measure predictions against a cohort, and compare several",
        description="Measure predictions against the truth of a cohort: recall at X false positives per volume (R@X), "
        "AUC, the DBTex score, slice errors, calibration. Several files are compared side by side. docs/evaluation.md "
        "has the rules and the formats.",
        argument_default=argparse.SUPPRESS,  # the defaults are those of EvaluateSettings
    )
    evaluate.add_argument(
        "predictions",
        type=Path,
        nargs="+",
        metavar="PREDICTIONS",
        help="a .csv as in DBTex, or our .json; one for each system",
    )
    evaluate.add_argument(
        "--truth",
        type=Path,
        required=True,
        metavar="COHORT",
        help="a prepared folder, a folder of our tables, or one with the tables of BCS-DBT; images are not needed",
    )
    evaluate.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT", help="the folder to write; its files are replaced"
    )
    hits = evaluate.add_argument_group("what counts")
    hits.add_argument(
        "--at",
        type=float,
        action="append",
        dest="rates",
        metavar="X",
        help="allowed false positives per volume; may be repeated (default: 0.25 and 0.5)",
    )
    hits.add_argument("--iou", type=float, metavar="IOU", help="the smallest 2D overlap of a hit (default: 0.25)")
    hits.add_argument(
        "--slice-tolerance",
        type=float,
        metavar="N",
        help="slices on either side that count, where only one slice is annotated (default: a quarter of the volume's "
        "slices, as in DBTex)",
    )
    hits.add_argument(
        "--leave-out-benign",
        action="store_true",
        help="leave benign volumes out of recall and false positives, as in the paper's appendix",
    )
    hits.add_argument("--split", metavar="NAME", help="use only this part of the cohort, such as test (default: all)")
    hits.add_argument(
        "--modality",
        choices=("DBT", "FFDM"),
        help="which to use of a cohort that has both (default: that of the predictions)",
    )
    hits.add_argument(
        "--skip-unknown", action="store_true", help="leave out predictions for volumes that the cohort does not have"
    )
    metrics = evaluate.add_argument_group("which metrics")
    metrics.add_argument(
        "--by",
        action="append",
        metavar="COLUMN",
        help="also measure subgroups by kind, size, position, laterality, split, or an attribute of the cohort such as "
        "density or vendor; may be repeated",
    )
    metrics.add_argument(
        "--specificity",
        type=float,
        action="append",
        dest="specificities",
        metavar="S",
        help="specificity of breasts that an operating point is chosen for; may be repeated (default: 0.8 and 0.9)",
    )
    metrics.add_argument(
        "--replicates", type=int, metavar="N", help="replicates of the bootstrap over patients (default: 1000)"
    )
    metrics.add_argument("--seed", type=seed, metavar="N", help="seed of the bootstrap (default: 0)")
    evaluate.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    from mm3d.evaluate.match import EvaluateSettings
    from mm3d.evaluate.run import run

    settings: dict[str, Any] = {}
    for name, value in vars(arguments).items():
        if name not in ("run", "predictions", "truth", "output"):
            settings[name] = tuple(value) if isinstance(value, list) else value
    return run(arguments.predictions, arguments.truth, arguments.output, EvaluateSettings(**settings))
