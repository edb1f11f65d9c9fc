"""Options that several commands share, and numbers as the command line takes them."""

import argparse
from collections.abc import Callable
from typing import TypeVar

# Options that say how views are prepared, by the names they have in PrepareSettings.
PREPARATION = ("width", "length", "slices", "intensity")

# Threads that wait must sleep: where another program has one of the cores, threads that spin took 40 times as long.
# Large tensors in large pages: with small ones, a fifth of a full-size backbone's time went into getting memory.
FOR_TORCH = {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1"}


def seed(text: str) -> int:
    return _within(int, text, 0, 2**32 - 1)


def whole_number(text: str) -> int:
    return _within(int, text, 1, 2**31)


def share(text: str) -> float:
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


def add_preparation(parser: argparse._ActionsContainer, by: str = "") -> None:
    """The options of PREPARATION. With `by`, one that the user does not give is None: something else decides."""
    for name, value, text in (
        ("width", 1100, "pixels across, fewer if the length limits"),
        ("length", 2200, "pixels down, at most"),
        ("slices", 16, "slices of a volume, at most"),
    ):
        default = f"by {by}" if by else value
        parser.add_argument(f"--{name}", type=int, default=None if by else value, help=f"{text} (default: {default})")
    parser.add_argument(
        "--intensity",
        choices=("auto", "window", "percentile"),
        default=None if by else "auto",
        help="black and white by the file's display window or by percentiles in the breast; auto (default): the window "
        "where there is one, unless the image is For Processing",
    )
