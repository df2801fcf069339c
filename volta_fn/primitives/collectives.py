"""Collectives: operations across the positions of named axes.

An axis of a `vmap` is resolved by it: it rewrites the operation as one along the stacked dimension, after which the result is the same for
every example of that axis, or belongs to it again. An axis of processes (`shard_map` over a mesh of several) stays in the program; the
equation runs on the host, which talks to the other processes.

In the order in which to read: names and groups, and the rules that all collectives have; what a process computes with others, in NumPy; the
collectives; and what the border of a program on several processes or devices, and casts of types along named axes, do to values.

Each primitive's ``axis_names`` says which named axes it speaks of, and ``axis_index_groups`` which positions communicate.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray, check_option
from volta_fn.core.devices import distribution
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Linear, Primitive, RuleOf, Zero, reduction_of
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import ProcessAxis, StepAxis, bind, bound_axes
from volta_fn.core.trace import axis_size as bound_axis_size
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.array_operations.operators import collapse
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_slice
from volta_fn.primitives.data_movement.movement import (
    broadcast,
    broadcasted_iota,
    canonical_axis,
    linear_jvp,
    moveaxis,
    no_derivative,
    reshape,
    stacked_in_front,
    zero_jvp,
)
from volta_fn.primitives.data_movement.slicing import concatenate, index_in_dim
from volta_fn.primitives.elementwise.arithmetic import div, mul
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.reduction import reduce_max, reduce_min, reduce_sum

# Names, groups and rules that all collectives have.

Names = tuple[Any, ...]
Groups = tuple[tuple[int, ...], ...] | None


def one_name(axis_name: Any, collective: str) -> Names:
    """Return the binding of the only name; raise `ArgumentError` for several."""
    names = bound_axes(axis_name)
    if len(names) != 1:
        raise ArgumentError(f"{collective} takes one axis name, got {names}; call it once per axis")
    return names


def checked_groups(axis_index_groups: Any, names: Names, collective: str) -> Groups:
    """Return groups of positions as tuples.

    Raises `ArgumentError` unless they are of one size and together name each position of one axis once.
    """
    if axis_index_groups is None:
        return None
    if len(names) != 1:
        raise ArgumentError(f"{collective}: axis_index_groups are positions of one axis, but {names} are {len(names)}")
    groups, size = tuple([tuple(map(int, group)) for group in axis_index_groups]), bound_axis_size(names)
    if len({len(group) for group in groups}) != 1 or sorted(i for group in groups for i in group) != list(range(size)):
        raise ArgumentError(f"{collective}: axis_index_groups must name each of {size} positions once, in groups of one size; got {groups}")
    return groups


def group_size(names: Names, groups: Groups) -> int:
    """Return the number of positions that communicate."""
    return bound_axis_size(names) if groups is None else len(groups[0])


def to_groups(value: Array, dim: int | None, size: int, groups: Groups) -> Array:
    """Move the examples to two leading dimensions: groups, and positions in a group.

    `dim` is the dimension of `size` examples; if it is None, all have this value.
    """
    front = broadcast(value, (size,)) if dim is None else moveaxis(value, dim, 0)
    if groups is None:
        return reshape(front, (1, *front.shape))
    return reshape(_rows(front, [i for group in groups for i in group]), (len(groups), len(groups[0]), *front.shape[1:]))


def from_groups(value: Array, groups: Groups) -> Array:
    """Undo `to_groups`: move the examples to one leading dimension, in their order."""
    rows = reshape(value, (value.shape[0] * value.shape[1], *value.shape[2:]))
    return rows if groups is None else _rows(rows, np.argsort([i for group in groups for i in group]).tolist())


def _rows(value: Array, order: Sequence[int]) -> Array:
    return concatenate([index_in_dim(value, i, 0) for i in order], 0)


def in_blocks(collective: str, value: Array, dim: int, size: int, tiled: bool) -> Array:
    """Split `dim` of `value` into a dimension of `size` blocks and their elements.

    If not `tiled`, `dim` is the dimension of blocks itself.
    """
    before, count, after = value.shape[:dim], value.shape[dim], value.shape[dim + 1 :]
    if not tiled and count != size:
        raise ShapeError(f"{collective}: dimension {dim} of shape {value.shape} must have the axis's size {size} (or be tiled)")
    if count % size:
        raise ShapeError(f"{collective}: dimension {dim} of shape {value.shape} does not divide among {size} examples")
    return reshape(value, (*before, size, count // size, *after)) if tiled else value


# What a process computes with others, in NumPy.

Axes = tuple[ProcessAxis, ...]
RankGroups = tuple[tuple[int, ...], ...] | None
Outs = Sequence[np.ndarray | None] | None


def _communicator(axis_names: Axes, axis_index_groups: RankGroups) -> distribution.Communicator:
    return distribution.current().communicator(distribution.members_of(axis_names, axis_index_groups))


def _described(name: str, axis_names: Axes, arrays: Sequence[np.ndarray]) -> str:
    types = ", ".join([f"{a.dtype.name}{list(a.shape)}" for a in arrays[:3]]) + (f" and {len(arrays) - 3} more" if len(arrays) > 3 else "")
    return f"{name} of {types} over {', '.join([repr(axis.name) for axis in axis_names])}"


def _results(arrays: Sequence[np.ndarray], out: Outs) -> list[np.ndarray]:
    """Return the arrays to write: those given, or new ones."""
    destinations = [None] * len(arrays) if out is None else out
    return [np.empty(a.shape, a.dtype) if o is None else o for a, o in zip(arrays, destinations, strict=True)]


def _sum_processes(
    *arrays: np.ndarray, axis_names: Axes, axis_index_groups: RankGroups, compression: str | None, out: Outs = None
) -> Sequence[np.ndarray]:
    """Sum each array over processes."""
    outs, communicator = _results(arrays, out), _communicator(axis_names, axis_index_groups)
    description = _described("psum", axis_names, arrays)
    if compression is None:
        communicator.reduce("sum", arrays, outs, description)
    else:
        communicator.compressed_sum(arrays, outs, description)
    return outs


def _sum_bucket(*arrays: np.ndarray, dtypes: Sequence[np.dtype], **params: Any) -> Sequence[np.ndarray]:
    """Sum each array over processes, as an array of one of the dtypes."""
    return _sum_processes(*[array.astype(dtype, copy=False) for array, dtype in zip(arrays, dtypes, strict=True)], **params)


def _reduce_extreme(
    *arrays: np.ndarray, axis_names: Axes, axis_index_groups: RankGroups, step: str, out: Outs = None
) -> Sequence[np.ndarray]:
    """Return the maximum or minimum of each array over processes."""
    outs = _results(arrays, out)
    _communicator(axis_names, axis_index_groups).reduce(step, arrays, outs, _described(f"p{step}", axis_names, arrays))
    return outs


_tickets = itertools.count()
_pending: dict[int, distribution.Pending] = {}


def _start_sum(*arrays: np.ndarray, axis_names: Axes, axis_index_groups: RankGroups, compression: str | None) -> np.ndarray:
    """Begin a sum over processes, and return the number by which `psum_done` finds it."""
    ticket = next(_tickets) & 0x7FFFFFFF
    communicator = _communicator(axis_names, axis_index_groups)
    _pending[ticket] = communicator.start_sum(arrays, compression, _described("psum", axis_names, arrays))
    return np.array(ticket, np.int32)


def _finish_sum(ticket: np.ndarray, *, result_avals: Sequence[ShapedArray]) -> Sequence[np.ndarray]:
    """Wait for a sum that `psum_start` began."""
    return _pending.pop(int(ticket)).results()


@functools.cache
def _index(axis_names: Axes, rank: int) -> np.ndarray:
    index = np.array(distribution.members_of(axis_names, None).index(rank), np.int32)
    index.flags.writeable = False
    return index


def _process_index(*, axis_names: Axes) -> np.ndarray:
    """Return this process's position along an axis."""
    return _index(axis_names, distribution.current().rank)


def _gather(array: np.ndarray, *, axis_names: Axes, axis_index_groups: RankGroups, axis: int, size: int) -> np.ndarray:
    """Stack the arrays of all processes along a new axis."""
    rows = _communicator(axis_names, axis_index_groups).gather(array, _described("all_gather", axis_names, [array]))
    return np.ascontiguousarray(np.moveaxis(rows, 0, axis))


def _scatter_sum(array: np.ndarray, *, axis_names: Axes, axis_index_groups: RankGroups, axis: int, size: int) -> np.ndarray:
    """Sum arrays over processes; each keeps its own row along an axis."""
    rows = np.ascontiguousarray(np.moveaxis(array, axis, 0))
    return _communicator(axis_names, axis_index_groups).reduce_scatter(rows, _described("psum_scatter", axis_names, [array]))


def _permute(array: np.ndarray, *, axis_names: Axes, perm: Sequence[tuple[int, int]]) -> np.ndarray:
    """Send an array by pairs of source and target."""
    return _communicator(axis_names, None).permute(array, perm, _described("ppermute", axis_names, [array]))


def _exchange_slices(
    array: np.ndarray, *, axis_names: Axes, axis_index_groups: RankGroups, split_axis: int, concat_axis: int
) -> np.ndarray:
    """Exchange slices between all processes."""
    rows = np.ascontiguousarray(np.moveaxis(array, split_axis, 0))
    received = _communicator(axis_names, axis_index_groups).exchange(rows, _described("all_to_all", axis_names, [array]))
    return np.ascontiguousarray(np.moveaxis(received, 0, concat_axis))


# Values exchanged between positions: `ppermute`, `all_to_all`, ….

Permutation = tuple[tuple[int, int], ...]


def _permute_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names, perm: Permutation
) -> tuple[Array, int | None]:
    (value,), (dim,) = args, dims
    if axis.name not in axis_names:
        return bind(ppermute_p, value, axis_names=axis_names, perm=perm), dim
    front = broadcast(value, (axis.size,)) if dim is None else moveaxis(value, dim, 0)
    source_of = {target: source for source, target in perm}
    nothing = broadcast(as_value(np.zeros((), front.dtype)), (1, *front.shape[1:]))
    rows = [index_in_dim(front, source_of[i], 0) if i in source_of else nothing for i in range(axis.size)]
    return concatenate(rows, 0), 0


ppermute_p: Primitive = Primitive(
    "ppermute",
    lambda operand, *, axis_names, perm: operand,
    evaluate=_permute,
    jvp=linear_jvp(),
    transpose=lambda ct, operand, *, axis_names, perm: [
        bind(ppermute_p, ct, axis_names=axis_names, perm=tuple([(target, source) for source, target in perm]))
    ],
    batch=_permute_batch,
)


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Send `x`, a pytree, between examples by (source, target) pairs.

    Examples that receive nothing get zeros. Raises `ArgumentError` if a source or target occurs twice or does not exist.

    >>> vf.vmap(lambda x: vf.lax.ppermute(x, "i", [(0, 1), (1, 0)]), axis_name="i")(vf.numpy.array([1.0, 2.0]))
    Array([2., 1.], dtype=float32)
    """
    names = one_name(axis_name, "ppermute")
    pairs = tuple([(int(source), int(target)) for source, target in perm])
    for side in zip(*pairs, strict=True) if pairs else ():
        if len(set(side)) != len(side) or not all(0 <= i < bound_axis_size(names) for i in side):
            raise ArgumentError(
                f"ppermute: {pairs} must name each of {bound_axis_size(names)} examples at most once as source and as target"
            )
    return tree.map(lambda leaf: bind(ppermute_p, as_value(leaf), axis_names=names, perm=pairs), x)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Permute `x`, a pytree, over the examples of a named axis.

    Example i gets the value of example ``perm[i]``.

    >>> vf.vmap(lambda x: vf.lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(vf.numpy.array([10, 11, 12]))
    Array([12, 10, 11], dtype=int32)
    """
    if sorted(perm) != list(range(bound_axis_size(axis_name))):
        raise ArgumentError(f"pshuffle: {tuple(perm)} does not permute {bound_axis_size(axis_name)} examples")
    return ppermute(x, axis_name, [(source, target) for target, source in enumerate(perm)])


def _exchange_abstract(
    operand: ShapedArray, *, axis_names: Names, axis_index_groups: Groups, split_axis: int, concat_axis: int
) -> ShapedArray:
    shape = list(operand.shape)
    size = shape.pop(split_axis)
    shape.insert(concat_axis, size)
    return operand.update(shape=tuple(shape))


def _exchange_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, split_axis: int, concat_axis: int, **params: Any
) -> tuple[Array, int]:
    groups = params["axis_index_groups"]
    if axis.name not in params["axis_names"]:
        front = stacked_in_front(axis, args, dims)
        return bind(all_to_all_p, *front, split_axis=split_axis + 1, concat_axis=concat_axis + 1, **params), 0
    # Example i's block j becomes example j's block i: the stacked dimension and the split one change roles.
    by_target = moveaxis(to_groups(args[0], dims[0], axis.size, groups), split_axis + 2, 1)
    return from_groups(moveaxis(by_target, 2, concat_axis + 2), groups), 0


all_to_all_p: Primitive = Primitive(
    "all_to_all",
    _exchange_abstract,
    evaluate=_exchange_slices,
    jvp=linear_jvp(),
    transpose=lambda ct, operand, *, split_axis, concat_axis, **params: [
        bind(all_to_all_p, ct, split_axis=concat_axis, concat_axis=split_axis, **params)
    ],
    batch=_exchange_batch,
)


def all_to_all(x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, axis_index_groups: Any = None, tiled: bool = False) -> Any:
    """Exchange slices of `x`, a pytree, between all examples of a named axis.

    `x` is split along `split_axis` into a slice per example; slice j goes to example j, and what arrives is joined along `concat_axis`. A
    leaf's `split_axis` is as long as the named axis and is dropped, and what arrives is stacked along a new dimension `concat_axis`. If
    `tiled` it is a multiple of that, each example has a block of it, and what arrives is joined along the dimension `concat_axis` that
    leaves have. With `axis_index_groups`, lists of positions of one size, each group exchanges its own.

    Several names count as one axis, the last varying fastest. The derivative sends cotangents back. Raises `ShapeError`
    if `split_axis` does not divide so, `ArgumentError` if the name is not bound by a surrounding `vmap`.

    >>> x = vf.numpy.arange(4.0).reshape(2, 2)
    >>> vf.vmap(lambda row: vf.lax.all_to_all(row, "i", 0, 0), axis_name="i")(x)
    Array([[0., 2.],
           [1., 3.]], dtype=float32)
    >>> vf.vmap(lambda row: vf.lax.all_to_all(row[None], "i", 1, 0, tiled=True), axis_name="i")(x).shape
    (2, 2, 1)
    """
    names = bound_axes(axis_name)
    if len(set(names)) != len(names):
        raise ArgumentError(f"all_to_all: {names} names an axis twice")
    groups = checked_groups(axis_index_groups, names, "all_to_all")

    def exchange(leaf: Any) -> Array:
        value = as_value(leaf)
        split, concat = canonical_axis(split_axis, value.ndim), canonical_axis(concat_axis, value.ndim)
        blocks = in_blocks("all_to_all", value, split, group_size(names, groups), tiled)
        arrived = _exchange(blocks, names, groups, split, concat)
        return collapse(arrived, concat, concat + 2) if tiled else arrived

    return tree.map(exchange, x)


def _exchange(blocks: Array, names: Names, groups: Groups, split: int, concat: int) -> Array:
    """Send the blocks along `split` over all named axes, the last one varying fastest."""
    if len(names) == 1:
        return bind(all_to_all_p, blocks, axis_names=names, axis_index_groups=groups, split_axis=split, concat_axis=concat)
    front = moveaxis(blocks, split, 0)
    grid = reshape(front, (*map(bound_axis_size, names), *front.shape[1:]))
    for dim, name in enumerate(names):
        grid = bind(all_to_all_p, grid, axis_names=(name,), axis_index_groups=None, split_axis=dim, concat_axis=dim)
    return moveaxis(collapse(grid, 0, len(names)), 0, concat)


def pswapaxes(x: Any, axis_name: Any, axis: int, *, axis_index_groups: Any = None) -> Any:
    """Swap a named axis with the dimension `axis` of `x`, of the same size.

    See `all_to_all`.

    >>> vf.vmap(lambda row: vf.lax.pswapaxes(row, "i", 0), axis_name="i")(vf.numpy.array([[1, 2], [3, 4]]))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


# Positions, gathering and scattering: `axis_index`, `all_gather`, ….


def axis_size(axis_name: Any) -> int:
    """Return the number of positions along one or more named axes.

    >>> vf.vmap(lambda x: x * vf.lax.axis_size("i"), axis_name="i")(vf.numpy.ones(3))
    Array([3., 3., 3.], dtype=float32)
    """
    return bound_axis_size(axis_name)


# The position.


def _index_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names) -> tuple[Array, int | None]:
    if axis.name not in axis_names:
        return bind(axis_index_p, axis_names=axis_names), None
    return broadcasted_iota(np.int32, (axis.size,), 0), 0


axis_index_p = Primitive(
    "axis_index", lambda *, axis_names: ShapedArray((), np.dtype(np.int32)), evaluate=_process_index, jvp=zero_jvp, batch=_index_batch
)


def axis_index(axis_name: Any) -> Array:
    """Return the index of the current example or process along a named axis, as int32.

    Over several names it is row-major.

    >>> vf.vmap(lambda x: x + vf.lax.axis_index("i"), axis_name="i")(vf.numpy.zeros(3))
    Array([0., 1., 2.], dtype=float32)
    """
    index: Any = None
    for name in bound_axes(axis_name, with_steps=True):
        along_axis = name.index if isinstance(name, StepAxis) else bind(axis_index_p, axis_names=(name,))
        index = along_axis if index is None else index * bound_axis_size(name) + along_axis
    return index


# Gathering.


def _gather_batch(
    mapped: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis: int, **params: Any
) -> tuple[Array, int | None]:
    (value,), (dim,), groups, size = args, dims, params["axis_index_groups"], params["size"]
    if mapped.name not in params["axis_names"]:
        return bind(all_gather_p, moveaxis(value, dim or 0, 0), axis=axis + 1, **params), 0
    if groups is None:
        return moveaxis(broadcast(value, (size,)), 0, axis) if dim is None else moveaxis(value, dim, axis), None
    every = moveaxis(broadcast(to_groups(value, dim, mapped.size, groups), (size,)), 0, 1)
    return moveaxis(from_groups(every, groups), 1, axis + 1), 0


all_gather_p: Primitive = Primitive(
    "all_gather",
    lambda operand, *, axis, size, **params: operand.update(shape=(*operand.shape[:axis], size, *operand.shape[axis:])),
    evaluate=_gather,
    jvp=linear_jvp(),
    transpose=lambda ct, operand, **params: [bind(reduce_scatter_p, ct, **params)],
    batch=_gather_batch,
)


def all_gather(x: Any, axis_name: Any, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = False, to: str = "varying") -> Any:
    """Stack the values of `x`, a pytree, of all positions of a named axis.

    They are stacked along a new dimension `axis`, or joined along it if `tiled`. With `axis_index_groups`, lists of positions of one size,
    each gets those of its group. `to` says how JAX checks the result's type, and has no effect.

    >>> vf.vmap(lambda x: vf.lax.all_gather(x, "i").sum() - x, axis_name="i")(vf.numpy.array([1.0, 2.0]))
    Array([2., 1.], dtype=float32)
    """
    names = one_name(axis_name, "all_gather")
    groups = checked_groups(axis_index_groups, names, "all_gather")

    def gather(leaf: Any) -> Array:
        value = as_value(leaf)
        dim = canonical_axis(axis, value.ndim + (not tiled))
        out = bind(all_gather_p, value, axis_names=names, axis_index_groups=groups, axis=dim, size=group_size(names, groups))
        return collapse(out, dim, dim + 2) if tiled else out

    return tree.map(gather, x)


# Scattering.


def _scatter_batch(mapped: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis: int, **params: Any) -> tuple[Array, int]:
    (value,), (dim,), groups = args, dims, params["axis_index_groups"]
    if mapped.name not in params["axis_names"]:
        return bind(reduce_scatter_p, moveaxis(value, dim or 0, 0), axis=axis + 1, **params), 0
    total = reduce_sum(to_groups(value, dim, mapped.size, groups), (1,))
    return from_groups(moveaxis(total, axis + 1, 1), groups), 0


reduce_scatter_p: Primitive = Primitive(
    "reduce_scatter",
    lambda operand, *, axis, **params: operand.update(shape=(*operand.shape[:axis], *operand.shape[axis + 1 :])),
    evaluate=_scatter_sum,
    jvp=linear_jvp(),
    transpose=lambda ct, operand, **params: [bind(all_gather_p, ct, **params)],
    batch=_scatter_batch,
)


def psum_scatter(x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False) -> Any:
    """Sum `x` over all positions of a named axis and scatter the sum.

    Each keeps its own slice along `scatter_dimension`. That dimension has the size of the axis and is dropped; if `tiled` it is a multiple
    of it and each keeps a block. With `axis_index_groups`, lists of positions of one size, each group has a sum of its own.

    >>> vf.vmap(lambda row: vf.lax.psum_scatter(row, "i"), axis_name="i")(vf.numpy.array([[1, 2], [3, 4]]))
    Array([4, 6], dtype=int32)
    """
    names = one_name(axis_name, "psum_scatter")
    groups = checked_groups(axis_index_groups, names, "psum_scatter")
    size = group_size(names, groups)

    def scatter(leaf: Any) -> Array:
        value = as_value(leaf)
        dim = canonical_axis(scatter_dimension, value.ndim)
        blocks = in_blocks("psum_scatter", value, dim, size, tiled)
        return bind(reduce_scatter_p, blocks, axis_names=names, axis_index_groups=groups, axis=dim, size=size)

    return tree.map(scatter, x)


# Reductions over named axes: `psum`, `pmean`, `pmax`, `pmin`.

Reduce = Callable[[Array, Sequence[int]], Array]


def _batch_one(reduce: Reduce, axis: AxisData, value: Array, dim: int | None, groups: Groups) -> tuple[Array, int | None]:
    if groups is not None:
        reduced = reduce(to_groups(value, dim, axis.size, groups), (1,))
        return from_groups(moveaxis(broadcast(reduced, (len(groups[0]),)), 0, 1), groups), 0
    if dim is not None:
        return reduce(value, (dim,)), None
    if reduction_of(reduce.__name__).idempotent:
        return value, None
    return mul(value, as_value(np.asarray(axis.size).astype(value.dtype))), None  # the sum of equal examples


def _reduction(
    name: str, reduce: Reduce, evaluate: Callable[..., Any], jvp: Callable[..., Any] | RuleOf, transpose: Callable[..., Any] | None = None
) -> Primitive:
    def batch(
        axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names, axis_index_groups: Groups, **params: Any
    ) -> tuple[Sequence[Array], Sequence[int | None]]:
        if axis.name not in axis_names:
            return bind(primitive, *args, axis_names=axis_names, axis_index_groups=axis_index_groups, **params), dims
        rest = tuple([n for n in axis_names if n != axis.name])
        pairs = [_batch_one(reduce, axis, _sent(value, params), dim, axis_index_groups) for value, dim in zip(args, dims, strict=True)]
        values, out_dims = [_sent(v, params) for v, _ in pairs], [d for _, d in pairs]
        return (bind(primitive, *values, axis_names=rest, axis_index_groups=None, **params) if rest else values), out_dims

    abstract = lambda *operands, **params: operands  # noqa: E731
    primitive = Primitive(name, abstract, multiple_results=True, evaluate=evaluate, jvp=jvp, transpose=transpose, batch=batch)
    return primitive


def _sent(value: Array, params: dict[str, Any]) -> Array:
    """Round the parts of a sum to bfloat16 for sending."""
    if params.get("compression") is None:
        return value
    return convert_element_type(convert_element_type(value, dtypes.as_dtype("bfloat16")), value.dtype)


def _sum_jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Array], list[Any]]:
    outs = bind(psum_p, *primals, **params)
    some = [t for t in tangents if type(t) is not Zero]
    totals = iter(bind(psum_p, *some, **params) if some else ())
    return outs, [Zero(o.aval.tangent_aval()) if type(t) is Zero else next(totals) for o, t in zip(outs, tangents, strict=True)]


def _sum_transpose(cts: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    some = [i for i, ct in enumerate(cts) if type(operands[i]) is Linear and type(ct) is not Zero]
    totals = iter(bind(psum_p, *[cts[i] for i in some], **params) if some else ())
    return [next(totals) if i in some else None for i in range(len(cts))]


psum_p = _reduction("psum", reduce_sum, _sum_processes, _sum_jvp, _sum_transpose)
_EXTREME_JVP = no_derivative("{primitive} has no derivative; use all_gather and volta_fn.numpy.max or min")
pmax_p = _reduction("pmax", reduce_max, partial(_reduce_extreme, step="max"), _EXTREME_JVP)
pmin_p = _reduction("pmin", reduce_min, partial(_reduce_extreme, step="min"), _EXTREME_JVP)


# A sum between processes in two steps, between which the program goes on (placed by compiler/passes/dce.py).

psum_start_p = Primitive(
    "psum_start",
    lambda *operands, axis_names, axis_index_groups, compression: ShapedArray((), np.dtype(np.int32)),
    evaluate=_start_sum,
    listed=False,
)
psum_done_p = Primitive(
    "psum_done", lambda ticket, *, result_avals: result_avals, evaluate=_finish_sum, multiple_results=True, listed=False
)

# A sum between processes, or some operands of one, that devices compute among each other when its operands are there. Operands may have
# narrower dtypes than their sums: they are converted after they have travelled.

psum_bucket_p = Primitive(
    "psum_bucket",
    lambda *operands, dtypes, **params: [aval.update(dtype=dtype) for aval, dtype in zip(operands, dtypes, strict=True)],
    evaluate=_sum_bucket,
    multiple_results=True,
    listed=False,
)


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Return the sum of `x`, a pytree, over all positions of one or more named axes.

    Booleans are counted, in int32. A Python number gives that many times itself, without an operation. `axis_index_groups` are lists of
    positions, of one size, which have sums of their own. All arrays of `x` travel in one call. Raises `ArgumentError` if the name is not
    bound by a surrounding `vmap` or `shard_map`.

    >>> vf.vmap(lambda x: x / vf.lax.psum(x, "i"), axis_name="i")(vf.numpy.array([1.0, 3.0]))
    Array([0.25, 0.75], dtype=float32)
    """
    return sum_of(x, axis_name, axis_index_groups, None)


def sum_of(x: Any, axis_name: Any, axis_index_groups: Any, compression: str | None) -> Any:
    """Sum as `psum` does, with `compression` of float32 arrays or without."""
    check_option(compression, "psum: compression", (None, "bfloat16"))
    names = bound_axes(axis_name)
    groups = checked_groups(axis_index_groups, names, "psum")
    leaves, structure = tree.flatten(x)
    size = group_size(names, groups)
    outs = [leaf * size if isinstance(leaf, (int, float, complex)) else None for leaf in leaves]
    arrays = {i: as_value(leaf) for i, leaf in enumerate(leaves) if outs[i] is None}
    arrays = {i: convert_element_type(v, np.int32) if v.dtype in dtypes.BOOL else v for i, v in arrays.items()}
    short = [i for i, v in arrays.items() if compression and v.dtype == np.float32]
    if compression and len(short) < len([v for v in arrays.values() if v.dtype in dtypes.INEXACT]):
        kinds = sorted({v.dtype.name for v in arrays.values()} - {"float32"})
        raise DTypeError(f"psum: only float32 travels as bfloat16, got {kinds}; sum the others without compression")
    for positions, sum_compression in ((short, compression), ([i for i in arrays if i not in short], None)):
        if positions:
            totals = bind(psum_p, *[arrays[i] for i in positions], axis_names=names, axis_index_groups=groups, compression=sum_compression)
            for i, total in zip(positions, totals, strict=True):
                outs[i] = total
    return tree.unflatten(structure, outs)


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Return the mean of `x`, a pytree, over all positions of a named axis.

    `axis_index_groups` are those of `psum`.

    >>> vf.vmap(lambda x: vf.lax.pmean(x, "i"), axis_name="i")(vf.numpy.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)
    """
    total = psum(tree.map(as_value, x), axis_name, axis_index_groups=axis_index_groups)
    names = bound_axes(axis_name)
    size = group_size(names, checked_groups(axis_index_groups, names, "pmean"))
    return tree.map(lambda leaf: leaf / size, total)


def _extreme(primitive: Primitive, x: Any, axis_name: Any, axis_index_groups: Any) -> Any:
    names = bound_axes(axis_name)
    groups = checked_groups(axis_index_groups, names, primitive.name)
    leaves, structure = tree.flatten(x)
    if not leaves:
        return x
    return tree.unflatten(structure, bind(primitive, *map(as_value, leaves), axis_names=names, axis_index_groups=groups))


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Return the maximum of `x`, a pytree, over all positions of a named axis.

    It is not differentiable. `axis_index_groups` are those of `psum`.

    >>> vf.vmap(lambda x: vf.lax.pmax(x, "i"), axis_name="i")(vf.numpy.array([1, 3, 2]))
    Array([3, 3, 3], dtype=int32)
    """
    return _extreme(pmax_p, x, axis_name, axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Return the minimum of `x`, a pytree, over all positions of a named axis.

    It is not differentiable. `axis_index_groups` are those of `psum`.

    >>> vf.vmap(lambda x: vf.lax.pmin(x, "i"), axis_name="i")(vf.numpy.array([2, 1, 3]))
    Array([1, 1, 1], dtype=int32)
    """
    return _extreme(pmin_p, x, axis_name, axis_index_groups)


# The border of a program on several processes, which derivatives see.
#
# Inside, a cotangent is that of a process's own value. Outside, a value that does not vary along an axis is one value, with one
# cotangent: the sum of those of all processes. So `pcast` does nothing to values, but its transpose adds or shares out cotangents.


def _transpose(ct: Array, operand: Linear, *, axis_names: Names, to: str) -> list[Array]:
    if to == "varying":
        return list(bind(psum_p, ct, axis_names=axis_names, axis_index_groups=None, compression=None))
    return [div(ct, as_value(np.asarray(bound_axis_size(axis_names)).astype(ct.dtype)))]


pcast_p: Primitive = Primitive(
    "pcast",
    lambda operand, *, axis_names, to: operand,
    evaluate=lambda operand, *, axis_names, to: operand,
    views=True,
    jvp=linear_jvp(),
    transpose=_transpose,
    batch=lambda axis, args, dims, **params: (bind(pcast_p, *args, **params), dims[0]),
)


def border_cast(x: Array, axes: Names, to: str) -> Array:
    """Mark a value as "varying", on entering, or "replicated", on leaving."""
    return bind(pcast_p, x, axis_names=axes, to=to) if axes else x


# The border of a program on several devices of one process. Outside, all devices have all elements of a value; inside, each its shard.

#: For each dimension, the axes that split it.
Split = tuple[tuple[ProcessAxis, ...], ...]


def _shard_shape(operand: ShapedArray, *, axis_names: Names, split: Split) -> ShapedArray:
    sizes = [size // bound_axis_size(axes) for size, axes in zip(operand.shape, split, strict=True)]
    return operand.update(shape=tuple(sizes))


def _whole_shape(operand: ShapedArray, *, axis_names: Names, split: Split) -> ShapedArray:
    return operand.update(shape=tuple([size * bound_axis_size(axes) for size, axes in zip(operand.shape, split, strict=True)]))


def _shard(avals: Sequence[ShapedArray], params: dict[str, Any]) -> ClosedJaxpr:
    shape = _shard_shape(*avals, **params).shape

    def program(operand: Array) -> list[Array]:
        starts = [axis_index(axes) * size if axes else 0 for axes, size in zip(params["split"], shape, strict=True)]
        return [dynamic_slice(operand, starts, shape, allow_negative_indices=False)]

    return trace_to_jaxpr(program, avals, "shard")


def _whole(avals: Sequence[ShapedArray], params: dict[str, Any]) -> ClosedJaxpr:
    def program(shard: Array) -> list[Array]:
        for dimension, axes in enumerate(params["split"]):
            for axis in reversed(axes):
                shard = all_gather(shard, axis, axis=dimension, tiled=True)
        return [shard]

    return trace_to_jaxpr(program, avals, "whole")


def _border_batch(primitive: Primitive) -> Callable[..., tuple[Array, int | None]]:
    def batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names, split: Split) -> tuple[Array, int]:
        return bind(primitive, *stacked_in_front(axis, args, dims), axis_names=axis_names, split=((), *split)), 0

    return batch


#: The shard of a value that all devices have, and the value of shards. Each is the other's transpose. Where an argument or a result of the
#: program is a shard already, the compiler drops them (compiler/passes/shards.py).
shard_p: Primitive = Primitive(
    "shard", _shard_shape, expand=_shard, jvp=linear_jvp(), batch=RuleOf(_border_batch), listed=False,
    transpose=lambda ct, operand, **params: [bind(whole_p, ct, **params)],
)  # fmt: skip
whole_p: Primitive = Primitive(
    "whole", _whole_shape, expand=_whole, jvp=linear_jvp(), batch=RuleOf(_border_batch), listed=False,
    transpose=lambda ct, operand, **params: [bind(shard_p, ct, **params)],
)  # fmt: skip


def shard_of(x: Array, split: Split) -> Array:
    """Return a device's shard of a value that all have."""
    axes = tuple([axis for axes in split for axis in axes])
    result: Array = bind(shard_p, x, axis_names=axes, split=split) if axes else x
    return result


def whole_of(x: Array, split: Split) -> Array:
    """Return the value of which each device has a shard."""
    axes = tuple([axis for axes in split for axis in axes])
    result: Array = bind(whole_p, x, axis_names=axes, split=split) if axes else x
    return result


# Casts between types that vary along named axes and types that do not.


def pcast(x: Any, axis_name: Any, *, to: str) -> Any:
    """Cast a pytree of values to types that vary along named axes.

    Values stay as they are: along axes of a `vmap` or of this process's devices, types need not say it. Along axes of processes,
    cotangents are summed over the positions.

    Raises `ArgumentError` unless `to` is "varying", and `AxisNameError` for a name that is not bound.

    >>> vf.vmap(lambda row: vf.lax.pcast(row, "i", to="varying"), axis_name="i")(vf.numpy.arange(2))
    Array([0, 1], dtype=int32)
    """
    if to != "varying":
        raise ArgumentError(f"pcast: values can be cast to 'varying' only, got to={to!r}; sums over positions are lax.psum's")
    processes = tuple([axis for axis in bound_axes(axis_name) if isinstance(axis, ProcessAxis)])
    return tree.map(lambda leaf: border_cast(as_value(leaf), processes, to), x)


def pvary(x: Any, axis_name: Any) -> Any:
    """Cast a pytree of values to vary along named axes: `pcast` to "varying".

    >>> vf.vmap(lambda row: vf.lax.pvary(row, "i"), axis_name="i")(vf.numpy.arange(2))
    Array([0, 1], dtype=int32)
    """
    return pcast(x, axis_name, to="varying")
