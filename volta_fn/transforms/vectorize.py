"""`vmap` on functions of pytrees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.flatten import FlatFunction, check_callable, function_name
from volta_fn.core.primitive import AxisData
from volta_fn.errors import ArgumentError, ShapeError, VoltaError
from volta_fn.transforms.vmap import stack_at, vmap_flat


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
) -> Callable[..., Any]:
    """A function that applies `fun` to every example along an axis of its arguments, as one program.

    Args:
        fun: a function of pytrees of arrays, written for one example.
        in_axes: the mapped axis of each positional argument: an int, None (the same for all examples, and then it may be anything), or
            a tuple or list of them, one per argument, each possibly a pytree that is a prefix of the argument's. Keyword arguments map
            axis 0.
        out_axes: where the mapped axis goes in the results, likewise.
        axis_name: a name by which collectives (`lax.psum`, …) in `fun` refer to the axis.
        axis_size: the number of examples, needed only if nothing is mapped.

    Raises:
        ShapeError: the mapped axes differ in size, or an argument lacks the axis.
        TreeError: in_axes or out_axes do not fit the arguments or results.

    >>> import volta_fn as vf
    >>> x = vf.numpy.arange(6.0).reshape(2, 3)
    >>> vf.vmap(lambda row: row.sum())(x)
    Array([ 3., 12.], dtype=float32)
    """
    check_callable(fun, "vmap")
    axes_in = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    @functools.wraps(fun)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        if isinstance(axes_in, tuple) and len(axes_in) != len(args):
            raise ArgumentError(
                f"vmap of {function_name(fun)}: in_axes has {len(axes_in)} entries, but the call has {len(args)} positional arguments"
            )
        prefix = (axes_in, dict.fromkeys(kwargs, 0))
        dims_given = tree.broadcast_prefix(prefix, (args, kwargs), is_leaf=lambda x: x is None)
        values = [_operand(x, d) for x, d in zip(leaves, dims_given, strict=True)]
        dims = [_dimension(d, v, "in_axes") for d, v in zip(dims_given, values, strict=True)]
        size = _axis_size(values, dims, axis_size, function_name(fun))
        flat = FlatFunction(fun, in_tree)
        outs, out_dims = vmap_flat(flat, AxisData(axis_name, size), values, dims, function_name(fun))
        results = tree.unflatten(flat.out_tree, outs)
        targets = tree.broadcast_prefix(out_axes, results, is_leaf=lambda x: x is None)
        stacked = [_place(o, d, t, size, function_name(fun)) for o, d, t in zip(outs, out_dims, targets, strict=True)]
        return tree.unflatten(flat.out_tree, stacked)

    return mapped


def _operand(value: Any, dim: Any) -> Any:
    """An argument's leaf as an array; one that is the same for all examples may be anything."""
    try:
        return as_value(value)
    except VoltaError:
        if dim is None:
            return value
        raise


def _dimension(dim: Any, value: Array, option: str) -> int | None:
    if dim is None:
        return None
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise ArgumentError(f"vmap: {option} consists of integers and None, got {dim!r}")
    if not -value.ndim <= dim < value.ndim:
        raise ShapeError(f"vmap: {option} says axis {dim}, but an argument has shape {value.shape}")
    return dim % value.ndim


def _axis_size(values: Sequence[Array], dims: Sequence[int | None], given: int | None, name: str) -> int:
    sizes = [v.shape[d] for v, d in zip(values, dims, strict=True) if d is not None]
    if given is not None:
        sizes.append(given)
    if not sizes:
        raise ArgumentError(f"vmap of {name}: nothing is mapped (all in_axes are None), so axis_size must be given")
    if len(set(sizes)) > 1:
        listed = ", ".join(f"{v.shape} along axis {d}" for v, d in zip(values, dims, strict=True) if d is not None)
        raise ShapeError(f"vmap of {name}: the mapped axes must have one size; got arrays of shapes {listed}")
    return sizes[0]


def _place(out: Array, dim: int | None, target: Any, size: int, name: str) -> Array:
    if target is None:
        if dim is not None:
            raise ArgumentError(f"vmap of {name}: out_axes says None, but that result differs between examples")
        return out
    rank = out.ndim + (dim is None)
    if not isinstance(target, int) or not -rank <= target < rank:
        raise ShapeError(f"vmap of {name}: out_axes says {target!r}, but the stacked result has {rank} dimensions")
    return stack_at(out, dim, target % rank, size)
