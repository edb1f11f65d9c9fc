"""Where proposals start if `model.proposal_start` is "fitted": at boxes that are typical of the training breasts."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from torch import Tensor

from mm3d.shared.errors import InputError
from mm3d.train.config import AugmentConfig
from mm3d.train.data import TrainingBreast


def fit_start_boxes(breasts: Sequence[TrainingBreast], count: int, augment: AugmentConfig) -> Tensor:
    """`count` boxes (N, 4), cxcywh as a share of the image: the centres of as many clusters of annotated boxes.

    Benign boxes count, too: they are more examples of where lesions are and how large they are. Boxes are also mirrored
    in the ways in which the training mirrors its images.
    """
    boxes = np.concatenate([np.zeros((0, 4)), *(_read_boxes(breast) for breast in breasts)])
    if augment.horizontal_flip:
        boxes = np.concatenate([boxes, boxes * [-1, 1, 1, 1] + [1, 0, 0, 0]])
    if augment.vertical_flip:
        boxes = np.concatenate([boxes, boxes * [1, -1, 1, 1] + [0, 1, 0, 0]])
    if len(boxes) < 2 * count:
        raise InputError(
            f"model.proposal_start is fitted, but {len(boxes)} boxes (mirrored ones included) are too few for "
            f"{count} proposals; give twice as many, or set model.proposal_start to grid."
        )
    # Distances count in typical box sizes, and sizes by their ratio.
    typical = np.median(boxes[:, 2:], axis=0)
    places = np.column_stack([boxes[:, :2] / typical, np.log(boxes[:, 2:])])
    centres, _ = kmeans2(places, count, iter=50, minit="++", rng=0)
    return torch.from_numpy(np.column_stack([centres[:, :2] * typical, np.exp(centres[:, 2:])])).float()


def _read_boxes(breast: TrainingBreast) -> NDArray[np.float64]:
    """The boxes (G, 4) that a training may see of a breast, cxcywh as a share of the image."""
    boxes = []
    for view in breast.prepared.views if breast.boxed else ():
        geometry = view.file.geometry
        height, width = geometry.height, geometry.width
        for annotation in view.view.annotations or ():
            x1, y1, x2, y2 = geometry.box_to_model(annotation.box)
            boxes.append([(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height])
    return np.array(boxes, dtype=float).reshape(-1, 4)
