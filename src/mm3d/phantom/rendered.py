"""What the physics hands over to be written: a breast as a system saw it, with the truth about it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mm3d.data.records import Annotation, Label, Laterality, Modality, Position
from mm3d.phantom.imaging import System


@dataclass(frozen=True)
class RenderedView:
    """One image or volume of a breast, as stored: chest wall left for L, right for R; air is 0, tissue is bright;
    slice 0 lies on the detector. Findings are of plain numbers, in stored pixels and slices of this image."""

    laterality: Laterality
    position: Position
    modality: Modality
    pixels: NDArray[np.uint16]  # (S, H, W), S = 1 for FFDM
    bits: int  # bits stored: 12 for FFDM, 10 for DBT
    findings: tuple[Annotation, ...]  # of a mammogram, without slices
    pixel_spacing: float  # mm
    slice_spacing: float | None  # mm, None for FFDM


@dataclass(frozen=True)
class RenderedBreast:
    """One breast of a trial, with all its views."""

    patient: str
    exam: str  # unique in the trial together with patient and laterality
    laterality: Laterality
    label: Label
    attributes: dict[str, str]  # columns for subgroups: density, system, …
    system: System
    thickness_mm: float  # under compression
    views: tuple[RenderedView, ...]  # 4: CC and MLO, each as FFDM and DBT
