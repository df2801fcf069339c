"""The memory that routines of NumPy and SciPy need for themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation

#: Prime factors up to this are transforms of their own to pocketfft; lengths with others become convolutions of twice the length.
_SMALL_PRIMES = (2, 3, 5, 7, 11)


def workspace(eqn: Equation) -> int:
    """Return about how many bytes the NumPy function of an equation needs for itself."""
    count = _WORKSPACES.get(eqn.primitive.name)
    return 0 if count is None else count([v.aval for v in eqn.invars], [v.aval for v in eqn.outvars], eqn.params)


def _fft(operands: Sequence[ShapedArray], results: Sequence[ShapedArray], params: dict[str, Any]) -> int:
    """Count the factors and the buffer of pocketfft, and a copied spectrum."""
    length = rest = params["length"]
    for prime in _SMALL_PRIMES:
        while rest and rest % prime == 0:
            rest //= prime
    numbers = 2 * length if rest <= 1 else 6 * length
    of_reals = params["kind"] in ("RFFT", "IRFFT")
    itemsize = dtypes.complex_dtype(dtypes.real_dtype(operands[0].dtype)).itemsize // (1 + of_reals)
    return numbers * itemsize + results[0].nbytes


def _cholesky(operands: Sequence[ShapedArray], results: Sequence[ShapedArray], params: dict[str, Any]) -> int:
    """Count a copy of a matrix, the factors with all elements, and a mask."""
    return _matrix(operands[0]) + results[0].nbytes + math.prod(operands[0].shape[-2:])


def _qr(operands: Sequence[ShapedArray], results: Sequence[ShapedArray], params: dict[str, Any]) -> int:
    """Count an operand and results in double precision, and a copy of the operand."""
    twice = 2 if dtypes.real_dtype(operands[0].dtype).itemsize == 4 else 1
    return twice * (2 * operands[0].nbytes + sum(result.nbytes for result in results))


def _eigh(operands: Sequence[ShapedArray], results: Sequence[ShapedArray], params: dict[str, Any]) -> int:
    """Count a copy of a matrix, and two of that size, which syevd asks for."""
    return 3 * _matrix(operands[0])


def _svd(operands: Sequence[ShapedArray], results: Sequence[ShapedArray], params: dict[str, Any]) -> int:
    """Count copies of a matrix and its factors, and four squares for gesdd."""
    (x,) = operands
    squares = 4 * min(x.shape[-2:]) ** 2 * x.dtype.itemsize if params["compute_uv"] else 0
    return _matrix(x) + sum(map(_matrix, results[1:])) + squares


def _eig(operands: Sequence[ShapedArray], results: Sequence[ShapedArray], params: dict[str, Any]) -> int:
    """Count a copy of a matrix, and its vectors before they are complex."""
    return (1 + params["compute_vectors"]) * _matrix(operands[0])


def _matrix(x: ShapedArray) -> int:
    """Return the bytes of one matrix of a stack: LAPACK gets a copy of each."""
    return math.prod(x.shape[-2:]) * x.dtype.itemsize


_WORKSPACES: dict[str, Callable[[Sequence[ShapedArray], Sequence[ShapedArray], dict[str, Any]], int]] = {
    "fft": _fft, "cholesky": _cholesky, "qr": _qr, "eigh": _eigh, "svd": _svd, "eig": _eig,
}  # fmt: skip
