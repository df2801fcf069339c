"""Casts of what a type says of named axes: whether values vary along them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.primitive import AxisData, Linear, Primitive
from volta_fn.core.trace import ProcessAxis, axis_size, bind, bound_axes
from volta_fn.errors import ArgumentError
from volta_fn.primitives.collectives.exchanges import psum_p
from volta_fn.primitives.collectives.groups import Names, linear_jvp
from volta_fn.primitives.elementwise.arithmetic import div

# ------------------------------------------------------------------------------
# The border of a program on several processes, which derivatives see.
#
# Inside, a cotangent is that of a process's own value. Outside, a value that does not vary along an axis is one value, with one
# cotangent: the sum of those of all processes. So `pcast` does nothing to values, but its transpose adds or shares out cotangents.
# ------------------------------------------------------------------------------


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Array, int | None]:
    return bind(pcast_p, *args, **params), dims[0]


def _transpose(ct: Array, operand: Linear, *, axis_names: Names, to: str) -> list[Array]:
    if to == "varying":
        return list(bind(psum_p, ct, axis_names=axis_names, axis_index_groups=None, compression=None))
    return [div(ct, as_value(np.asarray(axis_size(axis_names)).astype(ct.dtype)))]


pcast_p = Primitive(
    "pcast",
    lambda operand, *, axis_names, to: operand,
    evaluate=lambda operand, *, axis_names, to: operand,
    batch=_batch,
    transpose=_transpose,
    views=True,
)
pcast_p.jvp = linear_jvp(pcast_p)


def border_cast(x: Array, axes: Names, to: str) -> Array:
    """Mark a value as "varying", on entering, or "replicated", on leaving."""
    return bind(pcast_p, x, axis_names=axes, to=to) if axes else x


# ------------------------------------------------------------------------------
# Casts of what a type says of named axes: whether values vary along them.
# ------------------------------------------------------------------------------


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
    return tree.map(lambda leaf: border_cast(as_value(leaf), processes, to), x)


def pvary(x: Any, axis_name: Any) -> Any:
    """Say that a pytree of values may vary along named axes: `pcast` to "varying".

    >>> import volta_fn as vf
    >>> vf.vmap(lambda row: vf.lax.pvary(row, "i"), axis_name="i")(vf.numpy.arange(2))
    Array([0, 1], dtype=int32)
    """
    return pcast(x, axis_name, to="varying")
