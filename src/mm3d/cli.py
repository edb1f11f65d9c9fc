"""The command line: names and help. Nothing heavy is imported until a command runs, so that help is immediate.

Exit codes: 0 done, 1 an input failed (the message names it), 2 wrong usage.
"""

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mm3d import __version__
from mm3d.errors import InputError


def _demo(arguments: argparse.Namespace) -> int:
    from mm3d.demo import demo

    demo(seed=arguments.seed)
    return 0


def _info(arguments: argparse.Namespace) -> int:
    from mm3d.info import print_info

    print_info(as_json=arguments.json)
    return 0


def _import_weights(arguments: argparse.Namespace) -> int:
    from mm3d.import_weights import import_weights

    import_weights(arguments.file, arguments.output, overwrite=arguments.overwrite)
    return 0


# Datasets by the names of their readers in mm3d.cohorts; "folder" is any folder of DICOM exams.
DATASETS = ("bcs-dbt", "vindr", "cbis-ddsm", "embed", "cmmd", "rsna", "inbreast", "tables", "folder")


# Options that say how views are prepared, by the names they have in PrepareSettings.
PREPARATION = ("width", "length", "slices", "intensity")


def _prepare(arguments: argparse.Namespace) -> int:
    from mm3d.prepare.run import run
    from mm3d.prepare.settings import PrepareSettings

    reader = importlib.import_module(f"mm3d.cohorts.{arguments.dataset.replace('-', '_')}")
    settings = PrepareSettings(**{name: getattr(arguments, name) for name in PREPARATION})
    return run(reader.read, arguments.folder, arguments.output, settings, arguments.jobs)


# Options of `phantom` that are settings of the trial, by the names they have there.
TRIAL = ("breasts", "seed", "scale", "system", "malignant", "benign")


def _phantom(arguments: argparse.Namespace) -> int:
    from mm3d.phantom.run import PREPARED, run

    given = {name: value for name in PREPARATION if (value := getattr(arguments, name)) is not None}
    if given and arguments.format == "dicom":
        raise InputError(f"--{next(iter(given))} is for --format prepared; DICOM files hold the images as they are.")
    settings = dataclasses.replace(PREPARED[arguments.scale], **given) if arguments.format == "prepared" else None

    from mm3d.phantom.trial import Trial, render_breast

    trial = Trial(**{name: getattr(arguments, name) for name in TRIAL})
    if arguments.audit:
        from mm3d.phantom.audit_page import audit

        return audit(trial, arguments.output, arguments.jobs)
    return run(render_breast, trial, arguments.output, settings, arguments.jobs)


# Threads that wait must sleep: where another program has one of the cores, threads that spin took 40 times as long.
# Large tensors in large pages: with small ones, a fifth of a full-size backbone's time went into getting memory.
FOR_TORCH = {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1"}


def _train(arguments: argparse.Namespace) -> int:
    os.environ.update(FOR_TORCH | os.environ)  # before torch is imported
    from mm3d.train.run import run

    return run(
        arguments.config, arguments.output, arguments.settings, arguments.start, arguments.devices, arguments.resume
    )


def _predict(arguments: argparse.Namespace) -> int:
    os.environ.update(FOR_TORCH | os.environ)
    from mm3d.predict.detect import PredictSettings
    from mm3d.predict.run import run

    settings = PredictSettings(nms=arguments.nms, scores=arguments.scores, join=arguments.join)
    return run(
        arguments.folder,
        arguments.output,
        arguments.weights,
        arguments.input,
        arguments.split,
        settings,
        arguments.engine,
    )


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


def _view(arguments: argparse.Namespace) -> int:
    from mm3d.report.serve import view

    return view(arguments.folder, arguments.port, browser=not arguments.no_browser)


def _seed(text: str) -> int:
    return _within(int, text, 0, 2**32 - 1)


def _whole_number(text: str) -> int:
    return _within(int, text, 1, 2**31)


def _share(text: str) -> float:
    return _within(float, text, 0, 1)


N = TypeVar("N", int, float)


def _within(kind: Callable[[str], N], text: str, low: float, high: float) -> N:
    try:
        number = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' * (kind is int)}number") from None
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(f"{text} is not between {low} and {high}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mm3d",
        description="Breast cancer detection in digital breast tomosynthesis with M&M-3D. "
        "For research, not for clinical use.",
    )
    parser.add_argument("--version", action="version", version=f"mm3d {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo",
        help="run an untrained model on a random two-view volume and explain its output",
        description="Build a small untrained detector, run it on a random two-view volume, explain what comes out.",
    )
    demo.add_argument(
        "--seed",
        type=_seed,
        metavar="N",
        default=0,
        help="of the random volume and weights (default: 0)",
    )
    demo.set_defaults(run=_demo)

    info = commands.add_parser(
        "info",
        help="versions, device, threads, shipped weights",
        description="Print the versions, the device and threads that will be used, and the shipped weights.",
    )
    info.add_argument("--json", action="store_true", help="print JSON, for programs")
    info.set_defaults(run=_info)

    prepare = commands.add_parser(
        "prepare",
        help="read a downloaded dataset or a folder of DICOM exams and write prepared views",
        description="Read a dataset as it was downloaded, check it, and write prepared views: cropped to the breast, "
        "chest wall on the left, resized, volumes max-pooled in depth. A second run does only what is missing. Exit "
        "code 1: some views failed (see OUT/problems.csv), or nothing could be done. docs/data.md has the datasets.",
    )
    prepare.add_argument("dataset", choices=DATASETS, metavar="DATASET", help=", ".join(DATASETS))
    prepare.add_argument("folder", type=Path, metavar="FOLDER", help="the dataset as it was downloaded, or your exams")
    prepare.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the folder to write")
    _add_preparation(prepare)
    prepare.add_argument("--jobs", type=int, help="worker processes (default: one for each core)")
    prepare.set_defaults(run=_prepare)

    _add_phantom(commands)
    _add_train(commands)
    _add_predict(commands)
    _add_evaluate(commands)

    view = commands.add_parser(
        "view",
        help="open the reports of a folder in a browser",
        description="Show the reports that 'mm3d predict' wrote in a browser, until Ctrl-C. Only this computer can "
        "reach them, and only by the address that is printed. docs/report.md explains what they show.",
    )
    view.add_argument("folder", type=Path, metavar="OUT", help="the folder that 'mm3d predict' wrote")
    view.add_argument("--no-browser", action="store_true", help="only print the address")
    view.add_argument("--port", type=int, default=0, metavar="N", help="of the address (default: one that is free)")
    view.set_defaults(run=_view)

    importer = commands.add_parser(
        "import-weights",
        help="turn a public Sparse R-CNN checkpoint into start weights",
        description="Turn a public Sparse R-CNN checkpoint (detectron2, mmdetection, or PVT with PVTv2-Li; .pth "
        "or .safetensors) into start weights for mm3d, and print what was loaded, what is new and what was dropped.",
    )
    importer.add_argument("file", type=Path, metavar="FILE", help="the downloaded checkpoint")
    importer.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT", help="the .safetensors to write; its folder is made"
    )
    importer.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    importer.set_defaults(run=_import_weights)
    return parser


def _add_preparation(parser: argparse._ActionsContainer, by_scale: bool = False) -> None:
    """The options of PREPARATION. With `by_scale`, one that the user does not give is None: the scale decides."""
    for name, value, text in (
        ("width", 1100, "pixels across, fewer if the length limits"),
        ("length", 2200, "pixels down, at most"),
        ("slices", 16, "slices of a volume, at most"),
    ):
        default = "by the scale" if by_scale else value
        parser.add_argument(
            f"--{name}", type=int, default=None if by_scale else value, help=f"{text} (default: {default})"
        )
    parser.add_argument(
        "--intensity",
        choices=("auto", "window", "percentile"),
        default=None if by_scale else "auto",
        help="black and white by the file's display window or by percentiles in the breast; auto (default): the window "
        "where there is one, unless the image is For Processing",
    )


def _add_phantom(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    phantom = commands.add_parser(
        "phantom",
        help="make a virtual clinical trial: synthetic breasts as mammograms and tomosynthesis, with the truth",
        description="Make synthetic breasts, each with CC and MLO as mammogram and as tomosynthesis, labels and boxes. "
        "Same options, same bytes. A killed run continues; more --breasts extend the trial. "
        "'mm3d prepare tables OUT' reads it like any download. docs/data.md has more.",
    )
    phantom.add_argument("output", type=Path, metavar="OUT", help="the folder to write; new, or of the same trial")
    trial = phantom.add_argument_group("the trial")
    trial.add_argument("--breasts", type=_whole_number, default=100, metavar="N", help="how many (default: 100)")
    trial.add_argument("--seed", type=_seed, default=0, metavar="N", help="another seed, other breasts (default: 0)")
    trial.add_argument(
        "--scale",
        choices=("tiny", "mini", "full"),
        default="mini",
        help="size of the images: tiny for tests, mini (default) for training on CPUs, full as a scanner's",
    )
    trial.add_argument(
        "--system",
        choices=("hologic", "siemens", "ge", "mixed"),
        default="hologic",
        help="whose arc and reconstruction (default: hologic); mixed: each breast one of the three",
    )
    trial.add_argument(
        "--malignant",
        type=_share,
        default=0.4,
        metavar="P",
        help="probability of cancer in a breast (default: 0.4)",
    )
    trial.add_argument(
        "--benign",
        type=_share,
        default=0.3,
        metavar="P",
        help="probability of benign findings only; the rest has none (default: 0.3)",
    )
    written = phantom.add_argument_group("what is written")
    written.add_argument(
        "--format",
        choices=("dicom", "prepared"),
        default="dicom",
        help="DICOM files with tables (default), or at once what 'mm3d prepare' makes of those, with its options:",
    )
    _add_preparation(written, by_scale=True)
    phantom.add_argument(
        "--audit",
        action="store_true",
        help="write no breasts, but measure them against published figures: a table, audit.json, audit.png, and "
        "montage.png to look at; "
        "exit code 1 if a gate fails",
    )
    phantom.add_argument("--jobs", type=int, help="worker processes (default: one for each core)")
    phantom.set_defaults(run=_phantom)


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    train = commands.add_parser(
        "train",
        help="train a detector on prepared breasts, from scratch or from other weights",
        description="Train as a configuration says; settings on the command line go over it: --optimiser.learning_rate "
        "1e-4, --data.train.0.folder prepared/. Ctrl-C or a crash loses a few minutes at most: the same command with "
        "--resume continues. Under torchrun: torchrun … -m mm3d train …. docs/training.md has all settings.",
        allow_abbrev=False,
    )
    train.add_argument("config", type=Path, metavar="CONFIG", help="a .toml, or the config.json of a run folder")
    train.add_argument("--start", metavar="WEIGHTS", help="weights file or run folder to start from; random; or dense")
    train.add_argument("--resume", action="store_true", help="continue the run in OUT, if there is one")
    train.add_argument("--devices", type=_whole_number, metavar="N", help="GPUs, or processes on CPUs (default: 1)")
    train.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="the run folder (default: runs/ and the name of CONFIG)"
    )
    train.set_defaults(run=_train, settings=[])


def _add_predict(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    predict = commands.add_parser(
        "predict",
        help="find cancers in prepared breasts with trained weights",
        description="Run trained weights on the breasts of a prepared folder. Writes predictions.json and "
        "predictions.csv, in the format of DBTex, which 'mm3d evaluate' reads.",
    )
    predict.add_argument("folder", type=Path, metavar="FOLDER", help="a prepared folder")
    predict.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the folder to write")
    predict.add_argument("--weights", type=Path, required=True, metavar="WEIGHTS", help="a weights file or run folder")
    predict.add_argument(
        "--input",
        choices=("volume", "slices", "mip", "hm", "msp", "ffdm"),
        help="what the model is given of each view (default: what it was trained with)",
    )
    predict.add_argument("--split", metavar="NAME", help="only this part of the cohort, such as test")
    predict.add_argument(
        "--engine",
        choices=("torch", "openvino"),
        default="torch",
        help="what runs the backbone (default: torch); openvino, the extra mm3d[openvino], is faster on CPUs",
    )
    predict.add_argument(
        "--nms", type=_share, default=0.3, metavar="IOU", help="show proposals that overlap more once (default: 0.3)"
    )
    predict.add_argument(
        "--scores",
        choices=("model", "max"),
        default="model",
        help="of views and breasts: the model's noisy-or and mean (default), or the highest proposal's",
    )
    predict.add_argument(
        "--join",
        choices=("best", "union"),
        default="best",
        help="for --input slices: of boxes in one place the best counts (default), or they become their union in 3D",
    )
    predict.set_defaults(run=_predict)


def _add_evaluate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
    figures.add_argument("--seed", type=_seed, metavar="N", default=0, help="of the bootstrap (default: 0)")
    evaluate.set_defaults(run=_evaluate)


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments, others = parser.parse_known_args(argv)
    if hasattr(arguments, "settings"):  # of `train`: --section.key value
        arguments.settings = others
    elif others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    try:
        return arguments.run(arguments)
    except InputError as error:
        print(f"mm3d: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"mm3d: {error.filename or 'a file'} cannot be used ({error.strerror}); see to it, and try again.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("mm3d: interrupted.", file=sys.stderr)
        return 130
