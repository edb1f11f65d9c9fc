"""Which exams there are in files and folders of DICOM, and which of their views the model is given."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mm3d.cohorts.assemble import assemble
from mm3d.cohorts.folder import entries_of, exam_code, files_in, read_headers
from mm3d.dicom.header import Header
from mm3d.errors import InputError
from mm3d.records import Breast, Modality, View

KINDS: dict[Modality, str] = {"DBT": "volume", "FFDM": "mammogram"}


@dataclass(frozen=True)
class Exam:
    """One study: what is looked at, and what is said of the rest."""

    code: str  # a hash of the study's UID
    breasts: tuple[Breast, ...]  # with the views that the model is given
    files: tuple[Path, ...]  # all of its images, used or not
    notes: tuple[str, ...]  # what was left out by rule
    problems: tuple[str, ...]  # what could not be read, in sentences

    @property
    def stamp(self) -> str:
        """Changes with the exam's files: their names, sizes and times."""
        stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.files]
        return hashlib.sha256(json.dumps(sorted(stats)).encode()).hexdigest()


@dataclass(frozen=True)
class Archive:
    """All exams of a run."""

    exams: tuple[Exam, ...]
    problems: tuple[str, ...]  # of files of which not even the exam is known
    others: int  # files that are no mammography


def hide(text: str, files: Sequence[Path], identifiers: bool) -> str:
    """A sentence without the paths in it, which may have names of patients; as it is where identifiers are wanted."""
    for path in () if identifiers else sorted(files, key=lambda path: -len(str(path))):
        text = text.replace(str(path), "a file (--with-identifiers names it)")
    return text


def read_archive(given: Sequence[Path], prefer: Modality, identifiers: bool) -> Archive:
    """Find the exams in files and folders. Where a view is there as a volume and as a mammogram, `prefer` is used.

    With `identifiers`, problems may name files.
    """
    images = read_headers(_files(given))
    entries, unknown = entries_of(images.headers)
    headers = {header.path: header for header in images.headers}
    breasts: dict[str, list[Breast]] = {}
    for breast in assemble("archive", entries).breasts:
        breasts.setdefault(breast.exam, []).append(breast)
    files: dict[str, list[Path]] = {}
    for header in images.headers:
        files.setdefault(exam_code(header.study), []).append(header.path)
    problems: dict[str, list[str]] = {}
    for unread in images.unread:
        if not unread.harmless:
            whose = unread.exam if unread.exam in files else ""
            problems.setdefault(whose, []).append(hide(unread.reason, [unread.path], identifiers))
    exams = []
    for code, paths in files.items():
        left = sum(exam_code(header.study) == code for header in unknown)
        exams.append(_exam(code, breasts.get(code, []), headers, paths, left, problems.get(code, []), prefer))
    others = sum(unread.harmless for unread in images.unread)
    return Archive(tuple(exams), tuple(problems.get("", ())), others)


def _files(given: Sequence[Path]) -> list[Path]:
    """Every file once, however often it was given."""
    files: dict[Path, Path] = {}
    for path in given:
        if not path.exists():
            raise InputError(f"{path} does not exist; give DICOM files, folders of them, or a prepared folder.")
        for file in files_in(path) if path.is_dir() else [path]:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _exam(
    code: str,
    breasts: list[Breast],
    headers: dict[Path, Header],
    files: list[Path],
    unknown: int,
    problems: list[str],
    prefer: Modality,
) -> Exam:
    used, notes = [], []
    for breast in breasts:
        views, left_out = _used(breast, headers, prefer)
        used.append(replace(breast, views=views))
        notes += left_out
    if unknown:
        counted = "1 image is" if unknown == 1 else f"{unknown} images are"
        notes.append(f"{counted} left out: neither CC nor MLO, or the header does not say which view or side.")
    return Exam(code, tuple(used), tuple(files), tuple(notes), tuple(problems))


def _used(breast: Breast, headers: dict[Path, Header], prefer: Modality) -> tuple[tuple[View, ...], list[str]]:
    """The views of a breast that the model is given: of each position one kind, the one it was trained for where there
    are both; and For Processing only where nothing is For Presentation."""
    used, notes = [], []
    for position in ("CC", "MLO"):
        name = f"{breast.laterality} {position}"
        views = [view for view in breast.views if view.position == position]
        kept = [view for view in views if view.modality == prefer] or views
        if len(kept) < len(views):
            notes.append(f"{name}: the {KINDS[prefer]} is used, the {KINDS[other(prefer)]} is left out.")
        shown = [view for view in kept if not headers[view.files[0]].for_processing] or kept
        if len(shown) < len(kept):
            notes.append(f"{name}: the image For Presentation is used, the one For Processing is left out.")
        used += shown
    return tuple(used), notes


def other(modality: Modality) -> Modality:
    return "FFDM" if modality == "DBT" else "DBT"
