"""Running NumPy code without floating-point warnings, cheaply.

`np.errstate` costs several times as much as a small addition. NumPy keeps its error state in a context variable, so setting that
variable to a state in which warnings are off, and resetting it afterwards, does the same for a fraction of the price. A function that
calls no code of a user's may be run in another context, where warnings are off for good, which is cheaper still.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any

import numpy as np

#: Empty, but for what `seterr` leaves: NumPy's variable with the value that it has when all warnings are off.
_QUIET = Context()
_QUIET.run(np.seterr, all="ignore")
((_state, _SILENT),) = _QUIET.items()


def silenced(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with floating-point warnings off while it runs."""
    enter, leave = _state.set, _state.reset

    def call(*args: Any) -> Any:
        token = enter(_SILENT)
        try:
            return function(*args)
        finally:
            leave(token)

    return call


def silenced_apart(function: Callable[..., Any], arity: int) -> Callable[..., Any]:
    """The same for a function of `arity` arrays that looks at no context variables; written out for the fewest, where every call counts.

    One thread at a time can be in a context. If another one is, `run` raises RuntimeError at once, and a copy of the context serves.
    A function that raises RuntimeError by itself is called once more, which does no harm: it has no effects but its result.
    """
    run, copy = _QUIET.run, _QUIET.copy

    def unary(x: Any) -> Any:
        try:
            return run(function, x)
        except RuntimeError:
            return copy().run(function, x)

    def binary(x: Any, y: Any) -> Any:
        try:
            return run(function, x, y)
        except RuntimeError:
            return copy().run(function, x, y)

    def nary(*args: Any) -> Any:
        try:
            return run(function, *args)
        except RuntimeError:
            return copy().run(function, *args)

    forms: dict[int, Callable[..., Any]] = {1: unary, 2: binary}
    return forms.get(arity, nary)
