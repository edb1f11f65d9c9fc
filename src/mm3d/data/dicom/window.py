"""How pixels are stored, and how their values become display brightness: by windows or lookup tables."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydicom.multival import MultiValue

from mm3d.shared.errors import InputError

Values = NDArray[np.float32]


@dataclass(frozen=True)
class Window:
    """The values shown between black and white."""

    centre: float
    width: float
    function: Literal["LINEAR", "LINEAR_EXACT", "SIGMOID"] = "LINEAR"

    def apply(self, values: Values) -> Values:
        """Brightness from 0 to 1, by the formulas of DICOM PS3.3 C.11.2.1."""
        if self.function == "SIGMOID":
            return 1 / (1 + np.exp(np.clip(-4 * (values - self.centre) / self.width, -80, 80)))
        if self.function == "LINEAR_EXACT":
            return np.clip((values - self.centre) / self.width + 0.5, 0, 1)
        return np.clip((values - (self.centre - 0.5)) / max(self.width - 1, 1e-6) + 0.5, 0, 1)


@dataclass(frozen=True)
class LookupTable:
    """A brightness for every stored value from `first` on."""

    first: int
    table: tuple[float, ...]  # from 0 to 1

    def apply(self, values: Values) -> Values:
        index = np.clip(np.rint(values - self.first), 0, len(self.table) - 1).astype(np.intp)
        return np.asarray(self.table, dtype=np.float32)[index]


Display = Window | LookupTable


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """How the pixels of a view are stored. All slices of a view have this in common."""

    name: str  # for messages: the path of the file, or of the first one
    rows: int
    columns: int
    bits_stored: int
    signed: bool = False
    inverted: bool = False  # MONOCHROME1: large values are dark
    slope: float = 1.0
    intercept: float = 0.0
    display: Display | None
    for_processing: bool = False
    pixel_spacing: float | None  # mm
    slice_spacing: float | None  # mm
    vendor: str

    @property
    def largest_value(self) -> int:
        """The largest value that can be stored; inverted values are subtracted from it."""
        return (2 ** (self.bits_stored - 1) if self.signed else 2**self.bits_stored) - 1

    def display_values(self, slice_: NDArray[np.integer]) -> NDArray[np.float32]:
        """The values of a slice that is bright where there is tissue, as `display` takes them: as stored, rescaled."""
        values = slice_.astype(np.float32)
        return (self.largest_value - values if self.inverted else values) * self.slope + self.intercept


def read_display(dataset: Any) -> Display | None:
    """The first window of a dataset (or of a functional group), else its first lookup table, else None."""
    centre, width = first_value(dataset.get("WindowCenter")), first_value(dataset.get("WindowWidth"))
    if not all(math.isfinite(float(number)) for number in (centre, width) if number is not None):
        raise InputError("has a display window that is not made of finite numbers")
    if centre is not None and width is not None and float(width) > 0:
        function = str(dataset.get("VOILUTFunction") or "LINEAR").upper()
        known = function if function in ("LINEAR_EXACT", "SIGMOID") else "LINEAR"
        return Window(float(centre), float(width), known)  # type: ignore[arg-type]
    for item in dataset.get("VOILUTSequence") or ():
        entries, first, bits = (int(number) for number in item.LUTDescriptor)
        raw = item.LUTData
        table = np.frombuffer(raw, dtype="<u2") if isinstance(raw, bytes) else np.asarray(raw)
        if len(table) == (entries or 65536):
            return LookupTable(first, tuple((table.astype(np.float64) / (2**bits - 1)).clip(0, 1).tolist()))
    return None


def first_value(value: Any) -> Any:
    """The first of the numbers of a DICOM element, which may be one, many, empty or absent."""
    values = value if isinstance(value, MultiValue | list) else [value]
    return None if not values or values[0] in (None, "") else values[0]
