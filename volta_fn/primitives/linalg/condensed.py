"""Hessenberg, Schur and tridiagonal forms, and products of reflectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.primitives.array_operations.shorthand import full
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.movement import broadcast, moveaxis
from volta_fn.primitives.declare import weakly_promoted
from volta_fn.primitives.linalg.matrices import adjoint, batch_in_front, check_matrix, matmul, no_derivative

# hessenberg


def _hessenberg_abstract(x: ShapedArray) -> tuple[ShapedArray, ShapedArray]:
    check_matrix("hessenberg", x, square=True)
    return ShapedArray(x.shape, x.dtype), ShapedArray((*x.shape[:-2], max(0, x.shape[-1] - 1)), x.dtype)


hessenberg_p = Primitive("hessenberg", _hessenberg_abstract, multiple_results=True)
hessenberg_p.batch = batch_in_front(hessenberg_p)
hessenberg_p.jvp = no_derivative(hessenberg_p)


def hessenberg(a: Any) -> tuple[Array, Array]:
    """Reduce square matrices to Hessenberg form: Qᴴ a Q is zero below the subdiagonal.

    For matrices (*batch, n, n), return matrices with the Hessenberg form on and above their subdiagonals and reflectors below, and the
    reflectors' factors (*batch, n - 1), as `householder_product` takes them. On the host, this needs SciPy. It has no derivative.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.hessenberg(vf.numpy.eye(3))[1]
    Array([0., 0.], dtype=float32)
    """
    reduced, factors = bind(hessenberg_p, as_value(a))
    return reduced, factors


# schur


def _schur_abstract(x: ShapedArray, *, compute_vectors: bool) -> tuple[ShapedArray, ...]:
    check_matrix("schur", x, square=True)
    return (ShapedArray(x.shape, x.dtype),) * (2 if compute_vectors else 1)


schur_p = Primitive("schur", _schur_abstract, multiple_results=True)
schur_p.batch = batch_in_front(schur_p)
schur_p.jvp = no_derivative(schur_p)


def schur(x: Any, *, compute_schur_vectors: bool = True) -> Any:
    """Return the Schur form T and the vectors Q with Q T Qᴴ = x, or only T.

    The matrices are square, (*batch, n, n). T is upper triangular if x is complex; for a real x it has a block of two by two on its
    diagonal for each pair of complex eigenvalues. Q is unitary. NaN where LAPACK does not converge. On the host, this needs SciPy. It
    has no derivative.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.schur(vf.numpy.array([[1.0, 2.0], [0.0, 3.0]]))[0]
    Array([[1., 2.],
           [0., 3.]], dtype=float32)
    """
    outs = bind(schur_p, as_value(x), compute_vectors=bool(compute_schur_vectors))
    return (outs[0], outs[1]) if compute_schur_vectors else outs[0]


# tridiagonal


def _tridiagonal_abstract(x: ShapedArray, *, lower: bool) -> tuple[ShapedArray, ...]:
    check_matrix("tridiagonal", x, square=True)
    *stack, n, _ = x.shape
    real, less = dtypes.real_dtype(x.dtype), max(0, n - 1)
    shapes = ((n, real), (less, real), (less, x.dtype))
    return ShapedArray(x.shape, x.dtype), *[ShapedArray((*stack, size), dtype) for size, dtype in shapes]


tridiagonal_p = Primitive("tridiagonal", _tridiagonal_abstract, multiple_results=True)
tridiagonal_p.batch = batch_in_front(tridiagonal_p)
tridiagonal_p.jvp = no_derivative(tridiagonal_p)


def tridiagonal(a: Any, *, lower: bool = True) -> tuple[Array, Array, Array, Array]:
    """Reduce Hermitian matrices to real tridiagonal ones.

    For matrices (*batch, n, n), of which the triangle is read that `lower` says, return matrices with the tridiagonal form and reflectors
    beyond it in that triangle, its diagonal (*batch, n) and subdiagonal (*batch, n - 1), and the reflectors' factors (*batch, n - 1). On
    the host, this needs SciPy. It has no derivative.

    >>> import volta_fn as vf
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


def _product_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Array, int]:
    moved = [broadcast(x, (axis.size,)) if dim is None else moveaxis(x, dim, 0) for x, dim in zip(args, dims, strict=True)]
    return bind(householder_product_p, *moved, **params), 0


householder_product_p = Primitive("householder_product", _product_abstract, batch=_product_batch)
householder_product_p.jvp = no_derivative(householder_product_p)


def householder_product(a: Any, taus: Any) -> Array:
    """Return the first columns of the product of Householder's reflections 1 - τ v vᴴ.

    Args:
        a: matrices (*batch, m, n), m ≥ n; the vector v of reflection i is 1 in row i, and stands below the diagonal in column i.
        taus: the factors τ (*batch, k), k ≤ n.

    The result has the shape of `a`. On the host, this needs SciPy. It has no derivative. Raises `ShapeError` or `DTypeError` where a and
    taus do not fit together.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.householder_product(vf.numpy.array([[0.0], [1.0]]), vf.numpy.array([1.0]))
    Array([[ 0.],
           [-1.]], dtype=float32)
    """
    return bind(householder_product_p, *weakly_promoted("householder_product", (a, taus)))


def ormqr(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Array:
    """Multiply by the unitary Q of reflections: Q c, or c Q unless `left`.

    `a` (*batch, m, n) and `taus` (*batch, k) are as for `householder_product`, except that a may be wide; Q is (m, m), and is replaced by
    its adjoint if `transpose`.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.ormqr(vf.numpy.array([[0.0], [1.0]]), vf.numpy.array([1.0]), vf.numpy.eye(2))
    Array([[ 0., -1.],
           [-1.,  0.]], dtype=float32)
    """
    reflectors, factors, other = weakly_promoted("ormqr", (a, taus, c))
    *stack, m, n = reflectors.shape
    columns = full((*stack, m, max(0, m - n)), 0, reflectors.dtype)
    square = concatenate([reflectors, columns], reflectors.ndim - 1) if m > n else reflectors[..., :m]
    q = householder_product(square, factors)
    q = adjoint(q) if transpose else q
    return matmul(q, other) if left else matmul(other, q)
