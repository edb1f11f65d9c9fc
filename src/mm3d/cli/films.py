"""The real films of the demo as DICOM files, so that they go the way that a hospital's files go.

`shipped/films/README.md` says where they come from and how they were chosen.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import UID, ExplicitVRLittleEndian

from mm3d.data.datasets.images import read
from mm3d.data.dicom.build import code, uid
from mm3d.data.dicom.kinds import MAMMOGRAPHY
from mm3d.data.picture import read_picture
from mm3d.data.prepare.region import find_outline
from mm3d.data.records import Annotation, Breast, View
from mm3d.model import weights
from mm3d.phantom.dicom import DATE, ORIENTATIONS, TIME, VIEWS
from mm3d.shared.files import replacing

FILMS = Path(weights.__file__).parent.parent / "shipped" / "films"
STRETCH = 1.7  # height over width of the films' pixels
CENTRE, WIDTH = "128", "256"  # of the display window: everything


def film_breasts() -> list[Breast]:
    """The patients of the demo, each with both films of one breast and the radiologists' boxes."""
    return list(read(FILMS, modality="film", stretch=STRETCH).breasts)


def write_films(breast: Breast, folder: Path) -> Breast:
    """Write the films of a patient as an exam. Returns the breast with its annotations in pixels of these files."""
    views = []
    for view in breast.views:
        assert view.picture is not None
        _, pixels = read_picture(view.files[0], view.picture)
        shown = np.where(find_outline(pixels), pixels, 0).astype(np.uint8)
        height = round(shown.shape[0] * STRETCH)
        whole = np.asarray(Image.fromarray(shown).resize((shown.shape[1], height), Image.Resampling.BICUBIC))
        with replacing(folder / f"{(view.laterality + view.position).lower()}.dcm") as partial:
            _write(breast, view, whole, partial)
        views.append(replace(view, annotations=tuple(map(_stretch, view.annotations or ()))))
    return replace(breast, views=tuple(views))


def _stretch(annotation: Annotation) -> Annotation:
    x1, y1, x2, y2 = annotation.box
    return replace(annotation, box=(x1, STRETCH * y1, x2, STRETCH * y2))


def _write(breast: Breast, view: View, pixels: NDArray[np.uint8], path: Path) -> None:
    """A Digital Mammography X-Ray Image, whose detector is a film."""
    ds = Dataset()
    names = ("CBIS-DDSM", breast.patient, breast.exam)
    ds.SOPClassUID, ds.SOPInstanceUID = UID(MAMMOGRAPHY[0]), uid(*names, view.name, "instance")
    ds.StudyInstanceUID, ds.SeriesInstanceUID = uid(*names), uid(*names, view.name)
    ds.PatientName, ds.PatientID, ds.PatientBirthDate, ds.PatientSex = (
        f"CBIS-DDSM^{breast.patient}",
        breast.patient,
        "",
        "F",
    )
    ds.StudyDate = ds.ContentDate = DATE  # the films have none
    ds.StudyTime = ds.ContentTime = TIME
    ds.StudyID, ds.AccessionNumber, ds.ReferringPhysicianName = "1", "", ""
    ds.StudyDescription, ds.SeriesDescription = "CBIS-DDSM", f"{view.laterality} {view.position} film"
    ds.ImageComments = "Digitised film of CBIS-DDSM, CC BY 3.0; stretched, labels blanked"
    ds.Modality, ds.BodyPartExamined, ds.Manufacturer = "MG", "BREAST", ""
    ds.SeriesNumber, ds.InstanceNumber = 1 + ("CC", "MLO").index(view.position), 1
    ds.PresentationIntentType, ds.ImageType = "FOR PRESENTATION", ["DERIVED", "SECONDARY"]
    ds.DetectorType, ds.PositionerType = "FILM", "MAMMOGRAPHIC"
    ds.ImageLaterality, ds.ViewPosition = view.laterality, view.position
    ds.PatientOrientation = ORIENTATIONS[view.laterality, view.position][0]
    value, meaning = VIEWS[view.position]
    ds.ViewCodeSequence = Sequence([code(value, meaning, ViewModifierCodeSequence=[])])
    ds.Rows, ds.Columns = pixels.shape
    ds.SamplesPerPixel, ds.PhotometricInterpretation, ds.PixelRepresentation = 1, "MONOCHROME2", 0
    ds.BitsAllocated, ds.BitsStored, ds.HighBit = 8, 8, 7
    ds.PixelIntensityRelationship, ds.PixelIntensityRelationshipSign = "LOG", -1
    ds.RescaleIntercept, ds.RescaleSlope, ds.RescaleType = "0", "1", "US"
    ds.WindowCenter, ds.WindowWidth, ds.PresentationLUTShape = CENTRE, WIDTH, "IDENTITY"
    ds.BurnedInAnnotation, ds.LossyImageCompression = "NO", "01"
    ds.PixelData = pixels.tobytes()
    ds.file_meta = FileMetaDataset()
    ds.file_meta.MediaStorageSOPClassUID, ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPClassUID, ds.SOPInstanceUID
    ds.file_meta.TransferSyntaxUID, ds.file_meta.ImplementationClassUID = ExplicitVRLittleEndian, uid("mm3d")
    ds.save_as(path, enforce_file_format=True)
