"""`mm3d phantom`: a trial's settings in, a folder of exams out, as DICOM with tables or as prepared views.

    OUT/
        trial.json       the settings; a folder holds one trial, which may be extended with more breasts
        breasts/         <number>.json: what is known of a breast, written after its images
        images/          with --format dicom; boxes.csv, labels.csv, file-paths.csv are beside it
        views/           with --format prepared; cohort.json, manifest.csv, problems.csv are beside it

A breast depends on the settings and its number only: not on how many there are, nor on who makes it or when.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console

from mm3d.data.datasets import tables
from mm3d.data.prepare.prepared import write_cohort
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.data.records import Cohort
from mm3d.data.summary import summarise
from mm3d.phantom.made import Record, Render, find, make
from mm3d.shared.config import to_dict
from mm3d.shared.console import show_progress
from mm3d.shared.errors import InputError
from mm3d.shared.files import remove_partial, replacing
from mm3d.shared.workers import Task, Workers, worker_count

VERSION = 1  # of what is made from a trial's settings: raise it with any change of pixels, and old folders are refused
SECONDS_PER_BREAST = 6 * 3600.0  # our own code does not hang, but nothing waits for ever
NOTE = "These breasts are synthetic: nothing measured on them is a clinical result."

# What --format prepared makes at each scale where the user does not say: what the models of that size are made for.
PREPARED = {
    "tiny": PrepareSettings(width=48, length=96, slices=4),
    "mini": PrepareSettings(width=96, length=192, slices=8),
    "full": PrepareSettings(),
}


class Trial(Protocol):
    """What must be known here of a trial's settings, which are a frozen dataclass of plain data."""

    @property
    def breasts(self) -> int: ...


T = TypeVar("T", bound=Trial)


def run(render: Render[T], trial: T, output: Path, settings: PrepareSettings | None, jobs: int | None) -> int:
    """Make what is missing of a trial, then its lists: prepared views if there are settings for them, else DICOM.

    Returns the exit code.
    """
    workers = worker_count(jobs)
    _open_folder(output, trial, settings)
    _clear(output)  # a full disk may need the room
    console = Console()
    try:
        with show_progress(console, "rendering", trial.breasts) as advance:
            records = make_missing(render, trial, output, settings, workers, advance)
    except KeyboardInterrupt:
        kept = sum(find(output, index) is not None for index in range(trial.breasts))
        _clear(output)
        told = f"{kept} of {trial.breasts} breasts are in {output}; the same command makes the others."
        console.print(told, soft_wrap=True, highlight=False)
        raise
    name = output.resolve().name
    if settings is None:
        cohort = Cohort(name, tuple(record.breast_in(output) for record in records), notes=(NOTE,))
        tables.write(cohort, output, {name: count for record in records for name, count in record.slices.items()})
    else:
        cohort = Cohort(name, tuple(record.breast for record in records), notes=(NOTE,))  # the same wherever it is
        write_cohort(output, cohort, {name: key for record in records for name, key in record.keys.items()}, [])
    _clear(output)  # of processes, too, that were still dying before
    names = {view.name for view in cohort.views()}
    console.print(summarise(cohort, names))
    console.print(f"note: {NOTE}", soft_wrap=True, highlight=False)
    console.print(f"Wrote {output}: {trial.breasts} breasts, {len(names)} views.", soft_wrap=True, highlight=False)
    return 0


def make_missing(
    render: Render[T],
    trial: T,
    output: Path,
    settings: PrepareSettings | None,
    workers: int,
    advance: Callable[[], None],
) -> list[Record]:
    """Make every breast that is not there, and give the records of all. Ends at the first that cannot be made."""
    missing = []
    for index in range(trial.breasts):
        if find(output, index) is None:
            missing.append(index)
        else:
            advance()
    identity = _identity(trial)
    with Workers(workers) as pool:
        for index in missing:
            arguments = (render, trial, index, identity, output, settings)
            pool.submit(Task(index, make, arguments, SECONDS_PER_BREAST, "is there memory for that many --jobs?"))
        for outcome in pool.outcomes():
            if outcome.failure:
                raise InputError(
                    f"Breast {outcome.key} of {output} was not made ({outcome.failure.rstrip('.')}); what is finished "
                    "is kept: see to it, and give the same command to continue."
                )
            advance()
    records = [find(output, index) for index in range(trial.breasts)]
    if gone := [index for index, record in enumerate(records) if record is None]:
        raise InputError(f"Breast {gone[0]} of {output} was removed meanwhile; give the same command to make it again.")
    return [record for record in records if record is not None]


def _open_folder(output: Path, trial: Trial, settings: PrepareSettings | None) -> None:
    """Take a new folder for the trial, or one that holds the same trial with as many breasts or fewer."""
    path = output / "trial.json"
    told = {
        "version": VERSION,
        "format": "dicom" if settings is None else "prepared",
        "trial": to_dict(trial),
        "prepare": {} if settings is None else to_dict(settings),
    }
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; give a folder.")
    if path.is_file():
        _check_same(output, path, told)
    elif output.exists() and any(not item.name.endswith(".partial") for item in output.iterdir()):
        raise InputError(f"{output} is not empty and holds no trial; give an empty folder or a new one.")
    with replacing(path) as partial:
        partial.write_text(json.dumps(told, indent=1))


def _check_same(output: Path, path: Path, told: dict[str, Any]) -> None:
    """Refuse a folder that was made with other settings: its breasts and new ones are not of one trial."""
    try:
        there, now = _flat(json.loads(path.read_text())), _flat(told)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged; give another folder.") from error
    for name in dict.fromkeys([*there, *now]):
        if name != "breasts" and there.get(name) != now.get(name):
            raise InputError(
                f"{output} holds a trial whose {name} is {there.get(name)}, not {now.get(name)}; give another folder."
            )
    if there["breasts"] > now["breasts"]:
        raise InputError(
            f"{output} holds a trial of {there['breasts']} breasts; ask for as many or more, or give another folder."
        )


def _flat(told: dict[str, Any]) -> dict[str, Any]:
    return {"version": told["version"], "format": told["format"], **told["trial"], **told["prepare"]}


def _clear(output: Path) -> None:
    for folder in (output, *(item for item in output.rglob("*") if item.is_dir())):
        remove_partial(folder)


def _identity(trial: Trial) -> str:
    """What tells the images of one trial from those of all others: the settings, but for the number of breasts."""
    fixed = {name: value for name, value in to_dict(trial).items() if name != "breasts"}
    return hashlib.sha256(json.dumps([VERSION, fixed]).encode()).hexdigest()
