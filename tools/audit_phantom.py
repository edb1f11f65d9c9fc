"""Is the virtual trial realistic? Measure its breasts and compare them with published figures.

    python tools/audit_phantom.py OUT --breasts 100 --scale mini

prints a table and writes OUT/audit.json and OUT/montage.png. A figure passes if it lies within its gate. The exit code
is 1 if a figure fails. Breasts are made in memory; no DICOM file is written. With --anatomy FILE.mhd, it measures that
breast of VICTRE instead, and makes no montage.
"""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.table import Table
from scipy import ndimage, special

from mm3d.data.records import Annotation
from mm3d.phantom.anatomy import SCALES, draw_anatomy
from mm3d.phantom.annotations import Spectrum, detectability, find_box, find_visible_slices
from mm3d.phantom.imaging import SyntheticView, Tomosynthesis, reconstruct_lesion, take_mammogram
from mm3d.phantom.lesions import KINDS
from mm3d.phantom.processing import process_mammogram, process_slices
from mm3d.phantom.tissue import muscle_distance
from mm3d.phantom.trial import (
    ANATOMY,
    NOISE,
    PATIENT,
    Phantom,
    Trial,
    choose_system,
    draw_case,
    make_generator,
    make_phantoms,
    render_breast,
)
from mm3d.phantom.victre import LabelVolume, VictreTrial, make_victre_phantom, read_victre
from mm3d.shared.config import to_dict
from mm3d.shared.console import Console, show_progress
from mm3d.shared.errors import InputError

Pixels = NDArray[np.floating] | NDArray[np.integer]
Mask = NDArray[np.bool_]

# Sources of the published figures:
# β of mammograms: Chen et al. 2012 (Med Phys 39:1435), CC 3.17 and MLO 3.30; Chen et al. 2011 (Proc SPIE 7961), 3.06;
# Burgess et al. 2001 (Med Phys 28:419), 2.8. Gain by tomosynthesis: VICTRE, Badano et al. 2018 (JAMA Netw Open
# 1:e185474). Density and thickness: Yaffe et al. 2009 (Med Phys 36:5437). We measured β and kurtosis of slices and the
# boxes of cancers on 386 slices of BCS-DBT, Buda et al. 2021 (JAMA Netw Open 4:e2119100).
KURTOSIS = {0.5: 2.4, 1.0: 2.5, 2.0: 2.1, 4.0: 1.6}  # of real slices, by the size of structures in mm
BOX_SIDES = {5: 9.1, 25: 13.9, 50: 22.4, 75: 32.1, 95: 50.1}  # mm, of cancers, by percentile
# Slices of 16 that show a lesion at 15 degrees: lowest and highest mean that pass, and what is expected.
VISIBLE = {
    "spiculated mass": (4.0, 10.0, "5-10"),
    "irregular mass": (4.0, 10.0, "5-10"),
    "calcification cluster": (1.0, 4.0, "about 2"),
}
MASSES, CLUSTER = ("spiculated mass", "irregular mass"), "calcification cluster"
LARGE_PIXEL = 1.0  # mm: with larger pixels nothing is left of the frequencies in which β is measured
FINE_PIXEL = 0.25  # mm: structures of half a millimetre need pixels no larger than this
ENOUGH_LESIONS, ENOUGH_BOXES = 12, 60  # for a mean, and for percentiles
WOMEN = 4000  # anatomies drawn to measure density and thickness
OFF = 10.0  # mm from its most visible slice, where a lesion is measured again

BAND = (0.15, 0.7)  # 1/mm, where the power law is fitted, if the pixels are fine enough
BELOW_SKIN = 10.0  # mm: kurtosis is measured deeper than this
TAILS = 0.005  # share of the values on either side that is cut, so that clips and specks do not count


# ---- measures of images, synthetic or real ---------------------------------------------------------------------------


def power_law_exponent(planes: Pixels, breast: Mask, pixel: float) -> float:
    """β of images (n, y, x): their power falls as f^-β. NaN if the breast is too small or the pixels too coarse."""
    spectrum = Spectrum(planes.astype(np.float32), breast, pixel)
    chosen = (spectrum.frequency >= BAND[0]) & (spectrum.frequency <= min(BAND[1], 0.4 / pixel))
    if not spectrum.count or chosen.sum() < 2:
        return float("nan")
    return float(-np.polyfit(np.log(spectrum.frequency[chosen]), np.log(spectrum.power[chosen]), 1)[0])


def kurtosis(plane: Pixels, breast: Mask, pixel: float, size: float) -> float:
    """Excess kurtosis of an image (y, x) after a difference of Gaussians of `size` and 1.6 `size` mm.

    It is 0 for clouds, and large where there are strands and borders.
    """
    plane = plane.astype(np.float32)
    band = ndimage.gaussian_filter(plane, size / pixel) - ndimage.gaussian_filter(plane, 1.6 * size / pixel)
    inside = ndimage.distance_transform_edt(np.pad(breast, 1, mode="edge"))[1:-1, 1:-1] * pixel > BELOW_SKIN
    values = np.clip(band[inside], *np.quantile(band[inside], (TAILS, 1 - TAILS)))
    values = values - values.mean()
    return float((values**4).mean() / (values**2).mean() ** 2 - 3)


def area_under_curve(d: NDArray[np.floating]) -> NDArray[np.float64]:
    """AUC of an observer with this d'."""
    return special.ndtr(np.asarray(d, float) / np.sqrt(2))


def gain_in_auc(ffdm: NDArray[np.floating], dbt: NDArray[np.floating], reader: float = 0.85) -> float:
    """How much larger the mean AUC is in tomosynthesis, for an observer whose mean AUC on mammograms is `reader`.

    The ideal observer's d' is far above any reader's, so both are scaled by the one efficiency that gives that AUC.
    """
    low, high = 0.0, 10.0
    for _ in range(60):
        efficiency = (low + high) / 2
        if area_under_curve(efficiency * ffdm).mean() < reader:
            low = efficiency
        else:
            high = efficiency
    return float(area_under_curve(low * dbt).mean() - area_under_curve(low * ffdm).mean())


# ---- a breast --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LesionMeasures:
    """What is measured of a lesion in a view."""

    kind: str
    side: float  # mm, geometric mean of its box
    ffdm: float  # d' in the mammogram
    dbt: float  # d' in its most visible slice
    off: float  # share of that d' which is left OFF mm away
    visible: float  # visible slices, of 16


@dataclass(frozen=True)
class ViewMeasures:
    """What is measured of a view."""

    position: str
    beta_ffdm: float
    beta_dbt: float
    kurtosis: tuple[float, ...]  # at the sizes of KURTOSIS
    lesions: tuple[LesionMeasures, ...]


def measure_breast(trial: Trial, index: int) -> list[ViewMeasures]:
    """CC and MLO of a breast."""
    system = choose_system(trial, index // 2)
    measures = []
    for number, phantom in enumerate(make_phantoms(trial, index)):
        grid = phantom.breast.grid
        tomosynthesis = Tomosynthesis(system, grid.z, len(grid.y), phantom.breast.scale.pixel)
        measures.append(_measure_view(phantom, tomosynthesis, make_generator(trial, index, NOISE, number)))
    return measures


def measure_victre(trial: VictreTrial, volume: LabelVolume) -> ViewMeasures:
    """The view of a breast of VICTRE."""
    phantom = make_victre_phantom(volume, trial)
    grid = phantom.breast.grid
    tomosynthesis = Tomosynthesis(choose_system(trial, 0), grid.z, len(grid.y), phantom.breast.scale.pixel)
    return _measure_view(phantom, tomosynthesis, make_generator(trial, 0, NOISE, 0))


def _measure_view(phantom: Phantom, tomosynthesis: Tomosynthesis, rng: np.random.Generator) -> ViewMeasures:
    breast, scale = phantom.breast, phantom.breast.scale
    fat = phantom.surrounding_fat()
    mammogram = take_mammogram(phantom.volume, fat, scale.pixel, scale.slice, rng)
    projections = tomosynthesis.take_projections(phantom.volume, phantom.lesions, fat, rng)
    slices = tomosynthesis.make_slices(projections, phantom.lesions)
    whole, centre = breast.inside > 0, breast.inside > 5
    if breast.position == "MLO" and phantom.air is None:  # the spectra are those of gland and fat, without the muscle
        centre &= muscle_distance(breast) < -3
    middle = slice(len(slices) // 4, 3 * len(slices) // 4, max(1, len(slices) // 8))
    grey = process_slices(slices, breast, tomosynthesis.system.name)[middle]
    shown = process_mammogram(mammogram, breast, tomosynthesis.system.name)
    ffdm_spectrum = Spectrum(mammogram[None], centre, scale.pixel)
    dbt_spectrum = Spectrum(slices[middle], centre, scale.pixel)
    lesions = []
    for insertion in phantom.lesions:
        box = find_box(insertion, breast)
        if box is None or not ffdm_spectrum.count:
            continue
        d = detectability(reconstruct_lesion(insertion, tomosynthesis, breast.grid.shape), dbt_spectrum)
        best, first, last = find_visible_slices(d)
        away = [z for z in (best - round(OFF / scale.slice), best + round(OFF / scale.slice)) if 0 <= z < len(d)]
        shadow = insertion.added.sum(axis=0, keepdims=True) * scale.slice
        lesions.append(
            LesionMeasures(
                kind=insertion.lesion.kind.name,
                side=float(np.sqrt((box[2] - box[0]) * (box[3] - box[1])) * scale.pixel),
                ffdm=float(detectability(shadow, ffdm_spectrum)[0]),
                dbt=float(d[best]),
                off=float(np.mean(d[away]) / d[best]) if away else float("nan"),
                visible=(last - first + 1) * 16 / len(d),
            )
        )
    return ViewMeasures(
        position=breast.position,
        beta_ffdm=power_law_exponent(shown[None], centre, scale.pixel),
        beta_dbt=power_law_exponent(grey, centre, scale.pixel),
        kurtosis=tuple(float(np.mean([kurtosis(p, whole, scale.pixel, size) for p in grey])) for size in KURTOSIS),
        lesions=tuple(lesions),
    )


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A line of the table. Without a gate, or with a note on why it is not judged, it is only shown."""

    measure: str
    ours: float
    count: int  # views, lesions, boxes or women that were measured
    published: str = ""
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        if self.note or (self.low is None and self.high is None):
            return None
        return (self.low is None or self.ours >= self.low) and (self.high is None or self.ours <= self.high)

    @property
    def gate(self) -> str:
        if self.passed is None:
            return ""
        return f"at least {self.low:g}" if self.high is None else f"{self.low:.3g} to {self.high:.3g}"


def make_table(trial: Trial, views: Sequence[ViewMeasures]) -> list[Row]:
    pixel = SCALES[trial.scale].pixel
    lesions = [lesion for view in views for lesion in view.lesions]
    return [
        *_texture_rows(views, pixel),
        *_contrast_rows(lesions),
        *_visibility_rows(lesions, pixel),
        *_box_rows(lesions),
        *([] if isinstance(trial, VictreTrial) else _women_rows(trial)),
    ]


def _too_coarse(pixel: float, limit: float) -> str:
    return "" if pixel <= limit else f"not judged: pixels of {pixel} mm are too coarse"


def _too_few(count: int, enough: int) -> str:
    return "" if count >= enough else f"not judged: fewer than {enough}"


def _texture_rows(views: Sequence[ViewMeasures], pixel: float) -> list[Row]:
    note, n = _too_coarse(pixel, LARGE_PIXEL), len(views)
    cc, mlo = ([view.beta_ffdm for view in views if view.position == position] for position in ("CC", "MLO"))
    rows = [
        Row("β, mammogram", _mean(view.beta_ffdm for view in views), n, "2.8-3.06", 2.9, 3.4, note),
        *([Row("β, mammogram, CC", _mean(cc), len(cc), "3.17")] if cc else []),
        *([Row("β, mammogram, MLO", _mean(mlo), len(mlo), "3.30")] if mlo else []),
        Row("β, slice", _mean(view.beta_dbt for view in views), n, "2.88 ± 0.40", 2.6, 3.3, note),
    ]
    for number, (size, real) in enumerate(KURTOSIS.items()):
        least, note = (1.4, _too_coarse(pixel, FINE_PIXEL)) if size <= 1 else (None, "")
        ours = _mean(view.kurtosis[number] for view in views)
        rows.append(Row(f"kurtosis at {size:g} mm", ours, n, f"{real}", least, None, note))
    return rows


def _contrast_rows(lesions: Sequence[LesionMeasures]) -> list[Row]:
    """How much better a slice shows a lesion than the mammogram does."""
    rows = []
    if masses := [lesion for lesion in lesions if lesion.kind in MASSES]:
        ffdm, dbt, n = np.array([x.ffdm for x in masses]), np.array([x.dbt for x in masses]), len(masses)
        ratio, gain = float(np.median(dbt / ffdm)), gain_in_auc(ffdm, dbt)
        rows.append(Row("d' of masses, slice / mammogram", ratio, n, "", 1.3, 2.0, _too_few(n, ENOUGH_LESIONS)))
        rows.append(Row("gain in AUC of a reader, masses", gain, n, "0.065 readers, 0.090 VICTRE"))
    if clusters := [lesion for lesion in lesions if lesion.kind == CLUSTER]:
        ffdm, dbt, n = np.array([x.ffdm for x in clusters]), np.array([x.dbt for x in clusters]), len(clusters)
        ideal = float((area_under_curve(dbt) - area_under_curve(ffdm)).mean())
        note = _too_few(n, ENOUGH_LESIONS)
        rows.append(Row("d' of calcifications, slice / mammogram", float(np.median(dbt / ffdm)), n))
        rows.append(Row("gain in AUC, calcifications", ideal, n, "0.027 VICTRE", -0.05, 0.05, note))
        rows.append(Row("gain in AUC of a reader, calcifications", gain_in_auc(ffdm, dbt), n, "0.027 VICTRE"))
    return rows


def _visibility_rows(lesions: Sequence[LesionMeasures], pixel: float) -> list[Row]:
    """In how many slices a lesion is visible, and what is left of it away from its own."""
    rows = []
    for kind in KINDS:
        if visible := [lesion.visible for lesion in lesions if lesion.kind == kind]:
            n = len(visible)
            low, high, expected = VISIBLE.get(kind, (None, None, ""))
            note = _too_coarse(pixel, FINE_PIXEL) if kind == CLUSTER else ""  # how far a speck is seen
            note = note or (_too_few(n, ENOUGH_LESIONS) if expected else "")
            rows.append(Row(f"visible of 16, {kind}", _mean(visible), n, expected, low, high, note))
    for name, kinds in (("masses", MASSES), ("calcifications", (CLUSTER,))):
        if off := [lesion.off for lesion in lesions if lesion.kind in kinds]:
            rows.append(Row(f"d' left {OFF:g} mm off, {name}", _mean(off), len(off)))
    return rows


def _box_rows(lesions: Sequence[LesionMeasures]) -> list[Row]:
    sides = [lesion.side for lesion in lesions if KINDS[lesion.kind].malignant]
    n, note = len(sides), _too_few(len(sides), ENOUGH_BOXES)
    return [
        Row(f"cancer box side, {q}%, mm", float(np.percentile(sides, q)), n, f"{real}", 0.75 * real, 1.25 * real, note)
        for q, real in BOX_SIDES.items()
        if sides
    ]


def _women_rows(trial: Trial) -> list[Row]:
    """The distributions that all anatomies are drawn from."""
    drawn = [
        draw_anatomy(make_generator(trial, n, PATIENT), make_generator(trial, 2 * n, ANATOMY)) for n in range(WOMEN)
    ]
    density, thickness = np.array([a.density for a in drawn]), np.array([a.thickness for a in drawn])
    return [
        Row("density drawn, mean", float(density.mean()), WOMEN, "0.19", 0.17, 0.21),
        Row("density drawn, 80%", float(np.quantile(density, 0.8)), WOMEN, "0.27", 0.24, 0.30),
        Row("density drawn, 95%", float(np.quantile(density, 0.95)), WOMEN, "0.45", 0.40, 0.50),
        Row("thickness drawn, mean, mm", float(thickness.mean()), WOMEN, "59", 56, 62),
        Row("thickness drawn, spread, mm", float(thickness.std()), WOMEN, "16", 14, 18),
    ]


def _mean(values: Iterable[float]) -> float:
    array = np.array(list(values), float)
    return float(np.nanmean(array)) if np.isfinite(array).any() else float("nan")


# ---- the montage -----------------------------------------------------------------------------------------------------

WINDOW = 64.0  # mm of breast around a lesion
HEIGHT, GAP, CAPTION = 220, 4, 16  # pixels of the montage
COLUMNS = ("mammogram", "most visible slice", f"{OFF:g} mm beside it", "maximum of all slices")
MALIGNANT, BENIGN, GREY = (255, 96, 64), (96, 200, 120), (200, 200, 200)


def make_montage(trial: Trial, most: int = 6) -> Image.Image:
    """A row for the trial's first lesion of each kind: the whole view, then the lesion enlarged."""
    first: dict[str, int] = {}
    for index in range(trial.breasts):
        for lesion in draw_case(trial, index)[1]:
            first.setdefault(lesion.kind.name, index)
    kinds = [kind for kind in KINDS if kind in first]  # malignant kinds come first
    rows = [row for kind in kinds[:most] if (row := _find_row(trial, first[kind], kind))]
    width = max((row.width for row in rows), default=4 * HEIGHT)
    montage = Image.new("RGB", (width, CAPTION + sum(row.height + GAP for row in rows)))
    top = CAPTION
    for row in rows:
        montage.paste(row, (0, top))
        top += row.height + GAP
    return montage


def _find_row(trial: Trial, index: int, kind: str) -> Image.Image | None:
    breast, images = render_breast(trial, index)
    for ffdm, dbt in zip(images[::2], images[1::2], strict=True):  # CC and MLO
        for annotation in dbt.view.annotations or ():
            if annotation.kind == kind:
                caption = f"{kind}, density {breast.attributes['density']}, {dbt.view.laterality}{dbt.view.position}"
                return _draw_row(ffdm, dbt, annotation, caption)
    return None


def _draw_row(ffdm: SyntheticView, dbt: SyntheticView, annotation: Annotation, caption: str) -> Image.Image:
    best, off = annotation.slice or 0, round(OFF / (dbt.slice_spacing or 1.0))
    beside = best + off if best + off < len(dbt.pixels) else max(0, best - off)
    slices = dbt.pixels / (2**dbt.bits - 1)
    pictures = [ffdm.pixels[0] / (2**ffdm.bits - 1), slices[best], slices[beside], slices.max(axis=0)]
    spacing = dbt.pixel_spacing
    tiles = [_draw_tile(picture, annotation, spacing, enlarged) for enlarged in (False, True) for picture in pictures]
    row = Image.new("RGB", (sum(tile.width + GAP for tile in tiles), HEIGHT + CAPTION))
    left = 0
    for tile, name in zip(tiles, COLUMNS * 2, strict=True):
        row.paste(tile, (left, CAPTION))
        ImageDraw.Draw(row).text((left + 2, 2), name, fill=GREY, font=ImageFont.load_default(10))
        left += tile.width + GAP
    visible = f"visible {(annotation.first_slice or 0) + 1}-{(annotation.last_slice or 0) + 1}"
    text = f"{caption}, slice {best + 1} of {len(slices)}, {visible}"
    ImageDraw.Draw(row).text((4, HEIGHT + CAPTION - 14), text, fill=GREY, font=ImageFont.load_default(11))
    return row


def _draw_tile(picture: NDArray[np.floating], annotation: Annotation, spacing: float, enlarged: bool) -> Image.Image:
    """A picture HEIGHT pixels high: the whole view with the box, or the surroundings of the lesion."""
    rows, columns = picture.shape
    x1, y1, x2, y2 = annotation.box
    crop = (0, 0, columns, rows)
    if enlarged:
        half = max(WINDOW / spacing, 1.3 * (x2 - x1), 1.3 * (y2 - y1)) / 2
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        crop = (round(x - half), round(y - half), round(x + half), round(y + half))
    whole = Image.fromarray(np.rint(picture * 255).astype(np.uint8)).crop(crop)
    scale = HEIGHT / whole.height
    tile = whole.resize((max(1, round(whole.width * scale)), HEIGHT), Image.Resampling.BICUBIC).convert("RGB")
    if not enlarged:
        corners = [value * scale for value in annotation.box]
        ImageDraw.Draw(tile).rectangle(corners, outline=MALIGNANT if annotation.malignant else BENIGN)
    return tile


# ---- the command -----------------------------------------------------------------------------------------------------


def audit(trial: Trial, output: Path, jobs: int | None, volume: LabelVolume | None = None) -> int:
    """Measure a trial, print the table, and write audit.json and montage.png. Returns 1 if a gate fails."""
    console = Console()
    output.mkdir(parents=True, exist_ok=True)
    if isinstance(trial, VictreTrial) and volume:
        views = [measure_victre(trial, volume)]
    else:
        views = _measure_trial(trial, jobs, console)
        make_montage(trial).save(output / "montage.png", optimize=True)
    rows = make_table(trial, views)
    content = {"trial": to_dict(trial), "rows": [to_dict(row) | {"passed": row.passed} for row in rows]}
    (output / "audit.json").write_text(json.dumps(content, indent=1))
    table = Table(title=f"{trial.breasts} breasts, scale {trial.scale}, {trial.system}, seed {trial.seed}")
    for name in ("measure", "ours", "of", "published", "gate", "verdict"):
        table.add_column(name, no_wrap=name == "measure", justify="right" if name in ("ours", "of") else "left")
    for row in rows:
        ours = f"{row.ours:.3g}" if abs(row.ours) >= 0.001 else "0"
        verdict = {True: "pass", False: "FAIL", None: ""}[row.passed]
        table.add_row(row.measure, ours, f"{row.count:,}", row.published, row.gate, verdict)
    console.print(table)
    for note in dict.fromkeys(row.note for row in rows if row.note):
        names = ", ".join(row.measure for row in rows if row.note == note)
        console.print(f"{names}: {note}.", soft_wrap=True, highlight=False)
    passed = [row.passed for row in rows if row.passed is not None]
    verdict = f"{sum(passed)} of {len(passed)} gates pass"
    console.print(f"Wrote {output}: {verdict}.", soft_wrap=True, highlight=False)
    return 0 if all(passed) else 1


def _measure_trial(trial: Trial, jobs: int | None, console: Console) -> list[ViewMeasures]:
    """The views of all breasts, in order. Each process has one thread, so that sums come out the same."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    views: list[ViewMeasures] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn) as pool, show_progress(console, "measuring", trial.breasts) as advance:
        for measures in pool.map(partial(measure_breast, trial), range(trial.breasts)):
            views += measures
            advance()
    return views


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("output", type=Path, metavar="OUT", help="the folder to write")
    for field in fields(Trial):
        default = {"breasts": 100, "seed": 0}[field.name] if field.default is MISSING else field.default
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--jobs", type=int, help="worker processes (default: one for each core)")
    parser.add_argument("--anatomy", type=Path, metavar="FILE.mhd", help="measure this breast of VICTRE")
    options = vars(parser.parse_args(arguments))
    output, jobs, path = (options.pop(name) for name in ("output", "jobs", "anatomy"))
    try:
        if not path:
            return audit(Trial(**options), output, jobs)
        volume = read_victre(path)
        trial = VictreTrial(**options | {"breasts": 1}, anatomy=path.name, labels=volume.hash)
        return audit(trial, output, jobs, volume)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
