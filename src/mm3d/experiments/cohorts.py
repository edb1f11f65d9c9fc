"""The cohorts of a study.

    FOLDER/cohorts/<name>/     a prepared folder; a part of another cohort has none of its own

A breast is rendered once, with the most slices that a study needs, and pooled on disk for the others: rendering takes
most of a second, pooling a few milliseconds. Pooling 32 slices to 16 or 8 takes the same stored slices as pooling them
at once would (16 and 8 divide 32); only the resizing comes before the last maximum instead of after it.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm3d.data.datasets import bcs_dbt
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import PreparedView, key_of, read_breasts, read_notes, write_cohort, write_view
from mm3d.data.prepare.run import run as prepare_download
from mm3d.data.records import Cohort
from mm3d.experiments.pictures import write_pictures
from mm3d.experiments.spec import RunSpec, StudySpec
from mm3d.phantom.run import make_trial
from mm3d.shared.config import to_dict
from mm3d.shared.console import Console, show_progress
from mm3d.shared.files import check_folder, remove_partial, save_json

FOLDER = "cohorts"
MADE = "made.json"  # the settings that a cohort was made with, written last


def part_of(study: StudySpec, name: str) -> tuple[Path, str | None]:
    """The prepared folder of a cohort, relative to the study's, and which split of it the cohort is."""
    place, split = study.place(name)
    return Path(FOLDER, place), split


def cohort_settings(study: StudySpec, name: str) -> dict[str, Any]:
    """Everything that the prepared folder of a cohort depends on."""
    cohort = study.cohorts[name]
    of = cohort_settings(study, cohort.of) if cohort.of else None
    return {"cohort": to_dict(cohort) | {"split": None}, "images": study.images(), "of": of}


def made_file(study: StudySpec, name: str) -> Path:
    """The file that is there when a cohort is."""
    return part_of(study, name)[0] / MADE


def check_cohorts(study: StudySpec, runs: Iterable[RunSpec], folder: Path) -> None:
    """Refuse cohorts in the study's folder that were made with other settings."""
    names = (source for run in runs for name in study.cohorts_of(run) for source in study.sources_of(name))
    for name in dict.fromkeys(study.place(name)[0] for name in names):  # in this order: a cohort's source comes first
        remedy = "remove it, or give another folder with -o"
        check_folder(folder / FOLDER / name, MADE, cohort_settings(study, name), remedy=remedy)


def make_cohort(study: StudySpec, name: str, download: Path | None, jobs: int, console: Console) -> None:
    """Make a prepared folder in the study's, or what a killed process left to do of it."""
    cohort, target = study.cohorts[name], Path(FOLDER, name)
    settings = PrepareSettings(width=study.width, length=study.length, slices=study.slices(name))
    if cohort.source == "phantom":
        make_trial(study.trial_of(name), target, settings, jobs)
    elif cohort.source == "pictures":
        write_pictures(target, cohort.breasts, cohort.seed, cohort.malignant, (study.length, study.width), console)
    elif cohort.source == "bcs-dbt":
        assert download is not None  # the workflow has checked it
        prepare_download(bcs_dbt.read, download, target, settings, jobs)
    else:
        pool_folder(part_of(study, cohort.of)[0], target, settings, console)
    save_json(target / MADE, cohort_settings(study, name))


def pool_folder(source: Path, target: Path, settings: PrepareSettings, console: Console) -> None:
    """Make a prepared folder with fewer slices from one with more."""
    remove_partial(target / "views")
    breasts = read_breasts(source)
    keys: dict[str, str] = {}
    with show_progress(console, "pooling", len(breasts)) as advance:
        for prepared in breasts:
            keys |= {view.view.name: _pool_view(view, target, settings) for view in prepared.views}
            advance()
    cohort = Cohort(target.name, tuple(prepared.breast for prepared in breasts), notes=tuple(read_notes(source)))
    write_cohort(target, cohort, keys, [])


def _pool_view(view: PreparedView, target: Path, settings: PrepareSettings) -> str:
    """Write one view with fewer slices. Returns its key."""
    key = key_of(view.view, [view.pixels.stem], settings)
    geometry = replace(view.file.geometry, slices=min(settings.slices, view.file.geometry.slices))
    file = replace(view.file, geometry=geometry, settings=settings)
    write_view(target, key, pool_slices(view.image(), geometry.slices), file)
    return key


def pool_slices(volume: NDArray[np.unsignedinteger], slices: int) -> NDArray[np.unsignedinteger]:
    """(S, H, W) to (slices, H, W) by the maximum. Neighbours share a slice where S is not a multiple."""
    S = len(volume)
    return np.stack([volume[s * S // slices : -(-(s + 1) * S // slices)].max(axis=0) for s in range(slices)])
