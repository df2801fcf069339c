"""Fourier transforms of one long real signal, as transforms of many short ones.

Real numbers, an even count, are complex ones of half the length, whose spectrum `real_spectrum` separates. The elements of a complex
signal of a·b elements are a matrix with a rows. Its spectrum is that of the columns, times powers of a root of unity, and then that of the
rows, transposed (Bailey's four steps). pocketfft computes several short signals with one vector instruction, in a cache that a long one
does not fit, which takes a fourth of the time in single precision, and more in double precision. The powers are products of two small
tables.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

#: The least number of complex elements, and the fewest rows, for which it pays.
LONG, _FEWEST = 1 << 15, 64


@functools.lru_cache(maxsize=256)
def is_long(shape: tuple[int, ...], dtype: np.dtype, axis: int, kind: str) -> bool:
    """Return True for one signal that is transformed here."""
    size = math.prod(shape)
    if kind != "RFFT" or dtype != np.float32 or size != shape[axis] or size % 2:
        return False
    return size >= 2 * LONG and _rows(size // 2) >= _FEWEST


def long_signal(library: Any, x: np.ndarray, workers: int) -> np.ndarray:
    """Transform a flat signal that is long, by a library like `scipy.fft`."""
    return real_spectrum(_spectrum(functools.partial(library.fft, workers=workers), np.ascontiguousarray(x).view(np.complex64)))


def _spectrum(transform: Any, x: np.ndarray) -> np.ndarray:
    """Return the spectrum of complex numbers."""
    rows = _rows(x.size)
    found = transform(x.reshape(rows, x.size // rows), axis=0)
    coarse, fine = _powers(rows, x.size // rows, x.size)
    factored = found.reshape(rows, coarse.shape[1], fine.shape[2])
    factored *= coarse
    factored *= fine
    found = transform(found, axis=1, overwrite_x=True)
    return np.ascontiguousarray(found.T).reshape(-1)


def real_spectrum(halves: np.ndarray) -> np.ndarray:
    """Return the half spectrum of real numbers from that of pairs as complex ones."""
    size = halves.size
    found = np.empty(size + 1, halves.dtype)
    found[0], found[size] = halves[0].real + halves[0].imag, halves[0].real - halves[0].imag
    forward, mirrored = halves[1:], np.conjugate(halves[:0:-1])
    odd = forward - mirrored
    mirrored += forward
    coarse, fine = _powers(1, size, 2 * size)
    odd *= (coarse * fine).reshape(-1)[1:]
    odd *= np.complex64(-0.5j)
    mirrored *= np.float32(0.5)
    np.add(mirrored, odd, out=found[1:size])
    return found


def _rows(size: int) -> int:
    """Return the greatest divisor up to the square root."""
    return next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)


@functools.lru_cache(maxsize=8)
def _powers(rows: int, columns: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two tables whose products are powers of a root of unity of an order.

    The exponents are k·n for n = coarse + fine. There are those for every row k; for k = 1 if there is one row.
    """
    step = _rows(columns)
    k = np.arange(rows).reshape(-1, 1, 1) if rows > 1 else np.ones((1, 1, 1), int)
    coarse, fine = np.arange(0, columns, step).reshape(1, -1, 1), np.arange(step).reshape(1, 1, -1)
    first, second = (np.exp(-2j * math.pi / order * (k * n % order)).astype(np.complex64) for n in (coarse, fine))
    return first, second
