"""Small files that would become large: one of them must not take the memory or the disk of everything else."""

import io
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from openjpeg.utils import encode_array
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.filebase import DicomBytesIO
from pydicom.filewriter import write_dataset, write_file_meta_info
from pydicom.uid import UID
from support.dicom_files import breast, compressed, mammogram, tomosynthesis, tomosynthesis_slice, write
from support.stored_views import SMALL, view_of, volume

from mm3d.data.datasets.folder import exam_code, read_headers
from mm3d.data.dicom.frames import SliceReader
from mm3d.data.dicom.header import read_header
from mm3d.data.dicom.meta import DEFLATED
from mm3d.data.prepare.view import MAX_PIXELS, begin_view
from mm3d.shared.errors import InputError

J2K, JPEG = "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.50"


def read_all(path: Path) -> np.ndarray:
    header = read_header(path)
    with SliceReader([header]) as reader:
        return np.stack([reader.read(z) for z in range(header.frames)])


# ---- deflated files ------------------------------------------------------------------------------------------------


def write_deflated(ds: Dataset, path: Path, zeros: int) -> Path:
    """A file whose data set is deflated, with this many zeros as pixels. They are not made all at once."""
    del ds.PixelData
    ds.file_meta.TransferSyntaxUID = UID(DEFLATED)
    meta, plain = DicomBytesIO(b""), DicomBytesIO(b"")
    for buffer in (meta, plain):
        buffer.is_little_endian, buffer.is_implicit_VR = True, False
    write_file_meta_info(meta, ds.file_meta)
    write_dataset(plain, Dataset({element.tag: element for element in ds}))
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    with path.open("wb") as file:
        file.write(bytes(128) + b"DICM" + meta.getvalue())
        file.write(deflate.compress(plain.getvalue() + struct.pack("<HH2sHI", 0x7FE0, 0x0010, b"OW", 0, zeros)))
        for _ in range(zeros // 1_000_000):
            file.write(deflate.compress(bytes(1_000_000)))
        file.write(deflate.flush())
    return path


def test_a_deflated_file_is_not_inflated_whole(tmp_path: Path) -> None:
    """6 MB became 13 GB in the main process, and took a minute and a half of every other exam."""
    image = mammogram(breast())
    path = write_deflated(image, tmp_path / "bomb.dcm", zeros=300_000_000)
    assert path.stat().st_size < 1_000_000
    tracemalloc.start()
    _, (unread,) = read_headers([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000
    assert "export it as JPEG 2000 lossless" in unread.reason
    # The header is read nevertheless, so that the exam is told that it lacks a view.
    assert (unread.exam, unread.laterality, unread.position) == (exam_code(image.StudyInstanceUID), "L", "CC")


def test_a_deflated_file_that_is_no_mammography_is_no_problem(tmp_path: Path) -> None:
    """Structured reports may be deflated, and lie beside the images of an exam."""
    path = write_deflated(
        mammogram(breast(), SOPClassUID="1.2.840.10008.5.1.4.1.1.88.33", Modality="SR"), tmp_path / "a", 0
    )
    _, (unread,) = read_headers([path])
    assert unread.kind == "other"


def test_a_damaged_deflated_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = write_deflated(mammogram(breast()), tmp_path / "bad.dcm", zeros=0)
    content = path.read_bytes()
    for damaged in (content[:400], content[:360] + bytes(100), content.replace(b"UL\x04\x00", b"UL\x04\x01", 1)):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"bad\.dcm"):
            read_header(path)


# ---- sizes inside compressed frames --------------------------------------------------------------------------------


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def siz(rows: int, columns: int) -> bytes:
    """How a JPEG 2000 codestream of one tile begins."""
    sizes = (columns, rows, 0, 0, columns, rows, 0, 0)
    return b"\xff\x4f\xff\x51" + struct.pack(">HH8IH3B", 41, 0, *sizes, 1, 9, 1, 1)


def jp2(codestream: bytes, rows: int, columns: int, *before: bytes) -> bytes:
    """A JP2 file with more boxes before that of the codestream."""
    header = box(b"ihdr", struct.pack(">IIHBBBB", rows, columns, 1, 9, 7, 0, 0))
    header += box(b"colr", struct.pack(">BBBI", 1, 0, 0, 17))
    start = b"\0\0\0\x0cjP  \r\n\x87\n" + box(b"ftyp", b"jp2 \0\0\0\0jp2 ")
    return start + b"".join(before) + box(b"jp2h", header) + box(b"jp2c", codestream)


def resized(codestream: bytes, rows: int, columns: int) -> bytes:
    """The codestream with another size in its SIZ segment."""
    return codestream[:8] + struct.pack(">8I", columns, rows, 0, 0, columns, rows, 0, 0) + codestream[40:]


def test_the_size_of_a_jpeg_2000_frame_is_that_of_its_codestream(tmp_path: Path) -> None:
    """A box that nobody reads showed the expected size, and the decoder made room for 24,000 x 24,000 pixels."""
    image = breast()
    rows, columns = image.shape
    real = bytes(encode_array(image, bits_stored=10, photometric_interpretation=2))
    path = write(compressed(mammogram(image), J2K, [jp2(real, rows, columns)]), tmp_path / "good.dcm")
    assert np.array_equal(read_all(path)[0], image)
    decoy = box(b"free", siz(rows, columns))
    huge = jp2(resized(real, 24_000, 24_000), 24_000, 24_000, decoy)
    path = write(compressed(mammogram(image), J2K, [huge]), tmp_path / "decoy.dcm")
    with pytest.raises(InputError, match="holds one of 24000 x 24000"):
        read_all(path)
    path = write(compressed(mammogram(image), J2K, [bytes(4) + siz(rows, columns) + real]), tmp_path / "late.dcm")
    with pytest.raises(InputError, match="not JPEG 2000"):
        read_all(path)


@pytest.mark.parametrize("length", [0, 1, 7, 0xFFFFFFFF])
def test_boxes_of_impossible_lengths_end_the_search(tmp_path: Path, length: int) -> None:
    image = breast()
    wrong = struct.pack(">I4s", length, b"free") + bytes(20)
    frame = jp2(bytes(encode_array(image, bits_stored=10, photometric_interpretation=2)), *image.shape, wrong)
    path = write(compressed(mammogram(image), J2K, [frame]), tmp_path / "box.dcm")
    with pytest.raises(InputError, match="not JPEG 2000"):
        read_all(path)


def test_more_components_than_one_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    image = breast()
    rows, columns = image.shape
    many = bytearray(siz(rows, columns))
    many[40:42] = struct.pack(">H", 16_000)
    path = write(compressed(mammogram(image), J2K, [bytes(many) + bytes(48_000) + b"\xff\xd9"]), tmp_path / "many.dcm")
    with pytest.raises(InputError, match="not JPEG 2000"):
        read_all(path)


def test_bytes_that_fill_up_do_not_hide_the_size_of_a_jpeg(tmp_path: Path) -> None:
    """Decoders skip them, so the marker behind them is the one that counts."""
    image = (breast() // 4).astype(np.uint8)
    rows, columns = image.shape
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((3000, 3000), np.uint8)).save(buffer, "JPEG")
    real = buffer.getvalue()
    at = real.index(b"\xff\xc0")
    # Read without skipping, the marker ff has a length that leads to the decoy behind the frame's own header.
    decoy = b"\xff\xc0" + struct.pack(">HBHHB3B", 11, 8, rows, columns, 1, 1, 0x11, 0)
    filler = bytes(0xC000 - 16)
    segment = b"\xff\xfe" + struct.pack(">H", 2 + len(filler + decoy)) + filler + decoy
    frame = real[:at] + b"\xff" + real[at : at + 13] + segment + real[at + 13 :]
    ds = compressed(mammogram(image.astype(np.uint16), BitsAllocated=8, BitsStored=8, HighBit=7), JPEG, [frame])
    with pytest.raises(InputError, match="holds one of 3000 x 3000"):
        read_all(write(ds, tmp_path / "fill.dcm"))


# ---- the pixels of a view ------------------------------------------------------------------------------------------


def test_a_view_with_too_many_pixels_is_refused_before_a_file_is_made_for_it(tmp_path: Path) -> None:
    """7 MB claimed 1,000 slices, and a file of 20 GB appeared among the results."""
    frames = volume()
    view = view_of(write(tomosynthesis(frames), tmp_path / "a.dcm"))
    pixels, shown = tmp_path / "pixels.npy", tmp_path / "shown.npy"
    with pytest.raises(InputError, match=f"has {len(frames)} slices .* give a larger --max-pixels"):
        begin_view(view, None, SMALL, pixels, shown, max_pixels=frames.size - 1)
    assert not pixels.exists()
    assert not shown.exists()
    begin_view(view, None, SMALL, pixels, shown, max_pixels=frames.size)
    assert shown.stat().st_size >= frames.size
    assert MAX_PIXELS >= 100 * 3328 * 2560  # a volume of full size


def test_the_slices_of_a_volume_in_many_files_count_together(tmp_path: Path) -> None:
    frames = volume()
    files = [write(tomosynthesis_slice(frame, z), tmp_path / f"{z}.dcm") for z, frame in enumerate(frames)]
    with pytest.raises(InputError, match="at most"):
        begin_view(
            view_of(files[0], files=tuple(files)), None, SMALL, tmp_path / "pixels.npy", max_pixels=frames.size - 1
        )
