"""The truth about a cohort, without its images.

It is read from a prepared folder, from a folder of our tables, or from a folder with the tables of BCS-DBT.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from mm3d.data.datasets import bcs_dbt, tables
from mm3d.data.datasets.keys import Key, keys_of
from mm3d.data.datasets.tables import LABEL_OF, TableView, worst_grades
from mm3d.data.prepare.prepared import read_breasts
from mm3d.data.records import Annotation, Label, Laterality, Modality, Position, Problem
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class TruthView:
    """One view. What only the header of an image says is None where there was no image."""

    key: Key
    position: Position
    modality: Modality
    annotations: tuple[Annotation, ...] | None  # None: not annotated
    slice_count: int | None = None  # of the stored volume
    pixel_spacing: float | None = None  # mm
    slice_spacing: float | None = None  # mm


@dataclass(frozen=True)
class TruthBreast:
    """One breast in one exam."""

    patient: str
    exam: str
    laterality: Laterality
    label: Label | None
    split: str
    attributes: dict[str, str]
    views: tuple[TruthView, ...]


@dataclass(frozen=True)
class Truth:
    """The truth about a cohort."""

    name: str
    breasts: tuple[TruthBreast, ...]
    notes: tuple[str, ...] = ()

    @property
    def patients(self) -> list[str]:
        """The patients, in an order that does not depend on the order of the rows."""
        return sorted({breast.patient for breast in self.breasts})

    def in_split(self, split: str | None) -> "Truth":
        """The part of the cohort in a split; None: all."""
        if split is None:
            return self
        breasts = tuple(breast for breast in self.breasts if breast.split == split)
        if not breasts:
            known = ", ".join(sorted({breast.split for breast in self.breasts} - {""}))
            hint = f"known: {known}" if known else "it has none"
            raise InputError(f"--split {split} is no split of {self.name}; {hint}.")
        return replace(self, breasts=breasts)


def read_truth(folder: Path) -> Truth:
    """Read the truth from a folder of any of the three kinds."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of a cohort with --truth.")
    if (folder / "cohort.json").is_file():
        return _read_prepared(folder)
    if (folder / "labels.csv").is_file():
        views, problems = tables.read_views(folder)
        return _from_tables(folder.resolve().name, views, problems, [])
    found = bcs_dbt.newest_tables(bcs_dbt.walk(folder).tables)
    if not any("labels" in kinds for kinds in found.values()):
        raise InputError(
            f"{folder} is no cohort: it has neither a cohort.json, which 'mm3d prepare' writes, nor a labels.csv of "
            "our tables, nor a table of labels of BCS-DBT."
        )
    views, problems, notes = bcs_dbt.read_tables(found, needed=("labels",))
    # The scores of others are computed on the tables as published, so the mislabelled views stay.
    return _from_tables("BCS-DBT", bcs_dbt.with_grades(views), problems, notes)


def _read_prepared(folder: Path) -> Truth:
    breasts = []
    for prepared in read_breasts(folder):
        breast = prepared.breast
        vendors = sorted({view.file.vendor for view in prepared.views} - {""})
        vendor = {"vendor": " and ".join(vendors)} if vendors else {}
        views = tuple(
            TruthView(
                key=key,
                position=view.view.position,
                modality=view.view.modality,
                annotations=view.view.annotations,
                slice_count=view.file.geometry.stored_slices,
                pixel_spacing=view.file.pixel_spacing,
                slice_spacing=view.file.slice_spacing,
            )
            for key, view in zip(keys_of(breast), prepared.views, strict=True)
        )
        breasts.append(
            TruthBreast(
                breast.patient, breast.exam, breast.laterality, breast.label, breast.split,
                vendor | breast.attributes, views,
            )
        )  # fmt: skip
    return Truth(folder.resolve().name, tuple(breasts))


def _from_tables(name: str, views: Iterable[TableView], problems: list[Problem], notes: list[str]) -> Truth:
    views = list(views)
    worst = worst_grades(views)
    groups: dict[tuple[str, str, str], list[TableView]] = {}
    for view in views:
        groups.setdefault(view.breast, []).append(view)
    breasts = []
    for group, members in groups.items():
        attributes: dict[str, str] = {}
        for view in members:
            attributes |= view.attributes
        first = members[0]
        truth_views = tuple(TruthView(v.key, v.position, v.modality, v.annotations, v.slices) for v in members)
        breasts.append(
            TruthBreast(
                first.key.patient, first.key.study, first.laterality, LABEL_OF[worst[group]], first.split,
                attributes, truth_views,
            )
        )  # fmt: skip
    if problems:
        first_problem = f"{problems[0].subject}: {problems[0].reason}"
        notes = [*notes, f"{len(problems)} rows of the tables are unusable, such as {first_problem}"]
    return Truth(name, tuple(breasts), tuple(notes))
