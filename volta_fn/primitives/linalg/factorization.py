"""The LU and QR factorisations, and the solution of linear systems by LU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import GradientError
from volta_fn.primitives.data_movement.gather import gather
from volta_fn.primitives.data_movement.movement import batch_in_front, broadcasted_iota, expand_dims, no_tangents
from volta_fn.primitives.data_movement.slicing import GatherDimensionNumbers, GatherScatterMode, concatenate, pad, slice_in_dim
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.linalg.solvers import adjoint, check_matrix, matmul, only_diagonal, real_part, triangular_solve, tril, triu
from volta_fn.primitives.sorting import sort_key_val

INT32 = np.dtype(np.int32)


# lu


def _lu_abstract(x: ShapedArray) -> tuple[ShapedArray, ShapedArray, ShapedArray]:
    check_matrix("lu", x)
    *batch, m, n = x.shape
    return ShapedArray(x.shape, x.dtype), ShapedArray((*batch, min(m, n)), INT32), ShapedArray((*batch, m), INT32)


def _lu_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Sequence[Array], list[Any]]:
    """Differentiate by F = L⁻¹ P dA U⁻¹ (de Hoog et al., 2011).

    dL = L tril(F, -1) and dU = triu(F) U, since P dA = dL U + L dU. Rectangular matrices are treated as part of square ones, continued by
    the identity.
    """
    outs = bind(lu_p, *primals)
    if type(tangents[0]) is Zero:
        return no_tangents(outs)
    packed, pivots, permutation = outs
    m, n = packed.shape[-2:]
    k = min(m, n)
    lower = _continued(tril(slice_in_dim(packed, 0, k, 1, -1), -1), 0, m - k)
    upper = _continued(triu(slice_in_dim(packed, 0, k, 1, -2)), n - k, 0)
    inner = triangular_solve(lower, permute_rows(tangents[0], permutation), left_side=True, lower=True, unit_diagonal=True)
    inner = triangular_solve(upper, inner)
    unit = lower + _identity(m, 0, m, packed.dtype)
    tangent = matmul(unit, tril(inner, -1)) + matmul(triu(inner), upper)
    return outs, [tangent, Zero(pivots.aval.tangent_aval()), Zero(permutation.aval.tangent_aval())]


def _continued(x: Array, rows: int, columns: int) -> Array:
    """Pad a triangular factor to a square with zero columns or rows of the identity."""
    if not rows and not columns:
        return x
    config = [(0, 0, 0)] * (x.ndim - 2) + [(0, rows, 0), (0, columns, 0)]
    square = pad(x, np.zeros((), x.dtype), config)
    return square + _identity(square.shape[-1], square.shape[-1] - rows, square.shape[-1], x.dtype) if rows else square


def _identity(size: int, start: int, stop: int, dtype: np.dtype) -> Array:
    """Return ones on the diagonal from `start` up to `stop`."""
    return as_value(np.diag(np.isin(np.arange(size), np.arange(start, stop)).astype(dtype)))


def permute_rows(x: Array, permutation: Array) -> Array:
    """Permute the rows of each matrix."""
    if not x.shape[-2]:
        return x
    row = x.ndim - 2
    stack = tuple(range(row))
    numbers = GatherDimensionNumbers((row + 1,), (row,), (row,), stack, stack)
    sizes = [*[min(1, n) for n in x.shape[:row]], 1, x.shape[-1]]
    return gather(x, expand_dims(permutation, (row + 1,)), numbers, sizes, mode=GatherScatterMode.PROMISE_IN_BOUNDS)


lu_p = Primitive("lu", _lu_abstract, multiple_results=True, jvp=_lu_jvp, batch=batch_in_front())


def lu(x: Any) -> tuple[Array, Array, Array]:
    """Return the LU factorization with partial pivoting: ``x[permutation] = L U``.

    The matrices are (*batch, m, n). Returns L (below the diagonal, which is ones) and U in one matrix, the int32 pivots (step i exchanged
    rows i and pivots[i]) and the int32 permutation of rows. Singular matrices have zeros on the diagonal of U.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.lu(vf.numpy.array([[1.0, 2.0], [4.0, 2.0]]))[0]
    Array([[4.  , 2.  ],
           [0.25, 1.5 ]], dtype=float32)
    """
    packed, pivots, permutation = bind(lu_p, as_value(x))
    return packed, pivots, permutation


def lu_solve(packed: Array, permutation: Array, b: Array, trans: int = 0) -> Array:
    """Solve op(A) X = b (*batch, n, k), given `lu` of A.

    op does nothing, transposes (`trans` 1) or takes the adjoint (`trans` 2).
    """
    if trans == 0:
        x = triangular_solve(packed, permute_rows(b, permutation), left_side=True, lower=True, unit_diagonal=True)
        return triangular_solve(packed, x, left_side=True)
    flags = {"left_side": True, "transpose_a": True, "conjugate_a": trans == 2}
    x = triangular_solve(packed, b, **flags)
    x = triangular_solve(packed, x, lower=True, unit_diagonal=True, **flags)
    _, inverse = sort_key_val(permutation, broadcasted_iota(INT32, permutation.shape, permutation.ndim - 1))
    return permute_rows(x, inverse)


def linear_solve(a: Array, b: Array) -> Array:
    """Solve A X = b, for square A (*batch, n, n) and b (*batch, n, k)."""
    packed, _, permutation = lu(a)
    return lu_solve(packed, permutation, b)


# qr


def _qr_abstract(x: ShapedArray, *, full_matrices: bool, compute_q: bool) -> tuple[ShapedArray, ...]:
    check_matrix("qr", x)
    *batch, m, n = x.shape
    k = m if full_matrices else min(m, n)
    r = ShapedArray((*batch, k, n), x.dtype)
    return (ShapedArray((*batch, m, k), x.dtype), r) if compute_q else (r,)


def _qr_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, full_matrices: bool, compute_q: bool
) -> tuple[Sequence[Array], list[Any]]:
    """Differentiate a QR factorization, which needs Q.

    Of a wide matrix the square block makes Q; the other columns of R are Qᴴ times those of x.
    """
    (x,), (tangent,) = primals, tangents
    if type(tangent) is Zero:
        return no_tangents(bind(qr_p, x, full_matrices=full_matrices, compute_q=compute_q))
    if not compute_q:
        (_, r), (_, r_tangent) = _qr_jvp(primals, tangents, full_matrices=full_matrices, compute_q=True)
        return (r,), [r_tangent]
    q, r = outs = bind(qr_p, x, full_matrices=full_matrices, compute_q=True)
    m, n = x.shape[-2:]
    if full_matrices and m > n:
        raise GradientError(
            f"qr with full_matrices=True has no derivative for tall matrices (shape {x.shape}): the last columns of Q are arbitrary; "
            "use full_matrices=False (mode='reduced')"
        )
    if m >= n:
        return outs, list(_tall_qr_tangents(q, r, tangent))
    q_tangent, r_tangent = _tall_qr_tangents(q, slice_in_dim(r, 0, m, 1, -1), slice_in_dim(tangent, 0, m, 1, -1))
    rest, rest_tangent = (slice_in_dim(v, m, n, 1, -1) for v in (x, tangent))
    beyond = matmul(adjoint(q_tangent), rest) + matmul(adjoint(q), rest_tangent)
    return outs, [q_tangent, concatenate([r_tangent, beyond], r.ndim - 1)]


def _tall_qr_tangents(q: Array, r: Array, tangent: Array) -> tuple[Array, Array]:
    """Differentiate by C = Qᴴ dX R⁻¹: dR = (C - D) R, dQ = dX R⁻¹ - Q (C - D).

    D is the skew-Hermitian matrix that agrees with C below the diagonal. (Walter and Lehmann, arXiv:1009.6112; D carries the imaginary
    diagonal of C, for R keeps a real one.)
    """
    solved = triangular_solve(r, tangent)
    inner = matmul(adjoint(q), solved)
    below = tril(inner, -1)
    skew = below - adjoint(below)
    if inner.dtype in dtypes.COMPLEX:
        diagonal = only_diagonal(inner)
        skew = skew + (diagonal - to_dtype(real_part(diagonal), inner.dtype))
    upper = inner - skew
    return solved - matmul(q, upper), matmul(upper, r)


qr_p = Primitive("qr", _qr_abstract, multiple_results=True, jvp=_qr_jvp, batch=batch_in_front())


def qr(x: Any, *, full_matrices: bool = True) -> tuple[Array, Array]:
    """Return Q with orthonormal columns and upper triangular R with Q R = x.

    The matrices are (*batch, m, n). Q has m columns if `full_matrices`, else min(m, n). Differentiable unless Q has columns that x does not
    determine.

    >>> import volta_fn as vf
    >>> q, r = vf.lax.linalg.qr(vf.numpy.ones((3, 2)), full_matrices=False)
    >>> q.shape, r.shape
    ((3, 2), (2, 2))
    """
    q, r = bind(qr_p, as_value(x), full_matrices=bool(full_matrices), compute_q=True)
    return q, r


def qr_without_q(x: Any) -> Array:
    """Return the R of ``qr(x, full_matrices=False)`` in less time.

    >>> import volta_fn as vf
    >>> vf.numpy.linalg.qr(vf.numpy.array([[3.0], [4.0]]), mode="r")
    Array([[-5.]], dtype=float32)
    """
    (r,) = bind(qr_p, as_value(x), full_matrices=False, compute_q=False)
    return r
