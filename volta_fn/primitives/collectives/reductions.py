"""Reductions over named axes: `psum`, `pmean`, `pmax`, `pmin`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.axes import bound_axes
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero, reduction_of
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, DTypeError, GradientError
from volta_fn.primitives.collectives import on_host
from volta_fn.primitives.collectives.groups import Groups, Names, checked_groups, from_groups, group_size, to_groups
from volta_fn.primitives.data_movement.movement import broadcast, moveaxis
from volta_fn.primitives.elementwise.arithmetic import mul
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.reduction import reduce_max, reduce_min, reduce_sum

Reduce = Callable[[Array, Sequence[int]], Array]


def _batch_one(reduce: Reduce, axis: AxisData, value: Array, dim: int | None, groups: Groups) -> tuple[Array, int | None]:
    """Reduce one operand over a mapped axis."""
    if groups is not None:
        reduced = reduce(to_groups(value, dim, axis.size, groups), (1,))
        return from_groups(moveaxis(broadcast(reduced, (len(groups[0]),)), 0, 1), groups), 0
    if dim is not None:
        return reduce(value, (dim,)), None
    if reduction_of(reduce.__name__).idempotent:
        return value, None
    return mul(value, as_value(np.asarray(axis.size).astype(value.dtype))), None  # the sum of equal examples


def _reduction(name: str, reduce: Reduce) -> Primitive:
    def batch(
        axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axis_names: Names, axis_index_groups: Groups, **params: Any
    ) -> tuple[Sequence[Array], Sequence[int | None]]:
        if axis.name not in axis_names:
            return bind(primitive, *args, axis_names=axis_names, axis_index_groups=axis_index_groups, **params), dims
        rest = tuple([n for n in axis_names if n != axis.name])
        pairs = [_batch_one(reduce, axis, _sent(value, params), dim, axis_index_groups) for value, dim in zip(args, dims, strict=True)]
        values, out_dims = [_sent(v, params) for v, _ in pairs], [d for _, d in pairs]
        return (bind(primitive, *values, axis_names=rest, axis_index_groups=None, **params) if rest else values), out_dims

    primitive = Primitive(name, lambda *operands, **params: operands, multiple_results=True, batch=batch)
    return primitive


def _sent(value: Array, params: dict[str, Any]) -> Array:
    """Round what travels as bfloat16."""
    if params.get("compression") is None:
        return value
    return convert_element_type(convert_element_type(value, dtypes.as_dtype("bfloat16")), value.dtype)


psum_p = _reduction("psum", reduce_sum)
pmax_p = _reduction("pmax", reduce_max)
pmin_p = _reduction("pmin", reduce_min)
psum_p.evaluate = on_host.psum
pmax_p.evaluate = partial(on_host.extreme, step="max")
pmin_p.evaluate = partial(on_host.extreme, step="min")


def _sum_jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Array], list[Any]]:
    outs = bind(psum_p, *primals, **params)
    some = [t for t in tangents if type(t) is not Zero]
    totals = iter(bind(psum_p, *some, **params) if some else ())
    return outs, [Zero(o.aval.at_least_vspace()) if type(t) is Zero else next(totals) for o, t in zip(outs, tangents, strict=True)]


def _sum_transpose(cts: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    some = [i for i, ct in enumerate(cts) if type(operands[i]) is Linear and type(ct) is not Zero]
    totals = iter(bind(psum_p, *[cts[i] for i in some], **params) if some else ())
    return [next(totals) if i in some else None for i in range(len(cts))]


def _no_jvp(primitive: Primitive) -> Callable[..., Any]:
    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Array], list[Any]]:
        if any(type(t) is not Zero for t in tangents):
            raise GradientError(f"{primitive} has no derivative; use all_gather and volta_fn.numpy.max or min")
        outs = bind(primitive, *primals, **params)
        return outs, [Zero(o.aval.at_least_vspace()) for o in outs]

    return jvp


psum_p.jvp, psum_p.transpose = _sum_jvp, _sum_transpose
pmax_p.jvp, pmin_p.jvp = _no_jvp(pmax_p), _no_jvp(pmin_p)


# A sum between processes in two steps, between which the program goes on (placed by compiler/passes/overlap.py).

psum_start_p = Primitive(
    "psum_start",
    lambda *operands, axis_names, axis_index_groups, compression: ShapedArray((), np.dtype(np.int32)),
    evaluate=on_host.psum_start,
    listed=False,
)
psum_done_p = Primitive(
    "psum_done", lambda ticket, *, result_avals: result_avals, evaluate=on_host.psum_done, multiple_results=True, listed=False
)


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Return the sum of `x`, a pytree, over all positions of one or more named axes.

    Booleans are counted, in int32.

    A Python number gives that many times itself, without an operation. `axis_index_groups` are lists of positions, of one size, which
    have sums of their own. All arrays of `x` travel in one call.
    Raises `ArgumentError` if the name is not bound by a surrounding `vmap` or `shard_map`.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: x / vf.lax.psum(x, "i"), axis_name="i")(vf.numpy.array([1.0, 3.0]))
    Array([0.25, 0.75], dtype=float32)
    """
    return sum_of(x, axis_name, axis_index_groups, None)


def sum_of(x: Any, axis_name: Any, axis_index_groups: Any, compression: str | None) -> Any:
    """Do what `psum` does, with `compression` of float32 arrays or without."""
    if compression not in (None, "bfloat16"):
        raise ArgumentError(f'psum: compression is None or "bfloat16", got {compression!r}')
    names = bound_axes(axis_name)
    groups = checked_groups(axis_index_groups, names, "psum")
    leaves, structure = tree.flatten(x)
    size = group_size(names, groups)
    outs = [leaf * size if isinstance(leaf, (int, float, complex)) else None for leaf in leaves]
    found = {i: _counted(as_value(leaf)) for i, leaf in enumerate(leaves) if outs[i] is None}
    short = [i for i, v in found.items() if compression and v.dtype == np.float32]
    if compression and len(short) < len([v for v in found.values() if v.dtype in dtypes.INEXACT]):
        kinds = sorted({v.dtype.name for v in found.values()} - {"float32"})
        raise DTypeError(f"psum: only float32 travels as bfloat16, got {kinds}; sum the others without compression")
    for positions, how in ((short, compression), ([i for i in found if i not in short], None)):
        if positions:
            totals = bind(psum_p, *[found[i] for i in positions], axis_names=names, axis_index_groups=groups, compression=how)
            for i, total in zip(positions, totals, strict=True):
                outs[i] = total
    return tree.unflatten(structure, outs)


def _counted(value: Array) -> Array:
    return convert_element_type(value, np.int32) if value.dtype in dtypes.BOOL else value


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Return the mean of `x`, a pytree, over all positions of a named axis.

    `axis_index_groups` are those of `psum`.

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.pmax(x, "i"), axis_name="i")(vf.numpy.array([1, 3, 2]))
    Array([3, 3, 3], dtype=int32)
    """
    return _extreme(pmax_p, x, axis_name, axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Return the minimum of `x`, a pytree, over all positions of a named axis.

    It is not differentiable. `axis_index_groups` are those of `psum`.

    >>> import volta_fn as vf
    >>> vf.vmap(lambda x: vf.lax.pmin(x, "i"), axis_name="i")(vf.numpy.array([2, 1, 3]))
    Array([1, 1, 1], dtype=int32)
    """
    return _extreme(pmin_p, x, axis_name, axis_index_groups)
