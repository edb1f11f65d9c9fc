"""run.json: what made the results in a folder, how long it took, and what could not be read."""

from pathlib import Path
from typing import Any

from mm3d.shared.config import is_deep, parse_json
from mm3d.shared.files import save_json

RECORD = "run.json"
VERSION = 1  # of run.json


def read_record(folder: Path) -> dict[str, Any] | None:
    """A folder's run.json; None if there is none that this mm3d can read."""
    try:
        record = parse_json((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_ours = isinstance(record, dict) and record.get("version") == VERSION and not is_deep(record)
    return record if is_ours else None


def write_record(folder: Path, **content: Any) -> None:
    save_json(folder / RECORD, {"version": VERSION} | content)
