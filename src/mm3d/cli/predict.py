"""`mm3d predict` on the command line."""

import argparse
import os
import time
from pathlib import Path

from mm3d.cli.options import FOR_TORCH, PREPARATION, add_preparation, share, whole_number


def add_predict(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    predict = commands.add_parser(
        "predict",
        help="find cancers in DICOM exams, with a report to look at and DICOM results; or in a prepared folder",
        description="Find the exams in DICOM files, folders or a whole archive, and write for each predictions.json, "
        "predictions.csv (as in DBTex), report.html, sr/*.dcm and run.json: into OUT if there is one exam, otherwise "
        "into a folder of OUT for each. A second run does only what is missing. Exit code 1: something could not be "
        "read. No names or numbers of patients are written but in sr/*.dcm. Of a prepared folder, only predictions are "
        "written. For research, not for clinical use; docs/predict.md has more.",
    )
    predict.add_argument(
        "exams", type=Path, nargs="+", metavar="EXAM", help="DICOM files or folders of them; or one prepared folder"
    )
    predict.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the folder to write")
    predict.add_argument(
        "--weights",
        type=Path,
        metavar="WEIGHTS",
        help="a weights file or run folder; or those that come with mm3d: dbt (default), ffdm",
    )
    predict.add_argument(
        "--input",
        choices=("volume", "slices", "mip", "hm", "msp", "ffdm"),
        help="what the model is given of each view (default: what it was trained with)",
    )
    predict.add_argument(
        "--engine",
        choices=("torch", "openvino"),
        default="torch",
        help="what runs the backbone (default: torch); openvino, the extra mm3d[openvino], is faster on CPUs",
    )
    _add_exams(predict.add_argument_group("DICOM exams"))
    predict.add_argument_group("prepared folders").add_argument(
        "--split", metavar="NAME", help="only this part of the cohort, such as test"
    )
    _add_rules(predict.add_argument_group("from the model's output to findings"))
    predict.set_defaults(run=_predict)


def _add_exams(exams: argparse._ArgumentGroup) -> None:
    point = exams.add_mutually_exclusive_group()
    point.add_argument(
        "--threshold",
        type=share,
        metavar="T",
        help="mark findings that score at least this (default: the weights' operating point, or 0.5)",
    )
    point.add_argument(
        "--operating-point",
        metavar="FILE[:NAME]",
        help="take it from a metrics.json of 'mm3d evaluate'; NAME: such as 2D@0.25 (default: the first)",
    )
    exams.add_argument(
        "--with-identifiers",
        action="store_true",
        help="write names and numbers of patients into reports and predictions, and names of files into messages",
    )
    add_preparation(exams, by="the weights")
    exams.add_argument("--jobs", type=int, help="worker processes that read images (default: one for each core)")


def _add_rules(rules: argparse._ArgumentGroup) -> None:
    rules.add_argument(
        "--nms", type=share, default=0.3, metavar="IOU", help="show proposals that overlap more once (default: 0.3)"
    )
    rules.add_argument(
        "--scores",
        choices=("model", "max"),
        default="model",
        help="of views and breasts: the model's noisy-or and mean (default), or the highest proposal's",
    )
    rules.add_argument(
        "--join",
        choices=("best", "union"),
        default="best",
        help="for --input slices: of boxes in one place the best counts (default), or they become their union in 3D",
    )
    rules.add_argument(
        "--chunk",
        type=whole_number,
        metavar="N",
        help="slices through the backbone at a time (default: by the weights); fewer need less memory",
    )


def _predict(arguments: argparse.Namespace) -> int:
    began = time.perf_counter()
    os.environ.update(FOR_TORCH | os.environ)  # before torch is imported
    from mm3d.predict.detect import PredictSettings
    from mm3d.predict.run import run
    from mm3d.predict.setup import Options

    options = Options(
        settings=PredictSettings(nms=arguments.nms, scores=arguments.scores, join=arguments.join),
        weights=arguments.weights,
        input=arguments.input,
        chunk=arguments.chunk,
        engine=arguments.engine,
        split=arguments.split,
        threshold=arguments.threshold,
        operating_point=arguments.operating_point,
        identifiers=arguments.with_identifiers,
        preparation={name: value for name in PREPARATION if (value := getattr(arguments, name)) is not None} or None,
        jobs=arguments.jobs,
    )
    return run(arguments.exams, arguments.output, options, began)
