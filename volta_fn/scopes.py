"""Blocks and functions with names, and blocks that compute while tracing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from typing import Any, TypeVar, overload

from volta_fn.core.arrays.array import Array
from volta_fn.core.primitive import Primitive
from volta_fn.core.trace import EVAL, Trace, current_trace, is_concrete, run_under, set_trace
from volta_fn.errors import ArgumentTypeError
from volta_fn.source import current_scope

F = TypeVar("F", bound=Callable[..., Any])


class named_scope(ContextDecorator):  # JAX's name
    """Give a block a name (context manager or decorator).

    Equations that are traced in it carry the name with their line, as `make_jaxpr(f)(x).pretty_print(source_info=True)`, `explain` and
    traces of the profiler show. Names of nested blocks are joined by slashes.

    >>> import volta_fn as vf
    >>> def f(x):
    ...     with vf.named_scope("layer"):
    ...         return vf.numpy.tanh(x)
    >>> vf.make_jaxpr(f)(1.0).eqns[0].source.scope
    'layer'
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"named_scope: a name is a string, got {name!r:.80} of type {type(name).__name__}")
        self.name = name
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        outer = current_scope.get()
        self._tokens.append(current_scope.set(f"{outer}/{self.name}" if outer else self.name))

    def __exit__(self, *exception: object) -> None:
        current_scope.reset(self._tokens.pop())


@overload
def named_call(fun: None = None, *, name: str | None = None) -> Callable[[F], F]: ...
@overload
def named_call(fun: F, *, name: str | None = None) -> F: ...
def named_call(fun: Callable[..., Any] | None = None, *, name: str | None = None) -> Callable[..., Any]:
    """Return a function whose equations carry its name; see `named_scope`.

    `name` is by default that of the function. Without a function, return a decorator.

    >>> import volta_fn as vf
    >>> vf.make_jaxpr(vf.named_call(vf.numpy.tanh, name="squash"))(1.0).eqns[0].source.scope
    'squash'
    """
    if fun is None:
        return functools.partial(named_call, name=name)
    title = name or str(getattr(fun, "__name__", "function"))

    @functools.wraps(fun)
    def named(*args: Any, **kwargs: Any) -> Any:
        with named_scope(title):
            return fun(*args, **kwargs)

    return named


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Evaluate operations on concrete arrays in a block of a traced function.

    >>> import volta_fn as vf
    >>> @vf.jit
    ... def f(x):
    ...     with vf.ensure_compile_time_eval():
    ...         total = int((vf.numpy.arange(3) + 1).sum())  # of an array, which Python may look at
    ...     return x * total
    >>> int(f(2))
    12
    """
    before = current_trace()
    try:
        set_trace(_EvaluateConcrete(before))
        yield
    finally:
        set_trace(before)


class _EvaluateConcrete(Trace):
    """Evaluates operations on concrete values; others are traced as before."""

    __slots__ = ()

    def runs_now(self, args: Sequence[Array]) -> bool:
        return all(map(is_concrete, args))

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Evaluate a primitive, or hand it to the trace outside."""
        outside = EVAL if self.runs_now(args) else self.parent
        assert outside is not None, "it was made with one"
        return run_under(outside, outside.process, primitive, args, params)
