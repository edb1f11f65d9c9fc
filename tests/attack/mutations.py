"""What is done to a file. Each mutation is a function of a random generator, and changes a dataset or its bytes."""

from collections.abc import Callable
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from pydicom import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.multival import MultiValue
from pydicom.sequence import Sequence
from pydicom.tag import Tag
from pydicom.uid import UID

from mm3d.data.dicom.groups import first_item
from mm3d.data.dicom.meta import COMPRESSED, NATIVE

Group = Literal["none", "window", "size", "frames", "pixels", "header", "file"]
STRICT: tuple[Group, ...] = (
    "window",
    "size",
    "frames",
    "pixels",
    "file",
)  # after them, the image is seen or that is said
SIZES = ("Rows", "Columns")
ITEM = b"\xfe\xff\x00\xe0"  # with which compressed pixel data begins
NUMBERS = ("nan", "inf", "-inf", "", "1e308", "-1e308", "0", "abc")
ANYTHING: tuple[Any, ...] = ("", "x" * 200, "-1", "0", "65535", "\\", "1\\2\\3", "\x1b[2J", "../../..", "1.2.840\n")


def mutate(random: Generator, dataset: Dataset, group: Group) -> tuple[bytes, str]:
    """The bytes of a file after some mutations of a group, and their names. The dataset is changed, too."""
    if group == "none":
        return _save(dataset), "none"
    if group in ("header", "file"):
        name, change = _choose(random, BYTES[group])
        content = bytearray(_save(dataset))
        return bytes(change(random, content, _find_pixels(content))), name
    names = []
    for _ in range(int(random.integers(1, 3))):
        name, act = _choose(random, DATASETS[group])
        try:
            act(random, dataset)
        except Exception:  # what it needs was taken away before
            continue
        names.append(name)
    return _save(dataset), " and ".join(names) or "none"


def _choose(random: Generator, choices: list[Any]) -> tuple[str, Any]:
    chosen = choices[int(random.integers(len(choices)))]
    return chosen.__name__.strip("_"), chosen


def _save(dataset: Dataset) -> bytes:
    compressed = not _is_native(dataset)
    if compressed and not dataset.PixelData.startswith(ITEM):  # it says that it is compressed, and is not
        dataset.PixelData = encapsulate([dataset.PixelData])
    dataset["PixelData"].is_undefined_length = compressed
    content = BytesIO()
    dataset.save_as(content, enforce_file_format=False)
    return content.getvalue()


def _find_pixels(content: bytearray) -> int:
    """Where the pixel data begins: most of a file is behind it, and most of what can go wrong before it."""
    at = content.rfind(b"\xe0\x7f\x10\x00O")
    return at if at > 0 else len(content)


# ---- window ------------------------------------------------------------------------------------------------------


def _window(random: Generator, dataset: Dataset) -> None:
    place = _find_group(dataset, "FrameVOILUTSequence", "WindowCenter")
    for name in ("WindowCenter", "WindowWidth"):
        place.add_new(Tag(name), "DS", _any_number(random))


def _window_away(random: Generator, dataset: Dataset) -> None:
    place = _find_group(dataset, "FrameVOILUTSequence", "WindowCenter")
    place.WindowCenter = f"{random.choice([-1, 1]) * 10 ** random.uniform(3, 8):.6g}"
    place.WindowWidth = f"{10 ** random.uniform(-3, 3):.6g}"


def _no_window(_: Generator, dataset: Dataset) -> None:
    place = _find_group(dataset, "FrameVOILUTSequence", "WindowCenter")
    del place.WindowCenter, place.WindowWidth


def _rescale(random: Generator, dataset: Dataset) -> None:
    place = _find_group(dataset, "PixelValueTransformationSequence", "RescaleSlope")
    for name in ("RescaleSlope", "RescaleIntercept"):
        if random.random() < 0.7:
            place.add_new(Tag(name), "DS", _any_number(random))


def _lookup_table(random: Generator, dataset: Dataset) -> None:
    place = _find_group(dataset, "FrameVOILUTSequence", "WindowCenter")
    for name in ("WindowCenter", "WindowWidth"):
        if name in place:
            delattr(place, name)
    table = Dataset()
    entries = int(random.choice([2, 256, 1024]))
    values = [np.zeros(entries), np.full(entries, 4095), random.integers(0, 4096, entries), np.arange(entries) % 7]
    table.LUTDescriptor = [entries, int(random.choice([0, 5000])), int(random.choice([8, 12, 16]))]
    table.LUTData = values[int(random.integers(len(values)))].astype("<u2").tobytes()
    place.VOILUTSequence = Sequence([table])


def _any_number(random: Generator) -> Any:
    if random.random() < 0.3:
        return _raw(str(random.choice(NUMBERS)))
    return f"{random.choice([-1, 1]) * 10 ** random.uniform(-6, 9):.6g}"


def _raw(text: str) -> Any:
    """A decimal string as it stands in files, whatever pydicom thinks of it."""
    return text or MultiValue(str, [text, text])


# ---- size --------------------------------------------------------------------------------------------------------


def _side(random: Generator, dataset: Dataset) -> None:
    name = str(random.choice(SIZES))
    before = int(dataset[name].value)
    others = [0, 1, before // 2, before - 1, before - 2, before + 1, 2 * before, 9999, 65535]
    dataset[name].value = int(random.choice(others))


def _exchange_sides(_: Generator, dataset: Dataset) -> None:
    dataset.Rows, dataset.Columns = dataset.Columns, dataset.Rows


def _product(random: Generator, dataset: Dataset) -> None:
    """Other sides with the same number of pixels."""
    one, other = (SIZES, SIZES[::-1])[int(random.integers(2))]
    factor = int(random.choice([2, 3, 4]))
    dataset[one].value, dataset[other].value = dataset[one].value * factor, dataset[other].value // factor


def _bits(random: Generator, dataset: Dataset) -> None:
    allocated = int(random.choice([8, 16, 16, 16, 32]))
    dataset.BitsAllocated = allocated
    dataset.BitsStored = int(random.integers(0, allocated + 2))
    dataset.HighBit = max(0, dataset.BitsStored - 1)


def _sign(_: Generator, dataset: Dataset) -> None:
    dataset.PixelRepresentation = 1 - int(dataset.PixelRepresentation)


def _samples(random: Generator, dataset: Dataset) -> None:
    dataset.SamplesPerPixel = int(random.choice([0, 2, 3, 4]))


def _photometric(random: Generator, dataset: Dataset) -> None:
    dataset.PhotometricInterpretation = str(random.choice(["MONOCHROME1", "PALETTE COLOR", "RGB", "YBR_FULL", "", "X"]))


# ---- frames ------------------------------------------------------------------------------------------------------


def _number(random: Generator, dataset: Dataset) -> None:
    before = int(dataset.get("NumberOfFrames", 1))
    dataset.NumberOfFrames = str(random.choice([0, 1, before - 1, before + 1, 2 * before, before // 2, 999]))


def _no_number(_: Generator, dataset: Dataset) -> None:
    del dataset.NumberOfFrames


def _groups(random: Generator, dataset: Dataset) -> None:
    groups = dataset.PerFrameFunctionalGroupsSequence
    del groups[int(random.integers(len(groups))) :]


def _no_groups(_: Generator, dataset: Dataset) -> None:
    del dataset.PerFrameFunctionalGroupsSequence


def _frames_for_rows(_: Generator, dataset: Dataset) -> None:
    """Two frames as one of twice the height."""
    dataset.NumberOfFrames, dataset.Rows = str(int(dataset.NumberOfFrames) // 2), dataset.Rows * 2
    dataset.pop("PerFrameFunctionalGroupsSequence", None)


def _lose_frames(random: Generator, dataset: Dataset) -> None:
    """Frames are missing in the pixel data; nothing else knows."""
    frames = _frames(dataset)
    _put(dataset, frames[: int(random.integers(0, len(frames)))])


def _repeat_frames(random: Generator, dataset: Dataset) -> None:
    frames = _frames(dataset)
    _put(dataset, frames + frames[: int(random.integers(1, len(frames) + 1))])


# ---- pixels ------------------------------------------------------------------------------------------------------


def _zero(random: Generator, dataset: Dataset) -> None:
    """Some frames, or all, are black."""
    _change_frames(random, dataset, lambda pixels: pixels * 0)


def _noise(random: Generator, dataset: Dataset) -> None:
    _change_frames(random, dataset, lambda pixels: random.integers(0, 1024, pixels.size).astype(np.uint16))


def _flat(random: Generator, dataset: Dataset) -> None:
    _change_frames(random, dataset, lambda pixels: (pixels // 200).astype(np.uint16))


def _bytes_exchanged(random: Generator, dataset: Dataset) -> None:
    _change_frames(random, dataset, lambda pixels: pixels.byteswap())


def _moved_by_a_byte(_: Generator, dataset: Dataset) -> None:
    content = b"".join(_frames(dataset))
    dataset.PixelData = content[1:] + content[:1] if _is_native(dataset) else encapsulate([content[1:] + content[:1]])


def _half_black(random: Generator, dataset: Dataset) -> None:
    def cut(pixels: np.ndarray) -> np.ndarray:
        pixels = pixels.copy()
        pixels[len(pixels) // 2 :] = 0
        return pixels

    _change_frames(random, dataset, cut)


def _inverted(random: Generator, dataset: Dataset) -> None:
    _change_frames(random, dataset, lambda pixels: (1023 - pixels.clip(0, 1023)).astype(np.uint16))


def _cut_frame(random: Generator, dataset: Dataset) -> None:
    """One frame ends too early."""
    frames = _frames(dataset)
    z = int(random.integers(len(frames)))
    frames[z] = frames[z][: int(random.integers(0, len(frames[z])))]
    _put(dataset, frames)


def _bits_flipped(random: Generator, dataset: Dataset) -> None:
    """In one frame, up to eight bits."""
    frames = _frames(dataset)
    z = int(random.integers(len(frames)))
    frame = bytearray(frames[z])
    for at in random.integers(0, len(frame), int(random.integers(1, 9))):
        frame[at] ^= 1 << int(random.integers(8))
    frames[z] = bytes(frame)
    _put(dataset, frames)


def _block_overwritten(random: Generator, dataset: Dataset) -> None:
    """In one frame, a block of 512 bytes, as of a disk."""
    frames = _frames(dataset)
    z = int(random.integers(len(frames)))
    at = int(random.integers(0, max(1, len(frames[z]) - 512)))
    block = bytes(512) if random.random() < 0.5 else random.bytes(512)
    frames[z] = (frames[z][:at] + block + frames[z][at + 512 :])[: len(frames[z])]
    _put(dataset, frames)


def _other_syntax(random: Generator, dataset: Dataset) -> None:
    dataset.file_meta.TransferSyntaxUID = UID(str(random.choice([*NATIVE, *COMPRESSED])))


def _is_native(dataset: Dataset) -> bool:
    return str(dataset.file_meta.TransferSyntaxUID) in NATIVE


def _frames(dataset: Dataset) -> list[bytes]:
    count = int(dataset.get("NumberOfFrames", 1))
    if not _is_native(dataset):
        return list(generate_frames(dataset.PixelData, number_of_frames=count))
    size = len(dataset.PixelData) // count
    return [dataset.PixelData[n * size : (n + 1) * size] for n in range(count)]


def _put(dataset: Dataset, frames: list[bytes]) -> None:
    dataset.PixelData = b"".join(frames) if _is_native(dataset) else encapsulate(frames or [b""])
    if not _is_native(dataset):
        dataset["PixelData"].is_undefined_length = True


def _change_frames(random: Generator, dataset: Dataset, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the pixels of one frame or of all."""
    if not _is_native(dataset):
        dataset.decompress()
        dataset["PixelData"].is_undefined_length = False
    frames = _frames(dataset)
    chosen = range(len(frames)) if random.random() < 0.5 else [int(random.integers(len(frames)))]
    for z in chosen:
        frames[z] = change(np.frombuffer(frames[z], "<u2")).astype("<u2").tobytes()
    _put(dataset, frames)


# ---- header and file ---------------------------------------------------------------------------------------------


def _flip_in_header(random: Generator, content: bytearray, pixels: int) -> bytearray:
    for at in random.integers(128, pixels, int(random.integers(1, 6))):
        content[at] ^= 1 << int(random.integers(8))
    return content


def _bytes_in_header(random: Generator, content: bytearray, pixels: int) -> bytearray:
    for at in random.integers(128, pixels, int(random.integers(1, 6))):
        content[at : at + 4] = random.bytes(4)
    return content


def _length_in_header(random: Generator, content: bytearray, pixels: int) -> bytearray:
    """Bytes are missing or too many, so that all that follows is moved."""
    at = int(random.integers(128, pixels))
    more = random.bytes(int(random.integers(1, 9)))
    return content[:at] + more + content[at:] if random.random() < 0.5 else content[:at] + content[at + len(more) :]


def _text_in_header(random: Generator, content: bytearray, pixels: int) -> bytearray:
    text = str(random.choice(ANYTHING)).encode()[:64]
    at = int(random.integers(128, pixels))
    content[at : at + len(text)] = text
    return content


def _repeat_in_header(random: Generator, content: bytearray, pixels: int) -> bytearray:
    at, length = int(random.integers(128, pixels)), int(random.integers(1, 400))
    return content[: at + length] + content[at:]


def _cut(random: Generator, content: bytearray, pixels: int) -> bytearray:
    end = pixels if random.random() < 0.5 else len(content)
    return content[: int(random.integers(0, end))]


def _empty(_: Generator, __: bytearray, ___: int) -> bytearray:
    return bytearray()


def _zeros_at_the_end(random: Generator, content: bytearray, _: int) -> bytearray:
    """As a disk leaves a file that was not written to its end."""
    at = int(random.integers(0, len(content)))
    return content[:at] + bytes(len(content) - at)


def _more_at_the_end(random: Generator, content: bytearray, _: int) -> bytearray:
    return content + random.bytes(int(random.integers(1, 2000)))


def _beginning(random: Generator, content: bytearray, _: int) -> bytearray:
    content[: int(random.integers(1, 400))] = random.bytes(int(random.integers(1, 400)))
    return content


def _two_headers(random: Generator, content: bytearray, pixels: int) -> bytearray:
    return content[: int(random.integers(132, pixels))] + content


DATASETS: dict[Group, list[Callable[[Generator, Dataset], None]]] = {
    "window": [_window, _window_away, _no_window, _rescale, _lookup_table],
    "size": [_side, _exchange_sides, _product, _bits, _sign, _samples, _photometric],
    "frames": [_number, _no_number, _groups, _no_groups, _frames_for_rows, _lose_frames, _repeat_frames],
    "pixels": [
        *(_zero, _noise, _flat, _bytes_exchanged, _moved_by_a_byte, _half_black, _inverted),
        *(_cut_frame, _bits_flipped, _block_overwritten, _other_syntax),
    ],
}
BYTES: dict[Group, list[Callable[[Generator, bytearray, int], bytearray]]] = {
    "header": [_flip_in_header, _bytes_in_header, _length_in_header, _text_in_header, _repeat_in_header],
    "file": [_cut, _empty, _zeros_at_the_end, _more_at_the_end, _beginning, _two_headers],
}


def _find_group(dataset: Dataset, name: str, element: str) -> Dataset:
    """Where an image has an element: in a functional group of a volume, or beside the others."""
    if element in dataset or "SharedFunctionalGroupsSequence" not in dataset:
        return dataset
    shared = first_item(dataset.SharedFunctionalGroupsSequence)
    return shared[name][0] if name in shared else dataset
