"""The solution of tridiagonal systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import DTypeError, GradientError, ShapeError
from volta_fn.primitives.data_movement.joining import pad
from volta_fn.primitives.data_movement.movement import broadcast, broadcast_in_dim, expand_dims, moveaxis
from volta_fn.primitives.declare import to_dtype, weakly_promoted
from volta_fn.primitives.elementwise.arithmetic import max as maximum
from volta_fn.primitives.elementwise.comparison import is_finite
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.linalg.matrices import check_matrix
from volta_fn.primitives.reduction import reduce_and, reduce_max


def _abstract(lower: ShapedArray, diagonal: ShapedArray, upper: ShapedArray, b: ShapedArray) -> ShapedArray:
    check_matrix("tridiagonal_solve", b)
    if {lower.dtype, diagonal.dtype, upper.dtype} != {b.dtype}:
        raise DTypeError(f"tridiagonal_solve needs operands of one dtype, got {lower}, {diagonal}, {upper} and {b}")
    if not lower.shape == diagonal.shape == upper.shape == b.shape[:-1]:
        raise ShapeError(
            f"tridiagonal_solve needs diagonals (*batch, n) and b (*batch, n, k); "
            f"got shapes {lower.shape}, {diagonal.shape}, {upper.shape} and {b.shape}"
        )
    return ShapedArray(b.shape, b.dtype)


def _jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
    """Differentiate T X = B: T dX = dB - dT X."""
    *diagonals, b = primals
    x = bind(tridiagonal_solve_p, *diagonals, b)
    terms = [_times(t, x, shift) for t, shift in zip(tangents[:3], (-1, 0, 1), strict=True) if type(t) is not Zero]
    right = tangents[3]
    for term in terms:
        right = -term if type(right) is Zero else right - term
    if type(right) is Zero:
        return x, Zero(x.aval.at_least_vspace())
    return x, bind(tridiagonal_solve_p, *diagonals, right)


def _times(diagonal: Array, x: Array, shift: int) -> Array:
    """Multiply by a matrix that is zero off a diagonal, `shift` right of the main one."""
    return expand_dims(diagonal, (diagonal.ndim,)) * _shifted(x, shift, x.ndim - 2)


def _shifted(x: Array, shift: int, axis: int) -> Array:
    """Return ``x[i + shift]``, and zeros where there is no such element."""
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (-shift, shift, 0)
    return pad(x, np.zeros((), x.dtype), config) if shift else x


def _transpose(ct: Any, lower: Any, diagonal: Any, upper: Any, b: Any) -> list[Any]:
    if Linear in {type(lower), type(diagonal), type(upper)}:
        raise GradientError("tridiagonal_solve is not linear in the diagonals, so it cannot be transposed for them")
    last = diagonal.ndim - 1
    return [None, None, None, bind(tridiagonal_solve_p, _shifted(upper, -1, last), diagonal, _shifted(lower, 1, last), ct)]


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> tuple[Array, int]:
    moved = [broadcast(x, (axis.size,)) if dim is None else moveaxis(x, dim, 0) for x, dim in zip(args, dims, strict=True)]
    return bind(tridiagonal_solve_p, *moved), 0


tridiagonal_solve_p = Primitive("tridiagonal_solve", _abstract, jvp=_jvp, transpose=_transpose, batch=_batch)


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False) -> Array:
    """Solve T X = B for tridiagonal matrices T, by elimination with pivoting.

    Args:
        dl: the lower diagonals (*batch, n), ``dl[i] = T[i, i - 1]``; the first element is not read.
        d: the main diagonals (*batch, n).
        du: the upper diagonals (*batch, n), ``du[i] = T[i, i + 1]``; the last element is not read.
        b: right-hand sides (*batch, n, k).

    A singular matrix gives NaN or, with `perturb_singular`, the solution for main diagonals larger by rounding errors. Raises `ShapeError`
    or `DTypeError` where the operands do not fit together.

    >>> import volta_fn as vf
    >>> ones = vf.numpy.ones(3)
    >>> vf.lax.linalg.tridiagonal_solve(ones, 2 * ones, ones, vf.numpy.array([[3.0], [4.0], [3.0]])).round(3)[:, 0]
    Array([1., 1., 1.], dtype=float32)
    """
    lower, diagonal, upper, right = weakly_promoted("tridiagonal_solve", (dl, d, du, b))
    x = bind(tridiagonal_solve_p, lower, diagonal, upper, right)
    if not perturb_singular:
        return x
    moved = bind(tridiagonal_solve_p, lower, _perturbed(lower, diagonal, upper), upper, right)
    solved = reduce_and(is_finite(abs(x)), (x.ndim - 2, x.ndim - 1))
    return select(broadcast_in_dim(solved, x.shape, range(solved.ndim)), x, moved)


def _perturbed(lower: Array, diagonal: Array, upper: Array) -> Array:
    """Return main diagonals larger by a rounding error of the largest element."""
    dtype = abs(diagonal).dtype
    epsilon = dtypes.finfo(dtype).eps
    sizes = [reduce_max(abs(v), (v.ndim - 1,)) for v in (lower, diagonal, upper)]
    step = (maximum(maximum(sizes[0], sizes[1]), sizes[2]) + dtype.type(epsilon)) * dtype.type(epsilon)
    return diagonal + to_dtype(expand_dims(step, (step.ndim,)), diagonal.dtype)
