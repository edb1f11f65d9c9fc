"""`mm3d prepare`: reads a dataset as it was downloaded, and writes prepared views."""

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from mm3d.data.dicom.header import Header
from mm3d.data.dicom.window import StoredImage
from mm3d.data.prepare import prepared
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import PreparedBreast, PreparedView
from mm3d.data.prepare.view import MAX_PIXELS, Plan, begin_view, fill_slices, fill_view, plan_view
from mm3d.data.records import Breast, Cohort, Problem, View
from mm3d.shared.console import Console, say, show_progress
from mm3d.shared.errors import InputError
from mm3d.shared.files import remove_partial, working_folder
from mm3d.shared.workers import Outcome, Task, Workers, start_server, worker_count

SECONDS_TO_BEGIN = 120.0  # to read a header and decode two frames; no real file takes that long
SECONDS_PER_FRAME = 30.0
WORKER_MEMORY = 3_000_000_000  # bytes; a mammogram of 10,000 x 10,000 pixels needs half of it
CUT = 0.1  # share of an annotation outside the crop from which it is mentioned
SHOWN = 8  # kinds of problem that are printed; all problems are in problems.csv
PATH = re.compile(r"\S*/\S*")  # reasons that differ only in a path are of one kind


@dataclass
class _Job:
    """A view that is being prepared."""

    view: View
    key: str
    partial: Path  # the file that is being filled
    display_slices: Path | None
    headers: tuple[Header, ...] | None  # None: a worker reads them
    plan: Plan | None = None
    unfinished_parts: int = 0
    failure: str = ""


def prepare_views(
    views: Sequence[View],
    folder: Path,
    settings: PrepareSettings,
    jobs: int,
    advance: Callable[[], None] = lambda: None,
    headers: Mapping[Path, Header] | None = None,
    display: Path | None = None,
    max_pixels: int = MAX_PIXELS,
) -> tuple[list[PreparedView], list[Problem]]:
    """Prepare the views that a folder does not have yet. Returns all that it has now, and the views that failed.

    `advance` is called after each view. Headers that are given are not read again. Into the folder `display`, the
    stored slices of the views that are prepared now are written as they are shown. Views with more than `max_pixels`
    are not read.
    """
    (folder / "views").mkdir(parents=True, exist_ok=True)
    remove_partial(folder / "views")
    done: list[PreparedView] = []
    problems: list[Problem] = []
    todo = []
    for view in views:
        try:
            key = prepared.key_of(view, prepared.stamp_files(view), settings)
        except OSError:
            problems.append(Problem(view.name, "its file is not there; download it again."))
            advance()
            continue
        if prepared.is_prepared(folder, key):
            done.append(prepared.read_view(folder, key, view))
            advance()
        else:
            read = headers is None or view.picture is not None
            known = None if headers is None or read else tuple(headers[path] for path in view.files)
            shown = None if display is None else display / f"{key}.npy"
            todo.append((view, key, shown, known))
    if todo:
        with working_folder(folder / "views") as work, Workers(jobs, WORKER_MEMORY) as workers:
            begun = [_Job(view, key, work / f"{key}.npy", shown, known) for view, key, shown, known in todo]
            for job in _run_jobs(begun, settings, workers, jobs, max_pixels):
                advance()
                if job.failure:
                    problems.append(Problem(job.view.name, job.failure))
                    job.partial.unlink(missing_ok=True)  # another view may need the room
                elif job.plan and job.headers is not None:
                    pixels = prepared.finish_view(folder, job.key, job.partial, job.plan.file)
                    done.append(PreparedView(job.view, job.plan.file, pixels, job.headers, job.display_slices))
    return done, problems


def _run_jobs(
    todo: list[_Job], settings: PrepareSettings, workers: Workers, jobs: int, max_pixels: int
) -> Iterator[_Job]:
    """Give each job back when it is done or has failed."""
    waiting = iter(todo)

    def begin_next() -> None:
        job = next(waiting, None)
        if job:
            arguments = (job.view, job.headers, settings, job.partial, job.display_slices, max_pixels)
            workers.submit(Task(job, begin_view, arguments, SECONDS_TO_BEGIN))

    for _ in range(2 * jobs):  # enough to keep every worker busy while the last parts of a volume are filled
        begin_next()
    for outcome in workers.outcomes():
        job: _Job = outcome.key
        job.failure = job.failure or outcome.failure
        if job.plan is not None:
            job.unfinished_parts -= 1
        elif not outcome.failure:
            _share_out(job, outcome, workers, jobs)
        if job.unfinished_parts == 0:
            yield job
            begin_next()


def _share_out(job: _Job, outcome: Outcome, workers: Workers, jobs: int) -> None:
    """Share out the slices of a planned view among the workers, unless they are filled already."""
    job.headers, job.plan, filled = outcome.result
    if filled:
        return
    S = job.plan.shape[0]
    job.unfinished_parts = min(jobs, S)
    frames = math.ceil(job.plan.file.geometry.stored_slices / job.unfinished_parts) + 2
    for part in range(job.unfinished_parts):
        slices = range(part * S // job.unfinished_parts, (part + 1) * S // job.unfinished_parts)
        arguments = (job.headers, job.plan, job.partial, slices, job.display_slices)
        workers.submit(Task(job, fill_view, arguments, SECONDS_PER_FRAME * frames), first=True)


def start_workers() -> None:
    """Let the worker processes import what they need. This does not wait for them."""
    start_server(begin_view.__module__)


def prepare_breasts(
    breasts: Sequence[Breast],
    headers: Mapping[Path, Header],
    settings: PrepareSettings,
    folder: Path,
    jobs: int,
    max_pixels: int = MAX_PIXELS,
) -> tuple[list[PreparedBreast], list[Problem]]:
    """Prepare the views of some breasts for prediction.

    Parameters
    ----------
    breasts : the breasts of an exam.
    headers : by path, the headers of their files; these are not read again.
    settings : size and grey values of the prepared views.
    folder : where the pixels go, usually a temporary folder.
    jobs : how many worker processes may run.
    max_pixels : of all slices of a view together; larger views are not read.

    Returns
    -------
    The breasts with those of their views that could be prepared, without breasts that have none, and the problems of
    the other views: the subject of a problem is the view's name. Each prepared view has its `headers` and
    `display_slices`.
    """
    display = folder / "display"
    display.mkdir(parents=True, exist_ok=True)
    views = [view for breast in breasts for view in breast.views]
    done, problems = prepare_views(
        views, folder, settings, jobs, headers=headers, display=display, max_pixels=max_pixels
    )
    by_name = {view.view.name: view for view in done}
    ready = [
        PreparedBreast(breast, tuple(by_name[view.name] for view in breast.views if view.name in by_name))
        for breast in breasts
    ]
    return [breast for breast in ready if breast.views], problems


def prepare_array(
    view: View, image: StoredImage, pixels: NDArray[np.integer], settings: PrepareSettings, folder: Path, key: str
) -> None:
    """Prepare a view whose slices (S, rows, columns) are in memory, as if they were read from a file."""
    plan = plan_view(view, image, len(pixels), pixels.__getitem__, settings)
    output = np.empty(plan.shape, dtype=plan.dtype)
    fill_slices(plan, pixels.__getitem__, output, range(len(output)))
    prepared.write_view(folder, key, output, plan.file)


def run(
    read: Callable[[Path], Cohort],
    folder: Path,
    output: Path,
    settings: PrepareSettings,
    jobs: int | None,
    max_pixels: int = MAX_PIXELS,
) -> int:
    """Read a dataset, prepare it, write the lists and print the summary. Returns the exit code."""
    count = worker_count(jobs)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of the download.")
    if folder.resolve() in (output.resolve(), *output.resolve().parents):
        raise InputError(f"{output} is inside {folder}, which is read; give another folder with -o.")
    console = Console()
    cohort = read(folder)
    prepared.check_output(output, cohort.name)
    views = list(cohort.views())
    if not views:
        reason = f" ({cohort.problems[0].subject}: {cohort.problems[0].reason})" if cohort.problems else ""
        raise InputError(f"{folder} has no image of {cohort.name} that can be used{reason}; are its images there?")
    remove_partial(output)
    with show_progress(console, "preparing", len(views)) as advance:
        done, failures = prepare_views(views, output, settings, count, advance, max_pixels=max_pixels)
    problems = [*cohort.problems, *failures]
    keys = {view.view.name: view.pixels.stem for view in done}
    prepared.write_cohort(output, cohort, keys, problems)
    console.print(summarise(cohort, keys))
    _show_problems(console, problems)
    for note in (*cohort.notes, *_count_notes(done), *_find_cut_annotations(done)):
        say(console, f"note: {note}")
    ending = f"; {len(problems)} problems are listed in problems.csv" if problems else ""
    say(console, f"Wrote {output}: {len(keys)} of {len(views)} views{ending}.")
    return 1 if failures or any(problem.unread for problem in problems) else 0


def _count_notes(views: Sequence[PreparedView]) -> list[str]:
    """Each note on views once, with the number of views and one of them."""
    names: dict[str, list[str]] = {}
    for view in views:
        for note in view.file.notes:
            names.setdefault(note, []).append(view.view.name)
    return [f"{len(own)} views, such as {own[0]}: {note}" for note, own in names.items()]


def _find_cut_annotations(views: Sequence[PreparedView]) -> list[str]:
    """A note on annotations that the crop cuts: the breast was not found well, or the box is drawn too large."""
    cut = [
        view.view.name
        for view in views
        for annotation in view.view.annotations or ()
        if view.file.geometry.visible_share(annotation.box) < 1 - CUT
    ]
    if not cut:
        return []
    return [f"{len(cut)} annotations lie by more than {CUT:.0%} outside the crop of their views, such as in {cut[0]}."]


def _show_problems(console: Console, problems: list[Problem]) -> None:
    """Print each kind of problem once, the most frequent first."""
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(PATH.sub("", problem.reason), []).append(problem)
    for kind in sorted(kinds.values(), key=len, reverse=True)[:SHOWN]:
        which = kind[0].subject if len(kind) == 1 else f"{len(kind)} like this, {kind[0].subject}"
        say(console, f"problem: {which}: {kind[0].reason}")
    if len(kinds) > SHOWN:
        say(console, f"and {len(kinds) - SHOWN} more kinds of problem")


def summarise(cohort: Cohort, names: Container[str]) -> Table:
    """Count exams, breasts, views and annotations, over the views of these names."""
    breasts = [breast for breast in cohort.breasts if any(view.name in names for view in breast.views)]
    views = [view for breast in breasts for view in breast.views if view.name in names]
    annotations = [annotation for view in views for annotation in view.annotations or ()]
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
        "annotations": len(annotations),
        "  malignant annotations": sum(annotation.malignant for annotation in annotations),
    }
    for name, count in rows.items():
        table.add_row(name, f"{count:,}")
    return table
