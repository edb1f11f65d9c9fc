"""What a DICOM file says of itself: which view of which breast it shows, and how its pixels are stored.

A header may be wrong. Sizes are checked against limits and against the file before anything is decoded.
"""

import hashlib
import io
import re
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.errors import InvalidDicomError
from pydicom.filereader import read_file_meta_info
from pydicom.uid import UID

from mm3d.data.dicom.window import StoredImage, first_value, read_display
from mm3d.data.records import Laterality, Position
from mm3d.shared.errors import InputError

TOMOSYNTHESIS = "1.2.840.10008.5.1.4.1.1.13.1.3"
MAMMOGRAPHY = ("1.2.840.10008.5.1.4.1.1.1.2", "1.2.840.10008.5.1.4.1.1.1.2.1")  # for presentation, for processing
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
# A tomosynthesis slice may also come as a CT or a Secondary Capture object of its own.
SLICES = ("1.2.840.10008.5.1.4.1.1.2", SECONDARY_CAPTURE)

NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")
COMPRESSED = {
    "1.2.840.10008.1.2.5": "RLE",
    "1.2.840.10008.1.2.4.50": "JPEG baseline",
    "1.2.840.10008.1.2.4.57": "JPEG lossless",
    "1.2.840.10008.1.2.4.70": "JPEG lossless",
    "1.2.840.10008.1.2.4.80": "JPEG-LS",
    "1.2.840.10008.1.2.4.81": "JPEG-LS",
    "1.2.840.10008.1.2.4.90": "JPEG 2000",
    "1.2.840.10008.1.2.4.91": "JPEG 2000",
    "1.2.840.10008.1.2.4.201": "HTJ2K",
    "1.2.840.10008.1.2.4.202": "HTJ2K",
    "1.2.840.10008.1.2.4.203": "HTJ2K",
}
JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"
DEFLATED = "1.2.840.10008.1.2.1.99"  # everything behind the file meta information is compressed as in a zip file
ENCAPSULATED = 0xFFFFFFFF  # the length of pixel data that comes in fragments

# No detector and no volume is larger. A file that claims more is damaged or an attack.
MAX_SIDE, MAX_FRAMES = 10_000, 1_000
MAX_RATIO = 3_000  # bytes of pixels per byte of the file; real volumes stay below 300
MAX_INFLATED = 8_000_000  # bytes of a deflated file that are looked at; headers of large volumes have 1 million
PIXEL_DATA = 0x7FE00010

VIEW_CODES: dict[str, Position] = {"R-10242": "CC", "399162004": "CC", "R-10226": "MLO", "399368009": "MLO"}
VIEW_IN_TEXT = re.compile(r"(?<![A-Z])([LR])?[\s_-]*(CC|MLO)(?![A-Z])")
TEXTS = ("SeriesDescription", "ProtocolName", "AcquisitionDeviceProcessingDescription", "ImageComments")
# Images of an intervention: taken with a stereotactic device, or of tissue that was removed.
INTERVENTION = re.compile("STEREO|SPECIMEN|BIOPSY")
SPECIMEN_CODES = ("127457009", "G-8310")  # SCT, and SRT in older files
# Modalities that a message may name; anything else in the element may be a name.
MODALITIES = (
    *("CR", "CT", "DOC", "DX", "IO", "KO", "MG", "MR", "NM", "OT", "PR", "PT"),
    *("REG", "RF", "SC", "SEG", "SR", "US", "XA"),
)
# What reports copy from an image. `Header.context` has those of these elements that the file has.
CONTEXT = (
    *("SpecificCharacterSet", "SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"),
    *("PatientName", "PatientID", "IssuerOfPatientID", "IssuerOfPatientIDQualifiersSequence"),
    *("OtherPatientIDsSequence", "PatientBirthDate", "PatientBirthTime", "PatientSex", "PatientAge"),
    *("QualityControlSubject", "PatientIdentityRemoved", "DeidentificationMethod"),
    *("DeidentificationMethodCodeSequence", "StudyDate", "StudyTime", "StudyID", "StudyDescription"),
    *("ProcedureCodeSequence", "AccessionNumber", "IssuerOfAccessionNumberSequence", "ReferringPhysicianName"),
    *("ContentDate", "ContentTime", "PatientOrientation", "ImageOrientationPatient"),
)


class OtherKindError(InputError):
    """The file is not mammography. Nothing is wrong with it."""


class UnusableFileError(InputError):
    """The file cannot be used. `dataset` is what its header still says."""

    def __init__(self, message: str, dataset: Dataset) -> None:
        super().__init__(message)
        self.dataset = dataset


@dataclass(frozen=True, kw_only=True)
class Header(StoredImage):
    """One DICOM file that holds a mammogram, a tomosynthesis volume or a slice of one."""

    path: Path
    kind: Literal["volume", "mammogram", "slice"]
    laterality: Laterality | None
    position: Position | None
    intervention: bool  # a stereotactic image or a specimen: no detector was made for it, whatever view it claims
    patient: str  # a code for the patient that does not tell who it is
    study: str
    series: str
    instance: str  # SOPInstanceUID, the same in every copy of the file
    slice_position: float  # of a slice: where it lies in its series
    frame_order: tuple[int, ...]  # frames of the file in the order of their positions
    transfer_syntax: str
    bits_allocated: int
    pixel_start: int  # where the value of the pixel data begins in the file
    pixel_length: int  # its length in bytes; ENCAPSULATED if it is compressed
    frame_offsets: tuple[bytes, bytes] | None = field(repr=False)  # the extended offset table, if there is one
    context: Dataset = field(repr=False, compare=False)  # patient, study and orientation, for reports: see CONTEXT

    @property
    def frames(self) -> int:
        return len(self.frame_order)


def slices_of(headers: Sequence[Header]) -> tuple[tuple[int, int], ...]:
    """(file, frame in it) of every slice of a view, from its file or its files in the order of their slices."""
    return tuple((file, number) for file, header in enumerate(headers) for number in header.frame_order)


def sort_headers(headers: Sequence[Header]) -> tuple[Header, ...]:
    """The headers of a view's files in the order of their slices. Files that do not fit together are refused."""
    if len(headers) > 1 and any(header.frames != 1 for header in headers):
        path = next(header.path for header in headers if header.frames != 1)
        raise InputError(f"{path} has several slices and is one of several files of a view; leave it out.")
    headers = sorted(headers, key=lambda header: header.slice_position)
    for header in headers:
        if (header.rows, header.columns) != (headers[0].rows, headers[0].columns):
            raise InputError(f"{header.path} has another size than the other slices of its view; leave it out.")
    return tuple(headers)


def read_header(path: Path) -> Header:
    """Read and check a header.

    Parameters
    ----------
    path : a DICOM file.

    Returns
    -------
    The header. A file that cannot be used is refused with an InputError, whose one sentence names the file.
    """
    dataset, end = _read(path, None)
    try:
        return _make_header(path, dataset, end)
    except OtherKindError:
        raise
    except InputError as error:
        raise UnusableFileError(str(error), dataset) from error
    except Exception as error:  # any exception means a damaged header
        raise UnusableFileError(f"{path} has a damaged DICOM header; export it again.", dataset) from error


def read_dataset(path: Path, tags: Sequence[str] | None = None) -> Dataset:
    """Everything in front of the pixels, or only some tags, which is faster."""
    return _read(path, tags)[0]


def _read(path: Path, tags: Sequence[str] | None) -> tuple[Dataset, int]:
    """Everything in front of the pixels, and where in the file it ends."""
    names = None if tags is None else list(tags)
    try:
        if not path.is_file():
            raise InputError(f"{path} is not a file, or a link to nothing; give DICOM files.")
        meta = read_file_meta_info(path)
        if meta.get("TransferSyntaxUID") == DEFLATED:
            return _read_deflated(path, meta), 0
        with path.open("rb") as file:
            dataset = pydicom.dcmread(file, stop_before_pixels=True, defer_size=1_000_000, specific_tags=names)
            end = file.tell()
        for name in names or ():
            str(dataset.get(name))  # only now it is decoded
        return dataset, end
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or 'damaged'}); make it readable, or leave it out."
        ) from error
    except InvalidDicomError as error:
        if path.suffix.lower() == ".dcm":  # a file of this name was an image once
            what = "holds no DICOM, whatever its name says" if path.stat().st_size else "is empty"
            raise InputError(f"{path} {what}; copy or export it again, or remove it.") from error
        raise OtherKindError(f"{path} is not DICOM; leave it out.") from error
    except InputError:
        raise
    except Exception as error:  # any exception means a damaged header
        raise InputError(f"{path} has a damaged DICOM header; export it again.") from error


def _read_deflated(path: Path, meta: FileMetaDataset) -> Dataset:
    """Everything in front of the pixels of a deflated file. pydicom would inflate it whole, a thousandfold."""
    with path.open("rb") as file:
        file.seek(128 + 4 + 12 + int(meta.FileMetaInformationGroupLength))  # preamble, DICM, and this element
        plain = zlib.decompressobj(-zlib.MAX_WBITS).decompress(file.read(MAX_INFLATED), MAX_INFLATED)
    dataset = pydicom.filereader.read_dataset(
        io.BytesIO(plain), is_implicit_VR=False, is_little_endian=True, stop_when=lambda tag, *_: tag == PIXEL_DATA
    )
    dataset.file_meta = meta
    return dataset


def _make_header(path: Path, dataset: Dataset, end: int) -> Header:
    kind = _kind(path, dataset)
    syntax = _transfer_syntax(path, dataset)
    rows, columns, frames = _sizes(path, dataset)
    laterality, position = which_view(dataset)
    positions = _frame_positions(dataset, frames)
    allocated = int(dataset.BitsAllocated)
    if allocated not in (8, 16):
        raise InputError(f"{path} has {allocated} bits per pixel; export it with 8 or 16.")
    if int(dataset.get("SamplesPerPixel", 1)) != 1:
        raise InputError(f"{path} is a colour image; export the grey image.")
    pixel_start, pixel_length = _find_pixels(path, end, implicit=bool(dataset.original_encoding[0]))
    offsets = None
    if "ExtendedOffsetTable" in dataset:
        offsets = (dataset.ExtendedOffsetTable, dataset.ExtendedOffsetTableLengths)
    return Header(
        name=str(path),
        rows=rows,
        columns=columns,
        bits_stored=int(dataset.BitsStored),
        signed=int(dataset.get("PixelRepresentation", 0)) == 1,
        inverted=str(dataset.get("PhotometricInterpretation", "")).strip() == "MONOCHROME1",
        slope=float(dataset.get("RescaleSlope", 1) or 1),
        intercept=float(dataset.get("RescaleIntercept", 0) or 0),
        display=read_display(functional_group(dataset, "FrameVOILUTSequence")) or read_display(dataset),
        for_processing=str(dataset.get("PresentationIntentType", "")).upper() == "FOR PROCESSING",
        pixel_spacing=_millimetres(dataset, "PixelSpacing", "ImagerPixelSpacing"),
        slice_spacing=_millimetres(dataset, "SliceThickness"),
        vendor=str(dataset.get("Manufacturer", "")).strip(),
        path=path,
        kind=kind,
        laterality=laterality,
        position=position,
        intervention=_is_intervention(dataset),
        patient=_patient_code(dataset),
        study=str(dataset.get("StudyInstanceUID", "")),
        series=str(dataset.get("SeriesInstanceUID", "")),
        instance=str(dataset.get("SOPInstanceUID", "")),
        slice_position=positions[0] if kind == "slice" else 0.0,
        frame_order=_order(positions),
        transfer_syntax=syntax,
        bits_allocated=allocated,
        pixel_start=pixel_start,
        pixel_length=pixel_length,
        frame_offsets=offsets,
        context=_context(dataset),
    )


def _kind(path: Path, dataset: Dataset) -> Literal["volume", "mammogram", "slice"]:
    sop_class = str(dataset.get("SOPClassUID", ""))
    modality = str(dataset.get("Modality", "")).upper()
    hologic = "HOLOGIC" in str(dataset.get("Manufacturer", "")).upper()
    if sop_class == SECONDARY_CAPTURE and hologic and any(element.tag.group == 0x7E01 for element in dataset):
        raise InputError(
            f"{path} is a Hologic SCO object, whose slices only Hologic's software can read: "
            'export the exam as "BTO" (Breast Tomosynthesis).'
        )
    if sop_class == TOMOSYNTHESIS:
        return "volume"
    if sop_class in MAMMOGRAPHY:
        return "mammogram"
    if sop_class in SLICES and (modality == "MG" or _is_tomosynthesis(dataset)):
        return "slice"
    if not sop_class or not modality:  # every image and report has both
        raise InputError(f"{path} does not say what it is: it is cut off, or not an image; copy it again.")
    known = modality if modality in MODALITIES else "unknown"
    raise OtherKindError(f"{path} is not mammography (modality {known}); leave it out.")


def _is_tomosynthesis(dataset: Dataset) -> bool:
    words = [str(word).upper() for word in dataset.get("ImageType") or ()]
    return "TOMO" in words or "BREAST" in str(dataset.get("BodyPartExamined", "")).upper()


def _is_intervention(dataset: Dataset) -> bool:
    """Whether the image type, the view or a modifier of the view says so."""
    views = list(dataset.get("ViewCodeSequence") or ())
    # Modifiers stand inside the view, or, in older files, beside it.
    modifiers = [item for place in (dataset, *views) for item in place.get("ViewModifierCodeSequence") or ()]
    words = [str(word) for word in dataset.get("ImageType") or ()]
    words += [str(item.get("CodeMeaning", "")) for item in (*views, *modifiers)]
    coded = any(str(item.get("CodeValue", "")).strip() in SPECIMEN_CODES for item in (*views, *modifiers))
    return coded or any(INTERVENTION.search(word.upper()) for word in words)


def _transfer_syntax(path: Path, dataset: Dataset) -> str:
    syntax = str(dataset.file_meta.get("TransferSyntaxUID", ""))
    if syntax == JPEG_EXTENDED:
        raise InputError(
            f"{path} is compressed as JPEG extended (12 bit), which no decoder reads: export it as JPEG 2000."
        )
    if syntax not in NATIVE and syntax not in COMPRESSED:
        known = UID(syntax).name
        known = "unknown" if known == syntax else known  # what the file has there may be anything
        raise InputError(f"{path} has the transfer syntax {known}; export it as JPEG 2000 lossless.")
    return syntax


def _sizes(path: Path, dataset: Dataset) -> tuple[int, int, int]:
    """Rows, columns and frames, if a real file can have them."""
    rows, columns = int(dataset.get("Rows") or 0), int(dataset.get("Columns") or 0)
    frames = int(dataset.get("NumberOfFrames") or 1)
    if "Rows" not in dataset or "Columns" not in dataset:
        raise InputError(f"{path} is cut off in its header, or has no image; copy it again.")
    if not (0 < rows <= MAX_SIDE and 0 < columns <= MAX_SIDE and 0 < frames <= MAX_FRAMES):
        raise InputError(
            f"{path} claims {frames} frames of {rows} x {columns} pixels, which no device makes; export it again."
        )
    size = path.stat().st_size
    needed = rows * columns * frames * int(dataset.BitsAllocated) // 8
    if needed > MAX_RATIO * size:
        raise InputError(
            f"{path} claims {needed / 1e6:.0f} MB of pixels in a file of {size / 1e3:.0f} kB; export it again."
        )
    if str(dataset.file_meta.TransferSyntaxUID) in NATIVE and needed > size:
        raise InputError(f"{path} is cut off: it claims {needed} bytes of pixels and has {size} in all; copy it again.")
    return rows, columns, frames


def _find_pixels(path: Path, at: int, implicit: bool) -> tuple[int, int]:
    """Where the value of the pixel data begins in the file, and its length. Its tag is expected at byte `at`."""
    with path.open("rb") as file:
        file.seek(at)
        head = file.read(8 if implicit else 12)
        if len(head) < 8 or struct.unpack("<HH", head[:4]) != (0x7FE0, 0x0010):
            raise InputError(f"{path} has no pixel data; export it again.")
        return file.tell(), struct.unpack("<I", head[-4:])[0]


def which_view(dataset: Dataset) -> tuple[Laterality | None, Position | None]:
    """Side and view from all the places where they may be, the most specific first."""
    frame_side = functional_group(dataset, "FrameAnatomySequence").get("FrameLaterality")
    sides = [frame_side, dataset.get("ImageLaterality"), dataset.get("Laterality")]
    views: list[str | None] = [
        VIEW_CODES.get(str(item.get("CodeValue", "")).strip()) for item in dataset.get("ViewCodeSequence") or ()
    ]
    views.append(str(dataset.get("ViewPosition") or "").strip().upper())
    for name in TEXTS:
        for side, view in VIEW_IN_TEXT.findall(str(dataset.get(name) or "").upper()):
            sides.append(side)
            views.append(view)
    laterality = next((str(side).strip().upper() for side in sides if str(side).strip().upper() in ("L", "R")), None)
    position = next((view for view in views if view in ("CC", "MLO")), None)
    return cast(Laterality | None, laterality), cast(Position | None, position)


def _frame_positions(dataset: Dataset, frames: int) -> list[float]:
    """Where each frame lies along the normal of the slices; its number if the file does not say."""
    groups = list(dataset.get("PerFrameFunctionalGroupsSequence") or ())
    items = [_first_item(group.get("PlanePositionSequence")) for group in groups] or [dataset]
    points = [item.get("ImagePositionPatient") for item in items]
    if len(points) != frames or any(point is None or len(point) != 3 for point in points):
        number = dataset.get("SliceLocation", dataset.get("InstanceNumber"))
        return [float(number or 0)] if frames == 1 else [float(i) for i in range(frames)]
    places = np.array([[float(x) for x in point] for point in points])
    orientation = functional_group(dataset, "PlaneOrientationSequence").get("ImageOrientationPatient")
    orientation = orientation or dataset.get("ImageOrientationPatient")
    if orientation is not None and len(orientation) == 6:
        axes = np.array([float(x) for x in orientation]).reshape(2, 3)
        normal = np.cross(axes[0], axes[1])
    elif frames > 1:
        normal = np.eye(3)[np.ptp(places, axis=0).argmax()]
    else:
        normal = np.eye(3)[2]  # one slice does not show along which axis its series goes; z is the usual one
    return (places @ normal).tolist()


def _order(positions: list[float]) -> tuple[int, ...]:
    """The file's own order if it goes steadily up or down, because annotations count in it; otherwise by position."""
    steps = np.diff(positions)
    if (steps >= 0).all() or (steps <= 0).all():
        return tuple(range(len(positions)))
    return tuple(int(i) for i in np.argsort(positions, kind="stable"))


def _millimetres(dataset: Dataset, *names: str) -> float | None:
    """The first of these lengths that is above zero, in the functional group or in the file."""
    for source in (functional_group(dataset, "PixelMeasuresSequence"), dataset):
        for name in names:
            value = first_value(source.get(name))
            if value and float(value) > 0:
                return float(value)
    return None


def _patient_code(dataset: Dataset) -> str:
    """One code for all exams of a patient, so that they stay in one split; the study's code without a patient ID."""
    known = [str(dataset.get(name, "")) for name in ("PatientID", "IssuerOfPatientID", "PatientBirthDate")]
    source = "|".join(known) if known[0].strip() else str(dataset.get("StudyInstanceUID", ""))
    return hashlib.sha256(source.encode()).hexdigest()[:10]


def _context(dataset: Dataset) -> Dataset:
    """The elements of CONTEXT, as they are in the file. One that is damaged is left out, and not the image."""
    context = Dataset()
    for source in (dataset, functional_group(dataset, "PlaneOrientationSequence")):
        for name in CONTEXT:
            if name in source:
                element = source.get_item(name)
                with suppress(Exception):  # any exception means a damaged element
                    str(source[name])
                    context[element.tag] = element
    return context


def functional_group(dataset: Dataset, name: str) -> Dataset:
    """A functional group of a multi-frame image: the one that all frames share, else that of the first frame."""
    for place in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        group = _first_item(dataset.get(place)).get(name)
        if group:
            return group[0]
    return Dataset()


def _first_item(sequence: Any) -> Dataset:
    return sequence[0] if sequence else Dataset()
