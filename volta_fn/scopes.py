"""Blocks and functions with names, and blocks that compute while a program is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from typing import Any

from volta_fn.core.trace import EVAL, pop_trace, push_trace


class named_scope(ContextDecorator):  # JAX's name
    """Give a block a name (a context manager or decorator); programs here keep lines instead.

    >>> with named_scope("layer"):
    ...     y = 1 + 1
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


def named_call(fun: Callable[..., Any] | None = None, *, name: str | None = None) -> Callable[..., Any]:
    """Give a function a name; programs here keep lines instead, so it is returned as it is."""
    return fun if fun is not None else lambda function: function


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Compute known values at once while a block runs, in a function that is being traced.

    >>> import volta_fn as vf
    >>> @vf.jit
    ... def f(x):
    ...     with ensure_compile_time_eval():
    ...         table = vf.numpy.arange(3) + 1  # an array, which Python may look at
    ...     return x * int(table.sum())
    >>> int(f(2))
    12
    """
    token = push_trace(EVAL)
    try:
        yield
    finally:
        pop_trace(token)


def register_exclusion(path: str) -> None:
    """Accept a file whose frames JAX leaves out of tracebacks; here all are shown."""


def api_boundary(fun: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Mark a function as one of a library's interface; it is returned as it is."""
    return fun
