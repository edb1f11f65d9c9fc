"""`mm3d phantom --audit`: is the phantom any good? Our figures beside the published ones, with a gate for each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mm3d.phantom.anatomy import draw_anatomy
from mm3d.phantom.display import present_mammogram, present_slices
from mm3d.phantom.imaging import Tomosynthesis, mammogram
from mm3d.phantom.lesions import KINDS
from mm3d.phantom.realism import area_under_curve, gain_in_auc, kurtosis, power_law_exponent
from mm3d.phantom.scale import SCALES
from mm3d.phantom.tissue import beside, muscle_depth
from mm3d.phantom.trial import ANATOMY, NOISE, PATIENT, BreastView, Trial, generator, make_views, system_of
from mm3d.phantom.truth import Spectrum, detectability, reconstructed_signal, signal_box, visible_range

KURTOSIS_SIZES = (0.5, 1.0, 2.0, 4.0)  # mm
LARGE = 1.0  # mm: with larger pixels nothing is left of the band in which β is measured
FINE = 0.25  # mm: structures of half a millimetre need pixels no larger than this
QUANTILES = (5, 25, 50, 75, 95)
BOX_SIDES = (9.1, 13.9, 22.4, 32.1, 50.1)  # mm, of cancers in BCS-DBT: 83/126/204/292/455 pixels of 0.11 mm
# Slices of 16 that show a finding, at 15 degrees. How far a speck is seen depends on the pixels.
VISIBLE = {
    "spiculated mass": (4.0, 10.0, "5-10"),
    "irregular mass": (4.0, 10.0, "5-10"),
    "calcification cluster": (1.0, 4.0, "about 2"),
}
ENOUGH, MANY = 12, 60  # lesions for a mean, and boxes for quantiles, that mean something
MASSES, CLUSTER = ("spiculated mass", "irregular mass"), "calcification cluster"
WOMEN = 4000  # drawn for the distributions of density and thickness: no image is made of them
OFF = 10.0  # mm: how far from its slice a finding is looked for again


@dataclass(frozen=True)
class SeenLesion:
    """What is measured of a lesion in a view."""

    kind: str
    side: float  # mm, geometric mean of its box
    flat: float  # d' in the mammogram
    deep: float  # d' in its best slice
    off: float  # share of d' that is left OFF mm away
    visible: float  # visible slices, of 16


@dataclass(frozen=True)
class Measured:
    """What is measured of a view."""

    position: str
    beta_flat: float
    beta_deep: float
    kurtosis: tuple[float, ...]
    lesions: tuple[SeenLesion, ...]


@dataclass(frozen=True)
class Row:
    """A line of the table. Without limits, or with a note on why not, it is shown and not judged."""

    measure: str
    ours: float
    count: int  # views, lesions, boxes or women that it is of
    published: str = ""
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        if self.note or (self.low is None and self.high is None):
            return None
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        return bool(low <= self.ours <= high)


def measure_breast(trial: Trial, index: int) -> tuple[Measured, ...]:
    """Both views of a breast."""
    system = system_of(trial, index // 2)
    return tuple(
        _measure_view(view, Tomosynthesis(system, view.form.grid.z, len(view.form.grid.y), view.form.scale.pixel), rng)
        for number, view in enumerate(make_views(trial, index))
        for rng in (generator(trial, index, NOISE, number),)
    )


def _measure_view(view: BreastView, tomosynthesis: Tomosynthesis, rng: np.random.Generator) -> Measured:
    form, scale = view.form, view.form.scale
    around = beside(form)
    flat = mammogram(view.volume, around, scale.pixel, scale.slice, rng)
    deep = tomosynthesis.image(view.volume, around, rng)
    breast, centre = form.inside > 0, form.inside > 5
    if form.position == "MLO":  # spectra are those of glandular tissue and fat
        centre &= muscle_depth(form) < -3
    middle = slice(len(deep) // 4, 3 * len(deep) // 4, max(1, len(deep) // 8))
    shown = present_slices(deep, form)[middle]
    flat_spectrum = Spectrum(flat[None], centre, scale.pixel)
    deep_spectrum = Spectrum(deep[middle], centre, scale.pixel)
    lesions = []
    for seen in view.seen:
        box = signal_box(seen.change, form)
        if box is None or not flat_spectrum.count:
            continue
        signal = reconstructed_signal(seen.change, tomosynthesis, form.grid.shape)
        d = detectability(signal, deep_spectrum)
        best, first, last = visible_range(d)
        away = [z for z in (best - round(OFF / scale.slice), best + round(OFF / scale.slice)) if 0 <= z < len(d)]
        shadow = seen.change.added.sum(axis=0, keepdims=True) * scale.slice
        lesions.append(
            SeenLesion(
                kind=seen.lesion.kind.name,
                side=float(np.sqrt((box[2] - box[0]) * (box[3] - box[1])) * scale.pixel),
                flat=float(detectability(shadow, flat_spectrum)[0]),
                deep=float(d[best]),
                off=float(np.mean(d[away]) / d[best]) if away else float("nan"),
                visible=(last - first + 1) * 16 / len(d),
            )
        )
    return Measured(
        position=form.position,
        beta_flat=power_law_exponent(present_mammogram(flat, form)[None], centre, scale.pixel),
        beta_deep=power_law_exponent(shown, centre, scale.pixel),
        kurtosis=tuple(
            float(np.mean([kurtosis(p, breast, scale.pixel, size) for p in shown])) for size in KURTOSIS_SIZES
        ),
        lesions=tuple(lesions),
    )


def table(trial: Trial, views: Sequence[Measured]) -> list[Row]:
    """The realism table of a trial's measured views."""
    pixel = SCALES[trial.scale].pixel
    lesions = [lesion for view in views for lesion in view.lesions]
    return [*_textures(views, pixel), *_contrasts(lesions), *_depths(lesions, pixel), *_boxes(lesions), *_women(trial)]


def _coarse(pixel: float, limit: float) -> str:
    return "" if pixel <= limit else f"not judged: pixels of {pixel} mm are too coarse"


def _few(count: int, enough: int) -> str:
    return "" if count >= enough else f"not judged: fewer than {enough}"


def _textures(views: Sequence[Measured], pixel: float) -> list[Row]:
    note, n = _coarse(pixel, LARGE), len(views)
    by_position = {p: [v.beta_flat for v in views if v.position == p] for p in ("CC", "MLO")}
    rows = [
        Row("β, mammogram", _mean(v.beta_flat for v in views), n, "2.8-3.06", 2.9, 3.4, note),
        Row("β, mammogram, CC", _mean(by_position["CC"]), len(by_position["CC"]), "3.17"),
        Row("β, mammogram, MLO", _mean(by_position["MLO"]), len(by_position["MLO"]), "3.30"),
        Row("β, slice", _mean(v.beta_deep for v in views), n, "2.88 ± 0.40", 2.6, 3.3, note),
    ]
    for number, (size, real) in enumerate(zip(KURTOSIS_SIZES, (2.4, 2.5, 2.1, 1.6), strict=True)):
        value = _mean(v.kurtosis[number] for v in views)
        least, note = (1.4, _coarse(pixel, FINE)) if size <= 1 else (None, "")
        rows.append(Row(f"kurtosis at {size:g} mm", value, n, f"{real}", least, None, note))
    return rows


def _contrasts(lesions: Sequence[SeenLesion]) -> list[Row]:
    """How much better a slice shows a lesion than the mammogram does."""
    rows = []
    if masses := [lesion for lesion in lesions if lesion.kind in MASSES]:
        flat, deep, n = np.array([m.flat for m in masses]), np.array([m.deep for m in masses]), len(masses)
        ratio, reader = float(np.median(deep / flat)), gain_in_auc(flat, deep)
        rows.append(Row("d' of masses, slice / mammogram", ratio, n, "", 1.3, 2.0, _few(n, ENOUGH)))
        rows.append(Row("gain in AUC of a reader, masses", reader, n, "0.065 readers, 0.090 VICTRE"))
    if clusters := [lesion for lesion in lesions if lesion.kind == CLUSTER]:
        flat, deep, n = np.array([c.flat for c in clusters]), np.array([c.deep for c in clusters]), len(clusters)
        ideal = float((area_under_curve(deep) - area_under_curve(flat)).mean())
        rows.append(Row("d' of calcifications, slice / mammogram", float(np.median(deep / flat)), n))
        rows.append(Row("gain in AUC, calcifications", ideal, n, "0.027 VICTRE", -0.05, 0.05, _few(n, ENOUGH)))
        rows.append(Row("gain in AUC of a reader, calcifications", gain_in_auc(flat, deep), n, "0.027 VICTRE"))
    return rows


def _depths(lesions: Sequence[SeenLesion], pixel: float) -> list[Row]:
    """In how many slices a lesion is seen, and what is left of it away from its own."""
    rows = []
    for kind in KINDS:
        if these := [lesion for lesion in lesions if lesion.kind == kind]:
            low, high, told = VISIBLE.get(kind, (None, None, ""))
            note = _coarse(pixel, FINE) if kind == CLUSTER else ""
            note = note or (_few(len(these), ENOUGH) if told else "")
            mean = _mean(x.visible for x in these)
            rows.append(Row(f"visible of 16, {kind}", mean, len(these), told, low, high, note))
    for name, kinds in (("masses", MASSES), ("calcifications", (CLUSTER,))):
        if chosen := [x.off for x in lesions if x.kind in kinds]:
            rows.append(Row(f"d' left {OFF:g} mm off, {name}", _mean(chosen), len(chosen)))
    return rows


def _boxes(lesions: Sequence[SeenLesion]) -> list[Row]:
    sides = [x.side for x in lesions if KINDS[x.kind].malignant]
    note = _few(len(sides), MANY)
    return [
        Row(
            f"cancer box side, {q}%, mm",
            float(np.percentile(sides, q)),
            len(sides),
            f"{real}",
            0.75 * real,
            1.25 * real,
            note,
        )
        for q, real in zip(QUANTILES, BOX_SIDES, strict=True)
        if sides
    ]


def _women(trial: Trial) -> list[Row]:
    """What anatomies are drawn from, whichever are in the trial."""
    drawn = [draw_anatomy(generator(trial, n, PATIENT), generator(trial, 2 * n, ANATOMY)) for n in range(WOMEN)]
    density, thickness = np.array([a.density for a in drawn]), np.array([a.thickness for a in drawn])
    return [
        Row("density drawn, mean", float(density.mean()), WOMEN, "0.19", 0.17, 0.21),
        Row("density drawn, 80%", float(np.quantile(density, 0.8)), WOMEN, "0.27", 0.24, 0.30),
        Row("density drawn, 95%", float(np.quantile(density, 0.95)), WOMEN, "0.45", 0.40, 0.50),
        Row("thickness drawn, mean, mm", float(thickness.mean()), WOMEN, "59", 56, 62),
        Row("thickness drawn, spread, mm", float(thickness.std()), WOMEN, "16", 14, 18),
    ]


def _mean(values: Iterable[float]) -> float:
    array: NDArray[np.float64] = np.array(list(values), float)
    return float(np.nanmean(array)) if np.isfinite(array).any() else float("nan")
