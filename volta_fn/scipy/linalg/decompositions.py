"""Decompositions with SciPy's arguments, and the systems that they solve."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import as_integer, check_option
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.jit.fused import compiled, fused
from volta_fn.numpy import linalg
from volta_fn.numpy.arguments import INDEX, concrete, operand, promote_inexact
from volta_fn.numpy.joining import stack
from volta_fn.numpy.linalg import eigvals, matrices, squared
from volta_fn.numpy.products import matmul
from volta_fn.numpy.sorting import argsort
from volta_fn.primitives import linalg as primitives
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.elementwise.selection import conj
from volta_fn.primitives.linalg import solvers
from volta_fn.primitives.linalg.solvers import adjoint, eye_like, hermitian_of, qr_without_q, safe_inverse, symmetrized, tril, triu
from volta_fn.scipy.linalg.matrices import on_diagonal
from volta_fn.transforms.vmap import vmap

# Factorisations to keep, and the systems they solve: triangular, Cholesky, LU.

#: The values of `trans`, as numbers.
_TRANS = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


@fused
def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    debug: Any = None,
) -> Array:
    """Solve op(a) X = b for triangular matrices a.

    Args:
        a: matrices (*batch, N, N), of which one triangle is read.
        b: right-hand sides (*batch, N, K), or (*batch, N) for single ones.
        trans: op is the identity (0 or "N"), transposition (1 or "T"), or the adjoint (2 or "C").
        lower: whether the lower triangle is read, or the upper.
        unit_diagonal: whether the diagonal counts as ones.
        overwrite_b, check_finite, debug: without effect.

    The result has `b`'s shape. A zero on the diagonal gives infinities or NaN. Raises `ShapeError` where a and b do not fit together,
    `ArgumentError` for an unknown `trans`.

    >>> vf.scipy.linalg.solve_triangular(vf.numpy.array([[2.0, 0.0], [1.0, 1.0]]), vf.numpy.array([4.0, 5.0]), lower=True)
    Array([2., 3.], dtype=float32)
    """
    matrix, right, single = _system("solve_triangular", a, b)
    op = _op("solve_triangular", trans)
    x = primitives.triangular_solve(
        matrix, right, left_side=True, lower=lower, transpose_a=op > 0, conjugate_a=op == 2, unit_diagonal=unit_diagonal
    )
    return lax.squeeze(x, (x.ndim - 1,)) if single else x


def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Array, bool]:
    """Return the Cholesky factor of Hermitian matrices and `lower`, for `cho_solve`.

    One triangle of `a` (*batch, N, N) is read. The factor is L with L Lᴴ = a if `lower`, else U with Uᴴ U = a; NaN where a matrix is not
    positive definite. `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.cho_factor(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]), lower=True)[0]
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    matrix = matrices("cho_factor", "a", a, square=True)
    factor = primitives.cholesky(matrix if lower else adjoint(matrix), symmetrize_input=False)
    return (factor if lower else adjoint(factor)), lower


@fused
def cho_solve(c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Array:
    """Solve a X = b (*batch, N, K) or (*batch, N), given `cho_factor` of a.

    `overwrite_b` and `check_finite` have no effect.

    >>> vf.scipy.linalg.cho_solve((vf.numpy.array([[2.0, 0.0], [1.0, 2.0]]), True), vf.numpy.array([8.0, 12.0]))
    Array([1., 2.], dtype=float32)
    """
    c, lower = c_and_lower
    halfway = solve_triangular(c, b, "N" if lower else "C", lower)
    return solve_triangular(c, halfway, "C" if lower else "N", lower)


@fused
def lu(a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True, p_indices: bool = False) -> tuple[Array, ...]:
    """Factor P L U = a: a permutation, a unit lower and an upper triangular matrix.

    For matrices (*batch, M, N), P is (*batch, M, M), L (*batch, M, K) and U (*batch, K, N) with K = min(M, N), of `a`'s dtype, P of its
    real one. With `permute_l`, return the two matrices P L and U; else with `p_indices`, int32 indices p (*batch, M) for P, with
    L[p] U = a. `overwrite_a` and `check_finite` have no effect.

    >>> p, l, u = vf.scipy.linalg.lu(vf.numpy.array([[1.0, 2.0], [4.0, 2.0]]))
    >>> u
    Array([[4. , 2. ],
           [0. , 1.5]], dtype=float32)
    """
    matrix = matrices("lu", "a", a)
    packed, _, permutation = primitives.lu(matrix)
    rows, columns = packed.shape[-2:]
    count = min(rows, columns)
    lower = tril(lax.slice_in_dim(packed, 0, count, axis=packed.ndim - 1), -1)
    lower = lower + eye_like(lower)
    upper = triu(lax.slice_in_dim(packed, 0, count, axis=packed.ndim - 2))
    if p_indices and not permute_l:
        return argsort(permutation, axis=-1), lower, upper
    positions = lax.broadcasted_iota(INDEX, (rows, rows), 0)
    exchange = to_dtype(lax.eq(lax.expand_dims(permutation, (permutation.ndim - 1,)), positions), dtypes.real_dtype(packed.dtype))
    return (matmul(to_dtype(exchange, packed.dtype), lower), upper) if permute_l else (exchange, lower, upper)


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Array, Array]:
    """Return L and U of matrices in one matrix, and pivots, for `lu_solve`.

    The matrices are (*batch, M, N), the int32 pivots (*batch, min(M, N)). L lies below the diagonal, which is ones, and U on and above it;
    step i exchanged rows i and pivots[i]. `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.lu_factor(vf.numpy.array([[1.0, 2.0], [4.0, 2.0]]))[1]
    Array([1, 1], dtype=int32)
    """
    packed, pivots, _ = primitives.lu(matrices("lu_factor", "a", a))
    return packed, pivots


@fused
def lu_solve(lu_and_piv: tuple[Any, Any], b: Any, trans: int | str = 0, overwrite_b: bool = False, check_finite: bool = True) -> Array:
    """Solve op(a) X = b, given `lu_factor` of a.

    b is (*batch, N, K), or (*batch, N) for single right-hand sides; `trans` as in `solve_triangular`. `overwrite_b` and `check_finite` have
    no effect. Raises `ShapeError` where the factors and b do not fit together, `ArgumentError` for an unknown `trans`, `ArgumentTypeError`
    for pivots that are no integers.

    >>> factors = vf.scipy.linalg.lu_factor(vf.numpy.array([[1.0, 2.0], [4.0, 2.0]]))
    >>> vf.scipy.linalg.lu_solve(factors, vf.numpy.array([5.0, 8.0]))
    Array([1., 2.], dtype=float32)
    """
    packed, pivots = lu_and_piv
    matrix, right, single = _system("lu_solve", packed, b)
    steps = operand("lu_solve", "pivots", pivots)
    if steps.dtype.kind not in "iu":
        raise ArgumentTypeError(f"lu_solve: the pivots must be integers, got {steps.dtype.name}")
    if steps.shape != matrix.shape[:-1]:
        raise ShapeError(f"lu_solve: factors of shape {matrix.shape} need pivots of shape {matrix.shape[:-1]}, got {steps.shape}")
    x = solvers.lu_solve(matrix, _permutation(lax.convert_element_type(steps, INDEX)), right, _op("lu_solve", trans))
    return lax.squeeze(x, (x.ndim - 1,)) if single else x


def _system(function: str, a: Any, b: Any) -> tuple[Array, Array, bool]:
    """Return matrices and columns of one dtype, and True if b had single columns.

    Their batches broadcast; a vector serves every matrix.
    """
    left, right = promote_inexact(function, a, b)
    matrix = matrices(function, "a", left, square=True)
    single = right.ndim == 1 or right.shape == matrix.shape[:-1]
    columns = lax.expand_dims(right, (right.ndim,)) if single else right
    try:
        rows = lax.broadcast_shapes(columns.shape[:-1], matrix.shape[:-1]) if columns.ndim > 1 else ()
    except ShapeError:
        rows = ()
    if rows[-1:] != matrix.shape[-1:] or columns.shape[-2] != matrix.shape[-1]:
        raise ShapeError(f"{function}: b must have the leading dimensions {matrix.shape[:-1]} of the matrices, got shape {right.shape}")
    wide = broadcast_to(matrix, (*rows, matrix.shape[-1]))
    return wide, broadcast_to(columns, (*rows, columns.shape[-1])), single


def _op(function: str, trans: int | str) -> int:
    check_option(trans, f"{function}: trans", _TRANS)
    return _TRANS[trans]


def _permutation(pivots: Array) -> Array:
    """Return the order of rows after exchanging rows i and pivots[i] for every i."""
    last = pivots.ndim - 1
    positions = lax.broadcasted_iota(INDEX, pivots.shape, last)
    if not pivots.shape[last]:
        return positions

    def exchange(step: Array, order: Array) -> Array:
        at_step = lax.eq(positions, step)
        at_pivot = lax.eq(positions, lax.dynamic_index_in_dim(pivots, step, last))
        first, second = (lax.reduce_sum(lax.select(at, order, np.int32(0)), (last,)) for at in (at_step, at_pivot))
        moved = lax.select(at_pivot, lax.expand_dims(first, (last,)), order)
        return lax.select(at_step, lax.expand_dims(second, (last,)), moved)

    return lax.fori_loop(0, pivots.shape[last], exchange, positions)


# Cholesky, QR and singular value decompositions with SciPy's arguments.


def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Return the Cholesky factor of Hermitian matrices (*batch, N, N).

    It is U with Uᴴ U = a, or L with L Lᴴ = a if `lower`; that triangle of `a` is read. NaN where a matrix is not positive definite.
    `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.cholesky(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]))
    Array([[2., 1.],
           [0., 2.]], dtype=float32)
    """
    return cho_factor(matrices("cholesky", "a", a, square=True), lower)[0]


def qr(
    a: Any, overwrite_a: bool = False, lwork: None = None, mode: str = "full", pivoting: bool = False, check_finite: bool = True
) -> tuple[Array, ...]:
    """Factor matrices (*batch, M, N) into orthonormal columns Q and upper triangle R.

    Args:
        a: the matrices.
        mode: "full" for Q (M, M) and R (M, N), "economic" for Q (M, K) and R (K, N) with K = min(M, N), "r" for the tuple of R alone.
        pivoting: whether to reorder the columns so that the diagonal of R descends in magnitude; the tuple then ends with the order,
            int32 (*batch, N): a[:, order] = Q R. Its choice has no derivative.
        overwrite_a, lwork, check_finite: without effect.

    Raises `ArgumentError` for another mode: LAPACK's reflectors (SciPy's "raw") are not available.

    >>> q, r = vf.scipy.linalg.qr(vf.numpy.ones((3, 2)), mode="economic")
    >>> q.shape, r.shape
    ((3, 2), (2, 2))
    """
    check_option(mode, "qr: mode", ("full", "economic", "r"))
    matrix = matrices("qr", "a", a)
    order = _pivots(lax.stop_gradient(matrix)) if pivoting else None
    if order is not None:
        matrix = vnp.take_along_axis(matrix, order[..., None, :], axis=-1)
    factors = (_padded_r(matrix),) if mode == "r" else lax.linalg.qr(matrix, full_matrices=mode == "full")
    return factors if order is None else (*factors, order)


def _padded_r(a: Array) -> Array:
    """Return R (*batch, M, N), with rows of zeros below the triangle of tall matrices."""
    m, n = a.shape[-2:]
    return vnp.pad(qr_without_q(a), [*[(0, 0)] * (a.ndim - 2), (0, max(0, m - n)), (0, 0)])


def _pivots(a: Array) -> Array:
    """Return the order of columns of a QR decomposition with column pivoting."""
    # Each column has the largest norm after projection onto the orthogonal complement of those before it (Golub and Van Loan, Matrix
    # Computations, 5.4.2).
    *batch, rows, columns = a.shape
    positions = lax.broadcasted_iota(INDEX, (*batch, columns), len(batch))

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, order = state
        size = vnp.where(positions < k, -1.0, vnp.sum(squared(rest), axis=-2))
        largest = vnp.argmax(size, axis=-1)[..., None]
        exchange = vnp.where(positions == k, largest, vnp.where(positions == largest, k, positions))
        rest = vnp.take_along_axis(rest, exchange[..., None, :], axis=-1)
        column = lax.dynamic_slice_in_dim(rest, k, 1, rest.ndim - 1)
        length = vnp.sum(squared(column), axis=(-2, -1), keepdims=True)
        rest = rest - matmul(column, matmul(adjoint(column), rest) * to_dtype(safe_inverse(length), a.dtype))
        return rest, vnp.take_along_axis(order, exchange, axis=-1)

    return lax.fori_loop(0, min(rows, columns), step, (a, positions))[1] if min(rows, columns) else positions


def qr_multiply(
    a: Any,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Array, ...]:
    """Multiply c with Q of the economic QR decomposition of matrices (*batch, M, N).

    Args:
        a: the matrices, whose Q is (*batch, M, K) with K = min(M, N).
        c: matrices, or a vector that counts as a row (mode "right") or as a column.
        mode: "right" for c Q with c of M columns, "left" for Q c with c of K rows.
        pivoting: whether to reorder the columns of `a`, as in `qr`.
        conjugate: whether to multiply with the complex conjugate of Q.
        overwrite_a, overwrite_c: without effect.

    Return the product (a vector if c is one), R, and with `pivoting` the order of columns. Raises `ArgumentError` for another mode,
    `ShapeError` where c does not fit.

    >>> product, r = vf.scipy.linalg.qr_multiply(vf.numpy.eye(2), vf.numpy.array([3.0, 4.0]))
    >>> abs(product)
    Array([3., 4.], dtype=float32)
    """
    check_option(mode, "qr_multiply: mode", ("left", "right"))
    matrix, factor = promote_inexact("qr_multiply", a, c)
    q, *rest = qr(matrix, mode="economic", pivoting=pivoting)
    q = conj(q) if conjugate and q.dtype.kind == "c" else q
    single = factor.ndim == 1
    factor = lax.expand_dims(factor, (0 if mode == "right" else 1,)) if single else factor
    if factor.ndim < 2 or factor.shape[-1 if mode == "right" else -2] != q.shape[-2 if mode == "right" else -1]:
        raise ShapeError(f"qr_multiply: c of shape {factor.shape} does not fit Q of shape {q.shape} from the {mode}")
    product = matmul(factor, q) if mode == "right" else matmul(q, factor)
    return (lax.squeeze(product, (product.ndim - (2 if mode == "right" else 1),)) if single else product), *rest


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """Decompose matrices (*batch, M, N) into U diag(s) Vh; only s if not `compute_uv`.

    s descends. U and Vh are square if `full_matrices`, else they have min(M, N) columns and rows. `overwrite_a`, `check_finite` and
    `lapack_driver` have no effect.

    >>> vf.scipy.linalg.svd(vf.numpy.array([[3.0, 0.0], [0.0, -4.0]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    return linalg.svd(a, full_matrices, compute_uv)


def svdvals(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Return the singular values of matrices (*batch, M, N), descending.

    `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.svdvals(vf.numpy.array([[3.0, 0.0], [0.0, 4.0]])).round(4)
    Array([4., 3.], dtype=float32)
    """
    return linalg.svdvals(a)


# Schur and Hessenberg forms, and the polar decomposition.


def schur(a: Any, output: str = "real") -> tuple[Array, Array]:
    """Return the Schur form T and unitary Z with Z T Zᴴ = a.

    For matrices (*batch, N, N), T is upper triangular, except that the form of a real matrix has a block of two by two for each pair of
    complex eigenvalues. With `output` "complex" real matrices are taken as complex ones. On the host, this needs SciPy. It has no
    derivative.

    >>> vf.scipy.linalg.schur(vf.numpy.array([[1.0, 2.0], [0.0, 3.0]]))[0]
    Array([[1., 2.],
           [0., 3.]], dtype=float32)
    """
    check_option(output, "schur: output", ("real", "complex"))
    matrix = matrices("schur", "a", a, square=True)
    form, vectors = primitives.schur(to_dtype(matrix, dtypes.complex_dtype(matrix.dtype)) if output == "complex" else matrix)
    return form, vectors


def rsf2csf(T: Any, Z: Any, check_finite: bool = True) -> tuple[Array, Array]:
    """Convert a real Schur form T and vectors Z to complex ones, with T triangular.

    Both are (*batch, N, N), whose batch dimensions broadcast; a rotation for each block of two by two makes it triangular (Golub and Van
    Loan, 2013, section 7.7). `check_finite` has no effect: numbers that are not finite give NaN.

    >>> form, vectors = vf.scipy.linalg.schur(vf.numpy.array([[0.0, 1.0], [-1.0, 0.0]]))
    >>> vf.scipy.linalg.rsf2csf(form, vectors)[0].imag.round(3).diagonal()
    Array([ 1., -1.], dtype=float32)
    """
    form, vectors = promote_inexact("rsf2csf", T, Z)
    form, vectors = matrices("rsf2csf", "T", form, square=True), matrices("rsf2csf", "Z", vectors, square=True)
    if form.shape[-1] != vectors.shape[-1]:
        raise ShapeError(f"rsf2csf: T and Z must have one size, got {form.shape} and {vectors.shape}")
    batch = lax.broadcast_shapes(form.shape[:-2], vectors.shape[:-2])
    dtype = dtypes.complex_dtype(form.dtype)
    convert = _triangular
    for _ in batch:
        convert = vmap(convert)
    triangular, change = convert(*[broadcast_to(to_dtype(x, dtype), (*batch, *x.shape[-2:])) for x in (form, vectors)])
    return triangular, change


def _triangular(form: Array, vectors: Array) -> tuple[Array, Array]:
    """Make one complex matrix triangular by rotations of neighbouring rows."""
    # They go from the last pair of rows, and of columns, to the first.
    size = form.shape[0]
    epsilon = float(dtypes.finfo(form.dtype).eps)
    columns, rows = lax.iota(np.int32, size)[None, :], lax.iota(np.int32, size)[:, None]

    def step(count: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        t, z = state
        last = size - 1 - count
        first = last - 1
        block = lax.dynamic_slice(t, (first, first), (2, 2))
        below = block[1, 0]
        gap = eigvals(block)[0] - block[1, 1]
        length = lax.sqrt(abs(gap) ** 2 + abs(below) ** 2)
        is_small = abs(below) <= epsilon * (abs(block[0, 0]) + abs(block[1, 1]))
        cosine = lax.select(is_small, lax.full_like(gap, 1), gap / lax.select(is_small, lax.full_like(length, 1), length))
        sine = lax.select(is_small, lax.full_like(gap, 0), below / lax.select(is_small, lax.full_like(length, 1), length))
        rotation = stack([stack([lax.conj(cosine), sine]), stack([-sine, cosine])])
        pair = lax.dynamic_slice(t, (first, 0), (2, size))
        t = lax.dynamic_update_slice(t, lax.select(broadcast_to(columns >= first, pair.shape), matmul(rotation, pair), pair), (first, 0))
        pair = lax.dynamic_slice(t, (0, first), (size, 2))
        turned = matmul(pair, adjoint(rotation))
        t = lax.dynamic_update_slice(t, lax.select(broadcast_to(rows <= last, pair.shape), turned, pair), (0, first))
        z_pair = lax.dynamic_slice(z, (0, first), (size, 2))
        z = lax.dynamic_update_slice(z, matmul(z_pair, adjoint(rotation)), (0, first))
        return lax.dynamic_update_slice(t, lax.full((1, 1), 0, t.dtype), (last, first)), z

    return lax.fori_loop(0, size - 1, step, (form, vectors)) if size > 1 else (form, vectors)


def hessenberg(a: Any, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Return the Hessenberg form H of a, which is zero below the subdiagonal.

    The matrices are (*batch, N, N). With `calc_q` return (H, Q) for unitary Q with Q H Qᴴ = a. `overwrite_a` and `check_finite` have no
    effect. On the host, this needs SciPy. It has no derivative.

    >>> vf.scipy.linalg.hessenberg(vf.numpy.eye(3), calc_q=True)[0]
    Array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    matrix = matrices("hessenberg", "a", a, square=True)
    size = matrix.shape[-1]
    reduced, factors = primitives.hessenberg(matrix) if size else (matrix, matrix)
    form = triu(reduced, -1)
    if not calc_q:
        return form
    if size < 2:
        return form, lax.full_like(matrix, 1)
    inner = primitives.householder_product(reduced[..., 1:, : size - 1], factors)
    corner = [(0, 0, 0)] * (matrix.ndim - 2) + [(1, 0, 0)] * 2
    first = np.zeros((size, size), matrix.dtype)
    first[0, 0] = 1
    return form, lax.pad(inner, lax.full((), 0, matrix.dtype), corner) + first


def polar(
    a: Any, side: str = "right", *, method: str = "qdwh", eps: float | None = None, max_iterations: int | None = None
) -> tuple[Array, Array]:
    """Return unitary U and positive semidefinite P with U P = a, or P U = a.

    Args:
        a: matrices (*batch, M, N). U has orthonormal columns, or rows if a is wide.
        side: where P stands, "right" or "left" of U.
        method: "qdwh", iterations that reverse mode does not differentiate, or "svd", which is differentiable. Of singular matrices, U is
            unitary by "svd" alone; by "qdwh", U P = a holds.
        eps, max_iterations: when QDWH ends; see `lax.linalg.qdwh`.

    >>> vf.scipy.linalg.polar(vf.numpy.array([[0.0, -2.0], [3.0, 0.0]]))[1].diagonal().round(3)
    Array([3., 2.], dtype=float32)
    """
    if side not in ("right", "left") or method not in ("qdwh", "svd"):
        raise ArgumentError(f"polar: side must be 'right' or 'left' and method 'qdwh' or 'svd', got {side!r} and {method!r}")
    matrix = matrices("polar", "a", a)
    decompose = _polar_by_svd if method == "svd" else lambda x: _polar_by_qdwh(x, eps, max_iterations)
    for _ in matrix.shape[:-2]:
        decompose = vmap(decompose)
    unitary = decompose(matrix)
    half = matmul(adjoint(unitary), matrix) if side == "right" else matmul(matrix, adjoint(unitary))
    return unitary, symmetrized(half)


def _polar_by_svd(matrix: Array) -> Array:
    u, _, vt = primitives.svd(matrix, full_matrices=False)
    return matmul(u, vt)


@partial(compiled, static_argnums=(1, 2))
def _polar_by_qdwh(matrix: Array, eps: float | None, max_iterations: int | None) -> Array:
    wide = matrix.shape[0] < matrix.shape[1]
    unitary = primitives.qdwh(adjoint(matrix) if wide else matrix, eps=eps, max_iterations=max_iterations)[0]
    return adjoint(unitary) if wide else unitary


# Eigenvalues of Hermitian matrices, pairs of them, and tridiagonal matrices.


def eigh(
    a: Any,
    b: Any = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: Sequence[int] | None = None,
    type: int = 1,
    check_finite: bool = True,
    *,
    subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None,
    driver: str | None = None,
) -> Any:
    """Return ascending eigenvalues w and eigenvectors v of Hermitian matrices.

    The vectors are columns.

    Args:
        a: the matrices (*batch, N, N), of which one triangle is read.
        b: positive definite matrices of the same shape, for a generalised problem; reduced by its Cholesky factor.
        lower: whether the lower triangles of a and b are read, or the upper.
        eigvals_only: whether to return w alone.
        type: the generalised problem: 1 for a v = w b v, 2 for a b v = w v, 3 for b a v = w v; vᴴ b v = 1, of type 3 vᴴ b⁻¹ v = 1.
        subset_by_index: the first and the last index of those to return.
        subset_by_value: (low, high), to return those with low < w <= high; only for a single matrix that is not traced.
        eigvals: the same as `subset_by_index`, the older name.
        overwrite_a, overwrite_b, turbo, check_finite, driver: without effect.

    Raises `ArgumentError` for another type, an impossible subset, or two of them, `ShapeError` where b has another shape than a.

    >>> vf.scipy.linalg.eigh(vf.numpy.array([[2.0, 1.0], [1.0, 2.0]]), eigvals_only=True).round(3)
    Array([1., 3.], dtype=float32)
    """
    check_option(type, "eigh: type", (1, 2, 3))
    if b is None:
        matrix = matrices("eigh", "a", a, square=True)
        vectors, values = lax.linalg.eigh(matrix, lower=lower, symmetrize_input=False)
    else:
        first, second = promote_inexact("eigh", a, b)
        vectors, values = _generalized(first, second, lower, type)
    chosen = _subset("eigh", values, eigvals if subset_by_index is None else subset_by_index, subset_by_value)
    return values[..., chosen] if eigvals_only else (values[..., chosen], vectors[..., chosen])


def _generalized(a: Array, b: Array, lower: bool, kind: int) -> tuple[Array, Array]:
    """Return eigenvectors and eigenvalues of a pair, with L Lᴴ = b.

    The eigenvalues are those of L⁻¹ a L⁻ᴴ for type 1, else of Lᴴ a L. L⁻ᴴ maps the eigenvectors back, L for type 3.
    """
    first, second = matrices("eigh", "a", a, square=True), matrices("eigh", "b", b, square=True)
    if first.shape != second.shape:
        raise ShapeError(f"eigh: a and b must have one shape, got {first.shape} and {second.shape}")
    factor = cho_factor(second, lower)[0]
    factor = factor if lower else adjoint(factor)
    full = hermitian_of(first, lower)
    if kind == 1:
        half = solve_triangular(factor, full, lower=True)
        reduced = adjoint(solve_triangular(factor, adjoint(half), lower=True))
    else:
        reduced = matmul(adjoint(factor), matmul(full, factor))
    vectors, values = lax.linalg.eigh(reduced)
    return (matmul(factor, vectors) if kind == 3 else solve_triangular(factor, vectors, "C", True)), values


def _subset(function: str, values: Array, by_index: Sequence[float] | None, by_value: Sequence[float] | None) -> slice:
    """Return the slice of the ascending eigenvalues that is asked for."""
    if by_index is not None and by_value is not None:
        raise ArgumentError(f"{function}: choose a subset by index or by value, not both")
    count = values.shape[-1]
    if by_index is not None:
        low, high = (as_integer(end, f"{function}: an index of a subset") for end in by_index)
        if not 0 <= low <= high < count:
            raise ArgumentError(f"{function}: the indices of a subset must be 0 <= first <= last < {count}, got {(low, high)}")
        return slice(low, high + 1)
    if by_value is None:
        return slice(None)
    bottom, top = by_value
    if not bottom < top:
        raise ArgumentError(f"{function}: the bounds of a subset must be low < high, got {(bottom, top)}")
    eigenvalues = concrete(function, "a", values, "choose a subset by index, whose size is known while tracing")
    if eigenvalues.ndim != 1:
        raise ShapeError(f"{function}: a subset by value needs a single matrix, for several have subsets of different sizes")
    first, last = np.searchsorted(eigenvalues, [bottom, top], side="right")
    return slice(int(first), int(last))


def eigvalsh(
    a: Any,
    b: Any = None,
    *,
    lower: bool = True,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    type: int = 1,
    check_finite: bool = True,
    subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None,
    driver: str | None = None,
) -> Array:
    """Return the ascending eigenvalues of Hermitian matrices; arguments as of `eigh`.

    >>> vf.scipy.linalg.eigvalsh(vf.numpy.array([[2.0, 1.0], [1.0, 2.0]])).round(4)
    Array([1., 3.], dtype=float32)
    """
    return eigh(a, b, lower=lower, eigvals_only=True, type=type, subset_by_index=subset_by_index, subset_by_value=subset_by_value)


def eigh_tridiagonal(
    d: Any,
    e: Any,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: Sequence[float] | None = None,
    check_finite: bool = True,
    tol: float | None = 0.0,
    lapack_driver: str = "auto",
    *,
    key: Any = None,
) -> Any:
    """Return ascending eigenvalues and eigenvectors of Hermitian tridiagonal matrices.

    Args:
        d: the diagonals (*batch, N), which are real: imaginary parts have no effect.
        e: the diagonals above them (*batch, N - 1); those below are their conjugates.
        eigvals_only: whether to return the eigenvalues alone.
        select: "a" for all, "v" for those with low < w <= high, "i" for those from one index to another, both included.
        select_range: (low, high) or the two indices.
        check_finite, tol, lapack_driver, key: without effect.

    The matrix is decomposed as a full one. Raises `ArgumentError` for another `select`, or one without its range, `ShapeError` where d and
    e do not fit together.

    >>> vf.scipy.linalg.eigh_tridiagonal(vf.numpy.array([2.0, 2.0]), vf.numpy.array([1.0]), eigvals_only=True).round(3)
    Array([1., 3.], dtype=float32)
    """
    if select not in ("a", "v", "i") or (select != "a" and select_range is None):
        raise ArgumentError(f"eigh_tridiagonal: select must be 'a', or 'v' or 'i' with a select_range; got {select!r}, {select_range}")
    main, side = promote_inexact("eigh_tridiagonal", d, e)
    if not main.ndim or not side.ndim or side.shape != (*main.shape[:-1], main.shape[-1] - 1):
        raise ShapeError(f"eigh_tridiagonal: d of N elements needs e of N - 1, got shapes {main.shape} and {side.shape}")
    vectors, values = lax.linalg.eigh(on_diagonal(main) + on_diagonal(side.conj(), -1), symmetrize_input=False)
    chosen = _subset("eigh_tridiagonal", values, *(select_range if select == kind else None for kind in "iv"))
    return values[..., chosen] if eigvals_only else (values[..., chosen], vectors[..., chosen])
