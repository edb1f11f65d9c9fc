"""Synthetic views as the DICOM objects that scanners make. Same view, same bytes: no clock, no random number, no host.

A mammogram is a Digital Mammography X-Ray Image, For Presentation; tomosynthesis is a multi-frame Breast Tomosynthesis
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
from mm3d.data.dicom.header import MAMMOGRAPHY, TOMOSYNTHESIS
from mm3d.data.dicom.window import Window
from mm3d.phantom.rendered import RenderedBreast, RenderedView

DATE, TIME = "20260101", "120000"  # of every exam: a date that is not one is better than the date of the computation
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
# Which way the rows and then the columns of a view run, in letters and in patient coordinates (to the left, to the
# back, to the head). Their cross product points to the detector: down, in MLO at 45 degrees to the side.
OBLIQUE = math.sqrt(0.5)
ORIENTATIONS = {
    ("L", "CC"): (["A", "R"], (0.0, -1.0, 0.0), (-1.0, 0.0, 0.0)),
    ("R", "CC"): (["P", "L"], (0.0, 1.0, 0.0), (1.0, 0.0, 0.0)),
    ("L", "MLO"): (["A", "FR"], (0.0, -1.0, 0.0), (-OBLIQUE, 0.0, -OBLIQUE)),
    ("R", "MLO"): (["P", "FL"], (0.0, 1.0, 0.0), (OBLIQUE, 0.0, -OBLIQUE)),
}


def full_range(bits: int) -> Window:
    """The display window of what we write: every value that can be stored, 0 black and the largest white."""
    return Window(float(2 ** (bits - 1)), float(2**bits))


def write_view(view: RenderedView, breast: RenderedBreast, trial: str, path: Path) -> None:
    """Write one view of a breast as a DICOM file.

    `trial` tells trials apart: all UIDs come from it, the breast's names and the view. The views of an exam are one
    study; each is a series of its own, because each is compressed anew and has its own frame of reference.
    """
    if int(view.pixels.max()) >= 2**view.bits:
        raise ValueError(f"the largest pixel {view.pixels.max()} needs more than {view.bits} bits")
    ds = Dataset()
    _describe(ds, view, breast, trial)
    if view.modality == "FFDM":
        _describe_mammogram(ds, view, breast)
    else:
        _describe_tomosynthesis(ds, view, breast)
    frames = [bytes(encode_array(frame, bits_stored=view.bits, photometric_interpretation=2)) for frame in view.pixels]
    ds.PixelData = encapsulate(frames)
    ds["PixelData"].is_undefined_length = True
    ds.file_meta = FileMetaDataset()
    ds.file_meta.MediaStorageSOPClassUID, ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPClassUID, ds.SOPInstanceUID
    ds.file_meta.TransferSyntaxUID = JPEG2000Lossless
    ds.file_meta.ImplementationClassUID, ds.file_meta.ImplementationVersionName = uid("mm3d"), "MM3D"
    content = BytesIO()  # not at once to the file: pydicom makes a traceback of what a full disk says
    ds.save_as(content, enforce_file_format=True)
    path.write_bytes(content.getbuffer())


def _describe(ds: Dataset, view: RenderedView, breast: RenderedBreast, trial: str) -> None:
    """What both kinds have: patient, study, series, equipment, pixels, and which view of which breast it is."""
    study = (trial, breast.patient, breast.exam)
    series = (*study, view.laterality, view.position, view.modality)
    ds.SOPClassUID = UID(MAMMOGRAPHY[0] if view.modality == "FFDM" else TOMOSYNTHESIS)
    ds.SOPInstanceUID = uid(*series, "instance")
    ds.StudyInstanceUID, ds.SeriesInstanceUID = uid(*study), uid(*series)
    ds.PatientName, ds.PatientID = f"Virtual^{breast.patient}", breast.patient
    # SyntheticData (0008,001C) would say it best, but is younger than many a reader and checker.
    ds.PatientBirthDate, ds.PatientSex, ds.QualityControlSubject = "", "F", "YES"
    ds.StudyDate = ds.SeriesDate = ds.ContentDate = DATE
    ds.StudyTime = ds.SeriesTime = ds.ContentTime = TIME
    ds.StudyID, ds.AccessionNumber, ds.ReferringPhysicianName = breast.exam[:16], "", ""
    ds.StudyDescription = "Virtual clinical trial"
    ds.SeriesDescription = f"{view.laterality} {view.position} {view.modality} synthetic"
    ds.Modality, ds.BodyPartExamined, ds.ProtocolName = "MG", "BREAST", _protocol(breast)
    ds.SeriesNumber, ds.InstanceNumber = 1 + SERIES.index((view.modality, view.laterality, view.position)), 1
    ds.Manufacturer, ds.ManufacturerModelName = breast.system.manufacturer, breast.system.model
    ds.DeviceSerialNumber, ds.SoftwareVersions = "virtual", f"mm3d {__version__}"
    ds.ImageComments, ds.QualityControlImage = COMMENT, "YES"
    ds.Rows, ds.Columns = view.pixels.shape[1:]
    ds.SamplesPerPixel, ds.PhotometricInterpretation, ds.PixelRepresentation = 1, "MONOCHROME2", 0
    ds.BitsAllocated, ds.BitsStored, ds.HighBit = 16, view.bits, view.bits - 1
    ds.BurnedInAnnotation, ds.LossyImageCompression, ds.PresentationLUTShape = "NO", "00", "IDENTITY"
    ds.BreastImplantPresent = "NO"
    ds.AcquisitionContextSequence = Sequence()
    value, meaning = VIEWS[view.position]
    ds.ViewCodeSequence = Sequence([code(value, meaning, ViewModifierCodeSequence=[])])


def _describe_mammogram(ds: Dataset, view: RenderedView, breast: RenderedBreast) -> None:
    window = full_range(view.bits)
    ds.PresentationIntentType, ds.ImageType = "FOR PRESENTATION", ["DERIVED", "PRIMARY"]
    ds.AcquisitionDate, ds.AcquisitionTime = DATE, TIME
    ds.PositionerType, ds.BodyPartThickness = "MAMMOGRAPHIC", number(breast.thickness_mm)
    ds.ImageLaterality, ds.ViewPosition = view.laterality, view.position
    ds.PatientOrientation = ORIENTATIONS[view.laterality, view.position][0]
    ds.AnatomicRegionSequence = Sequence([code("76752008", "Breast")])
    ds.OrganExposed = "BREAST"
    ds.DetectorType, ds.DetectorConfiguration, ds.DetectorID = "DIRECT", "AREA", "virtual"
    ds.ImagerPixelSpacing = [number(view.pixel_spacing)] * 2
    ds.DistanceSourceToDetector = number(breast.system.source_detector_mm)
    ds.PixelIntensityRelationship, ds.PixelIntensityRelationshipSign = "LOG", -1  # bright where much was absorbed
    ds.RescaleIntercept, ds.RescaleSlope, ds.RescaleType = "0", "1", "US"
    ds.WindowCenter, ds.WindowWidth = number(window.centre), number(window.width)
    ds.VOILUTFunction = window.function


def _describe_tomosynthesis(ds: Dataset, view: RenderedView, breast: RenderedBreast) -> None:
    ds.FrameOfReferenceUID, ds.PositionReferenceIndicator = uid(str(ds.SeriesInstanceUID), "frame of reference"), ""
    ds.ContentQualification, ds.NumberOfFrames = "RESEARCH", len(view.pixels)
    ds.update(item(ImageType=FRAME_TYPE, **FRAME_KIND))
    # The standard has it in an optional module that also wants filters and temperatures, which we do not make up.
    ds.BodyPartThickness = number(breast.thickness_mm)
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
    ds.SharedFunctionalGroupsSequence = Sequence([_shared_groups(view)])
    ds.PerFrameFunctionalGroupsSequence = Sequence(_frame_groups(view))


def _shared_groups(view: RenderedView) -> Dataset:
    """The functional groups that all slices have in common."""
    assert view.slice_spacing is not None
    window = full_range(view.bits)
    _, rows, columns = ORIENTATIONS[view.laterality, view.position]
    measures = item(
        PixelSpacing=[number(view.pixel_spacing)] * 2,
        SliceThickness=number(view.slice_spacing),
        SpacingBetweenSlices=number(view.slice_spacing),
    )
    anatomy = item(FrameLaterality=view.laterality, AnatomicRegionSequence=[code("76752008", "Breast")])
    display = item(WindowCenter=number(window.centre), WindowWidth=number(window.width), VOILUTFunction=window.function)
    return item(
        PixelMeasuresSequence=[measures],
        PlaneOrientationSequence=[item(ImageOrientationPatient=[number(x) for x in (*rows, *columns)])],
        FrameAnatomySequence=[anatomy],
        FrameVOILUTSequence=[display],
        PixelValueTransformationSequence=[item(RescaleIntercept="0", RescaleSlope="1", RescaleType="US")],
    )


def _frame_groups(view: RenderedView) -> list[Dataset]:
    """The functional groups of each slice: its place and kind. Slice 0 lies on the detector, the others above it."""
    assert view.slice_spacing is not None
    _, rows, columns = ORIENTATIONS[view.laterality, view.position]
    to_detector = np.cross(rows, columns)
    groups = []
    for z in range(len(view.pixels)):
        place = [number(x) for x in -to_detector * z * view.slice_spacing]
        content = item(StackID="1", InStackPositionNumber=z + 1, DimensionIndexValues=[1, z + 1])
        groups.append(
            item(
                FrameContentSequence=[content],
                PlanePositionSequence=[item(ImagePositionPatient=place)],
                XRay3DFrameTypeSequence=[item(FrameType=FRAME_TYPE, **FRAME_KIND)],
            )
        )
    return groups


def _protocol(breast: RenderedBreast) -> str:
    """How the system takes its projections, in 64 characters."""
    system = breast.system
    return (
        f"{system.projections} projections over {system.arc_degrees:g} degrees, source {system.source_detector_mm:g} mm"
    )
