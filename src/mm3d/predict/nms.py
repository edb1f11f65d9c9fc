"""Showing what was found once: proposals that overlap are taken for one finding."""

import numpy as np

from mm3d.evaluate.metrics.hits import FloatArray, IntArray, iou


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


UNION_IOU = 0.5  # in 3D, of boxes that are joined
UNION_RATIO = 10.0  # of their scores, at most


def unite(boxes: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Buda's published rule for boxes in 3D (P, 6), x1, y1, z1, x2, y2, z2: those with an IoU above 0.5 and scores
    within a factor of 10 become their union, with the highest score, until there are none. Highest score first."""
    boxes, scores = boxes.copy(), scores.copy()
    united, of = [], []
    left = np.ones(len(boxes), dtype=bool)
    for index in np.argsort(-scores, kind="stable").tolist():
        if not left[index]:
            continue
        box, score = boxes[index], scores[index]
        left[index] = False
        while (joined := left & (_iou_3d(box, boxes) > UNION_IOU) & (score <= UNION_RATIO * scores)).any():
            box = np.concatenate(
                [np.minimum(box[:3], boxes[joined, :3].min(axis=0)), np.maximum(box[3:], boxes[joined, 3:].max(axis=0))]
            )
            left &= ~joined
        united.append(box)
        of.append(score)
    return np.array(united).reshape(-1, 6), np.array(of)


def _iou_3d(box: FloatArray, boxes: FloatArray) -> FloatArray:
    overlap = np.minimum(box[3:], boxes[:, 3:]) - np.maximum(box[:3], boxes[:, :3])
    intersection = np.prod(np.maximum(overlap, 0.0), axis=1)
    union = np.prod(box[3:] - box[:3]) + np.prod(boxes[:, 3:] - boxes[:, :3], axis=1) - intersection
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)
