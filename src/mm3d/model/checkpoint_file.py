"""What is in a .pth file, before torch loads it: nothing larger than the file itself, and tensors only.

torch (with `weights_only`) runs no code of a file, but inflates what is compressed, and lets a few bytes ask for any
amount of memory. What torch writes itself does neither: the entries of its archives are stored as they are.
"""

import io
import pickletools
import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from mm3d.shared.errors import InputError

ZIP, PICKLE = b"PK\x03\x04", b"\x80"  # how a file of torch begins, today's and that of before 2019
LARGEST_PICKLE = 16_000_000  # bytes; that of a Sparse R-CNN has 0.1 million
MOST_STEPS = 2_000_000  # of a pickle
PICKLES = 5  # with which an old file begins; behind them are its tensors
# What a state dict consists of. torch accepts more, such as the function that makes a list of 10^12 zeros.
KNOWN = {
    "collections OrderedDict",
    "collections Counter",
    "_codecs encode",  # bytes in old pickles
    "__builtin__ set",
    "torch Size",
    "torch device",
    "torch.nn.parameter Parameter",
    *(f"torch._utils _rebuild_{what}" for what in ("tensor", "tensor_v2", "parameter", "parameter_with_state")),
}


def check_file(path: Path) -> None:
    """Refuse a file that would need more memory than a checkpoint of its size, or holds something else than tensors."""
    damaged = InputError(f"{path} is damaged or no checkpoint at all; download it again.")
    try:
        with path.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            if start == ZIP:
                parts: Sequence[BinaryIO] = [io.BytesIO(_read_description(path, file))]
            elif start[:1] == PICKLE:
                parts = PICKLES * [file]  # each ends where the next begins
            else:  # perhaps a web page
                raise damaged
            unknown = sorted({name for part in parts for name in _find_names(part) if not _is_known(name)})
    except InputError:
        raise
    except Exception as error:  # any exception means a damaged file
        raise damaged from error
    if unknown:
        raise InputError(
            f"{path} is refused: it holds something else than tensors ({unknown[0][:60]!a}), and loading it could "
            "run code or take all memory; if you trust it, save its state dict as safetensors and import that."
        )


def _read_description(path: Path, file: BinaryIO) -> bytes:
    """The pickle of an archive of torch, which says what its tensors are. Nothing in the archive may be compressed."""
    size = path.stat().st_size
    refused = InputError(f"{path} is not an archive as torch writes it; save its state dict again, with torch.save.")
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        fits = sum(entry.file_size for entry in entries) <= size and _has_one_directory(file, size)
        described = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
        if not (stored and fits and len(described) == 1 and described[0].file_size <= LARGEST_PICKLE):
            raise refused
        return archive.read(described[0])


def _has_one_directory(file: BinaryIO, size: int) -> bool:
    """Whether the list of entries ends the file, so that every reader of archives finds the same."""
    file.seek(max(0, size - 98))
    end = file.read(98)
    long, locator, short = end[:-42], end[-42:-22], end[-22:]
    if short[:4] != b"PK\x05\x06" or short[-2:] != b"\0\0":  # a comment could hide another list
        return False
    if locator[:4] == b"PK\x06\x07":
        length, start = struct.unpack("<QQ", long[40:56])
        return struct.unpack("<Q", locator[8:16])[0] == size - 98 == start + length
    length, start = struct.unpack("<II", short[12:20])
    return start + length == size - 22


def _find_names(file: BinaryIO) -> Iterator[str]:
    """The names of everything that a pickle asks for, without doing what it says."""
    for step, (operation, argument, _) in enumerate(pickletools.genops(file)):
        if step > MOST_STEPS:
            raise ValueError
        if operation.name == "GLOBAL":
            yield str(argument)
        elif operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
            yield operation.name


def _is_known(name: str) -> bool:
    module, _, last = name.partition(" ")
    is_type = module == "torch" and (
        last.endswith("Storage") or last.startswith(("float", "bfloat", "int", "uint", "bool"))
    )
    return name in KNOWN or is_type or (module == "torch.storage" and last in ("TypedStorage", "UntypedStorage"))
