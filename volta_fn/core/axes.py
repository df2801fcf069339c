"""Named axes: the names and sizes that `vmap(..., axis_name=...)` has bound."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from volta_fn.errors import AxisNameError

_axes: ContextVar[tuple[tuple[Any, int], ...]] = ContextVar("named_axes", default=())


def axis_environment() -> tuple[tuple[Any, int], ...]:
    """Return the bound (name, size) pairs, outermost first; programs depend on them."""
    return _axes.get()


@contextlib.contextmanager
def bound_axis(name: Any, size: int) -> Iterator[None]:
    """Bind a name (None binds nothing) to an axis size."""
    if name is None:
        yield
        return
    before = _axes.get()
    try:
        _axes.set((*before, (name, size)))
        yield
    finally:
        _axes.set(before)


def axis_size(name: Any) -> int:
    """Return the size of a named axis; raise `AxisNameError` if it is not bound."""
    for bound, size in reversed(_axes.get()):
        if bound == name:
            return size
    known = [n for n, _ in _axes.get()]
    raise AxisNameError(f"no axis named {name!r} is in scope (bound here: {known}); give one with vmap(f, axis_name={name!r})")
