"""What a DICOM file says of itself: which view of which breast it shows, and how its pixels are stored.

A header may be wrong. Sizes are checked against limits and against the file before anything is decoded.
"""

import hashlib
import io
import math
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.errors import InvalidDicomError
from pydicom.filereader import read_file_meta_info
from pydicom.uid import UID

from mm3d.data.dicom.groups import first_item, functional_group
from mm3d.data.dicom.kinds import VIRTUAL_TRIAL, OtherKindError, which_kind
from mm3d.data.dicom.layout import Part, find_frames
from mm3d.data.dicom.meta import COMPRESSED, DEFLATED, JPEG_EXTENDED, NATIVE, choose_syntax, read_meta
from mm3d.data.dicom.views import check_sides, find_contradictions, read_modifiers, which_view
from mm3d.data.dicom.window import Display, StoredImage, first_value, read_display
from mm3d.data.records import ImageKind, Laterality, Position
from mm3d.shared.errors import InputError

# No detector and no volume is larger. A file that claims more is damaged or an attack.
MAX_SIDE, MAX_FRAMES = 10_000, 1_000
MAX_RATIO = 3_000  # bytes of pixels per byte of the file; real volumes stay below 300
MAX_INFLATED = 8_000_000  # bytes of a deflated file that are looked at; headers of large volumes have 1 million
PIXEL_DATA = 0x7FE00010
SINGLE: tuple[ImageKind, ...] = ("DBT slice", "captured 2D")  # files that may be one slice of a view

MAX_STEP = 1.5  # between neighbouring slices, in units of the lower quartile: with a larger one, slices are missing
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


class UnusableFileError(InputError):
    """The file cannot be used. `dataset` is what its header still says."""

    def __init__(self, message: str, dataset: Dataset) -> None:
        super().__init__(message)
        self.dataset = dataset


@dataclass(frozen=True, kw_only=True)
class Header(StoredImage):
    """One DICOM file that holds a mammogram, a tomosynthesis volume or a slice of one."""

    path: Path
    kind: ImageKind
    laterality: Laterality | None
    position: Position | None
    intervention: bool  # a stereotactic image or a specimen: no detector was made for it, whatever view it claims
    part: bool  # magnified, a spot, tangential: it shows a part of the breast, whatever view it claims
    displaced: bool  # an implant is displaced: the view shows the breast in front of it
    contradictions: tuple[str, ...]  # sentences on what the header says twice and differently
    patient: str  # a code for the patient that does not tell who it is
    study: str
    series: str
    instance: str  # SOPInstanceUID, the same in every copy of the file
    slice_position: float  # of a slice: where it lies in its series
    thickness: float | None  # mm, of the compressed breast
    frame_order: tuple[int, ...]  # frames of the file in the order of their positions
    transfer_syntax: str
    bits_allocated: int
    frame_parts: tuple[tuple[Part, ...], ...] = field(repr=False)  # where the bytes of each frame are in the file
    context: Dataset = field(repr=False, compare=False)  # patient, study and orientation, for reports: see CONTEXT

    @property
    def frames(self) -> int:
        return len(self.frame_order)

    @property
    def synthetic(self) -> bool:
        """Whether it is of our virtual trial."""
        return str(self.context.get("StudyDescription", "")) == VIRTUAL_TRIAL


def slices_of(headers: Sequence[Header]) -> tuple[tuple[int, int], ...]:
    """(file, frame in it) of every slice of a view, from its file or its files in the order of their slices."""
    return tuple((file, number) for file, header in enumerate(headers) for number in header.frame_order)


def sort_headers(headers: Sequence[Header]) -> tuple[Header, ...]:
    """The headers of a view's files in the order of their slices. Files that do not fit together are refused."""
    if len(headers) > 1 and any(header.frames != 1 for header in headers):
        path = next(header.path for header in headers if header.frames != 1)
        raise InputError(f"{path} has several slices and is one of several files of a view; leave it out.")
    headers = sorted(headers, key=lambda header: header.slice_position)
    for header, following in pairwise(headers):
        if header.slice_position == following.slice_position:
            raise InputError(
                f"{following.path} is a slice at the same place as another one of its view, so that their order is not "
                "known; export the series again."
            )
    for header in headers:
        if (header.rows, header.columns) != (headers[0].rows, headers[0].columns):
            raise InputError(f"{header.path} has another size than the other slices of its view; leave it out.")
    return tuple(headers)


def find_gap(headers: Sequence[Header]) -> tuple[float, float] | None:
    """The places (mm) of two neighbouring slices between which others are missing. The files are a view's slices."""
    places = sorted(header.slice_position for header in headers)
    steps = np.diff(places)
    if len(steps) < 2 or steps.max() <= MAX_STEP * np.percentile(steps, 25):
        return None
    return places[steps.argmax()], places[steps.argmax() + 1]


def read_header(path: Path) -> Header:
    """Read and check a header.

    Parameters
    ----------
    path : a DICOM file.

    Returns
    -------
    The header. A file that cannot be used is refused with an InputError, whose one sentence names the file.
    """
    dataset, end, syntaxes = _read(path, None)
    try:
        return _make_header(path, dataset, end, syntaxes)
    except OtherKindError:
        raise
    except InputError as error:
        raise UnusableFileError(str(error), dataset) from error
    except Exception as error:  # any exception means a damaged header
        raise UnusableFileError(f"{path} has a damaged DICOM header; export it again.", dataset) from error


def read_dataset(path: Path, tags: Sequence[str] | None = None) -> Dataset:
    """Everything in front of the pixels, or only some tags, which is faster."""
    return _read(path, tags)[0]


def _read(path: Path, tags: Sequence[str] | None) -> tuple[Dataset, int, tuple[str, ...]]:
    """Everything in front of the pixels, where in the file it ends, and the transfer syntaxes that the file names."""
    names = None if tags is None else list(tags)
    try:
        if not path.is_file():
            raise InputError(f"{path} is not a file, or a link to nothing; give DICOM files.")
        meta = read_meta(path)
        if meta is None:
            raise InvalidDicomError
        if DEFLATED in meta.syntaxes:
            return _read_deflated(path, read_file_meta_info(path)), 0, (DEFLATED,)
        with path.open("rb") as file:
            file.seek(meta.start)
            dataset = pydicom.dcmread(file, stop_before_pixels=True, defer_size=1_000_000, specific_tags=names)
            end = file.tell()
        for name in names or ():
            str(dataset.get(name))  # only now it is decoded
        return dataset, end, meta.syntaxes
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or 'damaged'}); make it readable, or leave it out."
        ) from error
    except InvalidDicomError as error:
        if _was_image(path):
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


def _was_image(path: Path) -> bool:
    """Whether a file that is not DICOM was an image once: by its name, or, if it has no such name, because it is empty
    or begins with the zeros of a DICOM file. Many archives name files IM000001, or by a UID."""
    suffix = path.suffix.lower()
    if suffix in (".dcm", ".dicom", ".ima"):
        return True
    if suffix.strip(".0123456789"):
        return False
    with path.open("rb") as file:
        return not any(file.read(128))


def _make_header(path: Path, dataset: Dataset, end: int, syntaxes: tuple[str, ...]) -> Header:
    kind = which_kind(path, dataset, int(dataset.get("NumberOfFrames") or 1))
    syntax, several = choose_syntax(path, end, syntaxes or (str(dataset.file_meta.TransferSyntaxUID),))
    _check_syntax(path, syntax)
    rows, columns, frames = _sizes(path, dataset)
    laterality, position = which_view(dataset)
    check_sides(path, dataset)
    positions = _frame_positions(path, dataset, frames)
    allocated, stored = int(dataset.BitsAllocated), int(dataset.BitsStored)
    if allocated not in (8, 16):
        raise InputError(f"{path} has {allocated} bits per pixel; export it with 8 or 16.")
    if not 0 < stored <= allocated:
        raise InputError(f"{path} says it uses {stored} of {allocated} bits per pixel; export it again.")
    if int(dataset.get("SamplesPerPixel", 1)) != 1:
        raise InputError(f"{path} is a colour image; export the grey image.")
    slope, intercept = _read_rescale(path, dataset)
    frame_bytes = rows * columns * allocated // 8 if syntax in NATIVE else None
    intervention, part, displaced = read_modifiers(dataset)
    return Header(
        name=str(path),
        rows=rows,
        columns=columns,
        bits_stored=stored,
        signed=int(dataset.get("PixelRepresentation", 0)) == 1,
        inverted=str(dataset.get("PhotometricInterpretation", "")).strip() == "MONOCHROME1",
        slope=slope,
        intercept=intercept,
        display=_read_display(path, dataset),
        for_processing=str(dataset.get("PresentationIntentType", "")).upper() == "FOR PROCESSING",
        pixel_spacing=_millimetres(dataset, "PixelSpacing", "ImagerPixelSpacing"),
        slice_spacing=_millimetres(dataset, "SliceThickness"),
        vendor=str(dataset.get("Manufacturer", "")).strip(),
        path=path,
        kind=kind,
        laterality=laterality,
        position=position,
        intervention=intervention,
        part=part,
        displaced=displaced,
        contradictions=(*find_contradictions(dataset), *several),
        patient=_patient_code(dataset),
        study=str(dataset.get("StudyInstanceUID", "")),
        series=str(dataset.get("SeriesInstanceUID", "")),
        instance=str(dataset.get("SOPInstanceUID", "")),
        slice_position=positions[0] if kind in SINGLE else 0.0,
        thickness=_read_thickness(dataset),
        frame_order=_order(positions),
        transfer_syntax=syntax,
        bits_allocated=allocated,
        frame_parts=find_frames(path, end, frames, frame_bytes),
        context=_context(dataset),
    )


def _check_syntax(path: Path, syntax: str) -> None:
    if syntax == JPEG_EXTENDED:
        raise InputError(
            f"{path} is compressed as JPEG extended (12 bit), which no decoder reads: export it as JPEG 2000."
        )
    if syntax not in NATIVE and syntax not in COMPRESSED:
        known = UID(syntax).name
        known = "unknown" if known == syntax else known  # what the file has there may be anything
        raise InputError(f"{path} has the transfer syntax {known}; export it as JPEG 2000 lossless.")


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
    return rows, columns, frames


def _read_rescale(path: Path, dataset: Dataset) -> tuple[float, float]:
    """Slope and intercept, those of the functional group first; 1 and 0 if the file does not say."""
    sources = (functional_group(dataset, "PixelValueTransformationSequence"), dataset)
    found = []
    for name, default in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0)):
        values = [first_value(source.get(name)) for source in sources]
        numbers = [float(value) for value in values if value is not None]
        if not all(map(math.isfinite, numbers)):
            raise InputError(f"{path} has a {name} that is not a finite number; export it again.")
        found.append(numbers[0] if numbers else default)
    if found[0] <= 0:  # it would make tissue darker than air, or everything the same
        raise InputError(f"{path} has a RescaleSlope that is not above 0; export it again.")
    return found[0], found[1]


def _read_display(path: Path, dataset: Dataset) -> Display | None:
    try:
        return read_display(functional_group(dataset, "FrameVOILUTSequence")) or read_display(dataset)
    except InputError as error:
        raise InputError(f"{path} {error}; export it again.") from error


def _frame_positions(path: Path, dataset: Dataset, frames: int) -> list[float]:
    """Where each frame lies along the normal of the slices; its number if the file does not say."""
    groups = list(dataset.get("PerFrameFunctionalGroupsSequence") or ())
    if groups and len(groups) != frames:
        raise InputError(f"{path} has a NumberOfFrames of {frames} and describes {len(groups)}; export it again.")
    items = [first_item(group.get("PlanePositionSequence")) for group in groups] or [dataset]
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


def _read_thickness(dataset: Dataset) -> float | None:
    """BodyPartThickness, if it is a number above zero; nothing depends on it but a warning."""
    with suppress(TypeError, ValueError):
        thickness = float(first_value(dataset.get("BodyPartThickness")) or 0)
        return thickness if 0 < thickness < math.inf else None
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
