"""Running NumPy code without floating-point warnings, cheaply.

`np.errstate` costs several times as much as a small addition: 4 µs a call, of which 0.6 are left here, or 0.2 in another context.
NumPy keeps its error state in a context variable, so setting that variable to a state in which warnings are off, and resetting it
afterwards, does the same. A function that calls no user code may run in another
context, where warnings are always off.

Where NumPy keeps its error state elsewhere, `np.errstate` itself is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, NamedTuple

import numpy as np

from volta_fn.runtime.out_of_memory import out_of_memory


class _Quiet(NamedTuple):
    """A context in which warnings are off, and NumPy's variable with its value there."""

    context: Context
    variable: ContextVar[Any]
    value: Any


def _find_quiet_state() -> _Quiet | None:
    """Find the one variable that `np.seterr` sets in an empty context, or None."""
    context = Context()
    context.run(np.seterr, all="ignore")
    found = list(context.items())
    if len(found) != 1:
        return None
    ((variable, value),) = found
    with np.errstate(all="raise"):
        token = variable.set(value)
        off = set(np.geterr().values()) == {"ignore"}
        variable.reset(token)
    return _Quiet(context, variable, value) if off else None


_QUIET = _find_quiet_state()


def silenced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with floating-point warnings off while it runs.

    NumPy's MemoryError becomes an `OutOfMemoryError`.
    """
    if _QUIET is None:
        return _with_errstate(function)
    enter, leave, value = _QUIET.variable.set, _QUIET.variable.reset, _QUIET.value

    def call(*args: Any) -> Any:
        token = enter(value)
        try:
            return function(*args)
        except MemoryError as error:
            raise out_of_memory(error) from None
        finally:
            leave(token)

    return call


def _with_errstate(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            try:
                return function(*args)
            except MemoryError as error:
                raise out_of_memory(error) from None

    return call


def silenced_in_context(function: Callable[..., Any], arity: int) -> Callable[..., Any]:
    """Return `function`, of `arity` arrays, run in a context without warnings.

    The function must not read context variables. One thread at a time can be in a context. If another one is, `run` raises RuntimeError at
    once, and a copy of the context serves. A function that raises RuntimeError by itself is called once more, which does no harm: it has no
    effects but its result. NumPy's MemoryError becomes an `OutOfMemoryError`.
    """
    if _QUIET is None:
        return _with_errstate(function)
    run, copy = _QUIET.context.run, _QUIET.context.copy

    def again(error: Exception, *args: Any) -> Any:
        if isinstance(error, MemoryError):
            raise out_of_memory(error) from None
        try:
            return copy().run(function, *args)
        except MemoryError as lack:
            raise out_of_memory(lack) from None

    def unary(x: Any) -> Any:
        try:
            return run(function, x)
        except (RuntimeError, MemoryError) as error:
            return again(error, x)

    def binary(x: Any, y: Any) -> Any:
        try:
            return run(function, x, y)
        except (RuntimeError, MemoryError) as error:
            return again(error, x, y)

    def nary(*args: Any) -> Any:
        try:
            return run(function, *args)
        except (RuntimeError, MemoryError) as error:
            return again(error, *args)

    forms: dict[int, Callable[..., Any]] = {
        1: unary,
        2: binary,
    }  # the fewest arguments have functions of their own, as they are the cheapest calls
    call: Any = forms.get(arity, nary)
    call.plain = function
    return call


def quiet_context() -> Context | None:
    """Return the context without warnings, which one thread at a time can be in."""
    return None if _QUIET is None else _QUIET.context


def plain_of(silent: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function that `silenced_in_context` runs; None of all others."""
    return getattr(silent, "plain", None)
