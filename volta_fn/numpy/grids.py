"""Coordinates of grids: meshgrid, indices, ix_, and index notation (mgrid, r_, …)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import canonical_shape, check_option
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused_by_results
from volta_fn.numpy.arguments import dtype_or, operand
from volta_fn.numpy.creation import arange, array, linspace
from volta_fn.numpy.indexing import nonzero
from volta_fn.numpy.joining import concatenate, stack
from volta_fn.settings import current as settings


@fused_by_results
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Array, ...]:
    """Return each vector as a coordinate array of the grid's shape (`sparse`: open).

    >>> [g.tolist() for g in jnp.meshgrid(jnp.array([1, 2]), jnp.array([5, 6, 7]))]
    [[[1, 2], [1, 2], [1, 2]], [[5, 5], [6, 6], [7, 7]]]

    With `indexing="ij"` the first vector runs along the first dimension; with "xy" along the second.
    """
    check_option(indexing, "meshgrid: indexing", ("xy", "ij"))
    values = [operand("meshgrid", str(i), x) for i, x in enumerate(xi)]
    if any(v.ndim > 1 for v in values):
        raise ShapeError(f"meshgrid: the coordinates must be vectors, got shapes {[v.shape for v in values]}")
    values = [lax.reshape(v, (v.size,)) for v in values]
    rank = len(values)
    along = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else range(rank)
    sizes = [values[number].size for number in along]
    shapes = [[sizes[i] if sparse is False or i == axis else 1 for i in range(rank)] for axis in along]
    return tuple([lax.broadcast_in_dim(v, shape, (axis,)) for axis, v, shape in zip(along, values, shapes, strict=True)])


def indices(dimensions: Any, dtype: Any = None, sparse: bool = False) -> Any:
    """Return the index of every element of a grid, per dimension; stacked or `sparse`.

    >>> jnp.indices((2, 2)).tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    sizes = canonical_shape(dimensions)
    result_dtype = dtype_or(dtype, dtypes.index_dtype(max(sizes, default=0), dtypes.default(np.dtype(np.int32))))
    if sparse:
        return tuple([lax.broadcasted_iota(result_dtype, [n if i == d else 1 for i, n in enumerate(sizes)], d) for d in range(len(sizes))])
    if not sizes:
        return array(np.zeros((0,), result_dtype))
    return stack([lax.broadcasted_iota(result_dtype, sizes, d) for d in range(len(sizes))])


def ix_(*args: Any) -> tuple[Array, ...]:
    """Convert vectors of indices (or masks) into an open grid.

    x[ix_(rows, columns)] is the sub-matrix of those rows and columns.

    >>> jnp.arange(9).reshape(3, 3)[jnp.ix_(jnp.array([0, 2]), jnp.array([1]))]
    Array([[1],
           [7]], dtype=int32)
    """
    results = []
    for i, arg in enumerate(args):
        value = array(arg) if isinstance(arg, (list, tuple)) else operand("ix_", str(i), arg)
        if value.ndim != 1:
            raise ShapeError(f"ix_: the arguments must be vectors, got shape {value.shape}")
        value = nonzero(value)[0] if value.dtype in dtypes.BOOL else value
        results.append(lax.reshape(value, [value.size if i == j else 1 for j in range(len(args))]))
    return tuple(results)


def _ramp(item: slice) -> Array:
    """Return the numbers of start:stop:step, or of start:stop:nj, n with both ends."""
    start = 0 if item.start is None else item.start
    if item.stop is None and settings.permissive:
        return arange(start, step=item.step)
    if item.stop is None:
        raise ArgumentError(f"a grid's slice needs a stop, got {item}")
    if isinstance(item.step, complex):
        return linspace(start, item.stop, int(abs(item.step)))
    return arange(start, item.stop, item.step)


class _Grid:
    """Index notation for coordinates: ``mgrid[0:2, 0:3]``, ``ogrid[0:2, 0:3]``."""

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _ramp(key)
        if not key:
            return [] if self.sparse else arange(0)
        axes = meshgrid(*[_ramp(item) for item in key], indexing="ij", sparse=self.sparse)
        common = dtypes.result_type(*[g.dtype for g in axes])
        grids = [lax.convert_element_type(g, common) for g in axes]
        return grids if self.sparse else stack(grids)


mgrid, ogrid = _Grid(sparse=False), _Grid(sparse=True)


class RClass:
    """Index notation for joining along the first axis: ``r_[1:4, 0, x]``."""

    axis, ndmin, trans1d = 0, 1, -1

    def __getitem__(self, key: Any) -> Array:
        items: Sequence[Any] = key if isinstance(key, tuple) else (key,)
        axis, ndmin, trans1d = options = self.axis, self.ndmin, self.trans1d
        if items and isinstance(items[0], str):
            text = items[0]
            try:
                numbers = [int(number) for number in text.split(",")]
            except ValueError:
                raise ArgumentError(f"r_ and c_ take a directive of up to three integers such as '0,2,1', got {text!r}") from None
            axis, ndmin, trans1d = (*numbers, *options[len(numbers) :])[:3]
            items = items[1:]
        return concatenate([_widened(item, ndmin, trans1d) for item in items], axis)


class CClass(RClass):
    """Index notation for columns: ``c_[x, y]``."""

    axis, ndmin, trans1d = -1, 2, 0


def _widened(item: Any, ndmin: int, trans1d: int) -> Array:
    """Return an item with `ndmin` dimensions, its own from `trans1d` on (-1: last)."""
    value = _ramp(item) if isinstance(item, slice) else array(item)
    scalar = value.ndim == 0
    value = lax.reshape(value, (1,)) if scalar else value
    missing = ndmin - value.ndim
    if missing <= 0:
        return value
    before = min(max(trans1d + (missing + 1 if trans1d < 0 else 0), 0), missing)
    return lax.reshape(value, (1,) * before + value.shape + (1,) * (missing - before))


r_, c_ = RClass(), CClass()


s_, index_exp = np.s_, np.index_exp
