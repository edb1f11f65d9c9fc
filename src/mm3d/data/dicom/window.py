"""How stored pixel values become display brightness: windows (linear or sigmoid) and lookup tables."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydicom.multival import MultiValue

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


def read_display(dataset: Any) -> Display | None:
    """The first window of a dataset (or of a functional group), else its first lookup table, else None."""
    centre, width = first_value(dataset.get("WindowCenter")), first_value(dataset.get("WindowWidth"))
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
