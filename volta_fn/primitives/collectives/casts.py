"""The border of a program on several processes, which derivatives see.

Inside, a cotangent is that of a process's own value. Outside, a value that does not vary along an axis is one value, with one cotangent:
the sum of those of all processes. So `pcast` does nothing to values, but its transpose adds or shares out cotangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import Array, as_value
from volta_fn.core.axes import axis_size
from volta_fn.core.primitive import AxisData, Linear, Primitive
from volta_fn.core.trace import bind
from volta_fn.primitives.collectives.groups import Names, linear_jvp
from volta_fn.primitives.collectives.reductions import psum_p
from volta_fn.primitives.elementwise.arithmetic import div


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


def pcast(x: Array, axes: Names, to: str) -> Array:
    """Mark a value as "varying", on entering, or "replicated", on leaving."""
    return bind(pcast_p, x, axis_names=axes, to=to) if axes else x
