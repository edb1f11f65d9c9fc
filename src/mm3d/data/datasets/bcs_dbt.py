"""BCS-DBT: Breast-Cancer-Screening-DBT, the tomosynthesis collection of Duke University, as downloaded.

The folder holds the tables of one or more splits and the images, anywhere in it. `tables.py` says what the tables mean.
The images are looked for where the tables say, and otherwise by series: the archive's downloader has changed its folder
names over the years, but they end with the series UID or with its last five digits.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mm3d.data.datasets.assemble import CohortBuilder, read_blocks
from mm3d.data.datasets.tables import (
    BOXES_READ,
    FILE_PATHS,
    GRADES,
    LABELS,
    TableView,
    join,
    locate_files,
    worst_grades,
)
from mm3d.data.dicom.header import read_dataset
from mm3d.data.records import Cohort, Problem
from mm3d.shared.errors import InputError

SPLITS = ("train", "validation", "test")
TABLE = re.compile(
    r"BCS[-_ ]DBT[-_ ]+(file[-_ ]paths|labels|boxes)[-_ ](train|validation|test)(?![a-z])(.*)\.csv", re.IGNORECASE
)

# Known errors of the published tables: patient and view.
MISLABELLED = {
    ("DBT-P01150", "lmlo"),
    ("DBT-P03027", "lcc"),
    ("DBT-P03027", "lmlo"),
    ("DBT-P00715", "lcc"),
    ("DBT-P00715", "lmlo"),
    ("DBT-P00801", "lmlo"),
}


def read(folder: Path) -> Cohort:
    """Read a folder with the tables and the images, or a part of either."""
    download = walk(folder)
    tables = newest_tables(download.tables)
    if not any(kinds.keys() >= {"file-paths", "labels"} for kinds in tables.values()):
        raise InputError(f"{folder} has no split of BCS-DBT with both its tables of file-paths and of labels.")
    views, problems, notes = read_tables(tables)
    wrong = [view for view in views if (view.key.patient, view.key.view) in MISLABELLED]
    problems += [Problem(view.name, "It is known to be mislabelled.") for view in wrong]
    views = [view for view in views if view not in wrong]
    entries, missing = locate_files(with_grades(views), download.find, folder)
    return CohortBuilder("BCS-DBT", notes, entries, problems + missing).assemble()


def with_grades(views: Sequence[TableView]) -> list[TableView]:
    """Give each view the worst grade of its breast as an attribute, because Actionable and Normal are both negative."""
    worst = worst_grades(views)
    named = {grade: {"bcs_dbt": grade.lower()} for grade in GRADES}
    return [view._replace(attributes=view.attributes | named[worst.get(view.breast, GRADES[0])]) for view in views]


def read_tables(
    tables: dict[str, dict[str, Path]], needed: Sequence[str] = ("file-paths", "labels")
) -> tuple[list[TableView], list[Problem], list[str]]:
    """The views of the splits that have the `needed` tables, problems with other splits, and notes. No image is looked
    for."""
    views: list[TableView] = []
    problems: list[Problem] = []
    notes = [
        "Malignant and benign are results of biopsies; actionable views (recalled, not biopsied) count as negative."
    ]
    for split in SPLITS:
        kinds = tables.get(split, {})
        absent = [kind for kind in needed if kind not in kinds]
        if absent:
            if kinds:
                problems.append(Problem(split, f"Its table of {' and '.join(absent)} is missing."))
            continue
        if "boxes" not in kinds:
            notes.append(f"The {split} boxes are missing: its malignant and benign views are not annotated.")
        joined, wrong = join(
            read_blocks(kinds["file-paths"], FILE_PATHS) if "file-paths" in kinds else (),
            read_blocks(kinds["labels"], LABELS),
            read_blocks(kinds["boxes"], BOXES_READ) if "boxes" in kinds else (),
            split,
        )
        views += joined
        problems += wrong
    return views, problems, notes


def newest_tables(tables: Iterable[Path]) -> dict[str, dict[str, Path]]:
    """Split -> file-paths, labels or boxes -> the newest version of that table."""
    found: dict[str, dict[str, tuple[tuple[int, ...], Path]]] = {}
    for path in sorted(tables):
        match = TABLE.fullmatch(path.name)
        if not match:
            continue
        kind, split, version = (part.lower() for part in match.groups())
        # Labels and boxes of the challenge's second phase came after v2; a date, where there is one, decides last.
        numbers = (re.search(pattern, version) for pattern in (r"phase[-_ ]?(\d+)", r"v(\d+)", r"(20\d\d)"))
        age = tuple(int(number[1]) if number else 0 for number in numbers)
        kind = "file-paths" if kind.startswith("file") else kind  # hyphens and spaces both occur
        known = found.setdefault(split, {})
        if kind not in known or age > known[kind][0]:
            known[kind] = (age, path)
    return {split: {kind: path for kind, (_, path) in kinds.items()} for split, kinds in found.items()}


@dataclass(frozen=True)
class Download:
    """Where everything is, from one walk: a search for each of 22,032 views would take hours on a network disk."""

    tables: list[Path]
    files: dict[tuple[str, ...], Path]  # patient, study, series and file, as the paths in the tables end
    series: dict[str, list[Path]]  # the number that a folder's name ends with -> the images in such folders

    def find(self, view: TableView) -> Path | None:
        for path in view.paths:
            file = self.files.get(PurePosixPath(path).parts[-4:])
            if file:
                return file
        uid = PurePosixPath(view.paths[0]).parent.name  # the classic path has the series UID as folder
        if not re.fullmatch(r"[0-9.]{6,64}", uid):
            return None
        candidates = self.series.get(uid) or [
            file
            for file in self.series.get(uid[-5:], ())
            if view.key.patient in file.absolute().parts and file.parent.name.endswith(f"-{uid[-5:]}")
        ]
        if len(candidates) > 1:
            candidates = [file for file in candidates if _series_uid(file) == uid]
        if len(candidates) > 1:
            raise InputError(f"Its series has several files: {', '.join(map(str, candidates))}.")
        return candidates[0] if candidates else None


def walk(folder: Path) -> Download:
    """Go through a download once, also through linked folders."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of the download.")
    download = Download([], {}, {})
    seen: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        here = Path(root)
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder above would never end
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        download.tables.extend(here / name for name in names if TABLE.fullmatch(name))
        number = re.search(r"[0-9.]*$", here.name)
        for name in sorted(names):
            if name.lower().endswith(".dcm") and not name.startswith("."):  # macOS leaves ._1-1.dcm on foreign disks
                download.files.setdefault((here / name).absolute().parts[-4:], here / name)
                download.series.setdefault(number[0] if number else "", []).append(here / name)
    return download


def _series_uid(file: Path) -> str:
    try:
        return str(read_dataset(file, ["SeriesInstanceUID"]).get("SeriesInstanceUID", ""))
    except InputError:  # a damaged file is not the one that is looked for
        return ""
