"""Small views as they are stored, and settings to prepare them with."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from support.dicom_files import Pixels, breast

from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.records import View

SMALL = PrepareSettings(width=60, length=120, slices=4)


def volume(slices: int = 9, side: str = "L", bright: int | None = None) -> Pixels:
    """A breast whose texture differs from slice to slice; one of them may have a bright square."""
    frames = np.stack([breast(side=side, seed=i) for i in range(slices)])
    if bright is not None:
        frames[bright, 100:120, 40:60] = 780
    return frames


def view_of(path: Path, **changes: Any) -> View:
    """Left CC of a tomosynthesis that nobody annotated, but for the changes."""
    view = View("view", "L", "CC", "DBT", (path,), None, upright=True)
    return dataclasses.replace(view, **changes)
