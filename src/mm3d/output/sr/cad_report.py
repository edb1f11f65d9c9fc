"""The report for mammography workstations: a Mammography CAD SR with TID 4000.

highdicom has no such document, so the tree is made here, row by row of the templates (PS3.16): an image library (TID
4020); the overall impression (TID 4001, 4002) with, for each finding, an individual impression (TID 4003) and its
single image finding (TID 4006, 4021); which detections succeeded or failed (TID 4015, 4017); and the analyses (none).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from highdicom.sr import CodedConcept
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.uid import MammographyCADSRStorage

from mm3d.data.dicom.build import item, number
from mm3d.data.dicom.header import Header, functional_group
from mm3d.data.records import Laterality, Position
from mm3d.output.result import ExamResult, ViewResult
from mm3d.output.sr.document import NAME, Location, Sources, read_sources, write_document

LANGUAGE = Code("en", "RFC5646", "English")
SIDES = {"L": codes.cid6022.LeftBreast, "R": codes.cid6022.RightBreast}
VIEWS = {"CC": Code("399162004", "SCT", "cranio-caudal"), "MLO": Code("399368009", "SCT", "medio-lateral oblique")}
# The detector does not distinguish masses from calcifications. Of the codes that may have a probability of cancer (CID
# 6014), this one says least, and workstations mark it.
FINDING = codes.cid6014.MammographyBreastDensity
# pydicom's own has an invisible space in its meaning.
IMPRESSION = Code("111034", "DCM", "Individual Impression/Recommendation")
LIBRARY = (1, 2)  # where the image library is in the tree: the second child of the root
DIRECTIONS = (("L", "R"), ("P", "A"), ("H", "F"))  # of the axes of patient coordinates, forward and back


def write_cad_report(result: ExamResult, path: Path) -> None:
    """Write the Mammography CAD SR of an exam."""
    sources = read_sources(result)
    library, places = _make_library(sources)
    individual = [_individual(sources, f, places[f.header.path, f.frame]) for f in sources.findings]
    root = _node(
        "CONTAINER",
        codes.DCM.MammographyCADReport,
        children=[
            _code("HAS CONCEPT MOD", codes.DCM.LanguageOfContentItemAndDescendants, LANGUAGE),
            _node("CONTAINER", codes.DCM.ImageLibrary, "CONTAINS", library, ContinuityOfContent="SEPARATE"),
            _code(
                "CONTAINS",
                codes.DCM.CADProcessingAndFindingsSummary,
                sources.outcome(),
                [*_impression(sources), *individual],
            ),
            _detections(sources, len(library)),
            _code("CONTAINS", codes.DCM.SummaryOfAnalyses, codes.cid6042.NotAttempted),
        ],
        ContinuityOfContent="SEPARATE",
        ContentTemplateSequence=[item(MappingResource="DCMR", TemplateIdentifier="4000")],
    )
    evidence = [*sources.images(), *(file for _, _, file in sources.unread)]
    write_document(sources, MammographyCADSRStorage, root, evidence, path)


def _make_library(sources: Sources) -> tuple[list[Dataset], dict[tuple[Path, int | None], int]]:
    """The images: first every file, then every frame that has a finding (a frame can only be named here), then the
    unread files. Also the place of every file and frame, counted from 1; the rest of the tree refers to it."""
    images: list[tuple[ViewResult, Header, int | None]] = []
    images += [(view, header, None) for view in sources.result.views for header in view.headers]
    images += [(finding.view, finding.header, finding.frame) for finding in sources.findings]
    entries: list[Dataset] = []
    places: dict[tuple[Path, int | None], int] = {}
    for view, header, frame in images:
        if (header.path, frame) not in places:
            entries.append(_library_entry(header.context, view.laterality, view.position, header.pixel_spacing, frame))
            places[header.path, frame] = len(entries)
    unread = [_library_entry(file, laterality, position, None) for laterality, position, file in sources.unread]
    return [*entries, *unread], places


def _library_entry(
    file: Dataset, laterality: Laterality, position: Position, spacing: float | None, frame: int | None = None
) -> Dataset:
    known = [
        _code("HAS ACQ CONTEXT", codes.DCM.ImageLaterality, SIDES[laterality]),
        _code("HAS ACQ CONTEXT", codes.DCM.ImageView, VIEWS[position]),
    ]
    orientation = _orientation(file)
    if orientation is not None:
        for name, letters in zip(
            (codes.DCM.PatientOrientationRow, codes.DCM.PatientOrientationColumn), orientation, strict=True
        ):
            known.append(_node("TEXT", name, "HAS ACQ CONTEXT", TextValue=letters))
    for name in (codes.DCM.StudyDate, codes.DCM.StudyTime, codes.DCM.ContentDate, codes.DCM.ContentTime):
        what, kind = name.meaning.split()  # Study, Date: also the names of the attributes
        value = file.get(what + kind)
        if value:
            known.append(_node(kind.upper(), name, "HAS ACQ CONTEXT", [], **{kind: str(value)}))
    if spacing is not None:
        for name in (codes.DCM.HorizontalPixelSpacing, codes.DCM.VerticalPixelSpacing):
            known.append(_number("HAS ACQ CONTEXT", name, spacing, codes.UCUM.Millimeter))
    reference = item(ReferencedSOPClassUID=file.SOPClassUID, ReferencedSOPInstanceUID=file.SOPInstanceUID)
    if frame is not None:
        reference.ReferencedFrameNumber = frame
    return _node("IMAGE", None, "CONTAINS", known, ReferencedSOPSequence=[reference])


def _orientation(dataset: Dataset) -> tuple[str, str] | None:
    """Which way rows and columns run, in letters: as the file says, or from its directions in the patient."""
    letters = dataset.get("PatientOrientation")
    if letters and len(letters) == 2:
        return str(letters[0]), str(letters[1])
    given = functional_group(dataset, "PlaneOrientationSequence").get("ImageOrientationPatient")
    given = given or dataset.get("ImageOrientationPatient")
    if not given or len(given) != 6:
        return None
    row, column = np.array([float(x) for x in given]).reshape(2, 3)
    return _letters(row), _letters(column)


def _letters(direction: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """The axes along which a direction clearly goes, the strongest first; of equal ones, head or foot first."""
    axes = sorted((2, 0, 1), key=lambda axis: -round(abs(float(direction[axis])), 2))
    return "".join(DIRECTIONS[axis][int(direction[axis] < 0)] for axis in axes if abs(direction[axis]) > 0.2)


def _impression(sources: Sources) -> list[Dataset]:
    """TID 4002: the exam in a sentence."""
    text = _node("TEXT", codes.DCM.ImpressionDescription, "HAS PROPERTIES", TextValue=sources.summary())
    return [text, *_algorithm(sources)]


def _individual(sources: Sources, location: Location, image: int) -> Dataset:
    """TID 4003 and 4006: one finding, on the image at that place of the library."""
    intent = _code(
        "HAS CONCEPT MOD", codes.DCM.RenderingIntent, codes.DCM.PresentationRequiredRenderingDeviceIsExpectedToPresent
    )
    x1, y1, x2, y2 = location.box
    finding = _code(
        "CONTAINS",
        codes.DCM.SingleImageFinding,
        FINDING,
        [
            intent,
            *_algorithm(sources),
            _number("HAS PROPERTIES", codes.DCM.CertaintyOfFinding, 100 * location.score, codes.UCUM.Percent),
            _number("HAS PROPERTIES", codes.DCM.ProbabilityOfCancer, 100 * location.score, codes.UCUM.Percent),
            _shape(codes.DCM.Center, "POINT", [(x1 + x2) / 2, (y1 + y2) / 2], image),
            _shape(codes.DCM.Outline, "POLYLINE", [x1, y1, x2, y1, x2, y2, x1, y2, x1, y1], image),
        ],
    )
    return _node("CONTAINER", IMPRESSION, "INFERRED FROM", [intent, finding], ContinuityOfContent="SEPARATE")


def _detections(sources: Sources, size: int) -> Dataset:
    """TID 4015: whether the detector could look at all images. `size` is the number of images in the library."""
    parts = [_performed(codes.DCM.SuccessfulDetections, sources, range(1, len(sources.images()) + 1))]
    if sources.result.problems:
        unread = range(size - len(sources.unread) + 1, size + 1)
        parts.append(_performed(codes.DCM.FailedDetections, sources, unread))
    done = codes.cid6042.PartiallySucceeded if sources.result.problems else codes.cid6042.Succeeded
    return _code("CONTAINS", codes.DCM.SummaryOfDetections, done, parts)


def _performed(name: Code, sources: Sources, places: Iterable[int]) -> Dataset:
    """TID 4017: what was looked for, and in which images of the library."""
    images = [_reference("HAS PROPERTIES", place) for place in places]
    performed = _code("CONTAINS", codes.DCM.DetectionPerformed, FINDING, [*_algorithm(sources), *images])
    return _node("CONTAINER", name, "INFERRED FROM", [performed], ContinuityOfContent="SEPARATE")


def _algorithm(sources: Sources) -> list[Dataset]:
    """TID 4019."""
    texts = [(codes.DCM.AlgorithmName, NAME), (codes.DCM.AlgorithmVersion, sources.result.method.version)]
    texts += [(codes.DCM.AlgorithmParameters, text) for text in sources.parameters()]
    return [_node("TEXT", name, "HAS PROPERTIES", TextValue=text) for name, text in texts]


def _shape(name: Code, kind: str, points: list[float], entry: int) -> Dataset:
    """TID 4021. `points` are x, y, x, y, … in pixels of the library's image number `entry`."""
    image = _reference("SELECTED FROM", entry)
    return _node("SCOORD", name, "HAS PROPERTIES", [image], GraphicType=kind, GraphicData=points)


def _reference(relationship: str, entry: int) -> Dataset:
    """Refer to an image of the library by its place in the tree."""
    return item(RelationshipType=relationship, ReferencedContentItemIdentifier=[*LIBRARY, entry])


def _number(relationship: str, name: Code, value: float, unit: Code) -> Dataset:
    measured = item(NumericValue=number(value), MeasurementUnitsCodeSequence=[CodedConcept.from_code(unit)])
    return _node("NUM", name, relationship, MeasuredValueSequence=[measured])


def _code(relationship: str, name: Code, value: Code, children: Iterable[Dataset] = ()) -> Dataset:
    return _node("CODE", name, relationship, children, ConceptCodeSequence=[CodedConcept.from_code(value)])


def _node(
    kind: str, name: Code | None, relationship: str = "", children: Iterable[Dataset] = (), **fields: Any
) -> Dataset:
    """A content item and what is below it."""
    node = item(ValueType=kind, **fields)
    if relationship:
        node.RelationshipType = relationship
    if name is not None:
        node.ConceptNameCodeSequence = [CodedConcept.from_code(name)]
    children = list(children)
    if children:
        node.ContentSequence = children
    return node
