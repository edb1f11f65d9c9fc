"""X-ray imaging of a breast: mammogram, tomosynthesis projections, reconstruction.

Geometry: the rays of a projection are parallel, and a slice at height z is shifted by z tan(angle) along the tube's
motion (y). Projection and reconstruction are then diagonal in the frequency k along y: for each k there is a small
matrix from slices to projections, and one back. The cone of a real scanner adds a magnification of a few percent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from mm3d.data.records import View
from mm3d.phantom.anatomy import Array
from mm3d.phantom.lesions import Insertion

Complex = NDArray[np.complex64]


@dataclass(frozen=True)
class System:
    """A vendor's tomosynthesis system."""

    name: str
    manufacturer: str
    model: str
    arc_degrees: float
    projections: int
    source_detector_mm: float
    reconstruction: Literal["filtered", "regularised"]
    speck_depth_mm: float  # width in depth at half its height of a speck of 0.5 mm, as measured with fine pixels

    @property
    def tangents(self) -> NDArray[np.float64]:
        half = np.radians(self.arc_degrees / 2)
        return np.tan(np.linspace(-half, half, self.projections))


# Arc, number of projections and source-to-detector distance as the vendors give them.
SYSTEMS = {
    "hologic": System("hologic", "HOLOGIC, Inc.", "Selenia Dimensions", 15, 15, 700, "filtered", 6.3),
    "siemens": System("siemens", "SIEMENS", "Mammomat Inspiration", 50, 25, 655, "filtered", 2.3),
    "ge": System("ge", "GE HEALTHCARE", "Senographe Essential", 25, 9, 660, "regularised", 2.8),
}


@dataclass(frozen=True)
class SyntheticView:
    """A finished image or volume: all that its DICOM file says.

    The chest wall is on the left for L, on the right for R. Air is 0, tissue is bright. Slice 0 is on the detector.
    """

    view: View  # its file is relative to the folder of the trial
    patient: str
    exam: str
    system: System
    thickness_mm: float  # of the compressed breast
    pixels: NDArray[np.uint16]  # (S, H, W), S = 1 for FFDM
    bits: int  # bits stored
    pixel_spacing: float  # mm
    slice_spacing: float | None  # mm, None for FFDM


# Exposure and noise. An unattenuated mammogram has about 1.5e7 photons per mm², of which the breast transmits 5%.
# Automatic exposure makes it 7.5e5 behind the breast, and half of them are lost in the detector.
DETECTED = 4e5  # photons per mm² that count in a mammogram
TOMO_DOSE = 1.2  # times that of a mammogram (vendors: 1.1 to 1.5), shared by all projections
TOMO_BLUR = 0.2  # mm, of a projection before its noise: the tube moves, and pixels are read out in pairs
SCATTER = {"grid": 0.12, "open": 0.45}  # scattered over primary photons; tomosynthesis has no grid
SCATTER_WIDTH = 12.0  # mm
SCATTER_CORRECTED = 0.85  # share of the scatter that the vendor's correction removes
ELECTRONIC = 160.0  # standard deviation of the electronic noise, in photons per mm of a pixel's side
# Reconstruction.
DAMPING = 0.03  # of the regularised reconstruction, relative to its largest eigenvalue
# The ramp filter is 1 at k = RAMP (1/mm). At k = 0 it is FLOOR for a NARROW arc (degrees) and less for a wider one, so
# that slices keep large structures.
FLOOR, NARROW, RAMP = 0.25, 15.0, 0.5
SOFT = 0.9  # 1/mm, where its Gaussian window has fallen to 1/e
SMOOTH = 0.12  # mm, the blur of slices along x that matches the window
COLUMNS, AT_ONCE = 256, 8_000_000  # the most columns, and about the most voxels, that are reconstructed at once
# Specks of calcium in slices.
SPECK_CONTRAST = 0.55  # share of their contrast that slices keep
COARSE = 0.3  # mm: larger pixels widen specks in depth


def take_mammogram(volume: Array, fat: Array, pixel: float, height: float, rng: np.random.Generator) -> Array:
    """(y, x) line integrals of a volume (z, y, x) of attenuation, as a detector sees them.

    `fat` is the surrounding fat, which stands for a vendor's equalisation: it fills the thinner rim of the breast.
    """
    path = volume.sum(axis=0) * height
    return _detect(path, pixel, DETECTED, "grid", rng) + fat.sum(axis=0) * height


def _detect(path: Array, pixel: float, detected: float, beam: str, rng: np.random.Generator) -> Array:
    """Line integrals (y, x) with scatter and noise."""
    if beam == "open":
        path = ndimage.gaussian_filter(path, TOMO_BLUR / pixel)
    breast = path > 0.3
    photons = detected * pixel**2 * float(np.exp(np.median(path[breast])))
    primary = photons * np.exp(-path)
    scatter = SCATTER[beam] * _blur_widely(np.where(breast, primary, 0), SCATTER_WIDTH / pixel)
    noise = rng.standard_normal(path.shape, dtype=np.float32)
    counts = primary + scatter + np.sqrt(primary + scatter + (ELECTRONIC * pixel) ** 2) * noise
    clean = np.maximum(counts - SCATTER_CORRECTED * scatter, 0.05 * primary)
    return -np.log(clean / photons).astype(np.float32)


def _blur_widely(image: Array, width: float) -> Array:
    """A wide blur, made on a coarse copy: it leaves nothing fine anyway."""
    step = max(1, int(width / 4))
    coarse = image[::step, ::step]
    blurred = ndimage.gaussian_filter(coarse, width / step, mode="nearest")
    if step == 1:
        return blurred
    y, x = (
        np.minimum(np.arange(n) / step, m - 1).astype(np.float32)
        for n, m in zip(image.shape, coarse.shape, strict=True)
    )
    return _interpolate(_interpolate(blurred, y, 0), x, 1)


def _interpolate(image: Array, place: Array, axis: int) -> Array:
    """Values between the rows (axis 0) or columns (axis 1) of an image."""
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, image.shape[axis] - 1)
    share = (place - low)[:, None] if axis == 0 else place - low
    return image.take(low, axis) * (1 - share) + image.take(high, axis) * share


class Tomosynthesis:
    """Projection and reconstruction of volumes of one size on one system."""

    def __init__(self, system: System, z: Array, rows: int, pixel: float) -> None:
        self.system, self.rows, self.pixel = system, rows, pixel
        tangents = system.tangents
        self.height = float(z[1] - z[0])
        largest_shift = float(np.abs(tangents).max() * np.abs(z).max() / pixel)
        self.length = fft.next_fast_len(rows + 2 * int(np.ceil(largest_shift)) + 2, real=True)
        k = fft.rfftfreq(self.length, pixel)
        # (k, projections, slices)
        shift = np.exp(-2j * np.pi * k[:, None, None] * tangents[None, :, None] * z[None, None, :].astype(float))
        obliquity = np.sqrt(1 + tangents**2)
        self.forward: Complex = (shift * (self.height * obliquity)[None, :, None]).astype(np.complex64)
        self.backward: Complex = self._make_inverse(shift * self.height, k)

    def _make_inverse(self, A: NDArray[np.complex128], k: NDArray[np.float64]) -> Complex:
        """(k, slices, projections): filtered back-projection, or Tikhonov's inverse A* (A A* + damping)⁻¹."""
        back = A.conj().transpose(0, 2, 1)
        if self.system.reconstruction == "regularised":
            count, size = A.shape[1], A.shape[2]
            damping = DAMPING * count * size * self.height**2
            return (back @ np.linalg.inv(A @ back + damping * np.eye(count))).astype(np.complex64)
        ramp = np.hypot(FLOOR * np.sqrt(NARROW / self.system.arc_degrees), k / RAMP)
        window = np.exp(-((k / SOFT) ** 2))
        filtered = back * (ramp * window)[:, None, None]
        return (filtered / (A.shape[1] * A.shape[2] * self.height**2)).astype(np.complex64)

    def project(self, volume: Array) -> Array:
        """(projections, y, x) line integrals of a volume (z, y, x)."""
        return self._apply(self.forward, volume)

    def reconstruct(self, projections: Array) -> Array:
        """(z, y, x) slices of projections (projections, y, x)."""
        return self._apply(self.backward, projections)

    def take_projections(
        self, volume: Array, lesions: Sequence[Insertion], fat: Array, rng: np.random.Generator
    ) -> Array:
        """(projections, y, x) as a detector sees them, of a volume without the calcium of its lesions, which
        `make_slices` adds. `fat` as in `take_mammogram`."""
        detected = DETECTED * TOMO_DOSE / self.system.projections
        projections = self.project(volume)
        for lesion in lesions:
            if lesion.lesion.kind.calcium:
                projections[:, :, lesion.where[2]] -= self.project(_embed(lesion, volume.shape))
        for p, path in enumerate(projections):
            projections[p] = _detect(path, self.pixel, detected, "open", rng)
        projections += self.project(fat)
        return projections

    def make_slices(self, projections: Array, lesions: Sequence[Insertion]) -> Array:
        """(z, y, x) slices of `take_projections`."""
        slices = self.reconstruct(projections)
        for lesion in lesions:
            if lesion.lesion.kind.calcium:
                slices[:, :, lesion.where[2]] += reconstruct_lesion(lesion, self, slices.shape)
        for plane in slices:
            ndimage.gaussian_filter1d(plane, SMOOTH / self.pixel, axis=1, output=plane)
        return slices

    def narrow_specks(self, signal: Array, there: NDArray[np.bool_]) -> Array:
        """The signal (z, y, x) of specks, as wide in depth as with fine pixels. `there` (z, x) says which columns of a
        slice have calcium."""
        signal *= SPECK_CONTRAST
        if self.pixel <= COARSE:
            return signal
        z = np.arange(len(there)) * self.height
        near = 1 / (1 + ((z[:, None] - z) / (0.6 * self.system.speck_depth_mm)) ** 2)
        window = (near[:, :, None] * there[None]).max(axis=1)
        signal *= window[:, None].astype(np.float32)
        return signal

    def _apply(self, matrices: Complex, stack: Array) -> Array:
        """Apply the matrix of each frequency along y to a stack (planes, y, x)."""
        out = np.empty((matrices.shape[1], stack.shape[1], stack.shape[2]), np.float32)
        count = min(COLUMNS, max(1, AT_ONCE // (max(matrices.shape[1:]) * self.length)))
        for first in range(0, stack.shape[2], count):
            columns = slice(first, first + count)
            part = stack[:, :, columns]
            # Beyond the image the breast continues as at its border. y is periodic, so what is above comes last.
            missing = self.length - part.shape[1]
            above = part[:, :1].repeat(missing // 2, axis=1)
            below = part[:, -1:].repeat(missing - missing // 2, axis=1)
            padded = np.concatenate([part, below, above], axis=1)
            spectrum = fft.rfft(padded, axis=1).transpose(1, 0, 2)
            planes = fft.irfft((matrices @ spectrum).transpose(1, 0, 2), self.length, axis=1)
            out[:, :, columns] = planes[:, : part.shape[1]]
        return out


def _embed(insertion: Insertion, shape: tuple[int, ...]) -> Array:
    """(z, y, x') what a lesion adds, in all slices and rows, but only in its own columns."""
    added = np.zeros((shape[0], shape[1], insertion.added.shape[2]), np.float32)
    added[insertion.where[0], insertion.where[1]] = insertion.added
    return added


def reconstruct_lesion(insertion: Insertion, tomosynthesis: Tomosynthesis, shape: tuple[int, ...]) -> Array:
    """(z, y, x') signal of a lesion in the slices: all rows, but only its own columns."""
    added = _embed(insertion, shape)
    there = added.max(axis=1) > 0
    projections = tomosynthesis.project(added)
    del added  # it is large
    signal = tomosynthesis.reconstruct(projections)
    return tomosynthesis.narrow_specks(signal, there) if insertion.lesion.kind.calcium else signal
