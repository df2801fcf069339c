"""Batching rules of primitives, by the names of `jax.interpreters.batching`.

`primitive_batchers[p] = rule(args, dims, **params)` returns the result and its mapped dimension, where None is `not_mapped`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.primitive import AxisData, Primitive
from volta_fn.core.trace import bind
from volta_fn.extend.primitive import Rule, Rules
from volta_fn.primitives.data_movement.movement import expand_dims
from volta_fn.transforms.vmap import BatchTrace as BatchTrace
from volta_fn.transforms.vmap import BatchTracer as BatchTracer
from volta_fn.transforms.vmap import stack_at

#: The mapped dimension of an operand that is the same for all examples.
not_mapped = None
NotMapped = type(None)


def _plain(rule: Rule) -> Rule:
    return lambda axis, args, dims, **params: rule(tuple(args), tuple(dims), **params)


def _with_axis(rule: Rule) -> Rule:
    return lambda axis, args, dims, **params: rule(axis.size, axis.name, None, tuple(args), tuple(dims), **params)


primitive_batchers = Rules("batch", _plain)
#: Rules that are also told the axis: `rule(size, name, None, args, dims, **params)`, or `rule(axis_data, args, dims, **params)`.
axis_primitive_batchers = Rules("batch", _with_axis)
fancy_primitive_batchers = Rules("batch", lambda rule: rule)


def bdim_at_front(x: Array, bdim: int | None, size: int) -> Array:
    """Return an operand with its mapped dimension first, repeated if it has none."""
    return stack_at(x, bdim, 0, size)


def broadcast(x: Array, sz: int, axis: int, mesh_axis: Any = None) -> Array:
    """Repeat an array along a new dimension."""
    return stack_at(x, None, axis, sz)


def defvectorized(primitive: Primitive) -> None:
    """Define the batching of a primitive of one operand that acts on every element."""
    primitive_batchers[primitive] = lambda args, dims, **params: (bind(primitive, *args, **params), dims[0])


def defbroadcasting(primitive: Primitive) -> None:
    """Define the batching of an elementwise primitive, whose operands have one shape."""

    def batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Array, int]:
        rank = max(x.ndim - (d is not None) for x, d in zip(args, dims, strict=True))
        stacked = [stack_at(x, d, 0, axis.size) for x, d in zip(args, dims, strict=True)]
        ranked = [expand_dims(x, tuple(range(1, 1 + rank - (x.ndim - 1)))) for x in stacked]
        return bind(primitive, *ranked, **params), 0

    fancy_primitive_batchers[primitive] = batch


def defreducer(primitive: Primitive, identity: Any = None) -> None:
    """Define the batching of a reduction along its parameter `axes`."""

    def batch(args: Sequence[Array], dims: Sequence[int | None], *, axes: Sequence[int], **params: Any) -> tuple[Array, int]:
        (dim,) = dims
        assert dim is not None, "a rule is called if an operand is mapped"
        moved = tuple(a + (a >= dim) for a in axes)
        return bind(primitive, *args, axes=moved, **params), dim - sum(a < dim for a in moved)

    primitive_batchers[primitive] = batch
