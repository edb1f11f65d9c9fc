"""The report for general viewers and for software: a Comprehensive SR with TID 1500, Imaging Measurement Report.

Every finding is a planar ROI group (TID 1410). Every breast and the exam have a group (TID 1501) with their score.
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
    groups = [
        *(_finding_group(sources, finding) for finding in sources.findings),
        *(_score_group(sources, score, side) for side, score in sorted(result.breast_scores.items())),
        _exam_group(sources),
    ]
    root = _container(
        codes.MEASUREMENT_REPORT,
        "1500",
        [
            make_code("HAS CONCEPT MOD", codes.LANGUAGE, codes.US_ENGLISH),
            *_observer(result),
            make_code("HAS CONCEPT MOD", codes.PROCEDURE_REPORTED, codes.MAMMOGRAPHY),
            make_node("CONTAINER", codes.MEASUREMENTS, "CONTAINS", groups, ContinuityOfContent="CONTINUOUS"),
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
    x1, y1, x2, y2 = finding.box
    source = make_reference(finding.header.context, finding.frame)
    image = make_node("IMAGE", codes.SOURCE, "SELECTED FROM", ReferencedSOPSequence=[source])
    corners = [x1, y1, x2, y1, x2, y2, x1, y2, x1, y1]  # closed: the first point again
    outline = {"GraphicType": "POLYLINE", "GraphicData": corners}
    side = SIDES[finding.view.laterality]
    rows = [
        *_tracking(sources.tracking_uid(finding), ", ".join(finding.lesion)),
        make_code("CONTAINS", codes.FINDING, codes.LESION),
        _site(side),
        *make_algorithm(sources, "HAS CONCEPT MOD"),
        _probability(finding.score, side),
        make_node("SCOORD", codes.IMAGE_REGION, "CONTAINS", [image], **outline),
    ]
    return _container(codes.MEASUREMENT_GROUP, "1410", rows, "CONTAINS")


def _exam_group(sources: Sources) -> Dataset:
    """The exam's score, and whether anything is marked: as a code for software, as a sentence for people."""
    evaluation = make_code("CONTAINS", codes.CAD_SUMMARY, sources.outcome())
    group = _score_group(sources, sources.result.score, None, [evaluation])
    group.ContentSequence.append(make_text("CONTAINS", codes.COMMENT, sources.summary()))
    return group


def _score_group(
    sources: Sources, score: float, side: Laterality | None, evaluations: Sequence[Dataset] = ()
) -> Dataset:
    """The score of the breast on one side; None: of the exam."""
    name = "exam" if side is None else f"{side} breast"
    sides = [SIDES[known] for known in sources.result.breast_scores if side in (None, known)]
    where = codes.BILATERAL if len(sides) == 2 else sides[0]
    images = [
        make_node("IMAGE", codes.SOURCE_OF_MEASUREMENT, "CONTAINS", ReferencedSOPSequence=[make_reference(image)])
        for image in sources.images(side)
    ]
    rows = [
        *_tracking(uid(sources.study, name), name),
        _site(where),
        *make_algorithm(sources, "HAS CONCEPT MOD"),
        _probability(score, where),
        *evaluations,
        *images,
    ]
    return _container(codes.MEASUREMENT_GROUP, "1501", rows, "CONTAINS")


def _tracking(identifier: str, name: str) -> list[Dataset]:
    return [
        make_text("HAS OBS CONTEXT", codes.TRACKING_IDENTIFIER, name),
        make_node("UIDREF", codes.TRACKING_UID, "HAS OBS CONTEXT", UID=identifier),
    ]


def _site(side: Code) -> Dataset:
    laterality = make_code("HAS CONCEPT MOD", codes.LATERALITY, side)
    return make_code("HAS CONCEPT MOD", codes.FINDING_SITE, codes.BREAST, [laterality])


def _probability(score: float, side: Code) -> Dataset:
    """A score as a percentage. It has the site as a child, because OHIF fails on a group without a region otherwise."""
    percent = 100 * score
    exact = {"FloatingPointValue": percent}
    return make_number("CONTAINS", codes.PROBABILITY_OF_CANCER, percent, codes.PERCENT, [_site(side)], **exact)


def _container(name: Code, template: str, rows: Sequence[Dataset], relationship: str = "") -> Dataset:
    about = item(MappingResource="DCMR", TemplateIdentifier=template)
    fields = {"ContinuityOfContent": "CONTINUOUS", "ContentTemplateSequence": [about]}
    return make_node("CONTAINER", name, relationship, rows, **fields)
