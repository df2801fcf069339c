"""x[i] = v, for libraries that assign to elements: an error, unless it is allowed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from volta_fn.core.array import Array, ConcreteArray, attach
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ImmutableError

_allowed: ContextVar[bool] = ContextVar("assignment_allowed", default=False)

_IMMUTABLE = (
    "arrays are immutable, so x[i] = v cannot change one. Write x = x.at[i].set(v), which returns a new array "
    "(inside jit nothing is copied when the old one is dead); .at[i].add, .multiply, .min, .max do the other updates."
)


@contextlib.contextmanager
def allow_assignment() -> Iterator[None]:
    """Let ``x[i] = v`` replace an array's elements within a ``with`` block.

    It is for libraries written to the Array API standard that assign to elements, such as scikit-learn. The elements are copied, so that
    no other array changes, not even one made from `x` without a copy; but every name of `x` itself sees the change. A compiled program
    that has `x` as a constant may have the old elements or the new ones, so do not assign to such arrays. Assignments
    inside functions that are traced or differentiated still raise `ImmutableError`.

    >>> x = jnp.zeros(3)
    >>> with jnp.allow_assignment():
    ...     x[1:] = 5.0
    >>> x
    Array([0., 5., 5.], dtype=float32)
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def _setitem(self: Array, index: Any, value: Any) -> None:
    if not _allowed.get():
        raise ImmutableError(f"{_IMMUTABLE} For libraries that assign, see volta_fn.numpy.allow_assignment.")
    if not isinstance(self, ConcreteArray) or current_trace() is not EVAL:
        raise ImmutableError(f"{_IMMUTABLE} allow_assignment does not hold inside functions that are traced or differentiated.")
    changed: Any = self.at[index].set(value)
    self._buffer, self._spec = changed.buffer(), changed._spec


attach("__setitem__", _setitem)
