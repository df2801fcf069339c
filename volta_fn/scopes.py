"""Blocks and functions with names, and blocks that compute while tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.primitive import Primitive
from volta_fn.core.trace import EVAL, Trace, current_trace, is_concrete, run_under, set_trace


class named_scope(ContextDecorator):  # JAX's name
    """Give a block a name (context manager or decorator); programs keep lines instead.

    >>> with named_scope("layer"):
    ...     y = 1 + 1
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


def named_call(fun: Callable[..., Any] | None = None, *, name: str | None = None) -> Callable[..., Any]:
    """Return a function that is given a name as it is: programs keep lines instead."""
    return fun if fun is not None else lambda function: function


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Compute known values at once in a block of a function that is being traced.

    >>> import volta_fn as vf
    >>> @vf.jit
    ... def f(x):
    ...     with ensure_compile_time_eval():
    ...         total = int((vf.numpy.arange(3) + 1).sum())  # of an array, which Python may look at
    ...     return x * total
    >>> int(f(2))
    12
    """
    before = current_trace()
    try:
        set_trace(_KnownAtOnce(before))
        yield
    finally:
        set_trace(before)


class _KnownAtOnce(Trace):
    """Evaluates what depends on known values alone; the rest is traced as before."""

    __slots__ = ()

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Evaluate a primitive, or hand it to the trace outside."""
        outside = EVAL if all(map(is_concrete, args)) else self.parent
        assert outside is not None, "it was made with one"
        return run_under(outside, outside.process, primitive, args, params)
