"""Binary search in sorted vectors: searchsorted, digitize."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.common import INDEX, operand, promote
from volta_fn.numpy.creation import array
from volta_fn.primitives.movement import broadcast_to

_METHODS = ("scan", "scan_unrolled", "sort", "compare_all", "default")


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Array:
    """Where to insert the elements `v` into the sorted vector `a` so that it stays sorted, as int32.

    "left" is before equal elements, "right" after them; NaN counts as the largest number. `sorter` is an argsort of an unsorted
    `a`. Found by bisection, whatever `method` says.

    >>> import volta_fn.numpy as jnp
    >>> jnp.searchsorted(jnp.array([1, 2, 2, 3]), 2, side="right")
    Array(3, dtype=int32)
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if method not in _METHODS:
        raise ArgumentError(f"searchsorted: method must be one of {', '.join(_METHODS)}, got {method!r}")
    haystack, needles = promote("searchsorted", a, v)
    if haystack.ndim != 1:
        raise ShapeError(f"searchsorted: a must be a vector, got shape {haystack.shape}")
    if sorter is not None:
        haystack = haystack[operand("searchsorted", "sorter", sorter)]
    return _bisect(haystack, needles, side)


def _bisect(haystack: Array, needles: Array, side: str) -> Array:
    """Halve the interval of possible answers, for all needles at once, until it is empty."""
    size = haystack.shape[0]
    low = broadcast_to(array(np.int32(0)), needles.shape)
    high = broadcast_to(array(np.int32(size)), needles.shape)
    for _ in range(size.bit_length()):
        middle = lax.div(lax.add(low, high), np.int32(2))
        beyond = _goes_after(haystack[lax.min(middle, np.int32(size - 1))], needles, side)
        unfinished = lax.lt(low, high)
        high = lax.select(lax.bitwise_and(unfinished, lax.bitwise_not(beyond)), middle, high)
        low = lax.select(lax.bitwise_and(unfinished, beyond), lax.add(middle, np.int32(1)), low)
    return low


def _goes_after(element: Array, needle: Array, side: str) -> Array:
    """Whether the needle belongs after the element."""
    if element.dtype in dtypes.COMPLEX:
        re, im = (f(element) for f in (lax.real, lax.imag)), (f(needle) for f in (lax.real, lax.imag))
        (a, b), (c, d) = re, im
        tie = _goes_after(b, d, side)
        return lax.bitwise_or(lax.lt(a, c), lax.bitwise_and(lax.eq(a, c), tie))
    if element.dtype in dtypes.INTEGERS | dtypes.BOOL:
        return lax.lt(element, needle) if side == "left" else lax.le(element, needle)
    is_nan, needle_nan = lax.ne(element, element), lax.ne(needle, needle)
    if side == "left":
        return lax.bitwise_or(lax.lt(element, needle), lax.bitwise_and(needle_nan, lax.bitwise_not(is_nan)))
    return lax.bitwise_or(lax.le(element, needle), needle_nan)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Array:
    """The number of the bin of each element; `bins` are the edges, increasing or decreasing.

    Bin i holds bins[i-1] <= x < bins[i] (with `right`, bins[i-1] < x <= bins[i]), or the same with all signs turned round.

    >>> import volta_fn.numpy as jnp
    >>> jnp.digitize(jnp.array([0.5, 1.0, 3.0]), jnp.array([0.0, 1.0, 2.0]))
    Array([1, 2, 3], dtype=int32)
    """
    edges = operand("digitize", "bins", bins)
    if edges.ndim != 1:
        raise ShapeError(f"digitize: bins must be a vector, got shape {edges.shape}")
    size = edges.shape[0]
    if not size:
        return broadcast_to(array(np.int32(0)), operand("digitize", "x", x).shape)
    side = "right" if not right else "left"
    rising = searchsorted(edges, x, side)
    falling = lax.sub(np.int32(size), searchsorted(lax.rev(edges, (0,)), x, side))
    is_rising = lax.ge(lax.index_in_dim(edges, -1, keepdims=False), lax.index_in_dim(edges, 0, keepdims=False))
    return lax.convert_element_type(lax.select(is_rising, rising, falling), INDEX)
