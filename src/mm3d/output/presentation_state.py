"""Boxes on their frames for viewers that show no structured reports: Grayscale Softcopy Presentation States.

One for each view with a marked finding. It replaces all that the image itself says of its display, so the window and
the rescaling of the image are repeated in it.
"""

from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage

from mm3d.data.dicom.build import item, number
from mm3d.data.dicom.header import Header
from mm3d.data.dicom.window import LookupTable, Window
from mm3d.output.result import ExamResult
from mm3d.output.sr.content import make_reference
from mm3d.output.sr.document import Location, Sources, begin_object, read_sources, save_object

LAYER = "MM3D"


def write_presentation_states(result: ExamResult, folder: Path) -> list[Path]:
    """Write the presentation states of an exam into a folder: none if nothing is marked."""
    sources = read_sources(result)
    written = []
    for count, view in enumerate(result.views, 1):
        if findings := [finding for finding in sources.findings if finding.view is view]:
            written.append(folder / f"{count}.dcm")
            save_object(_make_state(sources, findings, count), written[-1])
    return written


def _make_state(sources: Sources, findings: list[Location], count: int) -> Dataset:
    view = findings[0].view
    ds = begin_object(sources, GrayscaleSoftcopyPresentationStateStorage, "PR", view.name, count)
    ds.Laterality = ""  # of the series, which has both sides
    ds.ContentLabel, ds.ContentDescription, ds.ContentCreatorName = LAYER, f"mm3d findings in {view.name}", "mm3d"
    ds.PresentationCreationDate, ds.PresentationCreationTime = ds.ContentDate, ds.ContentTime
    files = [header.context for header in view.headers]
    images = [make_reference(file) for file in files]
    ds.ReferencedSeriesSequence = [
        item(SeriesInstanceUID=name, ReferencedImageSequence=[make_reference(f) for f in files if _series(f) == name])
        for name in dict.fromkeys(map(_series, files))
    ]
    header = view.headers[0]
    _describe_display(ds, header)
    ds.DisplayedAreaSelectionSequence = [_display_all(header, images)]
    ds.GraphicLayerSequence = [item(GraphicLayer=LAYER, GraphicLayerOrder=1)]
    ds.GraphicAnnotationSequence = [_annotate(finding) for finding in findings]
    return ds


def _series(file: Dataset) -> str:
    return str(file.SeriesInstanceUID)


def _describe_display(ds: Dataset, header: Header) -> None:
    """From stored values to brightness, as the image's own header says. Without a window, all values are shown."""
    ds.RescaleIntercept, ds.RescaleSlope, ds.RescaleType = number(header.intercept), number(header.slope), "US"
    shown = header.display
    if isinstance(shown, Window):
        window = item(WindowCenter=number(shown.centre), WindowWidth=number(shown.width), VOILUTFunction=shown.function)
        ds.SoftcopyVOILUTSequence = [window]
    elif isinstance(shown, LookupTable):
        table = Dataset()
        kind = "SS" if shown.first < 0 else "US"
        table.add_new("LUTDescriptor", kind, [len(shown.table) % 65536, shown.first, 16])
        values = np.rint(np.asarray(shown.table) * 65535).astype("<u2")
        table.add_new("LUTData", "OW", values.tobytes())
        ds.SoftcopyVOILUTSequence = [item(VOILUTSequence=[table])]
    ds.PresentationLUTShape = "INVERSE" if header.inverted else "IDENTITY"


def _display_all(header: Header, images: list[Dataset]) -> Dataset:
    area = item(
        ReferencedImageSequence=images,
        DisplayedAreaTopLeftHandCorner=[1, 1],
        DisplayedAreaBottomRightHandCorner=[header.columns, header.rows],
        PresentationSizeMode="SCALE TO FIT",
    )
    if header.pixel_spacing is None:
        area.PresentationPixelAspectRatio = [1, 1]
    else:
        area.PresentationPixelSpacing = [number(header.pixel_spacing)] * 2
    return area


def _annotate(finding: Location) -> Dataset:
    """A box with its name and score above it, on the frame of the finding."""
    x1, y1, x2, y2 = finding.box
    box = item(
        GraphicAnnotationUnits="PIXEL",
        GraphicDimensions=2,
        NumberOfGraphicPoints=5,
        GraphicData=[x1, y1, x2, y1, x2, y2, x1, y2, x1, y1],
        GraphicType="POLYLINE",
        GraphicFilled="N",
    )
    text = item(
        AnchorPointAnnotationUnits="PIXEL",
        AnchorPoint=[x1, y1],
        AnchorPointVisibility="N",
        UnformattedTextValue=f"mm3d {finding.name}: {finding.score:.2f}",
    )
    image = make_reference(finding.header.context, finding.frame)
    return item(
        ReferencedImageSequence=[image], GraphicLayer=LAYER, TextObjectSequence=[text], GraphicObjectSequence=[box]
    )
