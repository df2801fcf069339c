"""Prefix combinations by an associative function in O(log n) array operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.flatten import check_callable, function_name
from volta_fn.errors import ArgumentError, DTypeError, ShapeError, TreeError
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.movement import canonical_axis, expand_dims, reshape, rev
from volta_fn.primitives.data_movement.slicing import slice_in_dim

Combine = Callable[[Sequence[Array], Sequence[Array]], list[Array]]


T = TypeVar("T", bound=Any)


def associative_scan(fn: Callable[[T, T], T], elems: T, reverse: bool = False, axis: int = 0) -> T:
    """Return all prefix combinations ``x0, fn(x0, x1), …`` along an axis.

    `fn` is called about ``2 log2 n`` times, each time on many elements at once, about ``2 n`` in all (Blelloch, Prefix sums and their
    applications, 1990), so it must be associative and work on arrays whose size along `axis` varies.

    Args:
        fn: associative, from two pytrees like `elems` to one like them.
        elems: a pytree of arrays of one size along `axis`.
        reverse: combine from the last element on.
        axis: the axis along which elements lie.

    Raises:
        ArgumentError, ShapeError: there are no arrays, or their sizes along `axis` differ.
        TreeError, ShapeError, DTypeError: `fn` returns something unlike `elems`.

    >>> import volta_fn as vf
    >>> vf.lax.associative_scan(vf.lax.max, vf.numpy.array([3, 1, 4, 1, 5]))
    Array([3, 3, 4, 4, 5], dtype=int32)
    """
    check_callable(fn, "associative_scan")
    leaves, structure = tree.flatten(elems)
    values = [as_value(x) for x in leaves]
    if not values:
        raise ArgumentError("associative_scan: there are no arrays to scan")
    dim = canonical_axis(axis, values[0].ndim)
    if len({(v.shape + (-1,) * (dim + 1))[dim] for v in values}) > 1 or any(v.ndim <= dim for v in values):
        shapes = ", ".join(str(v.shape) for v in values)
        raise ShapeError(f"associative_scan: the arrays must have one size along axis {dim}, got shapes {shapes}")

    in_order = [rev(v, (dim,)) for v in values] if reverse else values
    results = _prefixes(combining("associative_scan", fn, structure), in_order, dim)
    return tree.unflatten(structure, [rev(r, (dim,)) for r in results] if reverse else results)


def combining(caller: str, fn: Callable[[Any, Any], Any], structure: tree.TreeDef) -> Combine:
    """Wrap `fn`, a function of two trees, as one of their leaves.

    It must return what it takes.
    """

    def combine(a: Sequence[Array], b: Sequence[Array]) -> list[Array]:
        outs, out_structure = tree.flatten(fn(tree.unflatten(structure, a), tree.unflatten(structure, b)))
        if out_structure != structure:
            raise TreeError(
                f"{caller}: {function_name(fn)} takes the structure {tree.describe(structure)} and returns {tree.describe(out_structure)}"
            )
        return [checked(x, as_value(y)) for x, y in zip(b, outs, strict=True)]

    def checked(taken: Array, returned: Array) -> Array:
        if (taken.shape, taken.dtype) == (returned.shape, returned.dtype):
            return returned
        error = DTypeError if taken.shape == returned.shape else ShapeError
        raise error(f"{caller}: {function_name(fn)} takes arrays of type {taken.aval} and returns {returned.aval}")

    return combine


def _prefixes(combine: Combine, values: Sequence[Array], dim: int) -> list[Array]:
    """Combine neighbors, scan those pairs, and complete the even elements."""
    size = values[0].shape[dim]
    if size < 2:
        return list(values)
    pairs = combine(every_other(values, 0, size - 1, dim), every_other(values, 1, size, dim))
    odd = _prefixes(combine, pairs, dim)
    evens = every_other(values, 2, size, dim)
    count = evens[0].shape[dim]
    first = [slice_in_dim(v, 0, 1, 1, dim) for v in values]
    if not count:
        return [concatenate([f, o], dim) for f, o in zip(first, odd, strict=True)]
    later = combine([slice_in_dim(o, 0, count, 1, dim) for o in odd], evens)
    even = [concatenate([f, x], dim) for f, x in zip(first, later, strict=True)]
    return [_interleave(e, o, dim) for e, o in zip(even, odd, strict=True)]


def every_other(values: Sequence[Array], start: int, stop: int, dim: int) -> list[Array]:
    """Return the elements `start`, `start` + 2, … before `stop` of each array."""
    return [slice_in_dim(v, start, stop, 2, dim) for v in values]


def _interleave(even: Array, odd: Array, dim: int) -> Array:
    """Return even[0], odd[0], even[1], odd[1], …; `even` may have one more."""
    count = odd.shape[dim]
    stacked = concatenate([expand_dims(slice_in_dim(even, 0, count, 1, dim), (dim + 1,)), expand_dims(odd, (dim + 1,))], dim + 1)
    joined = reshape(stacked, (*even.shape[:dim], 2 * count, *even.shape[dim + 1 :]))
    return concatenate([joined, slice_in_dim(even, count, count + 1, 1, dim)], dim) if even.shape[dim] > count else joined
