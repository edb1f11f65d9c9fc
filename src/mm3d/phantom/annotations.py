"""The annotations of a view: the box of each lesion, and the slices that show it.

An ideal observer tells which slices show a lesion. Its detectability d'(z) compares the lesion's own signal in slice z
with the spectrum of the tissue around it. Reconstruction is linear, so that signal is the reconstruction of what the
lesion added. The most visible slice has the largest d'; a slice is visible if it has at least half of that.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from mm3d.data.records import Annotation, Laterality
from mm3d.phantom.anatomy import Array, CompressedBreast
from mm3d.phantom.imaging import Tomosynthesis, reconstruct_lesion
from mm3d.phantom.lesions import Insertion

VISIBLE = 0.5  # share of the largest d'
FAINT = 0.03  # share of the strongest signal: what is fainter is not in the box
FINEST = 2.5  # 1/mm: above this frequency a reconstruction has neither signal nor noise
PATCH = 25.6  # mm, the side of the squares that a spectrum is measured on


def annotate(
    insertions: tuple[Insertion, ...],
    breast: CompressedBreast,
    tomosynthesis: Tomosynthesis,
    slices: Array,
    laterality: Laterality,
) -> list[Annotation]:
    """The annotations of a volume whose reconstructed slices (z, y, x) are given, in stored pixels and slices."""
    annotations = []
    spectrum = None
    for insertion in insertions:
        box = find_box(insertion, breast)
        if box is None:
            continue
        if spectrum is None:
            spectrum = Spectrum(slices[:: max(1, len(slices) // 8)], breast.inside > 5, breast.scale.pixel)
        signal = reconstruct_lesion(insertion, tomosynthesis, breast.grid.shape)
        best, first, last = find_visible_slices(detectability(signal, spectrum))
        x1, y1, x2, y2 = (float(value) for value in box)
        if laterality == "R":
            columns = breast.scale.shape[1]
            x1, x2 = columns - x2, columns - x1
        kind = insertion.lesion.kind
        annotations.append(Annotation((x1, y1, x2, y2), kind.malignant, best, first, last, kind.name))
    return annotations


def find_box(insertion: Insertion, breast: CompressedBreast) -> tuple[int, int, int, int] | None:
    """x1, y1, x2, y2 in pixels of the whole field, tight around the lesion's shadow. None if it has no shadow."""
    shadow = np.abs(insertion.added.sum(axis=0))
    strongest = np.quantile(shadow, 0.995)
    ys, xs = np.nonzero(shadow > FAINT * strongest)
    if not strongest > 0 or not len(ys):
        return None
    top, left = insertion.where[1].start + breast.top, insertion.where[2].start
    return left + int(xs.min()), top + int(ys.min()), left + int(xs.max()) + 1, top + int(ys.max()) + 1


def detectability(signal: Array, spectrum: "Spectrum") -> NDArray[np.float64]:
    """(z,) d' of each plane of a signal (z, y, x) in a background of this spectrum."""
    pad = [fft.next_fast_len(n + 8, real=True) for n in signal.shape[1:]]
    frequency = np.hypot(fft.fftfreq(pad[0], spectrum.pixel)[:, None], fft.fftfreq(pad[1], spectrum.pixel))
    weight = (frequency < FINEST) / spectrum.at(frequency)
    energy = np.array([(np.abs(fft.fft2(plane, pad)) ** 2 * weight).sum() for plane in signal])
    return np.sqrt(energy / np.prod(pad))


def find_visible_slices(d: NDArray[np.float64]) -> tuple[int, int, int]:
    """The most visible slice, and the first and the last visible one around it."""
    best = int(np.argmax(d))
    visible = d >= VISIBLE * d[best]
    first = best - int(np.argmin(np.append(visible[best::-1], False))) + 1
    last = best + int(np.argmin(np.append(visible[best:], False))) - 1
    return best, first, last


class Spectrum:
    """The mean power spectrum of images over all directions, as variance per (1/mm)² and area of a pixel."""

    def __init__(self, planes: Array, mask: NDArray[np.bool_], pixel: float) -> None:
        """Of planes (n, y, x), measured on squares that lie in the mask (y, x) and overlap by half."""
        self.pixel = pixel
        side = min(max(8, round(PATCH / pixel)), *mask.shape)
        window = np.hanning(side)[:, None] * np.hanning(side)
        total, count = np.zeros((side, side)), 0
        for top in range(0, mask.shape[0] - side + 1, max(1, side // 2)):
            for left in range(0, mask.shape[1] - side + 1, max(1, side // 2)):
                if mask[top : top + side, left : left + side].mean() > 0.95:
                    squares = planes[:, top : top + side, left : left + side]
                    squares = (squares - squares.mean(axis=(1, 2), keepdims=True)) * window
                    total += (np.abs(fft.fft2(squares)) ** 2).sum(axis=0)
                    count += len(planes)
        frequency = np.hypot(fft.fftfreq(side, pixel)[:, None], fft.fftfreq(side, pixel))
        rings = np.round(frequency * side * pixel).astype(int)
        sums, numbers = np.bincount(rings.ravel(), total.ravel()), np.bincount(rings.ravel())
        self.count = count  # squares
        self.frequency = np.arange(len(sums)) / (side * pixel)
        self.power = sums / numbers / max(count, 1) / (window**2).sum()

    def at(self, frequency: NDArray[np.floating]) -> NDArray[np.float64]:
        """Power at any frequency. Below the first ring it is that of the first ring."""
        known = slice(1, len(self.power))
        logs = np.interp(np.log(np.maximum(frequency, 1e-6)), np.log(self.frequency[known]), np.log(self.power[known]))
        return np.exp(logs)
