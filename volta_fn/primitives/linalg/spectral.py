"""Eigenvalues, singular values, condensed forms and the polar decomposition."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dimension import min_dim
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, DTypeError, GradientError, ShapeError, UnsupportedError
from volta_fn.primitives.array_operations.operators import full
from volta_fn.primitives.data_movement.movement import batch_in_front, broadcast_to, broadcasted_iota, expand_dims, no_tangents
from volta_fn.primitives.data_movement.slicing import concatenate, slice_in_dim
from volta_fn.primitives.declare import to_dtype, weakly_promoted
from volta_fn.primitives.elementwise import selection
from volta_fn.primitives.elementwise.arithmetic import abs as absolute
from volta_fn.primitives.elementwise.arithmetic import cbrt, sqrt
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.linalg.solvers import (
    adjoint,
    check_matrix,
    cholesky,
    constant_jvp,
    diagonal,
    eye_like,
    hermitian_of,
    linear_solve,
    matmul,
    qr,
    real_part,
    safe_inverse,
    symmetrized,
    triangular_solve,
)
from volta_fn.primitives.loops import cond, while_loop
from volta_fn.primitives.reduction import reduce_max, reduce_sum
from volta_fn.primitives.sorting import argmax

# Eigenvalues, eigenvectors and the singular value decomposition.
#
# Vectors of equal eigenvalues (singular values) are determined only up to a rotation, so their derivatives do not exist; here the
# undetermined component is taken as zero, which is right for every function that does not depend on the choice.


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
    """Differentiate by C = Vᴴ dA V: dw = diag(C), dV = V (C ∘ 1/(w_j - w_i))."""
    # The latter is off the diagonal.
    v, w = outs = bind(eigh_p, *primals, **params)
    if type(tangents[0]) is Zero:
        return no_tangents(outs)
    inner = matmul(adjoint(v), matmul(hermitian_of(tangents[0], params["lower"]), v))
    gaps = to_dtype(safe_inverse(_row(w) - _column(w)), v.dtype)
    return outs, [matmul(v, inner * gaps), real_part(diagonal(inner))]


eigh_p = Primitive("eigh", _eigh_abstract, multiple_results=True, jvp=_eigh_jvp, batch=batch_in_front())


def eigh(
    x: Any,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: Any = None,
) -> tuple[Array, Array]:
    """Return eigenvectors, as columns, and ascending real eigenvalues.

    The matrices are Hermitian, (*batch, n, n). With `symmetrize_input` the matrices are averaged with their adjoints first, else the
    triangle that `lower` says is read. NaN where LAPACK does not converge. `subset_by_index` = (first, end) selects those from the first
    index on, before the end. Each target has one algorithm, whatever `implementation` says. Raises `ArgumentError` for an impossible
    subset.

    >>> vf.lax.linalg.eigh(vf.numpy.array([[2.0, 0.0], [0.0, 1.0]]))[1]
    Array([1., 2.], dtype=float32)
    """
    value = as_value(x)
    check_matrix("eigh", value.aval, square=True)
    value = symmetrized(value) if symmetrize_input else value
    v, w = bind(eigh_p, value, lower=bool(lower), sort_eigenvalues=bool(sort_eigenvalues))
    if subset_by_index is None:
        return v, w
    first, end = subset_by_index
    if not 0 <= first < end <= value.shape[-1]:
        raise ArgumentError(f"eigh: subset_by_index must be 0 <= first < end <= {value.shape[-1]}, got {subset_by_index}")
    return v[..., first:end], w[..., first:end]


# svd


def _svd_abstract(x: ShapedArray, *, full_matrices: bool, compute_uv: bool) -> tuple[ShapedArray, ...]:
    check_matrix("svd", x)
    *batch, m, n = x.shape
    k = min_dim(m, n)
    s = ShapedArray((*batch, k), dtypes.real_dtype(x.dtype))
    if not compute_uv:
        return (s,)
    rows, columns = (m, n) if full_matrices else (k, k)
    return s, ShapedArray((*batch, m, rows), x.dtype), ShapedArray((*batch, columns, n), x.dtype)


def _svd_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, full_matrices: bool, compute_uv: bool) -> tuple[Any, list[Any]]:
    """Differentiate by Uᴴ dA V = S + K, Hermitian and skew: ds = diag(S)."""
    # U and V rotate by S ∘ 1/(s_j - s_i) ± K ∘ 1/(s_j + s_i). The vectors of non-square matrices also leave the space that they span.
    # (After Townsend, Differentiating the Singular Value Decomposition, 2016, whose 1/(s_j² - s_i²) this splits into partial fractions, so
    # that K counts where singular values are equal.)
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
        u_tangent = u_tangent + _orthogonal_component(u, matmul(tangent, v)) * to_dtype(safe_inverse(_row(s)), x.dtype)
    if n > m:
        v_tangent = v_tangent + _orthogonal_component(v, matmul(adjoint(tangent), u)) * to_dtype(safe_inverse(_row(s)), x.dtype)
    return outs, [s_tangent, u_tangent, adjoint(v_tangent)]


def _orthogonal_component(basis: Array, change: Array) -> Array:
    """Return the component of a change that is orthogonal to a basis."""
    return change - matmul(basis, matmul(adjoint(basis), change))


class SvdAlgorithm(enum.Enum):
    """JAX's names of algorithms, of which each target has one."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


svd_p = Primitive("svd", _svd_abstract, multiple_results=True, jvp=_svd_jvp, batch=batch_in_front())


def svd(
    x: Any,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: Any = None,
) -> Any:
    """Return the singular value decomposition (U, s, Vᴴ) with U diag(s) Vᴴ = x.

    The matrices are (*batch, m, n); it is only s if not `compute_uv`. The singular values s descend. U and V are square if `full_matrices`,
    else they have min(m, n) columns. NaN where LAPACK does not converge. Differentiable unless U or V have columns that x does not
    determine. Each target has one algorithm, whatever `algorithm`, an `SvdAlgorithm` or None, says. `subset_by_index` selects the singular
    values, and their vectors, from one index up to another; then `full_matrices` must be False, unless it selects all.

    Raises `ArgumentError` where `subset_by_index` is outside of [0, min(m, n)], or does not fit `full_matrices`.

    >>> vf.lax.linalg.svd(vf.numpy.array([[3.0, 0.0], [0.0, -4.0]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    outs = bind(svd_p, as_value(x), full_matrices=bool(full_matrices), compute_uv=bool(compute_uv))
    s = outs[0]
    subset = (0, s.shape[-1]) if subset_by_index is None else tuple(subset_by_index)
    if not 0 <= subset[0] <= subset[1] <= s.shape[-1]:
        raise ArgumentError(f"svd: subset_by_index must be in [0, {s.shape[-1]}], got {subset_by_index}")
    if subset == (0, s.shape[-1]):
        return (outs[1], s, outs[2]) if compute_uv else s
    chosen = slice(*subset)
    if not compute_uv:
        return s[..., chosen]
    if full_matrices:
        raise ArgumentError(f"svd: subset_by_index={subset_by_index} selects some vectors, so full_matrices must be False")
    return outs[1][..., chosen], s[..., chosen], outs[2][..., chosen, :]


# eig


def _eig_abstract(x: ShapedArray, *, compute_vectors: bool) -> tuple[ShapedArray, ...]:
    check_matrix("eig", x, square=True)
    dtype = dtypes.complex_dtype(x.dtype)
    values = ShapedArray(x.shape[:-1], dtype)
    return (values, ShapedArray(x.shape, dtype)) if compute_vectors else (values,)


def _eig_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, compute_vectors: bool) -> tuple[Sequence[Array], list[Any]]:
    """Differentiate by C = V⁻¹ dA V: dw = diag(C), dV = V (C ∘ 1/(w_j - w_i))."""
    # The component that changes the vectors' length or phase is subtracted.
    if type(tangents[0]) is Zero or not primals[0].size:
        return no_tangents(bind(eig_p, *primals, compute_vectors=compute_vectors))
    w, v = outs = bind(eig_p, *primals, compute_vectors=True)
    inner = linear_solve(v, matmul(to_dtype(tangents[0], v.dtype), v))
    if not compute_vectors:
        return outs[:1], [diagonal(inner)]
    change = matmul(v, inner * safe_inverse(_row(w) - _column(w)))
    return outs, [diagonal(inner), change - v * _normalization_component(v, change)]


def _normalization_component(v: Array, change: Array) -> Array:
    """Return the multiple of each eigenvector that normalization forbids."""
    # LAPACK makes them of unit length, the largest element real.
    rows = v.ndim - 2
    overlap = selection.conj(v) * change
    largest = _row(argmax(selection.real(selection.conj(v) * v), rows))
    is_largest = broadcasted_iota(np.int32, v.shape, rows) == largest
    ratio = select(is_largest, change * safe_inverse(v), as_value(np.zeros((), v.dtype)))
    stretch = selection.real(reduce_sum(overlap, (rows,)))
    rotation = selection.imag(reduce_sum(ratio, (rows,)))
    return _row(selection.complex(stretch, rotation))


eig_p = Primitive("eig", _eig_abstract, multiple_results=True, jvp=_eig_jvp, batch=batch_in_front())


def eig(
    x: Any,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = True,
    implementation: Any = None,
    use_magma: bool | None = None,
) -> list[Array]:
    """Return complex eigenvalues, and left and right eigenvectors.

    The matrices are square, (*batch, n, n), the vectors columns of unit length. The list holds the eigenvalues w and what is asked for of
    the left eigenvectors (uᴴ A = w uᴴ) and the right ones (A v = w v). A matrix without n independent eigenvectors has no derivative, and
    left eigenvectors of infinities or NaN. Eigenvectors are differentiable, and LAPACK computes them, whatever JAX's
    `enable_eigvec_derivs`, `implementation` and `use_magma` say.

    >>> vf.lax.linalg.eig(vf.numpy.array([[0.0, 1.0], [-1.0, 0.0]]))[0]
    Array([0.+1.j, 0.-1.j], dtype=complex64)
    """
    if not (compute_left_eigenvectors or compute_right_eigenvectors):
        return list(bind(eig_p, as_value(x), compute_vectors=False))
    w, v = bind(eig_p, as_value(x), compute_vectors=True)
    outs = [w]
    if compute_left_eigenvectors:
        left = adjoint(linear_solve(v, broadcast_to(eye_like(v), v.shape)))
        size = selection.real(selection.conj(left) * left)
        length = sqrt(reduce_sum(size, (v.ndim - 2,)))
        outs.append(left / to_dtype(_row(length), v.dtype))
    return [*outs, v] if compute_right_eigenvectors else outs


# Hessenberg, Schur and tridiagonal forms, and products of reflectors.

# hessenberg


def _hessenberg_abstract(x: ShapedArray) -> tuple[ShapedArray, ShapedArray]:
    check_matrix("hessenberg", x, square=True)
    return ShapedArray(x.shape, x.dtype), ShapedArray((*x.shape[:-2], max(0, x.shape[-1] - 1)), x.dtype)


hessenberg_p = Primitive("hessenberg", _hessenberg_abstract, multiple_results=True, jvp=constant_jvp, batch=batch_in_front())


def hessenberg(a: Any) -> tuple[Array, Array]:
    """Reduce square matrices to Hessenberg form: Qᴴ a Q is zero below the subdiagonal.

    For matrices (*batch, n, n), return matrices with the Hessenberg form on and above their subdiagonals and reflectors below, and the
    reflectors' factors (*batch, n - 1), as `householder_product` takes them. On the host, this needs SciPy. It has no derivative.

    >>> vf.lax.linalg.hessenberg(vf.numpy.eye(3))[1]
    Array([0., 0.], dtype=float32)
    """
    reduced, factors = bind(hessenberg_p, as_value(a))
    return reduced, factors


# schur


def _schur_abstract(x: ShapedArray, *, compute_vectors: bool) -> tuple[ShapedArray, ...]:
    check_matrix("schur", x, square=True)
    return (ShapedArray(x.shape, x.dtype),) * (2 if compute_vectors else 1)


schur_p = Primitive("schur", _schur_abstract, multiple_results=True, jvp=constant_jvp, batch=batch_in_front())


def schur(x: Any, *, compute_schur_vectors: bool = True, sort_eig_vals: bool = False, select_callable: Any = None) -> Any:
    """Return the Schur form T and the vectors Q with Q T Qᴴ = x, or only T.

    The matrices are square, (*batch, n, n). T is upper triangular if x is complex; for a real x it has a block of two by two on its
    diagonal for each pair of complex eigenvalues. Q is unitary. NaN where LAPACK does not converge. On the host, this needs SciPy. It
    has no derivative. `sort_eig_vals` and `select_callable` raise `UnsupportedError`, as in JAX: eigenvalues are not sorted.

    >>> vf.lax.linalg.schur(vf.numpy.array([[1.0, 2.0], [0.0, 3.0]]))[0]
    Array([[1., 2.],
           [0., 3.]], dtype=float32)
    """
    if sort_eig_vals or select_callable is not None:
        raise UnsupportedError("schur: eigenvalues cannot be sorted; pass sort_eig_vals=False and no select_callable")
    outs = bind(schur_p, as_value(x), compute_vectors=bool(compute_schur_vectors))
    return (outs[0], outs[1]) if compute_schur_vectors else outs[0]


# tridiagonal


def _tridiagonal_abstract(x: ShapedArray, *, lower: bool) -> tuple[ShapedArray, ...]:
    check_matrix("tridiagonal", x, square=True)
    *stack, n, _ = x.shape
    real, less = dtypes.real_dtype(x.dtype), max(0, n - 1)
    shapes = ((n, real), (less, real), (less, x.dtype))
    return ShapedArray(x.shape, x.dtype), *[ShapedArray((*stack, size), dtype) for size, dtype in shapes]


tridiagonal_p = Primitive("tridiagonal", _tridiagonal_abstract, multiple_results=True, jvp=constant_jvp, batch=batch_in_front())


def tridiagonal(a: Any, *, lower: bool = True) -> tuple[Array, Array, Array, Array]:
    """Reduce Hermitian matrices to real tridiagonal ones.

    For matrices (*batch, n, n), of which the triangle is read that `lower` says, return matrices with the tridiagonal form and reflectors
    beyond it in that triangle, its diagonal (*batch, n) and subdiagonal (*batch, n - 1), and the reflectors' factors (*batch, n - 1). On
    the host, this needs SciPy. It has no derivative.

    >>> vf.lax.linalg.tridiagonal(vf.numpy.array([[2.0, 1.0], [1.0, 3.0]]))[1]
    Array([2., 3.], dtype=float32)
    """
    reduced, diagonal, subdiagonal, factors = bind(tridiagonal_p, as_value(a), lower=bool(lower))
    return reduced, diagonal, subdiagonal, factors


# householder_product


def _product_abstract(a: ShapedArray, taus: ShapedArray) -> ShapedArray:
    check_matrix("householder_product", a)
    m, n = a.shape[-2:]
    if a.dtype != taus.dtype:
        raise DTypeError(f"householder_product needs reflectors and factors of one dtype, got {a} and {taus}")
    if m < n or taus.ndim != a.ndim - 1 or taus.shape[:-1] != a.shape[:-2] or taus.shape[-1] > n:
        raise ShapeError(f"householder_product needs a (*batch, m, n) with m >= n and taus (*batch, k) with k <= n; got {a} and {taus}")
    return ShapedArray(a.shape, a.dtype)


householder_product_p = Primitive("householder_product", _product_abstract, jvp=constant_jvp, batch=batch_in_front())


def householder_product(a: Any, taus: Any) -> Array:
    """Return the first columns of the product of Householder's reflections 1 - τ v vᴴ.

    Args:
        a: matrices (*batch, m, n), m ≥ n; the vector v of reflection i is 1 in row i, and stands below the diagonal in column i.
        taus: the factors τ (*batch, k), k ≤ n.

    The result has the shape of `a`. On the host, this needs SciPy. It has no derivative. Raises `ShapeError` or `DTypeError` where a and
    taus do not fit together.

    >>> vf.lax.linalg.householder_product(vf.numpy.array([[0.0], [1.0]]), vf.numpy.array([1.0]))
    Array([[ 0.],
           [-1.]], dtype=float32)
    """
    return bind(householder_product_p, *weakly_promoted("householder_product", (a, taus)))


def ormqr(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Array:
    """Multiply by the unitary Q of reflections: Q c, or c Q unless `left`.

    `a` (*batch, m, n) and `taus` (*batch, k) are as for `householder_product`, except that a may be wide; Q is (m, m), and is replaced by
    its adjoint if `transpose`.

    >>> vf.lax.linalg.ormqr(vf.numpy.array([[0.0], [1.0]]), vf.numpy.array([1.0]), vf.numpy.eye(2))
    Array([[ 0., -1.],
           [-1.,  0.]], dtype=float32)
    """
    reflectors, factors, other = weakly_promoted("ormqr", (a, taus, c))
    check_matrix("ormqr", reflectors.aval)
    *stack, m, n = reflectors.shape
    columns = full((*stack, m, max(0, m - n)), 0, reflectors.dtype)
    square = concatenate([reflectors, columns], reflectors.ndim - 1) if m > n else reflectors[..., :m]
    q = householder_product(square, factors)
    q = adjoint(q) if transpose else q
    return matmul(q, other) if left else matmul(other, q)


# The polar decomposition by QDWH: iterations of products and factorisations.

#: The largest weight for which the iteration by Cholesky's factors is accurate.
_GREATEST_WEIGHT = 100.0
#: The default limit of iterations: six suffice in double precision.
_MOST_ITERATIONS = 10


def qdwh(
    x: Any, *, is_hermitian: bool = False, max_iterations: int | None = None, eps: float | None = None
) -> tuple[Array, Array, Array, Array]:
    """Return U and H with x = U H, the number of iterations, and if they converged.

    x is a matrix (m, n) of full rank with m ≥ n, U has orthonormal columns, and H is Hermitian positive semidefinite. Iterations end when
    one changes U by less than (4 eps)^(1/3) of its size, or after `max_iterations` (default 10); `eps` is the dtype's by default.
    `is_hermitian` has no effect. (Nakatsukasa, Bai and Gygi, Optimizing Halley's iteration for computing the matrix polar decomposition,
    SIAM J. Matrix Anal. Appl. 31, 2010.)

    Raises:
        ShapeError: x is not one matrix, or is wide.

    >>> vf.lax.linalg.qdwh(vf.numpy.array([[0.0, -2.0], [3.0, 0.0]]))[1].diagonal().round(3)
    Array([3., 2.], dtype=float32)
    """
    value = as_value(x)
    check_matrix("qdwh", value.aval)
    if value.ndim != 2 or value.shape[0] < value.shape[1]:
        raise ShapeError(f"qdwh needs one matrix (m, n) with m >= n, got shape {value.shape}; decompose the adjoint of a wide one")
    real = dtypes.real_dtype(value.dtype)
    epsilon = float(dtypes.finfo(real).eps) if eps is None else eps
    most = as_value(_MOST_ITERATIONS if max_iterations is None else max_iterations)
    if not value.size:
        return value, eye_like(matmul(adjoint(value), value)), as_value(np.int32(0)), as_value(np.bool_(True))
    limit = np.asarray((4 * epsilon) ** (1 / 3), real)

    def unfinished(state: tuple[Array, Array, Array, Array]) -> Array:
        _, _, count, moving = state
        return (to_dtype(count, most.dtype) < most) & moving

    def iterate(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        u, low, count, _ = state
        a, b, c = _weights(low)
        following = cond(c > _GREATEST_WEIGHT, _by_qr, _by_cholesky, u, a, b, c)
        low = low * (a + b * low * low) / (1 + c * low * low)
        low = select(low > 1, as_value(np.ones((), real)), low)
        moving = (_norm(following - u) > limit * _norm(following)) | (1 - low > 10 * epsilon)
        return following, low, count + 1, moving

    # The divisor is an upper bound of the singular values; `low` is a lower bound of the quotients.
    size = absolute(value)
    columns, rows = (reduce_max(reduce_sum(size, (axis,)), (0,)) for axis in (0, 1))
    bound = sqrt(columns) * sqrt(rows)
    safe = select(bound > 0, bound, as_value(np.ones((), bound.dtype)))
    scaled, low = value / to_dtype(safe, value.dtype), as_value(np.asarray(epsilon, bound.dtype))
    start = (scaled, low, as_value(np.int32(0)), as_value(np.bool_(True)))
    u, _, count, moving = while_loop(unfinished, iterate, start)
    return u, symmetrized(matmul(adjoint(u), value)), count, ~moving


def _weights(low: Array) -> tuple[Array, Array, Array]:
    """Return Halley's weights that lift singular values in [low, 1] the most."""
    square = low * low
    d = cbrt(4 * (1 - square) / (square * square))
    root = sqrt(1 + d)
    a = root + sqrt(8 - 4 * d + 8 * (2 - square) / (square * root)) / 2
    b = (a - 1) * (a - 1) / 4
    return a, b, a + b - 1


def _by_qr(u: Array, a: Array, b: Array, c: Array) -> Array:
    root = sqrt(c)
    n = u.shape[1]
    identity = eye_like(slice_in_dim(u, 0, n))
    q, _ = qr(concatenate([to_dtype(root, u.dtype) * u, identity], 0), full_matrices=False)
    product = matmul(slice_in_dim(q, 0, u.shape[0]), adjoint(slice_in_dim(q, u.shape[0], u.shape[0] + n)))
    return to_dtype(b / c, u.dtype) * u + to_dtype((a - b / c) / root, u.dtype) * product


def _by_cholesky(u: Array, a: Array, b: Array, c: Array) -> Array:
    square = matmul(adjoint(u), u)
    factor = cholesky(eye_like(square) + to_dtype(c, u.dtype) * square)
    half = triangular_solve(factor, u, lower=True, transpose_a=True, conjugate_a=True)
    return to_dtype(b / c, u.dtype) * u + to_dtype(a - b / c, u.dtype) * triangular_solve(factor, half, lower=True)


def _norm(x: Array) -> Array:
    return sqrt(reduce_sum(absolute(x) * absolute(x), (0, 1)))
