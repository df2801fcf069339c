"""Memory of programs and kernels: blocks that are reused, and workspaces."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from math import prod
from types import TracebackType
from typing import Any, Self

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation

# Memory that the operating system has just given is several times slower to write to than memory that was in use before.

_ALIGNMENT = 64
_SPARES = 3  # a program, a kernel within it, and a smaller one that it calls

#: Spare blocks, from the smallest to the largest.
_spare: list[np.ndarray] = []
_lock = threading.Lock()


def take(size: int) -> np.ndarray:
    """Return the smallest spare block of at least `size` bytes, or a new one."""
    with _lock:
        fits = next((i for i, block in enumerate(_spare) if block.size >= size), None)
        if fits is not None:
            return _spare.pop(fits)
        if _spare:
            _spare.pop()  # the largest is let go of before more is asked for
    return _new(size)


def _new(size: int) -> np.ndarray:
    block = np.empty(size + _ALIGNMENT, np.uint8)
    return block[-block.ctypes.data % _ALIGNMENT :]


def give(block: np.ndarray) -> None:
    """Give back a block that no live array shares: the next call may get it."""
    with _lock:
        _spare.append(block)
        _spare.sort(key=len)
        if len(_spare) > _SPARES:
            del _spare[0]


def free() -> None:
    """Free the spare blocks."""
    with _lock:
        _spare.clear()


class Scratch:
    """Arrays for a kernel while it runs: ``with Scratch() as scratch``.

    They are consecutive in the largest spare block. What does not fit is newly allocated, and the next `Scratch` finds a block that
    is large enough.
    """

    def __enter__(self) -> Self:
        with _lock:
            self._block = _spare.pop() if _spare else None
        self._used = 0
        return self

    def array(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array, which must not outlive the kernel."""
        start = self._used
        self._used += -(-prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if self._block is None or self._used > self._block.size:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._block, start)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        enough = self._block is not None and self._used <= self._block.size
        block = self._block if enough else _new(self._used)
        assert block is not None
        give(block)


# The memory that routines of NumPy and SciPy need for themselves.

#: The prime factors that pocketfft transforms directly; lengths with others become convolutions of twice the length.
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


def _qr(operands: Sequence[ShapedArray], results: Sequence[ShapedArray], params: dict[str, Any]) -> int:
    """Count an operand and results in double precision, and a copy of the operand."""
    twice = 2 if dtypes.real_dtype(operands[0].dtype).itemsize == 4 else 1
    return twice * (2 * operands[0].nbytes + sum(result.nbytes for result in results))


def _svd(operands: Sequence[ShapedArray], results: Sequence[ShapedArray], params: dict[str, Any]) -> int:
    """Count copies of a matrix and its factors, and four squares for gesdd."""
    (x,) = operands
    squares = 4 * min(x.shape[-2:]) ** 2 * x.dtype.itemsize if params["compute_uv"] else 0
    return _matrix(x) + sum(map(_matrix, results[1:])) + squares


def _matrix(x: ShapedArray) -> int:
    """Return the bytes of one matrix of a stack: LAPACK gets a copy of each."""
    return math.prod(x.shape[-2:]) * x.dtype.itemsize


_WORKSPACES: dict[str, Callable[[Sequence[ShapedArray], Sequence[ShapedArray], dict[str, Any]], int]] = {
    "fft": _fft,
    # a copy of a matrix, the factors with all elements, and a mask
    "cholesky": lambda operands, results, params: _matrix(operands[0]) + results[0].nbytes + math.prod(operands[0].shape[-2:]),
    "qr": _qr,
    "eigh": lambda operands, results, params: 3 * _matrix(operands[0]),  # a copy, and two of that size, which syevd asks for
    "svd": _svd,
    "eig": lambda operands, results, params: (1 + params["compute_vectors"]) * _matrix(operands[0]),  # the vectors before they are complex
}
