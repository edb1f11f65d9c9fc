"""The one exception that the user sees as a sentence, and how all others are described."""

import traceback
from pathlib import Path


class InputError(Exception):
    """Something that the user gave is wrong. The message is a sentence that names it and says what to do."""


def describe_bug(error: Exception) -> str:
    """Kind and place of an unexpected error. Its own message may quote a file, with the name of a patient."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"it failed unexpectedly ({type(error).__name__} in {Path(place.filename).name}, line {place.lineno})"
