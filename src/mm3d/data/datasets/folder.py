"""A plain folder of DICOM exams, as a hospital exports them: there are no labels, only headers.

Views are grouped to breasts by study and side. Patients and exams get codes; all exams of a patient have one patient
code. No name or number of a patient leaves the DICOM headers.
"""

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydicom.dataset import Dataset

from mm3d.data.datasets.assemble import CohortBuilder, Entry
from mm3d.data.dicom.header import SINGLE, Header, UnusableFileError, find_gap, read_header
from mm3d.data.dicom.kinds import FEW_CAPTURES, OtherKindError, modality_of_kind
from mm3d.data.dicom.views import which_view
from mm3d.data.records import Cohort, ImageKind, Laterality, Position, Problem, View
from mm3d.shared.errors import InputError, describe_error
from mm3d.shared.files import WORKING

NO_VIEW = "its header does not say which side or view (CC, MLO) it is; export it with them."
NO_READING = "it is a stereotactic image or a specimen, which no detector was made for; leave it out."
PART_ONLY = "it is magnified, compressed at a spot, tangential or another view of a part of the breast; leave it out."
PROJECTION = "it is a projection from which tomosynthesis is computed; export the volume."
CONTRAST = "it is an image of contrast medium, which no detector was made for; leave it out."
SYNTHESISED = "it is a synthesised 2D image of a view of which there is a mammogram or a volume; that one is used."
# When a volume has too few slices to be a whole breast
FEW_SLICES = 10  # if the distance between slices is not known
THINNEST = 15.0  # mm; compressed breasts have 20 to 100
COVERED = 0.75  # share of the breast's thickness
NOT_USED: dict[ImageKind, str] = {"projection": PROJECTION, "contrast 2D": CONTRAST}


@dataclass(frozen=True)
class UnusedFile:
    """A file that is not used, or a folder that cannot be read."""

    path: Path
    reason: str  # one sentence
    # broken: it cannot be read; other: it is not mammography; copy: another file is the same image;
    # no view: it can be read, and is none of the views that are used (its reason is one of the sentences above)
    kind: Literal["broken", "other", "copy", "no view", "folder"]
    exam: str = ""  # the code of its exam; empty if the file does not say
    laterality: Laterality | None = None
    position: Position | None = None
    identity: tuple[str, ...] = ()  # of the image, if it is broken and its header still says it


def read(folder: Path) -> Cohort:
    files, unreadable = list_files(folder)
    headers, unused = read_headers(files)
    unused = [*unreadable, *unused]
    if not headers:
        reason = f" ({unused[0].reason})" if unused else ""
        raise InputError(f"{folder} has no mammography that can be read{reason}; give a folder of DICOM exams.")
    entries, no_views = make_entries(headers)
    problems = [
        Problem(str(file.path.relative_to(folder)), file.reason, unread=file.kind in ("broken", "folder"))
        for file in (*unused, *no_views)
    ]
    notes = []
    by_path = {header.path: header for header in headers}
    for view in (entry.view for entry in entries):
        own = [by_path[path] for path in view.files]
        problems += [Problem(view.name, gap, unread=True) for gap in describe_gap(own)]
        notes += [f"{view.name}: {note}" for note in describe_headers(own)]
        if view.modality == "DBT":
            count = sum(header.frames for header in own)
            thin = describe_thin(count, own[0].slice_spacing, own[0].thickness)
            notes += [f"{view.name}: {sentence}" for sentence in thin]
    return CohortBuilder(folder.name, notes=notes, entries=entries, problems=problems).assemble()


def describe_gap(headers: Sequence[Header]) -> list[str]:
    """A sentence if some of a view's slices are missing. The others are used."""
    gap = find_gap(headers)
    if gap is None:
        return []
    return [f"between {gap[0]:g} and {gap[1]:g} mm, slices are missing; the others are used: export the series again."]


def describe_thin(slices: int, spacing: float | None, thickness: float | None) -> list[str]:
    """A sentence if a volume has too few slices to be a whole breast. What is there is used.

    Parameters
    ----------
    slices : how many slices the volume has.
    spacing : mm from one slice to the next; None: unknown.
    thickness : mm of the compressed breast; None: unknown.
    """
    if spacing is None:
        few, why = slices < FEW_SLICES, f"a volume of a breast has at least {FEW_SLICES}"
    else:
        known = thickness is not None and thickness >= THINNEST
        needed = COVERED * thickness if known and thickness is not None else THINNEST
        few = slices * spacing < needed
        breast = f"the breast is {thickness:.3g} mm thick" if known else f"no breast is thinner than {THINNEST:g} mm"
        why = f"{slices * spacing:g} mm, and {breast}"
    if not few:
        return []
    counted = "1 slice" if slices == 1 else f"{slices} slices"
    return [
        f"the volume has only {counted} ({why}): the export seems incomplete, and a cancer may be on what is missing."
    ]


def describe_headers(headers: Sequence[Header]) -> list[str]:
    """What a reader must know of the files of a view that is used, each sentence once."""
    notes = dict.fromkeys(sentence for header in headers for sentence in header.contradictions)
    if headers[0].displaced:
        notes["an image with a displaced implant is used like any other."] = None
    return list(notes)


def list_files(folder: Path) -> tuple[list[Path], list[UnusedFile]]:
    """All files below a folder that may be images, and the folders and links there that cannot be read.

    Links are followed. A folder to which several ways lead is listed once.
    """
    files: list[Path] = []
    unreadable: list[UnusedFile] = []
    seen: set[tuple[int, int]] = set()
    folders: list[Path] = [folder]
    links: list[Path] = []
    while folders or links:
        here = folders.pop() if folders else links.pop()  # a file has its name without a link, if there is one
        try:
            status = here.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            if not os.access(here, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            with os.scandir(here) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name, reverse=True):
                    path = Path(entry.path)
                    hidden = entry.name.startswith(".") or entry.name.upper() == "DICOMDIR"
                    if entry.is_symlink() and not path.exists():
                        reason = f"{path} is a link to nothing; mend or remove it."
                        unreadable += [] if hidden else [UnusedFile(path, reason, "broken")]
                    elif entry.is_dir() and not path.match(WORKING.format("*")):
                        (links if entry.is_symlink() else folders).append(path)
                    elif entry.is_file() and not hidden:
                        files.append(path)
        except OSError as error:
            reason = f"{here} cannot be read ({error.strerror}); make it readable, or leave it out."
            unreadable.append(UnusedFile(here, reason, "folder"))
    return sorted(files), sorted(unreadable, key=lambda file: file.path)


def read_headers(paths: Iterable[Path]) -> tuple[list[Header], list[UnusedFile]]:
    """Read the header of each file, once. Returns those that can be used, and the other files with the reasons."""
    unused: list[UnusedFile] = []
    images: dict[tuple[object, ...], list[tuple[int, Header]]] = {}
    for path in paths:
        try:
            header = read_header(path)
            size = path.stat().st_size
            images.setdefault(_identity(header), []).append((size, header))
        except OtherKindError as error:
            unused.append(UnusedFile(path, str(error), "other"))
        except UnusableFileError as error:
            unused.append(_describe_broken(path, str(error), error.dataset))
        except Exception as error:  # one file never costs the others
            unused.append(UnusedFile(path, describe_error(error), "broken"))
    headers: list[Header] = []
    for copies in images.values():
        _, largest = max(copies, key=lambda copy: copy[0])  # a copy that was cut off is smaller
        headers.append(largest)
        for _, header in copies:
            if header is not largest:
                reason = f"{header.path} is a copy of {largest.path}; remove one of them."
                unused.append(UnusedFile(header.path, reason, "copy", exam_code(header.study)))
    whole = {
        _rough_identity(header): header.path for header in headers if header.kind not in SINGLE and header.instance
    }
    return headers, [_find_whole_copy(file, whole) for file in unused]


def _identity(header: Header) -> tuple[object, ...]:
    """What only copies share. The instance's UID is not enough: careless anonymisers give one UID to all files."""
    if not header.instance:
        return (header.path,)
    size = (header.frames, header.rows, header.columns, header.slice_position)
    view = (header.laterality, header.position, header.kind, header.for_processing)
    return (header.instance, header.study, header.series, *view, *size)


def _describe_broken(path: Path, reason: str, dataset: Dataset) -> UnusedFile:
    """A file that cannot be used, with its exam and view if its header still says them."""
    try:
        laterality, position = which_view(dataset)
        study = str(dataset.get("StudyInstanceUID", ""))
        series, instance, rows, columns, frames = (
            str(dataset.get(name) or "")
            for name in ("SeriesInstanceUID", "SOPInstanceUID", "Rows", "Columns", "NumberOfFrames")
        )
    except Exception:  # any exception means a damaged header
        return UnusedFile(path, reason, "broken")
    identity = (instance, study, series, str(laterality), str(position), rows, columns, frames or "1")
    return UnusedFile(path, reason, "broken", exam_code(study) if study else "", laterality, position, identity)


def _rough_identity(header: Header) -> tuple[str, ...]:
    """What a broken file says of itself, of a whole one."""
    view = (str(header.laterality), str(header.position))
    return (
        header.instance,
        header.study,
        header.series,
        *view,
        *map(str, (header.rows, header.columns, header.frames)),
    )


def _find_whole_copy(file: UnusedFile, whole: Mapping[tuple[str, ...], Path]) -> UnusedFile:
    """A broken file whose image is there in another file is only a copy; nothing is missing."""
    if file.kind != "broken" or file.identity not in whole:
        return file
    return replace(file, kind="copy", reason=f"{file.path} is a broken copy of {whole[file.identity]}; remove it.")


def make_entries(headers: Iterable[Header]) -> tuple[list[Entry], list[UnusedFile]]:
    """Views with their patients and exams, and the images that are none of the views that are used."""
    entries: list[Entry] = []
    unused: list[UnusedFile] = []
    repeats = Counter[str]()
    used = []
    for kind, group in _group_slices(headers):
        if reason := _why_unused(kind, group[0]):
            unused.append(UnusedFile(group[0].path, reason, "no view", exam_code(group[0].study)))
        else:
            used.append((kind, group))
    acquired = {_view_of(group[0]) for kind, group in used if kind != "synthesised 2D"}
    for kind, group in used:
        first, exam = group[0], exam_code(group[0].study)
        if kind == "synthesised 2D" and _view_of(first) in acquired:
            unused.append(UnusedFile(first.path, SYNTHESISED, "no view", exam))
            continue
        assert first.laterality is not None
        assert first.position is not None
        modality = modality_of_kind(kind)
        name = f"{exam} {first.laterality}{first.position} {modality}"
        repeats[name] += 1
        view = View(
            name=name if repeats[name] == 1 else f"{name} {repeats[name]}",  # a repeated exposure
            laterality=first.laterality,
            position=first.position,
            modality=modality,
            files=tuple(header.path for header in group),
            annotations=None,
            upright=modality == "DBT",
            kind=kind,
        )
        entries.append(Entry(f"patient-{first.patient}", exam, view, None, attributes={"vendor": first.vendor}))
    return entries, unused


def _why_unused(kind: ImageKind, header: Header) -> str:
    """The reason for which an image is none of the views that are used; "" if it is one."""
    if header.intervention or header.part:
        return NO_READING if header.intervention else PART_ONLY
    if kind in NOT_USED:
        return NOT_USED[kind]
    return NO_VIEW if header.laterality is None or header.position is None else ""


def _view_of(header: Header) -> tuple[str, Laterality | None, Position | None]:
    return header.study, header.laterality, header.position


def _group_slices(headers: Iterable[Header]) -> list[tuple[ImageKind, list[Header]]]:
    """Files that belong together, and what they are. Single slices are one volume if their study, series, side, view
    and kind of image are the same: some archives give all views of an exam one series. Every other file is its own."""
    groups: dict[Any, list[Header]] = {}
    for header in headers:
        view = (header.laterality, header.position, header.intervention, header.part, header.displaced)
        volume = (header.kind, header.study, header.series, *view)
        groups.setdefault(volume if header.kind in SINGLE else header.path, []).append(header)
    found: list[tuple[ImageKind, list[Header]]] = []
    for group in groups.values():
        kind = group[0].kind
        if kind not in SINGLE:
            found.append((kind, group))
        elif kind == "captured 2D" and len(group) <= FEW_CAPTURES:
            found += [(kind, [header]) for header in group]
        else:
            found.append(("DBT" if len(group) > 1 else "DBT slice", group))
    return found


def exam_code(study: str) -> str:
    """A code for a StudyInstanceUID, because some archives write patients' numbers into theirs."""
    return hashlib.sha256(study.encode()).hexdigest()[:10]
