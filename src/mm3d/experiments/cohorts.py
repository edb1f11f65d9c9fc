"""The cohorts of a study, made where they are missing.

    FOLDER/cohorts/
        <name>/     a prepared folder; a part of another cohort has none of its own

A breast is rendered once, at the greatest depth that a study needs, and pooled on disk for the others: rendering takes
most of a second, pooling a few milliseconds, and the shallow copies together need less room than the deep one. Pooling
32 slices to 16 or 8 meets the same stored slices as pooling those at once would (16 and 8 divide 32); only the resizing
comes before the last maximum instead of after it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from mm3d.data.datasets import bcs_dbt
from mm3d.data.prepare.prepared import PreparedView, finish_view, key_of, read_breasts, read_notes, write_cohort
from mm3d.data.prepare.run import run as prepare_download
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.data.records import Cohort
from mm3d.experiments.pictures import write_pictures
from mm3d.experiments.spec import RunSpec, StudySpec, images_of, trial_of
from mm3d.phantom.run import make_trial
from mm3d.shared.config import difference, to_dict
from mm3d.shared.console import show_progress
from mm3d.shared.errors import InputError
from mm3d.shared.files import partial_path, remove_partial, replacing

FOLDER = "cohorts"
MADE = "made.json"  # what a cohort was made with, written last


@dataclass(frozen=True)
class Part:
    """Where a cohort's breasts are: a prepared folder, relative to the study's, and which split of it."""

    folder: Path
    split: str | None


def part_of(study: StudySpec, name: str) -> Part:
    """A cohort that neither pools nor makes anything lies in the folder of the one that it is of."""
    cohort = study.cohorts[name]
    if not cohort.of:
        return Part(Path(FOLDER, name), cohort.split)
    other = part_of(study, cohort.of)
    folder = Path(FOLDER, name) if _pools(study, name) else other.folder
    return Part(folder, cohort.split or other.split)


def slices_of(study: StudySpec, name: str) -> int:
    """S of a cohort's volumes."""
    cohort = study.cohorts[name]
    return cohort.slices or slices_of(study, cohort.of)


def _pools(study: StudySpec, name: str) -> bool:
    cohort = study.cohorts[name]
    return bool(cohort.of) and slices_of(study, name) != slices_of(study, cohort.of)


def needed(study: StudySpec, runs: Iterable[RunSpec]) -> list[str]:
    """Names of the cohorts that some runs need, each after what it is made of."""
    names: list[str] = []

    def add(name: str) -> None:
        if study.cohorts[name].of:
            add(study.cohorts[name].of)
        if name not in names:
            names.append(name)

    for run in runs:
        for name in (*(pool.cohort for pool in study.pools(run)), run.test):
            add(name)
        if run.input == "hm":
            add(run.train)  # whose mammograms' average histogram it is matched to
    return names


def check_download(study: StudySpec, download: Path | None) -> None:
    """A study of BCS-DBT is given the folder of its download, and no other is."""
    if download is not None and all(cohort.source != "bcs-dbt" for cohort in study.cohorts.values()):
        raise InputError(f"{study.name} makes its own cohorts; leave {download} out.")
    for name, cohort in study.cohorts.items():
        if cohort.source == "bcs-dbt" and (download is None or not download.is_dir()):
            wrong = "" if download is None else f"{download} is no folder: "
            raise InputError(f"{wrong}the cohort {name} is made from a download of BCS-DBT; give its folder.")


def make_cohorts(
    study: StudySpec, names: Sequence[str], folder: Path, download: Path | None, jobs: int, console: Console
) -> None:
    """Make what is missing."""
    for name in names:
        part = part_of(study, name)
        if part.folder != Path(FOLDER, name):
            continue
        target = folder / part.folder
        wanted = _told(study, name)
        if _is_made(target, wanted):
            continue
        console.print(f"cohort {name}:", highlight=False)
        _make(study, name, target, download, jobs, console, folder)
        with replacing(target / MADE) as partial:
            partial.write_text(json.dumps(wanted, indent=1))


def _told(study: StudySpec, name: str) -> dict[str, Any]:
    """All that a cohort's folder depends on."""
    cohort = study.cohorts[name]
    of = _told(study, cohort.of) if cohort.of else None
    return {"cohort": to_dict(cohort) | {"split": None}, "images": images_of(study), "of": of}


def _is_made(target: Path, wanted: dict[str, Any]) -> bool:
    path = target / MADE
    if not path.is_file():
        return False
    if found := difference(json.loads(path.read_text()), wanted):
        raise InputError(f"{target} was made with other settings ({found}); remove it, or give another folder with -o.")
    return True


def _make(
    study: StudySpec, name: str, target: Path, download: Path | None, jobs: int, console: Console, folder: Path
) -> None:
    cohort = study.cohorts[name]
    settings = PrepareSettings(width=study.width, length=study.length, slices=slices_of(study, name))
    if cohort.source == "phantom":
        make_trial(trial_of(study, cohort, f"the cohort {name}"), target, settings, jobs)
    elif cohort.source == "pictures":
        write_pictures(target, cohort.breasts, cohort.seed, cohort.malignant, (study.length, study.width), console)
    elif cohort.source == "bcs-dbt":
        assert download is not None  # check_download saw to it
        prepare_download(bcs_dbt.read, download, target, settings, jobs)
    else:
        pool_folder(folder / part_of(study, cohort.of).folder, target, settings, console)


def pool_folder(source: Path, target: Path, settings: PrepareSettings, console: Console) -> None:
    """A prepared folder with fewer slices, from one with more."""
    (target / "views").mkdir(parents=True, exist_ok=True)
    remove_partial(target / "views")
    breasts = read_breasts(source)
    keys: dict[str, str] = {}
    with show_progress(console, "pooling", len(breasts)) as advance:
        for prepared in breasts:
            for view in prepared.views:
                keys[view.view.name] = _pool_view(view, target, settings)
            advance()
    cohort = Cohort(target.name, tuple(prepared.breast for prepared in breasts), notes=tuple(read_notes(source)))
    write_cohort(target, cohort, keys, [])


def _pool_view(view: PreparedView, target: Path, settings: PrepareSettings) -> str:
    key = key_of(view.view, [view.pixels.stem], settings)
    geometry = replace(view.file.geometry, slices=min(settings.slices, view.file.geometry.slices))
    partial = partial_path(target / "views" / f"{key}.npy")
    try:
        with partial.open("wb") as file:
            np.save(file, pooled(view.image(), geometry.slices), allow_pickle=False)
        finish_view(target, key, partial, replace(view.file, geometry=geometry, settings=settings))
    finally:
        partial.unlink(missing_ok=True)
    return key


def pooled(volume: NDArray[np.uint16], slices: int) -> NDArray[np.uint16]:
    """(S, H, W) to (slices, H, W) by the maximum; neighbours share a slice where S is no multiple."""
    S = len(volume)
    return np.stack([volume[s * S // slices : -(-(s + 1) * S // slices)].max(axis=0) for s in range(slices)])
