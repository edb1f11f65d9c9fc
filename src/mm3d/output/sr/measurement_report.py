"""The report for general viewers and for software: a Comprehensive SR with TID 1500, Imaging Measurement Report.

Every finding is a planar ROI group (TID 1410). Every breast and the exam have a group (TID 1501) with their score.
"""

from pathlib import Path

import numpy as np
from highdicom import sr
from pydicom.sr.codedict import codes
from pydicom.uid import ComprehensiveSRStorage

from mm3d.data.dicom.build import uid
from mm3d.data.records import Laterality
from mm3d.output.result import ExamResult
from mm3d.output.sr.document import NAME, Location, Sources, read_sources, write_document

SIDES = {"L": codes.SCT.Left, "R": codes.SCT.Right}


def write_measurement_report(result: ExamResult, path: Path) -> None:
    """Write the Comprehensive SR of an exam."""
    sources = read_sources(result)
    algorithm = sr.AlgorithmIdentification(NAME, result.method.version, sources.parameters())
    groups: list[sr.PlanarROIMeasurementsAndQualitativeEvaluations | sr.MeasurementsAndQualitativeEvaluations] = [
        *(_finding_group(sources, finding, algorithm) for finding in sources.findings),
        *(_score_group(sources, algorithm, score, side) for side, score in sorted(result.breast_scores.items())),
        _exam_group(sources, algorithm),
    ]
    content = sr.MeasurementReport(
        observation_context=_observer(result),
        procedure_reported=codes.SCT.Mammography,
        imaging_measurements=groups,
    )
    write_document(sources, ComprehensiveSRStorage, content[0], sources.images(), path)


def _observer(result: ExamResult) -> sr.ObservationContext:
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=uid(NAME, result.method.version, result.method.weights),
        name=NAME,
        manufacturer_name=NAME,
        model_name=result.method.weights,
    )
    return sr.ObservationContext(
        observer_device_context=sr.ObserverContext(
            observer_type=codes.DCM.Device, observer_identifying_attributes=device
        )
    )


def _finding_group(
    sources: Sources, finding: Location, algorithm: sr.AlgorithmIdentification
) -> sr.PlanarROIMeasurementsAndQualitativeEvaluations:
    x1, y1, x2, y2 = finding.box
    image = finding.header.context
    frames = None if finding.frame is None else [finding.frame]
    region = sr.ImageRegion(
        graphic_type=sr.GraphicTypeValues.POLYLINE,
        graphic_data=np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2), (x1, y1)]),  # closed: the first point again
        source_image=sr.SourceImageForRegion(image.SOPClassUID, image.SOPInstanceUID, frames),
    )
    site = sr.FindingSite(codes.SCT.Breast, laterality=SIDES[finding.view.laterality])
    return sr.PlanarROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(sources.tracking_uid(finding), finding.name),
        referenced_region=region,
        finding_type=codes.SCT.Lesion,
        algorithm_id=algorithm,
        finding_sites=[site],
        measurements=[_probability(finding.score, site)],
    )


def _exam_group(sources: Sources, algorithm: sr.AlgorithmIdentification) -> sr.MeasurementsAndQualitativeEvaluations:
    """The exam's score, and whether anything is marked: as a code for software, as a sentence for people."""
    evaluation = sr.QualitativeEvaluation(codes.DCM.CADProcessingAndFindingsSummary, sources.outcome())
    group = _score_group(sources, algorithm, sources.result.score, None, [evaluation])
    group[0].ContentSequence.append(
        sr.TextContentItem(codes.DCM.Comment, sources.summary(), relationship_type=sr.RelationshipTypeValues.CONTAINS)
    )
    return group


def _score_group(
    sources: Sources,
    algorithm: sr.AlgorithmIdentification,
    score: float,
    side: Laterality | None,
    evaluations: list[sr.QualitativeEvaluation] | None = None,
) -> sr.MeasurementsAndQualitativeEvaluations:
    """The score of the breast on one side; None: of the exam."""
    name = "exam" if side is None else f"{side} breast"
    sides = [SIDES[known] for known in sources.result.breast_scores if side in (None, known)]
    site = sr.FindingSite(codes.SCT.Breast, laterality=codes.SCT.Bilateral if len(sides) == 2 else sides[0])
    images = [
        sr.SourceImageForMeasurementGroup(image.SOPClassUID, image.SOPInstanceUID) for image in sources.images(side)
    ]
    return sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(uid(sources.study, name), name),
        algorithm_id=algorithm,
        finding_sites=[site],
        measurements=[_probability(score, site)],
        qualitative_evaluations=evaluations,
        source_images=images,
    )


def _probability(score: float, site: sr.FindingSite) -> sr.Measurement:
    """A score as a percentage. It has the site as a child, because OHIF fails on a group without a region otherwise."""
    return sr.Measurement(codes.DCM.ProbabilityOfCancer, 100 * score, codes.UCUM.Percent, finding_sites=[site])
