"""The one exception that the user sees as a sentence, and how all others are described."""

import errno
import traceback
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)  # no space is left, or none of the user's share


class InputError(Exception):
    """Something that the user gave is wrong. The message is a sentence that names it and says what to do."""


def describe_error(error: Exception) -> str:
    """A sentence for the user. It does not quote an unexpected error, whose text may contain the name of a patient."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.errno in FULL:
        return f"the disk is full: cannot write {error.filename or 'a file'}; make room on it and run again."
    if isinstance(error, OSError) and error.strerror:
        return f"cannot read or write {error.filename or 'a file'}: {error.strerror}."
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}"
    return f"it failed unexpectedly ({where}); please report this."
