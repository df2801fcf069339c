"""`reduce`: elements along axes combined by a function of the user's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.flatten import check_callable
from volta_fn.core.memory.transfer import constrained
from volta_fn.core.primitive import PRIMITIVES, Primitive, reduction_of
from volta_fn.core.trace import Tracer, bind
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.primitives.control_flow.associative import Combine, combining, every_other
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.movement import broadcast, canonical_axes, reshape, transpose
from volta_fn.primitives.data_movement.slicing import slice_in_dim
from volta_fn.primitives.elementwise.cast import convert_element_type


def reduce(
    operands: Any, init_values: Any, computation: Callable[[Any, Any], Any], dimensions: Sequence[int], *, out_sharding: Any = None
) -> Any:
    """Combine the elements along `dimensions` by `computation`.

    The combination begins with `init_values`.

    `computation` is one of `lax.add`, `mul`, `max`, `min`, `bitwise_and`, `bitwise_or`, `bitwise_xor`, which have kernels, or any
    associative function of two arrays that treats elements alike. That is applied about log2 n times to many elements at once, neighbours
    first, so that their (row-major) order is kept, and its derivative is that of these applications.

    Args:
        operands: an array, or a pytree of arrays of one shape, whose elements are then reduced together.
        init_values: a scalar for each array, of its dtype, as a pytree of the same structure.
        computation: from two values like `operands` (one before the other) to one of the same structure, shapes and dtypes.
        dimensions: the axes that are reduced.

    Returns the reduced arrays in the structure of `operands`, without `dimensions`, of the operands' dtypes.

    Raises:
        ArgumentError: there are no arrays, or an array and its initial value have two dtypes.
        ShapeError: the arrays have several shapes, or an initial value is not a scalar.
        TreeError, ShapeError, DTypeError: `computation` returns something unlike what it takes.

    >>> import volta_fn as vf
    >>> vf.lax.reduce(vf.numpy.array([1, 2, 3]), 0, vf.lax.add, (0,))
    Array(6, dtype=int32)

    The largest of the values and where it is:

    >>> def larger(a, b):
    ...     first = a[0] >= b[0]
    ...     return vf.lax.select(first, a[0], b[0]), vf.lax.select(first, a[1], b[1])
    >>> values, indices = vf.numpy.array([3.0, 7.0, 5.0]), vf.numpy.arange(3)
    >>> vf.lax.reduce((values, indices), (-vf.numpy.inf, -1), larger, (0,))
    (Array(7., dtype=float32), Array(1, dtype=int32))
    """
    check_callable(computation, "reduce")
    leaves, structure = tree.flatten(operands)
    values = [as_value(x) for x in leaves]
    if not values:
        raise ArgumentError("reduce: there are no arrays to reduce")
    if len({v.shape for v in values}) > 1:
        raise ShapeError(f"reduce: the operands must have one shape, got {', '.join(str(v.shape) for v in values)}")
    inits = tree.flatten_up_to(structure, init_values, "reduce: init_values")
    starts = [_initial(init, value) for init, value in zip(inits, values, strict=True)]
    axes = canonical_axes(tuple(dimensions), values[0].ndim, "dimensions")
    reduction = _reduction_with_step(computation)
    if len(values) == 1 and reduction is not None:
        reduced = bind(reduction, values[0], axes=axes) if axes else values[0]
        return constrained(tree.unflatten(structure, [_with_start(reduction, starts[0], reduced, computation)]), out_sharding)
    combine = combining("reduce", computation, structure)
    return constrained(tree.unflatten(structure, _reduce_by_neighbours(values, starts, combine, sorted(axes))), out_sharding)


def _initial(init_value: Any, operand: Array) -> Array:
    start = as_value(init_value)
    if start.shape:
        raise ShapeError(f"reduce: init_value must be a scalar, got an array of shape {start.shape}")
    if start.dtype != operand.dtype and not start.weak_type:
        raise ArgumentError(f"reduce: operand has dtype {operand.dtype.name} and init_value {start.dtype.name}; they must agree")
    return convert_element_type(start, operand.dtype)


def _reduction_with_step(computation: Any) -> Primitive | None:
    """Return the reduction primitive that repeats `computation`, if there is one."""
    step = getattr(computation, "primitive", None)
    found = [p for p in PRIMITIVES.values() if step and p.reduction and p.reduction.step == step.name and not p.reduction.index_of]
    return found[0] if found else None


def _with_start(primitive: Primitive, start: Array, reduced: Array, computation: Callable[..., Any]) -> Array:
    identity = reduction_of(primitive.name).start(reduced.dtype)
    return reduced if not isinstance(start, Tracer) and start == as_value(identity) else computation(start, reduced)


def _reduce_by_neighbours(values: Sequence[Array], starts: Sequence[Array], combine: Combine, axes: Sequence[int]) -> list[Array]:
    shape = values[0].shape
    kept = [i for i in range(len(shape)) if i not in axes]
    left = [shape[i] for i in kept]
    size = math.prod([shape[i] for i in axes])
    rest = [reshape(transpose(v, (*axes, *kept)), (size, *left)) for v in values]
    while size > 1:
        pairs = combine(every_other(rest, 0, size - 1, 0), every_other(rest, 1, size, 0))
        rest = [concatenate([p, slice_in_dim(r, size - 1, size)], 0) if size % 2 else p for p, r in zip(pairs, rest, strict=True)]
        size = (size + 1) // 2
    firsts = [broadcast(s, (1, *left)) for s in starts]
    return [reshape(r, left) for r in (combine(firsts, rest) if size else firsts)]
