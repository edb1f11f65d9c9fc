"""What the commands share: numbers as the command line takes them, and the options of the preparation."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

N = TypeVar("N", int, float)


def _number(kind: Callable[[str], N], low: float, high: float) -> Callable[[str], N]:
    """The type of an option that takes a number from `low` to `high`."""

    def read(text: str) -> N:
        try:
            number = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' * (kind is int)}number") from None
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low} and {high}")
        return number

    return read


seed = _number(int, 0, 2**32 - 1)
whole_number = _number(int, 1, 2**31)
share = _number(float, 0, 1)


def add_max_pixels(parser: argparse._ActionsContainer) -> None:
    """Add --max-pixels, which is in millions for the user."""
    parser.add_argument(
        "--max-pixels",
        type=whole_number,
        default=2000,
        metavar="N",
        help="do not read a view with more than N million pixels in all its slices, whatever its file claims",
    )


# Options that say how views are prepared, by the names they have in PrepareSettings.
PREPARATION = ("width", "length", "slices", "intensity")


def add_preparation(parser: argparse._ActionsContainer, by: str = "") -> None:
    """Add the options of PREPARATION. With `by`, an option that the user does not give is None: `by` decides."""

    def add(option: str, default: Any, text: str, **kind: Any) -> None:
        if by:
            default, text = None, f"{text} (default: from {by})"
        parser.add_argument(option, default=default, help=text, **kind)

    add("--width", 1100, "width of prepared views in pixels; smaller if the length limits it", type=int, metavar="N")
    add("--length", 2200, "largest length of prepared views in pixels", type=int, metavar="N")
    add("--slices", 16, "largest number of slices of a prepared volume", type=int, metavar="N")
    intensity = (
        "what is black and what is white: as the display window of the file says, or percentiles of the grey values in "
        "the breast; auto takes the window, if there is one and the image is not For Processing"
    )
    add("--intensity", "auto", intensity, choices=("auto", "window", "percentile"))


PICTURES = ("table", "columns", "modality", "stretch")  # options that say what pictures and arrays show


def add_pictures(group: argparse._ArgumentGroup, folder: str) -> None:
    """Add the options of PICTURES. `folder` is what help calls the folder with the images."""
    option = group.add_argument
    table = f"CSV or JSON file that says what the images show (default: the only CSV file of {folder}, or a JSON file "
    table += "beside each image)"
    option("--table", type=Path, metavar="FILE", help=table)
    columns = "names of the table's columns where docs/data.md has others, such as file=jpg,patient=PatientID"
    option("--columns", type=_columns, metavar="NAMES", help=columns)
    modality = "what the images are, where neither the table nor the number of slices says it (default: FFDM)"
    option("--modality", choices=("FFDM", "film", "DBT"), help=modality)
    stretch = "height over width of the pixels of squashed pictures, such as 1.7 (default: 1)"
    option("--stretch", type=float, metavar="K", help=stretch)


def given_pictures(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of PICTURES that are not None."""
    return {name: value for name in PICTURES if (value := getattr(arguments, name)) is not None}


def _columns(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name.strip() and column.strip() for name, _, column in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as file=jpg,patient=PatientID")
    return {name.strip(): column.strip() for name, _, column in pairs}


def given_preparation(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of PREPARATION that are not None."""
    return {name: value for name in PREPARATION if (value := getattr(arguments, name)) is not None}
