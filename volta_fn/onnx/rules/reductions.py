"""Reductions, cumulative operations and sorting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from volta_fn.core.jaxpr import Equation
from volta_fn.errors import OnnxError
from volta_fn.onnx.rules.registry import Writer, aval, ints, result, rule
from volta_fn.onnx.tensors import number_of

_REDUCED = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd", "reduce_sum": "ReduceSum"}
_INT32, _BOOL = 6, 9


@rule(*_REDUCED)
def reduce(w: Writer, eqn: Equation, x: str) -> str:
    """Reduce along axes."""
    axes = eqn.params["axes"]
    if not axes:
        return w.op("Identity", x)
    if aval(eqn).dtype == np.bool_:
        found = w.op(_REDUCED[eqn.primitive.name], w.op("Cast", x, to=_INT32), ints(w, axes), keepdims=0)
        return w.op("Cast", found, to=_BOOL)
    return w.op(_REDUCED[eqn.primitive.name], x, ints(w, axes), keepdims=0)


@rule("reduce_and", "reduce_or")
def reduce_logic(w: Writer, eqn: Equation, x: str) -> str:
    """Reduce booleans: whether all, or any, are true."""
    if aval(eqn).dtype != np.bool_:
        raise OnnxError(f"ONNX has no {eqn.primitive.name} of integers")
    if not eqn.params["axes"]:
        return w.op("Identity", x)
    operator = "ReduceMin" if eqn.primitive.name == "reduce_and" else "ReduceMax"
    return w.op("Cast", w.op(operator, w.op("Cast", x, to=_INT32), ints(w, eqn.params["axes"]), keepdims=0), to=_BOOL)


@rule("argmax", "argmin")
def arg_extreme(w: Writer, eqn: Equation, x: str) -> str:
    """Find the position of an extreme along an axis."""
    (axis,) = eqn.params["axes"]
    found = w.op("ArgMax" if eqn.primitive.name == "argmax" else "ArgMin", x, axis=int(axis), keepdims=0)
    return w.op("Cast", found, to=number_of(result(eqn).dtype))


@rule("cumsum")
def cumsum(w: Writer, eqn: Equation, x: str) -> str:
    """Sum all elements up to each one."""
    return w.op("CumSum", x, ints(w, eqn.params["axis"]), reverse=int(eqn.params["reverse"]))


@rule("top_k")
def top_k(w: Writer, eqn: Equation, x: str) -> Sequence[str]:
    """Find the largest elements along the last axis."""
    values, positions = w.ops("TopK", 2, x, ints(w, [eqn.params["k"]]), axis=int(eqn.params["dimension"]))
    return values, w.op("Cast", positions, to=number_of(eqn.outvars[1].aval.dtype))


@rule("sort")
def sort(w: Writer, eqn: Equation, *names: str) -> Sequence[str]:
    """Sort by the first operand; equal ones keep their order."""
    if eqn.params["num_keys"] != 1:
        raise OnnxError("ONNX sorts by one key")
    axis = int(eqn.params["dimension"])
    values, positions = w.ops("TopK", 2, names[0], ints(w, [aval(eqn).shape[axis]]), axis=axis, largest=0)
    return [values, *[w.op("GatherElements", name, positions, axis=axis) for name in names[1:]]]
