"""Arguments of samplers: shape, dtype, and parameters that broadcast to the shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.core.aval import Shape, canonical_shape
from volta_fn.errors import BroadcastError, DTypeError, ShapeError
from volta_fn.primitives.declare import to_dtype

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int32)


def dtype_in(function: str, dtype: Any, default: np.dtype, allowed: frozenset[np.dtype], kind: str) -> np.dtype:
    """Return the requested dtype or the default; raise `DTypeError` for other kinds."""
    wanted = dtypes.default(default) if dtype is None else dtypes.as_dtype(dtype)
    if wanted not in allowed:
        raise DTypeError(f"{function}: dtype must be {kind}, got {wanted.name}")
    return wanted


def float_dtype(function: str, dtype: Any) -> np.dtype:
    """Return the requested floating dtype, float32 by default."""
    return dtype_in(function, dtype, FLOAT, dtypes.FLOATS, "a real floating dtype")


def int_dtype(function: str, dtype: Any) -> np.dtype:
    """Return the requested integer dtype, int32 by default."""
    return dtype_in(function, dtype, INT, dtypes.INTEGERS, "an integer dtype")


def shape_with(function: str, shape: Sequence[int] | None, **parameters: Array | np.ndarray) -> Shape:
    """Return the requested shape, by default the one that the parameters broadcast to.

    Raises `ShapeError` if the parameters do not broadcast to the requested shape.
    """
    given = [p.shape for p in parameters.values()]
    if shape is None:
        return lax.broadcast_shapes((), *given)
    wanted = canonical_shape(shape)
    try:
        fits = lax.broadcast_shapes(wanted, *given) == wanted
    except BroadcastError:
        fits = False
    if not fits:
        listed = ", ".join(f"{name} of shape {p.shape}" for name, p in parameters.items())
        raise ShapeError(f"{function}: {listed} must broadcast to shape {wanted}; leave shape out to take theirs")
    return wanted


def parameters(function: str, dtype: Any, shape: Sequence[int] | None, **given: Any) -> tuple[Any, ...]:
    """Return a sample's floating dtype and shape, and its parameters in that dtype."""
    wanted = float_dtype(function, dtype)
    values = {name: to_dtype(value, wanted) for name, value in given.items()}
    return wanted, shape_with(function, shape, **values), *values.values()


def known_integers(value: Any) -> np.ndarray | None:
    """Return integers of the host as an array; None for arrays, tracers and others.

    On the host they have 64 bits, where the device may hold only 32.
    """
    if type(value) is int:
        return np.asarray(value, dtypes.scalar_dtype(value)[0])
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype in dtypes.INTEGERS:
        return np.asarray(value)
    return None
