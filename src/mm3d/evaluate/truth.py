"""What is known of a cohort, without its pixels: the truth that predictions are judged by.

It is read from a prepared folder, a folder of our tables, or a folder with the tables of BCS-DBT. The images
need not be there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mm3d.data.datasets import bcs_dbt, tables
from mm3d.data.datasets.keys import Key, keys_of
from mm3d.data.datasets.tables import LABEL_OF, TableView, worst_grades
from mm3d.data.prepare.prepared import read_breasts
from mm3d.data.records import Annotation, Label, Laterality, Modality, Position, Problem
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class TruthView:
    """One view; what only the image's header says is None where there was no image."""

    key: Key
    position: Position
    modality: Modality
    findings: tuple[Annotation, ...] | None  # None: not annotated
    slices: int | None = None  # of the stored volume
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
    """A cohort to be judged on."""

    name: str
    breasts: tuple[TruthBreast, ...]
    notes: tuple[str, ...] = ()

    def splits(self) -> list[str]:
        return sorted({breast.split for breast in self.breasts})


def read_truth(folder: Path) -> Truth:
    """Whichever of the three kinds the folder is."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of a cohort with --truth.")
    if (folder / "cohort.json").is_file():
        return _from_prepared(folder)
    if (folder / "labels.csv").is_file():
        views, problems = tables.read_views(folder)
        return _from_tables(folder.resolve().name, views, problems, [])
    found = bcs_dbt.newest_tables(bcs_dbt.walk(folder).tables)
    if not any("labels" in kinds for kinds in found.values()):
        raise InputError(
            f"{folder} is no cohort: it has neither a cohort.json, which 'mm3d prepare' writes, nor a labels.csv, as "
            "our tables have, nor a table of labels of BCS-DBT."
        )
    views, problems, notes = bcs_dbt.read_tables(found, needed=("labels",))
    # Other people's scores are on the tables as published, so the mislabelled views stay.
    return _from_tables("BCS-DBT", bcs_dbt.with_grades(views), problems, notes)


def _from_prepared(folder: Path) -> Truth:
    breasts = []
    for breast, prepared in read_breasts(folder):
        vendors = sorted({view.file.vendor for view in prepared} - {""})
        vendor = {"vendor": " and ".join(vendors)} if vendors else {}
        views = tuple(
            TruthView(
                key=key,
                position=view.view.position,
                modality=view.view.modality,
                findings=view.view.annotations,
                slices=view.file.geometry.stored_slices,
                pixel_spacing=view.file.pixel_spacing,
                slice_spacing=view.file.slice_spacing,
            )
            for key, view in zip(keys_of(breast), prepared, strict=True)
        )
        breasts.append(
            TruthBreast(
                patient=breast.patient,
                exam=breast.exam,
                laterality=breast.laterality,
                label=breast.label,
                split=breast.split,
                attributes=vendor | breast.attributes,
                views=views,
            )
        )
    return Truth(folder.resolve().name, tuple(breasts))


def _from_tables(name: str, views: Iterable[TableView], problems: Iterable[Problem], notes: Iterable[str]) -> Truth:
    views, problems = list(views), list(problems)
    worst = worst_grades(views)
    groups: dict[tuple[str, str, str], list[TableView]] = {}
    for view in views:
        groups.setdefault(view.breast, []).append(view)
    breasts = []
    for group, members in groups.items():
        attributes: dict[str, str] = {}
        for view in members:
            attributes |= view.attributes
        breasts.append(
            TruthBreast(
                patient=members[0].key.patient,
                exam=members[0].key.study,
                laterality=members[0].laterality,
                label=LABEL_OF[worst[group]],
                split=members[0].split,
                attributes=attributes,
                views=tuple(TruthView(v.key, v.position, v.modality, v.findings, v.slices) for v in members),
            )
        )
    wrong = [f"{len(problems)} rows of the tables are unusable, such as {p.subject}: {p.reason}" for p in problems[:1]]
    return Truth(name, tuple(breasts), (*notes, *wrong))
