"""The score of the DBTex challenge, exactly as the official function computes it.

- A finding hits an annotation if their centres in the image are at most max(half the diagonal of the annotated box,
  100 pixels) apart, and Z + Depth / 2 is at most a quarter of the volume's slices from the annotated slice.
- Of several such annotations it hits the nearest. Pixels and slices count alike. Of equally near ones it is the first.
- Several findings on one annotation count once, and none of them is a false positive.
- Benign annotations count, too.
- The thresholds are the highest score + 1, the score of every finding that hits, and the lowest score - 1. They go down
  until the false positives exceed the wanted rate. Between them the sensitivity is interpolated linearly.
- A volume without findings counts as a volume. Without any findings every sensitivity is 0.
"""

import numpy as np

from mm3d.evaluate.metrics.hits import (
    Annotations,
    BoolArray,
    Findings,
    FloatArray,
    IntArray,
    count_from,
    highest_by,
    pairs_in_volumes,
)

LEAST_DISTANCE = 100.0  # pixels
RATES_ON_ALL = (2.0,)
RATES_ON_POSITIVE = (1.0, 2.0, 3.0, 4.0)


def assign(findings: Findings, annotations: Annotations, slice_counts: FloatArray) -> IntArray:
    """The annotation that each finding hits (F,), -1 for a false positive; parameters are those of `dbtex`."""
    finding, annotation = pairs_in_volumes(findings, annotations)
    # `Findings.slices` is the middle of the slices that a finding spans, Z is the first of them.
    first_slices = findings.slices - (np.maximum(findings.spans, 1.0) - 1.0) / 2
    centres = _centres(findings.boxes, first_slices + findings.spans / 2)[finding]
    true_centres = _centres(annotations.boxes, annotations.slices)[annotation]
    width, height = (annotations.boxes[:, 2:] - annotations.boxes[:, :2])[annotation].T
    radius = np.maximum(np.sqrt(width**2 + height**2) / 2, LEAST_DISTANCE)
    apart = centres - true_centres
    hit = np.sqrt(apart[:, 0] ** 2 + apart[:, 1] ** 2) <= radius  # hypot rounds differently at the very edge
    hit &= np.abs(apart[:, 2]) <= slice_counts[annotations.volume[annotation]] / 4
    finding, annotation, apart = finding[hit], annotation[hit], apart[hit]
    order = np.lexsort((annotation, np.linalg.norm(apart, axis=1)))[::-1]
    assigned = np.full(len(findings.scores), -1)
    assigned[finding[order]] = annotation[order]  # the nearest is written last and stays
    return assigned


def _centres(boxes: FloatArray, z: FloatArray) -> FloatArray:
    return np.column_stack([boxes[:, :2] + (boxes[:, 2:] - boxes[:, :2]) / 2, z])


def dbtex(findings: Findings, annotations: Annotations, slice_counts: FloatArray, volumes: int) -> dict[str, float]:
    """Compute the official result.

    Parameters
    ----------
    findings, annotations
        What the detector found and what radiologists drew; every one needs a slice.
    slice_counts
        (V,) the number of slices of every volume; it is used for volumes with annotations.
    volumes
        The number of volumes, with and without annotations.

    Returns
    -------
    dict
        The official values under their official names; `mean_sensitivity_positive` ranks.
    """
    if not len(annotations.volume):
        raise ValueError("the DBTex score needs an annotation")
    assigned = assign(findings, annotations, slice_counts)
    scores, hits, boxes = findings.scores, assigned >= 0, len(annotations.volume)
    ends = [scores.max() + 1, scores.min() - 1] if scores.size else []
    thresholds = -np.sort(-np.append(scores[hits], ends))
    sensitivity = count_from(highest_by(assigned[hits], scores[hits], boxes), thresholds) / boxes

    def sensitivities(false_positives: BoolArray, volumes: int, rates: tuple[float, ...]) -> list[float]:
        if not scores.size:
            return [0.0] * len(rates)
        false = count_from(scores[false_positives], thresholds) / volumes
        end = np.searchsorted(false, max(rates), side="right") + 1  # behind the first that exceeds the rates
        return [float(np.interp(rate, false[:end], sensitivity[:end])) for rate in rates]

    (on_all,) = sensitivities(~hits, volumes, RATES_ON_ALL)
    positive = np.isin(findings.volume, annotations.volume)
    on_positive = sensitivities(~hits & positive, len(np.unique(annotations.volume)), RATES_ON_POSITIVE)
    names = [f"sensitivity_at_{rate:.0f}_fps_positive" for rate in RATES_ON_POSITIVE]
    return {
        "sensitivity_at_2_fps_all": on_all,
        **dict(zip(names, on_positive, strict=True)),
        "mean_sensitivity_positive": float(np.mean(on_positive)),
    }
