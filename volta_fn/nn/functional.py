"""`logmeanexp`, `standardize` and `one_hot`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.core.axes import axis_size
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import narrowed, promote_inexact, wide
from volta_fn.primitives.collectives.gathers import axis_index
from volta_fn.primitives.data_movement.movement import canonical_axis
from volta_fn.scipy.special import logsumexp

__all__ = ["logmeanexp", "one_hot", "standardize"]


Axis = int | Sequence[int] | None


def logmeanexp(x: Any, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Array:
    """Return log(mean(exp(x))) along `axis`, without overflow.

    Elements not in `where` do not count.

    >>> vf.nn.logmeanexp(vf.numpy.array([0.0, 0.0])).round(4)
    Array(0., dtype=float32)
    """
    value = as_value(x)
    total = logsumexp(wide(value), axis, where=where, keepdims=keepdims)
    if where is None:
        count: Any = np.asarray(value.size // max(total.size, 1), total.dtype)
    else:
        count = vnp.sum(vnp.ones_like(value, dtype=total.dtype), axis, keepdims=keepdims, where=where)
    return narrowed(total - vnp.log(count), value)


def standardize(
    x: Any,
    axis: Axis = -1,
    mean: Any = None,
    variance: Any = None,
    epsilon: Any = 1e-5,
    where: Any = None,
    *,
    algorithm: Literal["fast", "stable"] = "stable",
) -> Array:
    """Return (x - mean) / sqrt(variance + epsilon) along `axis`.

    Args:
        x: an array.
        axis: the axes over which mean and variance are computed.
        mean: replaces that of the elements.
        variance: replaces that of the elements.
        epsilon: keeps the root from being zero.
        where: bool; elements not in it do not count.
        algorithm: how the variance is computed: "stable" as the mean of squared differences from the mean; "fast" (JAX's default) as
            the mean of the squares less the square of the mean, which loses all precision where the mean is large.

    >>> vf.nn.standardize(vf.numpy.array([1.0, 2.0, 3.0])).round(3)
    Array([-1.225,  0.   ,  1.225], dtype=float32)
    """
    if algorithm not in ("fast", "stable"):
        raise ArgumentError(f"standardize: algorithm is 'fast' or 'stable', got {algorithm!r}")
    operands = promote_inexact("standardize", x, *[v for v in (mean, variance) if v is not None])
    value = wide(operands[0])
    centre = vnp.mean(value, axis, keepdims=True, where=where) if mean is None else mean
    if variance is not None:
        spread = variance
    elif algorithm == "stable":
        spread = vnp.mean(vnp.square(value - centre), axis, keepdims=True, where=where)
    else:
        squares = vnp.mean(vnp.square(value), axis, keepdims=True, where=where)
        spread = vnp.maximum(squares - vnp.square(centre), 0)
    return narrowed((value - centre) / vnp.sqrt(spread + epsilon), operands[0])


@fused
def one_hot(x: Any, num_classes: Any, *, dtype: Any = None, axis: Any = -1) -> Array:
    """Encode each class number of `x` as a one-hot vector along a new `axis`.

    The vector is zero if the number is not in range(num_classes). `axis` may name an axis of a surrounding `vmap` with `num_classes`
    examples, each of which then holds its own class. The default dtype is float32. Raises `ArgumentError` if `num_classes` is not the size
    of that axis.

    >>> vf.nn.one_hot(vf.numpy.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    value = vnp.asarray(x)
    count = int(concrete_or_raise(num_classes, "argument num_classes of one_hot"))
    wanted = dtypes.default(vnp.dtype("float32")) if dtype is None else dtype
    if isinstance(axis, str):
        if count != axis_size(axis):
            raise ArgumentError(f"one_hot: num_classes={count} differs from the size {axis_size(axis)} of the axis {axis!r}")
        return (value == axis_index(axis)).astype(wanted)
    dim = canonical_axis(axis, value.ndim + 1)
    classes = vnp.arange(count, dtype=value.dtype).reshape((count,) + (1,) * (value.ndim - dim))
    return (vnp.expand_dims(value, dim) == classes).astype(wanted)
