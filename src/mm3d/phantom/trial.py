"""A virtual trial: who is in it, and one breast of it from the dice to its images.

Everything of breast `i` follows from (seed, i): a trial can be made by any number of workers, stopped, continued and
extended. Breasts 2n and 2n + 1 are the left and the right one of patient n.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mm3d.data.records import Annotation, Label, Laterality, Position
from mm3d.phantom.anatomy import Array, Form, draw_anatomy, form
from mm3d.phantom.display import MAMMOGRAM_BITS, SLICE_BITS, present_mammogram, present_slices
from mm3d.phantom.imaging import SYSTEMS, System, Tomosynthesis, mammogram
from mm3d.phantom.latent import draw_latent
from mm3d.phantom.lesions import Change, Lesion, draw_lesion, insert
from mm3d.phantom.rendered import RenderedBreast, RenderedView
from mm3d.phantom.scale import SCALES, Scale
from mm3d.phantom.tissue import FAT, GLAND, attenuation, beside
from mm3d.phantom.truth import Spectrum, detectability, reconstructed_signal, signal_box, visible_range
from mm3d.shared.config import check
from mm3d.shared.errors import InputError

POSITIONS: tuple[Position, ...] = ("CC", "MLO")


@dataclass(frozen=True)
class Trial:
    """What a trial consists of."""

    seed: int
    """Of everything: the same seed, the same bytes."""
    breasts: int
    """How many; breast i does not depend on it."""
    scale: str = "mini"
    """tiny, mini or full."""
    system: Literal["hologic", "siemens", "ge", "mixed"] = "hologic"
    """Whose tomosynthesis; mixed draws one for each patient."""
    malignant: float = 0.4
    """Probability that a breast has cancer."""
    benign: float = 0.3
    """Probability that it has benign findings only. The rest are negative."""
    one_view: float = 0.15
    """Probability that a finding lies outside the field of one view: 16 of 106 breasts of BCS-DBT are boxed in one."""

    contrast: float = 1.0
    """Times what findings, malignant and benign alike, differ from fat: 1 is tissue's own. More is easier."""

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


# What the random numbers of a breast are for: each purpose has its own, so that one does not move the others.
PATIENT, ANATOMY, CASE, LATENT, DETAIL, PLACES, NOISE = range(7)


def generator(trial: Trial, number: int, purpose: int, *more: int) -> np.random.Generator:
    return np.random.default_rng([trial.seed, number, purpose, *more])


@dataclass(frozen=True)
class Seen:
    """A lesion in a view."""

    lesion: Lesion
    change: Change
    depth: float  # mm from the nipple towards the chest wall


@dataclass(frozen=True)
class BreastView:
    """A breast between the plates, with its findings in it: what is imaged."""

    form: Form
    volume: Array  # (z, y, x) 1/mm
    seen: tuple[Seen, ...]


def render_breast(trial: Trial, index: int) -> RenderedBreast:
    """All images of a breast, with their truth."""
    patient = index // 2
    laterality: Laterality = "L" if index % 2 == 0 else "R"
    system = system_of(trial, patient)
    label, _ = draw_case(trial, index)
    views = make_views(trial, index)
    images: list[RenderedView] = []
    for position, view in zip(POSITIONS, views, strict=True):
        rng = generator(trial, index, NOISE, POSITIONS.index(position))
        images += _images(view, system, laterality, rng)
    anatomy = views[0].form.anatomy
    return RenderedBreast(
        patient=f"V{trial.seed}-{patient:05d}",
        exam=f"V{trial.seed}-S{patient:05d}",
        laterality=laterality,
        label=label,
        attributes={
            "density": anatomy.density_class,
            "volumetric_density": f"{anatomy.density:.3f}",
            "thickness_mm": f"{anatomy.thickness:.0f}",
            "vendor": system.name,
        },
        system=system,
        thickness_mm=anatomy.thickness,
        views=tuple(images),
    )


def system_of(trial: Trial, patient: int) -> System:
    if trial.system != "mixed":
        return SYSTEMS[trial.system]
    names = tuple(SYSTEMS)
    return SYSTEMS[names[generator(trial, patient, PATIENT, 1).integers(len(names))]]


def draw_case(trial: Trial, index: int) -> tuple[Label, tuple[Lesion, ...]]:
    """A breast's label and its findings."""
    rng = generator(trial, index, CASE)
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


def make_views(trial: Trial, index: int) -> tuple[BreastView, BreastView]:
    """The breast between the plates of CC and of MLO."""
    scale = SCALES[trial.scale]
    anatomy = draw_anatomy(generator(trial, index // 2, PATIENT), generator(trial, index, ANATOMY))
    latent = draw_latent(generator(trial, index, LATENT), scale.latent)
    forms = [form(anatomy, position, scale) for position in POSITIONS]
    volumes = [attenuation(view, latent, generator(trial, index, DETAIL, number)) for number, view in enumerate(forms)]
    seen: list[list[Seen]] = [[], []]
    rng = generator(trial, index, PLACES)
    taken: list[tuple[float, float, float]] = []
    for lesion in draw_case(trial, index)[1]:
        place = _place(rng, lesion, forms, volumes, taken)
        taken.append(place)
        for number, (view, volume) in enumerate(zip(forms, volumes, strict=True)):
            if view.position in lesion.views:
                there = view.compressed(*place)
                change = insert(volume, view, lesion, there)
                seen[number].append(Seen(lesion, change, anatomy.depth - there[0]))
    cc, mlo = (BreastView(f, v, tuple(s)) for f, v, s in zip(forms, volumes, seen, strict=True))
    return cc, mlo


CANDIDATES, TRIES = 10, 400


def _place(
    rng: np.random.Generator,
    lesion: Lesion,
    forms: list[Form],
    volumes: list[Array],
    taken: list[tuple[float, float, float]],
) -> tuple[float, float, float]:
    """u, s, t of a lesion: inside the breast in both views, apart from others, and rather in gland than in fat."""
    cc, anatomy = forms[0], forms[0].anatomy
    found, weights = [], []
    for attempt in range(TRIES):
        ease = 1 - attempt / TRIES  # a large lesion in a small breast may have to lie near the skin
        x = rng.uniform(0.08, 0.9) * anatomy.depth
        y = rng.uniform(-0.45, 0.45) * anatomy.length
        z = rng.uniform(-0.45, 0.45) * anatomy.thickness
        u, s, t = cc.latent(x, y, z)
        places = [view.compressed(u, s, t) for view in forms]
        room = [_room(view, place) for view, place in zip(forms, places, strict=True)]
        if min(room) < ease * (0.35 * lesion.size + 2) or any(
            np.linalg.norm(np.subtract((u, s, t), other)) < 0.6 * lesion.size + 8 for other in taken
        ):
            continue
        found.append((u, s, t))
        gland = [_mean_gland(v, view, place) for v, view, place in zip(volumes, forms, places, strict=True)]
        weights.append(0.1 + np.mean(gland))
        if len(found) == CANDIDATES:
            break
    if not found:  # the middle of a very small breast: better there than not at all
        return (anatomy.depth / 3, 0.0, 0.0)
    return found[rng.choice(len(found), p=np.array(weights) / np.sum(weights))]


def _room(view: Form, place: tuple[float, float, float]) -> float:
    """mm from a place to the nearest surface; plates count half, since a lesion may fill the thickness."""
    x, y, z = place
    grid = view.grid
    if not (grid.y[0] < y < grid.y[-1] and 4 < x < grid.x[-1]):
        return -1.0
    row, column = np.searchsorted(grid.y, y), np.searchsorted(grid.x, x)
    in_plane = float(view.inside[row, column])
    return min(in_plane, 2 * (view.anatomy.thickness / 2 - view.anatomy.skin - abs(z)), 2.5 * x)


def _mean_gland(volume: Array, view: Form, place: tuple[float, float, float]) -> float:
    """The share of gland around a place."""
    where, _ = view.grid.around(place, 6.0)
    return float(np.clip((volume[where].mean() - FAT) / (GLAND - FAT), 0, 1))


def _images(
    view: BreastView, system: System, laterality: Laterality, rng: np.random.Generator
) -> tuple[RenderedView, RenderedView]:
    """The mammogram and the tomosynthesis volume of a view."""
    scale, grid = view.form.scale, view.form.grid
    around = beside(view.form)
    flat = mammogram(view.volume, around, scale.pixel, scale.slice, rng)
    tomosynthesis = Tomosynthesis(system, grid.z, len(grid.y), scale.pixel)
    slices = tomosynthesis.image(view.volume, around, rng)
    boxes = [signal_box(seen.change, view.form) for seen in view.seen]
    spectrum = Spectrum(slices[:: max(1, len(slices) // 8)], view.form.inside > 5, scale.pixel) if boxes else None
    flat_findings, deep_findings = [], []
    for seen, box in zip(view.seen, boxes, strict=True):
        if box is None or spectrum is None:
            continue
        signal = reconstructed_signal(seen.change, tomosynthesis, grid.shape)
        best, first, last = visible_range(detectability(signal, spectrum))
        kind = seen.lesion.kind
        where = _stored(box, laterality, scale)
        flat_findings.append(Annotation(where, kind.malignant, kind=kind.name))
        deep_findings.append(Annotation(where, kind.malignant, best, first, last, kind.name))

    def image(pixels: NDArray[np.uint16], deep: bool) -> RenderedView:
        return RenderedView(
            laterality=laterality,
            position=view.form.position,
            modality="DBT" if deep else "FFDM",
            pixels=_on_detector(pixels, view.form, laterality),
            bits=SLICE_BITS if deep else MAMMOGRAM_BITS,
            findings=tuple(deep_findings if deep else flat_findings),
            pixel_spacing=scale.pixel,
            slice_spacing=scale.slice if deep else None,
        )

    return (
        image(present_mammogram(flat, view.form)[None], False),
        image(present_slices(slices, view.form), True),
    )


def _on_detector(pixels: NDArray[np.uint16], view: Form, laterality: Laterality) -> NDArray[np.uint16]:
    """The breast's part in the whole field, chest wall left for a left breast."""
    rows, columns = view.scale.shape
    whole = np.zeros((len(pixels), rows, columns), np.uint16)
    whole[:, view.top : view.top + pixels.shape[1], : pixels.shape[2]] = pixels
    return whole if laterality == "L" else np.ascontiguousarray(whole[:, :, ::-1])


def _stored(box: tuple[int, int, int, int], laterality: Laterality, scale: Scale) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = (float(value) for value in box)
    columns = scale.shape[1]
    return (x1, y1, x2, y2) if laterality == "L" else (columns - x2, y1, columns - x1, y2)
