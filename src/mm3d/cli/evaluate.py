"""`mm3d evaluate` on the command line."""

import argparse
from pathlib import Path
from typing import Any

from mm3d.cli.options import seed


def add_evaluate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="measure predictions against a cohort, and compare several",
        description="Measure predictions against the truth of a cohort: recall at X false positives per volume (R@X), "
        "AUC, the DBTex score, slice errors, calibration. Several files are compared side by side. docs/evaluation.md "
        "has the rules and the formats.",
    )
    evaluate.add_argument(
        "predictions",
        type=Path,
        nargs="+",
        metavar="PREDICTIONS",
        help="a .csv as in DBTex, or our .json; one per system",
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
        "--at", type=float, action="append", metavar="X", help="false positives per volume; repeat (default: 0.25, 0.5)"
    )
    hits.add_argument("--iou", type=float, metavar="IOU", help="least 2D overlap of a hit (default: 0.25)")
    hits.add_argument(
        "--slice-tolerance",
        type=float,
        metavar="N",
        help="slices either side, where only one slice of a finding is annotated (default: a quarter of the volume's, "
        "as in DBTex)",
    )
    hits.add_argument(
        "--leave-out-benign",
        action="store_true",
        help="leave benign volumes out of recall and false positives, as in the paper's appendix",
    )
    hits.add_argument("--split", metavar="NAME", help="only this part of the cohort, such as test")
    hits.add_argument(
        "--modality", choices=("DBT", "FFDM"), help="where the cohort has both (default: that of the predictions)"
    )
    hits.add_argument(
        "--skip-unknown", action="store_true", help="leave out predictions for volumes that the cohort does not have"
    )
    figures = evaluate.add_argument_group("which figures")
    figures.add_argument(
        "--by",
        action="append",
        metavar="COLUMN",
        help="subgroups: kind, size, position, laterality, split, or an attribute (density, vendor, …); repeat",
    )
    figures.add_argument(
        "--specificity",
        type=float,
        action="append",
        metavar="S",
        help="of breasts, for operating points; repeat (default: 0.8, 0.9)",
    )
    figures.add_argument("--replicates", type=int, metavar="N", help="of the bootstrap over patients (default: 1000)")
    figures.add_argument("--seed", type=seed, metavar="N", default=0, help="of the bootstrap (default: 0)")
    evaluate.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    from mm3d.evaluate.run import run
    from mm3d.evaluate.settings import EvaluateSettings

    given: dict[str, Any] = {
        "rates": arguments.at,
        "iou": arguments.iou,
        "slice_tolerance": arguments.slice_tolerance,
        "specificities": arguments.specificity,
        "by": arguments.by,
        "modality": arguments.modality,
        "split": arguments.split,
        "replicates": arguments.replicates,
    }
    chosen: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None
    }
    settings = EvaluateSettings(
        leave_out_benign=arguments.leave_out_benign,
        skip_unknown=arguments.skip_unknown,
        seed=arguments.seed,
        **chosen,
    )
    return run(arguments.predictions, arguments.truth, arguments.output, settings)
