"""Linear systems of structured matrices, and functions of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import as_integer, check_option
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy import linalg
from volta_fn.numpy.arguments import full_like_scalar, promote_inexact
from volta_fn.numpy.linalg import broadcast_system, identity_like, matrices, matrix_norm, system
from volta_fn.numpy.products import matmul
from volta_fn.primitives.linalg import triangular_solve
from volta_fn.primitives.linalg.solvers import adjoint, check_matrix, diagonal, hermitian_of, swap, tril, triu
from volta_fn.scipy.linalg.decompositions import cho_factor, cho_solve, schur, solve_triangular
from volta_fn.transforms.grad import jvp

# Linear systems of matrices of known structure, inverses and determinants.

Solver = Callable[[Array, Array, bool], Array]


def _symmetric(a: Array, lower: bool) -> Array:
    """Return the symmetric matrix with a triangle of `a`."""
    return tril(a) + swap(tril(a, -1)) if lower else triu(a) + swap(triu(a, 1))


#: How `solve` reads the matrix for each `assume_a`, and solves; names in SciPy's order.
_SOLVERS: dict[str | None, Solver] = {
    None: lambda a, b, lower: linalg.solve(a, b),
    "general": lambda a, b, lower: linalg.solve(a, b),
    "diagonal": lambda a, b, lower: b / lax.expand_dims(diagonal(a), (a.ndim - 1,)),
    "tridiagonal": lambda a, b, lower: linalg.solve(triu(tril(a, 1), -1), b),
    "banded": lambda a, b, lower: linalg.solve(a, b),
    "upper triangular": lambda a, b, lower: solve_triangular(a, b),
    "lower triangular": lambda a, b, lower: solve_triangular(a, b, lower=True),
    "symmetric": lambda a, b, lower: linalg.solve(_symmetric(a, lower), b),
    "hermitian": lambda a, b, lower: linalg.solve(hermitian_of(a, lower), b),
    "positive definite": lambda a, b, lower: cho_solve(cho_factor(a, lower), b),
}
_SHORT = {"gen": "general", "sym": "symmetric", "her": "hermitian", "pos": "positive definite"}


@fused
def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
    *,
    debug: Any = None,
) -> Array:
    """Solve a X = b for square matrices a (*batch, N, N), which may have a structure.

    Args:
        a: the matrices.
        b: right-hand sides (*batch, N, K), or a single one (N,). The batch dimensions broadcast.
        lower: whether the lower triangle is read, or the upper, of symmetric, Hermitian and positive definite matrices.
        assume_a: "general" ("gen") or None, "diagonal", "tridiagonal", "banded", "upper triangular", "lower triangular", "symmetric"
            ("sym"), "hermitian" ("her") or "positive definite" ("pos", solved by its Cholesky factor). Other elements are not read;
            "banded" reads all of them.
        transposed: whether to solve aᵀ X = b.
        overwrite_a, overwrite_b, check_finite, debug: without effect.

    A singular matrix gives infinities or NaN. Raises `ArgumentError` for another `assume_a`, `ShapeError` where a and b do not
    fit together.

    >>> vf.scipy.linalg.solve(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]), vf.numpy.array([8.0, 12.0]), assume_a="pos").round(4)
    Array([1., 2.], dtype=float32)
    """
    structure = _SHORT.get(assume_a, assume_a) if assume_a else None
    if structure not in _SOLVERS:
        names = ", ".join(repr(name) for name in (*_SHORT, *_SOLVERS) if name)
        raise ArgumentError(f"solve: assume_a must be one of {names}, or None; got {assume_a!r}")
    matrix, right, single = system(a, b)
    matrix, right = broadcast_system(matrix, right)
    # A transpose has the other triangle. One that is assumed to be symmetric is its own.
    if transposed and structure in ("upper triangular", "lower triangular"):
        x = solve_triangular(matrix, right, "T", structure == "lower triangular")
    elif transposed and structure in ("hermitian", "positive definite"):
        x = _SOLVERS[structure](swap(matrix), right, not lower)
    elif transposed and structure != "symmetric":
        x = _SOLVERS[structure](swap(matrix), right, lower)
    else:
        x = _SOLVERS[structure](matrix, right, lower)
    return lax.squeeze(x, (x.ndim - 1,)) if single else x


@fused
def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True, *, assume_a: str | None = None, lower: bool = False) -> Array:
    """Invert square matrices (*batch, N, N); singular ones give infinities or NaN.

    `assume_a` and `lower` are as in `solve`; `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.inv(vf.numpy.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    matrix = matrices("inv", "a", a, square=True)
    return solve(matrix, identity_like(matrix), lower, assume_a=assume_a)


def pinv(a: Any, *, atol: Any = None, rtol: Any = None, return_rank: bool = False, check_finite: bool = True) -> Any:
    """Return the Moore-Penrose pseudo-inverse of matrices (*batch, M, N).

    Singular values up to `atol` + `rtol` times the greatest count as zero; by default `atol` is 0, and `rtol` max(M, N) · eps unless `atol`
    is given. With `return_rank`, return the number of the others, too. `check_finite` has no effect.

    >>> vf.scipy.linalg.pinv(vf.numpy.array([[2.0, 0.0], [0.0, 0.0]]))
    Array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """
    matrix = matrices("pinv", "a", a)
    limit = (0.0 if atol is not None else max(matrix.shape[-2:]) * float(dtypes.finfo(matrix.dtype).eps)) if rtol is None else rtol
    if atol is not None and matrix.size:
        limit = limit + atol / vnp.max(linalg.svdvals(lax.stop_gradient(matrix)), axis=-1)
    inverse = linalg.pinv(matrix, limit)
    return (inverse, linalg.matrix_rank(matrix, limit)) if return_rank else inverse


def norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True) -> Array:
    """Return the norm of a vector or a matrix; `numpy.linalg.norm` lists the orders.

    `check_finite` has no effect.

    >>> vf.scipy.linalg.norm(vf.numpy.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    return linalg.norm(a, ord, axis, keepdims)


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Return the determinant of square matrices, differentiable also where singular.

    `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.det(vf.numpy.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    return linalg.det(a)


# Sylvester's equation, A X + X B = C.


def solve_sylvester(A: Any, B: Any, C: Any, *, method: str = "schur", tol: float = 1e-8) -> Array:
    """Return the solution X of A X + X B = C.

    Args:
        A, B: matrices (*batch, M, M) and (*batch, N, N).
        C: matrices (*batch, M, N). The batches broadcast.
        method: "schur", by Schur forms (Bartels and Stewart, 1972), or "eigen", by eigenvectors, which loses digits where they are
            almost dependent. On the host, "schur" needs SciPy.
        tol: matrices with eigenvalues a of A and b of B for which |a + b| is less have no unique solution: the result is NaN.

    Raises `ShapeError` if the shapes do not fit.

    >>> A, B = vf.numpy.array([[1.0, 2.0], [0.0, 3.0]]), vf.numpy.array([[4.0]])
    >>> vf.scipy.linalg.solve_sylvester(A, B, vf.numpy.array([[9.0], [7.0]])).round(3)
    Array([[1.4],
           [1. ]], dtype=float32)
    """
    check_option(method, "solve_sylvester: method", ("schur", "eigen"))
    a, b, c = promote_inexact("solve_sylvester", A, B, C)
    a, b = matrices("solve_sylvester", "A", a, square=True), matrices("solve_sylvester", "B", b, square=True)
    c = matrices("solve_sylvester", "C", c)
    if (a.shape[-1], b.shape[-1]) != c.shape[-2:]:
        raise ShapeError(f"solve_sylvester: A must be (M, M), B (N, N) and C (M, N), got {a.shape}, {b.shape} and {c.shape}")
    batch = vnp.broadcast_shapes(*[x.shape[:-2] for x in (a, b, c)])
    a, b, c = (vnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b, c))
    if not c.size:
        return c
    solve = _by_schur_forms if method == "schur" else _by_eigenvectors
    transposed = lambda _, right: solve(a.mT, b.mT, right, tol)  # noqa: E731
    return lax.custom_linear_solve(lambda x: a @ x + x @ b, c, lambda _, right: solve(a, b, right, tol), transposed)


def _by_schur_forms(a: Array, b: Array, c: Array, tol: float) -> Array:
    """Solve by the triangular Schur forms R of a and S of b."""
    # They make it R Y + Y S = F, whose columns follow one from another.
    (r, u), (s, v) = schur(a, "complex"), schur(b, "complex")
    right = adjoint(u) @ c.astype(r.dtype) @ v
    last = right.ndim - 1

    def fill(j: Array, done: Array) -> Array:
        column = lax.dynamic_slice_in_dim(s, j, 1, last)
        shift = lax.dynamic_slice_in_dim(column, j, 1, last - 1)
        x = triangular_solve(r + shift * identity_like(r), lax.dynamic_slice_in_dim(right, j, 1, last) - done @ column, left_side=True)
        return lax.dynamic_update_slice_in_dim(done, x, j, last)

    solution = lax.fori_loop(0, right.shape[-1], fill, lax.full_like(right, 0))
    return _where_unique(u @ solution @ adjoint(v), diagonal(r), diagonal(s), tol, c)


def _by_eigenvectors(a: Array, b: Array, c: Array, tol: float) -> Array:
    (p, u), (q, v) = vnp.linalg.eig(a), vnp.linalg.eig(b)
    right = vnp.linalg.solve(u, c.astype(p.dtype) @ v)
    solution = right / (p[..., :, None] + q[..., None, :])
    return _where_unique(u @ vnp.linalg.solve(v.mT, solution.mT).mT, p, q, tol, c)


def _where_unique(x: Array, p: Array, q: Array, tol: float, like: Array) -> Array:
    """Return x, or NaN where eigenvalues p and q have a sum of almost 0.

    It is real if `like` is.
    """
    unique = abs(p[..., :, None] + q[..., None, :]).min((-2, -1), keepdims=True) >= tol
    return vnp.where(unique, x if like.dtype.kind == "c" else x.real, vnp.nan)


# Matrix exponentials by scaling, Padé approximation and squaring (Higham, 2005).

#: By float size: the coefficients of Padé's approximation, and the largest norm for which it is exact to the last bit.
_PADE = {
    4: ((17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1), 3.925724783138660),
    8: (
        (
            64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600, 670442572800,
            33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
        ),
        5.371920351148152,
    ),
}  # fmt: skip


@fused
def expm(A: Any, *, upper_triangular: bool = False, max_squarings: int = 16) -> Array:
    """Return exp(A) = Σ Aᵏ / k! of square matrices (*batch, N, N), in their dtype.

    Matrices are halved until they are small, and the result is squared as often, at most `max_squarings` times; matrices that need more
    give NaN. With `upper_triangular` the system within is solved as a triangular one. Raises `ShapeError` for other shapes, `DTypeError`
    for float16 and bfloat16.

    >>> vf.scipy.linalg.expm(vf.numpy.array([[0.0, 1.0], [0.0, 0.0]]))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    matrix = matrices("expm", "A", A, square=True)
    check_matrix("expm", matrix.aval)
    most = as_integer(max_squarings, "expm: max_squarings")
    if not matrix.size:
        return matrix
    coefficients, largest = _PADE[matrix.dtype.itemsize // (2 if matrix.dtype.kind == "c" else 1)]
    norm = matrix_norm(lax.stop_gradient(matrix), keepdims=True, ord=1)
    times = lax.ceil(lax.log2(lax.max(lax.div(norm, full_like_scalar(norm, largest)), full_like_scalar(norm, 1))))
    scaled = lax.mul(matrix, lax.convert_element_type(lax.exp2(lax.neg(times)), matrix.dtype))
    result = _squared(_pade(scaled, coefficients, upper_triangular), times, most)
    return lax.select(lax.le(times, full_like_scalar(times, most)), result, full_like_scalar(result, np.nan))


@fused
def expm_frechet(A: Any, E: Any, method: str | None = None, compute_expm: bool = True, check_finite: bool = True) -> Any:
    """Return exp(A) and its derivative at A in the direction E (*batch, N, N).

    Without `compute_expm`, return the derivative alone. `method` ("SPS", "blockEnlarge" or None) and `check_finite` have no effect: it is
    the forward derivative of `expm`. Raises `ShapeError` where A and E have different shapes.

    >>> vf.scipy.linalg.expm_frechet(vf.numpy.zeros((2, 2)), vf.numpy.eye(2), compute_expm=False)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    check_option(method, "expm_frechet: method", (None, "SPS", "blockEnlarge"))
    matrix, direction = promote_inexact("expm_frechet", A, E)
    if matrix.shape != direction.shape:
        raise ShapeError(f"expm_frechet: A and E must have one shape, got {matrix.shape} and {direction.shape}")
    result, derivative = jvp(expm, (matrix,), (direction,))
    return (result, derivative) if compute_expm else derivative


def _pade(x: Array, coefficients: tuple[int, ...], upper_triangular: bool) -> Array:
    """Return (V - U)⁻¹ (V + U), with the even terms in V and the odd ones in U."""
    square = matmul(x, x)
    power = identity_like(x)
    even, odd = (lax.mul(power, full_like_scalar(x, c)) for c in coefficients[:2])
    for c, d in zip(coefficients[2::2], coefficients[3::2], strict=True):
        power = matmul(power, square)
        even, odd = even + lax.mul(power, full_like_scalar(x, c)), odd + lax.mul(power, full_like_scalar(x, d))
    odd = matmul(x, odd)
    return solve_triangular(even - odd, even + odd) if upper_triangular else linalg.solve(even - odd, even + odd)


def _squared(x: Array, times: Array, most: int) -> Array:
    """Square each matrix `times` times, skipping iterations that no matrix needs."""

    def step(x: Array, number: Array) -> tuple[Array, None]:
        active = lax.lt(number, times)
        needed = lax.reduce_or(active, tuple(range(active.ndim)))
        return lax.cond(needed, lambda x: lax.select(active, matmul(x, x), x), lambda x: x, x), None

    return lax.scan(step, x, lax.iota(times.dtype, most))[0]


# Functions of matrices through the Schur form: square roots, and any function.
#
# A function of a triangular matrix is triangular, and commutes with it; that determines its columns, one after another.

#: ``(done, column, j) -> (matrix, right)``: what column j of a function has above its diagonal solves ``matrix x = right``, for the upper
#: triangle of `matrix`. `done` has the columns before, and the diagonal; `column` is that of the form above its diagonal, then zeros.
Equation = Callable[[Array, Array, Array], tuple[Array, Array]]


@fused
def sqrtm(A: Any, blocksize: int = 1) -> Array:
    """Return the principal square root of matrices (*batch, N, N), always complex.

    `blocksize` has no effect. A singular matrix may have no root; the result is then NaN. On the host, this needs SciPy. It has no
    derivative. (Björck and Hammarling, A Schur method for the square root of a matrix, 1983.)

    >>> vf.scipy.linalg.sqrtm(vf.numpy.array([[4.0, 1.0], [0.0, 9.0]])).real.round(3)
    Array([[2. , 0.2],
           [0. , 3. ]], dtype=float32)
    """
    form, vectors = schur(matrices("sqrtm", "A", A, square=True), "complex")

    root = lax.sqrt(diagonal(form))

    def equation(done: Array, column: Array, j: Array) -> tuple[Array, Array]:
        return done + _multiple(_element(root, j), done), column

    return _conjugated(vectors, _by_columns(form, root, equation, 0.0))


def funm(A: Any, func: Callable[[Array], Array], disp: bool = True) -> Any:
    """Return a function of a matrix (N, N), given the function of its eigenvalues.

    Args:
        A: the matrix.
        func: maps an array of complex eigenvalues to an array of its shape.
        disp: whether to return the result alone; else (result, estimated relative error in the 1-norm).

    The result is complex. Close eigenvalues make it inaccurate. On the host, this needs SciPy. It has no derivative. (Golub and Van Loan,
    Matrix Computations, algorithm 9.1.1.)

    >>> vf.scipy.linalg.funm(vf.numpy.array([[1.0, 1.0], [0.0, 4.0]]), vf.numpy.sqrt).real.round(3)
    Array([[1.   , 0.333],
           [0.   , 2.   ]], dtype=float32)
    """
    matrix = matrices("funm", "A", A, square=True)
    if matrix.ndim != 2:
        raise ShapeError(f"funm: A must be one matrix, got shape {matrix.shape}; map over a stack with vmap")
    form, vectors = schur(matrix, "complex")
    values = lax.convert_element_type(func(diagonal(form)), form.dtype)

    def equation(done: Array, column: Array, j: Array) -> tuple[Array, Array]:
        right = matmul(done, column) - column * lax.expand_dims(_element(values, j), (0,))
        return form - _multiple(_element(diagonal(form), j), form), right

    epsilon = float(dtypes.finfo(dtypes.real_dtype(form.dtype)).eps)
    result = _conjugated(vectors, _by_columns(form, values, equation, epsilon))
    return result if disp else (result, _error(form, result, epsilon))


def _by_columns(form: Array, values: Array, equation: Equation, least: float) -> Array:
    """Compute a triangular matrix with `values` on its diagonal, column by column.

    Numbers up to `least` times the norm, which the equations would divide by, are replaced by it. If `least` is 0, a quotient by zero is
    zero where the dividend is, up to rounding, and NaN elsewhere.
    """
    size, last = form.shape[-1], form.ndim - 1
    rows = lax.broadcasted_iota(np.int32, form.shape, last - 1)
    columns = lax.broadcasted_iota(np.int32, form.shape, last)
    on_diagonal, above = lax.eq(rows, columns), lax.lt(rows, columns)
    zero = lax.full((), 0, form.dtype)
    limit = least * linalg.norm(form, axis=(-2, -1), keepdims=True)
    smallest = lax.convert_element_type(lax.select(limit > 0, limit, lax.full_like(limit, 1)), form.dtype)
    rounding = size * float(dtypes.finfo(dtypes.real_dtype(form.dtype)).eps) * linalg.norm(form, axis=(-2, -1))[..., None]

    def fill(j: Array, done: Array) -> Array:
        here = lax.eq(columns, j)
        column = lax.reduce_sum(lax.select(here & above, form, zero), (last,))
        matrix, right = equation(done, column, j)
        divisors = abs(diagonal(matrix))
        matrix = lax.select(on_diagonal & (abs(matrix) <= limit), smallest, matrix)
        x = triangular_solve(matrix, right, left_side=True)
        if not least:
            quotient = lax.select(abs(x) <= rounding, lax.full_like(x, 0), lax.full_like(x, np.nan))
            x = lax.select(lax.eq(divisors, lax.full_like(divisors, 0)), quotient, x)
        return lax.select(here & above, lax.expand_dims(x, (last,)), done)

    start = lax.select(on_diagonal, lax.expand_dims(values, (last,)), zero)
    return lax.fori_loop(1, size, fill, start) if size > 1 else start


def _element(values: Array, j: Array) -> Array:
    """Return element j of each vector."""
    return lax.dynamic_index_in_dim(values, j, values.ndim - 1, keepdims=False)


def _multiple(number: Array, like: Array) -> Array:
    """Return multiples of the identity, of the shape of other matrices."""
    return lax.reshape(number, (*number.shape, 1, 1)) * identity_like(like)


def _conjugated(vectors: Array, form: Array) -> Array:
    return matmul(matmul(vectors, form), adjoint(vectors))


def _error(form: Array, result: Array, epsilon: float) -> Array:
    """Estimate the relative error by the least distance of eigenvalues."""
    values = diagonal(form)
    distances = abs(lax.expand_dims(values, (0,)) - lax.expand_dims(values, (1,)))
    others = lax.ne(lax.broadcasted_iota(np.int32, form.shape, 0), lax.broadcasted_iota(np.int32, form.shape, 1))
    least = lax.reduce_min(lax.select(others, distances, lax.full((), np.inf, distances.dtype)), (0, 1))
    least = lax.select(lax.eq(least, 0), lax.full_like(least, epsilon), least)
    bound = lax.max(lax.full_like(least, epsilon), epsilon / least * linalg.norm(triu(form, 1), 1))
    finite = lax.reduce_and(lax.is_finite(abs(result)), (0, 1))
    return lax.select(finite, lax.min(lax.full_like(bound, 1), bound), lax.full_like(bound, np.inf))
