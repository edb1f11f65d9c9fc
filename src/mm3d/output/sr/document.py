"""What both reports share: the modules around their content, and the images they are of.

Patient and study are those of the images, copied. Series and instance are new; their UIDs are a hash of the images and
of all that the report says, so that the same report written twice is one object to an archive.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.uid import UID, ExplicitVRLittleEndian

from mm3d.data.dicom.build import item, uid
from mm3d.data.dicom.header import read_dataset
from mm3d.data.records import Laterality, Position
from mm3d.output.sr.reported import Mark, ReportedExam
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

# Of the patient, patient study and general study modules. The standard wants the first ones even where they are empty.
REQUIRED = (
    "PatientName",
    "PatientID",
    "PatientBirthDate",
    "PatientSex",
    "StudyDate",
    "StudyTime",
    "ReferringPhysicianName",
    "StudyID",
    "AccessionNumber",
)
OPTIONAL = (
    "IssuerOfPatientID",
    "IssuerOfPatientIDQualifiersSequence",
    "OtherPatientIDsSequence",
    "PatientBirthTime",
    "QualityControlSubject",
    "PatientIdentityRemoved",
    "DeidentificationMethod",
    "DeidentificationMethodCodeSequence",
    "PatientAge",
    "StudyDescription",
    "ProcedureCodeSequence",
    "IssuerOfAccessionNumberSequence",
)


@dataclass(frozen=True)
class Instance:
    """A file of a view as other DICOM objects refer to it."""

    sop_class: str
    uid: str
    series: str
    dataset: Dataset  # everything in front of the pixels


@dataclass(frozen=True)
class Kind:
    """What tells the two reports apart."""

    sop_class: str
    series_number: int
    description: str


@dataclass(frozen=True)
class Sources:
    """The files of an exam, read once."""

    study: str
    views: tuple[tuple[Instance, ...], ...]  # of each view of the exam, file by file
    unread: tuple[tuple[Laterality, Position, Instance], ...]  # not looked at, and a report can refer to it

    @property
    def first(self) -> Dataset:
        return self.views[0][0].dataset

    def instances(self) -> Iterator[Instance]:
        for files in self.views:
            yield from files

    def image(self, mark: Mark) -> Instance:
        return self.views[mark.view][mark.file]


def read_sources(exam: ReportedExam) -> Sources:
    """Read what the reports need of the files; they must be of one patient and one study."""
    first = exam.views[0].headers[0]
    for view in exam.views:
        for header in view.headers:
            if (header.patient, header.study) != (first.patient, first.study):
                raise InputError(f"{header.path} is not of the study of {first.path}; report one study at a time.")
    views = tuple(tuple(_instance(header.path) for header in view.headers) for view in exam.views)
    return Sources(first.study, views, tuple(_unread(exam, first.study)))


def _unread(exam: ReportedExam, study: str) -> Iterator[tuple[Laterality, Position, Instance]]:
    """The files whose pixels could not be read, and whose headers say what a reference must."""
    for view in exam.unread:
        if view.laterality is None or view.position is None:
            continue
        for path in view.files:
            try:
                instance = _instance(path)
            except InputError:  # it cannot be referred to; the sentence tells of it
                continue
            if instance.dataset.StudyInstanceUID == study:
                yield view.laterality, view.position, instance


def _instance(path: Path) -> Instance:
    dataset = read_dataset(path)
    for name in ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"):
        if not dataset.get(name):
            raise InputError(f"{path} has no {name}, so that no report can refer to it; export it again.")
    return Instance(str(dataset.SOPClassUID), str(dataset.SOPInstanceUID), str(dataset.SeriesInstanceUID), dataset)


def document(exam: ReportedExam, sources: Sources, kind: Kind, evidence: Iterable[Instance]) -> Dataset:
    """A report without its content. `evidence`: all files that the content refers to."""
    ds = Dataset()
    ds.SpecificCharacterSet = "ISO_IR 192"  # whatever the images use, it fits in here
    _copy_patient_and_study(sources.first, ds)
    ds.StudyInstanceUID = UID(sources.study)
    identity = _identity(exam, sources, kind)
    ds.SeriesInstanceUID, ds.SOPInstanceUID = uid(*identity, "series"), uid(*identity, "instance")
    ds.SOPClassUID = UID(kind.sop_class)
    date, time = exam.observed.strftime("%Y%m%d"), exam.observed.strftime("%H%M%S")
    ds.InstanceCreationDate = ds.SeriesDate = ds.ContentDate = date
    ds.InstanceCreationTime = ds.SeriesTime = ds.ContentTime = time
    ds.Modality, ds.SeriesNumber, ds.InstanceNumber = "SR", kind.series_number, 1
    ds.SeriesDescription = kind.description
    ds.ReferencedPerformedProcedureStepSequence = []
    ds.PerformedProcedureCodeSequence = []
    ds.Manufacturer = ds.ManufacturerModelName = exam.algorithm.name
    ds.SoftwareVersions = exam.algorithm.version
    ds.CompletionFlag, ds.VerificationFlag, ds.PreliminaryFlag = "COMPLETE", "UNVERIFIED", "PRELIMINARY"
    ds.CurrentRequestedProcedureEvidenceSequence = [_evidence(sources.study, evidence)]
    return ds


def tracking_uid(exam: ReportedExam, sources: Sources, mark: Mark) -> UID:
    """The same in both reports, and in every report of these findings."""
    made_by = (exam.algorithm.version, exam.algorithm.weights)
    return uid(sources.image(mark).uid, str(mark.frame), repr(mark.box), mark.name, *made_by)


def outcome(exam: ReportedExam, marks: list[Mark]) -> Code:
    """Whether all was looked at and anything is marked, in a code of CID 6047; an exam that failed gets no report."""
    known = codes.cid6047
    if exam.unread:
        return known.NotAllAlgorithmsSucceededWithFindings if marks else known.NotAllAlgorithmsSucceededWithoutFindings
    return known.AllAlgorithmsSucceededWithFindings if marks else known.AllAlgorithmsSucceededWithoutFindings


def save(ds: Dataset, path: Path) -> None:
    ds.file_meta = FileMetaDataset()
    ds.file_meta.MediaStorageSOPClassUID, ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPClassUID, ds.SOPInstanceUID
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    with replacing(path) as partial:
        ds.save_as(partial, enforce_file_format=True)


def _copy_patient_and_study(source: Dataset, ds: Dataset) -> None:
    copied = Dataset()
    if "SpecificCharacterSet" in source:
        copied.SpecificCharacterSet = source.SpecificCharacterSet
    for name in (*REQUIRED, *OPTIONAL):
        if name in source:
            copied.add(source[name])
    copied.decode()  # sequences too, before they are written in another character set
    for name in REQUIRED:
        setattr(ds, name, None)
    for element in copied:
        if element.keyword != "SpecificCharacterSet":
            ds.add(element)


def _identity(exam: ReportedExam, sources: Sources, kind: Kind) -> list[str]:
    """All that makes this report this report; where the files lie is no part of it."""
    said = [
        exam.algorithm,
        exam.operating_point,
        exam.observed.isoformat(),
        exam.score,
        sorted(exam.breast_scores.items()),
        [view.name for view in exam.unread],
    ]
    seen = [
        ([file.uid for file in files], view.laterality, view.position, view.turned, view.findings)
        for view, files in zip(exam.views, sources.views, strict=True)
    ]
    return [kind.sop_class, sources.study, repr(said), repr(seen)]


def _evidence(study: str, instances: Iterable[Instance]) -> Dataset:
    series: dict[str, list[Dataset]] = {}
    for instance in instances:
        reference = item(ReferencedSOPClassUID=instance.sop_class, ReferencedSOPInstanceUID=instance.uid)
        series.setdefault(instance.series, []).append(reference)
    return item(
        StudyInstanceUID=study,
        ReferencedSeriesSequence=[
            item(SeriesInstanceUID=name, ReferencedSOPSequence=references) for name, references in series.items()
        ],
    )
