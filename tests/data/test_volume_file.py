"""Arrays have no header that says what they are: axes or values that are read wrongly are noticed by nobody."""

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from support.array_files import write_nifti, write_nrrd

from mm3d.data.records import Picture
from mm3d.data.volume_file import read_array
from mm3d.shared.errors import InputError

VOLUME = np.random.default_rng(0).integers(0, 1000, (5, 7, 6)).astype(np.uint16)  # slices, rows, columns
MANY = 10**6


def save_npy(path: Path, volume: NDArray[Any]) -> Path:
    np.save(path, volume)
    return path


@pytest.mark.parametrize("name", ["a.npy", "a.nii", "a.nii.gz", "a.nrrd", "gzip.nrrd"])
def test_slices_rows_and_columns_are_where_they_belong(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("npy"):
        save_npy(path, VOLUME)
    elif "nrrd" in name:
        write_nrrd(path, VOLUME, "gzip" if "gzip" in name else "raw")
    else:
        write_nifti(path, VOLUME)
    image, pixels = read_array(path, Picture(), MANY)
    assert np.array_equal(pixels, VOLUME)
    assert (image.rows, image.columns, image.bits_stored) == (7, 6, 16)
    spacings = (None, None) if name.endswith("npy") else (0.1, 1.0)
    assert (image.pixel_spacing, image.slice_spacing) == pytest.approx(spacings)
    own, _ = read_array(path, Picture(pixel_spacing=0.2, slice_spacing=3.0), MANY)
    assert (own.pixel_spacing, own.slice_spacing) == (0.2, 3.0)  # the table's count


@pytest.mark.parametrize("kind", ["uint8", "int16", "int32", "float32", "float64"])
def test_values_keep_their_order_whatever_type_they_have(tmp_path: Path, kind: str) -> None:
    values = (VOLUME // 4 - (100 if kind.startswith("f") else 0)).astype(kind)
    orders: tuple[Literal["<", ">"], ...] = ("<", ">")
    for order in orders:
        _, pixels = read_array(write_nifti(tmp_path / "a.nii", values, order=order), Picture(), MANY)
        assert pixels.dtype in (np.uint8, np.uint16, np.int16)
        assert np.array_equal(np.argsort(pixels.ravel(), kind="stable"), np.argsort(values.ravel(), kind="stable"))
        if not kind.startswith("f"):
            assert np.array_equal(pixels, values)


def test_directions_of_an_nrrd_file_give_the_spacing(tmp_path: Path) -> None:
    directions = "space directions: (0.06,0.08,0) (-0.08,0.06,0) (0,0,2)\nspace: left-posterior-superior"
    image, _ = read_array(write_nrrd(tmp_path / "a.nrrd", VOLUME, more=directions), Picture(), MANY)
    assert (image.pixel_spacing, image.slice_spacing) == pytest.approx((0.1, 2.0))


def test_one_image_is_a_volume_of_one_slice(tmp_path: Path) -> None:
    _, pixels = read_array(save_npy(tmp_path / "a.npy", VOLUME[0]), Picture(), MANY)
    assert np.array_equal(pixels, VOLUME[:1])


@pytest.mark.parametrize("name", ["a.npy", "a.nii", "a.nii.gz", "a.nrrd", "gzip.nrrd"])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("npy"):
        save_npy(path, VOLUME)
    elif "nrrd" in name:
        write_nrrd(path, VOLUME, "gzip" if "gzip" in name else "raw")
    else:
        write_nifti(path, VOLUME)
    whole = path.read_bytes()
    for length in (0, 20, len(whole) // 2, len(whole) - 12):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=str(path)):
            read_array(path, Picture(), MANY)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (40, struct.pack("<8h", 4, 6, 7, 5, 3, 1, 1, 1), "has 4 axes of 6 x 7 x 5 x 3"),
        (40, struct.pack("<8h", 3, 30_000, 30_000, 5, 1, 1, 1, 1), "at most 1 million are read"),
        (40, struct.pack("<8h", 3, 0, 7, 5, 1, 1, 1, 1), "a size of 0"),
        (40, struct.pack("<8h", 3, 60, 70, 5, 1, 1, 1, 1), "fewer values than its header says"),
        (70, struct.pack("<h", 128), "not one grey value"),  # RGB
        (108, struct.pack("<f", 1e30), "does not say where its values begin"),
        (344, b"ni1\0", "no NIfTI-1 file with header and values in one"),
    ],
)
@pytest.mark.parametrize("suffix", ["nii", "nii.gz"])
def test_headers_that_cannot_be_true_are_refused(
    tmp_path: Path, at: int, value: bytes, words: str, suffix: str
) -> None:
    import gzip

    content = bytearray(write_nifti(tmp_path / "a.nii", VOLUME).read_bytes())
    content[at : at + len(value)] = value
    path = tmp_path / f"b.{suffix}"
    path.write_bytes(gzip.compress(bytes(content)) if suffix == "nii.gz" else bytes(content))
    with pytest.raises(InputError, match=words):
        read_array(path, Picture(), MANY)


def test_values_that_nothing_can_be_made_of_are_refused(tmp_path: Path) -> None:
    for array in (np.full((2, 3, 4), np.nan), VOLUME.astype(object), VOLUME.astype(complex), VOLUME[None]):
        with pytest.raises(InputError):
            read_array(save_npy(tmp_path / "a.npy", array), Picture(), MANY)


def test_flipped_bits_are_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for path in (write_nifti(tmp_path / "a.nii", VOLUME), write_nrrd(tmp_path / "a.nrrd", VOLUME)):
        whole = path.read_bytes()
        for place in rng.integers(0, min(360, len(whole)), 200):
            content = bytearray(whole)
            content[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(content)
            with suppress(InputError):
                assert read_array(path, Picture(), MANY)[1].ndim == 3
