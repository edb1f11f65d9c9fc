"""mm3d: breast cancer detection in digital breast tomosynthesis with M&M-3D.

    model = mm3d.load("dbt")
    exam = model.predict("exam_folder/")

docs/python.md has more. Importing mm3d imports nothing else; `load` imports torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm3d.predict.api import Model, PredictedExam, load
    from mm3d.predict.settings import PredictSettings
    from mm3d.shared.errors import InputError

__version__ = "0.1.0"
__all__ = ["InputError", "Model", "PredictSettings", "PredictedExam", "load"]

_PLACES = {
    "InputError": "mm3d.shared.errors",
    "Model": "mm3d.predict.api",
    "PredictSettings": "mm3d.predict.settings",
    "PredictedExam": "mm3d.predict.api",
    "load": "mm3d.predict.api",
}


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` when it is first used."""
    if name not in _PLACES:
        raise AttributeError(f"module 'mm3d' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
