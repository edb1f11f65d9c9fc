"""Pixels, one slice at a time: a volume is never in memory as a whole."""

import struct
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate, get_frame
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import UID

from mm3d.data.dicom.header import COMPRESSED, ENCAPSULATED, NATIVE, Header, slices_of
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
        if header.transfer_syntax in NATIVE:
            return _read_native(header, file, number)
        if header.pixel_length != ENCAPSULATED:
            raise InputError(f"{header.path} says it is compressed and is not; export it again.")
        file.seek(header.pixel_start)
        return _decode(
            header, get_frame(file, number, number_of_frames=header.frames, extended_offsets=header.frame_offsets)
        )
    except InputError:
        raise
    except Exception as error:  # any exception means a damaged frame
        raise InputError(
            f"{header.path}: frame {number + 1} of {header.frames} cannot be decoded; "
            "the file is damaged: copy or export it again."
        ) from error


def _read_native(header: Header, file: BinaryIO, number: int) -> Frame:
    kind = np.dtype(f"<{'i' if header.signed else 'u'}{header.bits_allocated // 8}")
    count = header.rows * header.columns
    end = (number + 1) * count * kind.itemsize
    file.seek(header.pixel_start + end - count * kind.itemsize)
    values = np.fromfile(file, dtype=kind, count=count if end <= header.pixel_length else 0)
    if len(values) < count:
        raise InputError(f"{header.path} is cut off at frame {number + 1} of {header.frames}; copy it again.")
    return values.reshape(header.rows, header.columns)


def _decode(header: Header, encoded: bytes) -> Frame:
    compression = COMPRESSED[header.transfer_syntax]
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


def _check_codestream(header: Header, encoded: bytes, compression: str) -> None:
    """Compare the size inside the compressed data with the header's before a decoder makes room for it."""
    if compression in ("JPEG 2000", "HTJ2K"):
        size = _jpeg_2000_size(encoded)
    elif compression.startswith("JPEG"):
        size = _jpeg_size(encoded)
    else:
        return  # RLE has no size of its own; its decoder fills what the header says
    if size is None:
        raise InputError(f"{header.path} holds a frame that is not {compression}; export it again.")
    if size != (header.rows, header.columns):
        raise InputError(
            f"{header.path} says its frames are {header.rows} x {header.columns} and holds one of "
            f"{size[0]} x {size[1]}; export it again."
        )


def _jpeg_2000_size(encoded: bytes) -> tuple[int, int] | None:
    """Height and width in the SIZ segment of a JPEG 2000 codestream, which must be the first, or in a JP2 file."""
    at = 0
    if encoded.startswith(JP2):
        while encoded[at + 4 : at + 8] != b"jp2c":  # the box with the codestream; others may hold anything
            length = int.from_bytes(encoded[at : at + 4], "big")
            if length < 8:  # the end, or a length in 64 bits, which no frame needs
                return None
            at += length
        at += 8
    if encoded[at : at + 4] != b"\xff\x4f\xff\x51" or len(encoded) < at + 45:
        return None
    right, bottom, left, top = struct.unpack(">IIII", encoded[at + 8 : at + 24])
    components, _, *steps = struct.unpack(">HBBB", encoded[at + 40 : at + 45])
    return (bottom - top, right - left) if (components, steps) == (1, [1, 1]) else None


def _jpeg_size(encoded: bytes) -> tuple[int, int] | None:
    """Height and width in the frame header of a JPEG or JPEG-LS stream."""
    at = 2
    while encoded[:2] == b"\xff\xd8" and at + 9 <= len(encoded) and encoded[at] == 0xFF:
        marker = encoded[at + 1]
        if marker == 0xFF:  # a byte that fills up; decoders skip it
            at += 1
            continue
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            return struct.unpack(">HH", encoded[at + 5 : at + 9])
        at += 2 + struct.unpack(">H", encoded[at + 2 : at + 4])[0]
    return None
