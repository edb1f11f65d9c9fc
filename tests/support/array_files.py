"""Small NIfTI and NRRD files, written byte by byte as other software writes them."""

import gzip
import struct
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

NIFTI = {"uint8": 2, "int16": 4, "int32": 8, "float32": 16, "float64": 64, "uint16": 512}
NRRD = {"uint8": "uchar", "int16": "short", "uint16": "ushort", "float32": "float"}


def write_nifti(
    path: Path, volume: NDArray[Any], spacing: tuple[float, float] = (0.1, 1.0), order: Literal["<", ">"] = "<"
) -> Path:
    """A volume (slices, rows, columns) as NIfTI-1; compressed if the name ends with .gz."""
    head = bytearray(352)
    struct.pack_into(f"{order}i", head, 0, 348)
    struct.pack_into(f"{order}8h", head, 40, 3, *volume.shape[::-1], 1, 1, 1, 1)
    struct.pack_into(f"{order}2h", head, 70, NIFTI[volume.dtype.name], 8 * volume.itemsize)
    struct.pack_into(f"{order}8f", head, 76, 1, spacing[0], spacing[0], spacing[1], 1, 1, 1, 1)
    struct.pack_into(f"{order}2f", head, 108, 352, 1)
    head[344:348] = b"n+1\0"
    content = bytes(head) + volume.astype(volume.dtype.newbyteorder(order)).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


def write_nrrd(path: Path, volume: NDArray[Any], encoding: str = "raw", more: str = "spacings: 0.1 0.1 1") -> Path:
    """A volume (slices, rows, columns) as NRRD."""
    sizes = " ".join(map(str, volume.shape[::-1]))
    head = f"NRRD0004\n# a comment\ntype: {NRRD[volume.dtype.name]}\ndimension: 3\nsizes: {sizes}\n"
    head += f"{more}\nencoding: {encoding}\nendian: little\n\n"
    content = volume.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.encode() + (gzip.compress(content) if encoding == "gzip" else content))
    return path
