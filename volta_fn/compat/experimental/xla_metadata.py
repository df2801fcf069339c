"""Attributes of operations for XLA, by JAX's name.

They are accepted and have no effect: programs here keep lines of source instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.errors import ArgumentTypeError

__all__ = ["set_xla_metadata"]


class _Attributes:
    """A block, or a function, to whose operations attributes are given."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as it is."""
        return function

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""


def set_xla_metadata(x: Any = None, **kwargs: Any) -> Any:
    """Return `x`; without it a context manager, which is a decorator, too.

    The attributes have no effect. Raises `ArgumentTypeError` for values that are neither strings, numbers nor booleans.

    >>> import volta_fn as vf
    >>> set_xla_metadata(vf.numpy.ones(2), label="input")
    Array([1., 1.], dtype=float32)
    >>> with set_xla_metadata(label="block"):
    ...     vf.numpy.ones(2) * 2
    Array([2., 2.], dtype=float32)
    """
    for name, value in kwargs.items():
        if not isinstance(value, (str, int, float)):
            raise ArgumentTypeError(f"set_xla_metadata: {name} must be a string, a number or a boolean, got {value!r}")
    return _Attributes() if x is None else x
