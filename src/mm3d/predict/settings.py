"""The settings of a prediction."""

from dataclasses import dataclass
from typing import Literal

from mm3d.shared.config import check
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class PredictSettings:
    """How the model's proposals become findings and scores.

    Parameters
    ----------
    nms : of the proposals of a view whose IoU exceeds this, only the best is kept; 1: all are kept.
    scores : "model": a view's score is the noisy-or of its proposals, a breast's the mean over its views;
        "max": the highest proposal, the highest view.
    join : how the slices of input slices are put together. "best": of overlapping boxes the best is kept, as within a
        view (the paper does not say which rule it used); "union": boxes that overlap in 3D are united (Buda's code).
    """

    nms: float = 0.3
    scores: Literal["model", "max"] = "model"
    join: Literal["best", "union"] = "best"

    def __post_init__(self) -> None:
        check(self)
        if not 0 <= self.nms <= 1:
            raise InputError(f"nms = {self.nms} must be from 0 to 1.")
