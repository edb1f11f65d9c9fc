"""`mm3d study NAME`: find what is missing, and let Snakemake make it.

    FOLDER/                    outside the repository
        cohorts/, runs/        large: images, weights
        starts/                start weights that the user gave
        workflow.json          the configuration of the Snakefile
        failed.txt             what failed last time, a line each
        snakemake.log          what Snakemake said last time
        study.md, study/       the page, if the study is complete
    RESULTS/                   results/<study>, to be committed: a small JSON for each finished run
        weights/               weights that other runs start from, kept by hand, so that a clone can go on from them

A run with a result is finished. A run that was interrupted continues from its last checkpoint. A run that fails stops
only the runs that start from it.
"""

import filecmp
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mm3d.experiments.cohorts import check_cohorts
from mm3d.experiments.gallery import ROW
from mm3d.experiments.results import Result, path_of, read_results
from mm3d.experiments.run import write_recipe
from mm3d.experiments.ship import find_shipped
from mm3d.experiments.spec import Job, StudySpec, check_known, read_study
from mm3d.model.weights import find
from mm3d.shared.config import from_dict, to_dict
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError
from mm3d.shared.files import lock_folder, remove_partial, replacing, save_json
from mm3d.shared.workers import die_with_parent, worker_count

SNAKEFILE = Path(__file__).with_name("Snakefile")
WORKFLOW, FAILED, LOG, STARTS, WEIGHTS = "workflow.json", "failed.txt", "snakemake.log", "starts", "weights"
OUTPUTS = (FAILED, "gallery.done", "study.md")  # of a call of Snakemake; those of an earlier one are removed
# Results are written whole or not at all, so none is incomplete. After a kill, Snakemake's own lock would have to be
# removed by hand; that of lock_folder is free.
OPTIONS = ("--keep-going", "--nolock", "--ignore-incomplete", "--drop-metadata", "--rerun-triggers", "mtime")


@dataclass(frozen=True)
class Workflow:
    """The content of workflow.json: what a study's steps need to know."""

    study: StudySpec
    folder: Path
    results: Path
    left: tuple[str, ...]
    """The jobs to run."""
    download: Path | None
    given: dict[str, str]
    """Start weights that the user gave, by name, in the study's folder."""
    commit: str
    """Of the code."""
    cores: int
    threads: int
    """Of a run."""


def read_workflow(content: dict[str, Any]) -> Workflow:
    return from_dict(Workflow, content, WORKFLOW)


def run(
    name: str,
    folder: Path,
    results: Path,
    only: Sequence[str] = (),
    jobs: int | None = None,
    dry_run: bool = False,
    download: Path | None = None,
    start: Sequence[str] = (),
    snakemake: Sequence[str] = (),
) -> int:
    """Run what is left of a study. Returns the exit code.

    `start` has NAME=WEIGHTS, or WEIGHTS for the first name. `snakemake` has further options of Snakemake.
    """
    console, study = Console(), read_study(name)
    given = find_given(study, start)
    chosen = choose_jobs(study, only, given, console)
    finished = read_results(study, results)
    left = [job for job in chosen if job.name not in finished]
    if not left and (dry_run or not study.gallery or (results / ROW).is_file()):
        again = "to run them again, give another folder with --results"
        say(console, f"All {len(chosen)} runs have their results in {results}; {again}.")
        return 0
    if importlib.util.find_spec("snakemake") is None:
        raise InputError("a study is run by Snakemake, which is not installed; install it: pip install mm3d[study].")
    check_cohorts(study, [job.run for job in left], folder)
    at_a_time = worker_count(jobs)
    threads = max(1, (os.cpu_count() or 1) // at_a_time)
    workflow = Workflow(
        study=study,
        folder=folder.resolve(),
        results=results.resolve(),
        left=tuple(job.name for job in left),
        download=None if download is None else download.resolve(),
        given=given,
        commit=find_commit(Path(__file__).parent),
        cores=at_a_time * threads,
        threads=threads,
    )
    if dry_run:
        with tempfile.TemporaryDirectory() as empty:
            call_snakemake(workflow, Path(empty), snakemake, "--dry-run", "--quiet", "host", "reason")
        say(console, f"{len(left)} of {len(chosen)} runs are left.")
        return 0
    check_download(study, download)
    for made in (folder, results):  # what cannot be written is an error now, not after the first run
        made.mkdir(parents=True, exist_ok=True)
        remove_partial(made)
    with lock_folder(folder):
        blocked = copy_kept(study, left, finished, folder, results, console)
        to_run = tuple(job.name for job in left if job.name not in blocked)
        for name in OUTPUTS:
            (folder / name).unlink(missing_ok=True)
        try:
            call_snakemake(replace(workflow, given=copy_given(given, folder), left=to_run), folder, snakemake)
        except KeyboardInterrupt:
            say(console, "Interrupted; the same command continues.")
            return 130
    missing = [job.name for job in left if not path_of(results, job.name).is_file()]
    tell_failed(folder, [name for name in missing if name in to_run], console)
    say(console, f"Wrote {results}: {len(chosen) - len(missing)} of {len(chosen)} runs are there.")
    return 1 if missing else 0


def choose_jobs(study: StudySpec, only: Sequence[str], given: Mapping[str, str], console: Console) -> list[Job]:
    """The jobs of some runs, or of all, with those that they start from. Jobs without start weights are left out."""
    for name in only:
        check_known("the study", "--only", name, [run.name for run in study.runs])
    lines = [study.line_of(job) for job in study.jobs.values() if not only or job.run.name in only]
    absent = {line[-1].run.start: None for line in lines if line[-1].run.start in set(study.given) - set(given)}
    chosen = {job.name for line in lines if line[-1].run.start not in absent for job in line}
    for name in absent:
        say(console, f"note: no --start {name}=WEIGHTS was given; runs that start from it are left out.")
    if not chosen:
        raise InputError(f"no run is left without start weights; give them with --start {next(iter(absent))}=WEIGHTS.")
    return [job for name, job in study.jobs.items() if name in chosen]


def find_given(study: StudySpec, texts: Sequence[str]) -> dict[str, str]:
    """The files of --start NAME=WEIGHTS, or --start WEIGHTS for the first name that the study takes weights for."""
    given = {}
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
        given[name] = str(file.resolve())
    return given


def check_download(study: StudySpec, download: Path | None) -> None:
    """A study of BCS-DBT needs the folder of its download, and no other study takes one."""
    wants = any(cohort.source == "bcs-dbt" for cohort in study.cohorts.values())
    if download is not None and not wants:
        raise InputError(f"{study.name} makes its own cohorts; leave {download} out.")
    if wants and (download is None or not download.is_dir()):
        wrong = "" if download is None else f"{download} is not a folder: "
        raise InputError(f"{wrong}{study.name} needs a download of BCS-DBT; give its folder.")


def copy_given(given: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Copy start weights into the study's folder. Results and configurations name the copies."""
    copies = {name: str(Path(STARTS, f"{name}.safetensors")) for name in given}
    for name, path in given.items():
        target = folder / copies[name]
        if target.is_file() and not filecmp.cmp(path, target, shallow=False):
            raise InputError(f"{folder} was run from other start weights than {path}; give another folder with -o.")
        with replacing(target) as partial:
            shutil.copyfile(path, partial)
    return copies


def copy_kept(
    study: StudySpec, left: Sequence[Job], finished: Mapping[str, Result], folder: Path, results: Path, console: Console
) -> set[str]:
    """Find the weights of finished runs that others start from. A clone has only their results, and the few weights
    that are kept beside them or come with mm3d. Returns the names of the jobs whose start weights are nowhere."""
    needed = {job.name: next((one.name for one in study.line_of(job) if one.name in finished), None) for job in left}
    lost = set()
    for name in dict.fromkeys(name for name in needed.values() if name is not None):
        result = finished[name]
        target = folder / result.weights
        if target.is_file():
            continue
        kept = results / WEIGHTS / f"{name}.safetensors"
        if (source := kept if kept.is_file() else find_shipped(result)) is None:
            lost.add(name)
            remedy = f"copy them there, or move {name}.json away to train it again"
            say(console, f"{name} has a result, but its weights {target} are not there; {remedy}.")
            continue
        with replacing(target) as partial:
            shutil.copyfile(source, partial)
        write_recipe(target, result.recipe)
        origin = f"kept in {kept.parent}" if source == kept else f"that come with mm3d, {source.name}"
        say(console, f"{name}: its weights are those {origin}.")
    blocked = {name for name, start in needed.items() if start in lost}
    if blocked:
        say(console, f"Not run, because start weights are missing: {', '.join(sorted(blocked))}.")
    return blocked


def find_commit(folder: Path) -> str:
    """The commit of the code, with a + if files differ from it. Empty outside a repository."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return ""


def call_snakemake(workflow: Workflow, directory: Path, given: Sequence[str], *options: str) -> None:
    """Run Snakemake in a directory, and end it with all its steps if this process is interrupted.

    `given` are options of the user, who then also says how many cores there are, and sees what Snakemake says."""
    save_json(directory / WORKFLOW, to_dict(workflow))
    command = [sys.executable, "-m", "snakemake", *OPTIONS, *options, "--snakefile", str(SNAKEFILE)]
    command += ["--directory", str(directory), "--configfile", str(directory / WORKFLOW)]
    command += given or ["--cores", str(workflow.cores)]
    with (directory / LOG).open("w", encoding="utf-8") as log:
        stderr = None if given else log
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=stderr, start_new_session=True, preexec_fn=die_with_parent()
        )
        try:
            process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)  # steps end, and Snakemake cancels those on a cluster
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            process.kill()
            raise


def tell_failed(folder: Path, missing: Sequence[str], console: Console) -> None:
    """List what failed, with reasons, and what was not finished because of it."""
    failed = (folder / FAILED).read_text(encoding="utf-8").splitlines() if (folder / FAILED).is_file() else []
    others = [name for name in missing if not any(line.startswith(f"{name} failed") for line in failed)]
    if failed:
        for line in ("What failed:", *failed):
            say(console, line)
    if others:
        say(console, f"Not finished, because of that or for a reason in {folder / LOG}: {', '.join(others)}.")
