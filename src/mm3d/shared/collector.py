"""Python's collector of reference cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Do not search for reference cycles meanwhile, also as a decorator.

    While many records are made, Python searches all that are there again and again, which takes a third of the time of
    reading a large table. Records have no cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
