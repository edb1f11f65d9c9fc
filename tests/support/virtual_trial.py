"""A virtual trial whose breasts are half discs with noise. It replaces the physics where only writing is tested."""

import os
import signal
import time

import numpy as np

from mm3d.data.records import Annotation, Breast, Label, Laterality, Modality, Position
from mm3d.phantom.imaging import SYSTEMS, SyntheticView
from mm3d.phantom.trial import POSITIONS, Trial, make_record

SYSTEM = SYSTEMS["hologic"]
TRIAL = Trial(seed=1, breasts=4, scale="tiny")


def render(trial: Trial, index: int) -> tuple[Breast, list[SyntheticView]]:
    """A pure function of the settings and the index. Two breasts of a patient follow each other."""
    side: Laterality = "L" if index % 2 == 0 else "R"
    label: Label = ("malignant", "benign", "negative")[index % 3]
    rng = np.random.default_rng([trial.seed, index])
    names = (f"P{index // 2:05d}", "E1")
    modalities: tuple[Modality, ...] = ("FFDM", "DBT")
    images = [_view(names, side, position, modality, label, rng) for position in POSITIONS for modality in modalities]
    attributes = {"density": "abcd"[index % 4], "system": "hologic"}
    return Breast(*names, side, label, tuple(image.view for image in images), attributes=attributes), images


def render_slowly(trial: Trial, index: int) -> tuple[Breast, list[SyntheticView]]:
    """So slow from the fifth breast on that a run can be killed in the middle."""
    time.sleep(2.0 if index >= 4 else 0.0)
    return render(trial, index)


def crash(trial: Trial, index: int) -> tuple[Breast, list[SyntheticView]]:
    """As if the system had taken the worker's memory away."""
    if index == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return render(trial, index)


def _view(
    names: tuple[str, str],
    side: Laterality,
    position: Position,
    modality: Modality,
    label: Label,
    rng: np.random.Generator,
) -> SyntheticView:
    slices, bits = (1, 12) if modality == "FFDM" else (9, 10)
    rows, columns = 120, 70 + 10 * (position == "MLO")
    y, x = np.mgrid[:rows, :columns]
    inside = (x / (0.6 * columns)) ** 2 + ((y - rows / 2) / (0.4 * rows)) ** 2 < 1
    density = 2 ** (bits - 3) * (1 + np.sin(x / 9) * np.sin(y / 7)) / 2  # smooth: noise alone would be refused
    tissue = 2 ** (bits - 2) + density + rng.integers(0, 2 ** (bits - 5), (slices, rows, columns))
    pixels = np.where(inside, tissue, 0).astype(np.uint16)
    annotations: tuple[Annotation, ...] = ()
    if label != "negative" and not (label == "malignant" and position == "MLO"):  # a cancer seen in one view only
        pixels[slices // 2, 50:62, 10:20] = 2**bits - 1
        box = (10.0, 50.0, 20.0, 62.0) if side == "L" else (columns - 20.0, 50.0, columns - 10.0, 62.0)
        visible = {"slice": 4, "first_slice": 3, "last_slice": 6} if modality == "DBT" else {}
        annotations = (Annotation(box, label == "malignant", kind="mass", **visible),)
    if side == "R":
        pixels = np.ascontiguousarray(pixels[:, :, ::-1])
    return SyntheticView(
        view=make_record(*names, side, position, modality, annotations),
        patient=names[0],
        exam=names[1],
        system=SYSTEM,
        thickness_mm=55.5,
        pixels=pixels,
        bits=bits,
        pixel_spacing=0.7,
        slice_spacing=None if modality == "FFDM" else 1.5,
    )
