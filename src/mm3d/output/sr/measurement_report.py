"""The report for general viewers and for software: a Comprehensive SR with TID 1500, Imaging Measurement Report.

Every finding is a planar ROI group (TID 1410). Scores of breasts and of the exam are derived measurements (TID 1420),
and the summary is a qualitative evaluation: OHIF 3.13.2 shows nothing at all if a measurement group has no region, and
only one region of groups that share a tracking UID (`tests/node/test_node_ohif.py`).
"""

from collections.abc import Sequence
from pathlib import Path

from pydicom.dataset import Dataset
from pydicom.uid import ComprehensiveSRStorage

from mm3d.data.dicom.build import item, uid
from mm3d.data.records import Laterality
from mm3d.output.result import ExamResult
from mm3d.output.sr import codes
from mm3d.output.sr.codes import Code
from mm3d.output.sr.content import make_code, make_node, make_number, make_reference, make_text
from mm3d.output.sr.document import NAME, Location, Sources, make_algorithm, read_sources, write_document

SIDES = {"L": codes.LEFT, "R": codes.RIGHT}


def write_measurement_report(result: ExamResult, path: Path) -> None:
    """Write the Comprehensive SR of an exam."""
    sources = read_sources(result)
    groups = [_finding_group(sources, finding) for finding in sources.findings]
    scores = [_score(sources, score, side) for side, score in sorted(result.breast_scores.items())]
    scores.append(_score(sources, result.score, None))
    summary = [
        make_code("CONTAINS", codes.CAD_SUMMARY, sources.outcome()),
        make_text("CONTAINS", codes.COMMENT, sources.summary()),
    ]
    root = _container(
        codes.MEASUREMENT_REPORT,
        "1500",
        [
            make_code("HAS CONCEPT MOD", codes.LANGUAGE, codes.US_ENGLISH),
            *_observer(result),
            make_code("HAS CONCEPT MOD", codes.PROCEDURE_REPORTED, codes.MAMMOGRAPHY),
            *(
                make_node("CONTAINER", name, "CONTAINS", children, ContinuityOfContent="CONTINUOUS")
                for name, children in (
                    (codes.MEASUREMENTS, groups),
                    (codes.DERIVED_MEASUREMENTS, scores),
                    (codes.QUALITATIVE_EVALUATIONS, summary),
                )
                if children
            ),
        ],
    )
    write_document(sources, ComprehensiveSRStorage, root, sources.images(), path)


def _observer(result: ExamResult) -> list[Dataset]:
    """TID 1002, 1004: the device that made the report."""
    method, relationship = result.method, "HAS OBS CONTEXT"
    return [
        make_code(relationship, codes.OBSERVER_TYPE, codes.DEVICE),
        make_node("UIDREF", codes.DEVICE_UID, relationship, UID=uid(NAME, method.version, method.weights)),
        make_text(relationship, codes.DEVICE_NAME, NAME),
        make_text(relationship, codes.DEVICE_MANUFACTURER, NAME),
        make_text(relationship, codes.DEVICE_MODEL, method.weights),
    ]


def _finding_group(sources: Sources, finding: Location) -> Dataset:
    side = SIDES[finding.view.laterality]
    rows = [
        *_tracking(sources.tracking_uid(finding), ", ".join(finding.lesion)),
        make_code("CONTAINS", codes.FINDING, codes.LESION),
        _site(side),
        *make_algorithm(sources, "HAS CONCEPT MOD"),
        _probability(finding.score, [_region(finding, "INFERRED FROM")]),
        _region(finding, "CONTAINS"),
    ]
    return _container(codes.MEASUREMENT_GROUP, "1410", rows, "CONTAINS")


def _region(finding: Location, relationship: str) -> Dataset:
    """The box, on its image. OHIF shows that of the group, and takes that of the number over as its own."""
    x1, y1, x2, y2 = finding.box
    source = make_reference(finding.header.context, finding.frame)
    image = make_node("IMAGE", codes.SOURCE, "SELECTED FROM", ReferencedSOPSequence=[source])
    corners = [x1, y1, x2, y1, x2, y2, x1, y2, x1, y1]  # closed: the first point again
    return make_node("SCOORD", codes.IMAGE_REGION, relationship, [image], GraphicType="POLYLINE", GraphicData=corners)


def _score(sources: Sources, score: float, side: Laterality | None) -> Dataset:
    """TID 1420: the score of the breast on one side; None: of the exam."""
    sides = [SIDES[known] for known in sources.result.breast_scores if side in (None, known)]
    where = codes.BILATERAL if len(sides) == 2 else sides[0]
    highest = side is None or sources.result.method.predict.get("scores") == "max"
    images = [
        make_node("IMAGE", codes.SOURCE_OF_MEASUREMENT, "INFERRED FROM", ReferencedSOPSequence=[make_reference(image)])
        for image in sources.images(side)
    ]
    children = [
        make_code("HAS CONCEPT MOD", codes.DERIVATION, codes.MAXIMUM if highest else codes.MEAN),
        _site(where),
        *make_algorithm(sources, "HAS CONCEPT MOD"),
        *images,
    ]
    return _probability(score, children)


def _tracking(identifier: str, name: str) -> list[Dataset]:
    return [
        make_text("HAS OBS CONTEXT", codes.TRACKING_IDENTIFIER, name),
        make_node("UIDREF", codes.TRACKING_UID, "HAS OBS CONTEXT", UID=identifier),
    ]


def _site(side: Code) -> Dataset:
    laterality = make_code("HAS CONCEPT MOD", codes.LATERALITY, side)
    return make_code("HAS CONCEPT MOD", codes.FINDING_SITE, codes.BREAST, [laterality])


def _probability(score: float, children: Sequence[Dataset] = ()) -> Dataset:
    """A score as a percentage."""
    percent = 100 * score
    exact = {"FloatingPointValue": percent}
    return make_number("CONTAINS", codes.PROBABILITY_OF_CANCER, percent, codes.PERCENT, children, **exact)


def _container(name: Code, template: str, rows: Sequence[Dataset], relationship: str = "") -> Dataset:
    about = item(MappingResource="DCMR", TemplateIdentifier=template)
    fields = {"ContinuityOfContent": "CONTINUOUS", "ContentTemplateSequence": [about]}
    return make_node("CONTAINER", name, relationship, rows, **fields)
