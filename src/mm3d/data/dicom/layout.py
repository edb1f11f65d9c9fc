"""Where the pixels of each frame lie in a file.

The header says how many frames there are and how large they are, and it may be wrong. So the pixel data is counted. A
file in which they disagree is refused: in one slice of eleven, or in rows of a wrong length, a cancer is not seen.
Tables of offsets are not used: the pixel data itself says where its frames begin.
"""

import struct
from pathlib import Path
from typing import BinaryIO

from mm3d.shared.errors import InputError

PIXEL_DATA = (0x7FE0, 0x0010)
ITEM, END = (0xFFFE, 0xE000), (0xFFFE, 0xE0DD)
EXPLICIT = (b"OB\0\0", b"OW\0\0", b"UN\0\0")  # value representations of pixel data
UNDEFINED = 0xFFFFFFFF  # the length of pixel data that comes in fragments
# How compressed images begin: JPEG and JPEG-LS, JPEG 2000, the same in the boxes of a JP2 file, RLE of 8 and 16 bits
BEGINNINGS = (
    *(b"\xff\xd8\xff", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  "),
    *(b"\1\0\0\0\x40\0\0\0", b"\2\0\0\0\x40\0\0\0"),
)
MAX_FRAGMENTS = 100_000  # a fragment may be as small as a hundred bytes, but no real file has as many

BEGINNING = 65_536  # bytes of a frame that show how it is compressed

Part = tuple[int, int]  # where it begins in the file, and its length in bytes


def find_frames(path: Path, at: int, frames: int, frame_bytes: int | None) -> tuple[tuple[Part, ...], ...]:
    """The parts of each frame. Frames of which there are more or fewer than the header says are refused.

    Parameters
    ----------
    path : the file.
    at : the byte at which the tag of the pixel data is expected.
    frames : how many frames the header says there are.
    frame_bytes : the length of a frame that is not compressed; None: frames are compressed.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start, length = _find_pixels(path, file, at)
        if frame_bytes is None:
            if length != UNDEFINED:
                raise InputError(
                    f"{path} says it is compressed and is not: its header contradicts its pixel data; export it again."
                )
            return _group_fragments(path, file, _find_fragments(path, file, size), frames)
    if length == UNDEFINED:
        raise InputError(
            f"{path} says it is not compressed and is: its header contradicts its pixel data; export it again."
        )
    if start + length > size:
        raise InputError(f"{path} is cut off: its pixel data has {size - start} of {length} bytes; copy it again.")
    expected = frames * frame_bytes
    if length not in (expected, expected + expected % 2):  # elements have an even length
        raise InputError(
            f"{path} holds {length} bytes of pixels, and what its header says needs {expected}; export it again."
        )
    return tuple(((start + n * frame_bytes, frame_bytes),) for n in range(frames))


def find_first_frame(path: Path, at: int) -> tuple[int, bytes]:
    """The length of the pixel data as its element says it, and how its first frame begins if it comes in fragments."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        _, length = _find_pixels(path, file, at)
        if length != UNDEFINED:
            return length, b""
        fragments = _find_fragments(path, file, size)
        file.seek(fragments[0][0] if fragments else size)
        return length, file.read(min(fragments[0][1], BEGINNING) if fragments else 0)


def _find_pixels(path: Path, file: BinaryIO, at: int) -> tuple[int, int]:
    """Where the value of the pixel data begins, and its length as the element says it.

    The element itself shows whether it has a value representation. A header may be wrong about that.
    """
    file.seek(at)
    head = file.read(8)
    if head[4:] in EXPLICIT:
        head += file.read(4)
    if not head:
        raise InputError(f"{path} ends before its pixel data: it is cut off, or has no image; copy it again.")
    if len(head) < 8 or struct.unpack("<HH", head[:4]) != PIXEL_DATA:
        raise InputError(f"{path} has no pixel data; export it again.")
    return file.tell(), struct.unpack("<I", head[-4:])[0]


def _find_fragments(path: Path, file: BinaryIO, size: int) -> list[Part]:
    """The fragments of compressed pixel data, from where the file is read on. The first item is a table of offsets."""
    items: list[Part] = []
    while len(items) <= MAX_FRAGMENTS:
        head = file.read(8)
        if len(head) < 8:
            raise InputError(f"{path} is cut off in its pixel data; copy it again.")
        tag, length = struct.unpack("<HH", head[:4]), struct.unpack("<I", head[4:])[0]
        if tag == END:
            return [part for part in items[1:] if part[1]]
        start = file.tell()
        if tag != ITEM:
            raise InputError(f"{path} has damaged pixel data; copy or export it again.")
        if start + length > size:
            raise InputError(f"{path} is cut off in its pixel data; copy it again.")
        items.append((start, length))
        file.seek(length, 1)
    raise InputError(
        f"{path} has its pixels in over {MAX_FRAGMENTS} fragments, which no device makes; export it again."
    )


def _group_fragments(path: Path, file: BinaryIO, fragments: list[Part], frames: int) -> tuple[tuple[Part, ...], ...]:
    """The fragments of each frame: one, or all from one beginning of an image to the next."""
    if len(fragments) == frames:
        return tuple((part,) for part in fragments)
    groups: list[list[Part]] = []
    for start, length in fragments:
        file.seek(start)
        if not groups or file.read(8).startswith(BEGINNINGS):
            groups.append([])
        groups[-1].append((start, length))
    if len(groups) != frames:
        raise InputError(f"{path} has a NumberOfFrames of {frames} and holds {len(groups)} frames; export it again.")
    return tuple(map(tuple, groups))
