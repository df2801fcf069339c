"""Eigenvalues, eigenvectors and the singular value decomposition.

Vectors of equal eigenvalues (singular values) are determined only up to a rotation, so their derivatives do not exist; here the
undetermined component is taken as zero, which is right for every function that does not depend on the choice.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import GradientError
from volta_fn.primitives.data_movement.movement import broadcast_to, broadcasted_iota, expand_dims
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.elementwise import complex_components
from volta_fn.primitives.elementwise.exponential import sqrt
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.linalg.factorization import linear_solve
from volta_fn.primitives.linalg.matrices import (
    adjoint,
    batch_in_front,
    check_matrix,
    diagonal,
    eye_like,
    hermitian_of,
    matmul,
    no_tangents,
    real_part,
    safe_inverse,
)
from volta_fn.primitives.linalg.triangular import symmetrized
from volta_fn.primitives.reduction import reduce_sum
from volta_fn.primitives.sorting import argmax


def _row(values: Array) -> Array:
    """Return values per column in a shape that multiplies a matrix's columns."""
    return expand_dims(values, (values.ndim - 1,))


def _column(values: Array) -> Array:
    """Return values per row in a shape that multiplies a matrix's rows."""
    return expand_dims(values, (values.ndim,))


# eigh


def _eigh_abstract(x: ShapedArray, *, lower: bool, sort_eigenvalues: bool) -> tuple[ShapedArray, ShapedArray]:
    check_matrix("eigh", x, square=True)
    return ShapedArray(x.shape, x.dtype), ShapedArray(x.shape[:-1], dtypes.real_dtype(x.dtype))


def _eigh_jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Array], list[Any]]:
    """Differentiate by C = Vᴴ dA V: dw = diag(C), dV = V (C ∘ 1/(w_j - w_i)).

    The latter is off the diagonal.
    """
    v, w = outs = bind(eigh_p, *primals, **params)
    if type(tangents[0]) is Zero:
        return no_tangents(outs)
    inner = matmul(adjoint(v), matmul(hermitian_of(tangents[0], params["lower"]), v))
    gaps = to_dtype(safe_inverse(_row(w) - _column(w)), v.dtype)
    return outs, [matmul(v, inner * gaps), real_part(diagonal(inner))]


eigh_p = Primitive("eigh", _eigh_abstract, jvp=_eigh_jvp, multiple_results=True)
eigh_p.batch = batch_in_front(eigh_p)


def eigh(x: Any, *, lower: bool = True, symmetrize_input: bool = True, sort_eigenvalues: bool = True) -> tuple[Array, Array]:
    """Return eigenvectors, as columns, and ascending real eigenvalues.

    The matrices are Hermitian, (*batch, n, n).

    With `symmetrize_input` the matrices are averaged with their adjoints first, else the triangle that `lower` says is read. NaN
    where LAPACK does not converge.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.eigh(vf.numpy.array([[2.0, 0.0], [0.0, 1.0]]))[1]
    Array([1., 2.], dtype=float32)
    """
    value = as_value(x)
    check_matrix("eigh", value.aval, square=True)
    value = symmetrized(value) if symmetrize_input else value
    v, w = bind(eigh_p, value, lower=bool(lower), sort_eigenvalues=bool(sort_eigenvalues))
    return v, w


# svd


def _svd_abstract(x: ShapedArray, *, full_matrices: bool, compute_uv: bool) -> tuple[ShapedArray, ...]:
    check_matrix("svd", x)
    *batch, m, n = x.shape
    k = min(m, n)
    s = ShapedArray((*batch, k), dtypes.real_dtype(x.dtype))
    if not compute_uv:
        return (s,)
    rows, columns = (m, n) if full_matrices else (k, k)
    return s, ShapedArray((*batch, m, rows), x.dtype), ShapedArray((*batch, columns, n), x.dtype)


def _svd_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, full_matrices: bool, compute_uv: bool) -> tuple[Any, list[Any]]:
    """Differentiate by Uᴴ dA V = S + K, Hermitian and skew: ds = diag(S).

    U and V rotate by S ∘ 1/(s_j - s_i) ± K ∘ 1/(s_j + s_i).

    The vectors of non-square matrices also leave the space that they span. (After Townsend, Differentiating the Singular Value
    Decomposition, 2016, whose 1/(s_j² - s_i²) this splits into partial fractions, so that K counts where singular values are equal.)
    """
    (x,), (tangent,) = primals, tangents
    if type(tangent) is Zero:
        return no_tangents(bind(svd_p, x, full_matrices=full_matrices, compute_uv=compute_uv))
    m, n = x.shape[-2:]
    if compute_uv and full_matrices and m != n:
        raise GradientError(
            f"svd with full_matrices=True has no derivative for matrices that are not square (shape {x.shape}): "
            "their further vectors are arbitrary; use full_matrices=False"
        )
    outs = s, u, vt = bind(svd_p, x, full_matrices=False, compute_uv=True)
    v = adjoint(vt)
    inner = matmul(adjoint(u), matmul(tangent, v))
    s_tangent = real_part(diagonal(inner))
    if not compute_uv:
        return (s,), [s_tangent]
    hermitian = symmetrized(inner)
    total = hermitian * to_dtype(safe_inverse(_row(s) - _column(s)), x.dtype)
    difference = (inner - hermitian) * to_dtype(safe_inverse(_row(s) + _column(s)), x.dtype)
    u_tangent, v_tangent = matmul(u, total + difference), matmul(v, total - difference)
    if m > n:
        u_tangent = u_tangent + _leaving(u, matmul(tangent, v)) * to_dtype(safe_inverse(_row(s)), x.dtype)
    if n > m:
        v_tangent = v_tangent + _leaving(v, matmul(adjoint(tangent), u)) * to_dtype(safe_inverse(_row(s)), x.dtype)
    return outs, [s_tangent, u_tangent, adjoint(v_tangent)]


def _leaving(basis: Array, change: Array) -> Array:
    """Return the component of a change that is orthogonal to a basis."""
    return change - matmul(basis, matmul(adjoint(basis), change))


class SvdAlgorithm(enum.Enum):
    """JAX's names of algorithms, of which each target has one."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


svd_p = Primitive("svd", _svd_abstract, jvp=_svd_jvp, multiple_results=True)
svd_p.batch = batch_in_front(svd_p)


def svd(x: Any, *, full_matrices: bool = True, compute_uv: bool = True, algorithm: Any = None) -> Any:
    """Return the singular value decomposition (U, s, Vᴴ) with U diag(s) Vᴴ = x.

    The matrices are (*batch, m, n); it is only s if not `compute_uv`.

    The singular values s descend. U and V are square if `full_matrices`, else they have min(m, n) columns. NaN where LAPACK does not
    converge. Differentiable unless U or V have columns that x does not determine. Each target has one algorithm, whatever `algorithm`, an
    `SvdAlgorithm` or None, says.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.svd(vf.numpy.array([[3.0, 0.0], [0.0, -4.0]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    outs = bind(svd_p, as_value(x), full_matrices=bool(full_matrices), compute_uv=bool(compute_uv))
    if not compute_uv:
        return outs[0]
    s, u, vt = outs
    return u, s, vt


# eig


def _eig_abstract(x: ShapedArray, *, compute_vectors: bool) -> tuple[ShapedArray, ...]:
    check_matrix("eig", x, square=True)
    dtype = dtypes.complex_dtype(x.dtype)
    values = ShapedArray(x.shape[:-1], dtype)
    return (values, ShapedArray(x.shape, dtype)) if compute_vectors else (values,)


def _eig_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, compute_vectors: bool) -> tuple[Sequence[Array], list[Any]]:
    """Differentiate by C = V⁻¹ dA V: dw = diag(C), dV = V (C ∘ 1/(w_j - w_i)).

    What would change the vectors' length or phase is subtracted.
    """
    if type(tangents[0]) is Zero or not primals[0].size:
        return no_tangents(bind(eig_p, *primals, compute_vectors=compute_vectors))
    w, v = outs = bind(eig_p, *primals, compute_vectors=True)
    inner = linear_solve(v, matmul(to_dtype(tangents[0], v.dtype), v))
    if not compute_vectors:
        return outs[:1], [diagonal(inner)]
    moved = matmul(v, inner * safe_inverse(_row(w) - _column(w)))
    return outs, [diagonal(inner), moved - v * _drift(v, moved)]


def _drift(v: Array, moved: Array) -> Array:
    """Return the multiple of each eigenvector that normalization forbids.

    LAPACK makes them of unit length, the largest element real.
    """
    rows = v.ndim - 2
    overlap = complex_components.conj(v) * moved
    largest = _row(argmax(complex_components.real(complex_components.conj(v) * v), rows))
    is_largest = broadcasted_iota(np.int32, v.shape, rows) == largest
    ratio = select(is_largest, moved * safe_inverse(v), as_value(np.zeros((), v.dtype)))
    stretch = complex_components.real(reduce_sum(overlap, (rows,)))
    rotation = complex_components.imag(reduce_sum(ratio, (rows,)))
    return _row(complex_components.complex(stretch, rotation))


eig_p = Primitive("eig", _eig_abstract, jvp=_eig_jvp, multiple_results=True)
eig_p.batch = batch_in_front(eig_p)


def eig(
    x: Any,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = True,
    implementation: Any = None,
) -> list[Array]:
    """Return complex eigenvalues, and left and right eigenvectors.

    The matrices are square, (*batch, n, n), the vectors columns of unit length.

    The list holds the eigenvalues w and what is asked for of the left eigenvectors (uᴴ A = w uᴴ) and the right ones (A v = w v). A matrix
    without n independent eigenvectors has no derivative, and left eigenvectors of infinities or NaN. Eigenvectors are differentiable, and
    LAPACK computes them, whatever JAX's `enable_eigvec_derivs` and `implementation` say.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.eig(vf.numpy.array([[0.0, 1.0], [-1.0, 0.0]]))[0]
    Array([0.+1.j, 0.-1.j], dtype=complex64)
    """
    if not (compute_left_eigenvectors or compute_right_eigenvectors):
        return list(bind(eig_p, as_value(x), compute_vectors=False))
    w, v = bind(eig_p, as_value(x), compute_vectors=True)
    outs = [w]
    if compute_left_eigenvectors:
        left = adjoint(linear_solve(v, broadcast_to(eye_like(v), v.shape)))
        size = complex_components.real(complex_components.conj(left) * left)
        length = sqrt(reduce_sum(size, (v.ndim - 2,)))
        outs.append(left / to_dtype(_row(length), v.dtype))
    return [*outs, v] if compute_right_eigenvectors else outs
