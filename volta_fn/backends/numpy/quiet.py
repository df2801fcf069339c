"""Running NumPy code without floating-point warnings, cheaply.

`np.errstate` costs several times as much as a small addition. NumPy keeps its error state in a context variable, so setting that
variable to a state in which warnings are off, and resetting it afterwards, does the same for a fraction of the price.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

import numpy as np


def _error_state() -> tuple[ContextVar[Any], Any]:
    """NumPy's context variable, and its value when all warnings are off: what `seterr` leaves in an empty context."""
    context = Context()
    context.run(np.seterr, all="ignore")
    ((variable, value),) = context.items()
    return variable, value


_state, _SILENT = _error_state()


def silenced(function: Callable[..., Any], arity: int) -> Callable[..., Any]:
    """`function` of `arity` arguments with floating-point warnings off while it runs; written out for the fewest arguments."""
    enter, leave = _state.set, _state.reset

    def unary(x: Any) -> Any:
        token = enter(_SILENT)
        try:
            return function(x)
        finally:
            leave(token)

    def binary(x: Any, y: Any) -> Any:
        token = enter(_SILENT)
        try:
            return function(x, y)
        finally:
            leave(token)

    def nary(*args: Any) -> Any:
        token = enter(_SILENT)
        try:
            return function(*args)
        finally:
            leave(token)

    forms: dict[int, Callable[..., Any]] = {1: unary, 2: binary}
    return forms.get(arity, nary)
