"""Elementwise operations by the names of the StableHLO dialect, for lowering.

Each is the function of `volta_fn.lax`.
`AddOp(x, y).result` is the sum of traced arrays, where JAX's rule would build an operation of MLIR.
"""

from __future__ import annotations

from typing import Any

from volta_fn import lax
from volta_fn.core.array import Array

#: The dialect's operations, and the functions that they are here.
_FUNCTIONS = {
    "AbsOp": "abs", "AddOp": "add", "AndOp": "bitwise_and", "Atan2Op": "atan2", "CbrtOp": "cbrt", "CeilOp": "ceil", "ClampOp": "clamp",
    "CosineOp": "cos", "DivOp": "div", "ExpOp": "exp", "Expm1Op": "expm1", "FloorOp": "floor", "Log1pOp": "log1p", "LogOp": "log",
    "LogisticOp": "logistic", "MaxOp": "max", "MinOp": "min", "MulOp": "mul", "NegOp": "neg", "NotOp": "bitwise_not", "OrOp": "bitwise_or",
    "PowOp": "pow", "RemOp": "rem", "RsqrtOp": "rsqrt", "SelectOp": "select", "SignOp": "sign", "SineOp": "sin", "SqrtOp": "sqrt",
    "SubtractOp": "sub", "TanOp": "tan", "TanhOp": "tanh", "XorOp": "bitwise_xor",
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


def _builder(function: str) -> Any:
    def build(*operands: Any) -> Operation:
        return Operation(getattr(lax, function)(*[x.result if isinstance(x, Operation) else x for x in operands]))

    build.__doc__ = f"Apply `lax.{function}`."
    return build


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(
            f"module 'stablehlo' has no operation {name!r} here; it has {', '.join(_FUNCTIONS)}. Write the rule as a function of arrays "
            "instead, with mlir.lower_fun"
        )
    return _builder(_FUNCTIONS[name])
