"""`mm3d prepare`: a dataset as it was downloaded in, prepared views out."""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mm3d.errors import InputError
from mm3d.prepare.prepared import ViewFile, check_output, finish_view, is_prepared, key_of, write_cohort
from mm3d.prepare.settings import PrepareSettings
from mm3d.prepare.view import Plan, begin, fill
from mm3d.prepare.workers import Outcome, Task, Workers
from mm3d.records import Cohort, Problem, View

SECONDS_TO_BEGIN = 120.0  # to read a header and decode two frames, far beyond any real file
SECONDS_PER_FRAME = 30.0
SHOWN = 8  # kinds of problem on the screen; all are in problems.csv
PATH = re.compile(r"\S*/\S*")  # reasons that differ in a path only are of one kind


@dataclass
class _Job:
    """A view in work."""

    view: View
    key: str
    partial: Path
    plan: Plan | None = None
    parts: int = 0  # still to be filled
    failed: bool = field(default=False)


def prepare(
    cohort: Cohort, output: Path, settings: PrepareSettings, jobs: int, advance: Callable[[], None]
) -> tuple[dict[str, str], list[Problem]]:
    """Prepare every view that is not there yet. Returns the keys of all that are, and what failed."""
    (output / "views").mkdir(parents=True, exist_ok=True)
    _clear_half_made(output / "views")
    keys: dict[str, str] = {}
    failures: list[Problem] = []
    todo = []
    for view in cohort.views():
        try:
            key = key_of(view, settings)
        except OSError:
            failures.append(Problem(view.name, "its file is not there; download it again."))
            advance()
            continue
        if is_prepared(output, key):
            keys[view.name] = key
            advance()
        else:
            todo.append(_Job(view, key, output / "views" / f".{key}.{os.getpid()}.partial"))
    try:
        if todo:
            with Workers(jobs) as workers:
                for job in _finished(todo, settings, workers, jobs, failures):
                    advance()
                    if not job.failed and job.plan:
                        finish_view(output, job.key, job.partial, _view_file(job.plan, settings))
                        keys[job.view.name] = job.key
    finally:
        for job in todo:
            job.partial.unlink(missing_ok=True)
    return keys, failures


def _clear_half_made(folder: Path) -> None:
    """Remove what killed runs left behind; a run that is alive has the number of its process in the name."""
    for path in folder.glob(".*.partial"):
        try:
            os.kill(int(path.name.split(".")[-2]), 0)
        except (ProcessLookupError, ValueError):
            path.unlink(missing_ok=True)
        except PermissionError:  # alive, and somebody else's
            pass


def _finished(
    todo: list[_Job], settings: PrepareSettings, workers: Workers, jobs: int, failures: list[Problem]
) -> Iterator[_Job]:
    """Every job when it is over, well or not."""
    waiting = iter(todo)

    def begin_next() -> None:
        job = next(waiting, None)
        if job:
            workers.submit(Task(job, begin, (job.view, settings, job.partial), SECONDS_TO_BEGIN))

    for _ in range(2 * jobs):  # enough to keep every worker busy while the parts of a volume come to an end
        begin_next()
    for outcome in workers.outcomes():
        job: _Job = outcome.key
        if job.plan is None:
            over = _after_begin(job, outcome, workers, jobs)
        else:
            job.parts -= 1
            over = job.parts == 0
        if outcome.failure and not job.failed:
            job.failed = True
            failures.append(Problem(job.view.name, outcome.failure))
        if over:
            yield job
            begin_next()


def _after_begin(job: _Job, outcome: Outcome, workers: Workers, jobs: int) -> bool:
    """Spread the slices of a planned volume over the workers. True if nothing is left to do."""
    if outcome.failure:
        return True
    job.plan, filled = outcome.result
    if filled:
        return True
    S = job.plan.shape[0]
    job.parts = min(jobs, S)
    for part in range(job.parts):
        slices = range(part * S // job.parts, (part + 1) * S // job.parts)
        frames = math.ceil(len(job.plan.frames) / job.parts) + 2
        workers.submit(Task(job, fill, (job.plan, job.partial, slices), SECONDS_PER_FRAME * frames), first=True)
    return False


def _view_file(plan: Plan, settings: PrepareSettings) -> ViewFile:
    header = plan.headers[0]
    return ViewFile(
        geometry=plan.geometry,
        turned=plan.turned,
        pixel_spacing=header.pixel_spacing,
        slice_spacing=header.slice_spacing,
        vendor=header.vendor,
        settings=settings,
    )


def run(read: Callable[[Path], Cohort], folder: Path, output: Path, settings: PrepareSettings, jobs: int | None) -> int:
    """Read a dataset, prepare it, write the lists and print the summary. Returns the exit code."""
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs} must be at least 1.")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of the download.")
    if folder.resolve() in (output.resolve(), *output.resolve().parents):
        raise InputError(f"{output} is inside {folder}, which is read; give another folder with -o.")
    console = Console()
    cohort = read(folder)
    check_output(output, cohort.name)
    total = sum(1 for _ in cohort.views())
    if not total:
        reason = f" ({cohort.problems[0].subject}: {cohort.problems[0].reason})" if cohort.problems else ""
        raise InputError(
            f"{folder} has no image of {cohort.name} that can be used{reason}; see that its images are there."
        )
    with _progress(console, total) as advance:
        keys, failures = prepare(cohort, output, settings, jobs or os.cpu_count() or 1, advance)
    problems = [*cohort.problems, *failures]
    write_cohort(output, cohort, keys, problems)
    console.print(summary(cohort, keys))
    _tell(console, cohort, problems)
    ending = f"; {len(problems)} problems are listed in problems.csv" if problems else ""
    console.print(f"Wrote {output}: {len(keys)} of {total} views{ending}.", soft_wrap=True, highlight=False)
    return 1 if failures else 0


def _tell(console: Console, cohort: Cohort, problems: list[Problem]) -> None:
    """Print each kind of problem once, the most frequent first, and the cohort's notes."""
    alike: dict[str, list[Problem]] = {}
    for problem in problems:
        alike.setdefault(PATH.sub("", problem.reason), []).append(problem)
    for group in sorted(alike.values(), key=len, reverse=True)[:SHOWN]:
        which = group[0].subject if len(group) == 1 else f"{len(group)} like this, {group[0].subject}"
        console.print(f"problem: {which}: {group[0].reason}", soft_wrap=True, highlight=False)
    if len(alike) > SHOWN:
        console.print(f"and {len(alike) - SHOWN} more kinds of problem", soft_wrap=True, highlight=False)
    for note in cohort.notes:
        console.print(f"note: {note}", soft_wrap=True, highlight=False)


def summary(cohort: Cohort, keys: dict[str, str]) -> Table:
    """What there is of everything, counted over the views that are prepared."""
    breasts = [breast for breast in cohort.breasts if any(view.name in keys for view in breast.views)]
    views = [view for breast in breasts for view in breast.views if view.name in keys]
    findings = [finding for view in views for finding in view.findings or ()]
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
        "  annotated": sum(view.findings is not None for view in views),
        "findings": len(findings),
        "  malignant findings": sum(finding.malignant for finding in findings),
    }
    for name, count in rows.items():
        table.add_row(name, f"{count:,}")
    return table


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("preparing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("views", total=total)
        yield lambda: progress.advance(task)
