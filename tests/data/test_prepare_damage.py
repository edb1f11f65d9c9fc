"""Pixels that are no breast are refused, whatever their header says. A detector would find nothing in them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.dicom_files import Pixels, breast, mammogram, tomosynthesis, write
from support.stored_views import SMALL, view_of, volume

from mm3d.data.prepare.damage import find_damage
from mm3d.data.prepare.view import begin_view, fill_view
from mm3d.shared.errors import InputError

WHOLE = breast()
DAMAGE: dict[str, tuple[Callable[[Pixels], Pixels], str]] = {
    "noise": (lambda image: np.random.default_rng(0).integers(0, 1024, image.shape).astype(np.uint16), "noise"),
    "bytes exchanged": (lambda image: (9 * image).byteswap(), "(noise|exchanged)"),
    "not written to its end": (lambda image: _blacken(image, 130, 240), "black part"),
    "a lost block": (lambda image: _blacken(image, 110, 122), "black part"),
    "inverted": (lambda image: (1023 - image).astype(np.uint16), "it is inverted"),
}


def _blacken(image: Pixels, first: int, last: int) -> Pixels:
    image = image.copy()
    image[first:last] = 0
    return image


def prepare(path: Path, folder: Path) -> tuple[str, ...]:
    """A volume. Returns the notes on it."""
    pixels = folder / "pixels.npy"
    headers, plan, filled = begin_view(view_of(path), None, SMALL, pixels)
    if not filled:
        fill_view(headers, plan, pixels, range(plan.shape[0]))
    return plan.file.notes


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_no_breast_is_refused(tmp_path: Path, name: str) -> None:
    damage, said = DAMAGE[name]
    ds = mammogram(damage(WHOLE))
    ds.BitsStored, ds.HighBit = 16, 15
    path = write(ds, tmp_path / "m.dcm")
    with pytest.raises(InputError, match=rf"m\.dcm .*{said}.*; copy or export it again\.$"):
        begin_view(view_of(path, modality="FFDM", upright=False), None, SMALL, tmp_path / "pixels.npy")


@pytest.mark.parametrize("name", ["noise", "not written to its end", "a lost block"])
def test_one_such_slice_is_enough(tmp_path: Path, name: str) -> None:
    """The cancer may be on it, and neighbours are pooled with it."""
    frames = volume()
    frames[6] = DAMAGE[name][0](frames[6])
    with pytest.raises(InputError, match=rf"v\.dcm: slice 7 of 9 .*{DAMAGE[name][1]}"):
        prepare(write(tomosynthesis(frames), tmp_path / "v.dcm"), tmp_path)


def test_slices_between_others_are_neither_empty_nor_of_something_else(tmp_path: Path) -> None:
    frames = volume()
    frames[[0, 8]] = 0  # some software begins and ends with empty slices
    notes = prepare(write(tomosynthesis(frames), tmp_path / "v.dcm"), tmp_path)
    assert notes == ("its first slice is empty.", "its last slice is empty.")
    frames[6] = 3
    with pytest.raises(InputError, match=r"v\.dcm: slice 7 of 9 is empty; copy"):
        prepare(write(tomosynthesis(frames), tmp_path / "v.dcm"), tmp_path)
    frames[6] = breast(side="R")
    with pytest.raises(InputError, match=r"v\.dcm: slice 7 of 9 is unlike the slice before it; copy"):
        prepare(write(tomosynthesis(frames), tmp_path / "v.dcm"), tmp_path)


def test_real_images_are_not_refused(real_data: Path) -> None:
    """docs/data.md has the figures of all of them."""
    slices = sorted((real_data / "bcs-dbt" / "annotated-slices").glob("*.jpg"))[::4]
    films = sorted((real_data / "cbis-films" / "films").glob("*.jpg"))[::60]
    for path in (*slices, *films):
        image = np.asarray(Image.open(path).convert("L"))
        assert find_damage(image, film=path in films) == "", path.name
