"""Headers that contradict each other, and frames that end too early: what dcmtk reads is read, the rest is named."""

import struct
import subprocess
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from openjpeg.utils import encode_array
from pydicom import dcmread
from support.dicom_files import breast, compressed, mammogram, write
from support.reports import installed

from mm3d.data.dicom.frames import SliceReader
from mm3d.data.dicom.header import Header, read_header
from mm3d.shared.errors import InputError

IMAGE = breast(120, 90)
LOSSLESS, JPEG_LS, J2K = "1.2.840.10008.1.2.4.70", "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.90"
NATIVE, IMPLICIT = "1.2.840.10008.1.2.1", "1.2.840.10008.1.2"
ENCODED = {
    LOSSLESS: bytes(imagecodecs.ljpeg_encode(IMAGE, bitspersample=10)),
    JPEG_LS: bytes(imagecodecs.jpegls_encode(IMAGE)),
    J2K: bytes(encode_array(IMAGE, bits_stored=10, photometric_interpretation=2)),
}


def element(number: int, kind: bytes, value: bytes) -> bytes:
    value += b"\0" * (len(value) % 2)
    length = struct.pack("<HI", 0, len(value)) if kind == b"OB" else struct.pack("<H", len(value))
    return struct.pack("<HH", 2, number) + kind + length + value


def meta(syntax: str) -> bytes:
    """File meta information that names a transfer syntax."""
    rest = element(1, b"OB", b"\0\1") + element(2, b"UI", b"1.2.840.10008.5.1.4.1.1.1.2")
    rest += element(3, b"UI", b"1.2.3") + element(0x10, b"UI", syntax.encode()) + element(0x12, b"UI", b"1.2.4")
    return element(0, b"UL", struct.pack("<I", len(rest))) + rest


def build(path: Path, *syntaxes: str, between: bytes = b"", held: str = LOSSLESS) -> Path:
    """A whole file whose pixels are `held`, and which begins with meta information for each of these syntaxes."""
    content = write(compressed(mammogram(IMAGE), held, [ENCODED[held]]), path).read_bytes()
    length = 132 + 12 + dcmread(path).file_meta.FileMetaInformationGroupLength
    path.write_bytes(content[:132] + between.join(map(meta, syntaxes)) + content[length:])
    return path


def read(path: Path) -> tuple[Header, np.ndarray]:
    header = read_header(path)
    with SliceReader([header]) as reader:
        return header, reader.read(0)


@pytest.mark.parametrize("between", [b"", bytes(128) + b"DICM"], ids=["behind each other", "each with a preamble"])
@pytest.mark.parametrize(
    "syntaxes",
    [(LOSSLESS, NATIVE), (LOSSLESS, IMPLICIT), (LOSSLESS, J2K), (LOSSLESS, LOSSLESS), (NATIVE, LOSSLESS)],
)
def test_a_whole_file_with_two_headers_is_read(tmp_path: Path, syntaxes: tuple[str, ...], between: bytes) -> None:
    """It was called cut off, and to be copied again."""
    path = build(tmp_path / "two.dcm", *syntaxes, between=between)
    header, pixels = read(path)
    assert np.array_equal(pixels, IMAGE)
    contradictions = [said for said in header.contradictions if "several headers" in said]
    assert len(contradictions) == (len(set(syntaxes)) > 1)
    if syntaxes[0] == LOSSLESS:  # then dcmtk reads it, too
        subprocess.run([installed("dcmdjpeg"), path, tmp_path / "plain.dcm"], check=True, capture_output=True)
        assert np.array_equal(read(tmp_path / "plain.dcm")[1], IMAGE)


def test_headers_of_which_none_fits_the_pixels_contradict_each_other(tmp_path: Path) -> None:
    path = build(tmp_path / "two.dcm", NATIVE, J2K)
    with pytest.raises(InputError, match="contradict each other and the pixel data: they name Explicit VR Little"):
        read(path)


@pytest.mark.parametrize(
    ("said", "held", "words"),
    [
        (NATIVE, LOSSLESS, "says it is not compressed and is: its header contradicts its pixel data"),
        (J2K, LOSSLESS, "says its frames are JPEG 2000 and holds JPEG lossless: its header contradicts"),
        (LOSSLESS, J2K, "says its frames are JPEG lossless and holds JPEG 2000: its header contradicts"),
        (LOSSLESS, JPEG_LS, "says its frames are JPEG lossless and holds JPEG-LS: its header contradicts"),
    ],
)
def test_a_header_that_contradicts_the_pixels_is_said_to(tmp_path: Path, said: str, held: str, words: str) -> None:
    """Nothing is cut off, so it does not help to copy the file again."""
    with pytest.raises(InputError, match=words):
        read(build(tmp_path / "one.dcm", said, held=held))


@pytest.mark.parametrize("syntax", list(ENCODED))
def test_a_frame_that_ends_too_early_is_called_cut_off(tmp_path: Path, syntax: str) -> None:
    """It was called "not JPEG 2000"; a decoder of JPEG-LS looked for the rest for ever."""
    encoded = ENCODED[syntax]
    for length in (4, 30, 60, len(encoded) // 2, len(encoded) - 3):
        path = write(compressed(mammogram(IMAGE), syntax, [encoded[:length]]), tmp_path / "cut.dcm")
        with pytest.raises(InputError, match="is cut off in the middle of a frame, or damaged there; copy"):
            read(path)
