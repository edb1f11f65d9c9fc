"""run.json: what made the results in a folder, how long it took, and what could not be read."""

import json
from pathlib import Path
from typing import Any

from mm3d.shared.files import save_json

RECORD = "run.json"
VERSION = 1  # of run.json


def read_record(folder: Path) -> dict[str, Any] | None:
    """A folder's run.json; None if there is none that this mm3d can read."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("version") == VERSION else None


def write_record(folder: Path, **content: Any) -> None:
    save_json(folder / RECORD, {"version": VERSION} | content)
