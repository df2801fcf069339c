"""Sorting (stable, NaN last) and binary search in sorted vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array, ConcreteArray, array_spec, wrap
from volta_fn.core.aval import ShapedArray, check_option
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ArgumentError, AxisError, DTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import INDEX, axis_of, dtype_or, flat_or_axis, full_like_scalar, operand, promote
from volta_fn.numpy.creation import array
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.settings import current as settings

#: Fewer elements than these are sorted in no more time.
_FEW = 1 << 12


@fused
def sort(a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True, descending: bool = False) -> Array:
    """Sort along `axis` (None: flattened), NaN last; `descending` reverses the order.

    >>> jnp.sort(jnp.array([3, 1, 2]))
    Array([1, 2, 3], dtype=int32)
    """
    _no_kind("sort", kind, order)
    value, dim = _axis("sort", a, axis)
    result = lax.sort(value, dimension=dim)
    return lax.rev(result, (dim,)) if descending else result


@fused
def argsort(
    a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True, descending: bool = False,
    dtype: Any = None,
) -> Array:  # fmt: skip
    """Return the int32 indices that sort stably along `axis` (None: flattened).

    >>> jnp.argsort(jnp.array([3, 1, 2]))
    Array([1, 2, 0], dtype=int32)
    """
    _no_kind("argsort", kind, order)
    value, dim = _axis("argsort", a, axis)
    if descending:
        # Reverse before and after sorting: equal elements keep their order.
        value = lax.rev(value, (dim,))
    _, result = lax.sort((value, _positions(value, dim, dtype)), dimension=dim, num_keys=1)
    return lax.sub(full_like_scalar(result, value.shape[dim] - 1), lax.rev(result, (dim,))) if descending else result


def _positions(value: Array, dim: int, dtype: Any = None) -> Array:
    """Return the position of each element along a dimension."""
    index_dtype = dtypes.index_dtype(value.shape[dim], dtypes.default(INDEX)) if dtype is None else dtype_or(dtype, INDEX)
    return lax.broadcasted_iota(index_dtype, value.shape, dim)


def _no_kind(function: str, kind: None, order: None) -> None:
    if order is not None:
        raise ArgumentError(f"{function}: order= belongs to records, which arrays cannot hold")
    if kind not in (None, "stable", "quicksort", "mergesort", "heapsort"):
        raise ArgumentError(f"{function}: kind must be one of NumPy's, got {kind!r}; every sort is stable")


def _axis(function: str, a: Any, axis: int | None) -> tuple[Array, int]:
    value = operand(function, "a", a)
    if not value.ndim and axis in (-1, 0):
        raise AxisError(f"{function}: a zero-dimensional array has no axis to sort along; pass axis=None")
    return flat_or_axis(function, value, axis)


@fused
def lexsort(keys: Any, axis: int = -1) -> Array:
    """Return the indices that sort by several keys, the last of them the primary one.

    >>> jnp.lexsort([jnp.array([1, 0, 2]), jnp.array([1, 1, 0])])
    Array([2, 1, 0], dtype=int32)
    """
    values = [operand("lexsort", "a key", k) for k in (keys if isinstance(keys, (tuple, list)) else list(array(keys)))]
    if not values:
        raise ArgumentError("lexsort: needs at least one key")
    if len({v.shape for v in values}) > 1:
        raise ShapeError(f"lexsort: the keys must have one shape, got {[v.shape for v in values]}")
    if not values[0].ndim:
        return lax.iota(dtypes.default(INDEX), 1)[0]
    dim = axis_of("lexsort", axis, values[0].ndim)
    operands = (*reversed(values), _positions(values[0], dim))
    return lax.sort(operands, dimension=dim, num_keys=len(values))[-1]


def partition(a: Any, kth: int, axis: int = -1) -> Array:
    """Put the kth smallest element along `axis` in its sorted position.

    No greater element comes before it, and no smaller one after it; which order they are in is not defined.

    >>> jnp.partition(jnp.array([3, 1, 2]), 0)[0]
    Array(1, dtype=int32)
    """
    partitioned = _selected("partition", a, kth, axis)
    return _sorted_partition(a, kth, axis) if partitioned is None else wrap(partitioned, a._spec)


@fused
def _sorted_partition(a: Any, kth: int, axis: int) -> Array:
    _check_kth("partition", a, kth, axis)
    return sort(a, axis)


def argpartition(a: Any, kth: int, axis: int = -1) -> Array:
    """Return the indices, as int32, that partition the elements; see `partition`.

    >>> jnp.argpartition(jnp.array([3, 1, 2]), 0)[0]
    Array(1, dtype=int32)
    """
    order = _selected("argpartition", a, kth, axis)
    if order is None:
        return _sorted_argpartition(a, kth, axis)
    dtype = dtypes.index_dtype(a.shape[axis])
    return wrap(order.astype(dtype), array_spec(ShapedArray(a.shape, dtype), a._spec.device))


@fused
def _sorted_argpartition(a: Any, kth: int, axis: int) -> Array:
    _check_kth("argpartition", a, kth, axis)
    positions = argsort(a, axis)
    return lax.convert_element_type(positions, dtypes.index_dtype(positions.shape[axis]))


def _selected(function: str, a: Any, kth: int, axis: int) -> np.ndarray | None:
    """Partition a large concrete array on the CPU by NumPy's selection.

    Returns None for other arrays, which are sorted instead.
    """
    if type(a) is not ConcreteArray or a._spec.aval.size < _FEW or current_trace() is not EVAL or settings.sees_results:
        return None
    buffer = a._buffer
    if type(buffer) is not np.ndarray or buffer.dtype.kind not in "iuf" or buffer.dtype.isbuiltin != 1 or a.device.sharding is not None:
        return None
    _check_kth(function, a, kth, axis)
    result: np.ndarray = getattr(np, function)(buffer, kth, axis)
    return result


def _check_kth(function: str, a: Any, kth: int, axis: int) -> None:
    value = operand(function, "a", a)
    if value.dtype in dtypes.COMPLEX:
        raise DTypeError(f"{function}: complex numbers have no order")
    length = value.shape[axis_of(function, axis, value.ndim)]
    if not -length <= kth < length:
        raise ArgumentError(f"{function}: kth={kth} is out of range for an axis of length {length}")


def top_k(a: Any, k: int, /, *, axis: int = -1, mode: str = "largest", sorted: bool = True) -> tuple[Array, Array]:
    """Return the `k` greatest elements along `axis` and their int32 indices, in order.

    With mode "smallest", the least ones. Of equal elements the one with the lower index comes first; NaN counts as greatest. `sorted` has
    no effect.

    >>> jnp.top_k(jnp.array([3, 9, 5]), 2, mode="smallest")
    (Array([3, 5], dtype=int32), Array([0, 2], dtype=int32))
    """
    check_option(mode, "top_k: mode", ("largest", "smallest"))
    value, dim = _axis("top_k", a, axis)
    if not 0 <= k <= value.shape[dim]:
        raise ArgumentError(f"top_k: k must be from 0 to {value.shape[dim]}, the length of axis {axis}, got {k}")
    if mode == "largest":
        return lax.top_k(value, k, axis=dim)
    values, indices = lax.sort((value, _positions(value, dim, dtypes.index_dtype(value.shape[dim]))), dimension=dim, num_keys=1)
    return lax.slice_in_dim(values, 0, k, axis=dim), lax.slice_in_dim(indices, 0, k, axis=dim)


def sort_complex(a: Any) -> Array:
    """Sort complex numbers along the last axis by real, then imaginary parts."""
    value = operand("sort_complex", "a", a)
    value = lax.convert_element_type(value, dtypes.complex_dtype(value.dtype))
    components: Sequence[Array] = lax.sort((lax.real(value), lax.imag(value)), dimension=value.ndim - 1, num_keys=2)
    return lax.complex(*components)


#: A vector of no more elements is compared with all that is looked up in it, which is one pass.
FEW = 32

_METHODS = ("scan", "scan_unrolled", "sort", "compare_all", "default")


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Array:
    """Return where to insert the elements `v` to keep the vector `a` sorted, as int32.

    "left" is before equal elements, "right" after them; NaN counts as the largest number. `sorter` is an argsort of an unsorted `a`.
    The `method` is chosen by the length of `a` whatever is given: a few elements are compared with all of `v`, more are bisected.

    >>> jnp.searchsorted(jnp.array([1, 2, 2, 3]), 2, side="right")
    Array(3, dtype=int32)
    """
    check_option(side, "searchsorted: side", ("left", "right"))
    check_option(method, "searchsorted: method", _METHODS)
    haystack, needles = promote("searchsorted", a, v)
    if haystack.ndim != 1:
        raise ShapeError(f"searchsorted: a must be a vector, got shape {haystack.shape}")
    if sorter is not None:
        haystack = haystack[operand("searchsorted", "sorter", sorter)]
    return _rank(haystack, needles, side)


@fused
def _rank(haystack: Array, needles: Array, side: str) -> Array:
    """Return how many elements of a sorted vector come before each needle."""
    size = haystack.shape[0]
    index = dtypes.index_dtype(size)
    rank = broadcast_to(array(index.type(0)), needles.shape)
    if size <= FEW:
        for number in range(size):
            before = _goes_after(lax.index_in_dim(haystack, number, keepdims=False), needles, side)
            rank = lax.add(rank, lax.convert_element_type(before, index))
        return rank
    for bit in reversed(range(size.bit_length())):
        longer = lax.add(rank, index.type(1 << bit))
        last = haystack.at[lax.min(lax.sub(longer, index.type(1)), index.type(size - 1))].get(mode="promise_in_bounds")
        fits = lax.bitwise_and(lax.le(longer, index.type(size)), _goes_after(last, needles, side))
        rank = lax.select(fits, longer, rank)
    return rank


def _goes_after(element: Array, needle: Array, side: str) -> Array:
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


@fused
def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Array:
    """Return the number of the bin of each element; `bins` are the monotonic edges.

    Bin i holds bins[i-1] <= x < bins[i] (with `right`, bins[i-1] < x <= bins[i]); decreasing edges reverse the inequalities.

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
    falling = lax.sub(rising.dtype.type(size), searchsorted(lax.rev(edges, (0,)), x, side))
    is_rising = lax.ge(lax.index_in_dim(edges, -1, keepdims=False), lax.index_in_dim(edges, 0, keepdims=False))
    return lax.select(is_rising, rising, falling)
