"""Which exams there are in files and folders of DICOM, and which of their views the model is given."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mm3d.data.datasets.assemble import assemble
from mm3d.data.datasets.folder import NO_READING, NO_VIEW, Unread, entries_of, exam_code, files_in, read_headers
from mm3d.data.dicom.header import Header
from mm3d.data.records import Breast, Laterality, Modality, Position, View
from mm3d.shared.errors import InputError

KINDS: dict[Modality, str] = {"DBT": "volume", "FFDM": "mammogram"}
LEFT_OUT = {
    NO_VIEW: "neither CC nor MLO, or the header does not say which view or side",
    NO_READING: "stereotactic, or of a specimen",
}


@dataclass(frozen=True)
class Unreadable:
    """A view or a file that could not be read."""

    reason: str  # a sentence
    laterality: Laterality | None = None  # None, as the position: nobody knows
    position: Position | None = None
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Exam:
    """One study: what is looked at, and what is said of the rest."""

    code: str  # a hash of the study's UID
    breasts: tuple[Breast, ...]  # with the views that the model is given
    files: tuple[Path, ...]  # all of its images that can be read, used or not
    notes: tuple[str, ...]  # what was left out by rule
    problems: tuple[Unreadable, ...]
    others: int = 0  # files beside it that are no mammography, where it is the only exam

    @property
    def stamp(self) -> str:
        """Changes with the exam's files: their names, sizes and times."""
        stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.files]
        return hashlib.sha256(json.dumps(sorted(stats)).encode()).hexdigest()

    @property
    def modalities(self) -> set[Modality]:
        return {view.modality for breast in self.breasts for view in breast.views}


@dataclass(frozen=True)
class Archive:
    """All exams of a run."""

    exams: tuple[Exam, ...]
    problems: tuple[Unreadable, ...]  # files of which not even the exam is known
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
    entries, left_out = entries_of(images.headers)
    headers = {header.path: header for header in images.headers}
    breasts: dict[str, list[Breast]] = {}
    for breast in assemble("archive", entries).breasts:
        breasts.setdefault(breast.exam, []).append(breast)
    files: dict[str, list[Path]] = {}
    for header in images.headers:
        files.setdefault(exam_code(header.study), []).append(header.path)
    problems: dict[str, list[Unreadable]] = {}
    for unread in images.unread:
        if unread.kind == "broken":
            problems.setdefault(unread.exam, []).append(_unreadable(unread, identifiers))
    for code in problems:
        if code:  # an exam of which nothing can be read is one, too
            files.setdefault(code, [])
    copies = Counter(unread.exam for unread in images.unread if unread.kind == "copy")
    exams = []
    for code, paths in files.items():
        used, notes = [], []
        for breast in breasts.get(code, []):
            views, said = _used(breast, headers, prefer)
            used.append(replace(breast, views=views))
            notes += said
        reasons = Counter(left.reason for left in left_out if exam_code(left.header.study) == code)
        notes += [_left_out(count, "image", LEFT_OUT[reason]) for reason, count in reasons.items()]
        notes += [_left_out(copies[code], "file", "the same image is there already")] if copies[code] else []
        exams.append(Exam(code, tuple(used), tuple(paths), tuple(notes), tuple(problems.get(code, ()))))
    others = sum(unread.kind == "other" for unread in images.unread)
    return Archive(tuple(exams), tuple(problems.get("", ())), others)


def _left_out(count: int, what: str, why: str) -> str:
    counted = f"1 {what} is" if count == 1 else f"{count} {what}s are"
    return f"{counted} left out: {why}."


def _unreadable(unread: Unread, identifiers: bool) -> Unreadable:
    name = " ".join(filter(None, (unread.laterality, unread.position)))
    reason = hide(unread.reason, [unread.path], identifiers)
    reason = f"{name}: {reason}" if name else reason
    return Unreadable(reason, unread.laterality, unread.position, (unread.path,))


def _files(given: Sequence[Path]) -> list[Path]:
    """Every file once, however often it was given."""
    files: dict[Path, Path] = {}
    for path in given:
        if not path.exists():
            raise InputError(f"{path} does not exist; give DICOM files, folders of them, or a prepared folder.")
        for file in files_in(path) if path.is_dir() else [path]:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _used(breast: Breast, headers: dict[Path, Header], prefer: Modality) -> tuple[tuple[View, ...], list[str]]:
    """The views of a breast that the model is given: of each position one kind, the one it was trained for where there
    are both; and For Processing only where nothing is For Presentation."""
    used, notes = [], []
    for position in ("CC", "MLO"):
        name = f"{breast.laterality} {position}"
        views = [view for view in breast.views if view.position == position]
        kept = [view for view in views if view.modality == prefer] or views
        if len(kept) < len(views):
            notes.append(f"{name}: of a volume and a mammogram, the {KINDS[prefer]} is taken.")
        shown = [view for view in kept if not headers[view.files[0]].for_processing] or kept
        if len(shown) < len(kept):
            notes.append(f"{name}: the image For Presentation is used, the one For Processing is left out.")
        used += shown
    return tuple(used), notes
