"""Activations, softmax and their like."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from volta_fn import nn
from volta_fn import numpy as vnp
from volta_fn.onnx.operators.registry import OPERATORS, Node, as_array, operator


def _elu(node: Node, x: Any) -> Any:
    return vnp.where(x > 0, x, node.get("alpha", 1.0) * vnp.expm1(vnp.minimum(x, 0)))


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
    "Elu": _elu,
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
    functions = {"Softmax": nn.softmax, "LogSoftmax": nn.log_softmax, "Hardmax": _hardmax}
    function: Any = functions[node.op]
    if node.opset >= 13:
        return function(x, axis=node.get("axis", -1))
    axis = node.get("axis", 1) % x.ndim
    rows = x.reshape(*x.shape[:axis], -1) if x.size else x
    return function(rows, axis=-1).reshape(x.shape)


def _hardmax(x: Any, axis: int) -> Any:
    return nn.one_hot(vnp.argmax(x, axis=axis), x.shape[axis], dtype=x.dtype, axis=axis)
