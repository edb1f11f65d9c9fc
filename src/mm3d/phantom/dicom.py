"""Write synthetic views as DICOM files. The same view gives the same bytes: no clock, random number or host is used.

A mammogram is a Digital Mammography X-Ray Image, For Presentation. Tomosynthesis is a multi-frame Breast Tomosynthesis
Image. Both are JPEG 2000 lossless. `dciodvfy` finds no error in them.
"""

import math
from io import BytesIO
from pathlib import Path

import numpy as np
from openjpeg.utils import encode_array
from pydicom.datadict import tag_for_keyword
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import UID, JPEG2000Lossless

from mm3d import __version__
from mm3d.data.dicom.build import code, item, number, uid
from mm3d.data.dicom.kinds import MAMMOGRAPHY, TOMOSYNTHESIS, VIRTUAL_TRIAL
from mm3d.data.dicom.window import Window
from mm3d.phantom.imaging import SyntheticView

DATE, TIME = "20260101", "120000"  # of every exam: the date of the computation would change the bytes
COMMENT = "Synthetic image of a virtual clinical trial (mm3d); no patient. Not for clinical use."
VIEWS = {
    "CC": ("399162004", "cranio-caudal"),
    "MLO": ("399368009", "medio-lateral oblique"),
}
SERIES = [(modality, side, view) for modality in ("FFDM", "DBT") for side in "LR" for view in ("CC", "MLO")]
FRAME_TYPE = ["DERIVED", "PRIMARY", "TOMOSYNTHESIS", "NONE"]
FRAME_KIND = {
    "PixelPresentation": "MONOCHROME",
    "VolumetricProperties": "VOLUME",
    "VolumeBasedCalculationTechnique": "NONE",
}
# The directions of the rows and of the columns of a view, in letters and in patient coordinates (to the left, to the
# back, to the head). Their cross product points to the detector: down, and in MLO also to the side by 45 degrees.
OBLIQUE = math.sqrt(0.5)
ORIENTATIONS = {
    ("L", "CC"): (["A", "R"], (0.0, -1.0, 0.0), (-1.0, 0.0, 0.0)),
    ("R", "CC"): (["P", "L"], (0.0, 1.0, 0.0), (1.0, 0.0, 0.0)),
    ("L", "MLO"): (["A", "FR"], (0.0, -1.0, 0.0), (-OBLIQUE, 0.0, -OBLIQUE)),
    ("R", "MLO"): (["P", "FL"], (0.0, 1.0, 0.0), (OBLIQUE, 0.0, -OBLIQUE)),
}


def display_window(bits: int) -> Window:
    """The display window of our files: from 0, black, to the largest value that can be stored, white."""
    return Window(float(2 ** (bits - 1)), float(2**bits))


def write_view(image: SyntheticView, trial: str, path: Path) -> None:
    """Write a view as a DICOM file.

    All UIDs are made of `trial`, which must be different for each trial, and of the names of the exam and of the view.
    The views of an exam are one study. Each is a series of its own, because each compression is a frame of reference.
    """
    if int(image.pixels.max()) >= 2**image.bits:
        raise ValueError(f"the largest pixel {image.pixels.max()} needs more than {image.bits} bits")
    ds = Dataset()
    _describe(ds, image, trial)
    if image.view.modality == "FFDM":
        _describe_mammogram(ds, image)
    else:
        _describe_tomosynthesis(ds, image)
    frames = [
        bytes(encode_array(frame, bits_stored=image.bits, photometric_interpretation=2)) for frame in image.pixels
    ]
    ds.PixelData = encapsulate(frames)
    ds["PixelData"].is_undefined_length = True
    ds.file_meta = FileMetaDataset()
    ds.file_meta.MediaStorageSOPClassUID, ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPClassUID, ds.SOPInstanceUID
    ds.file_meta.TransferSyntaxUID = JPEG2000Lossless
    ds.file_meta.ImplementationClassUID, ds.file_meta.ImplementationVersionName = uid("mm3d"), "MM3D"
    content = BytesIO()  # if the disk is full, pydicom would hide the system's error behind its own
    ds.save_as(content, enforce_file_format=True)
    path.write_bytes(content.getbuffer())


def _describe(ds: Dataset, image: SyntheticView, trial: str) -> None:
    """What both kinds have: patient, study, series, equipment, pixels, and which view of which breast it is."""
    view, system = image.view, image.system
    study = (trial, image.patient, image.exam)
    series = (*study, view.laterality, view.position, view.modality)
    ds.SOPClassUID = UID(MAMMOGRAPHY[0] if view.modality == "FFDM" else TOMOSYNTHESIS)
    ds.SOPInstanceUID = uid(*series, "instance")
    ds.StudyInstanceUID, ds.SeriesInstanceUID = uid(*study), uid(*series)
    ds.PatientName, ds.PatientID = f"Virtual^{image.patient}", image.patient
    # SyntheticData (0008,001C) would say it best, but many readers and checkers do not know it yet.
    ds.PatientBirthDate, ds.PatientSex, ds.QualityControlSubject = "", "F", "YES"
    ds.StudyDate = ds.SeriesDate = ds.ContentDate = DATE
    ds.StudyTime = ds.SeriesTime = ds.ContentTime = TIME
    ds.StudyID, ds.AccessionNumber, ds.ReferringPhysicianName = image.exam[:16], "", ""
    ds.StudyDescription = VIRTUAL_TRIAL
    ds.SeriesDescription = f"{view.laterality} {view.position} {view.modality} synthetic"
    ds.Modality, ds.BodyPartExamined = "MG", "BREAST"
    ds.ProtocolName = (  # at most 64 characters
        f"{system.projections} projections over {system.arc_degrees:g} degrees, source {system.source_detector_mm:g} mm"
    )
    ds.SeriesNumber, ds.InstanceNumber = 1 + SERIES.index((view.modality, view.laterality, view.position)), 1
    ds.Manufacturer, ds.ManufacturerModelName = system.manufacturer, system.model
    ds.DeviceSerialNumber, ds.SoftwareVersions = "virtual", f"mm3d {__version__}"
    ds.ImageComments, ds.QualityControlImage = COMMENT, "YES"
    ds.Rows, ds.Columns = image.pixels.shape[1:]
    ds.SamplesPerPixel, ds.PhotometricInterpretation, ds.PixelRepresentation = 1, "MONOCHROME2", 0
    ds.BitsAllocated, ds.BitsStored, ds.HighBit = 16, image.bits, image.bits - 1
    ds.BurnedInAnnotation, ds.LossyImageCompression, ds.PresentationLUTShape = "NO", "00", "IDENTITY"
    ds.BreastImplantPresent = "NO"
    ds.AcquisitionContextSequence = Sequence()
    value, meaning = VIEWS[view.position]
    ds.ViewCodeSequence = Sequence([code(value, meaning, ViewModifierCodeSequence=[])])


def _describe_mammogram(ds: Dataset, image: SyntheticView) -> None:
    view, window = image.view, display_window(image.bits)
    ds.PresentationIntentType, ds.ImageType = "FOR PRESENTATION", ["DERIVED", "PRIMARY"]
    ds.AcquisitionDate, ds.AcquisitionTime = DATE, TIME
    ds.PositionerType, ds.BodyPartThickness = "MAMMOGRAPHIC", number(image.thickness_mm)
    ds.ImageLaterality, ds.ViewPosition = view.laterality, view.position
    ds.PatientOrientation = ORIENTATIONS[view.laterality, view.position][0]
    ds.AnatomicRegionSequence = Sequence([code("76752008", "Breast")])
    ds.OrganExposed = "BREAST"
    ds.DetectorType, ds.DetectorConfiguration, ds.DetectorID = "DIRECT", "AREA", "virtual"
    ds.ImagerPixelSpacing = [number(image.pixel_spacing)] * 2
    ds.DistanceSourceToDetector = number(image.system.source_detector_mm)
    ds.PixelIntensityRelationship, ds.PixelIntensityRelationshipSign = "LOG", -1  # bright where much was absorbed
    ds.RescaleIntercept, ds.RescaleSlope, ds.RescaleType = "0", "1", "US"
    ds.WindowCenter, ds.WindowWidth = number(window.centre), number(window.width)
    ds.VOILUTFunction = window.function


def _describe_tomosynthesis(ds: Dataset, image: SyntheticView) -> None:
    ds.FrameOfReferenceUID, ds.PositionReferenceIndicator = uid(str(ds.SeriesInstanceUID), "frame of reference"), ""
    ds.ContentQualification, ds.NumberOfFrames = "RESEARCH", len(image.pixels)
    ds.update(item(ImageType=FRAME_TYPE, **FRAME_KIND))
    # The standard has the thickness in an optional module that also needs filters and temperatures, which we lack.
    ds.BodyPartThickness = number(image.thickness_mm)
    dimensions = uid(str(ds.SeriesInstanceUID), "dimensions")
    ds.DimensionOrganizationType = "3D"
    ds.DimensionOrganizationSequence = Sequence([item(DimensionOrganizationUID=dimensions)])
    ds.DimensionIndexSequence = Sequence(
        item(
            DimensionOrganizationUID=dimensions,
            DimensionIndexPointer=tag_for_keyword(name),
            FunctionalGroupPointer=tag_for_keyword("FrameContentSequence"),
        )
        for name in ("StackID", "InStackPositionNumber")
    )
    ds.SharedFunctionalGroupsSequence = Sequence([_shared_groups(image)])
    ds.PerFrameFunctionalGroupsSequence = Sequence(_frame_groups(image))


def _shared_groups(image: SyntheticView) -> Dataset:
    """The functional groups that all slices have in common."""
    assert image.slice_spacing is not None
    window = display_window(image.bits)
    _, rows, columns = ORIENTATIONS[image.view.laterality, image.view.position]
    measures = item(
        PixelSpacing=[number(image.pixel_spacing)] * 2,
        SliceThickness=number(image.slice_spacing),
        SpacingBetweenSlices=number(image.slice_spacing),
    )
    anatomy = item(FrameLaterality=image.view.laterality, AnatomicRegionSequence=[code("76752008", "Breast")])
    display = item(WindowCenter=number(window.centre), WindowWidth=number(window.width), VOILUTFunction=window.function)
    return item(
        PixelMeasuresSequence=[measures],
        PlaneOrientationSequence=[item(ImageOrientationPatient=[number(x) for x in (*rows, *columns)])],
        FrameAnatomySequence=[anatomy],
        FrameVOILUTSequence=[display],
        PixelValueTransformationSequence=[item(RescaleIntercept="0", RescaleSlope="1", RescaleType="US")],
    )


def _frame_groups(image: SyntheticView) -> list[Dataset]:
    """The functional groups of each slice: its place and kind. Slice 0 is on the detector, the others are above it."""
    assert image.slice_spacing is not None
    _, rows, columns = ORIENTATIONS[image.view.laterality, image.view.position]
    to_detector = np.cross(rows, columns)
    groups = []
    for z in range(len(image.pixels)):
        place = [number(x) for x in -to_detector * z * image.slice_spacing]
        content = item(StackID="1", InStackPositionNumber=z + 1, DimensionIndexValues=[1, z + 1])
        groups.append(
            item(
                FrameContentSequence=[content],
                PlanePositionSequence=[item(ImagePositionPatient=place)],
                XRay3DFrameTypeSequence=[item(FrameType=FRAME_TYPE, **FRAME_KIND)],
            )
        )
    return groups
