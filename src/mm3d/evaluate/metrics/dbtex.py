"""The score of the DBTex challenge, as its official function computes it, odd points included.

- A proposal is a true positive if its centre in the image is at most max(half the diagonal of the true box, 100 pixels)
  from the centre of that box, and Z + Depth / 2 at most a quarter of the volume's slices from the box's slice.
- Of several such boxes it takes the nearest, in pixels and slices alike as if they were one unit; of equally near ones
  the first in the table.
- Several proposals on one box count once, and are no false positives.
- Benign boxes are findings, too.
- The thresholds are the highest score + 1, the score of every true positive, and the lowest score - 1, and go down
  until the false positives exceed what is asked for. Between them the sensitivity is interpolated linearly.
- A volume without proposals counts as a volume; without any proposals every sensitivity is 0.
"""

import numpy as np

from mm3d.evaluate.metrics.hits import BoolArray, Findings, FloatArray, IntArray, Proposals, pairs_in_volumes

LEAST_DISTANCE = 100.0  # pixels
RATES_ON_ALL = (2.0,)
RATES_ON_POSITIVE = (1.0, 2.0, 3.0, 4.0)


def first_slices(proposals: Proposals) -> FloatArray:
    """DBTex's Z (P,): `Proposals.slices` is the middle of the slices that a proposal spans, Z the first."""
    return proposals.slices - (np.maximum(proposals.depths, 1.0) - 1.0) / 2


def assign(proposals: Proposals, findings: Findings, volume_slices: FloatArray) -> IntArray:
    """The finding that each proposal counts for, -1 for false positives (P,). `volume_slices` (V,) has the number of
    slices of every volume with findings."""
    proposal, finding = pairs_in_volumes(proposals, findings)
    centres = _centres(proposals.boxes, first_slices(proposals) + proposals.depths / 2)[proposal]
    true_centres = _centres(findings.boxes, findings.slices)[finding]
    width, height = (findings.boxes[:, 2:] - findings.boxes[:, :2])[finding].T
    radius = np.maximum(np.sqrt(width**2 + height**2) / 2, LEAST_DISTANCE)
    apart = centres - true_centres
    hit = np.sqrt(apart[:, 0] ** 2 + apart[:, 1] ** 2) <= radius  # hypot rounds otherwise, at the very edge
    hit &= np.abs(apart[:, 2]) <= volume_slices[findings.volume[finding]] / 4
    proposal, finding, apart = proposal[hit], finding[hit], apart[hit]
    order = np.lexsort((finding, np.linalg.norm(apart, axis=1)))[::-1]
    assigned = np.full(len(proposals.scores), -1)
    assigned[proposal[order]] = finding[order]  # the nearest is written last, and stays
    return assigned


def _centres(boxes: FloatArray, z: FloatArray) -> FloatArray:
    return np.column_stack([boxes[:, :2] + (boxes[:, 2:] - boxes[:, :2]) / 2, z])


def dbtex(proposals: Proposals, findings: Findings, volume_slices: FloatArray, volumes: int) -> dict[str, float]:
    """The official result under its official names; `volumes` is how many there are, with and without findings."""
    if not len(findings.volume):
        raise ValueError("the DBTex score needs a finding")
    assigned = assign(proposals, findings, volume_slices)
    scores, boxes = proposals.scores, len(findings.volume)
    thresholds = np.zeros(0)
    if scores.size:
        thresholds = np.concatenate([[scores.max() + 1], scores[assigned >= 0], [scores.min() - 1]])
    on_all = _sensitivities(scores, assigned, thresholds, volumes, boxes, RATES_ON_ALL)
    positive = np.isin(proposals.volume, findings.volume)
    boxed = len(np.unique(findings.volume))
    on_positive = _sensitivities(scores[positive], assigned[positive], thresholds, boxed, boxes, RATES_ON_POSITIVE)
    result = {"sensitivity_at_2_fps_all": on_all[0]}
    for rate, sensitivity in zip(RATES_ON_POSITIVE, on_positive, strict=True):
        result[f"sensitivity_at_{rate:.0f}_fps_positive"] = sensitivity
    return result | {"mean_sensitivity_positive": float(np.mean(on_positive))}


def _sensitivities(
    scores: FloatArray,
    assigned: IntArray,
    thresholds: FloatArray,
    volumes: int,
    boxes: int,
    rates: tuple[float, ...],
) -> list[float]:
    if not thresholds.size:
        return [0.0] * len(rates)
    thresholds = -np.sort(-thresholds)
    found = np.full(boxes, -np.inf)
    np.maximum.at(found, assigned[assigned >= 0], scores[assigned >= 0])
    false = _count_from(scores[assigned < 0], thresholds) / volumes
    sensitivity = _count_from(found, thresholds) / boxes
    too_many: BoolArray = false > max(rates)
    end = int(np.argmax(too_many)) + 1 if too_many.any() else len(false)
    return [float(np.interp(rate, false[:end], sensitivity[:end])) for rate in rates]


def _count_from(values: FloatArray, thresholds: FloatArray) -> FloatArray:
    """How many values are at least each threshold."""
    ordered = np.sort(values)
    return (len(ordered) - np.searchsorted(ordered, thresholds)).astype(float)
