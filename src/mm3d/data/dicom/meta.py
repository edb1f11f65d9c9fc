"""The file meta information: where it begins, and which transfer syntaxes it names.

Some software puts a second header in front of the first one, or behind it. dcmtk reads such files, and so do we: of the
transfer syntaxes that are named, the first that the pixel data agrees with is taken.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydicom.uid import UID

from mm3d.data.dicom.compression import name_compression
from mm3d.data.dicom.layout import UNDEFINED, find_first_frame
from mm3d.shared.errors import InputError

NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")
COMPRESSED = {
    "1.2.840.10008.1.2.5": "RLE",
    "1.2.840.10008.1.2.4.50": "JPEG baseline",
    "1.2.840.10008.1.2.4.57": "JPEG lossless",
    "1.2.840.10008.1.2.4.70": "JPEG lossless",
    "1.2.840.10008.1.2.4.80": "JPEG-LS",
    "1.2.840.10008.1.2.4.81": "JPEG-LS",
    "1.2.840.10008.1.2.4.90": "JPEG 2000",
    "1.2.840.10008.1.2.4.91": "JPEG 2000",
    "1.2.840.10008.1.2.4.201": "HTJ2K",
    "1.2.840.10008.1.2.4.202": "HTJ2K",
    "1.2.840.10008.1.2.4.203": "HTJ2K",
}
JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"
DEFLATED = "1.2.840.10008.1.2.1.99"  # everything behind the file meta information is compressed as in a zip file

PREAMBLE = 128 + 4  # bytes of anything, and DICM
GROUP, SYNTAX = 0x0002, (0x0002, 0x0010)
LONG = (b"OB", b"OW", b"OF", b"SQ", b"UN", b"UT")  # value representations whose length has 4 bytes
MAX_ELEMENTS = 200  # of all meta information; real files have about ten


@dataclass(frozen=True)
class Meta:
    """What the beginnings of a file say."""

    start: int  # where the last preamble begins
    syntaxes: tuple[str, ...]  # the transfer syntaxes, in the order in which they are named


def read_meta(path: Path) -> Meta | None:
    """Read all meta information at the beginning of a file; None if the file is not DICOM."""
    start, syntaxes = 0, []
    with path.open("rb") as file:
        if not file.read(PREAMBLE).endswith(b"DICM"):
            return None
        for _ in range(MAX_ELEMENTS):
            at = file.tell()
            head = file.read(8)
            if len(head) < 8:
                break
            group, element, kind, length = struct.unpack("<HH2sH", head)
            if group == GROUP:
                if kind in LONG:
                    length = int.from_bytes(file.read(4), "little")
                if (group, element) == SYNTAX:
                    syntaxes.append(file.read(length).rstrip(b"\0 ").decode("ascii", "replace"))
                else:
                    file.seek(length, 1)
                continue
            file.seek(at)
            if not file.read(PREAMBLE).endswith(b"DICM"):
                break
            start = at
    return Meta(start, tuple(dict.fromkeys(syntaxes)))


def choose_syntax(path: Path, end: int, named: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The transfer syntax of the pixel data, which begins at byte `end`; and a sentence if headers name several."""
    if len(named) == 1:
        return named[0], ()
    length, beginning = find_first_frame(path, end)
    held = name_compression(beginning) if length == UNDEFINED else "not compressed"
    names = " and ".join(_name(syntax) for syntax in named)
    for syntax in named:
        if (syntax in NATIVE) == (length != UNDEFINED) and (syntax in NATIVE or COMPRESSED.get(syntax) == held):
            return syntax, (f"the file has several headers, which name {names}; the pixel data is {held}.",)
    raise InputError(
        f"{path} has several headers, which contradict each other and the pixel data: they name {names}, and it is "
        f"{held or 'none of the compressions that are read'}; export it again."
    )


def _name(syntax: str) -> str:
    """A name for people; what the file has there may be anything."""
    known = UID(syntax).name
    return "an unknown transfer syntax" if known == syntax else known
