"""The truth about a cohort, without its images.

It is read from a prepared folder, from a folder of our tables, or from a folder with the tables of BCS-DBT.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from mm3d.data.datasets import bcs_dbt, tables
from mm3d.data.datasets.assemble import keys_of_rows, make_records, read_blocks
from mm3d.data.datasets.tables import GRADES, LABEL_OF, TableView, worst_grades
from mm3d.data.prepare.prepared import PreparedBreast, read_breasts
from mm3d.data.records import Annotation, Key, Label, Laterality, Modality, Problem, is_view, keys_of, side_of_view
from mm3d.shared.collector import paused_collector
from mm3d.shared.errors import InputError


class TruthView(NamedTuple):
    """One view. What only the header of an image says is None where there was no image."""

    key: Key
    annotations: tuple[Annotation, ...] | None  # None: not annotated
    slice_count: int | None = None  # of the stored volume
    pixel_spacing: float | None = None  # mm
    slice_spacing: float | None = None  # mm


class TruthBreast(NamedTuple):
    """One breast in one exam."""

    key: tuple[str, str, Laterality]  # patient, exam, laterality
    label: Label | None
    split: str
    attributes: dict[str, str]
    views: tuple[TruthView, ...]

    @property
    def patient(self) -> str:
        return self.key[0]


@dataclass(frozen=True)
class Truth:
    """The truth about a cohort."""

    name: str
    breasts: tuple[TruthBreast, ...]
    notes: tuple[str, ...] = ()
    unlabelled: frozenset[str] = frozenset()  # splits of which only the volumes are known

    @property
    def patients(self) -> list[str]:
        """The patients, in an order that does not depend on the order of the rows."""
        return sorted({breast.key[0] for breast in self.breasts})

    @property
    def modalities(self) -> set[Modality]:
        return {cast(Modality, view.key.modality) for breast in self.breasts for view in breast.views}

    def in_split(self, split: str | None) -> "Truth":
        """The part of the cohort in a split; None: all splits with labels, or all if none has labels."""
        if split is None:
            labelled = tuple(breast for breast in self.breasts if breast.split not in self.unlabelled)
            return replace(self, breasts=labelled or self.breasts)
        breasts = tuple(breast for breast in self.breasts if breast.split == split)
        if not breasts:
            known = ", ".join(sorted({breast.split for breast in self.breasts} - {""}))
            hint = f"known: {known}" if known else "it has none"
            raise InputError(f"--split {split} is no split of {self.name}; {hint}.")
        return replace(self, breasts=breasts)


@paused_collector()
def read_truth(folder: Path) -> Truth:
    """Read the truth from a folder of any of the three kinds."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of a cohort with --truth.")
    name = folder.resolve().name
    if (folder / "cohort.json").is_file():
        return Truth(name, tuple(map(_from_prepared, read_breasts(folder))))
    if (folder / "labels.csv").is_file():
        return _from_tables(name, *tables.read_views(folder), [])
    found = bcs_dbt.newest_tables(bcs_dbt.walk(folder).tables)
    labelled = {split: kinds for split, kinds in found.items() if "labels" in kinds}
    paths = {split: kinds["file-paths"] for split, kinds in found.items() if kinds.keys() == {"file-paths"}}
    if not labelled and not paths:
        raise InputError(
            f"{folder} is no cohort: it has neither a cohort.json, which 'mm3d prepare' writes, nor a labels.csv of "
            "our tables, nor a table of labels or file-paths of BCS-DBT."
        )
    views, problems, notes = bcs_dbt.read_tables(labelled, needed=("labels",))
    # The scores of others are computed on the tables as published, so the mislabelled views stay.
    truth = _from_tables("BCS-DBT", bcs_dbt.with_grades(views), problems, notes)
    more = tuple(breast for split, path in paths.items() for breast in _from_file_paths(path, split))
    return replace(truth, breasts=truth.breasts + more, unlabelled=frozenset(paths))


def _from_prepared(prepared: PreparedBreast) -> TruthBreast:
    breast = prepared.breast
    vendors = sorted({view.file.vendor for view in prepared.views} - {""})
    attributes = {"vendor": " and ".join(vendors)} if vendors else {}
    views = []
    for key, view in zip(keys_of(breast), prepared.views, strict=True):
        drawn, file = view.view.annotations, view.file
        views.append(TruthView(key, drawn, file.geometry.stored_slices, file.pixel_spacing, file.slice_spacing))
    name = (breast.patient, breast.exam, breast.laterality)
    return TruthBreast(name, breast.label, breast.split, attributes | breast.attributes, tuple(views))


def _from_file_paths(path: Path, split: str) -> list[TruthBreast]:
    """The breasts of a table that names volumes only."""
    views: dict[tuple[str, str, Laterality], list[TruthView]] = {}
    for key in dict.fromkeys(key for block in read_blocks(path, tables.FILE_PATHS) for key in keys_of_rows(block)):
        if not is_view(key.view):
            raise InputError(f"{path}: the view {key.view!r} is none of lcc, lmlo, rcc and rmlo.")
        views.setdefault((key.patient, key.study, key.laterality), []).append(TruthView(key, None))
    return [TruthBreast(breast, None, split, {}, tuple(own)) for breast, own in views.items()]


def _from_tables(name: str, views: Sequence[TableView], problems: list[Problem], notes: list[str]) -> Truth:
    keys, _, annotations, slices, splits, attributes, _ = zip(*views, strict=True) if views else [()] * 7
    patients, studies, view_names, _ = zip(*keys, strict=True) if keys else [()] * 4
    unknown = [None] * len(views)
    truth_views = make_records(TruthView, keys, annotations, slices, unknown, unknown)
    names = zip(patients, studies, map(side_of_view, view_names), strict=True)
    parts: dict[tuple[str, str, Laterality], list[Any]] = {}  # split, attributes and views of each breast
    for breast, view, split, own in zip(names, truth_views, splits, attributes, strict=True):
        if breast not in parts:
            parts[breast] = [split, own, (view,)]
            continue
        part = parts[breast]
        part[2] += (view,)
        if own is not part[1]:
            part[1] = part[1] | own
    worst = worst_grades(views)
    breasts = tuple(
        TruthBreast(breast, LABEL_OF[worst.get(breast, GRADES[0])], *part) for breast, part in parts.items()
    )
    if problems:
        first_problem = f"{problems[0].subject}: {problems[0].reason}"
        notes = [*notes, f"{len(problems)} rows of the tables are unusable, such as {first_problem}"]
    return Truth(name, breasts, tuple(notes))
