"""From overlapping proposals to findings: non-maximum suppression in 2D, and the union of boxes in 3D."""

import numpy as np
import torch
from numpy.typing import NDArray

from mm3d.model.boxes import iou_and_giou

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
UNION_IOU = 0.5  # of boxes in 3D that are united
UNION_RATIO = 10.0  # of their scores, at most


def suppress(boxes: FloatArray, scores: FloatArray, limit: float) -> IntArray:
    """Non-maximum suppression of boxes (P, 4) xyxy: from the highest score down, a box is kept unless its IoU with a
    kept one exceeds `limit`. Returns the indices of the kept boxes, the highest score first."""
    tensors = torch.from_numpy(boxes)
    overlap = iou_and_giou(tensors[:, None], tensors[None])[0].numpy()
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        if not (overlap[index, kept] > limit).any():
            kept.append(index)
    return np.array(kept, dtype=np.int64)


def unite(boxes: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Buda's published rule for boxes in 3D (P, 6), x1, y1, z1, x2, y2, z2: boxes with an IoU above 0.5 and scores
    within a factor of 10 become their union with the highest score, until there are none. Highest score first."""
    united, best = [], []
    left = np.ones(len(boxes), dtype=bool)
    for index in np.argsort(-scores, kind="stable").tolist():
        if not left[index]:
            continue
        box, score = boxes[index], scores[index]
        left[index] = False
        while (near := left & (_iou_3d(box, boxes) > UNION_IOU) & (score <= UNION_RATIO * scores)).any():
            low, high = boxes[near, :3].min(axis=0), boxes[near, 3:].max(axis=0)
            box = np.concatenate([np.minimum(box[:3], low), np.maximum(box[3:], high)])
            left &= ~near
        united.append(box)
        best.append(score)
    return np.array(united).reshape(-1, 6), np.array(best)


def _iou_3d(box: FloatArray, boxes: FloatArray) -> FloatArray:
    overlap = np.minimum(box[3:], boxes[:, 3:]) - np.maximum(box[:3], boxes[:, :3])
    intersection = np.prod(np.maximum(overlap, 0.0), axis=1)
    union = np.prod(box[3:] - box[:3]) + np.prod(boxes[:, 3:] - boxes[:, :3], axis=1) - intersection
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)
