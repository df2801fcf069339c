"""Updates by index, ``x.at[…].set(v)``: new arrays that differ from x at an index.

A known block (ints and slices of step 1 or -1) is replaced by one `dynamic_update_slice`; every other update is one scatter; a boolean
mask met by values that are the same for every element it selects is one `select_n`, and may be traced.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value, attach
from volta_fn.core.arrays.memory import beside_indices, constrained
from volta_fn.core.aval import broadcasts_to, check_promotion
from volta_fn.core.refs import Ref
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentTypeError, BroadcastError, DTypeError, ImmutableError, IntegerOverflowError
from volta_fn.lazy_imports import load
from volta_fn.primitives.array_operations.array_indexing import (
    Entry,
    NewAxis,
    Point,
    SliceIndex,
    Windows,
    parse_index,
    read,
    single_mask,
    window_numbers,
)
from volta_fn.primitives.array_operations.operators import power, stack, true_divide
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_update_slice
from volta_fn.primitives.data_movement.gather import (
    GatherScatterMode,
    ScatterDimensionNumbers,
    scatter,
    scatter_add,
    scatter_max,
    scatter_min,
    scatter_mul,
)
from volta_fn.primitives.data_movement.movement import broadcast, broadcast_to, reshape, rev
from volta_fn.primitives.declare import check_narrowing
from volta_fn.primitives.elementwise import arithmetic
from volta_fn.primitives.elementwise.cast import convert_element_type, decoded
from volta_fn.primitives.elementwise.selection import select
from volta_fn.settings import current as settings

_KINDS = (dtypes.BOOL, dtypes.INTEGERS | dtypes.STORAGE_INTEGERS, dtypes.FLOATS | dtypes.STORAGE_FLOATS, dtypes.COMPLEX)
_MASKED: dict[Any, Callable[[Array, Array], Array]] = {
    scatter_add: arithmetic.add,
    scatter_mul: arithmetic.mul,
    scatter_min: arithmetic.min,
    scatter_max: arithmetic.max,
}


class AtIndexer:
    """``x.at``, to be indexed."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self.array, index)

    if not TYPE_CHECKING:  # type checkers report it by themselves

        def __setitem__(self, index: Any, values: Any) -> None:
            raise ImmutableError(
                "arrays are immutable: x = x.at[i].set(values) makes a new one; so do .at[i].add, .multiply, .min and .max"
            )

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"x.at has no attribute {name!r}; index it first: x.at[i].{name}(…), and x.at[:] for all elements")

    def __repr__(self) -> str:
        return f"AtIndexer({self.array!r})"


class AtIndex:
    """``x.at[index]``: each method returns a new array and leaves x unchanged.

    The values broadcast to the shape of ``x[index]`` and are converted to the dtype of x, which must be of their kind or a wider one. An
    element that the index names several times is updated several times, in order: by `set` the last value stays.

    The methods take, by keyword:
        mode: the treatment of indices outside: None drops traced ones on update, moves them inside on `get`, and raises for known ones;
            "drop" or "fill" drops them on update and gives `fill_value` on `get`; "clip" moves them inside; "promise_in_bounds" says
            there are none.
        unique_indices: a promise that no element is named twice, which some derivatives need (`multiply`) or are faster for.
        indices_are_sorted: a promise that costs and gains nothing here; JAX has it.
        wrap_negative_indices: False for negative indices to lie outside, instead of counting from the end.
        out_sharding: how the result is split between devices.

    >>> x = vf.numpy.zeros(4)
    >>> x.at[1].set(5.0), x.at[[0, 0, 3]].add(1.0)
    (Array([0., 5., 0., 0.], dtype=float32), Array([2., 0., 0., 1.], dtype=float32))
    """

    __slots__ = ("array", "index")

    def __init__(self, array: Array, index: Any) -> None:
        self.array = beside_indices(array, index)
        self.index = index

    def __repr__(self) -> str:
        return f"AtIndex({self.array!r}, {self.index!r})"

    def get(
        self, *, fill_value: Any = None, mode: Any = None, wrap_negative_indices: bool = True, out_sharding: Any = None, **hints: bool
    ) -> Array:
        """Return ``x[index]``.

        Indices out of range give `fill_value` (None: NaN, the least or greatest integer, or True).

        >>> vf.numpy.arange(3.0).at[vf.numpy.array([2, 9])].get(mode="fill")
        Array([ 2., nan], dtype=float32)
        """
        _check_hints(hints)
        scatter_mode = _mode(mode)
        elements = read(self.array, self._entries(scatter_mode, wrap_negative_indices), scatter_mode, fill_value)
        return constrained(elements, out_sharding)

    def set(self, values: Any, **options: Any) -> Array:
        """Return x with ``x[index] = values``."""
        return self._update(scatter, values, **options)

    def add(self, values: Any, **options: Any) -> Array:
        """Return x with ``x[index] += values``, adding up where the index repeats."""
        return self._update(scatter_add, values, **options)

    def subtract(self, values: Any, **options: Any) -> Array:
        """Return x with ``x[index] -= values``."""
        new = _cast_like(self.array, values)
        return self._update(scatter_add, convert_element_type(arithmetic.neg(decoded(new)), new.dtype, new.weak_type), **options)

    def multiply(self, values: Any, **options: Any) -> Array:
        """Return x with ``x[index] *= values``."""
        return self._update(scatter_mul, values, **options)

    mul = multiply

    def divide(self, values: Any, **options: Any) -> Array:
        """Return x with ``x[index] /= values``; an integer x gives floats."""
        return true_divide(self.array, self._ones(dtypes.to_inexact(self.array.dtype))._update(scatter_mul, values, **options))

    def power(self, values: Any, **options: Any) -> Array:
        """Return x with ``x[index] **= values``."""
        return power(self.array, self._ones(self.array.dtype)._update(scatter_mul, values, **options))

    def min(self, values: Any, **options: Any) -> Array:
        """Return x with ``x[index] = minimum(x[index], values)``."""
        return self._update(scatter_min, values, **options)

    def max(self, values: Any, **options: Any) -> Array:
        """Return x with ``x[index] = maximum(x[index], values)``."""
        return self._update(scatter_max, values, **options)

    def apply(self, func: Callable[[Array], Any], *, mode: Any = None, wrap_negative_indices: bool = True, **hints: bool) -> Array:
        """Return x with ``x[index] = func(x[index])``, for an elementwise function.

        An element that is named several times passes through it once.

        >>> vf.numpy.array([1.0, 4.0, 9.0]).at[1:].apply(vf.lax.sqrt)
        Array([1., 2., 3.], dtype=float32)
        """
        mask = single_mask(self.index)
        if isinstance(mask, Tracer):
            return _select_masked(self.array, mask, _cast_like(self.array, func(self.array)))
        old = self.get(mode=mode, wrap_negative_indices=wrap_negative_indices, **hints)
        return self._update(scatter, func(old), mode=mode, wrap_negative_indices=wrap_negative_indices, **hints)

    def _ones(self, dtype: np.dtype) -> AtIndex:
        one = as_value(np.ones((), dtype))
        return AtIndex(broadcast(one, self.array.shape), self.index)

    def _entries(self, mode: GatherScatterMode | None, wrap: bool) -> list[Entry]:
        strict = mode is None or mode is GatherScatterMode.PROMISE_IN_BOUNDS
        return parse_index(self.index, self.array.shape, strict, wrap)

    def _update(
        self,
        combine: Callable[..., Array],
        values: Any,
        *,
        mode: Any = None,
        unique_indices: bool = False,
        wrap_negative_indices: bool = True,
        out_sharding: Any = None,
        **hints: bool,
    ) -> Array:
        _check_hints(hints)
        if out_sharding is not None:
            options = {"mode": mode, "unique_indices": unique_indices, "wrap_negative_indices": wrap_negative_indices}
            return constrained(self._update(combine, values, **options), out_sharding)
        array, scatter_mode = self.array, _mode(mode)
        new = _cast_like(array, values)
        mask = single_mask(self.index)
        if mask is not None and mask.shape == array.shape[: mask.ndim] and broadcasts_to(new.shape, array.shape[mask.ndim :]):
            combined = new if combine is scatter else convert_element_type(_MASKED[combine](decoded(array), decoded(new)), array.dtype)
            return _select_masked(array, mask, combined)
        entries = self._entries(scatter_mode, wrap_negative_indices)
        windows = window_numbers(entries, array.shape)
        if not broadcasts_to(new.shape, windows.shape):
            raise BroadcastError(f"x.at[…]: values of shape {new.shape} do not broadcast to the indexed elements, of shape {windows.shape}")
        new = rev(reshape(broadcast_to(new, windows.shape), windows.compact), windows.reversed_dims)
        if not math.prod(windows.shape) or 0 in array.shape:  # nothing is indexed, or all indices are out of range
            return array
        if combine is scatter and _is_known_block(array, entries):
            starts, sizes = [0] * array.ndim, [1] * array.ndim
            for e in entries:
                if isinstance(e, Point):
                    starts[e.dim] = e.index
                elif isinstance(e, SliceIndex):
                    starts[e.dim], sizes[e.dim] = min(e.start, e.start + e.step * (e.size - 1)), e.size
            return dynamic_update_slice(array, reshape(new, sizes), starts)
        numbers = ScatterDimensionNumbers(*windows.numbers)
        unique = unique_indices or (combine is scatter_mul and scatter_mode is not GatherScatterMode.CLIP and _are_unique(windows))
        scatter_mode = scatter_mode or (
            GatherScatterMode.PROMISE_IN_BOUNDS if windows.is_constant and not settings.permissive else GatherScatterMode.FILL_OR_DROP
        )
        return combine(array, windows.indices, new, numbers, unique_indices=unique, mode=scatter_mode)


def _mode(mode: Any) -> GatherScatterMode | None:
    return None if mode is None else GatherScatterMode.from_any(mode)


def _check_hints(hints: dict[str, bool]) -> None:
    """Raise for keywords other than the hints, which change nothing."""
    unknown = hints.keys() - {"indices_are_sorted", "unique_indices"}
    if unknown:
        raise ArgumentTypeError(
            f"x.at[…]: unexpected {', '.join(sorted(unknown))}; the options are mode, unique_indices, indices_are_sorted, "
            "wrap_negative_indices, out_sharding and, for get, fill_value"
        )


def _cast_like(array: Array, values: Any) -> Array:
    """Cast the values to the array's dtype; raise if it cannot hold their kind."""
    if isinstance(values, int) and array.dtype in dtypes.INTEGERS | dtypes.STORAGE_INTEGERS:
        bounds = dtypes.iinfo(array.dtype)
        if not bounds.min <= values <= bounds.max:
            if not settings.permissive:
                raise IntegerOverflowError(
                    f"x.at[…]: {values} does not fit the dtype {array.dtype.name} of the array, whose range is {bounds.min} to {bounds.max}"
                )
            dtypes.scalar_dtype(values)  # which raises for what JAX does not wrap around
        values = values if -(2**31) <= values < 2**31 else np.asarray(values).astype(array.dtype)
    if isinstance(values, (list, tuple)):
        nested = any(isinstance(leaf, Array) for leaf in tree.leaves(values))
        values = stack([_cast_like(array, item) for item in values]) if nested else np.asarray(values)
    new = as_value(values)
    if new.dtype == array.dtype:
        return new
    if settings.permissive:
        check_promotion("x.at[…]", (array, new), array.dtype)
        combined, _ = dtypes.promote((array.dtype, array.weak_type), (new.dtype, new.weak_type))
        if combined != array.dtype:
            message = (
                f"scatter inputs have incompatible types: {new.dtype.name} cannot safely be cast to {array.dtype.name}, the array's dtype"
            )
            warnings.warn(message, FutureWarning, stacklevel=2)
    kind, array_kind = (next(i for i, kind in enumerate(_KINDS) if v.dtype in kind) for v in (new, array))
    if kind > array_kind and not settings.permissive:
        raise DTypeError(
            f"x.at[…]: an array of dtype {array.dtype.name} cannot hold values of dtype {new.dtype.name}; "
            f"convert the array first (x.astype({new.dtype.name!r})) or the values (v.astype({array.dtype.name!r}))"
        )
    return convert_element_type(check_narrowing(new, array.dtype), array.dtype)


def _select_masked(array: Array, mask: Array, new: Array) -> Array:
    return select(reshape(mask, mask.shape + (1,) * (array.ndim - mask.ndim)), new, array)


def _is_known_block(array: Array, entries: list[Entry]) -> bool:
    """Return True if the entries are known points and slices of neighbors."""
    return all(
        isinstance(e, NewAxis)
        or (isinstance(e, SliceIndex) and (abs(e.step) == 1 or e.size == 1))
        or (isinstance(e, Point) and type(e.index) is int and 0 <= e.index < array.shape[e.dim])
        for e in entries
    )


def _are_unique(windows: Windows) -> bool:
    """Return True if the windows are known not to overlap."""
    if not windows.is_constant:
        return False
    vectors = windows.indices.reshape(math.prod(windows.indices.shape[:-1]), -1)
    return len(np.unique(vectors, axis=0)) == len(vectors)


attach("at", property(AtIndexer))


# Parts of references, which few programs use: `ref_views` is imported with the first one.


class _RefPart:
    """Stands for a name of references until `ref_views` replaces it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, ref: Ref | None, kind: type[Ref]) -> Any:
        load("volta_fn.primitives.array_operations.ref_views")
        return getattr(kind if ref is None else ref, self._name)


for _name in ("read_part", "write_part", "stop_gradient", "at", "T", "reshape", "transpose", "bitcast"):
    if _name not in vars(Ref):  # else `ref_views` was there first
        setattr(Ref, _name, _RefPart(_name))
