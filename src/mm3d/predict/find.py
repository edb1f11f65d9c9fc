"""Which exams there are in DICOM files and folders, and which of their views the model is given."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mm3d.data.datasets.assemble import CohortBuilder
from mm3d.data.datasets.folder import NO_READING, NO_VIEW, UnusedFile, exam_code, list_files, make_entries, read_headers
from mm3d.data.dicom.header import Header
from mm3d.data.records import Breast, Modality, View
from mm3d.output.result import ReadProblem
from mm3d.shared.errors import InputError

KINDS: dict[Modality, str] = {"DBT": "volume", "FFDM": "mammogram"}
LEFT_OUT = {
    NO_VIEW: "neither CC nor MLO, or the header does not say which view or side",
    NO_READING: "stereotactic, or of a specimen",
}


@dataclass(frozen=True)
class Exam:
    """One study: the views to look at, and sentences about the rest."""

    code: str  # a hash of the study's UID
    breasts: tuple[Breast, ...]  # with the views that the model is given
    headers: Mapping[Path, Header]  # of all its images that can be read, used or not
    notes: tuple[str, ...]  # what was left out by rule
    problems: tuple[ReadProblem, ...]
    other_files: int = 0  # files beside it that are no mammography, if it is the only exam

    @property
    def stamp(self) -> str:
        """Changes with the exam's files: their names, sizes and times."""
        stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.headers]
        return hashlib.sha256(json.dumps(sorted(stats)).encode()).hexdigest()


@dataclass(frozen=True)
class Archive:
    """All exams of a run."""

    exams: tuple[Exam, ...]
    problems: tuple[ReadProblem, ...]  # files that do not even say of which exam they are
    other_files: int  # files that are no mammography


def hide_paths(text: str, paths: Sequence[Path], identifiers: bool) -> str:
    """Remove paths from a sentence, because they may contain names of patients; not if `identifiers` are wanted."""
    for path in () if identifiers else sorted(paths, key=lambda path: -len(str(path))):
        text = text.replace(str(path), "a file (--with-identifiers names it)")
    return text


def find_exams(given: Sequence[Path], prefer: Modality, identifiers: bool) -> Archive:
    """Find the exams in files and folders. If a view is there as a volume and as a mammogram, `prefer` is used.

    With `identifiers`, problems may name files.
    """
    images, unused = read_headers(_list_files(given))
    entries, no_views = make_entries(images)
    headers: dict[str, dict[Path, Header]] = {}
    for header in images:
        headers.setdefault(exam_code(header.study), {})[header.path] = header
    breasts: dict[str, list[Breast]] = {}
    for breast in CohortBuilder("archive", entries=entries).assemble().breasts:
        breasts.setdefault(breast.exam, []).append(breast)
    problems: dict[str, list[ReadProblem]] = {}
    for file in unused:
        if file.kind == "broken":
            problems.setdefault(file.exam, []).append(_describe_problem(file, identifiers))
    unknown = problems.pop("", [])
    for code in problems:
        headers.setdefault(code, {})  # an exam is one even if none of its files can be read
    copies = Counter(file.exam for file in unused if file.kind == "copy")
    exams = []
    for code, own in headers.items():
        used, notes = [], []
        for breast in breasts.get(code, []):
            views, more = _choose_views(breast, own, prefer)
            used.append(replace(breast, views=views))
            notes += more
        reasons = Counter(file.reason for file in no_views if file.exam == code)
        notes += [_count_left_out(count, "image", LEFT_OUT[reason]) for reason, count in reasons.items()]
        if copies[code]:
            notes.append(_count_left_out(copies[code], "file", "the same image is there already"))
        exams.append(Exam(code, tuple(used), own, tuple(notes), tuple(problems.get(code, ()))))
    return Archive(tuple(exams), tuple(unknown), sum(file.kind == "other" for file in unused))


def _list_files(given: Sequence[Path]) -> list[Path]:
    """Every file once, however often it was given."""
    files: dict[Path, Path] = {}
    for path in given:
        if not path.exists():
            raise InputError(f"{path} does not exist; give DICOM files, folders of them, or a prepared folder.")
        for file in list_files(path) if path.is_dir() else [path]:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _describe_problem(file: UnusedFile, identifiers: bool) -> ReadProblem:
    name = " ".join(filter(None, (file.laterality, file.position)))
    reason = hide_paths(file.reason, [file.path], identifiers)
    return ReadProblem(f"{name}: {reason}" if name else reason, file.laterality, file.position, (file.path,))


def _choose_views(
    breast: Breast, headers: Mapping[Path, Header], prefer: Modality
) -> tuple[tuple[View, ...], list[str]]:
    """Choose the views of a breast that the model is given: for each position one kind, `prefer` if there are both; and
    images For Processing only if there are none For Presentation."""
    chosen, notes = [], []
    for position in ("CC", "MLO"):
        name = f"{breast.laterality} {position}"
        views = [view for view in breast.views if view.position == position]
        kept = [view for view in views if view.modality == prefer] or views
        if len(kept) < len(views):
            notes.append(f"{name}: of a volume and a mammogram, the {KINDS[prefer]} is taken.")
        shown = [view for view in kept if not headers[view.files[0]].for_processing] or kept
        if len(shown) < len(kept):
            notes.append(f"{name}: the image For Presentation is used, the one For Processing is left out.")
        chosen += shown
    return tuple(chosen), notes


def _count_left_out(count: int, what: str, why: str) -> str:
    return f"1 {what} is left out: {why}." if count == 1 else f"{count} {what}s are left out: {why}."
