"""Operations by the names of the StableHLO dialect, for lowering.

Each is the function of `volta_fn.lax`.
`AddOp(x, y).result` is the sum of traced arrays, where JAX's rule would build an operation of MLIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.extend import ir

#: The dialect's operations, and the functions that they are here.
_FUNCTIONS = {
    "AbsOp": "abs", "AddOp": "add", "AndOp": "bitwise_and", "Atan2Op": "atan2", "CbrtOp": "cbrt", "CeilOp": "ceil", "ClampOp": "clamp",
    "CosineOp": "cos", "DivOp": "div", "ExpOp": "exp", "Expm1Op": "expm1", "FloorOp": "floor", "Log1pOp": "log1p", "LogOp": "log",
    "LogisticOp": "logistic", "MaxOp": "max", "MinOp": "min", "MulOp": "mul", "NegOp": "neg", "NotOp": "bitwise_not", "OrOp": "bitwise_or",
    "PowOp": "pow", "RemOp": "rem", "RsqrtOp": "rsqrt", "SelectOp": "select", "SignOp": "sign", "SineOp": "sin", "SqrtOp": "sqrt",
    "SubtractOp": "sub", "TanOp": "tan", "TanhOp": "tanh", "XorOp": "bitwise_xor",
}  # fmt: skip

#: Functions that build an operation and return its only result, where they are not named like the function here.
_BUILDERS = {
    "and_": "bitwise_and", "cosine": "cos", "divide": "div", "exponential": "exp",
    "exponential_minus_one": "expm1", "log_plus_one": "log1p",
    "maximum": "max", "minimum": "min", "multiply": "mul", "negate": "neg", "not_": "bitwise_not", "or_": "bitwise_or", "power": "pow",
    "remainder": "rem", "sine": "sin", "subtract": "sub", "xor": "bitwise_xor",
    **{name: name for name in "abs add atan2 cbrt ceil clamp floor log logistic rsqrt select sign sqrt tan tanh".split()},
}  # fmt: skip

__all__ = [*_FUNCTIONS]


class Operation:
    """The result of an operation; others take it as an operand."""

    def __init__(self, result: Array) -> None:
        self.result = result

    @property
    def results(self) -> list[Array]:
        """The only result, as a list."""
        return [self.result]


def register_dialect(context: Any) -> None:
    """Do nothing: operations are functions here."""


def constant(elements: np.ndarray) -> Array:
    """Return a constant."""
    return as_value(elements)


class ComparisonDirectionAttr:
    """Names of comparisons."""

    @staticmethod
    def get(name: str) -> str:
        """Return the name of the function of `volta_fn.lax`."""
        return name.lower()


def compare(x: Array, y: Array, direction: str) -> Array:
    """Compare elements: "eq", "ne", "lt", "le", "gt" or "ge"."""
    result: Array = getattr(lax, direction)(x, y)
    return result


def broadcast_in_dim(result: ShapedArray, operand: Array, broadcast_dimensions: Sequence[int]) -> Array:
    """Return the operand with its dimensions at these positions of the result's."""
    return lax.broadcast_in_dim(operand, result.shape, tuple(broadcast_dimensions))


def return_(values: Sequence[Array]) -> None:
    """End the block that is being built."""
    ir.current_scope().results = list(values)


class ReduceOp:
    """A reduction by the function that its region has."""

    def __init__(self, types: Sequence[ShapedArray], operands: Sequence[Array], init_values: Sequence[Array], dimensions: Any) -> None:
        self.body = ir.Region()
        self._reduced = (list(operands), list(init_values), tuple(np.ravel(dimensions).tolist()))

    @property
    def results(self) -> list[Array]:
        """The reduced operands."""
        operands, inits, dimensions = self._reduced
        return list(lax.reduce(operands, inits, lambda xs, ys: self.body.run(*xs, *ys), dimensions))


class IfOp:
    """A choice between the blocks of two regions."""

    def __init__(self, types: Sequence[ShapedArray], pred: Array) -> None:
        self.true_branch, self.false_branch = ir.Region(), ir.Region()
        self._pred = pred

    @property
    def results(self) -> list[Array]:
        """The results of the chosen block."""
        return list(lax.cond(self._pred, self.true_branch.run, self.false_branch.run))


def __getattr__(name: str) -> Any:
    if name in _BUILDERS:
        return getattr(lax, _BUILDERS[name])
    if name not in _FUNCTIONS:
        raise AttributeError(
            f"module 'stablehlo' has no operation {name!r} here; it has {', '.join(_FUNCTIONS)}. Write the rule as a function of arrays "
            "instead, with mlir.lower_fun"
        )
    function = _FUNCTIONS[name]

    def build(*operands: Any) -> Operation:
        return Operation(getattr(lax, function)(*[x.result if isinstance(x, Operation) else x for x in operands]))

    build.__doc__ = f"Apply `lax.{function}`."
    return build
