"""Floats: the operations that are exact, or rounded once.

Where compilers would simplify as if there were neither NaN nor infinity nor -0.0 (see `lanes`), a little more is written.
"""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.backends.scalars.whole_powers import integer_pow
from volta_fn.backends.wgsl.scalars.lanes import Lanes

Operation = Callable[..., Lanes]


def _opaque(x: Lanes) -> Lanes:
    """A literal zero as a value that compilers do not know."""
    if x.text.strip("(-)").rstrip("lf") != "0.0":
        return x
    return x.zero() if x.text[0] != "(" else -x.zero()


def _is_known(x: Lanes) -> bool:
    return not x.text.isidentifier()


def _sub(x: Lanes, y: Lanes) -> Lanes:
    if x.text == y.text:
        return _is_finite(x).select(0.0, x.like(float("nan")))
    return _opaque(x) - _opaque(y)


def _equal(op: str) -> Callable[[Lanes, Lanes], Lanes]:
    """==, <=, >=: what compilers take to hold of a number and itself."""

    def holds(x: Lanes, y: Lanes) -> Lanes:
        result = x.let(f"{x.text} {op} {y.text}", "bool")
        return result if _is_known(x) or _is_known(y) else result & ~x.is_nan()

    return holds


def _is_finite(x: Lanes) -> Lanes:
    return x.abs().as_bits().below(x.like(float("inf")).as_bits())


def _sign(x: Lanes) -> Lanes:
    return (x.equals(0.0) | x.is_nan()).select(x, x.like(1.0).signed(x))


def maximum(x: Lanes, y: Lanes) -> Lanes:
    """The larger; NaN if either is."""
    return x.is_nan().select(x, x.at_least(y))


def minimum(x: Lanes, y: Lanes) -> Lanes:
    """The lesser; NaN if either is."""
    return x.is_nan().select(x, x.at_most(y))


def _extremum_first(op: str) -> Operation:
    """As NumPy has it for float16: of equal zeros the first."""
    return lambda x, y: (x.let(f"{x.text} {op} {y.text}", "bool") | x.is_nan()).select(x, y)


def _clamp(upper: Operation, lower: Operation) -> Operation:
    return lambda low, x, high: lower(upper(x, low), high)


def _round_half_away(x: Lanes) -> Lanes:
    whole = x.trunc()
    far = (x - whole).abs().compare("oge", 0.5)
    return far.select(whole.abs() + 1.0, whole.abs()).signed(x)


#: Those whose results need no rounding to float16 or bfloat16, if the operands are of that dtype.
EXACT: dict[str, Operation] = {
    "eq": _equal("=="),
    "ne": lambda x, y: ~_equal("==")(x, y),
    "lt": lambda x, y: x.below(y),
    "gt": lambda x, y: x.above(y),
    "le": _equal("<="),
    "ge": _equal(">="),
    "neg": lambda x: -x,
    "abs": lambda x: x.abs(),
    "sign": _sign,
    "max": maximum,
    "min": minimum,
    "clamp": _clamp(maximum, minimum),
    "floor": lambda x: x.floor(),
    "ceil": lambda x: x.call("ceil"),
    "round": _round_half_away,
    "round_half_even": lambda x: x.nearest(),
    "is_finite": _is_finite,
}

FLOAT: dict[str, Operation] = {
    **EXACT,
    "add": lambda x, y: _opaque(x) + _opaque(y),
    "sub": _sub,
    "mul": lambda x, y: _opaque(x) * _opaque(y),
    "div": lambda x, y: _opaque(x) / y,
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: 1.0 / x.sqrt(),
    "integer_pow": integer_pow,
}

_MAX, _MIN = _extremum_first(">="), _extremum_first("<=")
HALF: dict[str, Operation] = {**FLOAT, "max": _MAX, "min": _MIN, "clamp": _clamp(_MAX, _MIN)}
