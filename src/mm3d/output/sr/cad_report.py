"""The report for mammography workstations: a Mammography CAD SR with TID 4000.

The tree has the rows of the templates (PS3.16): an image library (TID 4020); the overall impression (TID 4001, 4002)
with, for each finding, an individual impression (TID 4003) and its single image finding (TID 4006, 4021); which
detections succeeded or failed (TID 4015, 4017); and the analyses (none).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import Dataset
from pydicom.uid import MammographyCADSRStorage

from mm3d.data.dicom.build import item
from mm3d.data.dicom.groups import functional_group
from mm3d.data.dicom.header import Header
from mm3d.data.records import Laterality, Position
from mm3d.output.result import ExamResult, ViewResult
from mm3d.output.sr import codes
from mm3d.output.sr.codes import Code
from mm3d.output.sr.content import make_code, make_node, make_number, make_reference, make_text
from mm3d.output.sr.document import Location, Sources, make_algorithm, read_sources, write_document

SIDES = {"L": codes.LEFT_BREAST, "R": codes.RIGHT_BREAST}
VIEWS = {"CC": codes.CRANIO_CAUDAL, "MLO": codes.MEDIO_LATERAL_OBLIQUE}
# The detector does not distinguish masses from calcifications. Of the codes that may have a probability of cancer (CID
# 6014), this one says least, and workstations mark it.
FINDING = codes.MAMMOGRAPHY_BREAST_DENSITY
LIBRARY = (1, 2)  # where the image library is in the tree: the second child of the root
DIRECTIONS = (("L", "R"), ("P", "A"), ("H", "F"))  # of the axes of patient coordinates, forward and back


def write_cad_report(result: ExamResult, path: Path) -> None:
    """Write the Mammography CAD SR of an exam."""
    sources = read_sources(result)
    library, places = _make_library(sources)
    individual = [_individual(sources, f, places[f.header.path, f.frame]) for f in sources.findings]
    root = make_node(
        "CONTAINER",
        codes.CAD_REPORT,
        children=[
            make_code("HAS CONCEPT MOD", codes.LANGUAGE, codes.ENGLISH),
            make_node("CONTAINER", codes.IMAGE_LIBRARY, "CONTAINS", library, ContinuityOfContent="SEPARATE"),
            make_code(
                "CONTAINS",
                codes.CAD_SUMMARY,
                sources.outcome(),
                [*_impression(sources), *individual],
            ),
            _detections(sources, len(library)),
            make_code("CONTAINS", codes.SUMMARY_OF_ANALYSES, codes.NOT_ATTEMPTED),
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
        make_code("HAS ACQ CONTEXT", codes.IMAGE_LATERALITY, SIDES[laterality]),
        make_code("HAS ACQ CONTEXT", codes.IMAGE_VIEW, VIEWS[position]),
    ]
    orientation = _orientation(file)
    if orientation is not None:
        for name, letters in zip((codes.ORIENTATION_OF_ROWS, codes.ORIENTATION_OF_COLUMNS), orientation, strict=True):
            known.append(make_text("HAS ACQ CONTEXT", name, letters))
    for name in (codes.STUDY_DATE, codes.STUDY_TIME, codes.CONTENT_DATE, codes.CONTENT_TIME):
        what, kind = name.meaning.split()  # Study, Date: also the names of the attributes
        value = file.get(what + kind)
        if value:
            known.append(make_node(kind.upper(), name, "HAS ACQ CONTEXT", [], **{kind: str(value)}))
    if spacing is not None:
        for name in (codes.HORIZONTAL_SPACING, codes.VERTICAL_SPACING):
            known.append(make_number("HAS ACQ CONTEXT", name, spacing, codes.MILLIMETRES))
    return make_node("IMAGE", None, "CONTAINS", known, ReferencedSOPSequence=[make_reference(file, frame)])


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
    text = make_text("HAS PROPERTIES", codes.IMPRESSION, sources.summary())
    return [text, *make_algorithm(sources, "HAS PROPERTIES")]


def _individual(sources: Sources, location: Location, image: int) -> Dataset:
    """TID 4003 and 4006: one finding, on the image at that place of the library."""
    intent = make_code("HAS CONCEPT MOD", codes.RENDERING_INTENT, codes.PRESENTATION_REQUIRED)
    x1, y1, x2, y2 = location.box
    finding = make_code(
        "CONTAINS",
        codes.SINGLE_IMAGE_FINDING,
        FINDING,
        [
            intent,
            *make_algorithm(sources, "HAS PROPERTIES"),
            make_number("HAS PROPERTIES", codes.CERTAINTY_OF_FINDING, 100 * location.score, codes.PERCENT),
            make_number("HAS PROPERTIES", codes.PROBABILITY_OF_CANCER, 100 * location.score, codes.PERCENT),
            _shape(codes.CENTER, "POINT", [(x1 + x2) / 2, (y1 + y2) / 2], image),
            _shape(codes.OUTLINE, "POLYLINE", [x1, y1, x2, y1, x2, y2, x1, y2, x1, y1], image),
        ],
    )
    return make_node(
        "CONTAINER", codes.INDIVIDUAL_IMPRESSION, "INFERRED FROM", [intent, finding], ContinuityOfContent="SEPARATE"
    )


def _detections(sources: Sources, size: int) -> Dataset:
    """TID 4015: whether the detector could look at all images. `size` is the number of images in the library."""
    parts = [_performed(codes.SUCCESSFUL_DETECTIONS, sources, range(1, len(sources.images()) + 1))]
    if sources.result.problems:
        unread = range(size - len(sources.unread) + 1, size + 1)
        parts.append(_performed(codes.FAILED_DETECTIONS, sources, unread))
    done = codes.PARTIALLY_SUCCEEDED if sources.result.problems else codes.SUCCEEDED
    return make_code("CONTAINS", codes.SUMMARY_OF_DETECTIONS, done, parts)


def _performed(name: Code, sources: Sources, places: Iterable[int]) -> Dataset:
    """TID 4017: what was looked for, and in which images of the library."""
    images = [_reference("HAS PROPERTIES", place) for place in places]
    performed = make_code(
        "CONTAINS", codes.DETECTION_PERFORMED, FINDING, [*make_algorithm(sources, "HAS PROPERTIES"), *images]
    )
    return make_node("CONTAINER", name, "INFERRED FROM", [performed], ContinuityOfContent="SEPARATE")


def _shape(name: Code, kind: str, points: list[float], entry: int) -> Dataset:
    """TID 4021. `points` are x, y, x, y, … in pixels of the library's image number `entry`."""
    image = _reference("SELECTED FROM", entry)
    return make_node("SCOORD", name, "HAS PROPERTIES", [image], GraphicType=kind, GraphicData=points)


def _reference(relationship: str, entry: int) -> Dataset:
    """Refer to an image of the library by its place in the tree."""
    return item(RelationshipType=relationship, ReferencedContentItemIdentifier=[*LIBRARY, entry])
