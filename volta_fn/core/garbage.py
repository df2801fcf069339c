"""Python's search for garbage, left out where very many objects are made that stay: it would look at all of them, again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside ``with`` Python does not look for cycles of objects that nobody has any more; it does so afterwards, if it did before."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()
