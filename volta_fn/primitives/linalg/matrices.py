"""Checks, triangles, transposes and products of stacks of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import DTypeError, GradientError, ShapeError
from volta_fn.primitives.contraction import batch_matmul
from volta_fn.primitives.data_movement.movement import broadcasted_iota, moveaxis, transpose
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.elementwise import complex_components
from volta_fn.primitives.elementwise.comparison import ge
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.reduction import reduce_sum

#: The dtypes that linear algebra computes in.
LINALG = frozenset(np.dtype(t) for t in (np.float32, np.float64, np.complex64, np.complex128))


def check_matrix(name: str, x: ShapedArray, square: bool = False) -> None:
    """Raise unless `x` is a stack of (square) matrices of a supported dtype."""
    if x.dtype not in LINALG:
        raise DTypeError(f"{name} computes in float32, float64, complex64 and complex128, got {x}; convert with lax.convert_element_type")
    if x.ndim < 2:
        raise ShapeError(f"{name} needs matrices, of two dimensions or more, got shape {x.shape}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name} needs square matrices (last two dimensions equal), got shape {x.shape}")


def batch_in_front(primitive: Primitive) -> Callable[..., Any]:
    """Return the batching rule of a primitive of one stack and several results.

    The new dimension joins the stack.
    """

    def batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        outs = bind(primitive, moveaxis(args[0], dims[0] or 0, 0), **params)
        return (outs, [0] * len(outs)) if primitive.multiple_results else (outs, 0)

    return batch


def no_tangents(outs: Sequence[Array]) -> tuple[Sequence[Array], list[Zero]]:
    """Return results with symbolic zeros as their tangents."""
    return outs, [Zero(o.aval.at_least_vspace()) for o in outs]


def no_derivative(primitive: Primitive) -> Callable[..., Any]:
    """Return the derivative rule of a primitive that has none, except by constants."""

    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        if any(type(t) is not Zero for t in tangents):
            raise GradientError(f"{primitive.name} has no derivative; use lax.stop_gradient if its argument counts as a constant")
        outs = bind(primitive, *primals, **params)
        return no_tangents(outs) if primitive.multiple_results else (outs, Zero(outs.aval.at_least_vspace()))

    return jvp


def matmul(a: Array, b: Array) -> Array:
    """Multiply two equally long stacks of matrices."""
    return batch_matmul(a, b)


def swap(x: Array) -> Array:
    """Transpose each matrix."""
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def adjoint(x: Array) -> Array:
    """Transpose and conjugate each matrix."""
    return complex_components.conj(swap(x))


def real_part(x: Array) -> Array:
    """Return the real part; a real array is returned as it is."""
    return complex_components.real(x) if x.dtype in dtypes.COMPLEX else x


def _offsets(x: Array) -> tuple[Array, Array]:
    """Return the row and the column of every element of a matrix."""
    shape = x.shape[-2:]
    return broadcasted_iota(np.int32, shape, 0), broadcasted_iota(np.int32, shape, 1)


def tril(x: Array, k: int = 0) -> Array:
    """Return each matrix with zeros above its k-th diagonal."""
    rows, columns = _offsets(x)
    return select(ge(rows + k, columns), x, as_value(np.zeros((), x.dtype)))


def triu(x: Array, k: int = 0) -> Array:
    """Return each matrix with zeros below its k-th diagonal."""
    rows, columns = _offsets(x)
    return select(ge(columns, rows + k), x, as_value(np.zeros((), x.dtype)))


def only_diagonal(x: Array) -> Array:
    """Return each matrix with zeros off its diagonal."""
    rows, columns = _offsets(x)
    return select(rows == columns, x, as_value(np.zeros((), x.dtype)))


def diagonal(x: Array) -> Array:
    """Return the diagonal of each square matrix."""
    return reduce_sum(only_diagonal(x), (x.ndim - 1,))


def hermitian_of(x: Array, lower: bool = True) -> Array:
    """Return the Hermitian matrix with a triangle of `x` and a real diagonal."""
    triangle = tril(x, -1) if lower else triu(x, 1)
    return triangle + adjoint(triangle) + to_dtype(real_part(only_diagonal(x)), x.dtype)


def eye_like(x: Array) -> Array:
    """Return the identity matrix of the shape and dtype of those in `x`."""
    rows, columns = _offsets(x)
    return to_dtype(rows == columns, x.dtype)


def safe_inverse(x: Array) -> Array:
    """Return 1 / x, and zero where x is zero."""
    zero, one = (as_value(np.asarray(v, x.dtype)) for v in (0, 1))
    vanishes = x == zero
    return select(vanishes, zero, one / select(vanishes, one, x))
