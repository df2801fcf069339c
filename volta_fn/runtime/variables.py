"""Numbers that users set by variables of the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from volta_fn.errors import ArgumentError

N = TypeVar("N", int, float)


def number(variable: str, kind: Callable[[str], N], expected: str) -> N | None:
    """Return the number that a variable is set to; None if it is not set.

    Raises `ArgumentError` if it is no such number, or less than 0.
    """
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        found = kind(text)
    except ValueError:
        found = kind("-1")
    if found >= 0:
        return found
    raise ArgumentError(f"{variable} must be {expected}, got {text!r}")
