"""Volumes and images as arrays: NIfTI, NRRD and npy files, which hold the grey values and say little else.

The first axis of a NIfTI or NRRD file runs along a row (x), the second from row to row (y), and the third from slice to
slice. An npy file is (slices, rows, columns) or (rows, columns). Nothing is turned. Sizes are compared with the file
before any room is made for them.
"""

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm3d.data.dicom.window import StoredImage
from mm3d.data.picture import AS_SHOWN
from mm3d.data.records import Picture
from mm3d.shared.errors import InputError

SUFFIXES = (".npy", ".nii", ".nii.gz", ".nrrd")
NIFTI_HEADER = 348
NIFTI_KINDS = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}
NRRD_KINDS = {
    **dict.fromkeys(("signed char", "int8", "int8_t"), "i1"),
    **dict.fromkeys(("uchar", "unsigned char", "uint8", "uint8_t"), "u1"),
    **dict.fromkeys(("short", "short int", "signed short", "int16", "int16_t"), "i2"),
    **dict.fromkeys(("ushort", "unsigned short", "uint16", "uint16_t"), "u2"),
    **dict.fromkeys(("int", "signed int", "int32", "int32_t"), "i4"),
    **dict.fromkeys(("uint", "unsigned int", "uint32", "uint32_t"), "u4"),
    "float": "f4",
    "double": "f8",
}
MAX_NRRD_HEADER = MAX_START = 1_000_000  # bytes
KEPT = ("u1", "u2", "i2")  # kinds of number that stay as they are; others become 16 bits
WHITE = 65535


@dataclass(frozen=True)
class Layout:
    """Where the values lie in a file, and what they are."""

    shape: tuple[int, int, int]  # slices, rows, columns
    kind: np.dtype[Any]
    start: int  # byte of the first value, behind the compression if there is one
    compressed: bool = False  # with gzip
    whole: bool = False  # the compression is around the whole file, its header too
    pixel_spacing: float | None = None  # mm
    slice_spacing: float | None = None


def is_array(path: Path) -> bool:
    """Whether a file is one of these, by its name."""
    return path.name.lower().endswith(SUFFIXES)


def read_layout(path: Path) -> Layout:
    """Read and check the header of a file."""
    name = path.name.lower()
    try:
        if name.endswith(".npy"):
            layout = _read_npy(path)
        else:
            layout = _read_nrrd(path) if name.endswith(".nrrd") else _read_nifti(path)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or 'damaged'}); copy it again.") from error
    except Exception as error:  # any exception means a damaged header
        raise InputError(f"{path} has a damaged header, or is no NIfTI, NRRD or npy file; write it again.") from error
    if min(layout.shape) < 1:
        raise InputError(f"{path} has a size of 0; write it again.")
    return layout


def read_array(path: Path, picture: Picture, max_pixels: int) -> tuple[StoredImage, NDArray[np.integer]]:
    """The slices of a file (slices, rows, columns), and how they are stored. Spacings of the table come first."""
    layout = read_layout(path)
    if math.prod(layout.shape) > max_pixels:
        raise InputError(
            f"{path} has {' x '.join(map(str, layout.shape))} values, and at most {max_pixels / 1e6:.0f} million are "
            "read; if that is its real size, give a larger --max-pixels."
        )
    values = _to_integers(path, _read_values(path, layout))
    _, rows, columns = layout.shape
    image = StoredImage(
        name=str(path),
        rows=rows,
        columns=columns,
        bits_stored=8 * values.itemsize,
        signed=values.dtype.kind == "i",
        display=AS_SHOWN if values.dtype == np.uint8 else None,
        pixel_spacing=picture.pixel_spacing or layout.pixel_spacing,
        slice_spacing=picture.slice_spacing or layout.slice_spacing,
        vendor="",
    )
    return image, values


def _read_npy(path: Path) -> Layout:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim not in (2, 3) or not array.flags.c_contiguous:
        raise InputError(f"{path} must be (slices, rows, columns) or (rows, columns) in C order; write it so.")
    shape = (1, *array.shape) if array.ndim == 2 else array.shape
    return Layout((int(shape[0]), int(shape[1]), int(shape[2])), array.dtype, int(array.offset))


def _read_nifti(path: Path) -> Layout:
    compressed = path.name.lower().endswith(".gz")
    with gzip.open(path, "rb") if compressed else path.open("rb") as file:
        head = file.read(NIFTI_HEADER)
    order = next((order for order in "<>" if struct.unpack_from(f"{order}i", head)[0] == NIFTI_HEADER), None)
    if order is None or head[344:348] != b"n+1\0":
        raise InputError(f"{path} is no NIfTI-1 file with header and values in one; write it as .nii or .nii.gz.")
    count, *sizes = struct.unpack_from(f"{order}8h", head, 40)
    spacings = struct.unpack_from(f"{order}8f", head, 76)
    start, slope = struct.unpack_from(f"{order}2f", head, 108)
    kind = struct.unpack_from(f"{order}h", head, 70)[0]
    if kind not in NIFTI_KINDS or slope < 0:
        raise InputError(f"{path} has values that are not one grey value for each voxel; write it in grey.")
    if not NIFTI_HEADER <= start <= MAX_START:
        raise InputError(f"{path} does not say where its values begin; write it again.")
    columns, rows, slices = _three(path, sizes[:count])
    spacing = [spacings[axis] if 0 < spacings[axis] < math.inf else None for axis in (1, 3)]
    dtype = np.dtype(order + NIFTI_KINDS[kind])
    return Layout((slices, rows, columns), dtype, int(start), compressed, compressed, *spacing)


def _read_nrrd(path: Path) -> Layout:
    with path.open("rb") as file:
        content = file.read(MAX_NRRD_HEADER)
    head, end, _ = content.partition(b"\n\n")
    if b"\r\n\r\n" in content[: len(head) + 4]:
        head, end, _ = content.partition(b"\r\n\r\n")
    lines = head.decode("utf-8").splitlines()
    if not lines[0].startswith("NRRD") or not end:
        raise InputError(f"{path} is no NRRD file, or is cut off in its header; copy it again.")
    pairs = [line.partition(":") for line in lines[1:] if ":" in line and not line.startswith("#")]
    fields = {name.strip().lower(): value.lstrip("=").strip() for name, _, value in pairs}
    encoding = fields["encoding"].lower()
    if "data file" in fields or "datafile" in fields or encoding not in ("raw", "gzip", "gz"):
        raise InputError(f"{path} has its values in another file, or as {encoding}; write it as one file, raw or gzip.")
    if fields["type"].lower() not in NRRD_KINDS:
        raise InputError(f"{path} has values that are not one grey value for each voxel; write it in grey.")
    order = ">" if fields.get("endian", "little").lower() == "big" else "<"
    columns, rows, slices = _three(path, [int(size) for size in fields["sizes"].split()])
    spacings = _nrrd_spacings(fields)
    dtype = np.dtype(order + NRRD_KINDS[fields["type"].lower()])
    return Layout((slices, rows, columns), dtype, len(head) + len(end), encoding != "raw", False, *spacings)


def _nrrd_spacings(fields: dict[str, str]) -> tuple[float | None, float | None]:
    """From pixel to pixel, and from slice to slice; None if the file does not say."""
    if "space directions" in fields:
        vectors = [part.strip(" ()") for part in fields["space directions"].replace("none", "(0)").split(")")]
        lengths = [math.hypot(*map(float, vector.strip("( ").split(","))) for vector in vectors if vector]
    else:
        lengths = [float(text) for text in fields.get("spacings", "").split()]
    known = [length if 0 < length < math.inf else None for length in lengths] + [None] * 3
    return known[0], known[2]


def _three(path: Path, sizes: list[int]) -> tuple[int, int, int]:
    """Sizes as columns, rows and slices; further axes must have one element."""
    whole = (*sizes, 1, 1, 1)
    if len(sizes) < 2 or any(size != 1 for size in whole[3:]):
        raise InputError(f"{path} has {len(sizes)} axes of {' x '.join(map(str, sizes))}; give one volume or image.")
    return int(whole[0]), int(whole[1]), int(whole[2])


def _read_values(path: Path, layout: Layout) -> NDArray[Any]:
    """The values, mapped from the file if they are not compressed."""
    needed = math.prod(layout.shape) * layout.kind.itemsize
    cut = f"{path} is cut off: it has fewer values than its header says; copy it again."
    if not layout.compressed:
        if path.stat().st_size < layout.start + needed:
            raise InputError(cut)
        return np.memmap(path, layout.kind, "r", layout.start, layout.shape)
    try:
        with path.open("rb") as raw:
            if not layout.whole:
                raw.seek(layout.start)
            with gzip.open(raw, "rb") as file:
                file.seek(layout.start if layout.whole else 0)
                content = file.read(needed)
    except (EOFError, OSError) as error:
        raise InputError(cut) from error
    if len(content) < needed:
        raise InputError(cut)
    return np.frombuffer(content, layout.kind).reshape(layout.shape)


def _to_integers(path: Path, values: NDArray[Any]) -> NDArray[np.integer]:
    """Values of 8 or 16 bits. Others are taken if 16 bits hold them, and are otherwise stretched to 16 bits."""
    kind = values.dtype
    if kind.str[1:] in KEPT:
        return values.astype(kind.newbyteorder("="), copy=False)
    if kind.kind not in "iuf":
        raise InputError(f"{path} has values of the type {kind.name}; write it as numbers of 8 or 16 bits.")
    low, high = float(values.min()), float(values.max())
    if not math.isfinite(high - low):
        raise InputError(f"{path} has values that are not finite numbers; write it without them.")
    if kind.kind != "f" and low >= 0 and high <= WHITE:
        return values.astype(np.uint16)
    stretched = np.empty(values.shape, np.uint16)
    for number, slice_ in enumerate(values):  # one after the other: floats need much memory
        stretched[number] = np.rint((slice_.astype(np.float64) - low) * (WHITE / max(high - low, 1e-300)))
    return stretched
