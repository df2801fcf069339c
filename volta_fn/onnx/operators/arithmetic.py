"""Arithmetic, comparisons and logic, elementwise."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.onnx.operators.registry import OPERATORS, Node, as_array, is_float, operator
from volta_fn.scipy import special

#: Operators with a function of NumPy's name for them.
_SAME = {
    "Abs": "abs", "Acos": "arccos", "Acosh": "arccosh", "And": "logical_and", "Asin": "arcsin", "Asinh": "arcsinh", "Atan": "arctan",
    "Atanh": "arctanh", "BitwiseAnd": "bitwise_and", "BitwiseNot": "bitwise_not", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
    "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Exp": "exp", "Floor": "floor", "IsNaN": "isnan", "Log": "log", "MatMul": "matmul",
    "Neg": "negative", "Not": "logical_not", "Round": "round", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan",
    "Tanh": "tanh", "Where": "where",
}  # fmt: skip
#: Those of two operands, which may say by attributes how the second is broadcast (before version 7).
_BINARY = {
    "Add": "add", "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less", "LessOrEqual": "less_equal",
    "Mul": "multiply", "Or": "logical_or", "Sub": "subtract", "Xor": "logical_xor",
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
    if node.xp is np:
        return (np.sign(x) * np.sign(y) * (abs(x) // np.maximum(abs(y), 1))).astype(x.dtype)
    return lax.div(*vnp.broadcast_arrays(as_array(x), as_array(y)))


@operator("Mod")
def mod(node: Node, x: Any, y: Any) -> Any:
    """Compute the remainder, with the sign of the divisor unless `fmod`."""
    return node.xp.fmod(x, y) if node.get("fmod", 0) else node.xp.mod(x, y)


@operator("Pow")
def power(node: Node, x: Any, y: Any) -> Any:
    """Compute powers in the dtype of the base."""
    y = _broadcast(node, x, y)
    if is_float(x) or is_float(y):
        dtype = x.dtype if is_float(x) else y.dtype
        return node.xp.power(x.astype(dtype), node.xp.asarray(y).astype(dtype)).astype(x.dtype)
    return node.xp.power(x, node.xp.asarray(y).astype(x.dtype))


def _many(name: str, node: Node, *inputs: Any) -> Any:
    return functools.reduce(getattr(node.xp, name), inputs)


OPERATORS.update({op: functools.partial(_many, name) for op, name in {"Sum": "add", "Max": "maximum", "Min": "minimum"}.items()})


@operator("Mean")
def mean(node: Node, *inputs: Any) -> Any:
    """Average several arrays."""
    return _many("add", node, *inputs) / len(inputs)


@operator("Identity", "Optional")
def identity(node: Node, x: Any) -> Any:
    """Return the input."""
    return x


@operator("Reciprocal")
def reciprocal(node: Node, x: Any) -> Any:
    """Divide 1 by each element."""
    return 1 / x


@operator("Erf")
def erf(node: Node, x: Any) -> Any:
    """Compute the error function."""
    return special.erf(as_array(x)).astype(x.dtype)


@operator("IsInf")
def is_inf(node: Node, x: Any) -> Any:
    """Find infinities of either sign, or of one."""
    infinite = node.xp.isinf(x)
    sides = infinite & (x > 0) & bool(node.get("detect_positive", 1))
    return sides | (infinite & (x < 0) & bool(node.get("detect_negative", 1)))


@operator("BitShift")
def bit_shift(node: Node, x: Any, y: Any) -> Any:
    """Shift bits to the left or to the right."""
    return node.xp.left_shift(x, y) if node.get("direction") == "LEFT" else node.xp.right_shift(x, y)


@operator("Clip")
def clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    """Limit elements to a range."""
    low, high = node.get("min", low), node.get("max", high)
    if low is not None:
        x = node.xp.maximum(x, node.xp.asarray(low).astype(x.dtype))
    return x if high is None else node.xp.minimum(x, node.xp.asarray(high).astype(x.dtype))


@operator("Det")
def det(node: Node, x: Any) -> Any:
    """Compute determinants of the last two axes."""
    return vnp.linalg.det(as_array(x))


@operator("Einsum")
def einsum(node: Node, *inputs: Any) -> Any:
    """Sum products as the equation says."""
    return vnp.einsum(node.get("equation"), *map(as_array, inputs))


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
    turned = vnp.flip(x, axis) if node.get("reverse", 0) else x
    if node.get("exclusive", 0):
        first = [(1, 0) if i == axis else (0, 0) for i in range(x.ndim)]
        turned = vnp.pad(turned, first, constant_values=node.op == "CumProd")[tuple([slice(n) for n in x.shape])]
    found = function(turned, axis=axis, dtype=x.dtype)
    return vnp.flip(found, axis) if node.get("reverse", 0) else found
