"""A virtual trial: its settings, and one breast of it from the first random number to the finished images.

Everything about breast `i` follows from the settings, the seed and i. So any number of workers can make a trial, and it
can be stopped, continued and extended. Breasts 2n and 2n + 1 are the left and the right breast of patient n.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mm3d.data.records import Annotation, Breast, Key, Label, Laterality, Modality, Position, View
from mm3d.phantom.anatomy import SCALES, Anatomy, Array, CompressedBreast, Place, compress, draw_anatomy
from mm3d.phantom.annotations import annotate
from mm3d.phantom.imaging import SYSTEMS, SyntheticView, System, Tomosynthesis, take_mammogram
from mm3d.phantom.lesions import Insertion, Lesion, draw_lesion, draw_place, insert_lesion
from mm3d.phantom.processing import BITS, process_mammogram, process_slices
from mm3d.phantom.tissue import FAT, draw_structure, make_surrounding_fat, make_tissue
from mm3d.shared.config import check
from mm3d.shared.errors import InputError

POSITIONS: tuple[Position, ...] = ("CC", "MLO")


@dataclass(frozen=True)
class Trial:
    """The settings of a trial."""

    seed: int
    """The same seed gives the same bytes."""
    breasts: int
    """How many breasts. Breast i does not depend on it."""
    scale: str = "mini"
    """Size of the images: tiny, mini, midi or full."""
    system: Literal["hologic", "siemens", "ge", "mixed"] = "hologic"
    """Vendor of the tomosynthesis system. mixed draws one for each patient."""
    malignant: float = 0.4
    """Probability that a breast has cancer."""
    benign: float = 0.3
    """Probability that a breast has benign findings only. The other breasts are negative."""
    one_view: float = 0.15
    """Probability that only one view shows a finding: BCS-DBT has boxes in one view only for 16 of 106 breasts."""
    contrast: float = 1.0
    """Contrast of all findings against fat; 1 is realistic, higher is easier."""

    def __post_init__(self) -> None:
        check(self)
        if not 0 < self.contrast <= 10:
            raise InputError(f"contrast = {self.contrast} must be above 0 and at most 10.")
        if self.scale not in SCALES:
            raise InputError(f"scale = {self.scale!r} is none of {', '.join(SCALES)}.")
        if self.breasts < 1:
            raise InputError(f"breasts = {self.breasts} must be at least 1.")
        if not (0 <= self.malignant and 0 <= self.benign and self.malignant + self.benign <= 1):
            raise InputError(f"malignant = {self.malignant} and benign = {self.benign} must be shares of one whole.")
        if not 0 <= self.one_view <= 1:
            raise InputError(f"one_view = {self.one_view} must be between 0 and 1.")


# What random numbers are for. Each purpose has its own generator, so that a change of one does not move the others.
PATIENT, ANATOMY, CASE, STRUCTURE, DETAIL, PLACES, NOISE = range(7)


def make_generator(trial: Trial, number: int, purpose: int, *more: int) -> np.random.Generator:
    """The random numbers of a breast, or of a patient, for one purpose."""
    return np.random.default_rng([trial.seed, number, purpose, *more])


@dataclass(frozen=True)
class Phantom:
    """A breast between the plates of a view, with its lesions: what is imaged."""

    breast: CompressedBreast
    volume: Array  # (z, y, x) attenuation in 1/mm, lesions included
    lesions: tuple[Insertion, ...]
    air: Array | None = None  # (z, y, x) share of air; None: what is outside the surface of the breast

    def surrounding_fat(self) -> Array:
        """(z, y, x) attenuation in 1/mm of fat wherever there is no breast between the plates."""
        return make_surrounding_fat(self.breast) if self.air is None else FAT * self.air


def render_breast(trial: Trial, index: int) -> tuple[Breast, list[SyntheticView]]:
    """The record of a breast and its images: CC and MLO, each as mammogram and as volume."""
    patient = index // 2
    laterality: Laterality = "L" if index % 2 == 0 else "R"
    system = choose_system(trial, patient)
    phantoms = list(make_phantoms(trial, index))
    anatomy = phantoms[0].breast.anatomy
    names = (f"V{trial.seed}-{patient:05d}", f"V{trial.seed}-S{patient:05d}")
    images: list[SyntheticView] = []
    for number in range(len(POSITIONS)):
        rng = make_generator(trial, index, NOISE, number)
        images += image_view(phantoms.pop(0), system, laterality, names, rng)  # nothing else holds its volume then
    return describe_breast(names, laterality, draw_case(trial, index)[0], images, anatomy, system), images


def describe_breast(
    names: tuple[str, str],
    laterality: Laterality,
    label: Label,
    images: Iterable[SyntheticView],
    anatomy: Anatomy,
    system: System,
) -> Breast:
    """The record of a breast."""
    return Breast(
        *names,
        laterality=laterality,
        label=label,
        views=tuple(image.view for image in images),
        attributes={
            "density": anatomy.density_class,
            "volumetric_density": f"{anatomy.density:.3f}",
            "thickness_mm": f"{anatomy.thickness:.0f}",
            "vendor": system.name,
        },
    )


def choose_system(trial: Trial, patient: int) -> System:
    if trial.system != "mixed":
        return SYSTEMS[trial.system]
    names = tuple(SYSTEMS)
    return SYSTEMS[names[make_generator(trial, patient, PATIENT, 1).integers(len(names))]]


def draw_case(trial: Trial, index: int) -> tuple[Label, tuple[Lesion, ...]]:
    """The label and the lesions of a breast."""
    rng = make_generator(trial, index, CASE)
    dice = rng.random()
    label: Label = "negative"
    if dice < trial.malignant:
        label = "malignant"
    elif dice < trial.malignant + trial.benign:
        label = "benign"
    cancers = {"malignant": 1 + int(rng.random() < 0.1)}.get(label, 0)
    others = {"malignant": int(rng.random() < 0.25), "benign": 1 + int(rng.random() < 0.25)}.get(label, 0)
    kinds = [True] * cancers + [False] * others
    return label, tuple(draw_lesion(rng, malignant, trial.one_view, trial.contrast) for malignant in kinds)


def make_phantoms(trial: Trial, index: int) -> tuple[Phantom, Phantom]:
    """The breast between the plates of CC and of MLO."""
    scale = SCALES[trial.scale]
    anatomy = draw_anatomy(make_generator(trial, index // 2, PATIENT), make_generator(trial, index, ANATOMY))
    structure = draw_structure(make_generator(trial, index, STRUCTURE), scale.structure)
    breasts = [compress(anatomy, position, scale) for position in POSITIONS]
    volumes = [
        make_tissue(breast, structure, make_generator(trial, index, DETAIL, number))
        for number, breast in enumerate(breasts)
    ]
    insertions: list[list[Insertion]] = [[], []]
    rng = make_generator(trial, index, PLACES)
    taken: list[Place] = []
    for lesion in draw_case(trial, index)[1]:
        place = draw_place(rng, lesion, breasts, volumes, taken)
        taken.append(place)
        for breast, volume, inserted in zip(breasts, volumes, insertions, strict=True):
            if breast.position in lesion.views:
                inserted.append(insert_lesion(volume, breast, lesion, breast.to_view(*place)))
    cc, mlo = (Phantom(b, v, tuple(i)) for b, v, i in zip(breasts, volumes, insertions, strict=True))
    return cc, mlo


def image_view(
    phantom: Phantom, system: System, laterality: Laterality, names: tuple[str, str], rng: np.random.Generator
) -> tuple[SyntheticView, SyntheticView]:
    """The mammogram and the volume of a view."""
    breast, lesions, volume = phantom.breast, phantom.lesions, phantom.volume
    grid, scale = breast.grid, breast.scale
    fat = phantom.surrounding_fat()
    mammogram = take_mammogram(volume, fat, scale.pixel, scale.slice, rng)
    tomosynthesis = Tomosynthesis(system, grid.z, len(grid.y), scale.pixel)
    projections = tomosynthesis.take_projections(volume, lesions, fat, rng)
    del phantom, volume, fat  # a gigabyte each at full scale
    slices = tomosynthesis.make_slices(projections, lesions)
    annotations = annotate(lesions, breast, tomosynthesis, slices, laterality)
    in_plane = [replace(a, slice=None, first_slice=None, last_slice=None) for a in annotations]

    def finish(pixels: NDArray[np.uint16], modality: Modality, boxes: list[Annotation]) -> SyntheticView:
        return SyntheticView(
            view=make_record(*names, laterality, breast.position, modality, tuple(boxes)),
            patient=names[0],
            exam=names[1],
            system=system,
            thickness_mm=breast.anatomy.thickness,
            pixels=_place_on_detector(pixels, breast, laterality),
            bits=BITS[modality],
            pixel_spacing=scale.pixel,
            slice_spacing=scale.slice if modality == "DBT" else None,
        )

    return (
        finish(process_mammogram(mammogram, breast, system.name)[None], "FFDM", in_plane),
        finish(process_slices(slices, breast, system.name), "DBT", annotations),
    )


def make_record(
    patient: str,
    exam: str,
    laterality: Laterality,
    position: Position,
    modality: Modality,
    annotations: tuple[Annotation, ...],
) -> View:
    """The record of a view. Its file is relative to the folder of the trial."""
    kind = (laterality + position).lower()
    return View(
        name=Key(patient, exam, kind, modality).name,
        laterality=laterality,
        position=position,
        modality=modality,
        files=(Path("images", patient, f"{exam}-{kind}-{modality.lower()}.dcm"),),
        annotations=annotations,
        upright=modality == "DBT",
    )


def _place_on_detector(
    pixels: NDArray[np.uint16], breast: CompressedBreast, laterality: Laterality
) -> NDArray[np.uint16]:
    """The breast in the whole field, with the chest wall on the left for a left breast."""
    rows, columns = breast.scale.shape
    whole = np.zeros((len(pixels), rows, columns), np.uint16)
    seen = whole if laterality == "L" else whole[:, :, ::-1]
    seen[:, breast.top : breast.top + pixels.shape[1], : pixels.shape[2]] = pixels
    return whole
