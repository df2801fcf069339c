"""Casts of what a type says of named axes: whether values vary along them."""

from __future__ import annotations

from typing import Any

from volta_fn import tree
from volta_fn.core.array import as_value
from volta_fn.core.axes import ProcessAxis, bound_axes
from volta_fn.errors import ArgumentError
from volta_fn.primitives.collectives import casts


def pcast(x: Any, axis_name: Any, *, to: str) -> Any:
    """Say that a pytree of values may vary along named axes.

    Values stay as they are: along axes of a `vmap` or of this process's devices, types need not say it. Along axes of processes,
    cotangents are summed over the positions.

    Raises `ArgumentError` unless `to` is "varying", and `AxisNameError` for a name that is not bound.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda row: vf.lax.pcast(row, "i", to="varying"), axis_name="i")(vf.numpy.arange(2))
    Array([0, 1], dtype=int32)
    """
    if to != "varying":
        raise ArgumentError(f"pcast: values can be cast to 'varying' only, got to={to!r}; sums over positions are lax.psum's")
    processes = tuple([axis for axis in bound_axes(axis_name) if isinstance(axis, ProcessAxis)])
    return tree.map(lambda leaf: casts.pcast(as_value(leaf), processes, to), x)


def pvary(x: Any, axis_name: Any) -> Any:
    """Say that a pytree of values may vary along named axes: `pcast` to "varying".

    >>> import volta_fn as vf
    >>> vf.vmap(lambda row: vf.lax.pvary(row, "i"), axis_name="i")(vf.numpy.arange(2))
    Array([0, 1], dtype=int32)
    """
    return pcast(x, axis_name, to="varying")
