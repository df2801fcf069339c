"""Reductions along axes, and the positions of extremes."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.onnx.operators.registry import Node, as_array, is_float, operator

_REDUCED = {
    "ReduceL1": "sum", "ReduceL2": "sum", "ReduceLogSum": "sum", "ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min",
    "ReduceProd": "prod", "ReduceSum": "sum", "ReduceSumSquare": "sum",
}  # fmt: skip


def _axes(node: Node, axes: Any) -> tuple[int, ...] | None:
    """Return the axes to reduce: None for all, () for none."""
    found = node.axes(axes)
    if found:
        return tuple(found)
    return () if node.get("noop_with_empty_axes", 0) else None


@operator(*_REDUCED)
def reduce(node: Node, x: Any, axes: Any = None) -> Any:
    """Reduce along axes; all of them if none are given."""
    xp, along = node.xp, _axes(node, axes)
    keep = bool(node.get("keepdims", 1))
    if node.op == "ReduceL1":
        x = abs(x)
    elif node.op in ("ReduceL2", "ReduceSumSquare"):
        x = x * x
    if node.op in ("ReduceMax", "ReduceMin") and not x.size:
        found = _empty_extreme(node, x, along, keep)
    elif node.op == "ReduceMean" and not is_float(x):
        found = xp.sum(x, axis=along, keepdims=keep) // (x.size // max(1, xp.sum(x, axis=along, keepdims=keep).size))
    else:
        found = getattr(xp, _REDUCED[node.op])(x, axis=along, keepdims=keep)
    if node.op in ("ReduceL2", "ReduceLogSum"):
        found = (xp.sqrt if node.op == "ReduceL2" else xp.log)(found)
    return found.astype(x.dtype)


def _empty_extreme(node: Node, x: Any, axes: tuple[int, ...] | None, keep: bool) -> Any:
    """Return the identity where there is nothing to take the maximum or minimum of."""
    largest = np.True_ if x.dtype == np.bool_ else np.inf if is_float(x) else np.iinfo(x.dtype).max
    smallest = np.False_ if x.dtype == np.bool_ else -np.inf if is_float(x) else np.iinfo(x.dtype).min
    shape = vnp.sum(vnp.zeros(x.shape), axis=axes, keepdims=keep).shape
    return node.xp.full(shape, smallest if node.op == "ReduceMax" else largest, dtype=x.dtype)


@operator("ReduceLogSumExp")
def reduce_log_sum_exp(node: Node, x: Any, axes: Any = None) -> Any:
    """Compute the logarithm of the sum of exponentials."""
    x, along = as_array(x), _axes(node, axes)
    largest = vnp.max(x, axis=along, keepdims=True, initial=-np.inf) if x.size else vnp.zeros((1,) * x.ndim, x.dtype)
    shift = vnp.where(vnp.isfinite(largest), largest, 0)
    total = vnp.sum(vnp.exp(x - shift), axis=along, keepdims=True)
    found = vnp.log(total) + shift
    wanted = vnp.sum(x, axis=along, keepdims=bool(node.get("keepdims", 1))).shape
    return found.reshape(wanted).astype(x.dtype)


@operator("ArgMax", "ArgMin")
def arg_extreme(node: Node, x: Any) -> Any:
    """Return the position of the first, or the last, extreme element."""
    axis = node.get("axis", 0) % x.ndim
    function = node.xp.argmax if node.op == "ArgMax" else node.xp.argmin
    if node.get("select_last_index", 0):
        found = x.shape[axis] - 1 - function(node.xp.flip(x, axis), axis=axis)
    else:
        found = function(x, axis=axis)
    found = found.astype(np.int64)
    return node.xp.expand_dims(found, axis) if node.get("keepdims", 1) else found
