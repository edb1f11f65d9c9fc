"""What a long command shows: a progress bar with the time left, and at the end what there is of everything."""

from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mm3d.data.records import Cohort


@contextmanager
def progress(console: Console, doing: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar for as long as the block runs; call what it gives once for each of `total` things that is done."""
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda: bar.advance(task)


def say(console: Console, text: str) -> None:
    """A line as it is: not broken, not coloured, brackets are brackets."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def summary(cohort: Cohort, names: Container[str]) -> Table:
    """What there is of everything, counted over the views of these names."""
    breasts = [breast for breast in cohort.breasts if any(view.name in names for view in breast.views)]
    views = [view for breast in breasts for view in breast.views if view.name in names]
    findings = [finding for view in views for finding in view.annotations or ()]
    labels = Counter(breast.label for breast in breasts)
    table = Table(title=cohort.name, show_header=False)
    rows = {
        "exams": len({(breast.patient, breast.exam) for breast in breasts}),
        "breasts": len(breasts),
        "  malignant": labels["malignant"],
        "  benign": labels["benign"],
        "  negative": labels["negative"],
        "  without a label": labels[None],
        "  malignant and annotated": sum(b.label == "malignant" and b.annotated for b in breasts),
        "views": len(views),
        "  annotated": sum(view.annotations is not None for view in views),
        "findings": len(findings),
        "  malignant findings": sum(finding.malignant for finding in findings),
    }
    for name, count in rows.items():
        table.add_row(name, f"{count:,}")
    return table
