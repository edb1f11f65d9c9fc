"""What a user can choose in the preparation. The settings are part of the keys of prepared views."""

from dataclasses import dataclass
from typing import Literal

from mm3d.shared.config import check
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class PrepareSettings:
    """The defaults are the paper's."""

    width: int = 1100
    """Width of a prepared view in pixels, unless its length would exceed `length`."""
    length: int = 2200
    """Greatest length (height) of a prepared view."""
    slices: int = 16
    """S: volumes are max-pooled to this many slices; those with fewer are kept as they are."""
    intensity: Literal["auto", "window", "percentile"] = "auto"
    """What becomes 0 and 1: the file's display window, or percentiles inside the breast; auto takes the window if
    there is one, unless the image is For Processing."""

    def __post_init__(self) -> None:
        check(self)
        for name in ("width", "length", "slices"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)} must be at least 1.")
