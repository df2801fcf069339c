"""Sorting, binary search in sorted vectors, and sets of numbers.

Sorts are stable; NaN comes last.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array, ConcreteArray, array_spec, wrap
from volta_fn.core.aval import ShapedArray, as_integer, check_option
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ArgumentError, AxisError, DTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.lazy_imports import deferred
from volta_fn.numpy import reductions
from volta_fn.numpy.arguments import (
    INDEX,
    as_index,
    axis_of,
    concrete,
    dtype_or,
    flat_or_axis,
    full_like_scalar,
    is_complex,
    is_inexact,
    operand,
    promote,
)
from volta_fn.numpy.creation import array
from volta_fn.numpy.logic import isnan
from volta_fn.primitives.data_movement.movement import broadcast_to, moveaxis
from volta_fn.primitives.declare import side_of_range, to_dtype
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
    if not -length <= as_integer(kth, f"{function}: kth") < length:
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
        last = haystack.at[lax.min(index.type(size - 1), lax.sub(longer, index.type(1)))].get(mode="promise_in_bounds")
        fits = lax.bitwise_and(lax.le(longer, index.type(size)), _goes_after(last, needles, side))
        rank = lax.select(fits, longer, rank)
    return rank


def _goes_after(element: Array, needle: Array, side: str) -> Array:
    if element.dtype in dtypes.COMPLEX:
        parts = lax.real(element), lax.real(needle)
        less, at_most = _goes_after(*parts, "left"), _goes_after(*parts, "right")
        return lax.bitwise_or(less, lax.bitwise_and(at_most, _goes_after(lax.imag(element), lax.imag(needle), side)))
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


# Sets of numbers: unique, isin, union1d, intersect1d, setdiff1d, setxor1d.
#
# The number of results depends on the values. Concrete arrays have as many as there are; inside traced functions give `size`: surplus
# elements are cut, missing ones filled with `fill_value`.

#: What only sets need, and not the methods of arrays that sort.
_INDEXING = deferred("volta_fn.numpy.indexing")
_SIZE_ADVICE = "The number of results depends on it: give size= inside traced functions."


class UniqueAll(NamedTuple):
    """The results of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The results of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The results of `unique_inverse`."""

    values: Array
    inverse_indices: Array


class _Groups(NamedTuple):
    """Sorted rows: their order, the first of each group, and the group of each row."""

    order: Array
    starts: Array
    group: Array
    number: Array


def _grouped(rows: Array, equal_nan: bool) -> _Groups:
    """Group the equal rows of an (n, m) array, sorted lexicographically."""
    n, m = rows.shape
    if equal_nan and is_complex(rows):  # a NaN in either component makes the number one
        rows = lax.select(isnan(rows), full_like_scalar(rows, np.nan), rows)
    index = dtypes.index_dtype(n)
    position = lax.iota(index, n)
    keys = [lax.index_in_dim(rows, j, 1, keepdims=False) for j in range(m)]
    *columns, order = lax.sort((*keys, position), num_keys=m) if m else (position,)
    differs = _any_of([_differs_from_previous(column, equal_nan) for column in columns], (max(n - 1, 0),))
    starts = lax.concatenate([broadcast_to(array(np.bool_(True)), (min(n, 1),)), differs], 0)
    group = lax.cumsum(lax.convert_element_type(starts, index), 0) - 1
    return _Groups(order, starts, group, reductions.count_nonzero(starts))


def _any_of(masks: list[Array], shape: tuple[int, ...]) -> Array:
    """Return where any of some masks of a shape is True."""
    return functools.reduce(lax.bitwise_or, masks) if masks else broadcast_to(array(np.bool_(False)), shape)


def _differs_from_previous(column: Array, equal_nan: bool) -> Array:
    before, after = lax.slice_in_dim(column, 0, -1), lax.slice_in_dim(column, 1, None)
    unlike = lax.ne(before, after)
    if not (equal_nan and is_inexact(column)):
        return unlike
    return lax.bitwise_and(unlike, lax.bitwise_not(lax.bitwise_and(isnan(before), isnan(after))))


@overload
def unique(
    ar: Any, return_index: Literal[False] = False, return_inverse: Literal[False] = False, return_counts: Literal[False] = False,
    axis: int | None = None, *, equal_nan: bool = True, size: int | None = None, fill_value: Any = None, sorted: bool = True,
) -> Array: ...  # fmt: skip
@overload
def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None, *,
    equal_nan: bool = True, size: int | None = None, fill_value: Any = None, sorted: bool = True,
) -> tuple[Array, ...]: ...  # fmt: skip
def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None, *,
    equal_nan: bool = True, size: int | None = None, fill_value: Any = None, sorted: bool = True,
) -> Any:  # fmt: skip
    """Return the distinct elements (or slices along `axis`) in increasing order.

    Args:
        ar: the elements.
        return_index: also return where each first occurs.
        return_inverse: also return, for every element, its index in the result.
        return_counts: also return how often each occurs.
        axis: compare the slices along it; None: elements.
        equal_nan: treat NaNs as equal.
        size: the number of results, required while tracing.
        fill_value: for missing results; by default the smallest one.
        sorted: accepted for compatibility; results are always sorted.

    >>> jnp.unique(jnp.array([3, 1, 3]), return_counts=True)
    (Array([1, 3], dtype=int32), Array([1, 2], dtype=int32))
    """
    value = array(ar) if isinstance(ar, (list, tuple)) else operand("unique", "ar", ar)
    shape = value.shape
    dim = 0 if axis is None else axis_of("unique", axis, value.ndim)
    slices = lax.reshape(value, (value.size,)) if axis is None else moveaxis(value, dim, 0)
    n = slices.shape[0]
    rows = lax.reshape(slices, (n, slices.size // n if n else 1))
    groups = _grouped(rows, equal_nan)
    if size is None:
        size = int(concrete("unique", "ar", groups.number, _SIZE_ADVICE))
    (bounds,) = _INDEXING.positions_of_nonzero(groups.starts, size + 1, n)
    starts = lax.slice_in_dim(bounds, 0, size)
    in_range = lax.lt(starts, to_dtype(n, starts.dtype))
    first = groups.order[lax.min(starts.dtype.type(max(n - 1, 0)), starts)] if n else starts
    results = [_values(slices, first, in_range, fill_value, dim)]
    if return_index:
        results.append(as_index(lax.select(in_range, first, first.dtype.type(0) if not n else groups.order[0])))
    if return_inverse:
        inverse = broadcast_to(array(groups.group.dtype.type(0)), (n,)).at[groups.order].set(groups.group)
        results.append(as_index(lax.reshape(inverse, shape) if axis is None else inverse))
    if return_counts:
        results.append(as_index(lax.sub(lax.slice_in_dim(bounds, 1, size + 1), starts)))
    return results[0] if len(results) == 1 else tuple(results)


def _values(slices: Array, first: Array, in_range: Array, fill_value: Any, dim: int) -> Array:
    """Return the chosen slices, filled up to the size, with their axis moved back."""
    zero = full_like_scalar(slices, 0)
    chosen = slices[first] if slices.shape[0] else broadcast_to(zero, (first.size, *slices.shape[1:]))
    if fill_value is not None:
        fill = to_dtype(fill_value, slices.dtype)
    else:
        fill = chosen[0] if slices.shape[0] and first.size else zero
    mask = lax.reshape(in_range, (in_range.size, *(1,) * (slices.ndim - 1)))
    return moveaxis(lax.select(mask, chosen, fill), 0, dim)


def unique_all(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """Return the distinct elements, first indices, inverse indices and counts."""
    return UniqueAll(*unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value))


def unique_counts(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueCounts:
    """Return the distinct elements and how often each occurs.

    >>> jnp.unique_counts(jnp.array([3, 1, 3])).counts
    Array([1, 2], dtype=int32)
    """
    return UniqueCounts(*unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_inverse(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueInverse:
    """Return the distinct elements and the index of each element in them.

    >>> jnp.unique_inverse(jnp.array([3, 1, 3])).inverse_indices
    Array([1, 0, 1], dtype=int32)
    """
    return UniqueInverse(*unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_values(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the distinct elements.

    >>> jnp.unique_values(jnp.array([3, 1, 3]))
    Array([1, 3], dtype=int32)
    """
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


@fused
def isin(element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, method: str = "auto") -> Array:
    """Return True where elements occur in `test_elements`; `invert` negates.

    >>> jnp.isin(jnp.array([1, 2, 3]), jnp.array([2, 4]))
    Array([False,  True, False], dtype=bool)
    """
    if side_of_range(test_elements, element):  # compared by its value
        test_elements = [test_elements]
    value, tests = promote("isin", element, array(test_elements) if isinstance(test_elements, (list, tuple)) else test_elements)
    tests = lax.reshape(tests, (tests.size,))
    if tests.size <= FEW:
        contained = _any_of([lax.eq(lax.index_in_dim(tests, i, keepdims=False), value) for i in range(tests.size)], value.shape)
    else:
        ordered = lax.sort(tests)
        nearest = ordered[lax.min(dtypes.index_dtype(tests.size).type(tests.size - 1), searchsorted(ordered, value))]
        contained = lax.eq(nearest, value)
    return lax.bitwise_not(contained) if invert else contained


def _promoted_vectors(function: str, ar1: Any, ar2: Any) -> tuple[Array, Array]:
    a, b = promote(function, _vector(function, ar1), _vector(function, ar2))
    return a, b


def _vector(function: str, x: Any) -> Array:
    value = array(x) if isinstance(x, (list, tuple)) else operand(function, "argument", x)
    return lax.reshape(value, (value.size,))


def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the elements of either array, each once, in increasing order.

    >>> jnp.union1d(jnp.array([1, 2]), jnp.array([2, 3]))
    Array([1, 2, 3], dtype=int32)
    """
    return unique(lax.concatenate(_promoted_vectors("union1d", ar1, ar2), 0), size=size, fill_value=fill_value)


def _compacted(values: Array, keep: Array, size: int | None, fill_value: Any) -> Array:
    """Return the sorted, distinct elements where `keep` holds, filled up to `size`.

    Without a `fill_value` it is the first of them, or 0 where there are none.
    """
    (index,) = _INDEXING.positions_of_nonzero(keep, size, values.size)
    if size is None:
        return values[index]
    fill = to_dtype(0 if fill_value is None else fill_value, values.dtype)
    if not size or not values.size:
        return broadcast_to(fill, (size,))
    chosen = values[lax.min(index.dtype.type(values.size - 1), index)]
    in_range = lax.lt(index, index.dtype.type(values.size))
    if fill_value is None:
        fill = lax.select(in_range[0], chosen[0], fill)
    return lax.select(in_range, chosen, fill)


def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the elements of the first array that the second lacks, each once, sorted.

    With `assume_unique` they come in the order of the first array. `size` is their number, required while tracing; missing ones are
    `fill_value`, or 0.

    >>> jnp.setdiff1d(jnp.array([1, 2, 3]), jnp.array([2]))
    Array([1, 3], dtype=int32)
    """
    a, b = (_vector("setdiff1d", v) for v in (ar1, ar2))
    fill_value = 0 if fill_value is None else fill_value
    if not assume_unique:
        a = unique(a, size=None if size is None else a.size)
        fresh = _first_of_each(a)
        return _compacted(a, lax.bitwise_and(fresh, isin(a, b, invert=True)), size, fill_value)
    return _compacted(a, isin(a, b, invert=True), size, fill_value)


def _first_of_each(ordered: Array) -> Array:
    """Return True at the first of each run of equal elements, except final fillers."""
    groups = _grouped(lax.reshape(ordered, (ordered.size, 1)), True)
    return broadcast_to(array(np.bool_(False)), ordered.shape).at[groups.order].set(groups.starts)


def intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """Return the elements of both arrays, sorted, and where they first occur in each.

    >>> jnp.intersect1d(jnp.array([1, 3, 3, 4]), jnp.array([4, 3, 5]))
    Array([3, 4], dtype=int32)
    """
    a, b = _promoted_vectors("intersect1d", ar1, ar2)
    ordered = lax.sort(a)
    keep = lax.bitwise_and(_first_of_each(ordered), isin(ordered, b))
    common = _compacted(ordered, keep, size, fill_value)
    if not return_indices:
        return common
    count = reductions.count_nonzero(keep)
    in_range = lax.lt(lax.iota(count.dtype, common.size), count)
    return common, as_index(_first_positions(a, common, in_range)), as_index(_first_positions(b, common, in_range))


def _first_positions(values: Array, queries: Array, in_range: Array) -> Array:
    """Return the first position of each wanted element.

    The position of fillers, which are not `in_range`, is the vector's length.
    """
    if not values.size:
        return broadcast_to(array(np.int32(0)), queries.shape)
    index = dtypes.index_dtype(values.size)
    ordered, order = lax.sort((values, lax.iota(index, values.size)), num_keys=1)
    at = lax.min(index.type(values.size - 1), searchsorted(ordered, queries))
    return lax.select(in_range, order[at], index.type(values.size))


def setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the elements of exactly one of the arrays, each once, sorted.

    With `assume_unique` neither array may hold an element twice, which saves time. `size` is their number, required while tracing; missing
    ones are `fill_value`, or the smallest (0 if there are none).

    >>> jnp.setxor1d(jnp.array([1, 2]), jnp.array([2, 3]))
    Array([1, 3], dtype=int32)
    """
    a, b = _promoted_vectors("setxor1d", ar1, ar2)
    together = lax.sort(lax.concatenate([a, b], 0))
    if together.ndim != 1:
        raise ShapeError("setxor1d: the arrays must be vectors")
    if assume_unique:
        edge = broadcast_to(array(np.bool_(True)), (min(together.size, 1),))
        unlike = _differs_from_previous(together, False)
        keep = lax.bitwise_and(lax.concatenate([edge, unlike], 0), lax.concatenate([unlike, edge], 0))
    else:
        keep = lax.bitwise_and(_first_of_each(together), lax.bitwise_xor(isin(together, a), isin(together, b)))
    return _compacted(together, keep, size, fill_value)
