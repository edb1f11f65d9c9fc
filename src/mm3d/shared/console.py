"""What a long command prints: a progress bar with the time left, and lines of plain text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def show_progress(console: Console, doing: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs. The block calls the function that it is given once for each finished thing."""
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda: bar.advance(task)


def say(console: Console, text: str) -> None:
    """Print a line as it is: not wrapped, not coloured, and brackets stay brackets."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
