"""Folders that hold the results of one set of settings: a command refuses to mix in results of other settings."""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from mm3d.shared.config import difference
from mm3d.shared.errors import InputError

REMEDY = "give another folder with -o"


def check_folder(
    folder: Path, record: str, settings: dict[str, Any], may_differ: Container[str] = (), remedy: str = REMEDY
) -> dict[str, Any] | None:
    """Refuse a folder that was made with other settings.

    The file `record` in the folder says what it was made with. Its content is returned, or None if the folder has no
    such file. Settings named in `may_differ` are not compared. `remedy` tells the user what to do.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; {remedy}.")
    path = folder / record
    if not path.is_file():
        return None
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged; {remedy}.") from error
    check_settings(folder, before, settings, may_differ, remedy)
    return before


def check_settings(
    made: Path, before: Any, settings: dict[str, Any], may_differ: Container[str] = (), remedy: str = REMEDY
) -> None:
    """Refuse the folder or file `made` unless the settings that it was made with, `before`, are those of now."""
    if found := difference(before, settings, may_differ):
        raise InputError(f"{made} was made with {found}; {remedy}.")
