"""Collectives: operations across the examples of a `vmap` with a named axis.

They are resolved where that axis is mapped.

Each primitive's ``axis_names`` says which named axes it speaks of. A `vmap` over one of them rewrites the operation as one along the
stacked dimension, after which the result is the same for every example of that axis, or belongs to it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core import axes as named_axes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero, reduction_of
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, GradientError, ShapeError
from volta_fn.primitives.arithmetic import mul
from volta_fn.primitives.cast import convert_element_type
from volta_fn.primitives.dynamic_slicing import dynamic_index_in_dim
from volta_fn.primitives.joining import concatenate
from volta_fn.primitives.movement import broadcast, broadcasted_iota, canonical_axis, moveaxis, reshape
from volta_fn.primitives.reduction import reduce_max, reduce_min, reduce_sum
from volta_fn.primitives.shorthand import collapse
from volta_fn.primitives.slicing import index_in_dim

Names = tuple[Any, ...]


def _as_names(axis_name: Any) -> Names:
    """Return the bound names; raise `ArgumentError` if one is not bound."""
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    for name in names:
        named_axes.axis_size(name)
    return names


def _one_name(axis_name: Any, collective: str) -> Names:
    names = _as_names(axis_name)
    if len(names) != 1:
        raise ArgumentError(f"{collective} takes one axis name, got {names}; call it once per axis")
    return names


def axis_size(axis_name: Any) -> int:
    """Return the number of examples along one or more named axes.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: x * vf.lax.axis_size("i"), axis_name="i")(vf.numpy.ones(3))
    Array([3., 3., 3.], dtype=float32)
    """
    size = 1
    for name in _as_names(axis_name):
        size *= named_axes.axis_size(name)
    return size


# Reductions over an axis.


def _reduction(name: str, reduce: Callable[[Array, Sequence[int]], Array]) -> Primitive:
    idempotent = reduction_of(reduce.__name__).idempotent  # if not, it is a sum: that of n equal examples is n times as much

    def batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names) -> tuple[Array, int | None]:
        (value,), (dim,) = args, dims
        if axis.name not in axis_names:
            return bind(primitive, value, axis_names=axis_names), dim
        if dim is not None:
            reduced = reduce(value, (dim,))
        else:
            reduced = value if idempotent else mul(value, as_value(np.asarray(axis.size).astype(value.dtype)))
        rest = tuple([n for n in axis_names if n != axis.name])
        return (bind(primitive, reduced, axis_names=rest) if rest else reduced), None

    primitive = Primitive(name, lambda operand, *, axis_names: operand, batch=batch)
    return primitive


psum_p = _reduction("psum", reduce_sum)
pmax_p = _reduction("pmax", reduce_max)
pmin_p = _reduction("pmin", reduce_min)


def _linear_jvp(primitive: Primitive) -> Callable[..., Any]:
    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
        out = bind(primitive, *primals, **params)
        (tangent,) = tangents
        return out, Zero(out.aval.at_least_vspace()) if type(tangent) is Zero else bind(primitive, tangent, **params)

    return jvp


def _no_jvp(primitive: Primitive) -> Callable[..., Any]:
    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
        if type(tangents[0]) is not Zero:
            raise GradientError(f"{primitive} has no derivative; use all_gather and volta_fn.numpy.max or min")
        out = bind(primitive, *primals, **params)
        return out, Zero(out.aval.at_least_vspace())

    return jvp


psum_p.jvp = _linear_jvp(psum_p)
psum_p.transpose = lambda ct, operand, *, axis_names: [bind(psum_p, ct, axis_names=axis_names)]
pmax_p.jvp = _no_jvp(pmax_p)
pmin_p.jvp = _no_jvp(pmin_p)


def psum(x: Any, axis_name: Any) -> Any:
    """Return the sum of `x`, a pytree, over all examples of one or more named axes.

    Booleans are counted, in int32.

    A Python number gives that many times itself, without an operation.
    Raises `ArgumentError` if the name is not bound by a surrounding `vmap`.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: x / vf.lax.psum(x, "i"), axis_name="i")(vf.numpy.array([1.0, 3.0]))
    Array([0.25, 0.75], dtype=float32)
    """
    names = _as_names(axis_name)

    def total(leaf: Any) -> Any:
        if isinstance(leaf, (int, float, complex)):
            return leaf * axis_size(names)
        value = as_value(leaf)
        return bind(psum_p, convert_element_type(value, np.int32) if value.dtype in dtypes.BOOL else value, axis_names=names)

    return tree.map(total, x)


def pmean(x: Any, axis_name: Any) -> Any:
    """Return the mean of `x`, a pytree, over all examples of a named axis.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.pmean(x, "i"), axis_name="i")(vf.numpy.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)
    """
    size = axis_size(axis_name)
    return tree.map(lambda total: total / size, psum(tree.map(as_value, x), axis_name))


def pmax(x: Any, axis_name: Any) -> Any:
    """Return the maximum of `x`, a pytree, over all examples of a named axis.

    It is not differentiable.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.pmax(x, "i"), axis_name="i")(vf.numpy.array([1, 3, 2]))
    Array([3, 3, 3], dtype=int32)
    """
    names = _as_names(axis_name)
    return tree.map(lambda leaf: bind(pmax_p, as_value(leaf), axis_names=names), x)


def pmin(x: Any, axis_name: Any) -> Any:
    """Return the minimum of `x`, a pytree, over all examples of a named axis.

    It is not differentiable.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.pmin(x, "i"), axis_name="i")(vf.numpy.array([2, 1, 3]))
    Array([1, 1, 1], dtype=int32)
    """
    names = _as_names(axis_name)
    return tree.map(lambda leaf: bind(pmin_p, as_value(leaf), axis_names=names), x)


# The example's own number.


def _index_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names) -> tuple[Array, int | None]:
    if axis.name not in axis_names:
        return bind(axis_index_p, axis_names=axis_names), None
    return broadcasted_iota(np.int32, (axis.size,), 0), 0


def _index_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, axis_names: Names) -> tuple[Array, Any]:
    out = bind(axis_index_p, axis_names=axis_names)
    return out, Zero(out.aval.at_least_vspace())


axis_index_p = Primitive("axis_index", lambda *, axis_names: ShapedArray((), np.dtype(np.int32)), jvp=_index_jvp, batch=_index_batch)


def axis_index(axis_name: Any) -> Array:
    """Return the index of the current example along a named axis, as int32.

    Over several names it is row-major.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: x + vf.lax.axis_index("i"), axis_name="i")(vf.numpy.zeros(3))
    Array([0., 1., 2.], dtype=float32)
    """
    index: Any = None
    for name in _as_names(axis_name):
        own = bind(axis_index_p, axis_names=(name,))
        index = own if index is None else index * axis_size(name) + own
    return index


# Moving values between examples.


def _gather_abstract(operand: ShapedArray, *, axis_names: Names, axis: int, size: int) -> ShapedArray:
    return operand.update(shape=(*operand.shape[:axis], size, *operand.shape[axis:]))


def _gather_batch(
    mapped: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names, axis: int, size: int
) -> tuple[Array, int | None]:
    (value,), (dim,) = args, dims
    if mapped.name in axis_names:
        return moveaxis(broadcast(value, (size,)), 0, axis) if dim is None else moveaxis(value, dim, axis), None
    front = moveaxis(value, dim or 0, 0)
    return bind(all_gather_p, front, axis_names=axis_names, axis=axis + 1, size=size), 0


def _gather_transpose(ct: Array, operand: Linear, *, axis_names: Names, axis: int, size: int) -> list[Array]:
    total = bind(psum_p, ct, axis_names=axis_names)
    return [dynamic_index_in_dim(total, axis_index(axis_names), axis, keepdims=False)]


all_gather_p = Primitive("all_gather", _gather_abstract, batch=_gather_batch, transpose=_gather_transpose)
all_gather_p.jvp = _linear_jvp(all_gather_p)


def all_gather(x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Any:
    """Stack the values of `x`, a pytree, of all examples of a named axis.

    They are stacked along a new dimension `axis`, or joined along it if `tiled`.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.all_gather(x, "i").sum() - x, axis_name="i")(vf.numpy.array([1.0, 2.0]))
    Array([2., 1.], dtype=float32)
    """
    names = _one_name(axis_name, "all_gather")

    def gather(leaf: Any) -> Array:
        value = as_value(leaf)
        dim = canonical_axis(axis, value.ndim + (not tiled))
        out = bind(all_gather_p, value, axis_names=names, axis=dim, size=axis_size(names))
        return collapse(out, dim, dim + 2) if tiled else out

    return tree.map(gather, x)


def psum_scatter(x: Any, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False) -> Any:
    """Sum `x` over all examples of a named axis and scatter the sum.

    Each example keeps its own slice along `scatter_dimension`.

    That dimension has the size of the axis and is dropped; if `tiled` it is a multiple of it and each keeps a block.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda row: vf.lax.psum_scatter(row, "i"), axis_name="i")(vf.numpy.array([[1, 2], [3, 4]]))
    Array([4, 6], dtype=int32)
    """
    size = axis_size(axis_name)

    def scatter(leaf: Any) -> Array:
        total = bind(psum_p, as_value(leaf), axis_names=_as_names(axis_name))
        dim = canonical_axis(scatter_dimension, total.ndim)
        blocks = _in_blocks("psum_scatter", total, dim, size, tiled)
        return dynamic_index_in_dim(blocks, axis_index(axis_name), dim, keepdims=False)

    return tree.map(scatter, x)


def _in_blocks(collective: str, value: Array, dim: int, size: int, tiled: bool) -> Array:
    """Split `dim` of `value` into a dimension of `size` blocks and their elements.

    If not `tiled`, `dim` is the dimension of blocks itself.
    """
    before, count, after = value.shape[:dim], value.shape[dim], value.shape[dim + 1 :]
    if not tiled and count != size:
        raise ShapeError(f"{collective}: dimension {dim} of shape {value.shape} must have the axis's size {size} (or be tiled)")
    if count % size:
        raise ShapeError(f"{collective}: dimension {dim} of shape {value.shape} does not divide among {size} examples")
    return reshape(value, (*before, size, count // size, *after)) if tiled else value


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


def _permute_transpose(ct: Array, operand: Linear, *, axis_names: Names, perm: Permutation) -> list[Array]:
    return [bind(ppermute_p, ct, axis_names=axis_names, perm=tuple([(target, source) for source, target in perm]))]


ppermute_p = Primitive("ppermute", lambda operand, *, axis_names, perm: operand, batch=_permute_batch, transpose=_permute_transpose)
ppermute_p.jvp = _linear_jvp(ppermute_p)


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Send `x`, a pytree, between examples by (source, target) pairs.

    Examples that receive nothing get zeros.

    Raises `ArgumentError` if a source or target occurs twice or does not exist.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.ppermute(x, "i", [(0, 1), (1, 0)]), axis_name="i")(vf.numpy.array([1.0, 2.0]))
    Array([2., 1.], dtype=float32)
    """
    names = _one_name(axis_name, "ppermute")
    pairs = tuple([(int(source), int(target)) for source, target in perm])
    for side in zip(*pairs, strict=True) if pairs else ():
        if len(set(side)) != len(side) or not all(0 <= i < axis_size(names) for i in side):
            raise ArgumentError(f"ppermute: {pairs} must name each of {axis_size(names)} examples at most once as source and as target")
    return tree.map(lambda leaf: bind(ppermute_p, as_value(leaf), axis_names=names, perm=pairs), x)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Permute `x`, a pytree, over the examples of a named axis.

    Example i gets the value of example ``perm[i]``.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(vf.numpy.array([10, 11, 12]))
    Array([12, 10, 11], dtype=int32)
    """
    if sorted(perm) != list(range(axis_size(axis_name))):
        raise ArgumentError(f"pshuffle: {tuple(perm)} does not permute {axis_size(axis_name)} examples")
    return ppermute(x, axis_name, [(source, target) for target, source in enumerate(perm)])


def _exchange_abstract(operand: ShapedArray, *, axis_names: Names, split_axis: int, concat_axis: int) -> ShapedArray:
    shape = list(operand.shape)
    size = shape.pop(split_axis)
    shape.insert(concat_axis, size)
    return operand.update(shape=tuple(shape))


def _exchange_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names, split_axis: int, concat_axis: int
) -> tuple[Array, int]:
    (value,), (dim,) = args, dims
    front = broadcast(value, (axis.size,)) if dim is None else moveaxis(value, dim, 0)
    if axis.name not in axis_names:
        return bind(all_to_all_p, front, axis_names=axis_names, split_axis=split_axis + 1, concat_axis=concat_axis + 1), 0
    # Example i's block j becomes example j's block i: the stacked dimension and the split one change roles.
    by_target = moveaxis(front, split_axis + 1, 0)
    return moveaxis(by_target, 1, concat_axis + 1), 0


def _exchange_transpose(ct: Array, operand: Linear, *, axis_names: Names, split_axis: int, concat_axis: int) -> list[Array]:
    return [bind(all_to_all_p, ct, axis_names=axis_names, split_axis=concat_axis, concat_axis=split_axis)]


all_to_all_p = Primitive("all_to_all", _exchange_abstract, batch=_exchange_batch, transpose=_exchange_transpose)
all_to_all_p.jvp = _linear_jvp(all_to_all_p)


def all_to_all(x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, tiled: bool = False) -> Any:
    """Exchange slices of `x`, a pytree, between all examples of a named axis.

    `x` is split along `split_axis` into a slice per example; slice j goes to example j, and what arrives is joined along `concat_axis`.

    A leaf's `split_axis` is as long as the named axis and is dropped, and what arrives is stacked along a new dimension `concat_axis`.
    If `tiled` it is a multiple of that, each example has a block of it, and what arrives is joined along the dimension `concat_axis`
    that leaves have. Several names count as one axis, the last varying fastest. The derivative sends cotangents back. Raises
    `ShapeError` if `split_axis` does not divide so, `ArgumentError` if the name is not bound by a surrounding `vmap`.

    >>> import volta_fn as vf
    >>> x = vf.numpy.arange(4.0).reshape(2, 2)
    >>> vf.vmap(lambda row: vf.lax.all_to_all(row, "i", 0, 0), axis_name="i")(x)
    Array([[0., 2.],
           [1., 3.]], dtype=float32)
    >>> vf.vmap(lambda row: vf.lax.all_to_all(row[None], "i", 1, 0, tiled=True), axis_name="i")(x).shape
    (2, 2, 1)
    """
    names = _as_names(axis_name)
    if len(set(names)) != len(names):
        raise ArgumentError(f"all_to_all: {names} names an axis twice")

    def exchange(leaf: Any) -> Array:
        value = as_value(leaf)
        split, concat = canonical_axis(split_axis, value.ndim), canonical_axis(concat_axis, value.ndim)
        blocks = _in_blocks("all_to_all", value, split, axis_size(names), tiled)
        arrived = _exchange(blocks, names, split, concat)
        return collapse(arrived, concat, concat + 2) if tiled else arrived

    return tree.map(exchange, x)


def _exchange(blocks: Array, names: Names, split: int, concat: int) -> Array:
    """Send the blocks along `split` over all named axes, the last one varying fastest."""
    if len(names) == 1:
        return bind(all_to_all_p, blocks, axis_names=names, split_axis=split, concat_axis=concat)
    front = moveaxis(blocks, split, 0)
    grid = reshape(front, (*map(axis_size, names), *front.shape[1:]))
    for dim, name in enumerate(names):
        grid = bind(all_to_all_p, grid, axis_names=(name,), split_axis=dim, concat_axis=dim)
    return moveaxis(collapse(grid, 0, len(names)), 0, concat)


def pswapaxes(x: Any, axis_name: Any, axis: int) -> Any:
    """Swap a named axis with the dimension `axis` of `x`, of the same size.

    See `all_to_all`.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda row: vf.lax.pswapaxes(row, "i", 0), axis_name="i")(vf.numpy.array([[1, 2], [3, 4]]))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis)
