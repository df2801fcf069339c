"""Floats: the operations that are exact, or rounded once, with NumPy's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.primitives.formulas.powers import integer_pow
from volta_fn.primitives.formulas.values import Values

Operation = Callable[..., Any]


def _compare(predicate: str) -> Operation:
    return lambda x, y: x.compare(predicate, y)


def maximum(x: Values, y: Values) -> Values:
    """Return the larger; NaN if either is."""
    return x.is_nan().select(x, x.at_least(y))


def minimum(x: Values, y: Values) -> Values:
    """Return the lesser; NaN if either is."""
    return x.is_nan().select(x, x.at_most(y))


def _extremum_first(predicate: str) -> Operation:
    """Return an extremum as NumPy has it for float16: of equal zeros the first."""
    return lambda x, y: (x.compare(predicate, y) | x.is_nan()).select(x, y)


def _clamp(upper: Operation, lower: Operation) -> Operation:
    return lambda low, x, high: lower(upper(x, low), high)


def _sign(x: Values) -> Values:
    return (x.compare("ueq", 0.0)).select(x.abs(), x.like(1.0).signed(x))  # of NaN and zeros, which lose their signs


def _is_finite(x: Values) -> Values:
    return x.abs().below(float("inf"))


def _nextafter(x: Values, y: Values) -> Values:
    """Step the bits of floats, which as integers count away from zero."""
    bits = x.as_bits()
    away = x.abs().below(y.abs()) & (bits ^ y.as_bits()).compare("sge", 0)
    step = away.select(bits + 1, bits - 1)
    from_zero = (y.as_bits() & (1 << (x.bits - 1))) | 1
    moved = x.equals(0.0).select(from_zero, step).as_float()
    return x.equals(y).select(y, x.compare("uno", y).select(x + y, moved))


_ONCE: dict[str, Operation] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "sqrt": lambda x: x.sqrt(),
    "integer_pow": integer_pow,
    "rsqrt": lambda x: 1.0 / x.sqrt(),
}

#: Those whose results need no rounding to float16 or bfloat16, if the operands are of that dtype.
EXACT: dict[str, Operation] = {
    "eq": _compare("oeq"),
    "ne": _compare("une"),
    "lt": _compare("olt"),
    "le": _compare("ole"),
    "gt": _compare("ogt"),
    "ge": _compare("oge"),
    "neg": lambda x: -x,
    "abs": lambda x: x.abs(),
    "sign": _sign,
    "max": maximum,
    "min": minimum,
    "clamp": _clamp(maximum, minimum),
    "floor": lambda x: x.floor(),
    "ceil": lambda x: x.ceil(),
    "round": lambda x: x.nearest_away(),
    "round_half_even": lambda x: x.nearest(),
    "is_finite": _is_finite,
}

FLOAT: dict[str, Operation] = {**EXACT, **_ONCE}

_MAX, _MIN = _extremum_first("oge"), _extremum_first("ole")
HALF: dict[str, Operation] = {**FLOAT, "max": _MAX, "min": _MIN, "clamp": _clamp(_MAX, _MIN)}

#: Those for which it matters that a number is held in its own dtype: not for float16 and bfloat16.
NATIVE_ONLY: dict[str, Operation] = {"nextafter": _nextafter, "fma": lambda x, y, z: x.fma(y, z)}
