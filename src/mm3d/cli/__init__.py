"""The command line: commands, options and help. A command imports its room only when it runs, so that help is fast.

Exit codes: 0 done, 1 an input failed (the message names it), 2 wrong usage, 130 interrupted.
"""

import argparse
import dataclasses
import functools
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mm3d import __version__
from mm3d.cli.evaluate import add_evaluate
from mm3d.cli.options import Commands, add_preparation, given_preparation, seed, share, whole_number
from mm3d.cli.predict import add_predict
from mm3d.cli.prepare import add_prepare
from mm3d.cli.study import add_study
from mm3d.shared.environment import prepare_torch
from mm3d.shared.errors import InputError, describe_error
from mm3d.shared.printable import printable

DEMO_SEED = 2028  # of ten seeds, the one whose cancer is found in both views (shipped/README.md)
# Options of `phantom` that are settings of the trial, by the names they have there.
TRIAL = ("breasts", "seed", "scale", "system", "malignant", "benign", "contrast")
OF_FILE = ("position", "laterality")  # and those of a trial of --anatomy
BREASTS = 100  # of a trial, unless the user says how many


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. An InputError becomes a sentence on stderr, without a traceback."""
    parser = make_parser()
    arguments, others = parser.parse_known_args(argv)
    if hasattr(arguments, "overrides"):  # of `train`: --section.key value
        arguments.overrides = others
    elif others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    prepare_torch()  # before the command imports torch
    try:
        return arguments.run(arguments)
    except (InputError, OSError) as error:
        print(f"mm3d: {printable(describe_error(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mm3d: interrupted.", file=sys.stderr)
        return 130


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of every option that takes a value and has a default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        no_value = action.default is None or isinstance(action.default, bool)
        return action.help if no_value else super()._get_help_string(action)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mm3d",
        description="Detect breast cancer in digital breast tomosynthesis with M&M-3D. For research, not for clinical "
        "use. Start with 'mm3d demo'. 'mm3d COMMAND --help' explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"mm3d {__version__}")
    command: Any = functools.partial(argparse.ArgumentParser, formatter_class=HelpFormatter)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=command)
    _add_demo(commands)
    add_predict(commands)
    _add_node(commands)
    _add_view(commands)
    add_prepare(commands)
    _add_phantom(commands)
    _add_import_weights(commands)
    _add_quantize(commands)
    _add_publish(commands)
    _add_train(commands)
    add_evaluate(commands)
    _add_convert(commands)
    add_study(commands)
    _add_info(commands)
    return parser


def _call(function: str) -> Callable[[argparse.Namespace], int]:
    """What runs a command: the function, whose module is imported only then, with the options as arguments."""

    def run(arguments: argparse.Namespace) -> int:
        options = {name: value for name, value in vars(arguments).items() if name != "run"}
        return pkgutil.resolve_name(function)(**options) or 0

    return run


def _add_demo(commands: Commands) -> None:
    demo = commands.add_parser(
        "demo",
        help="try mm3d on a synthetic exam with a cancer",
        description="Make a synthetic tomosynthesis exam, with four views and a cancer, as DICOM files in OUT/exam. "
        "Then run the detector on it, as 'mm3d predict' does. Open OUT/report.html in a browser; the other results are "
        "for programs. The last lines that are printed say for each cancer whether it was found. In OUT, nothing but "
        "an earlier demo is replaced.",
    )
    demo.add_argument("-o", "--output", type=Path, default=Path("demo"), metavar="OUT", help="the folder to write")
    demo.add_argument("--seed", type=seed, metavar="N", default=DEMO_SEED, help="another seed gives another exam")
    weights = (
        "a weights file, the folder of a training, or weights that come with mm3d: dbt, ffdm, mammo (default: dbt "
    )
    weights += "for the synthetic exam; then also mammo for real films)"
    demo.add_argument("--weights", type=Path, metavar="WEIGHTS", help=weights)
    demo.set_defaults(run=_call("mm3d.cli.demo:demo"))


def _add_node(commands: Commands) -> None:
    node = commands.add_parser(
        "node",
        help="receive exams from an archive (PACS), predict them, and send the results back",
        description="Receive exams by DICOM C-STORE or ask an archive for them through DICOMweb, predict each as 'mm3d "
        "predict' does when no more images of it come, and send the results to the destinations of the configuration. "
        "Nothing received is lost when the node or the computer ends: the next start goes on. Needs the extra "
        "mm3d[node]. For research, not for clinical use; docs/node.md lists all settings.",
    )
    node.add_argument("--config", type=Path, required=True, metavar="FILE", help="the settings, a .toml file")
    status = "only print what waits, what was done and what failed; also while the node runs"
    node.add_argument("--status", action="store_true", help=status)
    node.set_defaults(run=_call("mm3d.node.run:run"))


def _add_view(commands: Commands) -> None:
    view = commands.add_parser(
        "view",
        help="open the reports of a folder in a browser",
        description="Show the reports that 'mm3d predict' or 'mm3d demo' wrote in a browser, until Ctrl-C. They can be "
        "opened only on this computer, and only with the address that is printed. docs/report.md explains the reports.",
    )
    view.add_argument("folder", type=Path, metavar="OUT", help="the folder of the results")
    view.add_argument("--no-browser", action="store_false", dest="browser", help="only print the address")
    view.add_argument("--port", type=int, default=0, metavar="N", help="port of the address; 0 is any free one")
    view.set_defaults(run=_call("mm3d.output.report.serve:view"))


def _add_phantom(commands: Commands) -> None:
    phantom = commands.add_parser(
        "phantom",
        help="make a virtual clinical trial: mammograms and tomosynthesis of synthetic breasts, with annotations",
        description="Make synthetic breasts with labels, and with boxes around their findings. Each breast has a "
        "mammogram and a tomosynthesis volume in each of two views, CC and MLO. The same options give the same bytes. "
        "If a run was killed, the same command continues it. With more --breasts, it extends the trial. 'mm3d prepare "
        "tables OUT' reads the result like a download. docs/phantom.md has more.",
    )
    phantom.add_argument(
        "output", type=Path, metavar="OUT", help="the folder to write: new, empty, or of the same trial"
    )
    option = phantom.add_argument_group("the trial").add_argument
    option("--breasts", type=whole_number, metavar="N", help=f"number of breasts (default: {BREASTS})")
    option("--seed", type=seed, default=0, metavar="N", help="another seed gives other breasts")
    sizes = "size of the images: tiny for tests, mini and midi for training on CPUs, full as from a scanner"
    option("--scale", choices=("tiny", "mini", "midi", "full"), default="mini", help=sizes)
    vendors = "vendor of the tomosynthesis system; mixed draws one for each patient"
    option("--system", choices=("hologic", "siemens", "ge", "mixed"), default="hologic", help=vendors)
    malignant = "probability that a breast has cancer (default: 0.4)"
    option("--malignant", type=share, metavar="P", help=malignant)
    benign = "probability that a breast has only benign findings (default: 0.3)"
    option("--benign", type=share, metavar="P", help=benign)
    contrast = "contrast of lesions against fat; 1 is realistic, higher is easier"
    option("--contrast", type=float, default=1.0, metavar="K", help=contrast)
    option = phantom.add_argument_group("a breast that others made, instead of drawn ones").add_argument
    anatomy = "the tissue labels of a compressed breast of VICTRE, with FILE.raw or FILE.raw.gz beside it"
    option("--anatomy", type=Path, metavar="FILE.mhd", help=anatomy)
    option("--position", choices=("CC", "MLO"), help="its view (default: CC)")
    option("--laterality", choices=("L", "R"), help="its side (default: L)")
    written = phantom.add_argument_group("output")
    formats = "DICOM files and tables, or prepared views as of 'mm3d prepare'; only these have the options below"
    written.add_argument("--format", choices=("dicom", "prepared"), default="dicom", help=formats)
    add_preparation(written, by="the scale")
    phantom.add_argument(
        "--jobs", type=int, metavar="N", help="number of worker processes (default: one for each core)"
    )
    phantom.set_defaults(run=_phantom)


def _phantom(arguments: argparse.Namespace) -> int:
    from mm3d.phantom.run import PREPARED, make_trial
    from mm3d.phantom.trial import Trial

    given, settings = given_preparation(arguments), None
    if arguments.format == "prepared":
        settings = dataclasses.replace(PREPARED[arguments.scale], **given)
    elif given:
        raise InputError(f"--{next(iter(given))} is for --format prepared only: DICOM files hold the images unchanged.")
    trial = {name: value for name in TRIAL if (value := getattr(arguments, name)) is not None}
    of_file = {name: value for name in OF_FILE if (value := getattr(arguments, name)) is not None}
    if not arguments.anatomy:
        if of_file:
            raise InputError(f"--{next(iter(of_file))} is for --anatomy only: other breasts have both views and sides.")
        return make_trial(Trial(**{"breasts": BREASTS} | trial), arguments.output, settings, arguments.jobs)
    from mm3d.phantom.victre import VictreTrial, read_victre, render_victre

    if drawn := next((name for name in ("breasts", "malignant", "benign") if name in trial), None):
        raise InputError(f"--{drawn} is for drawn breasts only; leave it out with --anatomy, which is one breast.")
    path, labels = arguments.anatomy, read_victre(arguments.anatomy).hash
    one = VictreTrial(breasts=1, anatomy=path.name, labels=labels, **trial, **of_file)
    render = functools.partial(render_victre, path)
    return make_trial(one, arguments.output, settings, arguments.jobs, render)


def _add_import_weights(commands: Commands) -> None:
    importer = commands.add_parser(
        "import-weights",
        help="turn a public checkpoint into start weights",
        description="Turn a public Sparse R-CNN checkpoint (of detectron2, of mmdetection, or of PVT with PVTv2-Li; "
        ".pth or .safetensors), or an EfficientNet-Lite or Keras' ResNet-50 (model.json) that was trained on ImageNet, "
        "into weights that 'mm3d train --start' takes. Print which weights were loaded, dropped or new. "
        "docs/training.md says where to find backbones.",
    )
    importer.add_argument("source", type=Path, metavar="FILE", help="the downloaded checkpoint")
    output = "the .safetensors file to write"
    importer.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help=output)
    importer.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    importer.set_defaults(run=_call("mm3d.cli.import_weights:import_weights"))


def _add_quantize(commands: Commands) -> None:
    quantize = commands.add_parser(
        "quantize",
        help="make int8 weights, which OpenVINO computes faster, and measure what it costs",
        description="Make weights whose backbone is computed with whole numbers of 8 bits (int8), for 'mm3d predict "
        "--engine openvino'. Then measure recall and AUC of float32 and int8 on the same breasts, and write the file, "
        "which carries this table. Needs the extra mm3d[int8], and a ResNet as backbone. docs/full-size.md has more.",
    )
    weights = "a weights file, a run folder, or weights that come with mm3d: mammo, dbt, ffdm"
    quantize.add_argument("weights", type=Path, metavar="WEIGHTS", help=weights)
    output = "the .safetensors file to write"
    quantize.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help=output)
    quantize.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    option = quantize.add_argument_group("images").add_argument
    calibrate = "a prepared folder whose grey values set the ranges of the whole numbers (default: a virtual trial)"
    option("--calibrate", type=Path, metavar="PREPARED", help=calibrate)
    validate = "a prepared folder to measure on, with other breasts (default: a virtual trial)"
    option("--validate", type=Path, metavar="PREPARED", help=validate)
    option("--split", metavar="NAME", help="measure only on this part of the folder of --validate, such as test")
    option("--breasts", type=whole_number, default=200, metavar="N", help="breasts of the virtual trial to measure on")
    option("--seed", type=seed, default=0, metavar="N", help="seed of the virtual trials")
    contrast = "contrast of the virtual trials; the weights that come with mm3d were trained with 1.7"
    option("--contrast", type=float, default=1.7, metavar="K", help=contrast)
    option("--jobs", type=int, metavar="N", help="number of processes that make virtual trials (default: one per core)")
    quantize.set_defaults(run=_quantize)


def _quantize(arguments: argparse.Namespace) -> int:
    from mm3d.cli.quantize import run

    return run(arguments)


def _add_publish(commands: Commands) -> None:
    publish = commands.add_parser(
        "publish",
        help="write a folder for Hugging Face's hub, with a model card",
        description="Write OUT with the weights, a model card from what their header says, and their settings, in the "
        "layout of Hugging Face's hub. Nothing is sent: 'hf upload OWNER/NAME OUT' does that. Such weights are then "
        "hf://OWNER/NAME wherever mm3d takes weights.",
    )
    publish.add_argument(
        "weights", type=Path, metavar="WEIGHTS", help="a weights file, a run folder, or a shipped name"
    )
    publish.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the folder to write")
    publish.add_argument("--title", metavar="TEXT", help="the title of the card (default: the name of the weights)")
    publish.add_argument("--licence", metavar="ID", help="as the hub names licences, such as apache-2.0 or cc-by-4.0")
    publish.set_defaults(run=_call("mm3d.cli.publish:publish"))


def _add_convert(commands: Commands) -> None:
    convert = commands.add_parser(
        "convert",
        help="write findings as CSV (DBTex), COCO or our JSON",
        description="Read a file of findings, as 'mm3d evaluate' reads it, and write it as another kind. "
        "docs/evaluation.md describes the three.",
    )
    convert.add_argument("predictions", type=Path, metavar="FILE", help="a .csv as in DBTex, our .json, or a COCO file")
    kinds = "the file to write, whose name ends with .csv, .coco.json (COCO) or .json (our own)"
    convert.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help=kinds)
    convert.set_defaults(run=_call("mm3d.cli.convert:convert"))


def _add_train(commands: Commands) -> None:
    train = commands.add_parser(
        "train",
        help="train a detector on prepared breasts",
        description="Train a detector as the file CONFIG says. An option with a dot replaces a setting of the file: "
        "--optimiser.learning_rate 1e-4, --data.train.0.folder prepared/. After Ctrl-C or a crash, the same command "
        "with --resume continues; at most a few minutes are lost. On several machines, use torchrun … -m mm3d train …. "
        "docs/training.md lists all settings.",
        allow_abbrev=False,
    )
    train.add_argument("path", type=Path, metavar="CONFIG", help="a .toml file, or the config.json of a run folder")
    start = (
        "weights to start from: a file, the folder of a training, or ffdm; or random, or dense (default: from CONFIG)"
    )
    train.add_argument("--start", metavar="WEIGHTS", help=start)
    train.add_argument("--resume", action="store_true", help="continue the training in OUT, if there is one")
    devices = "number of GPUs, or of processes on CPUs (default: from CONFIG)"
    train.add_argument("--devices", type=whole_number, metavar="N", help=devices)
    folder = "the folder to write (default: runs/NAME, where NAME is that of CONFIG)"
    train.add_argument("-o", "--output", type=Path, metavar="OUT", help=folder)
    train.set_defaults(run=_call("mm3d.train.run:run"), overrides=[])


def _add_info(commands: Commands) -> None:
    info = commands.add_parser(
        "info",
        help="print what a bug report needs: versions, device, weights that come with mm3d",
        description="Print the versions, the device and the number of threads that mm3d uses, and the weights that "
        "come with it, or others.",
    )
    info.add_argument(
        "weights", type=Path, nargs="*", metavar="WEIGHTS", help="also describe these weights files or run folders"
    )
    info.add_argument("--json", action="store_true", dest="as_json", help="print JSON, for programs")
    info.set_defaults(run=_call("mm3d.cli.info:print_info"))
