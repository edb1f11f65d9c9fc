"""The command line: names and help. Nothing heavy is imported until a command runs, so that help is immediate.

Exit codes: 0 done, 1 an input failed (the message names it), 2 wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

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
    demo.add_argument("--seed", type=int, default=0, help="of the random volume and weights (default: 0)")
    demo.set_defaults(run=_demo)

    info = commands.add_parser(
        "info",
        help="versions, device, threads, shipped weights",
        description="Print the versions, the device and threads that will be used, and the shipped weights.",
    )
    info.add_argument("--json", action="store_true", help="print JSON, for programs")
    info.set_defaults(run=_info)

    importer = commands.add_parser(
        "import-weights",
        help="turn a public Sparse R-CNN checkpoint into start weights",
        description="Turn a public Sparse R-CNN checkpoint (detectron2, mmdetection or PVT; .pth or .safetensors) into "
        "start weights for mm3d, and print what was loaded, what is new and what was dropped.",
    )
    importer.add_argument("file", type=Path, metavar="FILE", help="the downloaded checkpoint")
    importer.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the .safetensors to write")
    importer.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    importer.set_defaults(run=_import_weights)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except InputError as error:
        print(f"mm3d: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mm3d: interrupted.", file=sys.stderr)
        return 130
