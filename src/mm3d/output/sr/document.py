"""What all DICOM objects that are written share: the modules around their content, the images, and their texts.

Patient and study are copied from the images. Series and instance are new. Their UIDs are a hash of the images and of
everything that the report says, so that the same report written twice is one object to an archive.

Two frames of reference: the boxes and slices of findings are mm3d's (*stored*, see `records`). In a report they are the
file's own: the image is not turned, and frames are counted from 1 in the order of the file. In both, 0, 0 is the corner
of the first pixel, as in DICOM's SCOORD.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    UID,
    ComprehensiveSRStorage,
    ExplicitVRLittleEndian,
    GrayscaleSoftcopyPresentationStateStorage,
    MammographyCADSRStorage,
    SecondaryCaptureImageStorage,
)

from mm3d.data.dicom.build import item, uid
from mm3d.data.dicom.header import Header, read_dataset, slices_of
from mm3d.data.dicom.kinds import TOMOSYNTHESIS
from mm3d.data.records import Laterality, Position
from mm3d.output.predictions import Finding
from mm3d.output.result import ExamResult, ViewResult
from mm3d.output.sr import codes
from mm3d.output.sr.codes import Code
from mm3d.output.sr.content import make_reference, make_text
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

NAME = "mm3d"
SERIES = {  # number and description
    ComprehensiveSRStorage: (9001, "mm3d findings"),
    MammographyCADSRStorage: (9002, "mm3d mammography CAD"),
    GrayscaleSoftcopyPresentationStateStorage: (9003, "mm3d boxes"),
    SecondaryCaptureImageStorage: (9004, "mm3d summary"),
}
SIDES = {"L": "left", "R": "right"}
# Of the patient and general study modules. The standard wants them even if they are empty.
REQUIRED = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex"),
    *("StudyDate", "StudyTime", "ReferringPhysicianName", "StudyID", "AccessionNumber"),
)
# Of `Header.context`, what belongs to the image and not to the patient or the study.
OF_THE_IMAGE = (
    *("SpecificCharacterSet", "SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"),
    *("ContentDate", "ContentTime", "PatientOrientation", "ImageOrientationPatient"),
)


class Location(NamedTuple):
    """Where a marked finding lies in the files of its view."""

    name: str  # such as LCC DBT 1, or LCC1 DBT 1 in a repeated view; unique in the exam
    lesion: tuple[str, ...]  # the names of all findings of its lesion, its own among them
    view: ViewResult
    header: Header  # of the file
    frame: int | None  # from 1; None if the file holds one image
    box: tuple[float, float, float, float]  # x1, y1, x2, y2 in the file's own pixels
    score: float


@dataclass(frozen=True)
class Sources:
    """What both reports say."""

    result: ExamResult
    unread: tuple[tuple[Laterality, Position, Dataset], ...]  # not looked at, but a report can refer to them
    findings: tuple[Location, ...]  # the marked ones, view by view, the highest score of a view first

    @property
    def study(self) -> str:
        return self.result.views[0].headers[0].study

    def images(self, side: Laterality | None = None) -> list[Dataset]:
        """The attributes of all files that were looked at, or of those of one breast."""
        views = [view for view in self.result.views if side in (None, view.laterality)]
        return [header.context for view in views for header in view.headers]

    def summary(self) -> str:
        """The report in a sentence or two, for people who read its text."""
        result, count = self.result, len(self.findings)
        point = f"the operating point of {result.threshold:g}"
        text = f"{count} findings reach {point}." if count > 1 else f"1 finding reaches {point}."
        if not count:
            text = f"No finding reaches {point}; nothing is marked."
        files = Counter[str]()
        for problem in result.problems:
            files[problem.view] += max(1, len(problem.files))
        if files:
            counted = [f"{number} file{'s' * (number > 1)} of {view}" for view, number in files.items()]
            text += f" Not looked at, because it could not be read: {', '.join(counted)}."
        text += "".join(f" Warning, {warning}" for warning in result.warnings)
        scores = [f"exam {result.score:.3f}"]
        scores += [f"{SIDES[side]} breast {score:.3f}" for side, score in sorted(result.breast_scores.items())]
        return f"{text} Scores from 0 to 1: {', '.join(scores)}."

    def outcome(self) -> Code:
        """Whether everything was looked at and anything is marked, as a code of CID 6047."""
        some, none = codes.WITH_FINDINGS, codes.WITHOUT_FINDINGS
        if self.result.problems:
            some, none = codes.NOT_ALL_WITH_FINDINGS, codes.NOT_ALL_WITHOUT_FINDINGS
        return some if self.findings else none

    def parameters(self) -> list[str]:
        """What there is to know about the algorithm besides its name and version."""
        return [
            f"weights: {self.result.method.weights}",
            f"intended use: {self.result.method.intended_use}",
            f"operating point: {self.result.threshold:g}",
        ]

    def tracking_uid(self, finding: Location) -> UID:
        """The same in every report of these findings. Findings of one lesion share their names, and not this."""
        place = (str(finding.header.context.SOPInstanceUID), str(finding.frame), repr(finding.box), finding.name)
        return uid(*place, *finding.lesion, self.result.method.version, self.result.method.weights)

    def identity(self) -> list[str]:
        """Everything that makes a report this report. Where the files lie and when it was made is not part of it: an
        exam that is predicted again gives the same object."""
        result = self.result
        content = [
            (json.dumps(result.method.settings(), sort_keys=True), *self.parameters()),
            sorted(result.breast_scores.items()),
            [problem.view for problem in result.problems],
            result.warnings,
        ]
        views = [
            ([str(h.context.SOPInstanceUID) for h in view.headers], view.name, view.turned, view.findings)
            for view in result.views
        ]
        return [self.study, repr(content), repr(views)]


def read_sources(result: ExamResult) -> Sources:
    """Collect what both reports need of the files, which must be of one patient and one study."""
    for view in result.views:
        if not view.headers:
            raise InputError(f"The view {view.name} has no DICOM headers; a structured report needs them.")
    first = result.views[0].headers[0]
    for header in (header for view in result.views for header in view.headers):
        if (header.patient, header.study) != (first.patient, first.study):
            raise InputError(f"{header.path} is not of the study of {first.path}; report one study at a time.")
        _check_uids(header.context, header.path)
    findings = _name_lesions(
        [location for view in result.views for location in _locate_findings(view, result.threshold)]
    )
    return Sources(result, tuple(_find_unread(result, first.study)), tuple(findings))


def _check_uids(dataset: Dataset, path: Path) -> Dataset:
    for name in ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"):
        if not isinstance(dataset.get(name), str) or not dataset.get(name):  # it may be a list of several
            raise InputError(f"{path} has not one {name}, so that no report can refer to it; export it again.")
    return dataset


def _find_unread(result: ExamResult, study: str) -> Iterator[tuple[Laterality, Position, Dataset]]:
    """The files whose pixels could not be read, if their headers have what a reference needs."""
    for problem in result.problems:
        if problem.laterality is None or problem.position is None:
            continue
        for path in problem.files:
            try:
                dataset = _check_uids(read_dataset(path), path)
                same = dataset.StudyInstanceUID == study
            except Exception:  # a damaged header: a report cannot refer to it; the summary mentions it
                continue
            if same:
                yield problem.laterality, problem.position, dataset


def _locate_findings(view: ViewResult, threshold: float) -> Iterator[Location]:
    for number, finding in enumerate(view.marked(threshold), 1):
        header, frame = _find_frame(view, finding)
        name = f"{view.name} {number}"
        lesion = (name,) if finding.lesion is None else (view.laterality, str(finding.lesion))
        yield Location(name, lesion, view, header, frame, _box_in_file(view, finding), finding.score)


def _name_lesions(findings: Sequence[Location]) -> list[Location]:
    """Findings with the names of all findings of their lesions, instead of the lesions' numbers."""
    names: dict[tuple[str, ...], tuple[str, ...]] = {}
    for finding in findings:
        names[finding.lesion] = (*names.get(finding.lesion, ()), finding.name)
    return [finding._replace(lesion=names[finding.lesion]) for finding in findings]


def _find_frame(view: ViewResult, finding: Finding) -> tuple[Header, int | None]:
    """The file of a finding, and its frame: from 1, None if the file holds one image."""
    slices = slices_of(view.headers)
    z = finding.slice
    if z is None and len(slices) == 1:
        z = 0
    if z is None or not 0 <= round(z) < len(slices):
        raise InputError(
            f"{view.headers[0].path} has {len(slices)} slices, and a finding is on slice {z}; predict the exam again."
        )
    file, number = slices[round(z)]
    header = view.headers[file]
    return header, number + 1 if header.frames > 1 or header.context.SOPClassUID == TOMOSYNTHESIS else None


def _box_in_file(view: ViewResult, finding: Finding) -> tuple[float, float, float, float]:
    """The part of a box that is inside the image, turned back if mm3d turned the view."""
    header = view.headers[0]
    x1, x2 = (min(max(x, 0.0), float(header.columns)) for x in finding.box[::2])
    y1, y2 = (min(max(y, 0.0), float(header.rows)) for y in finding.box[1::2])
    if not (x1 < x2 and y1 < y2):
        raise InputError(f"a finding's box {finding.box} is outside of {header.path}; predict the exam again.")
    if view.turned:
        x1, y1, x2, y2 = header.columns - x2, header.rows - y2, header.columns - x1, header.rows - y1
    return x1, y1, x2, y2


def make_algorithm(sources: Sources, relationship: str) -> list[Dataset]:
    """TID 4019: what made a finding."""
    texts = [(codes.ALGORITHM_NAME, NAME), (codes.ALGORITHM_VERSION, sources.result.method.version)]
    texts += [(codes.ALGORITHM_PARAMETERS, text) for text in sources.parameters()]
    return [make_text(relationship, name, text) for name, text in texts]


def write_document(sources: Sources, sop_class: UID, content: Dataset, evidence: list[Dataset], path: Path) -> None:
    """Write a report. `content` is the root of its tree, and `evidence` has all files that the content refers to."""
    ds = begin_object(sources, sop_class, "SR")
    ds.ReferencedPerformedProcedureStepSequence = []
    ds.PerformedProcedureCodeSequence = []
    ds.CompletionFlag, ds.VerificationFlag, ds.PreliminaryFlag = "COMPLETE", "UNVERIFIED", "PRELIMINARY"
    ds.CurrentRequestedProcedureEvidenceSequence = [_list_evidence(evidence, sources.study)]
    earlier = [old for path in sources.result.replaces if (old := read_dataset(path)).SOPClassUID == sop_class]
    if replaced := [old for old in earlier if old.SOPInstanceUID != ds.SOPInstanceUID]:
        ds.PredecessorDocumentsSequence = [_list_evidence(replaced, sources.study)]
    ds.update(content)
    save_object(ds, path)


def begin_object(sources: Sources, sop_class: UID, modality: str, part: str = "", number: int = 1) -> Dataset:
    """What every object that is written has: patient, study, a series for its class, and its own UIDs. Objects of one
    class have different parts and numbers."""
    series_number, description = SERIES[sop_class]
    ds = Dataset()
    ds.SpecificCharacterSet = "ISO_IR 192"  # UTF-8 holds the text of every other character set
    _copy_patient_and_study(sources.images()[0], ds)
    ds.StudyInstanceUID = UID(sources.study)
    identity = (sop_class, *sources.identity())
    ds.SeriesInstanceUID, ds.SOPInstanceUID = (
        uid(*identity, "series"),
        uid(*identity, *([part] * bool(part)), "instance"),
    )
    ds.SOPClassUID = sop_class
    when = sources.result.predicted_at
    ds.InstanceCreationDate = ds.SeriesDate = ds.ContentDate = when.strftime("%Y%m%d")
    ds.InstanceCreationTime = ds.SeriesTime = ds.ContentTime = when.strftime("%H%M%S")
    ds.Modality, ds.SeriesNumber, ds.InstanceNumber = modality, series_number, number
    ds.SeriesDescription = description
    ds.Manufacturer = ds.ManufacturerModelName = NAME
    ds.SoftwareVersions = sources.result.method.version
    return ds


def save_object(ds: Dataset, path: Path) -> None:
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    with replacing(path) as partial:
        ds.save_as(partial, enforce_file_format=True)


def _list_evidence(evidence: list[Dataset], study: str) -> Dataset:
    """Every file once, by series."""
    files: dict[str, Dataset] = {}
    for file in evidence:
        files.setdefault(file.SOPInstanceUID, file)
    series: dict[str, list[Dataset]] = {}
    for file in files.values():
        series.setdefault(file.SeriesInstanceUID, []).append(make_reference(file))
    listed = [item(ReferencedSOPSequence=own, SeriesInstanceUID=name) for name, own in series.items()]
    return item(ReferencedSeriesSequence=listed, StudyInstanceUID=study)


def _copy_patient_and_study(source: Dataset, ds: Dataset) -> None:
    copied = Dataset()
    copied.update(source)
    copied.decode()  # sequences too, before they are written in another character set
    for name in REQUIRED:
        setattr(ds, name, None)
    for element in copied:
        if element.keyword not in OF_THE_IMAGE:
            ds.add(element)
