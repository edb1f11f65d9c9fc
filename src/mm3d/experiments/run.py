"""`mm3d study NAME`: makes the cohorts, then runs what is left, each run in a process of its own.

    FOLDER/                    outside the repository
        cohorts/, runs/        heavy: images, weights
    RESULTS/                   results/<study>, to be committed: a small JSON for each finished run

A run with a result is finished. One that was interrupted goes on from its last checkpoint. One that fails is told in
one sentence, and so is what starts from it; the others go on.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mm3d.experiments.cohorts import check_download, make_cohorts, needed
from mm3d.experiments.gallery import ROW, draw_gallery
from mm3d.experiments.plan import Cost, Job, before, costs, duration, jobs_of, order, time_left
from mm3d.experiments.results import Result, path_of, read_result, read_results
from mm3d.experiments.ship import shipped_as
from mm3d.experiments.spec import StudySpec, only, read_study, start_of
from mm3d.experiments.work import OUTPUT, Order, check_weights, folder_of, write_recipe
from mm3d.model.weights import find
from mm3d.shared.config import to_dict
from mm3d.shared.console import say
from mm3d.shared.errors import InputError
from mm3d.shared.files import lock_folder, replacing
from mm3d.shared.workers import ONE_THREAD, worker_count

STARTS = "starts"  # weights that the user gave
POLL = 0.2  # seconds between looks at the running processes
# Memory that a step frees is kept for the next: the system clears every page it hands out, a tenth of a step's time.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


@dataclass(frozen=True)
class Settings:
    """What the command line says of a study's run."""

    folder: Path
    results: Path
    only: tuple[str, ...] = ()
    jobs: int | None = None
    dry_run: bool = False
    download: Path | None = None
    start: tuple[str, ...] = ()  # NAME=WEIGHTS, or WEIGHTS for the first name


def run(name: str, settings: Settings) -> int:
    """Returns the exit code."""
    study = read_study(name)
    given = given_weights(study, settings.start)
    if settings.only:
        study = only(study, list(settings.only))
    console = Console()
    study = without_missing(study, given, console)
    results = read_results(study, settings.results)
    left = [job for job in jobs_of(study) if (job.run.name, job.seed) not in results]
    jobs = worker_count(settings.jobs)
    if settings.dry_run and not left:
        say(console, nothing_left(study, settings.results))
        return 0
    if settings.dry_run:
        console.print(plan_table(study, left, results))
        about = duration(time_left(study, left, costs(study, results), jobs))
        console.print(
            f"{len(left)} of {len(jobs_of(study))} runs are left, about {about} with {jobs} at a time; cohorts are "
            "not counted.",
            highlight=False,
        )
        return 0
    check_download(study, settings.download)
    try:
        failed = carry_out(study, left, results, given, settings, jobs, console)
    except KeyboardInterrupt:
        say(console, "Interrupted; the same command continues.")
        return 130
    done = len(jobs_of(study)) - len(failed)
    told = f"Wrote {settings.results}: {done} of {len(jobs_of(study))} runs are there."
    say(console, told if left else nothing_left(study, settings.results))
    return 1 if failed else 0


def nothing_left(study: StudySpec, results: Path) -> str:
    return (
        f"All {len(jobs_of(study))} runs have their results in {results}; to run them again, give another folder with "
        "--results."
    )


def carry_out(
    study: StudySpec,
    left: Sequence[Job],
    results: dict[tuple[str, int], Result],
    given: Mapping[str, str],
    settings: Settings,
    jobs: int,
    console: Console,
) -> list[str]:
    """All that is left: cohorts, runs, pictures. Returns the names of what failed."""
    folder, output = settings.folder.resolve(), settings.results.resolve()
    for made in (folder, output):  # what cannot be written is said before the first run, not after it
        made.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        taken = take_starts(given, folder)
        lost = take_shipped(study, left, results, folder, output, console)
        runs = dict.fromkeys(job.run for job in left if before(study, job) not in lost)
        make_cohorts(study, needed(study, runs), folder, settings.download, jobs, console)
        commit = commit_of(Path(__file__).parent)
        orders = {job.name: Order(study, job.run.name, job.seed, folder, output, taken, commit) for job in left}
        failed = run_all(study, left, orders, results, jobs, console, lost)
        if study.gallery and (left or not (output / ROW).is_file()):
            draw(study, results, folder, output, console)
    return failed


def given_weights(study: StudySpec, texts: Sequence[str]) -> dict[str, str]:
    """--start NAME=WEIGHTS, or --start WEIGHTS for the first of the study's given names."""
    found = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            name, path = (study.given[0] if study.given else ""), text
        if name not in study.given:
            known = ", ".join(study.given) or "none, it trains its own"
            raise InputError(f"--start {text}: the study takes start weights for {known}; write NAME=WEIGHTS.")
        file = find(path)
        if not file.is_file():
            raise InputError(f"--start {text}: {path} does not exist; give a weights file.")
        found[name] = str(file.resolve())
    return found


def take_starts(given: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Copy start weights into the study's folder, which is what results and configurations name."""
    taken = {}
    for name, path in given.items():
        taken[name] = str(Path(STARTS, f"{name}.safetensors"))
        target, content = folder / taken[name], Path(path).read_bytes()
        if target.is_file() and target.read_bytes() != content:
            raise InputError(f"{folder} was run from other start weights than {path}; give another folder with -o.")
        with replacing(target) as partial:
            partial.write_bytes(content)
    return taken


def take_shipped(
    study: StudySpec,
    left: Sequence[Job],
    results: Mapping[tuple[str, int], Result],
    folder: Path,
    output: Path,
    console: Console,
) -> list[str]:
    """Weights of finished runs that others start from. A clone has their results only; the best come with mm3d. Returns
    the names of runs whose weights are nowhere."""
    starts = [start for job in left if (start := start_of(study, job.run, job.seed)) is not None]
    lost = []
    for run, seed in dict.fromkeys(starts):
        result = results.get((run.name, seed))
        if result is None or (folder / result.weights).is_file():
            continue
        name = Job(run, seed).name
        if (own := shipped_as(result)) is None:
            lost.append(name)
            console.print(
                f"{name} has a result, but its weights {folder / result.weights} are not there: copy them there, or "
                f"move {path_of(output, run.name, seed)} away to train it again.",
                highlight=False,
                soft_wrap=True,
            )
        else:
            with replacing(folder / result.weights) as partial:
                partial.write_bytes(own.read_bytes())
            write_recipe(folder / result.weights, result.recipe)
            console.print(f"{name}: its weights are those that come with mm3d, {own.name}.", highlight=False)
    return lost


def without_missing(study: StudySpec, given: Mapping[str, str], console: Console) -> StudySpec:
    """The study without runs whose start weights nobody gave."""
    missing = [run for run in study.runs if run.start in study.given and run.start not in given]
    if not missing:
        return study
    names = [name for name in study.given if any(run.start == name for run in missing)]
    for name in names:
        console.print(
            f"note: no --start {name}=WEIGHTS was given; runs that start from it are left out.", highlight=False
        )
    gone = {run.name for run in missing}
    while more := {run.name for run in study.runs if run.start in gone} - gone:
        gone |= more
    kept = [run.name for run in study.runs if run.name not in gone]
    if not kept:
        raise InputError(f"no run is left without start weights; give them with --start {names[0]}=WEIGHTS.")
    return only(study, kept)


def run_all(
    study: StudySpec,
    left: Sequence[Job],
    orders: Mapping[str, Order],
    results: dict[tuple[str, int], Result],
    jobs: int,
    console: Console,
    lost: Sequence[str] = (),
) -> list[str]:
    """Run everything but what starts from `lost` runs; returns the names of what failed. `results` has what is
    finished, and gets what will be."""
    waiting, failed = list(left), list[str]()
    running: dict[str, tuple[Job, subprocess.Popen[str]]] = {}
    begun: dict[str, float] = {}
    try:
        while waiting or running:
            for job in [job for job in waiting if before(study, job) in (*failed, *lost)]:
                waiting.remove(job)
                failed.append(job.name)
                console.print(f"{job.name} was not run: it starts from {before(study, job)}.", highlight=False)
            unfinished = {job.name for job in waiting} | set(running)
            ready = [
                job for job in order(study, waiting, costs(study, results)) if before(study, job) not in unfinished
            ]
            for job in ready[: jobs - len(running)]:
                waiting.remove(job)
                running[job.name] = job, _begin(orders[job.name], jobs)
                begun[job.name] = time.monotonic()
                console.print(f"{job.name} …", highlight=False)
            for job, process in _ended(running):
                del running[job.name]
                if process.returncode != 0:
                    failed.append(job.name)
                    console.print(
                        f"{job.name} failed: {_reason(orders[job.name], process.returncode)}", highlight=False
                    )
                    continue
                path = path_of(orders[job.name].results, job.run.name, job.seed)
                results[job.run.name, job.seed] = read_result(path)
                still = [*waiting, *(other for other, _ in running.values())]
                seconds = time.monotonic() - begun[job.name]
                told = f"{duration(seconds)}. Runs left: {len(still)}"
                about = duration(time_left(study, still, costs(study, results), jobs))
                shown = _figures(results[job.run.name, job.seed])
                console.print(f"{job.name}: {shown}; {told}, about {about}.", highlight=False)
    finally:
        for _, process in running.values():
            process.kill()
            process.wait()
    return failed


def draw(
    study: StudySpec, results: Mapping[tuple[str, int], Result], folder: Path, output: Path, console: Console
) -> None:
    """The gallery; where weights that it needs are gone, or another study's, the one that was drawn before stays."""
    first = {name: result for (name, seed), result in results.items() if seed == study.run(name).seeds[0]}
    try:
        for result in (first[name] for name in study.gallery if name in first):
            if not (folder / result.weights).is_file():
                raise InputError(f"{result.weights} is not in {folder}.")
            check_weights(folder / result.weights, result.recipe)
    except InputError as error:
        say(console, f"note: no pictures were drawn: {error}")
        return
    draw_gallery(study, first, folder, output)


def _ended(
    running: Mapping[str, tuple[Job, "subprocess.Popen[str]"]],
) -> list[tuple[Job, "subprocess.Popen[str]"]]:
    """Wait until some process has ended, and give those that have."""
    while running:
        ended = [(job, process) for job, process in running.values() if process.poll() is not None]
        if ended:
            return ended
        time.sleep(POLL)
    return []


def _begin(order: Order, jobs: int) -> "subprocess.Popen[str]":
    """Start a run. Several side by side have a core each: two runs of one thread are faster than one of two."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    environment = {"OMP_WAIT_POLICY": "PASSIVE"} | KEEP_MEMORY | os.environ | dict.fromkeys(ONE_THREAD, str(threads))
    folder = order.folder / folder_of(order.run, order.seed)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / OUTPUT).open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "mm3d.experiments.work"],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C is the study's, which then ends its runs
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(to_dict(order)) + "\n")
    process.stdin.flush()
    return process


def _reason(order: Order, code: int) -> str:
    """The last line that the process said."""
    path = order.folder / folder_of(order.run, order.seed) / OUTPUT
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else f"its process ended with code {code}."
    return f"{last} ({path} has all that it said.)"


def _figures(result: Result) -> str:
    named = (("recall@0.25", "R@0.25"), ("recall3d@0.25", "in 3D"), ("auc", "AUC"))
    return ", ".join(f"{text} {value:.3f}" for name, text in named if (value := result.figures.get(name)) is not None)


def commit_of(folder: Path) -> str:
    """The commit of the code, with a + where files differ from it; nothing outside a repository."""
    try:
        found = [
            subprocess.run(["git", *what], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
            for what in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found[0] + ("+" if found[1] else "")


def plan_table(study: StudySpec, left: Sequence[Job], results: Mapping[tuple[str, int], Result]) -> Table:
    """What a dry run shows: the runs in their order."""
    told: Mapping[str, Cost] = costs(study, results)
    table = Table(title=f"{study.title}: {len(left)} of {len(jobs_of(study))} runs are left (~: not measured yet)")
    for column in ("run", "about", "input", "fusion", "data", "boxes"):
        table.add_column(column, no_wrap=True)
    for job in order(study, left, told):
        run, cost = job.run, told[job.run.name]
        stars = "*" if run.drop_unannotated else ""
        about = ("" if cost.measured else "~") + duration(cost.seconds)
        shares = (f"{run.data:g}", f"{run.annotated:g}{stars}")
        table.add_row(job.name, about, run.input, run.fusion, *shares)
    return table
