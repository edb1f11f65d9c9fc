"""The report for mammography workstations: a Mammography CAD SR with TID 4000.

highdicom has no such document, so the tree is made here, row by row of the templates (PS3.16): an image library (TID
4020); the overall impression (TID 4001, 4002) with, for each finding, an individual impression (TID 4003) and its
single image finding (TID 4006, 4021); which detections succeeded or failed (TID 4015, 4017); and the analyses (none).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.uid import MammographyCADSRStorage

from mm3d.data.dicom.build import code, item, number
from mm3d.data.dicom.header import functional_group
from mm3d.data.records import Laterality, Position
from mm3d.output.result import ExamResult
from mm3d.output.sr.document import NAME, Kind, Location, Sources, make_document, read_sources, save

KIND = Kind(str(MammographyCADSRStorage), 9002, "mm3d mammography CAD")
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
    library = _make_library(sources)
    ds = make_document(sources, KIND, [*sources.images(), *(file for _, _, file in sources.unread)])
    individual = [
        _individual(sources, finding, place) for finding, place in zip(sources.findings, library.findings, strict=True)
    ]
    root = _node(
        "CONTAINER",
        codes.DCM.MammographyCADReport,
        children=[
            _code("HAS CONCEPT MOD", codes.DCM.LanguageOfContentItemAndDescendants, LANGUAGE),
            _node("CONTAINER", codes.DCM.ImageLibrary, "CONTAINS", library.entries, ContinuityOfContent="SEPARATE"),
            _code(
                "CONTAINS",
                codes.DCM.CADProcessingAndFindingsSummary,
                sources.outcome(),
                [*_impression(sources), *individual],
            ),
            _detections(sources, library),
            _code("CONTAINS", codes.DCM.SummaryOfAnalyses, codes.cid6042.NotAttempted),
        ],
        ContinuityOfContent="SEPARATE",
        ContentTemplateSequence=[item(MappingResource="DCMR", TemplateIdentifier="4000")],
    )
    ds.update(root)
    save(ds, path)


@dataclass(frozen=True)
class _Library:
    """The images. The rest of the tree refers to them by their place here, counted from 1."""

    entries: list[Dataset]
    files: list[int]  # the places of the files that were looked at
    unread: list[int]  # the places of the files that could not be read
    findings: list[int]  # the place of the image of each marked finding


def _make_library(sources: Sources) -> _Library:
    """First every file, then every frame that has a finding (a frame can only be named here), then the unread files."""
    entries: list[Dataset] = []
    places: dict[tuple[str, int | None], int] = {}
    for view, files in zip(sources.result.views, sources.views, strict=True):
        for header, file in zip(view.headers, files, strict=True):
            entries.append(_library_entry(file, view.laterality, view.position, header.pixel_spacing))
            places[file.SOPInstanceUID, None] = len(entries)
    whole = list(places.values())
    for finding in sources.findings:
        view, file = finding.view, finding.image
        if (file.SOPInstanceUID, finding.frame) not in places:
            entries.append(_library_entry(file, view.laterality, view.position, finding.spacing, finding.frame))
            places[file.SOPInstanceUID, finding.frame] = len(entries)
    found = [places[finding.image.SOPInstanceUID, finding.frame] for finding in sources.findings]
    unread = [_library_entry(file, laterality, position, None) for laterality, position, file in sources.unread]
    return _Library([*entries, *unread], whole, list(range(len(entries) + 1, len(entries) + len(unread) + 1)), found)


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


def _detections(sources: Sources, library: _Library) -> Dataset:
    """TID 4015: whether the detector could look at all images."""
    parts = [_performed(codes.DCM.SuccessfulDetections, sources, library.files)]
    if sources.result.problems:
        parts.append(_performed(codes.DCM.FailedDetections, sources, library.unread))
    done = codes.cid6042.PartiallySucceeded if sources.result.problems else codes.cid6042.Succeeded
    return _code("CONTAINS", codes.DCM.SummaryOfDetections, done, parts)


def _performed(name: Code, sources: Sources, places: list[int]) -> Dataset:
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
    measured = item(NumericValue=number(value), MeasurementUnitsCodeSequence=[_concept(unit)])
    return _node("NUM", name, relationship, MeasuredValueSequence=[measured])


def _code(relationship: str, name: Code, value: Code, children: Iterable[Dataset] = ()) -> Dataset:
    return _node("CODE", name, relationship, children, ConceptCodeSequence=[_concept(value)])


def _node(
    kind: str, name: Code | None, relationship: str = "", children: Iterable[Dataset] = (), **fields: Any
) -> Dataset:
    """A content item and what is below it."""
    node = item(ValueType=kind, **fields)
    if relationship:
        node.RelationshipType = relationship
    if name is not None:
        node.ConceptNameCodeSequence = [_concept(name)]
    children = list(children)
    if children:
        node.ContentSequence = children
    return node


def _concept(given: Code) -> Dataset:
    return code(given.value, given.meaning, given.scheme_designator)
