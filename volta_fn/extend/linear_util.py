"""Functions with transformations applied to them: `jax.extend.linear_util`.

`wrap_init(f)` wraps a function, transformations wrap it further, and `call_wrapped` calls it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class StoreException(Exception):
    """A value was asked for before the function was called."""


class Store:
    """A value that a function leaves when it is called: `store`, `val`."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def store(self, value: Any) -> None:
        """Keep the value of the latest call."""
        self._found = [value]

    @property
    def val(self) -> Any:
        """The value; raises `StoreException` if there is none yet."""
        if not self._found:
            raise StoreException("the function has not been called yet")
        return self._found[0]

    def __call__(self) -> Any:
        return self.val


class WrappedFun:
    """A function to be called by `call_wrapped`, with keyword arguments `params`."""

    def __init__(self, f: Callable[..., Any], params: dict[str, Any] | None = None, debug_info: Any = None) -> None:
        self.f = f
        self.params = params or {}
        self.debug_info = debug_info

    @property
    def __name__(self) -> str:
        return getattr(self.f, "__name__", "<unnamed function>")

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.f(*args, **self.params, **kwargs)


def wrap_init(f: Callable[..., Any], params: dict[str, Any] | None = None, *, debug_info: Any = None) -> WrappedFun:
    """Wrap a function."""
    return WrappedFun(f, params, debug_info)


def _curried(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let `make(gen, fun, …)` also serve as a decorator of `gen`."""

    @functools.wraps(make)
    def call(gen: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return make(gen, *args, **kwargs) if args else functools.partial(make, gen)

    return call


@_curried
def transformation2(gen: Callable[..., Any], fun: WrappedFun, *static: Any) -> WrappedFun:
    """Transform a function by `gen(f, *static, *args, **kwargs)`, which calls `f`."""
    return WrappedFun(functools.partial(gen, fun.call_wrapped, *static), debug_info=fun.debug_info)


@_curried
def transformation_with_aux2(gen: Callable[..., Any], fun: WrappedFun, *static: Any, **options: Any) -> tuple[WrappedFun, Store]:
    """Transform by `gen(f, store, *static, *args, **kwargs)`; also return the store."""
    store = Store()
    return WrappedFun(functools.partial(gen, fun.call_wrapped, store, *static), debug_info=fun.debug_info), store


def _run(gen: Callable[..., Any], f: Callable[..., Any], static: Any, args: Any, kwargs: Any) -> Any:
    """Run a transformation that is a generator: it yields arguments, then its result."""
    steps = gen(*static, *args, **kwargs)
    inner_args, inner_kwargs = next(steps)
    return steps.send(f(*inner_args, **inner_kwargs))


@_curried
def transformation(gen: Callable[..., Any], fun: WrappedFun, *static: Any) -> WrappedFun:
    """Transform by a generator: it yields arguments, is sent results, yields its own."""
    return WrappedFun(lambda *args, **kwargs: _run(gen, fun.call_wrapped, static, args, kwargs), debug_info=fun.debug_info)


@_curried
def transformation_with_aux(gen: Callable[..., Any], fun: WrappedFun, *static: Any, **options: Any) -> tuple[WrappedFun, Store]:
    """Transform by a generator that yields its result and what to store last."""
    store = Store()

    def call(*args: Any, **kwargs: Any) -> Any:
        result, aux = _run(gen, fun.call_wrapped, static, args, kwargs)
        store.store(aux)
        return result

    return WrappedFun(call, debug_info=fun.debug_info), store


def merge_linear_aux(first: Store, second: Store) -> tuple[bool, Any]:
    """Return which of two stores has a value, and that value."""
    try:
        return True, first.val
    except StoreException:
        return False, second.val


def cache(call: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Keep the results of a function of wrapped functions."""
    return functools.lru_cache(maxsize=256)(call)
