"""Lower bounds of a workload's cost: operations of products, and bytes.

Operations are counted in volta_fn's trace. Masked attention counts the masked pairs, too; a `while` counts one iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr


class Cost(NamedTuple):
    """Operations, bytes of arguments and results, and GPU dispatches of one call."""

    operations: int
    moved: int
    dispatches: int


class Ceilings(NamedTuple):
    """The measured rates of the fastest framework: operations and bytes in a second."""

    operations: float
    moved: float


def cost(function: Callable[..., Any], inputs: tuple[Any, ...], call: Callable[[], Any]) -> Cost:
    """Return the cost of a function; `call` runs it once on the default device."""
    closed = vf.make_jaxpr(function)(*inputs)
    before = vf.device_work_stats().dispatches
    vf.block_until_ready(call())
    dispatches = vf.device_work_stats().dispatches - before
    avals = [v.aval for v in (*closed.jaxpr.invars, *closed.jaxpr.outvars)]
    return Cost(operations(closed.jaxpr), sum(a.size * a.dtype.itemsize for a in avals), dispatches)


def operations(jaxpr: Jaxpr) -> int:
    """Count the operations of all products and convolutions in a program."""
    return sum(_of_equation(eqn) for eqn in jaxpr.eqns)


def _of_equation(eqn: Equation) -> int:
    shapes = [v.aval.shape for v in eqn.invars]
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * eqn.outvars[0].aval.size * math.prod(shapes[0][axis] for axis in contracted)
    if eqn.primitive.name == "conv_general_dilated":
        outputs = shapes[1][eqn.params["dimension_numbers"].rhs_spec[0]]
        taps = math.prod(shapes[1]) // max(outputs, 1)
        return 2 * eqn.outvars[0].aval.size * taps // math.prod(eqn.params["lhs_dilation"])  # what is between dilated pixels is nothing
    inner = [operations(p.jaxpr) for p in _programs(eqn)]
    if eqn.primitive.name == "cond":
        return max(inner)
    return sum(inner) * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)


def _programs(eqn: Equation) -> list[ClosedJaxpr]:
    results = [p for value in eqn.params.values() for p in (value if isinstance(value, tuple) else (value,))]
    return [p for p in results if isinstance(p, ClosedJaxpr)]


def outline(array: np.ndarray) -> vf.ShapeDtypeStruct:
    """Return an array's shape and dtype."""
    return vf.ShapeDtypeStruct(array.shape, array.dtype)


def rate(result: Cost, seconds: float, ceilings: Ceilings | None) -> tuple[str, float | None]:
    """Return the rate of what takes longer at the ceilings, as text and as a fraction.

    That is operations or bytes in a second; without ceilings there is neither.
    """
    if ceilings is None:
        return "-", None
    computing, moving = result.operations / ceilings.operations, result.moved / ceilings.moved
    if computing > moving:
        return f"{result.operations / seconds / 1e12:.3g} TFLOP/s", computing / seconds
    return f"{result.moved / seconds / 1e9:.3g} GB/s", moving / seconds
