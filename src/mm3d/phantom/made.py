"""One breast of a trial on disk: its images, and last a record of it, so that a breast with a record is whole."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from mm3d.data.datasets.keys import Key
from mm3d.data.prepare.prepared import finish_view, is_prepared, key_of
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.data.prepare.source import ArraySlices, Image
from mm3d.data.prepare.view import fill_slices, plan_view, view_file
from mm3d.data.records import Breast, View
from mm3d.phantom.dicom import full_range, write_view
from mm3d.phantom.rendered import RenderedBreast, RenderedView
from mm3d.shared.config import from_dict, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import partial_path, replacing

T = TypeVar("T")
Render = Callable[[T, int], RenderedBreast]  # a trial's settings and a breast's number; a module-level function


@dataclass(frozen=True)
class Record:
    """A finished breast."""

    breast: Breast  # the paths of its files are relative to the trial's folder, so that that may move
    slices: dict[str, int]  # stored slices of each view, by its name
    keys: dict[str, str] = field(default_factory=dict)  # of the views, by name, if they are prepared
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of the files, by name: a damaged one is made again

    def breast_in(self, folder: Path) -> Breast:
        """The breast, with its files where they are."""
        views = (replace(view, files=tuple(folder / file for file in view.files)) for view in self.breast.views)
        return replace(self.breast, views=tuple(views))


def find(folder: Path, index: int) -> Record | None:
    """The record of a breast; None if it is not made, or if something of it is gone."""
    path = _path(folder, index)
    try:
        record = from_dict(Record, json.loads(path.read_text()), str(path))
    except (OSError, ValueError, InputError):
        return None
    files = [folder / file for view in record.breast.views for file in view.files]
    whole = all(file.is_file() and file.stat().st_size == record.sizes.get(file.name) for file in files)
    return record if whole and all(is_prepared(folder, key) for key in record.keys.values()) else None


def make(
    render: Render[T], trial: T, index: int, identity: str, folder: Path, settings: PrepareSettings | None
) -> None:
    """Render a breast and write it, as DICOM or, with settings, prepared. Runs in a worker.

    `identity` tells the trial from all others.
    """
    rendered = render(trial, index)
    try:
        if settings is None:
            record = _write_dicom(rendered, identity, folder)
        else:
            record = _write_prepared(rendered, identity, folder, settings)
        files = [folder / file for view in record.breast.views for file in view.files]
        record = replace(record, sizes={file.name: file.stat().st_size for file in files})
        with replacing(_path(folder, index)) as partial:
            partial.write_text(json.dumps(to_dict(record), indent=1))
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror or error}).") from error


def _path(folder: Path, index: int) -> Path:
    return folder / "breasts" / f"{index:06d}.json"


def _write_dicom(rendered: RenderedBreast, identity: str, folder: Path) -> Record:
    record = _record(rendered)
    for view, image in zip(record.breast.views, rendered.views, strict=True):
        with replacing(folder / view.files[0]) as partial:
            write_view(image, rendered, identity, partial)
    return record


def _write_prepared(rendered: RenderedBreast, identity: str, folder: Path, settings: PrepareSettings) -> Record:
    record = _record(rendered)
    (folder / "views").mkdir(exist_ok=True)
    views, keys = [], {}
    for view, image in zip(record.breast.views, rendered.views, strict=True):
        keys[view.name] = key = key_of(view, identity, settings)
        pixels = Path("views") / f"{key}.npy"
        _prepare(view, image, rendered.system.manufacturer, settings, folder, key)
        views.append(replace(view, files=(pixels,)))  # there is no other file of it
    return replace(record, breast=replace(record.breast, views=tuple(views)), keys=keys)


def _prepare(
    view: View, rendered: RenderedView, vendor: str, settings: PrepareSettings, folder: Path, key: str
) -> None:
    """What `mm3d prepare` makes of the view's DICOM file, without that file."""
    S, H, W = rendered.pixels.shape
    image = Image(
        name=view.name,
        slices=S,
        rows=H,
        columns=W,
        display=full_range(rendered.bits),
        pixel_spacing=rendered.pixel_spacing,
        slice_spacing=rendered.slice_spacing,
        vendor=vendor,
        limit=2**rendered.bits - 1,
    )
    slices = ArraySlices(rendered.pixels)
    plan = plan_view(view, image, slices, settings)
    prepared = np.empty(plan.shape, dtype=np.uint16)
    fill_slices(plan, slices, prepared, range(len(prepared)))
    partial = partial_path(folder / "views" / f"{key}.npy")
    try:
        with partial.open("wb") as file:
            np.save(file, prepared, allow_pickle=False)
        finish_view(folder, key, partial, view_file(plan, settings))
    finally:
        partial.unlink(missing_ok=True)


def _record(rendered: RenderedBreast) -> Record:
    """What the tables say of a rendered breast, with the DICOM files that it has or would have."""
    views = []
    for view in rendered.views:
        kind = (view.laterality + view.position).lower()
        views.append(
            View(
                name=Key(rendered.patient, rendered.exam, kind, view.modality).name,
                laterality=view.laterality,
                position=view.position,
                modality=view.modality,
                files=(Path("images", rendered.patient, f"{rendered.exam}-{kind}-{view.modality.lower()}.dcm"),),
                annotations=view.findings,
                upright=view.modality == "DBT",
            )
        )
    breast = Breast(
        patient=rendered.patient,
        exam=rendered.exam,
        laterality=rendered.laterality,
        label=rendered.label,
        views=tuple(views),
        attributes=rendered.attributes,
    )
    slices = {view.name: len(image.pixels) for view, image in zip(views, rendered.views, strict=True)}
    return Record(breast, slices)
