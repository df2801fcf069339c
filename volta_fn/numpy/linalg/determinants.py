"""Determinants."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.numpy.linalg.operands import identity_like, last_axis, matrices
from volta_fn.numpy.linalg.products import diagonal
from volta_fn.primitives.linalg.factorization import lu_solve, permute_rows
from volta_fn.transforms.custom.custom_jvp import custom_jvp


class SlogdetResult(NamedTuple):
    """The results of `slogdet`."""

    sign: Array
    logabsdet: Array


def _parity(pivots: Array, dtype: np.dtype) -> Array:
    """Return 1 or -1 for an even or odd number of row exchanges."""
    positions = lax.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1)
    exchanged = lax.convert_element_type(lax.ne(pivots, positions), np.int32)
    return lax.convert_element_type(1 - 2 * (lax.reduce_sum(exchanged, (pivots.ndim - 1,)) % 2), dtype)


def det(a: Any) -> Array:
    """Return the determinant of square matrices, differentiable also where singular.

    >>> jnp.linalg.det(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    matrix = matrices("det", "a", a, square=True)
    size = matrix.shape[-1]
    if size > 3:
        return _det(matrix)
    if size == 0:
        return lax.full(matrix.shape[:-2], 1, matrix.dtype)
    rows = [[matrix[..., i, j] for j in range(size)] for i in range(size)]
    return _expanded(rows)


def _expanded(rows: list[list[Array]]) -> Array:
    if len(rows) == 1:
        return rows[0][0]
    minors = [_expanded([row[:j] + row[j + 1 :] for row in rows[1:]]) for j in range(len(rows))]
    total = rows[0][0] * minors[0]
    for j in range(1, len(rows)):
        term = rows[0][j] * minors[j]
        total = total - term if j % 2 else total + term
    return total


@custom_jvp
def _det(a: Array) -> Array:
    packed, pivots, _ = lax.linalg.lu(a)
    return lax.reduce_prod(diagonal(packed), (a.ndim - 2,)) * _parity(pivots, a.dtype)


@_det.defjvp
def _det_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Return tr(det(A) A⁻¹ dA), where det(A) A⁻¹ stays finite for singular A."""
    (a,), (tangent,) = primals, tangents
    value, moved = _adjugate_times(a, tangent)
    return value, lax.reduce_sum(diagonal(moved), (a.ndim - 2,))


def _adjugate_times(a: Array, b: Array) -> tuple[Array, Array]:
    """Return det(A) and det(A) A⁻¹ b, by LU.

    The last pivot, which may vanish, cancels in the back substitution. Matrices of rank below n - 1 have the adjugate zero.
    """
    packed, pivots, permutation = lax.linalg.lu(a)
    size = a.shape[-1]
    products = lax.cumprod(diagonal(packed), a.ndim - 2) * lax.expand_dims(_parity(pivots, a.dtype), (a.ndim - 2,))
    value, before_last = last_axis(products, size - 1), last_axis(products, size - 2)
    low_rank = lax.expand_dims(lax.eq(before_last, 0), (a.ndim - 2, a.ndim - 1))
    upper = lax.select(low_rank, identity_like(a), packed.at[..., -1, -1].set(1 / before_last))
    y = lax.linalg.triangular_solve(packed, permute_rows(b, permutation), left_side=True, lower=True, unit_diagonal=True)
    scale = lax.expand_dims(value, (a.ndim - 2, a.ndim - 1))
    y = lax.concatenate([lax.slice_in_dim(y, 0, size - 1, 1, -2) * scale, lax.slice_in_dim(y, size - 1, size, 1, -2)], a.ndim - 2)
    x = lax.linalg.triangular_solve(upper, y, left_side=True)
    return value, lax.select(low_rank, as_value(np.zeros((), a.dtype)), x)


def slogdet(a: Any, *, method: str | None = None) -> SlogdetResult:
    """Return the determinant's sign (or phase) and the log of its absolute value.

    The logarithm does not overflow. A singular matrix gives 0 and -inf. The methods "lu" and "qr" of JAX both use LU here.

    >>> jnp.linalg.slogdet(jnp.array([[0.0, 1.0], [1.0, 0.0]]))
    SlogdetResult(sign=Array(-1., dtype=float32), logabsdet=Array(0., dtype=float32))
    """
    if method not in (None, "lu", "qr"):
        raise ArgumentError(f"slogdet: method must be 'lu', 'qr' or None, got {method!r}")
    sign, log = _slogdet(matrices("slogdet", "a", a, square=True))
    return SlogdetResult(sign, log)


def _sign_and_log(packed: Array, pivots: Array) -> tuple[Array, Array]:
    factors = diagonal(packed)
    axis = (factors.ndim - 1,)
    sign = lax.reduce_prod(lax.sign(factors), axis) * _parity(pivots, factors.dtype)
    return sign, lax.reduce_sum(lax.log(lax.abs(factors)), axis)


@custom_jvp
def _slogdet(a: Array) -> tuple[Array, Array]:
    packed, pivots, _ = lax.linalg.lu(a)
    return _sign_and_log(packed, pivots)


@_slogdet.defjvp
def _slogdet_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Split d log det A = tr(A⁻¹ dA) in its real part (logarithm) and phase."""
    (a,), (tangent,) = primals, tangents
    packed, pivots, permutation = lax.linalg.lu(a)
    sign, log = _sign_and_log(packed, pivots)
    trace = lax.reduce_sum(diagonal(lu_solve(packed, permutation, tangent)), (a.ndim - 2,))
    if a.dtype.kind != "c":
        return (sign, log), (lax.full_like(sign, 0), trace)
    rotation = lax.complex(lax.full_like(log, 0), lax.imag(trace))
    return (sign, log), (sign * rotation, lax.real(trace))
