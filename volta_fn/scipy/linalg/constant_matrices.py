"""Matrices of constants: Fourier, Hadamard, Helmert, Hilbert and Pascal.

They are computed on the host, in float64 or integers of any size, and rounded once to `dtype` (default: float32, or complex64).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.core.array import Array, from_host
from volta_fn.core.aval import as_integer
from volta_fn.dtypes import COMPLEX, as_dtype
from volta_fn.errors import ArgumentError, DTypeError


def _size(function: str, n: Any, least: int = 0) -> int:
    size = as_integer(n, f"{function}: n")
    if size < least:
        raise ArgumentError(f"{function}: n must be at least {least}, got {size}")
    return size


def _rounded(values: Any, dtype: Any, default: Any = np.float32) -> Array:
    return from_host(np.asarray(values).astype(as_dtype(default if dtype is None else dtype)))


def dft(n: int, scale: str | None = None, *, dtype: Any = None) -> Array:
    """Create the matrix (n, n) that multiplies a vector to its Fourier transform.

    `scale` is None, or "sqrtn" or "n" to divide by √n or n. Raises `ArgumentError` for another, `DTypeError` for a dtype that is not
    complex.

    >>> vf.scipy.linalg.dft(2).real
    Array([[ 1.,  1.],
           [ 1., -1.]], dtype=float32)
    """
    if scale not in (None, "sqrtn", "n"):
        raise ArgumentError(f"dft: scale must be None, 'sqrtn' or 'n', got {scale!r}")
    if dtype is not None and as_dtype(dtype) not in COMPLEX:
        raise DTypeError(f"dft: dtype must be complex, got {as_dtype(dtype).name}")
    size = _size("dft", n)
    steps = np.arange(size)
    powers = np.exp(-2j * np.pi * (steps[:, None] * steps % max(size, 1)) / max(size, 1))
    return _rounded(powers / {None: 1.0, "sqrtn": math.sqrt(max(size, 1)), "n": max(size, 1)}[scale], dtype, np.complex64)


def hadamard(n: int, dtype: Any = int) -> Array:
    """Create Sylvester's matrix (n, n) of ones and minus ones with orthogonal rows.

    The default dtype is int32. Raises `ArgumentError` unless n is a power of two.

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
    return _rounded(values, np.int32 if dtype is int else dtype)


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
    formulas = {
        "symmetric": lambda i, j: math.comb(i + j, i),
        "lower": lambda i, j: math.comb(i, j),
        "upper": lambda i, j: math.comb(j, i),
    }
    if (kind or "symmetric") not in formulas:
        raise ArgumentError(f"{function}: kind must be 'symmetric', 'lower' or 'upper', got {kind!r}")
    return formulas[kind or "symmetric"]


def _table(size: int, element: Any, dtype: Any) -> Array:
    values = [float(element(i, j)) for i in range(size) for j in range(size)]
    return _rounded(np.array(values).reshape(size, size), dtype)
