"""`mm3d prepare`: a dataset as it was downloaded in, prepared views out."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from mm3d.data.dicom.header import Header
from mm3d.data.prepare.prepared import (
    PreparedBreast,
    PreparedView,
    check_output,
    finish_view,
    is_prepared,
    key_of,
    read_view,
    stamps_of,
    write_cohort,
)
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.data.prepare.source import Files
from mm3d.data.prepare.view import Plan, begin, fill, view_file
from mm3d.data.records import Breast, Cohort, Problem, View
from mm3d.data.summary import summarise
from mm3d.shared.console import show_progress
from mm3d.shared.errors import InputError
from mm3d.shared.files import partial_path, remove_partial
from mm3d.shared.workers import Outcome, Task, Workers, worker_count

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
    copies: Path | None
    headers: tuple[Header, ...]
    files: Files | None = None
    plan: Plan | None = None
    parts: int = 0  # still to be filled
    failed: bool = field(default=False)


def prepare(
    cohort: Cohort,
    output: Path,
    settings: PrepareSettings,
    jobs: int,
    advance: Callable[[], None],
    copies: Path | None = None,
) -> tuple[dict[str, str], list[Problem]]:
    """Prepare every view that is not there yet. Returns the keys of all that are by their names, and what failed."""
    views, failures = _prepare(list(cohort.views()), {}, output, settings, jobs, advance, copies)
    return {view.view.name: view.pixels.stem for view in views}, failures


def prepare_breasts(
    breasts: Sequence[Breast], headers: Mapping[Path, Header], settings: PrepareSettings, folder: Path, jobs: int
) -> tuple[list[PreparedBreast], list[Problem]]:
    """Prepare the views of some breasts for prediction.

    Parameters
    ----------
    breasts : the breasts of an exam.
    headers : by path, the headers of their files that were read already; these are not read again.
    settings : size and grey values of the prepared views.
    folder : where the pixels go, usually a temporary folder.
    jobs : how many worker processes may run.

    Returns
    -------
    The breasts with those of their views that could be prepared, without breasts that have none, and the problems of
    the other views: the subject of a problem is the view's name. Each prepared view has its `headers` and
    `display_slices`.
    """
    views = [view for breast in breasts for view in breast.views]
    display = folder / "display"
    display.mkdir(parents=True, exist_ok=True)
    done, failures = _prepare(views, headers, folder, settings, jobs, lambda: None, display)
    by_name = {view.view.name: view for view in done}
    prepared = [
        PreparedBreast(breast, tuple(by_name[view.name] for view in breast.views if view.name in by_name))
        for breast in breasts
    ]
    return [breast for breast in prepared if breast.views], failures


def _prepare(
    views: Sequence[View],
    headers: Mapping[Path, Header],
    output: Path,
    settings: PrepareSettings,
    jobs: int,
    advance: Callable[[], None],
    display: Path | None,
) -> tuple[list[PreparedView], list[Problem]]:
    """Prepare every view that is not there yet. Returns all that are, and what failed.

    With a folder for `display`, the stored slices of what is prepared are kept there as they are shown: <key>.npy.
    """
    (output / "views").mkdir(parents=True, exist_ok=True)
    remove_partial(output / "views")
    done: list[PreparedView] = []
    failures: list[Problem] = []
    todo = []
    for view in views:
        try:
            key = key_of(view, stamps_of(view), settings)
        except OSError:
            failures.append(Problem(view.name, "its file is not there; download it again."))
            advance()
            continue
        if is_prepared(output, key):
            done.append(read_view(output, key, view))
            advance()
        else:
            copy = None if display is None else display / f"{key}.npy"
            known = tuple(headers[path] for path in view.files) if all(path in headers for path in view.files) else ()
            todo.append(_Job(view, key, partial_path(output / "views" / f"{key}.npy"), copy, known))
    try:
        if todo:
            with Workers(jobs) as workers:
                for job in _finished(todo, settings, workers, jobs, failures):
                    advance()
                    if not job.failed and job.plan and job.files:
                        file = view_file(job.plan, settings)
                        pixels = finish_view(output, job.key, job.partial, file)
                        done.append(PreparedView(job.view, file, pixels, job.files.headers, job.copies))
    finally:
        for job in todo:
            job.partial.unlink(missing_ok=True)
    return done, failures


def _finished(
    todo: list[_Job], settings: PrepareSettings, workers: Workers, jobs: int, failures: list[Problem]
) -> Iterator[_Job]:
    """Every job when it is over, well or not."""
    waiting = iter(todo)

    def begin_next() -> None:
        job = next(waiting, None)
        if job:
            workers.submit(
                Task(job, begin, (job.view, settings, job.partial, job.copies, job.headers), SECONDS_TO_BEGIN)
            )

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
    job.files, job.plan, filled = outcome.result
    if filled:
        return True
    S = job.plan.shape[0]
    job.parts = min(jobs, S)
    for part in range(job.parts):
        slices = range(part * S // job.parts, (part + 1) * S // job.parts)
        frames = math.ceil(job.plan.geometry.stored_slices / job.parts) + 2
        workers.submit(
            Task(job, fill, (job.files, job.plan, job.partial, slices, job.copies), SECONDS_PER_FRAME * frames),
            first=True,
        )
    return False


def run(read: Callable[[Path], Cohort], folder: Path, output: Path, settings: PrepareSettings, jobs: int | None) -> int:
    """Read a dataset, prepare it, write the lists and print the summary. Returns the exit code."""
    count = worker_count(jobs)
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
    with show_progress(console, "preparing", total) as advance:
        keys, failures = prepare(cohort, output, settings, count, advance)
    problems = [*cohort.problems, *failures]
    write_cohort(output, cohort, keys, problems)
    console.print(summarise(cohort, keys))
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
