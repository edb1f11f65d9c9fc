"""Pixels that cannot be those of a breast, whatever the header says: a detector finds nothing in them, as in a healthy
breast. docs/data.md has what was measured in real images.
"""

import numpy as np
from numpy.typing import NDArray

from mm3d.data.prepare.region import tissue_threshold
from mm3d.shared.errors import InputError

Frame = NDArray[np.integer]  # (rows, columns), bright where there is tissue

STEPS = 200  # rows and columns that are looked at, of all
NOISE = 0.7  # differences of neighbours in tissue, in units of those of any two pixels: 1 in noise
EXCHANGED = 0.5  # the share of this that is left if the bytes of the values are exchanged, and were so before
CUT = 0.6  # width of the breast, in units of the widest, at which it ends at a straight black edge
NARROW = 0.02  # the same of what is still called nothing
EDGE = 4 / STEPS  # share of the side of an image: a breast may end so near to its edge
RING, WHITE = 0.01, 0.9  # width of an image's margin; share of the range of grey values that is called white
INVERTED = 0.6  # share of the margin that is white
DARK_AND_WHITE = (1, 99)  # percentiles
MIN_STEPS = 16  # grey values between the darkest and the brightest percent of a slice
ALIKE = 0.9  # correlation of neighbouring slices


def find_damage(frame: Frame, film: bool = False) -> str:
    """What is wrong with the pixels of a frame; "" if they may be of a breast. Films may have any margins."""
    try:
        threshold = tissue_threshold(frame)
    except InputError:
        return ""  # the frame is black, and the caller decides what that means
    roughness = _measure_roughness(frame, threshold)
    if roughness > NOISE:
        return "holds noise and no breast"
    if frame.dtype.itemsize == 2 and roughness > EXCHANGED * NOISE:
        exchanged = frame.byteswap()
        if _measure_roughness(exchanged, tissue_threshold(exchanged)) < EXCHANGED * roughness:
            return "has the two bytes of its values exchanged"
    if film:
        return ""
    if _ends_straight(frame, threshold):
        return "has a black part that cuts the breast off along a straight line"
    return "has air that is brighter than the breast: it is inverted" if _has_white_margin(frame) else ""


def is_empty(frame: Frame) -> bool:
    """Whether all pixels of a frame are nearly alike."""
    low, high = np.percentile(_thin_out(frame), DARK_AND_WHITE)
    return bool(high - low < MIN_STEPS)


def are_alike(frame: Frame, neighbour: Frame) -> bool:
    """Whether two neighbouring slices may be of one breast."""
    thin = [_thin_out(image).astype(np.float64) for image in (frame, neighbour)]
    one, other = (image.clip(*np.percentile(image, DARK_AND_WHITE)).ravel() for image in thin)  # single pixels lie
    with np.errstate(all="ignore"):  # of an image that is all black, the correlation is no number, and no likeness
        return bool(np.corrcoef(one, other)[0, 1] >= ALIKE)


def _measure_roughness(frame: Frame, threshold: float) -> float:
    """How much neighbouring pixels of tissue differ, below or beside each other, in units of what any two differ."""
    rows, columns = (np.linspace(0, side - 2, STEPS).astype(np.intp) for side in frame.shape)
    here, below, beside = (
        frame[np.ix_(rows + down, columns + right)].astype(np.int64) for down, right in ((0, 0), (1, 0), (0, 1))
    )
    tissue = (here > threshold) & (below > threshold) & (beside > threshold)
    here, below, beside = here[tissue], below[tissue], beside[tissue]
    if len(here) < STEPS:
        return 0.0
    any_two = np.abs(here - np.random.default_rng(0).permutation(here)).mean()
    return float(max(np.abs(here - other).mean() for other in (below, beside)) / max(any_two, 1e-9))


def _thin_out(frame: Frame) -> Frame:
    step = _step(frame)
    return frame[::step, ::step]


def _step(frame: Frame) -> int:
    return max(1, max(frame.shape) // STEPS)


def _ends_straight(frame: Frame, threshold: float) -> bool:
    """Whether a wide breast ends from one row to the next, or one column: far from the edge of the image, or at a black
    band, which would cut the breast in two."""
    step = _step(frame)
    for widths in ((frame[:, ::step] > threshold).sum(axis=1), (frame[::step] > threshold).sum(axis=0)):
        black = np.concatenate([[False], widths <= NARROW * widths.max(), [False]])
        begins, ends = np.flatnonzero(black[1:] & ~black[:-1]), np.flatnonzero(black[:-1] & ~black[1:])
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):  # of the black bands
            inside = begin > 0 and end < len(widths)
            beside = (*widths[max(0, begin - step) : begin], *widths[end : end + step])
            if end - begin >= (step if inside else EDGE * len(widths)) and max(beside, default=0) > CUT * widths.max():
                return True
    return False


def _has_white_margin(frame: Frame) -> bool:
    width = max(1, round(RING * min(frame.shape)))
    margin = np.concatenate(
        [part.ravel() for part in (frame[:width], frame[-width:], frame[:, :width], frame[:, -width:])]
    )
    low, high = np.percentile(_thin_out(frame), DARK_AND_WHITE)
    return float((margin > low + WHITE * (high - low)).mean()) > INVERTED
