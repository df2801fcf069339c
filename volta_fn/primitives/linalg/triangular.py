"""The triangular solve and the Cholesky factorisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import DTypeError, GradientError, ShapeError
from volta_fn.primitives.data_movement.movement import broadcast, expand_dims, moveaxis, reshape, squeeze
from volta_fn.primitives.declare import weakly_promoted
from volta_fn.primitives.elementwise.complex_components import conj
from volta_fn.primitives.linalg.matrices import adjoint, batch_in_front, check_matrix, hermitian_of, matmul, only_diagonal, swap, tril, triu

# triangular_solve


def _solve_abstract(a: ShapedArray, b: ShapedArray, *, left_side: bool, **flags: bool) -> ShapedArray:
    check_matrix("triangular_solve", a, square=True)
    check_matrix("triangular_solve", b)
    if a.dtype != b.dtype:
        raise DTypeError(f"triangular_solve needs a and b of one dtype, got {a} and {b}")
    if a.shape[:-2] != b.shape[:-2] or b.shape[-2 if left_side else -1] != a.shape[-1]:
        side = "rows" if left_side else "columns"
        raise ShapeError(
            f"triangular_solve with left_side={left_side} needs equal leading dimensions and as many {side} in b as a has; "
            f"got a of shape {a.shape} and b of shape {b.shape}"
        )
    return ShapedArray(b.shape, b.dtype)


def _solve_jvp(primals: Sequence[Array], tangents: Sequence[Any], **flags: bool) -> tuple[Array, Any]:
    """Differentiate op(A) X = B: op(A) dX = dB - op(dA) X.

    The other triangle of dA, which is not read, does not count.
    """
    (a, b), (a_tangent, b_tangent) = primals, tangents
    x = bind(triangular_solve_p, a, b, **flags)
    if type(a_tangent) is Zero and type(b_tangent) is Zero:
        return x, Zero(x.aval.at_least_vspace())
    right = b_tangent
    if type(a_tangent) is not Zero:
        moved = _operated(a_tangent, **flags)
        moved = matmul(moved, x) if flags["left_side"] else matmul(x, moved)
        right = -moved if type(b_tangent) is Zero else b_tangent - moved
    return x, bind(triangular_solve_p, a, right, **flags)


def _operated(a: Array, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool) -> Array:
    """Return the matrix that the solve inverts: op of the triangle it reads."""
    triangle = tril(a, -unit_diagonal) if lower else triu(a, int(unit_diagonal))
    triangle = conj(triangle) if conjugate_a else triangle
    return swap(triangle) if transpose_a else triangle


def _solve_transpose(ct: Any, a: Any, b: Any, *, transpose_a: bool, **flags: bool) -> list[Any]:
    if type(a) is Linear:
        raise GradientError("triangular_solve is not linear in the matrix a, so it cannot be transposed for it")
    return [None, bind(triangular_solve_p, a, ct, transpose_a=not transpose_a, **flags)]


def _solve_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, left_side: bool, **flags: bool) -> tuple[Array, int]:
    a, b = args
    if dims[0] is None:  # One matrix for all examples, which become further columns (rows) of one right-hand side.
        rank = b.ndim - 1
        many = moveaxis(b, dims[1] or 0, rank if left_side else rank - 2)
        *stack, m, n = moveaxis(b, dims[1] or 0, 0).shape[1:]
        flat = reshape(many, (*stack, m, n * axis.size) if left_side else (*stack, axis.size * m, n))
        x = reshape(bind(triangular_solve_p, a, flat, left_side=left_side, **flags), many.shape)
        return x, rank if left_side else rank - 2
    a = moveaxis(a, dims[0], 0)
    b = broadcast(b, (axis.size,)) if dims[1] is None else moveaxis(b, dims[1], 0)
    return bind(triangular_solve_p, a, b, left_side=left_side, **flags), 0


triangular_solve_p = Primitive("triangular_solve", _solve_abstract, jvp=_solve_jvp, transpose=_solve_transpose, batch=_solve_batch)


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """Solve op(A) X = B, or without `left_side` X op(A) = B, for triangular A.

    Args:
        a: square matrices (*batch, n, n), of which one triangle is read.
        b: right-hand sides (*batch, n, k), or (*batch, k, n) unless `left_side`; of one dimension less for a single one.
        lower: whether the lower triangle is read, or the upper.
        transpose_a, conjugate_a: what op does.
        unit_diagonal: whether the diagonal counts as ones.

    A zero on the diagonal gives infinities or NaN. Raises `ShapeError` or `DTypeError` where a and b do not fit together.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.triangular_solve(vf.numpy.array([[2.0, 0.0], [1.0, 1.0]]), vf.numpy.array([4.0, 5.0]), left_side=True, lower=True)
    Array([2., 3.], dtype=float32)
    """
    matrix, right = weakly_promoted("triangular_solve", (a, b))
    single = right.ndim == matrix.ndim - 1
    column = right.ndim if left_side else right.ndim - 1
    right = expand_dims(right, (column,)) if single else right
    flags = {"lower": lower, "transpose_a": transpose_a, "conjugate_a": conjugate_a, "unit_diagonal": unit_diagonal}
    x = bind(triangular_solve_p, matrix, right, left_side=bool(left_side), **{name: bool(flag) for name, flag in flags.items()})
    return squeeze(x, (column,)) if single else x


# cholesky


def _cholesky_abstract(x: ShapedArray) -> ShapedArray:
    check_matrix("cholesky", x, square=True)
    return ShapedArray(x.shape, x.dtype)


def _cholesky_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
    """Differentiate: dL = L Φ(L⁻¹ dA L⁻ᴴ) (Murray, arXiv:1602.07527).

    Φ takes the lower triangle with half its diagonal.
    """
    (tangent,) = tangents
    factor = bind(cholesky_p, *primals)
    if type(tangent) is Zero:
        return factor, Zero(factor.aval.at_least_vspace())
    inner = triangular_solve(factor, hermitian_of(tangent), left_side=True, lower=True)
    inner = triangular_solve(factor, inner, lower=True, transpose_a=True, conjugate_a=True)
    half = as_value(np.asarray(0.5, inner.dtype))
    return factor, matmul(factor, tril(inner) - half * only_diagonal(inner))


cholesky_p = Primitive("cholesky", _cholesky_abstract, jvp=_cholesky_jvp)
cholesky_p.batch = batch_in_front(cholesky_p)


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Array:
    """Return the lower triangular L with L Lᴴ = x, for positive definite x.

    The matrices are Hermitian, (*batch, n, n); L is NaN where they are not positive definite.

    With `symmetrize_input` the matrices are averaged with their adjoints first, else their lower triangles are read.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.cholesky(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]))
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    value = as_value(x)
    check_matrix("cholesky", value.aval, square=True)
    return bind(cholesky_p, symmetrized(value) if symmetrize_input else value)


def symmetrized(x: Array) -> Array:
    """Return the mean of each matrix and its adjoint."""
    return (x + adjoint(x)) * as_value(np.asarray(0.5, x.dtype))
