"""What the commands share: options, numbers as the command line takes them, and how a command calls its function."""

import argparse
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

# Options that say how views are prepared, by the names they have in PrepareSettings.
PREPARATION = ("width", "length", "slices", "intensity")

# Waiting threads must sleep: when another program used one of the cores, spinning threads took 40 times as long.
# Large tensors use large pages: with small ones, a fifth of the time of a full-size backbone went into getting memory.
FOR_TORCH = {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1"}


def call(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    """What runs a command: the function of the module, which is imported only then, with the options as arguments."""

    def run(arguments: argparse.Namespace) -> int:
        os.environ.update(FOR_TORCH | os.environ)  # torch reads them when it is imported
        options: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name != "run"}
        return getattr(importlib.import_module(module), function)(**options) or 0

    return run


class HelpFormatter(argparse.HelpFormatter):
    """Shows the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        plain = isinstance(action.default, int | float | str | Path) and not isinstance(action.default, bool)
        shown = plain and action.default != argparse.SUPPRESS and "(default" not in text
        return f"{text} (default: %(default)s)" if shown else text


def seed(text: str) -> int:
    return _number(int, text, 0, 2**32 - 1)


def whole_number(text: str) -> int:
    return _number(int, text, 1, 2**31)


def share(text: str) -> float:
    return _number(float, text, 0, 1)


N = TypeVar("N", int, float)


def _number(kind: Callable[[str], N], text: str, low: float, high: float) -> N:
    try:
        number = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' * (kind is int)}number") from None
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(f"{text} is not between {low} and {high}")
    return number


def add_preparation(parser: argparse._ActionsContainer, by: str = "") -> None:
    """Add the options of PREPARATION. With `by`, an option that the user does not give is None: `by` decides."""
    for name, value, text in (
        ("width", 1100, "width of prepared views in pixels, less if the length limits it"),
        ("length", 2200, "largest length of prepared views in pixels"),
        ("slices", 16, "largest number of slices of a prepared volume"),
    ):
        default = f"from {by}" if by else value
        parser.add_argument(f"--{name}", type=int, default=None if by else value, help=f"{text} (default: {default})")
    parser.add_argument(
        "--intensity",
        choices=("auto", "window", "percentile"),
        default=None if by else "auto",
        help="take black and white from the file's display window, or from percentiles inside the breast; auto "
        "(default) uses the window if there is one and the image is not For Processing",
    )
