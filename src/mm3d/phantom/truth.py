"""What is true of a finding in a view: its box, and in which slices it can be seen.

A slice shows a finding as well as an ideal observer tells it from the tissue around: d'(z) is that of the lesion's own
signal in the slice (the reconstruction is linear, so it is the reconstruction of what the lesion added), prewhitened by
the spectrum of the slices. The most visible slice is where d' is largest; visible are those with half of that.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from mm3d.phantom.anatomy import Array, Form
from mm3d.phantom.imaging import Tomosynthesis
from mm3d.phantom.lesions import Change

VISIBLE = 0.5  # of the largest d'
FAINT = 0.03  # of the strongest signal: what is fainter is not in the box
FINEST = 2.5  # 1/mm: beyond it a reconstruction has neither signal nor noise
PATCH = 25.6  # mm, the side of the squares that a spectrum is measured on


def signal_box(change: Change, form: Form) -> tuple[int, int, int, int] | None:
    """x1, y1, x2, y2 of a lesion in the image's pixels, tight around its shadow; None if it casts none."""
    shadow = np.abs(change.added.sum(axis=0))
    strongest = np.quantile(shadow, 0.995)
    ys, xs = np.nonzero(shadow > FAINT * strongest)
    if not strongest > 0 or not len(ys):
        return None
    top, left = change.where[1].start + form.top, change.where[2].start
    return left + int(xs.min()), top + int(ys.min()), left + int(xs.max()) + 1, top + int(ys.max()) + 1


def reconstructed_signal(change: Change, tomosynthesis: Tomosynthesis, shape: tuple[int, int, int]) -> Array:
    """(z, y, x'): what a lesion is in the slices, all rows, in its own columns."""
    added = np.zeros((shape[0], shape[1], change.added.shape[2]), np.float32)
    added[change.where[0], change.where[1]] = change.added
    return tomosynthesis.reconstruct(tomosynthesis.project(added))


def detectability(signal: Array, spectrum: "Spectrum") -> NDArray[np.float64]:
    """(z,) d' of each plane of a signal (z, y, x) in a background of this spectrum."""
    pad = [fft.next_fast_len(n + 8, real=True) for n in signal.shape[1:]]
    power = np.abs(fft.fft2(signal, pad)) ** 2
    frequency = np.hypot(fft.fftfreq(pad[0], spectrum.pixel)[:, None], fft.fftfreq(pad[1], spectrum.pixel))
    whitened = power / spectrum.at(frequency) * (frequency < FINEST)
    return np.sqrt(whitened.sum(axis=(1, 2)) / np.prod(pad))


def visible_range(d: NDArray[np.float64]) -> tuple[int, int, int]:
    """The most visible slice, and the first and the last visible one around it."""
    best = int(np.argmax(d))
    seen = d >= VISIBLE * d[best]
    first = best - int(np.argmin(np.append(seen[best::-1], False))) + 1
    last = best + int(np.argmin(np.append(seen[best:], False))) - 1
    return best, first, last


class Spectrum:
    """The mean power spectrum of images over all directions, as variance per (1/mm)²  and pixel's area."""

    def __init__(self, planes: Array, breast: NDArray[np.bool_], pixel: float) -> None:
        """`planes` (n, y, x); squares that lie in the `breast` (y, x) are used, overlapping by half."""
        self.pixel = pixel
        side = min(max(8, round(PATCH / pixel)), *breast.shape)
        window = np.hanning(side)[:, None] * np.hanning(side)
        total, count = np.zeros((side, side)), 0
        for top in range(0, breast.shape[0] - side + 1, max(1, side // 2)):
            for left in range(0, breast.shape[1] - side + 1, max(1, side // 2)):
                if breast[top : top + side, left : left + side].mean() > 0.95:
                    squares = planes[:, top : top + side, left : left + side]
                    squares = (squares - squares.mean(axis=(1, 2), keepdims=True)) * window
                    total += (np.abs(fft.fft2(squares)) ** 2).sum(axis=0)
                    count += len(planes)
        frequency = np.hypot(fft.fftfreq(side, pixel)[:, None], fft.fftfreq(side, pixel))
        rings = np.round(frequency * side * pixel).astype(int)
        sums, numbers = np.bincount(rings.ravel(), total.ravel()), np.bincount(rings.ravel())
        self.count = count
        self.frequency = np.arange(len(sums)) / (side * pixel)
        self.power = sums / numbers / max(count, 1) / (window**2).sum()

    def at(self, frequency: NDArray[np.floating]) -> NDArray[np.float64]:
        """Power at any frequency; below the first ring as in it."""
        known = slice(1, len(self.power))
        logs = np.interp(np.log(np.maximum(frequency, 1e-6)), np.log(self.frequency[known]), np.log(self.power[known]))
        return np.exp(logs)
