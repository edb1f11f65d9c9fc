"""The report for general viewers and for software: a Comprehensive SR with TID 1500, Imaging Measurement Report.

A planar ROI group (TID 1410) per finding, and a group (TID 1501) per breast and for the exam with their scores.
"""

from pathlib import Path

import numpy as np
from highdicom.sr import (
    AlgorithmIdentification,
    DeviceObserverIdentifyingAttributes,
    FindingSite,
    GraphicTypeValues,
    ImageRegion,
    Measurement,
    MeasurementReport,
    MeasurementsAndQualitativeEvaluations,
    ObservationContext,
    ObserverContext,
    PlanarROIMeasurementsAndQualitativeEvaluations,
    QualitativeEvaluation,
    RelationshipTypeValues,
    SourceImageForMeasurementGroup,
    SourceImageForRegion,
    TextContentItem,
    TrackingIdentifier,
)
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.uid import ComprehensiveSRStorage

from mm3d.data.dicom.build import uid
from mm3d.output.sr.document import Instance, Kind, Sources, document, outcome, read_sources, save, tracking_uid
from mm3d.output.sr.reported import Mark, ReportedExam, marks_of, parameters, summary

KIND = Kind(str(ComprehensiveSRStorage), 9001, "mm3d findings")
SIDES = {"L": codes.SCT.Left, "R": codes.SCT.Right}


def write_measurement_report(exam: ReportedExam, path: Path) -> None:
    """Write the Comprehensive SR of an exam."""
    sources, marks = read_sources(exam), marks_of(exam)
    algorithm = AlgorithmIdentification(exam.algorithm.name, exam.algorithm.version, parameters(exam))
    groups: list[PlanarROIMeasurementsAndQualitativeEvaluations | MeasurementsAndQualitativeEvaluations] = []
    groups += [_finding_group(exam, sources, mark, algorithm) for mark in marks]
    for side, score in sorted(exam.breast_scores.items()):
        files = [
            file
            for view, files in zip(exam.views, sources.views, strict=True)
            for file in files
            if view.laterality == side
        ]
        groups.append(_score_group(f"{side} breast", SIDES[side], score, files, sources, algorithm))
    groups.append(_exam_group(exam, sources, marks, algorithm))
    content = MeasurementReport(
        observation_context=_observer(exam),
        procedure_reported=codes.SCT.Mammography,
        imaging_measurements=groups,
    )
    ds = document(exam, sources, KIND, sources.instances())
    ds.update(content[0])
    save(ds, path)


def _observer(exam: ReportedExam) -> ObservationContext:
    algorithm = exam.algorithm
    device = DeviceObserverIdentifyingAttributes(
        uid=uid(algorithm.name, algorithm.version, algorithm.weights),
        name=algorithm.name,
        manufacturer_name=algorithm.name,
        model_name=algorithm.weights,
    )
    return ObservationContext(
        observer_device_context=ObserverContext(observer_type=codes.DCM.Device, observer_identifying_attributes=device)
    )


def _finding_group(
    exam: ReportedExam, sources: Sources, mark: Mark, algorithm: AlgorithmIdentification
) -> PlanarROIMeasurementsAndQualitativeEvaluations:
    x1, y1, x2, y2 = mark.box
    image = sources.image(mark)
    region = ImageRegion(
        graphic_type=GraphicTypeValues.POLYLINE,
        graphic_data=np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2), (x1, y1)]),  # closed: the first point again
        source_image=SourceImageForRegion(image.sop_class, image.uid, None if mark.frame is None else [mark.frame]),
    )
    site = FindingSite(codes.SCT.Breast, laterality=SIDES[mark.laterality])
    return PlanarROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(tracking_uid(exam, sources, mark), mark.name),
        referenced_region=region,
        finding_type=codes.SCT.Lesion,
        algorithm_id=algorithm,
        finding_sites=[site],
        measurements=[_probability(mark.score, site)],
    )


def _exam_group(
    exam: ReportedExam, sources: Sources, marks: list[Mark], algorithm: AlgorithmIdentification
) -> MeasurementsAndQualitativeEvaluations:
    """The exam's score, and whether anything is marked: in a code for software, in a sentence for people."""
    sides = sorted(exam.breast_scores)
    side = codes.SCT.Bilateral if len(sides) == 2 else SIDES[sides[0]]
    group = _score_group(
        "exam",
        side,
        exam.score,
        list(sources.instances()),
        sources,
        algorithm,
        [QualitativeEvaluation(codes.DCM.CADProcessingAndFindingsSummary, outcome(exam, marks))],
    )
    group[0].ContentSequence.append(
        TextContentItem(codes.DCM.Comment, summary(exam, marks), relationship_type=RelationshipTypeValues.CONTAINS)
    )
    return group


def _score_group(
    name: str,
    side: Code,
    score: float,
    files: list[Instance],
    sources: Sources,
    algorithm: AlgorithmIdentification,
    evaluations: list[QualitativeEvaluation] | None = None,
) -> MeasurementsAndQualitativeEvaluations:
    site = FindingSite(codes.SCT.Breast, laterality=side)
    return MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(uid(sources.study, name), name),
        algorithm_id=algorithm,
        finding_sites=[site],
        measurements=[_probability(score, site)],
        qualitative_evaluations=evaluations,
        source_images=[SourceImageForMeasurementGroup(file.sop_class, file.uid) for file in files],
    )


def _probability(score: float, site: FindingSite) -> Measurement:
    """A score as a percentage. OHIF fails on a number without children in a group without a region: hence the site."""
    return Measurement(codes.DCM.ProbabilityOfCancer, 100 * score, codes.UCUM.Percent, finding_sites=[site])
