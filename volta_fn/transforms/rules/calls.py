"""The rules that calls share: derive a program, and call that instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData
from volta_fn.primitives.data_movement.movement import to_front
from volta_fn.transforms.linearize import jvp_jaxpr, linear_marks, marked, nonzero_marks, per_operand, split_tangents, transpose_jaxpr
from volta_fn.transforms.vmap import batch_jaxpr

#: (program, operands) -> results: binds the primitive that calls a derived program.
Call = Callable[[ClosedJaxpr, Sequence[Any]], Sequence[Array]]


def jvp_of_call(
    call: Call, closed: ClosedJaxpr, primals: Sequence[Array], tangents: Sequence[Any]
) -> tuple[Sequence[Array], Sequence[Any]]:
    """Call the program that also computes tangents."""
    nonzero = nonzero_marks(tangents)
    forward, out_nonzero = jvp_jaxpr(closed, nonzero, False)
    return split_tangents(call(forward, [*primals, *marked(tangents, nonzero)]), out_nonzero)


def transpose_of_call(call: Call, closed: ClosedJaxpr, cotangents: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Call the backward program, of the values that are not linear and the cotangents."""
    linear, nonzero = linear_marks(args), nonzero_marks(cotangents)
    backward, has_cotangent = transpose_jaxpr(closed, linear, nonzero)
    return per_operand(call(backward, [*marked(args, linear, False), *marked(cotangents, nonzero)]), linear, has_cotangent)


def batch_of_call(
    call: Call, closed: ClosedJaxpr, axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]
) -> tuple[Sequence[Array], list[int | None]]:
    """Call the program of stacked inputs."""
    batched, out_stacked = batch_jaxpr(closed, axis, [d is not None for d in dims])
    return call(batched, to_front(args, dims)), [0 if s else None for s in out_stacked]
