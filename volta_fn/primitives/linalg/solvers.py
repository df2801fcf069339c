"""Factorizations of matrices, and systems of equations solved by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dimension import min_dim
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, GradientError, ShapeError
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.contraction import batch_matmul
from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, gather
from volta_fn.primitives.data_movement.movement import (
    batch_in_front,
    broadcast,
    broadcast_in_dim,
    broadcast_to,
    broadcasted_iota,
    expand_dims,
    moveaxis,
    no_derivative,
    no_tangents,
    reshape,
    squeeze,
    transpose,
)
from volta_fn.primitives.data_movement.slicing import concatenate, pad, slice_in_dim
from volta_fn.primitives.declare import to_dtype, weakly_promoted
from volta_fn.primitives.elementwise import selection
from volta_fn.primitives.elementwise.arithmetic import max as maximum
from volta_fn.primitives.elementwise.arithmetic import sqrt
from volta_fn.primitives.elementwise.selection import conj, ge, is_finite, select
from volta_fn.primitives.reduction import reduce_and, reduce_max, reduce_sum
from volta_fn.primitives.scan import scan
from volta_fn.primitives.sorting import sort_key_val

# Triangular and tridiagonal systems, Cholesky factors, and updates of factors.

# Checks, triangles, transposes and products of stacks of matrices.

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


#: The JVP rule of factorisations without derivatives.
constant_jvp = no_derivative("{primitive.name} has no derivative; use lax.stop_gradient if its argument counts as a constant")


def matmul(a: Array, b: Array) -> Array:
    """Multiply two equally long stacks of matrices."""
    return batch_matmul(a, b)


def swap(x: Array) -> Array:
    """Transpose each matrix."""
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def adjoint(x: Array) -> Array:
    """Transpose and conjugate each matrix."""
    return selection.conj(swap(x))


def real_part(x: Array) -> Array:
    """Return the real part; a real array is returned as it is."""
    return selection.real(x) if x.dtype in dtypes.COMPLEX else x


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


# The triangular solve and the Cholesky factorisation.

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
    """Differentiate op(A) X = B: op(A) dX = dB - op(dA) X."""
    # The other triangle of dA, which is not read, does not count.
    (a, b), (a_tangent, b_tangent) = primals, tangents
    x = bind(triangular_solve_p, a, b, **flags)
    if type(a_tangent) is Zero and type(b_tangent) is Zero:
        return no_tangents(x)
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
    """Differentiate: dL = L Φ(L⁻¹ dA L⁻ᴴ) (Murray, arXiv:1602.07527)."""
    # Φ takes the lower triangle with half its diagonal.
    (tangent,) = tangents
    factor = bind(cholesky_p, *primals)
    if type(tangent) is Zero:
        return no_tangents(factor)
    inner = triangular_solve(factor, hermitian_of(tangent), left_side=True, lower=True)
    inner = triangular_solve(factor, inner, lower=True, transpose_a=True, conjugate_a=True)
    half = as_value(np.asarray(0.5, inner.dtype))
    return factor, matmul(factor, tril(inner) - half * only_diagonal(inner))


cholesky_p = Primitive("cholesky", _cholesky_abstract, jvp=_cholesky_jvp, batch=batch_in_front())


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Array:
    """Return the lower triangular L with L Lᴴ = x, for positive definite x.

    The matrices are Hermitian, (*batch, n, n); L is NaN where they are not positive definite. With `symmetrize_input` the matrices are
    averaged with their adjoints first, else their lower triangles are read.

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


# The solution of tridiagonal systems.


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
    terms = [
        expand_dims(t, (t.ndim,)) * _shifted(x, shift, x.ndim - 2)
        for t, shift in zip(tangents[:3], (-1, 0, 1), strict=True)
        if type(t) is not Zero
    ]
    right = tangents[3]
    for term in terms:
        right = -term if type(right) is Zero else right - term
    if type(right) is Zero:
        return no_tangents(x)
    return x, bind(tridiagonal_solve_p, *diagonals, right)


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


tridiagonal_solve_p = Primitive("tridiagonal_solve", _abstract, jvp=_jvp, transpose=_transpose, batch=batch_in_front())


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False) -> Array:
    """Solve T X = B for tridiagonal matrices T, by elimination with pivoting.

    Args:
        dl: the lower diagonals (*batch, n), ``dl[i] = T[i, i - 1]``; the first element is not read.
        d: the main diagonals (*batch, n).
        du: the upper diagonals (*batch, n), ``du[i] = T[i, i + 1]``; the last element is not read.
        b: right-hand sides (*batch, n, k).

    A singular matrix gives NaN or, with `perturb_singular`, the solution for main diagonals larger by rounding errors. Raises `ShapeError`
    or `DTypeError` where the operands do not fit together.

    >>> ones = vf.numpy.ones(3)
    >>> vf.lax.linalg.tridiagonal_solve(ones, 2 * ones, ones, vf.numpy.array([[3.0], [4.0], [3.0]])).round(3)[:, 0]
    Array([1., 1., 1.], dtype=float32)
    """
    lower, diagonal, upper, right = weakly_promoted("tridiagonal_solve", (dl, d, du, b))
    x = bind(tridiagonal_solve_p, lower, diagonal, upper, right)
    if not perturb_singular:
        return x
    perturbed = bind(tridiagonal_solve_p, lower, _perturbed(lower, diagonal, upper), upper, right)
    is_solved = reduce_and(is_finite(abs(x)), (x.ndim - 2, x.ndim - 1))
    return select(broadcast_in_dim(is_solved, x.shape, range(is_solved.ndim)), x, perturbed)


def _perturbed(lower: Array, diagonal: Array, upper: Array) -> Array:
    """Return main diagonals larger by a rounding error of the largest element."""
    dtype = abs(diagonal).dtype
    epsilon = dtypes.finfo(dtype).eps
    sizes = [reduce_max(abs(v), (v.ndim - 1,)) for v in (lower, diagonal, upper)]
    step = (maximum(maximum(sizes[0], sizes[1]), sizes[2]) + dtype.type(epsilon)) * dtype.type(epsilon)
    return diagonal + to_dtype(expand_dims(step, (step.ndim,)), diagonal.dtype)


# Updates of factorisations, and functions of them.

INT32 = np.dtype(np.int32)


def cholesky_update(r_matrix: Any, w_vector: Any) -> Array:
    """Return the upper triangular factor of Rᵀ R + w wᵀ, for a real factor R.

    R is (*batch, n, n), w (*batch, n). Each row takes a rotation, which moves what w adds to it; the diagonal stays positive. It takes
    n steps of O(n) operations, is differentiable, and raises `ShapeError` where R and w do not fit together.

    >>> vf.lax.linalg.cholesky_update(vf.numpy.array([[3.0, 0.0], [0.0, 1.0]]), vf.numpy.array([4.0, 0.0]))
    Array([[5., 0.],
           [0., 1.]], dtype=float32)
    """
    factor, vector = weakly_promoted("cholesky_update", (r_matrix, w_vector))
    check_matrix("cholesky_update", factor.aval, square=True)
    if vector.shape != factor.shape[:-1]:
        raise ShapeError(f"cholesky_update needs r_matrix (*batch, n, n) and w_vector (*batch, n), got {factor.shape} and {vector.shape}")
    last = vector.ndim - 1
    positions = broadcasted_iota(INT32, vector.shape, last)

    def rotate(w: Array, item: tuple[Array, Array]) -> tuple[Array, Array]:
        step, row = item
        at_step = positions == step
        zero = as_value(np.zeros((), w.dtype))
        x, y = (reduce_sum(select(at_step, v, zero), (last,)) for v in (row, w))
        # Scaled, so that no square overflows or vanishes; of two zeros the row stays.
        largest, one = to_dtype(stop_gradient(maximum(abs(x), abs(y))), w.dtype), as_value(np.ones((), w.dtype))
        vanishes = largest == zero
        scale = select(vanishes, one, largest)
        x, y = select(vanishes, one, x / scale), y / scale
        length = sqrt(x * x + y * y)
        cosine, sine = (expand_dims(v / length, (last,)) for v in (x, y))
        return select(at_step, zero, cosine * w - sine * row), cosine * row + sine * w

    steps = broadcasted_iota(INT32, (factor.shape[-1],), 0)
    _, rows = scan(rotate, vector, (steps, moveaxis(factor, last, 0)))
    return moveaxis(rows, 0, last)


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Array:
    """Return the permutation of the row exchanges of `lu`.

    Step i exchanges rows i and pivots[i]. The pivots are integers (*batch, k) as of `lu`; the permutation is (*batch, permutation_size), of
    their dtype. Raises `ArgumentError` if `permutation_size` is less than k, `ArgumentTypeError` for pivots that are no integers.

    >>> vf.lax.linalg.lu_pivots_to_permutation(vf.numpy.array([2, 2]), 3)
    Array([2, 0, 1], dtype=int32)
    """
    steps = as_value(pivots)
    if steps.dtype.kind not in "iu" or not steps.ndim:
        raise ArgumentTypeError(f"lu_pivots_to_permutation needs pivots that are integers (*batch, k), got {steps.aval}")
    if permutation_size < steps.shape[-1]:
        raise ArgumentError(f"lu_pivots_to_permutation: permutation_size must be at least {steps.shape[-1]}, got {permutation_size}")
    last, shape = steps.ndim - 1, (*steps.shape[:-1], permutation_size)
    positions = broadcasted_iota(steps.dtype, shape, last)

    def exchange(order: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        step, pivot = item
        at_step, at_pivot = positions == step, positions == expand_dims(pivot, (last,))
        zero = as_value(np.zeros((), order.dtype))
        first, second = (expand_dims(reduce_sum(select(at, order, zero), (last,)), (last,)) for at in (at_step, at_pivot))
        exchanged = select(at_pivot, broadcast_to(first, shape), order)
        return select(at_step, broadcast_to(second, shape), exchanged), None

    numbers = broadcasted_iota(steps.dtype, (steps.shape[-1],), 0)
    return scan(exchange, positions, (numbers, moveaxis(steps, last, 0)))[0]


def symmetric_product(a_matrix: Any, c_matrix: Any, *, alpha: float = 1.0, beta: float = 0.0, symmetrize_output: bool = False) -> Array:
    """Return alpha A Aᵀ + beta C, for symmetric C.

    The matrices A are (*batch, m, n), and C (*batch, m, m).
    With `symmetrize_output` the lower triangle is copied to the upper one. Raises `ShapeError` where A and C do not fit together.

    >>> vf.lax.linalg.symmetric_product(vf.numpy.array([[1.0], [2.0]]), vf.numpy.eye(2), beta=3.0)
    Array([[4., 2.],
           [2., 7.]], dtype=float32)
    """
    a, c = weakly_promoted("symmetric_product", (a_matrix, c_matrix))
    check_matrix("symmetric_product", a.aval)
    if c.shape != (*a.shape[:-1], a.shape[-2]):
        raise ShapeError(f"symmetric_product needs A (*batch, m, n) and C (*batch, m, m), got shapes {a.shape} and {c.shape}")
    product = matmul(a, swap(a)) * alpha + c * beta
    if not symmetrize_output:
        return product
    below = tril(product, -1)
    return below + swap(below) + only_diagonal(product)


# The LU and QR factorisations, and the solution of linear systems by LU.

# lu


def _lu_abstract(x: ShapedArray) -> tuple[ShapedArray, ShapedArray, ShapedArray]:
    check_matrix("lu", x)
    *batch, m, n = x.shape
    return ShapedArray(x.shape, x.dtype), ShapedArray((*batch, min_dim(m, n)), INT32), ShapedArray((*batch, m), INT32)


def _lu_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Sequence[Array], list[Any]]:
    """Differentiate by F = L⁻¹ P dA U⁻¹ (de Hoog et al., 2011)."""
    # dL = L tril(F, -1) and dU = triu(F) U, since P dA = dL U + L dU. Rectangular matrices are treated as part of square ones, continued by
    # the identity.
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
    k = m if full_matrices else min_dim(m, n)
    r = ShapedArray((*batch, k, n), x.dtype)
    return (ShapedArray((*batch, m, k), x.dtype), r) if compute_q else (r,)


def _qr_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, full_matrices: bool, compute_q: bool
) -> tuple[Sequence[Array], list[Any]]:
    """Differentiate a QR factorization, which needs Q."""
    # Of a wide matrix the square block makes Q; the other columns of R are Qᴴ times those of x.
    (x,), (tangent,) = primals, tangents
    if type(tangent) is Zero:
        return no_tangents(bind(qr_p, x, full_matrices=full_matrices, compute_q=compute_q))
    if not compute_q:
        (_, r), (_, r_tangent) = _qr_jvp(primals, tangents, full_matrices=full_matrices, compute_q=True)
        return (r,), [r_tangent]
    q, r = outs = bind(qr_p, x, full_matrices=full_matrices, compute_q=True)
    m, n = x.shape[-2:]
    if full_matrices and m > n:
        return outs, list(_complete_qr_tangents(q, r, tangent))
    if m >= n:
        return outs, list(_tall_qr_tangents(q, r, tangent))
    q_tangent, r_tangent = _tall_qr_tangents(q, slice_in_dim(r, 0, m, 1, -1), slice_in_dim(tangent, 0, m, 1, -1))
    rest, rest_tangent = (slice_in_dim(v, m, n, 1, -1) for v in (x, tangent))
    beyond = matmul(adjoint(q_tangent), rest) + matmul(adjoint(q), rest_tangent)
    return outs, [q_tangent, concatenate([r_tangent, beyond], r.ndim - 1)]


def _tall_qr_tangents(q: Array, r: Array, tangent: Array) -> tuple[Array, Array]:
    """Differentiate by C = Qᴴ dX R⁻¹: dR = (C - D) R, dQ = dX R⁻¹ - Q (C - D)."""
    # D is the skew-Hermitian matrix that agrees with C below the diagonal. (Walter and Lehmann, arXiv:1009.6112; D carries the imaginary
    # diagonal of C, for R keeps a real one.)
    solved = triangular_solve(r, tangent)
    inner = matmul(adjoint(q), solved)
    below = tril(inner, -1)
    skew = below - adjoint(below)
    if inner.dtype in dtypes.COMPLEX:
        diagonal = only_diagonal(inner)
        skew = skew + (diagonal - to_dtype(real_part(diagonal), inner.dtype))
    upper = inner - skew
    return solved - matmul(q, upper), matmul(upper, r)


def _complete_qr_tangents(q: Array, r: Array, tangent: Array) -> tuple[Array, Array]:
    """Differentiate the factors of a tall matrix where Q is square."""
    # The columns of Q beyond n follow from the others, as Q is a product of n reflectors: (I - Q₁₁)⁻¹ determines them. (arXiv:2409.13374,
    # equations 32 and 33.)
    m, n = q.shape[-1], r.shape[-1]
    thin, rest = slice_in_dim(q, 0, n, 1, -1), slice_in_dim(q, n, m, 1, -1)
    thin_tangent, r_tangent = _tall_qr_tangents(thin, slice_in_dim(r, 0, n, 1, -2), tangent)
    above, below = slice_in_dim(thin, 0, n, 1, -2), slice_in_dim(thin, n, m, 1, -2)
    above_tangent, below_tangent = slice_in_dim(thin_tangent, 0, n, 1, -2), slice_in_dim(thin_tangent, n, m, 1, -2)
    z = adjoint(linear_solve(adjoint(above - eye_like(above)), adjoint(below)))
    rest_tangent = matmul(thin_tangent, adjoint(z)) - matmul(thin + matmul(rest, z), adjoint(below_tangent - matmul(z, above_tangent)))
    zeros = broadcast_to(as_value(np.zeros((), r.dtype)), (*r.shape[:-2], m - n, n))
    return concatenate([thin_tangent, rest_tangent], q.ndim - 1), concatenate([r_tangent, zeros], r.ndim - 2)


qr_p = Primitive("qr", _qr_abstract, multiple_results=True, jvp=_qr_jvp, batch=batch_in_front())


def qr(x: Any, *, full_matrices: bool = True) -> tuple[Array, Array]:
    """Return Q with orthonormal columns and upper triangular R with Q R = x.

    The matrices are (*batch, m, n). Q has m columns if `full_matrices`, else min(m, n).

    >>> q, r = vf.lax.linalg.qr(vf.numpy.ones((3, 2)), full_matrices=False)
    >>> q.shape, r.shape
    ((3, 2), (2, 2))
    """
    q, r = bind(qr_p, as_value(x), full_matrices=bool(full_matrices), compute_q=True)
    return q, r


def qr_without_q(x: Any) -> Array:
    """Return the R of ``qr(x, full_matrices=False)`` in less time.

    >>> vf.numpy.linalg.qr(vf.numpy.array([[3.0], [4.0]]), mode="r")
    Array([[-5.]], dtype=float32)
    """
    (r,) = bind(qr_p, as_value(x), full_matrices=False, compute_q=False)
    return r
