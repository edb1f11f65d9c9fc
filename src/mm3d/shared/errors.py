"""The one exception that reaches the user as a sentence instead of a traceback, and what is said of all others."""

import traceback
from pathlib import Path


class InputError(Exception):
    """Something the user gave is wrong: the message names it and says what to do, in one sentence."""


def unexpected(error: Exception) -> str:
    """Kind and place of a bug. Not its message, which may quote what is in a file, names of patients among it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"it failed unexpectedly ({type(error).__name__} in {Path(place.filename).name}, line {place.lineno})"
