"""What the bytes of a compressed frame say of themselves: how they are compressed, their size, and whether they end."""

import struct

Size = tuple[int, int]  # height, width

JP2 = b"\0\0\0\x0cjP  \r\n\x87\n"  # how a JP2 file begins, which some put around their codestream
BEGIN_2000, BEGIN_JPEG = b"\xff\x4f\xff\x51", b"\xff\xd8"
SIZES = 45  # bytes of a JPEG 2000 codestream until its size and depth are said
END = b"\xff\xd9"  # of an image in JPEG, JPEG-LS and JPEG 2000 alike
FRAME_HEADERS = {0xC0: "JPEG baseline", 0xC3: "JPEG lossless", 0xF7: "JPEG-LS"}  # by their markers
RLE = (b"\1\0\0\0\x40\0\0\0", b"\2\0\0\0\x40\0\0\0")  # how a frame of 8 and of 16 bits begins


def name_compression(encoded: bytes) -> str:
    """What compressed a frame, by its first bytes; "" if it is none of the compressions that are read."""
    if encoded.startswith((BEGIN_2000, JP2)):
        return "JPEG 2000"  # or HTJ2K, which begins in the same way
    if encoded.startswith(BEGIN_JPEG):
        return FRAME_HEADERS.get(_find_frame_header(encoded)[0], "")
    return "RLE" if encoded.startswith(RLE) else ""


def is_cut(encoded: bytes, compression: str) -> bool:
    """Whether a frame that cannot be decoded begins as it should, and its end is missing."""
    encoded = encoded.rstrip(b"\0")  # frames are filled up to an even length
    begins = (BEGIN_2000, JP2) if compression in ("JPEG 2000", "HTJ2K") else (BEGIN_JPEG,)
    begun = any(encoded.startswith(begin) or begin.startswith(encoded) for begin in begins)
    return compression != "RLE" and begun and not encoded.endswith(END)


def read_size(encoded: bytes, compression: str) -> tuple[Size | None, int, bool | None]:
    """Height and width inside the compressed data, the bits of a pixel, and whether they have a sign.

    None: the data is not of this compression, and the sign: the compression does not know.
    """
    if compression in ("JPEG 2000", "HTJ2K"):
        return _jpeg_2000_size(encoded)
    marker, size, bits = _find_frame_header(encoded) if encoded.startswith(BEGIN_JPEG) else (0, None, 0)
    return (size if FRAME_HEADERS.get(marker, compression) == compression else None), bits, None


def _jpeg_2000_size(encoded: bytes) -> tuple[Size | None, int, bool]:
    """What the SIZ segment of a JPEG 2000 codestream says. It must be the first, or in a JP2 file."""
    at = 0
    if encoded.startswith(JP2):
        while encoded[at + 4 : at + 8] != b"jp2c":  # the box with the codestream; others may hold anything
            length = int.from_bytes(encoded[at : at + 4], "big")
            if length < 8:  # the end, or a length in 64 bits, which no frame needs
                return None, 0, False
            at += length
        at += 8
    if encoded[at : at + 4] != BEGIN_2000 or len(encoded) < at + SIZES:
        return None, 0, False
    right, bottom, left, top = struct.unpack(">IIII", encoded[at + 8 : at + 24])
    components, depth, *steps = struct.unpack(">HBBB", encoded[at + 40 : at + SIZES])
    size = (bottom - top, right - left) if (components, steps) == (1, [1, 1]) else None
    return size, (depth & 0x7F) + 1, depth >= 0x80


def _find_frame_header(encoded: bytes) -> tuple[int, Size | None, int]:
    """The marker of the frame header of a JPEG or JPEG-LS stream, and the height, width and bits in it."""
    at = 2
    while at + 9 <= len(encoded) and encoded[at] == 0xFF:
        marker = encoded[at + 1]
        if marker == 0xFF:  # a byte that fills up; decoders skip it
            at += 1
            continue
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            return marker, struct.unpack(">HH", encoded[at + 5 : at + 9]), encoded[at + 4]
        at += 2 + struct.unpack(">H", encoded[at + 2 : at + 4])[0]
    return 0, None, 0
