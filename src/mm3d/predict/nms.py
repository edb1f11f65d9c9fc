"""Showing what was found once: proposals that overlap are taken for one finding."""

import numpy as np

from mm3d.metrics.hits import FloatArray, IntArray, iou


def suppress(boxes: FloatArray, scores: FloatArray, limit: float) -> IntArray:
    """Non-maximum suppression of boxes (P, 4) xyxy: from the highest score down, a box stays if its IoU with none that
    stays is above `limit`. The numbers of those that stay, highest score first."""
    order = np.argsort(-scores, kind="stable")
    overlap = iou(boxes[:, None], boxes[None])
    kept: list[int] = []
    for index in order.tolist():
        if not (overlap[index, kept] > limit).any():
            kept.append(index)
    return np.array(kept, dtype=np.int64)
