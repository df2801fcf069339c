"""Matrices of constants, and matrices made of blocks and vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, from_host
from volta_fn.core.aval import as_integer, check_option
from volta_fn.dtypes import COMPLEX, as_dtype
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import operand, promote, promote_inexact
from volta_fn.numpy.indexing import take
from volta_fn.primitives.elementwise.selection import conj

# Matrices of constants: Fourier, Hadamard, Helmert, Hilbert and Pascal.
#
# They are computed on the host, in float64 or integers of any size, and rounded once to `dtype`, by default the floating, complex
# or integer one of the configuration.


def _size(function: str, n: Any, least: int = 0) -> int:
    size = as_integer(n, f"{function}: n")
    if size < least:
        raise ArgumentError(f"{function}: n must be at least {least}, got {size}")
    return size


def _rounded(values: Any, dtype: Any, default: Any = float) -> Array:
    return from_host(np.asarray(values).astype(as_dtype(default if dtype is None else dtype)))


def dft(n: int, scale: str | None = None, *, dtype: Any = None) -> Array:
    """Create the matrix (n, n) that multiplies a vector to its Fourier transform.

    `scale` is None, or "sqrtn" or "n" to divide by √n or n. Raises `ArgumentError` for another, `DTypeError` for a dtype that is not
    complex.

    >>> vf.scipy.linalg.dft(2).real
    Array([[ 1.,  1.],
           [ 1., -1.]], dtype=float32)
    """
    check_option(scale, "dft: scale", (None, "sqrtn", "n"))
    if dtype is not None and as_dtype(dtype) not in COMPLEX:
        raise DTypeError(f"dft: dtype must be complex, got {as_dtype(dtype).name}")
    size = _size("dft", n)
    steps = np.arange(size)
    powers = np.exp(-2j * np.pi * (steps[:, None] * steps % max(size, 1)) / max(size, 1))
    return _rounded(powers / {None: 1.0, "sqrtn": math.sqrt(max(size, 1)), "n": max(size, 1)}[scale], dtype, complex)


def hadamard(n: int, dtype: Any = int) -> Array:
    """Create Sylvester's matrix (n, n) of ones and minus ones with orthogonal rows.

    Raises `ArgumentError` unless n is a power of two.

    >>> vf.scipy.linalg.hadamard(2)
    Array([[ 1,  1],
           [ 1, -1]], dtype=int32)
    """
    size = _size("hadamard", n, 1)
    if size & (size - 1):
        raise ArgumentError(f"hadamard: n must be a power of two, got {size}")
    values = np.ones((1, 1), np.int32)
    while len(values) < size:
        values = np.block([[values, values], [values, -values]])
    return _rounded(values, dtype)


def helmert(n: int, full: bool = False, *, dtype: Any = None) -> Array:
    """Create Helmert's matrix (n - 1, n) of contrasts, or with `full` (n, n).

    Its rows are orthonormal; the first one of the full matrix is constant.

    >>> vf.scipy.linalg.helmert(2).round(4)
    Array([[ 0.7071, -0.7071]], dtype=float32)
    """
    size = _size("helmert", n, 1)
    steps = np.arange(1, size)
    values = np.tril(np.ones((size - 1, size)))
    values[steps - 1, steps] = -steps
    values /= np.sqrt(steps * (steps + 1.0))[:, None]
    return _rounded(np.vstack([np.full((1, size), 1 / math.sqrt(size)), values]) if full else values, dtype)


def hilbert(n: int, *, dtype: Any = None) -> Array:
    """Create Hilbert's matrix (n, n) of 1 / (i + j + 1).

    >>> vf.scipy.linalg.hilbert(2)
    Array([[1.        , 0.5       ],
           [0.5       , 0.33333334]], dtype=float32)
    """
    steps = np.arange(_size("hilbert", n))
    return _rounded(1.0 / (steps[:, None] + steps + 1.0), dtype)


def invhilbert(n: int, *, dtype: Any = None) -> Array:
    """Create the inverse of Hilbert's matrix, whose elements are integers.

    >>> vf.scipy.linalg.invhilbert(2)
    Array([[ 4., -6.],
           [-6., 12.]], dtype=float32)
    """
    size, comb = _size("invhilbert", n), math.comb

    def element(i: int, j: int) -> int:
        return (-1) ** (i + j) * (i + j + 1) * comb(size + i, size - j - 1) * comb(size + j, size - i - 1) * comb(i + j, i) ** 2

    return _table(size, element, dtype)


def pascal(n: int, kind: str | None = None, *, dtype: Any = None) -> Array:
    """Create Pascal's matrix (n, n) of binomial coefficients.

    Element (i, j) is that of i + j over i ("symmetric", or None), of i over j ("lower"), or of j over i ("upper"). Raises `ArgumentError`
    for another `kind`.

    >>> vf.scipy.linalg.pascal(3)
    Array([[1., 1., 1.],
           [1., 2., 3.],
           [1., 3., 6.]], dtype=float32)
    """
    return _table(_size("pascal", n), _binomials("pascal", kind), dtype)


def invpascal(n: int, kind: str | None = None, *, dtype: Any = None) -> Array:
    """Create the inverse of Pascal's matrix, whose elements are integers.

    >>> vf.scipy.linalg.invpascal(2)
    Array([[ 2., -1.],
           [-1.,  1.]], dtype=float32)
    """
    size = _size("invpascal", n)
    if kind in (None, "symmetric"):
        return _table(size, lambda i, j: (-1) ** (i + j) * sum(math.comb(k, i) * math.comb(k, j) for k in range(size)), dtype)
    binomial = _binomials("invpascal", kind)
    return _table(size, lambda i, j: (-1) ** (i + j) * binomial(i, j), dtype)


def _binomials(function: str, kind: str | None) -> Any:
    formulas = {"symmetric": lambda i, j: math.comb(i + j, i), "lower": lambda i, j: math.comb(i, j), "upper": lambda i, j: math.comb(j, i)}
    if (kind or "symmetric") not in formulas:
        raise ArgumentError(f"{function}: kind must be 'symmetric', 'lower' or 'upper', got {kind!r}")
    return formulas[kind or "symmetric"]


def _table(size: int, element: Any, dtype: Any) -> Array:
    values = [float(element(i, j)) for i in range(size) for j in range(size)]
    return _rounded(np.array(values).reshape(size, size), dtype)


# Matrices made of blocks and vectors: Toeplitz, companion matrices and others.


@fused
def block_diag(*arrs: Any) -> Array:
    """Create the matrix with the given blocks along its diagonal and zeros elsewhere.

    Vectors count as single rows, scalars as 1×1; the blocks are promoted to one dtype. Without any the result is a 1×0 matrix, like
    SciPy's. Raises `ShapeError` for an array of more than two dimensions.

    >>> vf.scipy.linalg.block_diag(vf.numpy.ones((1, 2)), 3.0)
    Array([[1., 1., 0.],
           [0., 0., 3.]], dtype=float32)
    """
    blocks = promote("block_diag", *(arrs or (np.zeros((1, 0), as_dtype(float)),)))
    if any(b.ndim > 2 for b in blocks):
        raise ShapeError(f"block_diag: the blocks must be matrices, got shapes {[b.shape for b in blocks]}")
    blocks = [lax.broadcast_to_rank(b, 2) for b in blocks]
    width, before, rows = sum(b.shape[1] for b in blocks), 0, []
    for block in blocks:
        after = width - before - block.shape[1]
        rows.append(lax.pad(block, np.zeros((), block.dtype), [(0, 0, 0), (before, after, 0)]))
        before += block.shape[1]
    return lax.concatenate(rows, 0)


@fused
def toeplitz(c: Any, r: Any = None) -> Array:
    """Create the Toeplitz matrix with first column `c` and first row `r`.

    Element (i, j) is c[i - j] or r[j - i].

    Args:
        c: the first columns (*batch, M).
        r: the first rows (*batch, N), whose element 0 is ignored. None: the conjugates of `c`, which makes Hermitian matrices.

    Scalars count as vectors. The result is (*batch, M, N), of the common dtype. Raises `ShapeError` if the batches do not broadcast.

    >>> vf.scipy.linalg.toeplitz(vf.numpy.array([1, 2, 3]), vf.numpy.array([0, 8, 9]))
    Array([[1, 8, 9],
           [2, 1, 8],
           [3, 2, 1]], dtype=int32)
    """
    column, row = promote("toeplitz", c, c if r is None else r)
    row = conj(row) if r is None and row.dtype.kind == "c" else row
    column, row = _one_batch("toeplitz", column, row)
    last = column.ndim - 1
    m, n = column.shape[last], row.shape[last]
    if not m or not n:
        return lax.full((*column.shape[:-1], m, n), 0, column.dtype)
    beyond = lax.rev(lax.slice_in_dim(row, 1, n, axis=last), (last,))
    diagonals = lax.concatenate([beyond, column], last)
    return take(diagonals, np.arange(m, dtype=np.int32)[:, None] - np.arange(n, dtype=np.int32) + np.int32(n - 1), axis=last)


@fused
def circulant(c: Any) -> Array:
    """Create the circulant matrices (*batch, N, N) with first columns `c` (*batch, N).

    Element (i, j) is c[(i - j) mod N].

    >>> vf.scipy.linalg.circulant(vf.numpy.array([1, 2, 3]))
    Array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]], dtype=int32)
    """
    column = _vectors("circulant", "c", c)
    steps = np.arange(column.shape[-1], dtype=np.int32)
    return take(column, (steps[:, None] - steps) % np.int32(max(len(steps), 1)), axis=-1)


@fused
def hankel(c: Any, r: Any = None) -> Array:
    """Create the Hankel matrices with first columns `c` and last rows `r`.

    Element (i, j) is c[i + j], or beyond its end r[i + j - M + 1].

    Args:
        c: the first columns (*batch, M).
        r: the last rows (*batch, N), whose element 0 is ignored; None: zeros, as many as in c.

    The result is (*batch, M, N), of the common dtype.

    >>> vf.scipy.linalg.hankel(vf.numpy.array([1, 2, 3]), vf.numpy.array([0, 8, 9]))
    Array([[1, 2, 3],
           [2, 3, 8],
           [3, 8, 9]], dtype=int32)
    """
    column = _vectors("hankel", "c", c)
    column, row = promote("hankel", column, vnp.zeros_like(column) if r is None else _vectors("hankel", "r", r))
    column, row = _one_batch("hankel", column, row)
    m, n = column.shape[-1], row.shape[-1]
    if not m or not n:
        return vnp.zeros((*column.shape[:-1], m, n), column.dtype)
    diagonals = vnp.concatenate([column, row[..., 1:]], axis=-1)
    return take(diagonals, np.arange(m, dtype=np.int32)[:, None] + np.arange(n, dtype=np.int32), axis=-1)


@fused
def convolution_matrix(a: Any, n: int, mode: str = "full") -> Array:
    """Create the matrices whose products with v are ``convolve(a, v, mode)``.

    For vectors `a` (*batch, M) they are (*batch, K, n), where K is M + n - 1 in mode "full", max(M, n) in mode "same" and
    max(M, n) - min(M, n) + 1 in mode "valid". Raises `ArgumentError` for another mode or n < 1, `ShapeError` for empty vectors.

    >>> vf.scipy.linalg.convolution_matrix(vf.numpy.array([1, 2]), 2)
    Array([[1, 0],
           [2, 1],
           [0, 2]], dtype=int32)
    """
    vector, columns = _vectors("convolution_matrix", "a", a, 1), as_integer(n, "convolution_matrix: n")
    if columns < 1 or mode not in ("full", "same", "valid"):
        raise ArgumentError(f"convolution_matrix: n must be positive and mode 'full', 'same' or 'valid', got {columns} and {mode!r}")
    size = vector.shape[-1]
    rows = {"full": size + columns - 1, "same": max(size, columns), "valid": abs(size - columns) + 1}[mode]
    start = (size + columns - 1 - rows) // 2
    index = start + np.arange(rows, dtype=np.int32)[:, None] - np.arange(columns, dtype=np.int32)
    inside = (index >= 0) & (index < size)
    return vnp.where(inside, take(vector, np.where(inside, index, 0).astype(np.int32), axis=-1), vnp.zeros((), vector.dtype))


def fiedler(a: Any) -> Array:
    """Create the matrices (*batch, N, N) of |a[i] - a[j]|.

    >>> vf.scipy.linalg.fiedler(vf.numpy.array([1, 4]))
    Array([[0, 3],
           [3, 0]], dtype=int32)
    """
    vector = vnp.atleast_1d(operand("fiedler", "a", a))
    return vnp.abs(vector[..., :, None] - vector[..., None, :])


@fused
def companion(a: Any) -> Array:
    """Create the matrices whose eigenvalues are the roots of polynomials.

    For coefficients `a` (*batch, N), the highest power first, they are (*batch, N - 1, N - 1). Raises `ShapeError` for fewer than two.

    >>> vf.scipy.linalg.companion(vf.numpy.array([1.0, -3.0, 2.0]))
    Array([[ 3., -2.],
           [ 1.,  0.]], dtype=float32)
    """
    coefficients = _vectors("companion", "a", a, 2)
    (coefficients,) = promote_inexact("companion", coefficients)
    row = -coefficients[..., 1:] / coefficients[..., :1]
    below = vnp.broadcast_to(vnp.eye(row.shape[-1], dtype=row.dtype)[:-1], (*row.shape[:-1], row.shape[-1] - 1, row.shape[-1]))
    return vnp.concatenate([row[..., None, :], below], axis=-2)


def fiedler_companion(a: Any) -> Array:
    """Create pentadiagonal matrices whose eigenvalues are the roots of polynomials.

    For coefficients `a` (*batch, N), the highest power first, they are (*batch, N - 1, N - 1) (Fiedler, "A note on companion matrices",
    2003). Raises `ShapeError` for no coefficients.

    >>> vf.scipy.linalg.fiedler_companion(vf.numpy.array([1.0, -3.0, 2.0]))
    Array([[ 3., -2.],
           [ 1.,  0.]], dtype=float32)
    """
    coefficients = _vectors("fiedler_companion", "a", a, 1)
    (coefficients,) = promote_inexact("fiedler_companion", coefficients)
    monic = coefficients[..., 1:] / coefficients[..., :1]
    size = monic.shape[-1]
    rows, columns = np.indices((size, size), np.int32)
    offset, even = columns - rows, rows % 2 == 0
    ones = (even & (offset == 2)) | (~even & (offset == -2)) | ((rows == 1) & (columns == 0))
    index = np.where(even & (offset == 1), columns, np.where(even & (offset == -1), rows, -1))
    index[:1, :1] = 0  # of the coefficients; -1 elsewhere
    return vnp.where(index >= 0, -take(monic, np.maximum(index, 0), axis=-1), ones.astype(monic.dtype))


def leslie(f: Any, s: Any) -> Array:
    """Create Leslie's matrices of population growth from fecundities and survivals.

    The first rows are `f` (*batch, N), the diagonals below the main ones `s` (*batch, N - 1), all else is zero. Raises `ShapeError` where
    they do not fit together.

    >>> vf.scipy.linalg.leslie(vf.numpy.array([0.1, 2.0]), vf.numpy.array([0.2]))
    Array([[0.1, 2. ],
           [0.2, 0. ]], dtype=float32)
    """
    row, survivals = promote("leslie", _vectors("leslie", "f", f, 2), _vectors("leslie", "s", s, 1))
    if survivals.shape != (*row.shape[:-1], row.shape[-1] - 1):
        raise ShapeError(f"leslie: f of N elements needs s of N - 1, got shapes {row.shape} and {survivals.shape}")
    below = on_diagonal(survivals, -1)[..., 1:, :]
    return vnp.concatenate([row[..., None, :], below], axis=-2)


def on_diagonal(v: Array, k: int = 0) -> Array:
    """Return matrices with vectors (*batch, N) on the k-th diagonal, else of zeros."""
    size = v.shape[-1] + abs(k)
    steps = np.arange(size)
    padded = vnp.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, abs(k))])
    values = padded[..., :, None] if k >= 0 else padded[..., None, :]
    return vnp.where(steps == steps[:, None] + k, values, vnp.zeros((), v.dtype))


def _one_batch(function: str, c: Array, r: Array) -> tuple[Array, Array]:
    """Return stacks of vectors with broadcast batch dimensions."""
    column, row = vnp.atleast_1d(c, r)
    try:
        batch = lax.broadcast_shapes(column.shape[:-1], row.shape[:-1])
    except ShapeError:
        raise ShapeError(f"{function}: the batches of c and r do not broadcast, got shapes {c.shape} and {r.shape}") from None
    return vnp.broadcast_to(column, (*batch, column.shape[-1])), vnp.broadcast_to(row, (*batch, row.shape[-1]))


def _vectors(function: str, argument: str, value: Any, least: int = 0) -> Array:
    """Return `value` as vectors; raise `ShapeError` if it is none, or a shorter one."""
    array = operand(function, argument, value)
    if not array.ndim or array.shape[-1] < least:
        raise ShapeError(f"{function}: {argument} must be a vector of at least {least} elements, or a stack; got shape {array.shape}")
    return array
