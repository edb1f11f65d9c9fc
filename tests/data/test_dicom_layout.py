"""Headers that lie about pixels: whoever believes them looks at one slice of eleven, or at a scrambled image."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openjpeg.utils import encode_array
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.pixels.encoders.base import get_encoder
from pydicom.uid import ExplicitVRLittleEndian, RLELossless
from support.dicom_files import breast, compressed, mammogram, tomosynthesis, write

from mm3d.data.dicom.frames import SliceReader
from mm3d.data.dicom.header import read_header
from mm3d.shared.errors import InputError

VOLUME = np.stack([breast(120, 90, seed=i) for i in range(5)])
J2K = "1.2.840.10008.1.2.4.90"


def j2k(frame: np.ndarray, bits: int = 10) -> bytes:
    return bytes(encode_array(frame, bits_stored=bits, photometric_interpretation=2))


def rle(frame: np.ndarray) -> bytes:
    return get_encoder(RLELossless).encode(
        frame.tobytes(), rows=frame.shape[0], columns=frame.shape[1], samples_per_pixel=1, bits_allocated=16,
        bits_stored=10, number_of_frames=1, pixel_representation=0, photometric_interpretation="MONOCHROME2",
    )  # fmt: skip


def native() -> Dataset:
    return tomosynthesis(VOLUME)


def packed() -> Dataset:
    return compressed(tomosynthesis(VOLUME), J2K, [j2k(frame) for frame in VOLUME])


def run_length() -> Dataset:
    return compressed(tomosynthesis(VOLUME), str(RLELossless), [rle(frame) for frame in VOLUME])


def read(path: Path) -> np.ndarray:
    header = read_header(path)
    with SliceReader([header]) as reader:
        return np.stack([reader.read(z) for z in range(header.frames)])


def refuse(ds: Dataset, path: Path, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        read(write(ds, path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("make", [native, packed, run_length])
@pytest.mark.parametrize("frames", [None, 0, 1, 4, 6])
def test_a_wrong_number_of_frames_is_refused(tmp_path: Path, make: Callable[[], Dataset], frames: int | None) -> None:
    """With 1 for 5, four slices would not be looked at, without a word."""
    ds = make()
    del ds.PerFrameFunctionalGroupsSequence
    assert len(read(write(ds, tmp_path / "right.dcm"))) == 5
    if frames is None:
        del ds.NumberOfFrames
    else:
        ds.NumberOfFrames = frames
    refuse(ds, tmp_path / "wrong.dcm", "of pixels|and holds 5 frames|is cut off")


def test_descriptions_of_fewer_frames_than_there_are_are_refused(tmp_path: Path) -> None:
    """The order of the frames is in them; without all of them a lesion is marked on a wrong slice."""
    ds = native()
    del ds.PerFrameFunctionalGroupsSequence[-1]
    refuse(ds, tmp_path / "volume.dcm", "has a NumberOfFrames of 5 and describes 4")


@pytest.mark.parametrize(
    "fields",
    [
        {"Rows": 60},
        {"Columns": 45},
        {"Rows": 119},
        {"Rows": 90, "Columns": 120},
        {"Rows": 60, "Columns": 180},
        {"Rows": 240, "Columns": 45},
        {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7},
        {"BitsStored": 17},
        {"BitsStored": 0},
        {"BitsStored": 8, "HighBit": 7},
        {"PixelRepresentation": 1, "BitsStored": 9},
    ],
)
def test_sizes_and_bits_that_do_not_fit_the_pixels_are_refused(tmp_path: Path, fields: dict[str, int]) -> None:
    """They would be read as another image: scrambled, half of it, or with parts that went dark."""
    ds = native()
    for name, value in fields.items():
        setattr(ds, name, value)
    refuse(ds, tmp_path / "volume.dcm", "export it again|cut off")


def test_noise_is_no_sign_of_a_wrong_row_length(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 1024, (120, 90)).astype(np.uint16)
    assert np.array_equal(read(write(mammogram(noise), tmp_path / "noise.dcm"))[0], noise)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}, "up to 8 bits, without a sign, and holds 10 bits"),
        ({"PixelRepresentation": 1}, "with a sign, and holds 10 bits without one"),
    ],
)
def test_bits_that_the_compressed_image_contradicts_are_refused(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    ds = packed()
    for name, value in fields.items():
        setattr(ds, name, value)
    refuse(ds, tmp_path / "volume.dcm", words)


def test_one_byte_of_padding_is_no_lie(tmp_path: Path) -> None:
    image = (breast(45, 33) // 4).astype(np.uint8)
    ds = mammogram(breast(45, 33), BitsAllocated=8, BitsStored=8, HighBit=7)
    ds.PixelData = image.tobytes() + b"\0"
    ds["PixelData"].VR = "OB"
    assert np.array_equal(read(write(ds, tmp_path / "m.dcm"))[0], image)
    ds.PixelData += b"\0\0"
    refuse(ds, tmp_path / "m.dcm", "holds 1488 bytes of pixels, and what its header says needs 1485")


def test_a_frame_in_several_fragments_is_one_frame(tmp_path: Path) -> None:
    """As the standard allows; and the offsets may be wrong or missing, because nobody needs them."""
    ds = packed()
    frames = [j2k(frame) for frame in VOLUME]
    for with_table in (False, True):
        ds.PixelData = encapsulate(frames, fragments_per_frame=3, has_bot=with_table)
        assert np.array_equal(read(write(ds, tmp_path / "volume.dcm")), VOLUME)
    content = bytearray((tmp_path / "volume.dcm").read_bytes())
    at = content.index(b"\xfe\xff\x00\xe0" + (20).to_bytes(4, "little")) + 8
    content[at : at + 20] = bytes(20)  # all frames at the first one's place
    (tmp_path / "volume.dcm").write_bytes(content)
    assert np.array_equal(read(tmp_path / "volume.dcm"), VOLUME)


def test_pixels_that_are_compressed_and_said_not_to_be_are_refused(tmp_path: Path) -> None:
    path = write(packed(), tmp_path / "volume.dcm")
    plain = str(ExplicitVRLittleEndian).ljust(len(J2K), "\0")
    path.write_bytes(path.read_bytes().replace(J2K.encode(), plain.encode()))
    with pytest.raises(InputError, match=r"says it is not compressed and is|is cut off"):
        read(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"RescaleSlope": "nan"},
        {"RescaleSlope": "inf"},
        {"RescaleSlope": "0"},
        {"RescaleSlope": "-1"},
        {"RescaleIntercept": "nan"},
        {"WindowCenter": "nan"},
        {"WindowWidth": "inf"},
        {"WindowCenter": "nan", "WindowWidth": "nan"},
    ],
)
def test_windows_and_slopes_that_are_no_numbers_are_refused(tmp_path: Path, fields: dict[str, str]) -> None:
    """The model would be given an empty image, and the exam would be called negative."""
    refuse(mammogram(VOLUME[0], **fields), tmp_path / "m.dcm", "finite number|not above 0")


def test_the_rescaling_of_a_volume_is_in_its_functional_groups(tmp_path: Path) -> None:
    from support.dicom_files import item

    ds = native()
    group = item(RescaleSlope="2", RescaleIntercept="-100")
    ds.SharedFunctionalGroupsSequence[0].PixelValueTransformationSequence = [group]
    ds.RescaleSlope = "7"
    header = read_header(write(ds, tmp_path / "volume.dcm"))
    assert (header.slope, header.intercept) == (2, -100)
    ds.SharedFunctionalGroupsSequence[0].PixelValueTransformationSequence[0].RescaleSlope = "nan"
    refuse(ds, tmp_path / "volume.dcm", "RescaleSlope that is not a finite number")
