"""Elementwise primitives."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from volta_fn.core.jaxpr import Equation
from volta_fn.onnx.rules.registry import RULES, Writer, aval, result, rule, scalar
from volta_fn.onnx.tensors import number_of

#: Primitives that an operator computes as it is.
_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max",
    "min": "Min", "mul": "Mul", "name": "Identity", "neg": "Neg", "pow": "Pow", "round_half_even": "Round", "sign": "Sign",
    "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "stop_gradient": "Identity", "sub": "Sub", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
#: Of booleans and of integers.
_LOGIC = {"and": ("And", "BitwiseAnd"), "not": ("Not", "BitwiseNot"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}
_BOOLEAN = {"max": "Or", "min": "And", "mul": "And", "add": "Or"}


def _same(operator: str, w: Writer, eqn: Equation, *names: str) -> str:
    is_bool = aval(eqn).dtype == np.bool_
    return w.op(_BOOLEAN.get(eqn.primitive.name, operator) if is_bool else operator, *names)


RULES.update({name: functools.partial(_same, operator) for name, operator in _SAME.items()})


@rule(*_LOGIC)
def logic(w: Writer, eqn: Equation, *names: str) -> str:
    """Combine booleans or bits."""
    of_bools, of_bits = _LOGIC[eqn.primitive.name]
    return w.op(of_bools if aval(eqn).dtype == np.bool_ else of_bits, *names)


@rule("optimization_barrier")
def barrier(w: Writer, eqn: Equation, *names: str) -> list[str]:
    """Pass values on."""
    return list(names)


@rule("ne")
def not_equal(w: Writer, eqn: Equation, x: str, y: str) -> str:
    """Compare."""
    return w.op("Not", w.op("Equal", x, y))


def _one(w: Writer, eqn: Equation) -> str:
    return scalar(w, 1, aval(eqn))


@rule("rsqrt")
def rsqrt(w: Writer, eqn: Equation, x: str) -> str:
    """Divide 1 by square roots."""
    return w.op("Reciprocal", w.op("Sqrt", x))


@rule("cbrt")
def cbrt(w: Writer, eqn: Equation, x: str) -> str:
    """Compute cube roots, with the sign of their arguments."""
    return w.op("Mul", w.op("Sign", x), w.op("Pow", w.op("Abs", x), scalar(w, 1 / 3, aval(eqn))))


@rule("erfc")
def erfc(w: Writer, eqn: Equation, x: str) -> str:
    """Subtract the error function from 1."""
    return w.op("Sub", _one(w, eqn), w.op("Erf", x))


@rule("exp2")
def exp2(w: Writer, eqn: Equation, x: str) -> str:
    """Compute powers of 2."""
    return w.op("Pow", scalar(w, 2, aval(eqn)), x)


@rule("log2")
def log2(w: Writer, eqn: Equation, x: str) -> str:
    """Compute logarithms with base 2."""
    return w.op("Div", w.op("Log", x), scalar(w, math.log(2), aval(eqn)))


@rule("expm1")
def expm1(w: Writer, eqn: Equation, x: str) -> str:
    """Compute exp(x) - 1, near 0 as tanh(x / 2) (exp(x) + 1)."""
    half = w.op("Tanh", w.op("Mul", x, scalar(w, 0.5, aval(eqn))))
    grown = w.op("Exp", x)
    near = w.op("Mul", half, w.op("Add", grown, _one(w, eqn)))
    return w.op("Where", w.op("Less", w.op("Abs", x), _one(w, eqn)), near, w.op("Sub", grown, _one(w, eqn)))


@rule("log1p")
def log1p(w: Writer, eqn: Equation, x: str) -> str:
    """Compute log(1 + x) as x log(u) / (u - 1), which corrects u = 1 + x."""
    one = _one(w, eqn)
    moved = w.op("Add", one, x)
    error = w.op("Sub", moved, one)
    exact = w.op("Equal", error, scalar(w, 0, aval(eqn)))
    far = w.op("IsInf", moved)
    safe = w.op("Where", exact, one, error)
    corrected = w.op("Mul", w.op("Log", moved), w.op("Div", x, safe))
    return w.op("Where", exact, x, w.op("Where", far, moved, corrected))


@rule("logaddexp")
def logaddexp(w: Writer, eqn: Equation, x: str, y: str) -> str:
    """Compute log(exp(x) + exp(y)), where infinities stay."""
    high = w.op("Max", x, y)
    distance = w.op("Neg", w.op("Abs", w.op("Sub", x, y)))
    rest = w.op("Log", w.op("Add", _one(w, eqn), w.op("Exp", distance)))
    same = w.op("Equal", x, y)
    twice = scalar(w, math.log(2), aval(eqn))
    return w.op("Add", high, w.op("Where", same, twice, rest))


@rule("integer_pow")
def integer_pow(w: Writer, eqn: Equation, x: str) -> str:
    """Raise to a constant power."""
    return w.op("Pow", x, scalar(w, eqn.params["y"], aval(eqn)))


@rule("gelu")
def gelu(w: Writer, eqn: Equation, x: str) -> str:
    """Apply the Gaussian error linear unit."""
    return w.op("Gelu", x, approximate="tanh" if eqn.params.get("approximate") else "none")


@rule("is_finite")
def is_finite(w: Writer, eqn: Equation, x: str) -> str:
    """Find numbers that are neither infinite nor NaN."""
    return w.op("Not", w.op("Or", w.op("IsNaN", x), w.op("IsInf", x)))


@rule("rem")
def remainder(w: Writer, eqn: Equation, x: str, y: str) -> str:
    """Compute remainders with the dividend's sign."""
    return w.op("Mod", x, y, fmod=1)


@rule("round")
def rounded(w: Writer, eqn: Equation, x: str) -> str:
    """Round, halves away from zero."""
    return w.op("Mul", w.op("Sign", x), w.op("Floor", w.op("Add", w.op("Abs", x), scalar(w, 0.5, aval(eqn)))))


@rule("fma")
def fma(w: Writer, eqn: Equation, x: str, y: str, z: str) -> str:
    """Multiply and add."""
    return w.op("Add", w.op("Mul", x, y), z)


@rule("clamp")
def clamp(w: Writer, eqn: Equation, low: str, x: str, high: str) -> str:
    """Limit to a range."""
    return w.op("Min", w.op("Max", x, low), high)


@rule("atan2")
def atan2(w: Writer, eqn: Equation, y: str, x: str) -> str:
    """Compute angles, by the quadrant."""
    zero, pi = scalar(w, 0, aval(eqn)), scalar(w, math.pi, aval(eqn))
    angle = w.op("Atan", w.op("Div", y, x))
    turned = w.op("Where", w.op("Less", y, zero), w.op("Sub", angle, pi), w.op("Add", angle, pi))
    by_side = w.op("Where", w.op("Less", x, zero), turned, angle)
    origin = w.op("And", w.op("Equal", x, zero), w.op("Equal", y, zero))
    return w.op("Where", origin, zero, by_side)


@rule("convert_element_type")
def convert(w: Writer, eqn: Equation, x: str) -> str:
    """Convert to another dtype."""
    wanted = result(eqn).dtype
    return w.op("Identity", x) if wanted == aval(eqn).dtype else w.op("Cast", x, to=number_of(wanted))


@rule("select_n")
def select(w: Writer, eqn: Equation, which: str, *cases: str) -> Any:
    """Choose between arrays by element."""
    if aval(eqn).dtype == np.bool_:
        return w.op("Where", which, cases[1], cases[0])
    found = cases[-1]
    for number in range(len(cases) - 2, -1, -1):
        found = w.op("Where", w.op("Equal", which, scalar(w, number, aval(eqn))), cases[number], found)
    return found
