"""What the first and last bytes of a compressed frame say: how it is compressed, and whether its end is missing."""

import struct

BEGIN_2000 = (b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  \r\n\x87\n")  # a codestream, and the same in a JP2 file
BEGIN_JPEG = (b"\xff\xd8\xff",)
BEGIN_RLE = (b"\1\0\0\0\x40\0\0\0", b"\2\0\0\0\x40\0\0\0")  # of 8 and of 16 bits
END = b"\xff\xd9"  # of an image in JPEG, JPEG-LS and JPEG 2000 alike
FRAME_HEADERS = {0xC0: "JPEG baseline", 0xC3: "JPEG lossless", 0xF7: "JPEG-LS"}  # by their markers


def name_compression(encoded: bytes) -> str:
    """What compressed a frame, by its first bytes; "" if it is none of the compressions that are read."""
    if encoded.startswith(BEGIN_2000):
        return "JPEG 2000"  # or HTJ2K, which begins in the same way
    if encoded.startswith(BEGIN_JPEG):
        return _name_jpeg(encoded)
    return "RLE" if encoded.startswith(BEGIN_RLE) else ""


def contradicts(encoded: bytes, compression: str) -> str:
    """What compressed a frame, if it is another compression than its header says; "" if it is not."""
    held = name_compression(encoded)
    return "" if held == compression or {held, compression} == {"JPEG 2000", "HTJ2K"} else held


def is_cut(encoded: bytes, compression: str) -> bool:
    """Whether a frame that cannot be decoded begins as it should, and its end is missing."""
    encoded = encoded.rstrip(b"\0\xff")  # frames are filled up to an even length
    begins = BEGIN_2000 if compression in ("JPEG 2000", "HTJ2K") else BEGIN_JPEG
    begun = any(encoded.startswith(begin) or begin.startswith(encoded) for begin in begins)
    return compression != "RLE" and begun and not encoded.endswith(END)


def _name_jpeg(encoded: bytes) -> str:
    """The kind of a JPEG or JPEG-LS stream, by the marker of its frame header."""
    at = 2
    while at + 4 <= len(encoded) and encoded[at] == 0xFF:
        marker = encoded[at + 1]
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            return FRAME_HEADERS.get(marker, "")
        at += 1 if marker == 0xFF else 2 + struct.unpack(">H", encoded[at + 2 : at + 4])[0]
    return ""
