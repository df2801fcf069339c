"""Elementwise operators, activations and reductions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import lax, nn
from volta_fn import numpy as vnp
from volta_fn.onnx.nodes import OPERATORS, Node, as_array, is_float, operator
from volta_fn.scipy import special

# Arithmetic, comparisons and logic, elementwise.

#: Operators that are a function of NumPy.
_SAME = {
    "Abs": "abs", "Acos": "arccos", "Acosh": "arccosh", "Asin": "arcsin", "Asinh": "arcsinh", "Atan": "arctan", "Atanh": "arctanh",
    "BitwiseAnd": "bitwise_and", "BitwiseNot": "bitwise_not", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "Ceil": "ceil",
    "Cos": "cos", "Cosh": "cosh", "Exp": "exp", "Floor": "floor", "IsNaN": "isnan", "Log": "log", "MatMul": "matmul", "Neg": "negative",
    "Not": "logical_not", "Round": "round", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
    "Where": "where",
}  # fmt: skip
#: Those of two operands, which may say by attributes how the second is broadcast (before version 7).
_BINARY = {
    "Add": "add", "And": "logical_and", "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less",
    "LessOrEqual": "less_equal", "Mul": "multiply", "Or": "logical_or", "Sub": "subtract", "Xor": "logical_xor",
}  # fmt: skip


def _same(name: str, node: Node, *inputs: Any) -> Any:
    return getattr(node.xp, name)(*inputs)


def _binary(name: str, node: Node, x: Any, y: Any) -> Any:
    return getattr(node.xp, name)(x, _broadcast(node, x, y))


OPERATORS.update({op: functools.partial(_same, name) for op, name in _SAME.items()})
OPERATORS.update({op: functools.partial(_binary, name) for op, name in _BINARY.items()})


def _broadcast(node: Node, x: Any, y: Any) -> Any:
    if node.opset >= 7 or "axis" not in node.attributes:
        return y
    return y.reshape(*y.shape, *[1] * (x.ndim - node.get("axis") - y.ndim))


@operator("Div")
def div(node: Node, x: Any, y: Any) -> Any:
    """Divide; integers are rounded towards zero."""
    y = _broadcast(node, x, y)
    if is_float(x):
        return node.xp.divide(x, y)
    return _truncated_quotient(node, x, y)


def _truncated_quotient(node: Node, x: Any, y: Any) -> Any:
    """Divide integers, rounded towards zero."""
    if node.xp is not np:
        return lax.div(*vnp.broadcast_arrays(as_array(x), as_array(y)))
    with np.errstate(all="ignore"):
        quotient, rest = np.divmod(x, y)
    return (quotient + ((rest != 0) & ((x < 0) != (y < 0)))).astype(x.dtype)


@operator("Pow")
def power(node: Node, x: Any, y: Any) -> Any:
    """Compute powers in the dtype of the base."""
    y = _broadcast(node, x, y)
    if is_float(x) or is_float(y):
        dtype = x.dtype if is_float(x) else y.dtype
        return node.xp.power(x.astype(dtype), node.xp.asarray(y).astype(dtype)).astype(x.dtype)
    y = node.xp.asarray(y).astype(x.dtype)
    raised = node.xp.power(x, node.xp.abs(y))
    return node.xp.where((y < 0) & (node.xp.abs(x) != 1), np.asarray(0, x.dtype), raised)


def _many(name: str, node: Node, *inputs: Any) -> Any:
    return functools.reduce(getattr(node.xp, name), inputs)


OPERATORS.update({op: functools.partial(_many, name) for op, name in {"Sum": "add", "Max": "maximum", "Min": "minimum"}.items()})


OPERATORS |= {
    "BitShift": lambda node, x, y: (node.xp.left_shift if node.get("direction") == "LEFT" else node.xp.right_shift)(x, y),
    "Det": lambda node, x: vnp.linalg.det(as_array(x)),
    "Einsum": lambda node, *inputs: vnp.einsum(node.get("equation"), *map(as_array, inputs)),
    "Erf": lambda node, x: special.erf(as_array(x)).astype(x.dtype),
    "Identity": lambda node, x: x,
    "Mean": lambda node, *inputs: _many("add", node, *inputs) / len(inputs),
    "Mod": lambda node, x, y: (node.xp.fmod if node.get("fmod", 0) else node.xp.mod)(x, y),
    "Optional": lambda node, x: x,
    "Reciprocal": lambda node, x: 1 / x,
}


@operator("IsInf")
def is_inf(node: Node, x: Any) -> Any:
    """Test for infinities of either sign, or of one sign."""
    infinite = node.xp.isinf(x)
    sides = infinite & (x > 0) & bool(node.get("detect_positive", 1))
    return sides | (infinite & (x < 0) & bool(node.get("detect_negative", 1)))


@operator("Clip")
def clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    """Limit elements to a range."""
    low, high = node.get("min", low), node.get("max", high)
    if low is not None:
        x = node.xp.maximum(x, node.xp.asarray(low).astype(x.dtype))
    return x if high is None else node.xp.minimum(x, node.xp.asarray(high).astype(x.dtype))


@operator("Gemm")
def gemm(node: Node, x: Any, y: Any, c: Any = None) -> Any:
    """Compute alpha x y + beta c."""
    x, y = as_array(x), as_array(y)
    product = (x.T if node.get("transA", 0) else x) @ (y.T if node.get("transB", 0) else y)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    product = product if alpha == 1 else product * alpha
    if c is not None:
        product = product + (as_array(c) if beta == 1 else as_array(c) * beta)
    return product.astype(x.dtype)


@operator("CumSum", "CumProd")
def cumulative(node: Node, x: Any, axis: Any) -> Any:
    """Sum, or multiply, all elements up to each one."""
    x, axis = as_array(x), node.ints(axis, "axis")[0] % x.ndim
    function = vnp.cumsum if node.op == "CumSum" else vnp.cumprod
    operand = vnp.flip(x, axis) if node.get("reverse", 0) else x
    if node.get("exclusive", 0):
        first = [(1, 0) if i == axis else (0, 0) for i in range(x.ndim)]
        operand = vnp.pad(operand, first, constant_values=node.op == "CumProd")[tuple([slice(n) for n in x.shape])]
    totals = function(operand, axis=axis, dtype=x.dtype)
    return vnp.flip(totals, axis) if node.get("reverse", 0) else totals


# Activations, softmax and their like.


def _selu(node: Node, x: Any) -> Any:
    alpha, gamma = node.get("alpha", 1.67326319217681884765625), node.get("gamma", 1.05070102214813232421875)
    return gamma * vnp.where(x > 0, x, alpha * vnp.expm1(vnp.minimum(x, 0)))


def _celu(node: Node, x: Any) -> Any:
    alpha = node.get("alpha", 1.0)
    return vnp.maximum(x, 0) + vnp.minimum(0, alpha * vnp.expm1(vnp.minimum(x, 0) / alpha))


def _shrink(node: Node, x: Any) -> Any:
    limit, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    return vnp.where(x < -limit, x + bias, vnp.where(x > limit, x - bias, 0))


_FORMULAS: dict[str, Callable[[Node, Any], Any]] = {
    "Celu": _celu,
    "Elu": lambda node, x: vnp.where(x > 0, x, node.get("alpha", 1.0) * vnp.expm1(vnp.minimum(x, 0))),
    "Gelu": lambda node, x: nn.gelu(x, approximate=node.get("approximate", "none") == "tanh"),
    "HardSigmoid": lambda node, x: vnp.clip(node.get("alpha", 0.2) * x + node.get("beta", 0.5), 0, 1),
    "HardSwish": lambda node, x: x * vnp.clip(x / 6 + 0.5, 0, 1),
    "LeakyRelu": lambda node, x: vnp.where(x >= 0, x, node.get("alpha", 0.01) * x),
    "Mish": lambda node, x: x * vnp.tanh(nn.softplus(x)),
    "Relu": lambda node, x: nn.relu(x),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": lambda node, x: nn.sigmoid(x),
    "Softplus": lambda node, x: nn.softplus(x),
    "Softsign": lambda node, x: x / (1 + abs(x)),
    "Swish": lambda node, x: x * nn.sigmoid(node.get("alpha", 1.0) * x),
    "ThresholdedRelu": lambda node, x: vnp.where(x > node.get("alpha", 1.0), x, 0),
}


def _activation(formula: Callable[[Node, Any], Any], node: Node, x: Any) -> Any:
    x = as_array(x)
    return formula(node, x).astype(x.dtype)


OPERATORS.update({name: functools.partial(_activation, formula) for name, formula in _FORMULAS.items()})


@operator("PRelu")
def prelu(node: Node, x: Any, slope: Any) -> Any:
    """Multiply negative elements by slopes."""
    if node.opset < 7 and slope.ndim == 1 and x.ndim > 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return vnp.where(as_array(x) >= 0, x, as_array(slope) * x)


@operator("Softmax", "LogSoftmax", "Hardmax")
def softmax(node: Node, x: Any) -> Any:
    """Normalise exponentials along an axis; before version 13, along all from it on."""
    x = as_array(x)
    function: Any = {"Softmax": nn.softmax, "LogSoftmax": nn.log_softmax, "Hardmax": _hardmax}[node.op]
    if node.opset >= 13:
        return function(x, axis=node.get("axis", -1))
    axis = node.get("axis", 1) % x.ndim
    rows = x.reshape(*x.shape[:axis], -1) if x.size else x
    return function(rows, axis=-1).reshape(x.shape)


def _hardmax(x: Any, axis: int) -> Any:
    return nn.one_hot(vnp.argmax(x, axis=axis), x.shape[axis], dtype=x.dtype, axis=axis)


# Reductions along axes, and the positions of extremes.

_REDUCED = {
    "ReduceL1": "sum", "ReduceL2": "sum", "ReduceLogSum": "sum", "ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min",
    "ReduceProd": "prod", "ReduceSum": "sum", "ReduceSumSquare": "sum",
}  # fmt: skip


def _axes(node: Node, axes: Any) -> tuple[int, ...] | None:
    """Return the axes to reduce: None for all, () for none."""
    along = node.axes(axes)
    if along:
        return tuple(along)
    return () if node.get("noop_with_empty_axes", 0) else None


@operator(*_REDUCED)
def reduce(node: Node, x: Any, axes: Any = None) -> Any:
    """Reduce along axes, by default along all."""
    xp, along = node.xp, _axes(node, axes)
    keep = bool(node.get("keepdims", 1))
    if node.op == "ReduceL1":
        x = abs(x)
    elif node.op in ("ReduceL2", "ReduceSumSquare"):
        x = x * x
    if node.op in ("ReduceMax", "ReduceMin") and not x.size:
        result = _empty_extreme(node, x, along, keep)
    elif node.op == "ReduceMean" and not is_float(x):
        total = xp.sum(x, axis=along, keepdims=keep)
        result = _truncated_quotient(node, total, np.asarray(x.size // max(1, total.size), total.dtype))
    else:
        result = getattr(xp, _REDUCED[node.op])(x, axis=along, keepdims=keep)
    if node.op in ("ReduceL2", "ReduceLogSum"):
        result = (xp.sqrt if node.op == "ReduceL2" else xp.log)(result)
    return result.astype(x.dtype)


def _empty_extreme(node: Node, x: Any, axes: tuple[int, ...] | None, keep: bool) -> Any:
    """Return the identity, for maxima and minima of no elements."""
    largest = np.True_ if x.dtype == np.bool_ else np.inf if is_float(x) else np.iinfo(x.dtype).max
    smallest = np.False_ if x.dtype == np.bool_ else -np.inf if is_float(x) else np.iinfo(x.dtype).min
    shape = vnp.sum(vnp.zeros(x.shape), axis=axes, keepdims=keep).shape
    return node.xp.full(shape, smallest if node.op == "ReduceMax" else largest, dtype=x.dtype)


@operator("ReduceLogSumExp")
def reduce_log_sum_exp(node: Node, x: Any, axes: Any = None) -> Any:
    """Compute the logarithm of the sum of exponentials."""
    x, along, dtype = as_array(x), _axes(node, axes), x.dtype
    x = x if is_float(x) else x.astype(np.float32)
    largest = vnp.max(x, axis=along, keepdims=True, initial=-np.inf) if x.size else vnp.zeros((1,) * x.ndim, x.dtype)
    shift = vnp.where(vnp.isfinite(largest), largest, 0)
    total = vnp.sum(vnp.exp(x - shift), axis=along, keepdims=True)
    result = vnp.log(total) + shift
    shape = vnp.sum(x, axis=along, keepdims=bool(node.get("keepdims", 1))).shape
    return result.reshape(shape).astype(dtype)


@operator("ArgMax", "ArgMin")
def arg_extreme(node: Node, x: Any) -> Any:
    """Return the position of the first, or the last, extreme element."""
    axis = node.get("axis", 0) % x.ndim
    function = node.xp.argmax if node.op == "ArgMax" else node.xp.argmin
    if node.get("select_last_index", 0):
        position = x.shape[axis] - 1 - function(node.xp.flip(x, axis), axis=axis)
    else:
        position = function(x, axis=axis)
    position = position.astype(np.int64)
    return node.xp.expand_dims(position, axis) if node.get("keepdims", 1) else position
