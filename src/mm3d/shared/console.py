"""What a command prints: lines of plain text, tables, and a progress bar with the time left.

Names of files, texts in weights and cells of tables may be somebody else's, so all of it goes through `printable`.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from mm3d.shared.printable import printable

LINES = 10  # of progress, where it is not a bar


class Console(rich.console.Console):  # noqa: TID251
    """A terminal that shows all text as it is. Only the program itself moves the cursor or chooses colours.

    A pipe stays a pipe where FORCE_COLOR is set, as Jupyter and test servers do it. There, a bar would be hundreds of
    lines.
    """

    def __init__(self, **options: Any) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
        super().__init__(markup=False, highlight=False, emoji=False, _environ=environment, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A line or a cell, whose text has no lines of its own."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Anything else, which may have several lines."""
        for segment in super().render(renderable, options):
            text = "\n".join(map(printable, segment.text.split("\n")))
            yield segment if segment.control else Segment(text, segment.style)


@contextmanager
def show_progress(console: Console, doing: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs. The block calls the function that it is given once for each finished thing.

    In a file or a pipe, where a bar would share its line with what is printed, there are lines instead, ten at most.
    """
    if not console.is_terminal:
        yield _print_progress(console, doing, total)
        return
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda: bar.advance(task)


def _print_progress(console: Console, doing: str, total: int) -> Callable[[], None]:
    done, began = 0, time.monotonic()

    def advance() -> None:
        nonlocal done
        done += 1
        if done == total or done * LINES // total > (done - 1) * LINES // total:
            left = (time.monotonic() - began) * (total - done) / done
            remaining = f", about {describe_time(left)} left" if done < total else ""
            say(console, f"{doing}: {done} of {total}{remaining}")

    return advance


def describe_time(seconds: float) -> str:
    """A time as people say it."""
    for unit, length in (("hour", 3600), ("minute", 60)):
        if seconds >= 1.5 * length:
            return f"{round(seconds / length)} {unit}s"
    count = max(1, round(seconds))
    return f"{count} second{'s' * (count != 1)}"


def say(console: Console, text: str) -> None:
    """Print a text in one line: not wrapped, not coloured, and brackets stay brackets."""
    console.print(text, soft_wrap=True)
