"""A trial whose breasts are half discs with noise: it stands in for the physics where only the writing is tested."""

import os
import signal
import time
from dataclasses import dataclass

import numpy as np

from mm3d.data.records import Annotation, Label, Laterality, Modality, Position
from mm3d.phantom.imaging import SYSTEMS
from mm3d.phantom.rendered import RenderedBreast, RenderedView

SYSTEM = SYSTEMS["hologic"]


@dataclass(frozen=True)
class Trial:
    seed: int = 1
    breasts: int = 4
    scale: str = "tiny"
    density: float = 0.2


def render(trial: Trial, index: int) -> RenderedBreast:
    """A pure function of the settings and the index; two breasts of a patient follow each other."""
    side: Laterality = "LR"[index % 2]  # type: ignore[assignment]
    label: Label = ("malignant", "benign", "negative")[index % 3]
    random = np.random.default_rng([trial.seed, index])
    return RenderedBreast(
        patient=f"P{index // 2:05d}",
        exam="E1",
        laterality=side,
        label=label,
        attributes={"density": "abcd"[index % 4], "system": "hologic"},
        system=SYSTEM,
        thickness_mm=55.5,
        views=tuple(
            _view(side, position, modality, label, random) for position in ("CC", "MLO") for modality in ("FFDM", "DBT")
        ),
    )


def slow(trial: Trial, index: int) -> RenderedBreast:
    """So slow from the fifth breast on that a run can be killed in the middle."""
    time.sleep(2.0 if index >= 4 else 0.0)
    return render(trial, index)


def crashing(trial: Trial, index: int) -> RenderedBreast:
    """As if the system had taken the worker's memory away."""
    if index == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return render(trial, index)


def _view(side: Laterality, position: str, modality: str, label: Label, random: np.random.Generator) -> RenderedView:
    slices, bits = (1, 12) if modality == "FFDM" else (9, 10)
    rows, columns = 120, 70 + 10 * (position == "MLO")
    y, x = np.mgrid[:rows, :columns]
    inside = (x / (0.6 * columns)) ** 2 + ((y - rows / 2) / (0.4 * rows)) ** 2 < 1
    tissue = 2 ** (bits - 2) + random.integers(0, 2 ** (bits - 3), (slices, rows, columns))
    pixels = np.where(inside, tissue, 0).astype(np.uint16)
    findings: tuple[Annotation, ...] = ()
    if label != "negative" and not (label == "malignant" and position == "MLO"):  # a cancer seen in one view only
        pixels[slices // 2, 50:62, 10:20] = 2**bits - 1
        box = (10.0, 50.0, 20.0, 62.0) if side == "L" else (columns - 20.0, 50.0, columns - 10.0, 62.0)
        marks = {"slice": 4, "first_slice": 3, "last_slice": 6} if modality == "DBT" else {}
        findings = (Annotation(box, label == "malignant", kind="mass", **marks),)
    if side == "R":
        pixels = np.ascontiguousarray(pixels[:, :, ::-1])
    kind: Modality = modality  # type: ignore[assignment]
    place: Position = position  # type: ignore[assignment]
    return RenderedView(side, place, kind, pixels, bits, findings, 0.7, None if modality == "FFDM" else 1.5)
