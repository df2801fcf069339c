"""Selecting and replacing elements; diagonals and triangles of matrices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.core.arrays.memory import beside, beside_indices
from volta_fn.core.aval import as_integer, canonical_shape, check_option
from volta_fn.core.dimension import is_symbolic, max_dim, min_dim
from volta_fn.core.trace import is_concrete
from volta_fn.errors import ArgumentError, ArgumentTypeError, OutOfBoundsError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy import reductions
from volta_fn.numpy.arguments import (
    INDEX,
    as_index,
    axis_of,
    broadcast_together,
    concrete,
    dtype_or,
    flat_or_axis,
    full_like_scalar,
    narrow,
    no_out,
    operand,
    promote,
    wide_index,
)
from volta_fn.numpy.creation import array, diagonal_offset, ones
from volta_fn.numpy.logic import truth
from volta_fn.primitives.array_operations.array_indexing import (
    check_traced_indices,
    checks_indices,
    known_array,
    read_by_numpy,
    read_slices,
)
from volta_fn.primitives.data_movement.gather import canonical_index
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import to_dtype
from volta_fn.settings import current as settings

# Selecting and replacing elements: where, take, put, nonzero, select, choose, ….
#
# A concrete index out of range raises `OutOfBoundsError`; a traced one follows `mode`: "fill" (NaN, or for integers the lowest number;
# negative indices count from the end), "clip" or "wrap".

_SIZE_ADVICE = "The number of results depends on it: give size= inside traced functions."


@overload
def where(condition: Any, /, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]: ...
@overload
def where(condition: Any, x: Any, y: Any, /, *, size: int | None = None, fill_value: Any = None) -> Array: ...
def where(condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Return `x` where `condition` holds, else `y`; or `nonzero(condition)`.

    >>> jnp.where(jnp.array([True, False]), jnp.array([1.0, 2.0]), 0.5)
    Array([1. , 0.5], dtype=float32)
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ArgumentError("where: give both x and y, or neither")
    if size is not None or fill_value is not None:
        raise ArgumentError("where: size and fill_value belong to the form without x and y")
    return _choose(condition, x, y)


@fused
def _choose(condition: Any, x: Any, y: Any) -> Array:
    a, b = promote("where", x, y)
    chosen = lax.select(truth("where", condition), a, b)
    return broadcast_to(chosen, lax.broadcast_shapes(chosen.shape, a.shape, b.shape))


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]:
    """Return the indices of the nonzero elements, row-major, one array per dimension.

    Their number must be known while tracing: inside traced functions give `size`; surplus indices are cut, missing ones filled with
    `fill_value` (0, or one value per dimension).

    >>> jnp.nonzero(jnp.array([0, 3, 0, 5]))
    (Array([1, 3], dtype=int32),)
    """
    return tuple([beside(as_index(i), a) for i in positions_of_nonzero(a, size, fill_value)])


def positions_of_nonzero(a: Any, size: int | None, fill_value: Any) -> list[Array]:
    """Return the indices that `nonzero` does, as int32 if that holds them."""
    mask = truth("nonzero", a)
    if not mask.ndim:
        raise ShapeError("nonzero: a must have at least one dimension; use atleast_1d(a)")
    flat = lax.reshape(mask, (mask.size,))
    if size is None:
        index, elements = dtypes.index_dtype(mask.size), concrete("nonzero", "a", flat, _SIZE_ADVICE)
        return [array(i.astype(index)) for i in np.unravel_index(np.flatnonzero(elements), mask.shape)]
    count = size if is_symbolic((size,)) else as_integer(size, "nonzero: size")
    positions = _positions_of(flat, count)
    index = dtypes.index_dtype(max_dim(mask.size, count))
    in_range = lax.lt(lax.iota(index, count), lax.reduce_sum(lax.convert_element_type(flat, index), (0,)))
    fills = fill_value if isinstance(fill_value, (tuple, list)) else [fill_value] * mask.ndim
    if len(fills) != mask.ndim:
        raise ArgumentError(f"nonzero: fill_value needs one entry for each of {mask.ndim} dimensions, got {len(fills)}")
    indices = unravel_index(positions, mask.shape) if mask.size else [positions] * mask.ndim
    return [lax.select(in_range, i, to_dtype(0 if f is None else f, index)) for i, f in zip(indices, fills, strict=True)]


def _positions_of(mask: Array, count: int) -> Array:
    """Return the positions of the first `count` true elements; 0 if there are fewer."""
    index = dtypes.index_dtype(max_dim(mask.size, count))
    if not mask.size or not count:
        return broadcast_to(array(index.type(0)), (count,))
    rank = lax.cumsum(lax.convert_element_type(mask, index), 0) - 1
    target = lax.select(mask, rank, to_dtype(count, index))
    slots = max_dim(count, 1)  # a symbolic count may be 0, and an array without elements has no indices
    positions = broadcast_to(array(index.type(0)), (slots,)).at[target].set(lax.iota(index, mask.size), mode="drop")
    return positions if not is_symbolic((count,)) else lax.slice(positions, (0,), (count,))


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the indices of nonzero elements of the flattened array; see `nonzero`.

    >>> jnp.flatnonzero(jnp.array([[0, 1], [2, 0]]))
    Array([1, 2], dtype=int32)
    """
    value = operand("flatnonzero", "a", a)
    return nonzero(lax.reshape(value, (value.size,)), size=size, fill_value=fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the indices of the nonzero elements, one row for each; see `nonzero`.

    >>> jnp.argwhere(jnp.array([[1, 0], [0, 2]]))
    Array([[0, 0],
           [1, 1]], dtype=int32)
    """
    value = operand("argwhere", "a", a)
    if not value.ndim:
        return argwhere(lax.reshape(value, (1,)), size=size, fill_value=fill_value)[:, :0]
    columns = nonzero(value, size=size, fill_value=fill_value)
    return lax.concatenate([lax.reshape(c, (c.size, 1)) for c in columns], 1)


def take(
    a: Any, indices: Any, axis: int | None = None, out: None = None, mode: str | None = None, unique_indices: bool = False,
    indices_are_sorted: bool = False, fill_value: Any = None,
) -> Array:  # fmt: skip
    """Return the slices of `a` at `indices` along `axis` (None: elements, flattened).

    Args:
        a: the array to take from.
        indices: integers of any shape, which replaces that of the axis.
        axis: the axis to take along.
        out: not supported.
        mode: for indices out of range: "raise" (concrete ones only), "clip", "wrap" or "fill" (with `fill_value`). By default concrete
            ones raise and traced ones fill.
        unique_indices, indices_are_sorted: hints, unused.
        fill_value: for "fill", which is the mode if it is given; by default NaN, or for integers the lowest number.

    >>> jnp.take(jnp.array([10, 20, 30]), jnp.array([2, 0]))
    Array([30, 10], dtype=int32)
    """
    no_out("take", out)
    if mode is fill_value is None and (slices := read_slices(a, indices, axis)) is not None:
        return slices
    value = operand("take", "a", a)
    value, dim = flat_or_axis("take", value, axis)
    index = _index_array("take", narrow(indices))
    length = value.shape[dim]
    if mode == "wrap":
        index, mode = _wrapped(index, length), "promise_in_bounds"
    elif mode == "clip":
        index, mode = _clipped(index, length), "promise_in_bounds"
    elif mode == "raise":
        concrete("take", "indices", index, "Choose what becomes of traced indices out of range: mode='fill', 'clip' or 'wrap'.")
        mode = None
    return _get(value, (slice(None),) * dim + (index,), mode or (_usual_mode(index) if fill_value is None else "fill"), fill_value)


def _usual_mode(index: Array) -> str | None:
    """Return the default mode: concrete indices raise, traced ones fill if unchecked."""
    return None if (is_concrete(index) and not settings.permissive) or checks_indices() else "fill"


def _get(value: Array, index: tuple[Any, ...], mode: str | None, fill_value: Any) -> Array:
    if mode is None and fill_value is None:
        return value[index]
    return value.at[index].get(mode=mode, fill_value=fill_value)


def _index_array(function: str, indices: Any) -> Array:
    index = array(indices) if isinstance(indices, (list, tuple)) else operand(function, "indices", indices)
    if index.dtype not in dtypes.INTEGERS:
        raise ArgumentTypeError(f"{function}: indices must be integers, got {index.dtype.name}")
    return index


def _wrapped(index: Array, length: int) -> Array:
    return wide_index(index, length) % max(length, 1)


def _clipped(index: Array, length: int) -> Array:
    """Move an index inside; as in NumPy, a negative one to 0."""
    wide = wide_index(index, length)
    return lax.clamp(full_like_scalar(wide, 0), wide, full_like_scalar(wide, max(length - 1, 0)))


def take_along_axis(
    arr: Any, indices: Any, axis: int | None = -1, mode: Any = None, fill_value: Any = None, *, wrap_negative_indices: bool | None = None
) -> Array:
    """Return, for each vector of `arr` along `axis`, the elements at its `indices`.

    The other dimensions of `indices` broadcast. Indices out of range are treated as `take` treats them; in mode "one_hot" they give 0.
    With `wrap_negative_indices` False, negative ones are out of range.

    >>> jnp.take_along_axis(jnp.array([[1, 2], [3, 4]]), jnp.array([[1], [0]]), axis=1)
    Array([[2],
           [3]], dtype=int32)
    """
    if mode is fill_value is None and (elements := read_by_numpy(np.take_along_axis, arr, indices, axis)) is not None:
        return elements
    value = operand("take_along_axis", "arr", arr)
    index = _index_array("take_along_axis", narrow(indices))
    value, dim = flat_or_axis("take_along_axis", beside_indices(value, index), axis)
    if index.ndim != value.ndim:
        raise ShapeError(f"take_along_axis: arr and indices must have the same number of dimensions, got {value.shape} and {index.shape}")
    if mode == "one_hot":
        mode, fill_value = "fill", 0
    if wrap_negative_indices is False:
        beyond = 0 if mode in ("clip", lax.GatherScatterMode.CLIP) else value.shape[dim]
        index = wide_index(index, value.shape[dim])
        index = lax.select(lax.lt(index, full_like_scalar(index, 0)), full_like_scalar(index, beyond), index)
    others = tuple([i for i in range(value.ndim) if i != dim])
    if mode is fill_value is None and value.shape[dim] and all(value.shape[i] == index.shape[i] for i in others):
        # One gather, in which all other dimensions are batch dimensions.
        length = value.shape[dim]
        if is_concrete(index) and not settings.permissive:
            indices, mode = known_array(index, dim, value.shape), lax.GatherScatterMode.PROMISE_IN_BOUNDS
        else:
            if not is_concrete(index):
                check_traced_indices(index, dim, value.shape)
            indices, mode = canonical_index(index, length), lax.GatherScatterMode.FILL_OR_DROP
        numbers = lax.GatherDimensionNumbers((), (dim,), (dim,), others, others)
        window = tuple([min(1, size) for size in value.shape])  # of size 0 where a batch dimension is empty
        return lax.gather(value, lax.expand_dims(indices, (value.ndim,)), numbers, window, mode=mode)
    usual = _usual_mode(index) if fill_value is None else "fill"
    return _get(value, _grid("take_along_axis", value, index, dim), mode or usual, fill_value)


def _grid(function: str, value: Array, index: Array, dim: int) -> tuple[Array, ...]:
    """Return the full index of every element that `index` names along one axis."""
    others = [i for i in range(value.ndim) if i != dim]
    try:
        sizes = lax.broadcast_shapes(*[tuple(s[i] for i in others) for s in (value.shape, index.shape)])
    except ShapeError:
        raise ShapeError(
            f"{function}: arr {value.shape} and indices {index.shape} must broadcast in all dimensions but axis {dim}"
        ) from None
    full = list(sizes)
    full.insert(dim, index.shape[dim])
    grid = []
    for i in range(value.ndim):
        if i == dim:
            grid.append(broadcast_to(index, tuple(full)))
        elif value.shape[i] == 1:
            grid.append(broadcast_to(array(np.int32(0)), tuple(full)))
        else:
            grid.append(lax.broadcasted_iota(INDEX, full, i))
    return tuple(grid)


def put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None, inplace: bool = True, *, mode: str | None = None) -> Array:
    """Return a copy with `values` where `take_along_axis` reads (needs inplace=False).

    >>> jnp.put_along_axis(jnp.zeros((2, 2)), jnp.array([[1], [0]]), 5.0, axis=1, inplace=False)
    Array([[0., 5.],
           [5., 0.]], dtype=float32)
    """
    _refuse_in_place("put_along_axis", inplace)
    value = operand("put_along_axis", "arr", arr)
    index = _index_array("put_along_axis", narrow(indices))
    flat, dim = flat_or_axis("put_along_axis", value, axis)
    grid = _grid("put_along_axis", flat, index, dim)
    new = lax.convert_element_type(operand("put_along_axis", "values", values), value.dtype)
    return lax.reshape(flat.at[grid].set(new, mode=mode), value.shape)


def _refuse_in_place(function: str, inplace: bool) -> None:
    if inplace:
        raise ArgumentError(f"{function}: arrays are immutable; pass inplace=False and use the returned array, or x.at[...].set(...)")


def put(a: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = True) -> Array:
    """Return a copy with `v`, repeated, at flat indices `ind` (needs inplace=False).

    >>> jnp.put(jnp.zeros(3), jnp.array([0, 2]), jnp.array([5.0, 6.0]), inplace=False)
    Array([5., 0., 6.], dtype=float32)
    """
    _refuse_in_place("put", inplace)
    value = operand("put", "a", a)
    index = array(ind)
    index = lax.reshape(index, (index.size,))
    new = array(v, value.dtype)
    new = lax.reshape(new, (new.size,))
    if not index.size or not new.size:
        return value
    new = new[np.arange(index.size) % new.size]
    if mode in ("wrap", "clip"):
        index = (_wrapped if mode == "wrap" else _clipped)(index, value.size)
    elif mode == "raise":
        concrete("put", "ind", index, "Choose what becomes of traced indices out of range: mode='clip' or 'wrap'.")
    out_of_bounds = None if mode in ("wrap", "clip", "raise") else mode
    flat = lax.reshape(value, (value.size,))
    return lax.reshape(flat.at[index].set(new, mode=out_of_bounds), value.shape)


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = True) -> Array:
    """Return a copy with `vals`, repeated, where `mask` is true (needs inplace=False).

    >>> jnp.place(jnp.array([1, 2, 3]), jnp.array([False, True, True]), jnp.array([8, 9]), inplace=False)
    Array([1, 8, 9], dtype=int32)
    """
    _refuse_in_place("place", inplace)
    value = operand("place", "arr", arr)
    chosen = lax.reshape(truth("place", mask), (value.size,))
    new = array(vals, value.dtype)
    new = lax.reshape(new, (new.size,))
    if not value.size:
        return value
    if not new.size:
        raise ArgumentError("place: vals must not be empty")
    index = dtypes.index_dtype(max(value.size, new.size))
    rank = lax.cumsum(lax.convert_element_type(chosen, index), 0) - 1
    picked = new[lax.rem(lax.max(index.type(0), rank), index.type(new.size))]
    return lax.reshape(lax.select(chosen, picked, lax.reshape(value, (value.size,))), value.shape)


def compress(condition: Any, a: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0, out: None = None) -> Array:
    """Return slices where the vector `condition` is true; `size` as in `nonzero`.

    >>> jnp.compress(jnp.array([True, False, True]), jnp.array([1, 2, 3]))
    Array([1, 3], dtype=int32)
    """
    no_out("compress", out)
    mask = truth("compress", array(condition))
    value = operand("compress", "a", a)
    value, dim = flat_or_axis("compress", value, axis)
    if mask.ndim != 1:
        raise ShapeError(f"compress: condition must be one-dimensional, got shape {mask.shape}")
    if mask.shape[0] > value.shape[dim]:
        surplus = lax.slice_in_dim(mask, value.shape[dim], None)
        if is_concrete(surplus) and np.asarray(surplus).any():
            raise OutOfBoundsError(f"compress: condition has true entries beyond the {value.shape[dim]} elements of the axis")
        mask = lax.slice_in_dim(mask, 0, value.shape[dim])
    (positions,) = nonzero(mask, size=size, fill_value=value.shape[dim])
    index = (slice(None),) * dim + (beside(positions, value) if size is None else positions,)  # as x[mask], which reads it on the host
    return value[index] if size is None else _get(value, index, "fill", fill_value)


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Array:
    """Return the elements of `arr` where `condition` is true; `size` as in `nonzero`.

    >>> jnp.extract(jnp.array([True, False, True]), jnp.array([1, 2, 3]))
    Array([1, 3], dtype=int32)
    """
    mask = truth("extract", condition)
    value = operand("extract", "arr", arr)
    return compress(lax.reshape(mask, (mask.size,)), lax.reshape(value, (value.size,)), size=size, fill_value=fill_value)


@fused
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Array:
    """Select from the choice of the first true condition, or `default` if none is.

    >>> x = jnp.arange(4)
    >>> jnp.select([x < 1, x < 3], [x, 10 * x], default=-1)
    Array([ 0, 10, 20, -1], dtype=int32)
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise ArgumentError(f"select: condlist and choicelist must have the same nonzero length, got {len(condlist)} and {len(choicelist)}")
    *choices, result = promote("select", *choicelist, default)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        result = lax.select(truth("select", condition), choice, result)
    return result


def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """Return ``choices[a]`` elementwise; `mode` "clip" or "wrap" limits the indices.

    >>> jnp.choose(jnp.array([1, 0]), [jnp.array([1, 2]), jnp.array([10, 20])])
    Array([10,  2], dtype=int32)
    """
    no_out("choose", out)
    index = _index_array("choose", narrow(a))
    options = promote("choose", *choices)
    index = _bounded("choose", "a", index, len(options), mode)
    index, *options = broadcast_together(lax.convert_element_type(index, INDEX), *options)
    return lax.select_n(index, *options)


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Array:
    """Apply to each element the function (or constant) of its last true condition.

    One more function than conditions: the last one applies where none is true; without it, the result is 0 there.

    >>> jnp.piecewise(jnp.array([-2.0, 3.0]), [jnp.array([True, False])], [lambda v: -v, lambda v: 10 * v])
    Array([ 2., 30.], dtype=float32)
    """
    value = operand("piecewise", "x", x)
    masks = [truth("piecewise", c) for c in (condlist if isinstance(condlist, (list, tuple)) else [condlist])]
    functions = list(funclist)
    if len(functions) not in (len(masks), len(masks) + 1):
        raise ArgumentError(f"piecewise: {len(masks)} conditions need {len(masks)} or {len(masks) + 1} functions, got {len(functions)}")

    def applied(function: Callable[..., Any] | Any) -> Array:
        result = function(value, *args, **kw) if callable(function) else function
        return broadcast_to(to_dtype(result, value.dtype), value.shape)

    result = applied(functions[-1] if len(functions) > len(masks) else 0)
    for mask, function in zip(masks, functions, strict=False):
        result = lax.select(mask, applied(function), result)
    return result


def unravel_index(indices: Any, shape: Any) -> tuple[Array, ...]:
    """Convert flat indices, clamped to `shape`, to one index array per dimension.

    >>> [i.item() for i in jnp.unravel_index(5, (2, 3))]
    [1, 2]
    """
    dimensions = shape if isinstance(shape, (tuple, list, np.ndarray)) or np.ndim(shape) else (shape,)
    index = _index_array("unravel_index", indices)
    wide = index.dtype if index.dtype.itemsize >= 4 else INDEX  # sizes need not fit the dtype of the indices
    wide = dtypes.index_dtype(math.prod([int(n) for n in dimensions if isinstance(n, (int, np.integer))]), wide)
    sizes = [lax.convert_element_type(n, wide) for n in dimensions]
    at = lax.convert_element_type(index, wide)
    zero, one = full_like_scalar(at, 0), full_like_scalar(at, 1)
    total = functools.reduce(lax.mul, sizes, one)
    at = lax.select(lax.lt(at, zero), lax.add(at, total), at)
    at = lax.max(zero, lax.min(lax.sub(total, one), at))  # bounds first, as in JAX: rules of interpreters may depend on it
    results = []
    for n in reversed(sizes):
        divisor = lax.max(n, one)
        results.append(lax.convert_element_type(lax.rem(at, divisor), index.dtype))
        at = lax.div(at, divisor)
    return tuple(reversed(results))


def ravel_multi_index(multi_index: Any, dims: Any, mode: str = "raise", order: str = "C", *, dtype: Any = None) -> Array:
    """Convert one index array per dimension to flat indices into shape `dims`.

    Indices out of range raise `ArgumentError`, or with `mode` "wrap", "clip" or "ignore" are wrapped, clipped or taken as they are.

    >>> jnp.ravel_multi_index((jnp.array([1]), jnp.array([2])), (2, 3))
    Array([5], dtype=int32)
    """
    sizes = [int(n) for n in dims]
    components = [_index_array("ravel_multi_index", i) for i in multi_index]
    if len(components) != len(sizes):
        raise ArgumentError(f"ravel_multi_index: {len(sizes)} dimensions need as many index arrays, got {len(components)}")
    check_option(order, "ravel_multi_index: order", ("C", "F"))
    terms = promote("ravel_multi_index", *components)
    if dtype is None and math.prod(sizes) > dtypes.iinfo(terms[0].dtype).max:
        dtype = dtypes.index_dtype(math.prod(sizes), INDEX)
    terms = terms if dtype is None else [lax.convert_element_type(t, dtype) for t in terms]
    terms = [_bounded("ravel_multi_index", "multi_index", t, n, mode) for t, n in zip(terms, sizes, strict=True)]
    strides = np.cumprod([1, *sizes[::-1]])[:-1][::-1] if order == "C" else np.cumprod([1, *sizes])[:-1]
    total = full_like_scalar(terms[0], 0)
    for term, stride in zip(terms, strides.tolist(), strict=True):
        total = lax.add(total, lax.mul(term, full_like_scalar(term, stride)))
    return total


def _bounded(function: str, argument: str, index: Array, length: int, mode: str) -> Array:
    if mode == "wrap":
        return _wrapped(index, length)
    if mode == "clip":
        return _clipped(index, length)
    if mode == "ignore":
        return index
    if mode != "raise":
        raise ArgumentError(f"{function}: mode must be 'raise', 'wrap', 'clip' or 'ignore', got {mode!r}")
    numbers = concrete(function, argument, index, "Give mode='clip' or mode='wrap' inside traced functions.")
    if numbers.size and (numbers.min() < 0 or numbers.max() >= length):
        raise ArgumentError(
            f"invalid entry in coordinates array of {function}: they must lie between 0 and {length - 1}, "
            f"got {numbers.min()} to {numbers.max()}"
        )
    return index


# Diagonals and triangles of matrices, and the indices of their elements.


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Array:
    """Create the N×M matrix with ones on and below the k-th diagonal.

    >>> jnp.tri(2, 3)
    Array([[1., 0., 0.],
           [1., 1., 0.]], dtype=float32)
    """
    rows, columns = canonical_shape((N, N if M is None else M), "tri: the size")
    return lax.convert_element_type(_on_or_below(rows, columns, k), dtype_or(dtype, dtypes.default(np.dtype(np.float32))))


def _on_or_below(rows: int, columns: int, k: int) -> Array:
    index = dtypes.index_dtype(rows + columns)
    i, j = (lax.broadcasted_iota(index, (rows, columns), d) for d in (0, 1))
    return lax.ge(lax.add(i, diagonal_offset(k, rows, columns)), j)


@fused
def tril(m: Any, k: int = 0) -> Array:
    """Return the lower triangle of matrices: zeros above the k-th diagonal.

    >>> jnp.tril(jnp.ones((2, 2)))
    Array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    value = _matrices("tril", m)
    return lax.select(_on_or_below(value.shape[-2], value.shape[-1], k), value, full_like_scalar(value, 0))


@fused
def triu(m: Any, k: int = 0) -> Array:
    """Return the upper triangle of matrices: zeros below the k-th diagonal.

    >>> jnp.triu(jnp.ones((2, 2)))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    value = _matrices("triu", m)
    return lax.select(_on_or_below(value.shape[-2], value.shape[-1], k - 1), full_like_scalar(value, 0), value)


def _matrices(function: str, m: Any) -> Array:
    value = operand(function, "m", m)
    if value.ndim < 2:
        raise ShapeError(f"{function}: m must have at least two dimensions, got shape {value.shape}")
    return value


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return the elements a[i, i + offset] of two axes as the result's last dimension.

    >>> jnp.diagonal(jnp.arange(6).reshape(2, 3), 1)
    Array([1, 5], dtype=int32)
    """
    value = operand("diagonal", "a", a)
    if value.ndim < 2:
        raise ShapeError(f"diagonal: a must have at least two dimensions, got shape {value.shape}")
    i, j = (axis_of("diagonal", axis, value.ndim) for axis in (axis1, axis2))
    if i == j:
        raise ShapeError(f"diagonal: axis1 and axis2 must differ, got {axis1} and {axis2}")
    value = lax.transpose(value, [*[d for d in range(value.ndim) if d not in (i, j)], i, j])
    rows, columns = value.shape[-2:]
    top, left = max(-offset, 0), max(offset, 0)
    size = max_dim(min_dim(rows - top, columns - left), 0)
    if not size:
        return lax.reshape(lax.slice_in_dim(value, 0, 0, axis=-1), (*value.shape[:-2], 0))
    square = lax.slice_in_dim(lax.slice_in_dim(value, top, top + size, axis=-2), left, left + size, axis=-1)
    # In row-major order, the diagonal is every (size + 1)-th element.
    flat = lax.reshape(square, (*square.shape[:-2], size * size))
    return lax.slice_in_dim(flat, 0, size * size, size + 1, axis=-1)


@fused
def diag(v: Any, k: int = 0) -> Array:
    """Return a matrix's k-th diagonal, or the matrix with a vector as k-th diagonal.

    >>> jnp.diag(jnp.array([1, 2]))
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    value = operand("diag", "v", v)
    if value.ndim == 2:
        return diagonal(value, k)
    if value.ndim != 1:
        raise ShapeError(f"diag: v must have one or two dimensions, got shape {value.shape}")
    n = value.shape[0]
    if not n:
        return lax.reshape(lax.pad(value, full_like_scalar(value, 0), [(0, k * k, 0)]), (abs(k), abs(k)))
    # With n zeros between its elements, the vector is the diagonal of a flattened n×(n+1) matrix without its tail.
    spread = lax.pad(value, full_like_scalar(value, 0), [(0, 0, n)])
    square = lax.reshape(spread, (n, n)) if n > 1 else lax.reshape(spread, (1, 1))
    return lax.pad(square, full_like_scalar(value, 0), [(max(-k, 0), max(k, 0), 0), (max(k, 0), max(-k, 0), 0)])


def diagflat(v: Any, k: int = 0) -> Array:
    """Create the matrix with the flattened `v` as k-th diagonal.

    >>> jnp.diagflat(jnp.array([1, 2]))
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    value = operand("diagflat", "v", v)
    return diag(lax.reshape(value, (value.size,)), k)


@fused
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Array:
    """Sum a diagonal.

    >>> jnp.trace(jnp.eye(3))
    Array(3., dtype=float32)
    """
    no_out("trace", out)
    return reductions.sum(diagonal(a, offset, axis1, axis2), -1, dtype)


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = True) -> Array:
    """Return a copy with `val`, repeated, on the main diagonal (needs inplace=False).

    >>> jnp.fill_diagonal(jnp.zeros((2, 2)), 5.0, inplace=False)
    Array([[5., 0.],
           [0., 5.]], dtype=float32)
    """
    _refuse_in_place("fill_diagonal", inplace)
    value = operand("fill_diagonal", "a", a)
    if value.ndim < 2 or (value.ndim > 2 and len(set(value.shape)) > 1):
        raise ShapeError(f"fill_diagonal: a must be a matrix or have equal dimensions, got shape {value.shape}")
    columns = value.shape[-1]
    step = columns + 1 if value.ndim == 2 else int(np.sum(np.cumprod([1, *value.shape[1:]])))
    end = value.size if wrap or value.ndim > 2 else columns * columns
    positions = np.arange(0, min(end, value.size), step)
    new = array(val, value.dtype)
    new = lax.reshape(new, (new.size,))[np.arange(positions.size) % max(new.size, 1)]
    flat = lax.reshape(value, (value.size,))
    return lax.reshape(flat.at[positions].set(new), value.shape)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of `ndim` dimensions of length `n`.

    >>> jnp.eye(2).at[jnp.diag_indices(2)].add(1.0)
    Array([[2., 0.],
           [0., 2.]], dtype=float32)
    """
    return (lax.iota(dtypes.index_dtype(n, dtypes.default(INDEX)), n),) * ndim


def diag_indices_from(arr: Any) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of `arr`, whose dimensions are equal."""
    value = operand("diag_indices_from", "arr", arr)
    if value.ndim < 2 or len(set(value.shape)) > 1:
        raise ShapeError(f"diag_indices_from: arr must have at least two dimensions, all equal, got shape {value.shape}")
    return diag_indices(value.shape[0], value.ndim)


def _indices(pair: Any) -> tuple[Array, Array]:
    rows, columns = pair
    index_dtype = dtypes.index_dtype(max(map(int, [*rows[-1:], *columns[-1:]]), default=0), dtypes.default(INDEX))
    return array(rows.astype(index_dtype)), array(columns.astype(index_dtype))


def _symbolic_indices(mask: Array, count: Any) -> tuple[Array, Array]:
    rows, columns = nonzero(mask, size=count)
    return rows, columns


def _upper_count(n: Any, m: Any, k: Any) -> Any:
    """Return the number of elements of the upper triangle of an n×m matrix."""
    if k < 0:
        return n * m - _upper_count(m, n, 1 - k)
    rows = min_dim(n, max_dim(m - k, 0))
    return rows * (rows + 1) // 2 + rows * max_dim(m - k - rows, 0)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the indices of the lower triangle of an n×m matrix.

    >>> jnp.tril_indices(2)
    (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    if is_symbolic((n, k, m)):
        columns = n if m is None else m
        return _symbolic_indices(tri(n, columns, k), n * columns - _upper_count(n, columns, k + 1))
    return _indices(np.tril_indices(as_integer(n, "tril_indices: n"), k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the indices of the upper triangle of an n×m matrix.

    >>> jnp.triu_indices(2)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    if is_symbolic((n, k, m)):
        columns = n if m is None else m
        return _symbolic_indices(~tri(n, columns, k - 1, bool), _upper_count(n, columns, k))
    return _indices(np.triu_indices(as_integer(n, "triu_indices: n"), k, m))


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """Return the indices of the lower triangle of the matrix `arr`."""
    rows, columns = _matrix_shape("tril_indices_from", arr)
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """Return the indices of the upper triangle of the matrix `arr`."""
    rows, columns = _matrix_shape("triu_indices_from", arr)
    return triu_indices(rows, k, columns)


def _matrix_shape(function: str, arr: Any) -> tuple[int, int]:
    shape = operand(function, "arr", arr).shape
    if len(shape) != 2:
        raise ShapeError(f"{function}: arr must be a matrix, got shape {shape}")
    return shape


def mask_indices(n: int, mask_func: Any, k: Any = 0, *, size: int | None = None) -> tuple[Array, ...]:
    """Return the indices that `mask_func` (`triu`, …) keeps; `size` as in `nonzero`.

    >>> jnp.mask_indices(2, jnp.triu)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    return nonzero(mask_func(ones((n, n)), k), size=size)
