"""The command line: names and help. Nothing heavy is imported until a command runs, so that help is immediate.

Exit codes: 0 done, 1 an input failed (the message names it), 2 wrong usage.
"""

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mm3d import __version__
from mm3d.cli.evaluate import add_evaluate
from mm3d.cli.options import FOR_TORCH, PREPARATION, add_preparation, seed, share, whole_number
from mm3d.cli.predict import add_predict
from mm3d.cli.study import add_study
from mm3d.shared.errors import InputError


def _demo(arguments: argparse.Namespace) -> int:
    os.environ.update(FOR_TORCH | os.environ)  # before torch is imported
    from mm3d.cli.demo import demo

    return demo(arguments.output, arguments.seed, arguments.weights)


def _info(arguments: argparse.Namespace) -> int:
    from mm3d.cli.info import print_info

    print_info(as_json=arguments.json)
    return 0


def _import_weights(arguments: argparse.Namespace) -> int:
    from mm3d.cli.import_weights import import_weights

    import_weights(arguments.file, arguments.output, overwrite=arguments.overwrite)
    return 0


SEED = 2028  # of the demo's exam: of ten seeds the one whose cancer is found in both views (shipped/README.md)

# Datasets by the names of their readers in mm3d.data.datasets; "folder" is any folder of DICOM exams.
DATASETS = ("bcs-dbt", "vindr", "cbis-ddsm", "embed", "cmmd", "rsna", "inbreast", "tables", "folder")


def _prepare(arguments: argparse.Namespace) -> int:
    from mm3d.data.prepare.run import run
    from mm3d.data.prepare.settings import PrepareSettings

    reader = importlib.import_module(f"mm3d.data.datasets.{arguments.dataset.replace('-', '_')}")
    settings = PrepareSettings(**{name: getattr(arguments, name) for name in PREPARATION})
    return run(reader.read, arguments.folder, arguments.output, settings, arguments.jobs)


# Options of `phantom` that are settings of the trial, by the names they have there.
TRIAL = ("breasts", "seed", "scale", "system", "malignant", "benign", "contrast")


def _phantom(arguments: argparse.Namespace) -> int:
    from mm3d.phantom.run import PREPARED, run

    given = {name: value for name in PREPARATION if (value := getattr(arguments, name)) is not None}
    if given and arguments.format == "dicom":
        raise InputError(f"--{next(iter(given))} is for --format prepared only: DICOM files hold the images unchanged.")
    settings = dataclasses.replace(PREPARED[arguments.scale], **given) if arguments.format == "prepared" else None

    from mm3d.phantom.trial import Trial, render_breast

    trial = Trial(**{name: getattr(arguments, name) for name in TRIAL})
    return run(render_breast, trial, arguments.output, settings, arguments.jobs)


def _train(arguments: argparse.Namespace) -> int:
    os.environ.update(FOR_TORCH | os.environ)  # before torch is imported
    from mm3d.train.run import run

    return run(
        arguments.config, arguments.output, arguments.settings, arguments.start, arguments.devices, arguments.resume
    )


def _view(arguments: argparse.Namespace) -> int:
    from mm3d.output.report.serve import view

    return view(arguments.folder, arguments.port, browser=not arguments.no_browser)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mm3d",
        description="Breast cancer detection in digital breast tomosynthesis with M&M-3D. "
        "For research, not for clinical use.",
    )
    parser.add_argument("--version", action="version", version=f"mm3d {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    _add_demo(commands)
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
    add_preparation(prepare)
    prepare.add_argument("--jobs", type=int, help="worker processes (default: one for each core)")
    prepare.set_defaults(run=_prepare)

    _add_phantom(commands)
    _add_train(commands)
    add_predict(commands)
    add_evaluate(commands)
    add_study(commands)

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


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    demo = commands.add_parser(
        "demo",
        help="make a synthetic exam with a cancer, predict it, and write all that 'mm3d predict' does",
        description="Make a synthetic tomosynthesis exam of four views with a cancer, as DICOM files, and predict it: "
        "OUT/report.html to look at, OUT/sr/*.dcm, OUT/predictions.csv, OUT/run.json. The last lines say of "
        "each cancer whether it was found. Of what is in OUT, only an earlier demo is written over.",
    )
    demo.add_argument(
        "-o", "--output", type=Path, default=Path("demo"), metavar="OUT", help="the folder to write (default: demo)"
    )
    demo.add_argument("--seed", type=seed, metavar="N", default=SEED, help=f"another seed, another exam ({SEED})")
    demo.add_argument(
        "--weights", type=Path, metavar="WEIGHTS", help="a file, run folder, or ours: dbt (default), ffdm"
    )
    demo.set_defaults(run=_demo)


def _add_phantom(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    phantom = commands.add_parser(
        "phantom",
        help="make a virtual clinical trial: synthetic breasts as mammograms and tomosynthesis, with the truth",
        description="Make synthetic breasts with labels and boxes. Each has a mammogram and a tomosynthesis volume of "
        "CC and of MLO. The same options give the same bytes. If a run was killed, the same command continues it. The "
        "same command with more --breasts extends the trial. 'mm3d prepare tables OUT' reads the result like a "
        "download. See docs/phantom.md.",
    )
    phantom.add_argument(
        "output", type=Path, metavar="OUT", help="the folder to write: a new one, or one of the same trial"
    )
    trial = phantom.add_argument_group("the trial")
    trial.add_argument(
        "--breasts", type=whole_number, default=100, metavar="N", help="number of breasts (default: 100)"
    )
    trial.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="another seed gives other breasts (default: 0)"
    )
    trial.add_argument(
        "--scale",
        choices=("tiny", "mini", "full"),
        default="mini",
        help="size of the images: tiny is for tests, mini (default) for training on CPUs, full as from a scanner",
    )
    trial.add_argument(
        "--system",
        choices=("hologic", "siemens", "ge", "mixed"),
        default="hologic",
        help="vendor of the tomosynthesis system (default: hologic); mixed draws one for each patient",
    )
    trial.add_argument(
        "--malignant",
        type=share,
        default=0.4,
        metavar="P",
        help="probability that a breast has cancer (default: 0.4)",
    )
    trial.add_argument(
        "--benign",
        type=share,
        default=0.3,
        metavar="P",
        help="probability that a breast has benign findings only (default: 0.3)",
    )
    trial.add_argument(
        "--contrast",
        type=float,
        default=1.0,
        metavar="K",
        help="contrast of findings against fat; 1 (default) is realistic, higher is easier",
    )
    written = phantom.add_argument_group("output")
    written.add_argument(
        "--format",
        choices=("dicom", "prepared"),
        default="dicom",
        help="DICOM files with tables (default), or prepared views as 'mm3d prepare' makes them of those; "
        "the options below are for prepared",
    )
    add_preparation(written, by="the scale")
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
    train.add_argument(
        "--start", metavar="WEIGHTS", help="weights file or run folder to start from; ffdm for ours; random; or dense"
    )
    train.add_argument("--resume", action="store_true", help="continue the run in OUT, if there is one")
    train.add_argument("--devices", type=whole_number, metavar="N", help="GPUs, or processes on CPUs (default: 1)")
    train.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="the run folder (default: runs/ and the name of CONFIG)"
    )
    train.set_defaults(run=_train, settings=[])


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
