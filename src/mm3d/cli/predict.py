"""`mm3d predict` on the command line."""

import argparse
import time
from pathlib import Path

from mm3d.cli.options import (
    PREPARATION,
    Commands,
    add_max_pixels,
    add_pictures,
    add_preparation,
    given_pictures,
    share,
    whole_number,
)


def add_predict(commands: Commands) -> None:
    predict = commands.add_parser(
        "predict",
        help="find cancers in DICOM exams or in a prepared folder, and write reports",
        description="Find the exams in DICOM files, folders or a whole archive. For each exam, write predictions.json, "
        "predictions.csv (as in DBTex), report.html, sr/*.dcm and run.json: into OUT if there is one exam, otherwise "
        "into a folder of OUT for each exam. A second run predicts only what is missing. Exit code 1 means that "
        "something could not be read. Names and numbers of patients are written to sr/*.dcm only. For a prepared "
        "folder, only predictions are written. For research, not for clinical use; docs/predict.md has more.",
    )
    predict.add_argument(
        "exams",
        type=Path,
        nargs="+",
        metavar="EXAM",
        help="DICOM files, folders of them, one prepared folder, or pictures or arrays",
    )
    predict.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the folder to write")
    predict.add_argument(
        "--weights",
        type=Path,
        metavar="WEIGHTS",
        help="a weights file, a run folder, or weights that come with mm3d: mammo (default for "
        "real breasts), dbt (default for synthetic ones), ffdm",
    )
    predict.add_argument(
        "--input",
        choices=("volume", "slices", "mip", "hm", "msp", "ffdm"),
        help="what the model is given of each view (default: what it was trained with)",
    )
    predict.add_argument(
        "--engine",
        choices=("torch", "openvino"),
        help="what runs the backbone; openvino is faster on CPUs and needs the extra mm3d[openvino] (default: torch, "
        "but openvino for int8 weights)",
    )
    predict.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu", "mps"),
        default="auto",
        help="where the model runs; auto is cuda (a GPU of NVIDIA) if there is one, else cpu; mps is a GPU of Apple",
    )
    predict.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="what the network computes in; auto is float32; bfloat16 takes about half the time with large "
        "models on processors that have it, and changes scores by up to about 0.02",
    )
    _add_exams(predict.add_argument_group("DICOM exams"))
    add_pictures(predict.add_argument_group("pictures and arrays, such as PNG or NIfTI, instead of DICOM"), "EXAM")
    predict.add_argument_group("prepared folders").add_argument(
        "--split", metavar="NAME", help="predict only this part of the cohort, such as test"
    )
    _add_rules(predict.add_argument_group("from the model's output to findings"))
    predict.set_defaults(run=_predict)


def _add_exams(exams: argparse._ArgumentGroup) -> None:
    point = exams.add_mutually_exclusive_group()
    point.add_argument(
        "--threshold",
        type=share,
        metavar="T",
        help="mark findings that score at least this (default: the operating point of the weights, or 0.5)",
    )
    point.add_argument(
        "--operating-point",
        metavar="FILE[:NAME]",
        help="take the threshold from a metrics.json of 'mm3d evaluate'; NAME is one of its operating points, such as "
        "2D@0.25 (default: the first); mm3d does not check that the file belongs to these weights",
    )
    exams.add_argument(
        "--with-identifiers",
        action="store_true",
        help="write names and numbers of patients into reports and predictions, and names of files into messages",
    )
    add_preparation(exams, by="the weights")
    exams.add_argument("--jobs", type=int, help="number of processes that read images (default: one per core)")
    add_max_pixels(exams)


def _add_rules(rules: argparse._ArgumentGroup) -> None:
    rules.add_argument(
        "--nms",
        type=share,
        default=0.3,
        metavar="IOU",
        help="keep only the best of proposals whose IoU exceeds this",
    )
    rules.add_argument(
        "--scores",
        choices=("model", "max"),
        default="model",
        help="how views and breasts are scored: by the model's noisy-or and mean, or by the highest proposal",
    )
    rules.add_argument(
        "--join",
        choices=("best", "union"),
        default="best",
        help="for --input slices: keep the best of overlapping boxes, or unite boxes that overlap in 3D",
    )
    rules.add_argument(
        "--chunk",
        type=whole_number,
        metavar="N",
        help="slices that go through the backbone together (default: from the weights); fewer need less memory",
    )


def _predict(arguments: argparse.Namespace) -> int:
    began = time.perf_counter()
    from mm3d.predict.pictures import PictureOptions
    from mm3d.predict.run import Options, run
    from mm3d.predict.settings import PredictSettings

    options = Options(
        settings=PredictSettings(nms=arguments.nms, scores=arguments.scores, join=arguments.join),
        weights=arguments.weights,
        input=arguments.input,
        chunk=arguments.chunk,
        engine=arguments.engine,
        precision=arguments.precision,
        device=arguments.device,
        split=arguments.split,
        threshold=arguments.threshold,
        operating_point=arguments.operating_point,
        identifiers=arguments.with_identifiers,
        preparation={name: value for name in PREPARATION if (value := getattr(arguments, name)) is not None} or None,
        jobs=arguments.jobs,
        max_pixels=arguments.max_pixels * 1_000_000,
        pictures=PictureOptions(**given_pictures(arguments)),
    )
    return run(arguments.exams, arguments.output, options, began)
