"""Small real DICOM files, as scanners and archives write them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import UID, ExplicitVRLittleEndian, generate_uid

from mm3d.data.dicom.kinds import CT, MAMMOGRAPHY, TOMOSYNTHESIS

Pixels = NDArray[np.uint16]


def breast(rows: int = 240, columns: int = 200, side: str = "L", seed: int = 0) -> Pixels:
    """A half disc of tissue at the chest wall, in 10 bits, thinner to the skin, with a little texture; air is 0."""
    y, x = np.mgrid[:rows, :columns]
    outwards = (x / (0.6 * columns)) ** 2 + ((y - rows / 2) / (0.4 * rows)) ** 2
    texture = np.random.default_rng(seed).integers(0, 40, (rows, columns))
    image = np.where(outwards < 1, 400 - 120 * outwards.clip(0, 1) + texture, 0).astype(np.uint16)
    return image if side == "L" else np.ascontiguousarray(image[:, ::-1])


def tomosynthesis_slice(pixels: Pixels, z: int, **fields: Any) -> Dataset:
    """A slice of a left CC volume that came as one CT object per slice."""
    return dataset(
        pixels,
        CT,
        ImageType=["DERIVED", "PRIMARY", "TOMO"],
        ImageLaterality="L",
        ViewPosition="CC",
        ImagePositionPatient=[0, 0, float(z)],
        ImageOrientationPatient=[1, 0, 0, 0, 1, 0],
        **fields,
    )


def dataset(pixels: Pixels, sop_class: str, **fields: Any) -> Dataset:
    """A dataset with what every image has; pixels (rows, columns) or (frames, rows, columns)."""
    ds = Dataset()
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    ds.file_meta.MediaStorageSOPClassUID = UID(sop_class)
    ds.SOPClassUID = UID(sop_class)
    ds.SOPInstanceUID = ds.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    ds.StudyInstanceUID, ds.SeriesInstanceUID = generate_uid(), generate_uid()
    ds.PatientName, ds.PatientID = "Canary^Anna", "CANARY-4711"
    ds.Modality, ds.Manufacturer = "MG", "TESTS"
    ds.Rows, ds.Columns = pixels.shape[-2:]
    ds.SamplesPerPixel, ds.PhotometricInterpretation = 1, "MONOCHROME2"
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 10, 9, 0
    ds.PixelData = pixels.astype("<u2").tobytes()
    for name, value in fields.items():
        setattr(ds, name, value)
    return ds


def mammogram(pixels: Pixels, side: str = "L", view: str = "CC", **fields: Any) -> Dataset:
    fields = {"ImageLaterality": side, "ViewPosition": view, "WindowCenter": 400, "WindowWidth": 800} | fields
    return dataset(pixels, MAMMOGRAPHY[0], PresentationIntentType="FOR PRESENTATION", **fields)


def tomosynthesis(pixels: Pixels, side: str = "L", view: str = "CC", heights: list[float] | None = None) -> Dataset:
    """A multi-frame volume; `heights` are the frames' positions in mm, by default one after the other."""
    ds = dataset(pixels, TOMOSYNTHESIS, NumberOfFrames=len(pixels))
    ds.ViewCodeSequence = Sequence([item(CodeValue={"CC": "399162004", "MLO": "399368009"}[view])])
    shared = item(
        PixelMeasuresSequence=[item(PixelSpacing=[0.1, 0.1], SliceThickness=1.0)],
        FrameAnatomySequence=[item(FrameLaterality=side)],
        FrameVOILUTSequence=[item(WindowCenter=400, WindowWidth=800)],
        PlaneOrientationSequence=[item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
    )
    ds.SharedFunctionalGroupsSequence = Sequence([shared])
    heights = heights or [float(i) for i in range(len(pixels))]
    frames = [item(PlanePositionSequence=[item(ImagePositionPatient=[0, 0, height])]) for height in heights]
    ds.PerFrameFunctionalGroupsSequence = Sequence(frames)
    return ds


def item(**fields: Any) -> Dataset:
    ds = Dataset()
    for name, value in fields.items():
        setattr(ds, name, Sequence(value) if name.endswith("Sequence") else value)
    return ds


def compressed(ds: Dataset, syntax: str, frames: list[bytes]) -> Dataset:
    ds.file_meta.TransferSyntaxUID = UID(syntax)
    ds.PixelData = encapsulate(frames)
    ds["PixelData"].is_undefined_length = True
    return ds


def write(ds: Dataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(path, enforce_file_format=True)
    return path
