"""Canaries: a word of its own in each of many places of an exam, which must come out nowhere but where docs/ says.

docs/predict.md: nothing of a patient is in a report, list, message or name of a file. Structured reports carry patient
and study, which they copy from the images. docs/data.md: `mm3d prepare` names files and folders, and copies nothing.
"""

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from attack.tally import Tally
from attack.trial import write_files
from pydicom import Dataset, dcmread
from pydicom.sequence import Sequence
from support.dicom_files import item
from support.exams import damage, write_weights

from mm3d.cli import main
from mm3d.data.dicom.header import CONTEXT

WORD = "Kanarie{:02d}"
NUMBER = "1.2.826.4711{:04d}"  # where there is room for a UID only
TEXTS = (  # elements of text
    *("PatientName", "PatientID", "IssuerOfPatientID", "OtherPatientIDs", "OtherPatientNames", "PatientBirthName"),
    *(
        "PatientAddress",
        "PatientTelephoneNumbers",
        "PatientMotherBirthName",
        "PatientComments",
        "AdditionalPatientHistory",
    ),
    *("EthnicGroup", "Occupation", "MilitaryRank", "CountryOfResidence", "ReferringPhysicianName", "OperatorsName"),
    *("PerformingPhysicianName", "PhysiciansOfRecord", "NameOfPhysiciansReadingStudy", "InstitutionName"),
    *("InstitutionAddress", "InstitutionalDepartmentName", "StationName", "AccessionNumber", "StudyID"),
    *("StudyDescription", "SeriesDescription", "ProtocolName", "ImageComments", "DeviceSerialNumber"),
    *("RequestingPhysician", "RequestedProcedureDescription", "AdmissionID", "DerivationDescription"),
)
UIDS = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "FrameOfReferenceUID")
PRIVATE, NESTED, FOLDER, FILE = "private", "nested", "folder", "file"
PLACES = (*TEXTS, *UIDS, PRIVATE, NESTED, FOLDER, FILE)
PREPARED = ("--width", "48", "--length", "96", "--slices", "4")


def canary(place: str) -> str:
    number = PLACES.index(place)
    return (NUMBER if place in UIDS else WORD).format(number)


def attack(count: int, seed: int, folder: Path) -> Tally:
    """Predict and prepare whole and broken exams that have all canaries, and look for them. `count` and `seed` do not
    matter: there are as many as there are places."""
    del count, seed
    tally = Tally()
    archive = _write_archive(folder)
    weights = write_weights(folder / "weights.safetensors")
    predict = ["predict", str(archive), "-o"]
    options = ["--weights", str(weights), "--jobs", "1"]
    for name, arguments, allowed in (
        ("predict", [*predict, str(folder / "out"), *options], _in_structured_reports),
        (
            "predict --with-identifiers",
            [*predict, str(folder / "named"), *options, "--with-identifiers"],
            _with_identifiers,
        ),
        (
            "prepare",
            ["prepare", "folder", str(archive), "-o", str(folder / "views"), *PREPARED, "--jobs", "1"],
            _in_names,
        ),
    ):
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            main(arguments)
        output = Path(arguments[arguments.index("-o") + 1])
        found = _find(output, said.getvalue().replace(str(folder), ""))
        for place in PLACES:
            where = {one for one in found[place] if not allowed(place, one)}
            fault = f"the {canary(place)} of {place} is in {', '.join(sorted(where))}" if where else ""
            tally.count(f"{name}: places looked for", fault)
            tally.counts[f"{name}: places that came out where docs/ says"] += bool(found[place])
    if not tally.counts["predict --with-identifiers: places that came out where docs/ says"]:
        tally.faults.append("no canary was found anywhere, so the search does not work")
    return tally


def _write_archive(folder: Path) -> Path:
    """A whole exam, one whose pixels are damaged, one whose header lies, and one that is cut off."""
    files = write_files(folder / "whole")
    archive = folder / "archive"
    inside = archive / canary(FOLDER)
    inside.mkdir(parents=True)
    changes: list[Callable[[Path], None]] = [lambda _: None, damage, _lie, _cut]
    for number, (file, change) in enumerate(
        zip(("volume CC", "mammogram MLO", "native volume MLO", "mammogram CC"), changes, strict=True)
    ):
        path = inside / f"{canary(FILE)} {number}.dcm"
        dataset = dcmread(files[file])
        _plant(dataset, number)
        dataset.save_as(path)
        change(path)
    return archive


def _plant(dataset: Dataset, number: int) -> None:
    """Put all canaries into an image; its UIDs are of another image each."""
    for name in TEXTS:
        setattr(dataset, name, canary(name))
    for name in UIDS:
        setattr(dataset, name, f"{canary(name)}.{number if name == 'SOPInstanceUID' else number // 2}")
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    block = dataset.private_block(0x0099, canary(PRIVATE), create=True)
    block.add_new(1, "LO", canary(PRIVATE))
    dataset.RequestAttributesSequence = Sequence([item(ScheduledProcedureStepDescription=canary(NESTED))])


def _lie(path: Path) -> None:
    dataset = dcmread(path)
    dataset.Rows = 4000
    dataset.save_as(path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:900])


def _find(output: Path, said: str) -> dict[str, set[str]]:
    """For each place, where its canary is: names of files, and "messages" and "a name"."""
    found: dict[str, set[str]] = {place: set() for place in PLACES}
    contents = {"messages": said.encode()}
    for path in output.rglob("*"):
        relative = path.relative_to(output)
        contents[f"the name {relative}"] = os.fsencode(relative)
        if path.is_file():
            contents[f"{relative.parent.name}/{relative.name}"] = path.read_bytes()
    for place in PLACES:
        word = canary(place).encode()
        found[place] = {where for where, content in contents.items() if word in content}
    return found


def _in_structured_reports(place: str, where: str) -> bool:
    """Patient and study are in structured reports, and the UIDs of the images that they are about."""
    return where.startswith("sr/") and (place in CONTEXT or place in UIDS)


def _with_identifiers(place: str, where: str) -> bool:
    """The user asked for them."""
    asked = place in ("PatientName", "PatientID", "StudyInstanceUID", FOLDER, FILE)
    return _in_structured_reports(place, where) or (asked and not where.startswith("the name"))


def _in_names(place: str, where: str) -> bool:
    """`mm3d prepare` names files and folders."""
    return place in (FOLDER, FILE) and not where.startswith("the name")
