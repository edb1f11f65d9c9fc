"""The settings of an evaluation."""

from dataclasses import dataclass

from mm3d.data.records import Modality
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class EvaluateSettings:
    """The defaults are those of the paper, where it names them."""

    rates: tuple[float, ...] = (0.25, 0.5)  # X of R@X: false positives per volume
    iou: float = 0.25  # the smallest IoU of a hit
    slice_tolerance: float | None = None  # slices; None: a quarter of the volume's slices, as in DBTex
    leave_out_benign: bool = False  # leave out benign volumes, as in the paper's appendix on BCS-DBT
    by: tuple[str, ...] = ()  # columns for subgroups
    specificities: tuple[float, ...] = (0.8, 0.9)  # of breasts, for operating points
    replicates: int = 1000  # of the bootstrap
    seed: int = 0
    split: str | None = None  # None: all
    modality: Modality | None = None  # None: that of the predictions
    skip_unknown: bool = False  # leave out predictions for volumes that the cohort does not have

    def __post_init__(self) -> None:
        for rate in self.rates:
            if not 0 <= rate < float("inf"):
                raise InputError(f"--at {rate} is not a number of false positives per volume; give 0 or more.")
        if not 0 < self.iou <= 1:
            raise InputError(f"--iou {self.iou} is not an intersection over union; give more than 0 and at most 1.")
        if self.slice_tolerance is not None and not 0 <= self.slice_tolerance < float("inf"):
            raise InputError(f"--slice-tolerance {self.slice_tolerance} is not a number of slices; give 0 or more.")
        for specificity in self.specificities:
            if not 0 <= specificity <= 1:
                raise InputError(f"--specificity {specificity} is not a share; give a number from 0 to 1.")
        if self.replicates < 2:
            raise InputError(f"--replicates {self.replicates} is too few for a standard error; give 2 or more.")
