"""Pixels, one slice at a time: a volume is never in memory as a whole."""

import struct
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import UID

from mm3d.data.dicom.compression import contradicts, is_cut
from mm3d.data.dicom.header import Header, slices_of
from mm3d.data.dicom.layout import Part
from mm3d.data.dicom.meta import COMPRESSED, NATIVE
from mm3d.shared.errors import InputError

# The plugin of pydicom that decodes each compression fastest.
PLUGINS = {
    "RLE": "pydicom",
    "JPEG baseline": "pillow",
    "JPEG lossless": "gdcm",
    "JPEG-LS": "pyjpegls",
    "JPEG 2000": "pylibjpeg",
    "HTJ2K": "pylibjpeg",
}

JP2 = b"\0\0\0\x0cjP  \r\n\x87\n"  # how a JP2 file begins, which some put around their codestream
# Neighbouring rows of an image are alike. With rows of another length, the pixels below each other differ at least 1.29
# times as much in 125 real images; with the right length in place of a wrong one, at most 1 / 1.29 as much.
WRONG_LENGTH = 0.8
SAMPLES = 20_000  # pixels that are compared

CUT = "is cut off in the middle of a frame, or damaged there; copy or export it again."

Frame = NDArray[np.integer]  # (rows, columns)


class SliceReader:
    """The slices of a view in its files, in order, bright where there is tissue. Use it with `with`.

    One file is open at a time, because a volume may come in hundreds. The last slice is kept.
    """

    def __init__(self, headers: Sequence[Header]) -> None:
        self.headers, self.slices = headers, slices_of(headers)
        self.open: tuple[Header, BinaryIO] | None = None
        self.last: tuple[int, Frame] | None = None

    def __enter__(self) -> "SliceReader":
        return self

    def __exit__(self, *_: object) -> None:
        if self.open is not None:
            self.open[1].close()

    def read(self, z: int) -> Frame:
        """Slice z."""
        if self.last is not None and self.last[0] == z:
            return self.last[1]
        file, number = self.slices[z]
        header = self.headers[file]
        if self.open is None or self.open[0] is not header:
            self.__exit__()
            self.open = (header, header.path.open("rb"))
        frame = _read_frame(header, self.open[1], number)
        if header.inverted:  # in 32 bits, because 16 are too few for the full range of signed values
            frame = header.largest_value - frame.astype(np.int32)
        self.last = (z, frame)
        return frame


def _read_frame(header: Header, file: BinaryIO, number: int) -> Frame:
    """Frame `number` of an open file, as stored."""
    try:
        content = b"".join(_read_part(header, file, part) for part in header.frame_parts[number])
        if header.transfer_syntax in NATIVE:
            kind = np.dtype(f"<{'i' if header.signed else 'u'}{header.bits_allocated // 8}")
            frame = np.frombuffer(content, kind).reshape(header.rows, header.columns)
        else:
            frame = _decode(header, content)
        _check_values(header, frame)
        return frame
    except InputError:
        raise
    except Exception as error:  # any exception means a damaged frame
        raise InputError(
            f"{header.path}: frame {number + 1} of {header.frames} cannot be decoded; "
            "the file is damaged: copy or export it again."
        ) from error


def _read_part(header: Header, file: BinaryIO, part: Part) -> bytes:
    start, length = part
    file.seek(start)
    content = file.read(length)
    if len(content) < length:  # the file was whole when its header was read
        raise InputError(f"{header.path} is cut off; copy it again.")
    return content


def _check_values(header: Header, frame: Frame) -> None:
    """Refuse values that need more bits than the header says, and rows of a wrong length.

    A compressed image says by itself how many bits it has, and how long its rows are. Some archives say 10 bits in the
    header, and 16 in all images.
    """
    if COMPRESSED.get(header.transfer_syntax) not in (None, "RLE"):
        return
    highest = header.largest_value
    lowest = -highest - 1 if header.signed else 0
    if frame.min() < lowest or frame.max() > highest:
        raise InputError(
            f"{header.path} says it uses {header.bits_stored} bits per pixel and holds values beyond them; "
            "export it again."
        )
    values = frame.ravel()
    lengths = [length for length in (header.rows, header.columns // 2, 2 * header.columns) if length < len(values)]
    lengths = [length for length in lengths if length not in (0, header.columns)]
    here = _difference(values, header.columns) if len(values) > header.columns else 0.0
    if any(_difference(values, length) < WRONG_LENGTH * here for length in lengths):
        raise InputError(
            f"{header.path} has pixels that do not fit {header.rows} rows of {header.columns}: they are exchanged, or "
            "one is half of what it says; export it again."
        )


def _difference(values: NDArray[np.integer], length: int) -> float:
    """How much pixels differ from those below them, if a row has this length."""
    at = np.linspace(0, len(values) - length - 1, SAMPLES).astype(np.intp)
    return float(np.abs(values[at + length].astype(np.int32) - values[at]).mean())


def _decode(header: Header, encoded: bytes) -> Frame:
    compression = COMPRESSED[header.transfer_syntax]
    _check_compression(header, encoded, compression)
    _check_codestream(header, encoded, compression)
    frame = Dataset()
    frame.file_meta = FileMetaDataset()
    frame.file_meta.TransferSyntaxUID = UID(header.transfer_syntax)
    frame.Rows, frame.Columns, frame.NumberOfFrames, frame.SamplesPerPixel = header.rows, header.columns, 1, 1
    frame.PhotometricInterpretation = "MONOCHROME2"
    frame.PixelRepresentation = int(header.signed)
    frame.BitsAllocated = header.bits_allocated
    frame.BitsStored = header.bits_stored  # a JPEG 2000 codestream may have more, and counts
    frame.HighBit = frame.BitsStored - 1
    frame.PixelData = encapsulate([encoded])
    values, _ = get_decoder(header.transfer_syntax).as_array(frame, raw=True, decoding_plugin=PLUGINS[compression])
    if values.shape != (header.rows, header.columns):
        raise InputError(f"{header.path} holds a frame of another size than it says; export it again.")
    return values


def _check_compression(header: Header, encoded: bytes, compression: str) -> None:
    """Refuse a frame of another compression than the header says, and one that ends too early: a decoder would make an
    image of what is there, or look for the rest for ever."""
    if held := contradicts(encoded, compression):
        raise InputError(
            f"{header.path} says its frames are {compression} and holds {held}: its header contradicts its pixel "
            "data; export it again."
        )
    if is_cut(encoded, compression):
        raise InputError(f"{header.path} {CUT}")


def _check_codestream(header: Header, encoded: bytes, compression: str) -> None:
    """Compare the size inside the compressed data with the header's before a decoder makes room for it."""
    size, bits, signed = None, 0, header.signed
    if compression in ("JPEG 2000", "HTJ2K"):
        size, bits, signed = _jpeg_2000_size(encoded)
    elif compression.startswith("JPEG"):
        size, bits = _jpeg_size(encoded)
    else:
        return  # RLE has no size of its own; its decoder fills what the header says
    if size is None:
        raise InputError(f"{header.path} holds a frame that is not {compression}; export it again.")
    if size != (header.rows, header.columns):
        raise InputError(
            f"{header.path} says its frames are {header.rows} x {header.columns} and holds one of "
            f"{size[0]} x {size[1]}; export it again."
        )
    if bits > header.bits_allocated or signed != header.signed:
        raise InputError(
            f"{header.path} says its values have up to {header.bits_allocated} bits, "
            f"{'with' if header.signed else 'without'} a sign, and holds {bits} bits {'with' if signed else 'without'} "
            "one; export it again."
        )


def _jpeg_2000_size(encoded: bytes) -> tuple[tuple[int, int] | None, int, bool]:
    """Height and width, bits per pixel, and whether they have a sign, in the SIZ segment of a JPEG 2000 codestream. It
    must be the first, or in a JP2 file."""
    at = 0
    if encoded.startswith(JP2):
        while encoded[at + 4 : at + 8] != b"jp2c":  # the box with the codestream; others may hold anything
            length = int.from_bytes(encoded[at : at + 4], "big")
            if length < 8:  # the end, or a length in 64 bits, which no frame needs
                return None, 0, False
            at += length
        at += 8
    if encoded[at : at + 4] != b"\xff\x4f\xff\x51" or len(encoded) < at + 45:
        return None, 0, False
    right, bottom, left, top = struct.unpack(">IIII", encoded[at + 8 : at + 24])
    components, depth, *steps = struct.unpack(">HBBB", encoded[at + 40 : at + 45])
    size = (bottom - top, right - left) if (components, steps) == (1, [1, 1]) else None
    return size, (depth & 0x7F) + 1, depth >= 0x80


def _jpeg_size(encoded: bytes) -> tuple[tuple[int, int] | None, int]:
    """Height and width in the frame header of a JPEG or JPEG-LS stream, and its bits per pixel."""
    at = 2
    while encoded[:2] == b"\xff\xd8" and at + 9 <= len(encoded) and encoded[at] == 0xFF:
        marker = encoded[at + 1]
        if marker == 0xFF:  # a byte that fills up; decoders skip it
            at += 1
            continue
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            return struct.unpack(">HH", encoded[at + 5 : at + 9]), encoded[at + 4]
        at += 2 + struct.unpack(">H", encoded[at + 2 : at + 4])[0]
    return None, 0
