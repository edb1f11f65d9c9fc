"""Where the stored slices of a view come from: files, or an array in memory. What is made of them is in `view`."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mm3d.data.dicom.frames import FrameReader
from mm3d.data.dicom.header import Header, read_header, slices_of
from mm3d.data.dicom.window import LookupTable, Window
from mm3d.data.records import View
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class Image:
    """What is known of a view's pixels; all its slices agree in it."""

    name: str  # for messages: the path of its file, of the first if there are several
    slices: int
    rows: int
    columns: int
    display: Window | LookupTable | None
    pixel_spacing: float | None  # mm
    slice_spacing: float | None  # mm
    vendor: str
    limit: int  # the largest value that can be stored
    inverted: bool = False  # as stored, large values are dark
    slope: float = 1.0
    intercept: float = 0.0
    for_processing: bool = False

    def stored_values(self, slice_: NDArray[np.integer]) -> NDArray[np.float32]:
        """Values of a slice as the display functions want them: rescaled, and not inverted."""
        values = slice_.astype(np.float32)
        return (self.limit - values if self.inverted else values) * self.slope + self.intercept


class Slices(Protocol):
    """The stored slices of a view, in order, bright where there is tissue."""

    def read(self, z: int) -> NDArray[np.integer]:
        """(rows, columns)."""


@dataclass(frozen=True)
class Files:
    """A view in one file or in a file per slice."""

    image: Image
    headers: tuple[Header, ...]
    frames: tuple[tuple[int, int], ...]  # (file, frame in it) of every stored slice


def files_of(view: View, headers: tuple[Header, ...] = ()) -> Files:
    """Read the headers of a view's files, unless they are given, and put its slices in order."""
    headers = headers or tuple(read_header(path) for path in view.files)
    if len(headers) > 1:
        headers = tuple(sorted(headers, key=lambda header: header.along))
        if any(header.frames != 1 for header in headers):
            raise InputError(f"{view.name}: a volume in several files must have one slice in each; leave it out.")
    first = headers[0]
    for header in headers:
        if (header.rows, header.columns) != (first.rows, first.columns):
            raise InputError(f"{header.path} has another size than the other slices of {view.name}; leave it out.")
    frames = slices_of(headers)
    image = Image(
        name=str(first.path),
        slices=len(frames),
        rows=first.rows,
        columns=first.columns,
        display=first.display,
        pixel_spacing=first.pixel_spacing,
        slice_spacing=first.slice_spacing,
        vendor=first.vendor,
        limit=_limit(first),
        inverted=first.inverted,
        slope=first.slope,
        intercept=first.intercept,
        for_processing=first.for_processing,
    )
    return Files(image, headers, frames)


class FileSlices:
    """Slices decoded when they are asked for; the last one is kept. Use it with `with`."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.stack = ExitStack()
        self.readers: dict[int, FrameReader] = {}
        self.last: tuple[int, NDArray[np.integer]] | None = None

    def __enter__(self) -> "FileSlices":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def read(self, z: int) -> NDArray[np.integer]:
        if self.last is None or self.last[0] != z:
            file, number = self.files.frames[z]
            header = self.files.headers[file]
            if file not in self.readers:
                self.stack.close()  # one open file at a time: a volume may come in hundreds
                self.readers = {file: self.stack.enter_context(FrameReader(header))}
            frame = self.readers[file].read(number)
            if header.inverted:  # in 32 bits: the full range of signed 16 does not fit into them when it is turned over
                frame = _limit(header) - frame.astype(np.int32)
            self.last = (z, frame)
        return self.last[1]


class ArraySlices:
    """Slices of an array (S, rows, columns) in memory."""

    def __init__(self, pixels: NDArray[np.integer]) -> None:
        self.pixels = pixels

    def read(self, z: int) -> NDArray[np.integer]:
        return self.pixels[z]


def _limit(header: Header) -> int:
    """What an inverted image is subtracted from: the largest value it can have."""
    return (2 ** (header.bits_stored - 1) if header.signed else 2**header.bits_stored) - 1
