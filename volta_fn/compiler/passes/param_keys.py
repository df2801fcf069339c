"""Keys that equal literals and equal parameters share, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.core.array import Array, ConcreteArray
from volta_fn.core.jaxpr import Atom, Literal


def numbers_of(value: Array) -> np.ndarray | None:
    """Return the numbers of a constant, if they can be read without waiting."""
    return value.device.backend.known(value.buffer()) if type(value) is ConcreteArray else None


def literal_key(atom: Atom) -> Any:
    """Return a key that literals of the same dtype and bits share; a variable itself."""
    value = numbers_of(atom.val) if type(atom) is Literal else None
    return atom if value is None else (value.dtype, value.tobytes())


def params_key(params: dict[str, Any]) -> tuple[Any, ...]:
    """Return an equation's parameters as a key.

    Equality takes 1 for True and 0.0 for -0.0, and this does not.
    """
    return (*params, *map(_exact, params.values()))


def _exact(value: Any) -> Any:
    if isinstance(value, tuple):
        if all(type(v) is int for v in value):  # almost all
            return type(value), value
        return (type(value), *map(_exact, value))
    if isinstance(value, (float, complex, np.generic)):
        return type(value), repr(value)
    return type(value), value
