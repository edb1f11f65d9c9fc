"""`mm3d phantom`: make a trial in a folder, as DICOM files with tables or as prepared views.

    OUT/
        trial.json       the settings; a folder holds one trial, which may be extended with more breasts
        breasts/         <number>.json: the record of a breast, written after its images
        images/          with --format dicom, and boxes.csv, labels.csv, file-paths.csv beside it
        views/           with --format prepared, and cohort.json, manifest.csv, problems.csv beside it

A breast that has a record is complete. A breast depends on the settings and its number only: not on how many there are,
who makes it, or when.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from mm3d.data.datasets import write_tables
from mm3d.data.dicom.window import StoredImage
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import SYNTHETIC, is_prepared, key_of, write_cohort
from mm3d.data.prepare.run import prepare_array, summarise
from mm3d.data.records import Breast, Cohort
from mm3d.phantom.dicom import display_window, write_view
from mm3d.phantom.imaging import SyntheticView
from mm3d.phantom.trial import Trial, render_breast
from mm3d.shared.config import from_dict, parse_json, to_dict
from mm3d.shared.console import Console, say, show_progress
from mm3d.shared.errors import InputError
from mm3d.shared.files import check_folder, remove_partial, replacing, save_json
from mm3d.shared.workers import Task, Workers, worker_count

VERSION = 2  # raise it with any change of pixels: then folders of older versions are refused
SECONDS_PER_BREAST = 6 * 3600.0  # then its worker counts as hung
REMEDY = "give another folder"

# The sizes of prepared views at each scale, for the models of that size. Options of the command change them.
PREPARED = {
    "tiny": PrepareSettings(width=48, length=96, slices=4),
    "mini": PrepareSettings(width=96, length=192, slices=8),
    "midi": PrepareSettings(width=160, length=320, slices=8),
    "full": PrepareSettings(),
}

Render = Callable[[Trial, int], tuple[Breast, list[SyntheticView]]]  # a module-level function, for the workers


@dataclass(frozen=True)
class Record:
    """A finished breast."""

    breast: Breast  # its files are relative to the trial's folder, so that the folder may move
    slices: dict[str, int]  # number of stored slices of each view, by its name
    keys: dict[str, str] = field(default_factory=dict)  # of prepared views, by name
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of the files, by name: a damaged one is made again


def make_trial(
    trial: Trial, output: Path, settings: PrepareSettings | None, jobs: int | None, render: Render = render_breast
) -> int:
    """Make what is missing of a trial, then its lists. Returns the exit code.

    With settings, the views are written prepared, without them as DICOM.
    """
    workers = worker_count(jobs)
    _open_folder(output, trial, settings)
    _remove_partial_files(output)  # a full disk may need the room
    console = Console()
    try:
        with show_progress(console, "rendering", trial.breasts) as advance:
            records = _make_missing(render, trial, output, settings, workers, advance)
    except KeyboardInterrupt:
        count = sum(_read_record(output, index) is not None for index in range(trial.breasts))
        _remove_partial_files(output)
        say(console, f"{count} of {trial.breasts} breasts are in {output}; the same command makes the others.")
        raise
    cohort = _write_lists(records, output, settings)
    _remove_partial_files(output)  # also those of processes that had not ended before
    names = {view.name for view in cohort.views()}
    console.print(summarise(cohort, names))
    say(console, f"note: {SYNTHETIC}")
    say(console, f"Wrote {output}: {trial.breasts} breasts, {len(names)} views.")
    return 0


def _open_folder(output: Path, trial: Trial, settings: PrepareSettings | None) -> None:
    """Take a new folder for the trial, or one that holds the same trial with as many breasts or fewer."""
    content = {
        "version": VERSION,
        "format": "dicom" if settings is None else "prepared",
        "trial": to_dict(trial),
        "prepare": {} if settings is None else to_dict(settings),
    }
    before = check_folder(output, "trial.json", content, may_differ=("trial.breasts",), remedy=REMEDY)
    if before and before["trial"]["breasts"] > trial.breasts:
        count = before["trial"]["breasts"]
        raise InputError(f"{output} holds a trial of {count} breasts; ask for as many or more, or {REMEDY}.")
    if before is None and output.exists() and any(not item.name.endswith(".partial") for item in output.iterdir()):
        raise InputError(f"{output} is not empty and holds no trial; give an empty folder or a new one.")
    save_json(output / "trial.json", content)


def _make_missing(
    render: Render,
    trial: Trial,
    output: Path,
    settings: PrepareSettings | None,
    workers: int,
    advance: Callable[[], None],
) -> list[Record]:
    """Make every breast that has no record, and return the records of all. Stop at the first failure."""
    missing = []
    for index in range(trial.breasts):
        if _read_record(output, index) is None:
            missing.append(index)
        else:
            advance()
    with Workers(workers) as pool:
        for index in missing:
            arguments = (render, trial, index, output, settings)
            remedy = "is there memory for that many --jobs?"
            pool.submit(Task(index, _make_breast, arguments, SECONDS_PER_BREAST, remedy))
        for outcome in pool.outcomes():
            if outcome.failure:
                raise InputError(
                    f"Breast {outcome.key} of {output} was not made ({outcome.failure.rstrip('.')}). Finished breasts "
                    "are kept; solve the problem and give the same command to continue."
                )
            advance()
    records = [_read_record(output, index) for index in range(trial.breasts)]
    if None in records:
        number = records.index(None)
        raise InputError(f"Breast {number} of {output} was removed meanwhile; give the same command to make it again.")
    return [record for record in records if record is not None]


def _make_breast(render: Render, trial: Trial, index: int, folder: Path, settings: PrepareSettings | None) -> None:
    """Render a breast and write its images, then its record. Runs in a worker."""
    breast, images = render(trial, index)
    identity = _identity(trial)
    keys: dict[str, str] = {}
    views = []
    try:
        for image in images:
            view = image.view
            if settings is None:
                with replacing(folder / view.files[0]) as partial:
                    write_view(image, identity, partial)
            else:
                keys[view.name] = key = key_of(view, identity, settings)
                _write_prepared(image, settings, folder, key)
                view = replace(view, files=(Path("views", f"{key}.npy"),))
            views.append(view)
        record = Record(
            breast=replace(breast, views=tuple(views)),
            slices={image.view.name: len(image.pixels) for image in images},
            keys=keys,
            sizes={file.name: (folder / file).stat().st_size for view in views for file in view.files},
        )
        save_json(_record_path(folder, index), to_dict(record))
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error


def _write_prepared(image: SyntheticView, settings: PrepareSettings, folder: Path, key: str) -> None:
    """Write what `mm3d prepare` makes of the view's DICOM file, without that file."""
    _, H, W = image.pixels.shape
    stored = StoredImage(
        name=image.view.name,
        rows=H,
        columns=W,
        bits_stored=image.bits,
        display=display_window(image.bits),
        pixel_spacing=image.pixel_spacing,
        slice_spacing=image.slice_spacing,
        vendor=image.system.manufacturer,
    )
    prepare_array(image.view, stored, image.pixels, settings, folder, key)


def _record_path(folder: Path, index: int) -> Path:
    return folder / "breasts" / f"{index:06d}.json"


def _read_record(folder: Path, index: int) -> Record | None:
    """The record of a breast. None if the breast is not made, or if a file of it is missing or damaged."""
    path = _record_path(folder, index)
    try:
        record = from_dict(Record, parse_json(path.read_text()), str(path))
    except (OSError, ValueError, InputError):
        return None
    files = [folder / file for view in record.breast.views for file in view.files]
    complete = all(file.is_file() and file.stat().st_size == record.sizes.get(file.name) for file in files)
    return record if complete and all(is_prepared(folder, key) for key in record.keys.values()) else None


def _write_lists(records: list[Record], output: Path, settings: PrepareSettings | None) -> Cohort:
    """Write the tables of a DICOM trial, or the lists of a prepared one."""
    cohort = Cohort(output.resolve().name, tuple(record.breast for record in records), notes=(SYNTHETIC,))
    if settings is None:
        located = tuple(_locate_files(record.breast, output) for record in records)
        slices = {name: count for record in records for name, count in record.slices.items()}
        write_tables.write(replace(cohort, breasts=located), output, slices)
    else:
        write_cohort(output, cohort, {name: key for record in records for name, key in record.keys.items()}, [])
    return cohort


def _locate_files(breast: Breast, folder: Path) -> Breast:
    """The breast with the full paths of its files."""
    views = (replace(view, files=tuple(folder / file for file in view.files)) for view in breast.views)
    return replace(breast, views=tuple(views))


def _remove_partial_files(output: Path) -> None:
    for folder in (output, *(item for item in output.rglob("*") if item.is_dir())):
        remove_partial(folder)


def _identity(trial: Trial) -> str:
    """What tells the images of one trial from those of all others: its settings without the number of breasts."""
    fixed = {name: value for name, value in to_dict(trial).items() if name != "breasts"}
    return hashlib.sha256(json.dumps([VERSION, fixed]).encode()).hexdigest()
