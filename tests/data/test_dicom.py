"""Reading DICOM: a frame in the wrong order or a view of the wrong side is a cancer marked in the wrong place."""

import io
import math
import struct
from collections.abc import Callable
from pathlib import Path

import imagecodecs
import jpeg_ls
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openjpeg.utils import encode_array
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.pixels.encoders.base import get_encoder
from pydicom.uid import ImplicitVRLittleEndian, RLELossless
from support.dicom_files import breast, compressed, dataset, item, mammogram, tomosynthesis, write

from mm3d.data.datasets.folder import read_headers
from mm3d.data.dicom.frames import SliceReader
from mm3d.data.dicom.header import Header, read_header
from mm3d.data.dicom.kinds import CT, SECONDARY_CAPTURE
from mm3d.data.dicom.window import LookupTable, Window, read_display
from mm3d.shared.errors import InputError

VOLUME = np.stack([breast(seed=i) + i for i in range(5)]).astype(np.uint16)
J2K, JPEG, RLE = "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.50", str(RLELossless)


def read_all(path: Path) -> np.ndarray:
    header = read_header(path)
    with SliceReader([header]) as reader:
        return np.stack([reader.read(z) for z in range(header.frames)])


def j2k(frame: np.ndarray, bits: int = 10) -> bytes:
    return bytes(encode_array(frame, bits_stored=bits, photometric_interpretation=2))


def rle(frame: np.ndarray) -> bytes:
    return get_encoder(RLELossless).encode(
        frame.tobytes(), rows=frame.shape[0], columns=frame.shape[1], samples_per_pixel=1, bits_allocated=16,
        bits_stored=10, number_of_frames=1, pixel_representation=0, photometric_interpretation="MONOCHROME2",
    )  # fmt: skip


ENCODERS: dict[str, Callable[[np.ndarray], bytes]] = {
    J2K: j2k,
    "1.2.840.10008.1.2.4.91": j2k,
    "1.2.840.10008.1.2.4.201": lambda frame: bytes(imagecodecs.htj2k_encode(frame)),
    "1.2.840.10008.1.2.4.202": lambda frame: bytes(imagecodecs.htj2k_encode(frame)),
    "1.2.840.10008.1.2.4.203": lambda frame: bytes(imagecodecs.htj2k_encode(frame)),
    "1.2.840.10008.1.2.4.57": lambda frame: bytes(imagecodecs.ljpeg_encode(frame, bitspersample=10)),
    "1.2.840.10008.1.2.4.70": lambda frame: bytes(imagecodecs.ljpeg_encode(frame, bitspersample=10)),
    "1.2.840.10008.1.2.4.80": lambda frame: bytes(jpeg_ls.encode_array(frame)),
    "1.2.840.10008.1.2.4.81": lambda frame: bytes(jpeg_ls.encode_array(frame)),
    RLE: rle,
}


# ---- every kind of object, every transfer syntax -------------------------------------------------------------------


@pytest.mark.parametrize("syntax", ENCODERS)
def test_compressed_volumes_come_back_bit_for_bit(tmp_path: Path, syntax: str) -> None:
    ds = compressed(tomosynthesis(VOLUME), syntax, [ENCODERS[syntax](frame) for frame in VOLUME])
    assert np.array_equal(read_all(write(ds, tmp_path / "volume.dcm")), VOLUME)


def test_a_codestream_with_more_bits_than_the_header_says(tmp_path: Path) -> None:
    """As in all of BCS-DBT: 10 bits in the header, 16 in the JPEG 2000 data."""
    ds = compressed(tomosynthesis(VOLUME), J2K, [j2k(frame, bits=16) for frame in VOLUME])
    assert np.array_equal(read_all(write(ds, tmp_path / "volume.dcm")), VOLUME)


def test_jpeg_baseline_and_eight_bits(tmp_path: Path) -> None:
    image = (breast() // 4).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=98)
    ds = mammogram(breast(), BitsAllocated=8, BitsStored=8, HighBit=7)
    decoded = read_all(write(compressed(ds, JPEG, [buffer.getvalue()]), tmp_path / "m.dcm"))[0]
    assert abs(decoded.astype(int) - image).mean() < 2


@pytest.mark.parametrize("implicit", [False, True])
def test_uncompressed_volumes_of_either_encoding(tmp_path: Path, implicit: bool) -> None:
    ds = tomosynthesis(VOLUME)
    if implicit:
        ds.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    assert np.array_equal(read_all(write(ds, tmp_path / "volume.dcm")), VOLUME)


def test_frames_are_ordered_by_position_not_by_number(tmp_path: Path) -> None:
    shuffled = [3, 0, 4, 1, 2]
    ds = tomosynthesis(VOLUME[shuffled], heights=[float(i) for i in shuffled])
    assert np.array_equal(read_all(write(ds, tmp_path / "volume.dcm")), VOLUME)


def test_a_volume_stored_from_top_to_bottom_keeps_its_order(tmp_path: Path) -> None:
    """Annotations count in the file's own order where it has one."""
    ds = tomosynthesis(VOLUME, heights=[5.0, 4.0, 3.0, 2.0, 1.0])
    assert read_header(write(ds, tmp_path / "volume.dcm")).frame_order == (0, 1, 2, 3, 4)


def test_slices_stored_as_ct_or_secondary_capture_are_recognised(tmp_path: Path) -> None:
    ct = dataset(VOLUME[0], CT, Modality="CT", ImageType=["DERIVED", "PRIMARY", "TOMO"], SliceLocation=7.5)
    capture = dataset(VOLUME[0], SECONDARY_CAPTURE, InstanceNumber=3, SeriesDescription="L MLO Tomosynthesis")
    first, second = read_header(write(ct, tmp_path / "a.dcm")), read_header(write(capture, tmp_path / "b.dcm"))
    assert (first.kind, first.slice_position) == ("DBT slice", 7.5)
    assert (second.kind, second.slice_position, second.laterality, second.position) == (
        "DBT slice",
        3.0,
        "L",
        "MLO",
    )


def test_single_slices_without_an_orientation_still_have_an_order(tmp_path: Path) -> None:
    for name, z in (("a", 9.0), ("b", 3.0)):
        ds = dataset(VOLUME[0], CT, Modality="CT", ImageType=["DERIVED", "PRIMARY", "TOMO"])
        ds.ImagePositionPatient = [5.0, 5.0, z]
        assert read_header(write(ds, tmp_path / f"{name}.dcm")).slice_position == z


# ---- side and view hide in many places -----------------------------------------------------------------------------

CODES = {"SNM3 CC": "R-10242", "SNM3 MLO": "R-10226", "SCT CC": "399162004", "SCT MLO": "399368009"}


@pytest.mark.parametrize("code", CODES)
def test_views_by_code(tmp_path: Path, code: str) -> None:
    ds = mammogram(breast(), ViewPosition="", ViewCodeSequence=[item(CodeValue=CODES[code])])
    assert read_header(write(ds, tmp_path / "m.dcm")).position == code.split()[1]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ImageLaterality": "R", "ViewPosition": "MLO"}, ("R", "MLO")),
        ({"ImageLaterality": "", "Laterality": "R", "ViewPosition": "CC"}, ("R", "CC")),
        ({"ImageLaterality": "", "ViewPosition": "", "SeriesDescription": "R-MLO"}, ("R", "MLO")),
        ({"ImageLaterality": "", "ViewPosition": "", "SeriesDescription": "LCC Combo"}, ("L", "CC")),
        ({"ImageLaterality": "", "ViewPosition": "", "ProtocolName": "ROUTINE ACCESS"}, (None, None)),
    ],
)
def test_views_by_tag_and_text(tmp_path: Path, fields: dict[str, str], expected: tuple[str, str]) -> None:
    header = read_header(write(mammogram(breast(), **fields), tmp_path / "m.dcm"))
    assert (header.laterality, header.position) == expected


def test_the_volume_says_its_side_in_the_functional_groups(tmp_path: Path) -> None:
    header = read_header(write(tomosynthesis(VOLUME, side="R", view="MLO"), tmp_path / "v.dcm"))
    assert (header.laterality, header.position, header.pixel_spacing, header.slice_spacing) == ("R", "MLO", 0.1, 1.0)
    assert header.display == Window(400, 800)


# ---- windows -------------------------------------------------------------------------------------------------------


def test_windows_by_the_formulas_of_the_standard() -> None:
    values = np.array([0, 100, 200, 300, 400], dtype=np.float32)
    assert Window(200, 200).apply(values) == pytest.approx([0, 0, 0.50251, 1, 1], abs=1e-4)
    assert Window(200, 200, "LINEAR_EXACT").apply(values) == pytest.approx([0, 0, 0.5, 1, 1])
    assert Window(200, 200, "SIGMOID").apply(values) == pytest.approx(
        [1 / (1 + math.exp(-4 * d)) for d in (-1, -0.5, 0, 0.5, 1)]
    )
    assert LookupTable(100, (0.0, 0.5, 1.0)).apply(np.array([0, 101, 500], dtype=np.float32)).tolist() == [0, 0.5, 1]


def test_the_first_of_several_windows_counts_and_a_table_only_without_one() -> None:
    ds = item(WindowCenter=["2047", "1000"], WindowWidth=["4096", "500"], VOILUTFunction="SIGMOID")
    assert read_display(ds) == Window(2047, 4096, "SIGMOID")
    table = item(LUTDescriptor=[3, 10, 8], LUTData=struct.pack("<3H", 0, 51, 204))
    assert read_display(item(VOILUTSequence=[table])) == LookupTable(10, (0.0, 0.2, 0.8))
    assert read_display(Dataset()) is None


# ---- what is refused, in a sentence --------------------------------------------------------------------------------


def refused(path: Path, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        read_all(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_hologic_sco_says_to_export_bto(tmp_path: Path) -> None:
    ds = dataset(VOLUME[0], SECONDARY_CAPTURE, Manufacturer="HOLOGIC, Inc.")
    ds.private_block(0x7E01, "HOLOGIC, Inc.", create=True).add_new(0x12, "OB", b"\0" * 64)
    refused(write(ds, tmp_path / "sco.dcm"), 'export the exam as "BTO"')


def test_jpeg_extended_and_unknown_syntaxes(tmp_path: Path) -> None:
    ds = compressed(mammogram(breast()), "1.2.840.10008.1.2.4.51", [b"\xff\xd8\xff\xd9"])
    refused(write(ds, tmp_path / "ext.dcm"), "JPEG extended")
    ds = compressed(mammogram(breast()), "1.2.840.10008.1.2.4.100", [b"\0\0"])
    refused(write(ds, tmp_path / "mpeg.dcm"), "transfer syntax")


def test_truncated_pixel_data_of_either_kind(tmp_path: Path) -> None:
    native = write(tomosynthesis(VOLUME), tmp_path / "native.dcm")
    native.write_bytes(native.read_bytes()[:-1000])
    refused(native, "cut off")
    packed = write(compressed(tomosynthesis(VOLUME), J2K, [j2k(frame) for frame in VOLUME]), tmp_path / "j2k.dcm")
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    refused(packed, "damaged|not JPEG 2000|cut off")


def test_sizes_that_lie_are_seen_before_anything_is_decoded(tmp_path: Path) -> None:
    frames = [j2k(np.zeros((2000, 2000), np.uint16))] * 5
    refused(write(compressed(tomosynthesis(VOLUME), J2K, frames), tmp_path / "lie.dcm"), "holds one of 2000 x 2000")
    bomb = compressed(tomosynthesis(VOLUME), J2K, [j2k(VOLUME[0])])
    bomb.Rows, bomb.Columns, bomb.NumberOfFrames = 9000, 9000, 900
    refused(write(bomb, tmp_path / "bomb.dcm"), "MB of pixels in a file of")
    huge = mammogram(breast(), Rows=60000, Columns=60000)
    refused(write(huge, tmp_path / "huge.dcm"), "no device makes")


def test_other_files_and_other_modalities(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("the patient said")
    refused(text, "is not DICOM")
    refused(tmp_path / "absent.dcm", "is not a file")
    empty = tmp_path / "empty.dcm"
    empty.write_bytes(b"")
    refused(empty, "is empty; copy or export it again")
    text.rename(empty)
    refused(empty, "holds no DICOM, whatever its name says; copy or export it again")
    brain = dataset(VOLUME[0], CT, Modality="CT", BodyPartExamined="HEAD")
    refused(write(brain, tmp_path / "ct.dcm"), r"not mammography \(modality CT\)")
    refused(write(mammogram(breast(), SamplesPerPixel=3), tmp_path / "rgb.dcm"), "colour")


def test_an_image_that_is_cut_off_anywhere_is_no_harmless_other_file(tmp_path: Path) -> None:
    """It would be passed over without a word, and the exam would miss a view."""
    path = write(mammogram(breast(40, 32)), tmp_path / "image.dcm")
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2 * 40 * 32, 3):
        path.write_bytes(whole[:length])
        _, (unread,) = read_headers([path])
        assert unread.kind == "broken", length
        assert str(path) in unread.reason
        assert "again" in unread.reason


# ---- files nobody vouches for --------------------------------------------------------------------------------------


def seeds() -> list[bytes]:
    small = np.stack([breast(40, 32, seed=i) for i in range(2)])
    files = []
    for ds in (
        mammogram(small[0]),
        tomosynthesis(small),
        compressed(tomosynthesis(small), J2K, [j2k(f) for f in small]),
    ):
        buffer = io.BytesIO()
        ds.save_as(buffer, enforce_file_format=True)
        files.append(buffer.getvalue())
    return files


SEEDS = seeds()
change = st.tuples(st.floats(0, 0.9999), st.binary(min_size=1, max_size=6))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.sampled_from(range(3)), changes=st.lists(change, min_size=1, max_size=4), cut=st.none() | st.floats(0, 1)
)
def test_mutated_files_are_read_or_refused_and_nothing_else(
    tmp_path: Path, seed: int, changes: list[tuple[float, bytes]], cut: float | None
) -> None:
    content = bytearray(SEEDS[seed])
    for where, what in changes:
        at = int(where * len(content))
        content[at : at + len(what)] = what
    path = tmp_path / "mutated.dcm"
    path.write_bytes(content if cut is None else content[: int(cut * len(content))])
    said = ""
    try:
        frames = read_all(path)
    except InputError as error:
        said = str(error)
    assert str(path) in said if said else frames.ndim == 3
    assert list(tmp_path.iterdir()) == [path]


# ---- real files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "side", "view", "shape"),
    [
        ("ge-ffdm-rmlo-jpeg-lossless.dcm", "R", "MLO", (1, 3062, 2394)),
        ("siemens-mg-lcc-overlay-out-of-bounds.dcm", "L", "CC", (1, 788, 1318)),
    ],
)
def test_real_files_decode(real_data: Path, name: str, side: str, view: str, shape: tuple[int, ...]) -> None:
    path = real_data / "dicom" / name
    header: Header = read_header(path)
    assert (header.laterality, header.position) == (side, view)
    pixels = read_all(path)
    assert pixels.shape == shape
    assert pixels.max() > 1000
