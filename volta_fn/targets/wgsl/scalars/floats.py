"""Floats: the operations that are exact, or rounded once.

Where compilers would simplify as if there were neither NaN nor infinity nor -0.0 (see `lanes`), a little more is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from volta_fn.primitives.formulas import floats
from volta_fn.primitives.formulas.precision import exact_sum
from volta_fn.targets.wgsl.scalars.halves import bits_of_half, half_of_bits
from volta_fn.targets.wgsl.scalars.number import BFLOAT16, FLOAT16
from volta_fn.targets.wgsl.scalars.values import Lanes

Operation = Callable[..., Lanes]


def _is_zero(x: Lanes) -> bool:
    return x.text.strip("(-)").rstrip("lf") == "0.0"


def _opaque(x: Lanes) -> Lanes:
    """Return a literal zero as a value that compilers do not know.

    A division by a literal zero gives any number.
    """
    if not _is_zero(x):
        return x
    return x.zero() if x.text[0] != "(" else -x.zero()


def _is_known(x: Lanes) -> bool:
    return not x.text[0].isalpha() or x.text.startswith("bitcast")


def _addend(x: Lanes) -> Lanes:
    """Return a finite literal as a value that compilers do not know.

    Of two in a chain of sums and products they would make one, which rounds otherwise.
    """
    return x.held() if _is_known(x) and not _is_zero(x) and "bitcast" not in x.text else _opaque(x)


def _incomparable(x: Lanes) -> Lanes:
    """Return a float64 number that compilers cannot compare with another.

    NVIDIA's takes x - x for 0 and x / x for 1 in float64, though x may be NaN or infinite.
    """
    return x.hidden() if x.type == "f64" and not _is_known(x) else x


def _sum(x: Lanes, y: Lanes, add: Callable[[Lanes, Lanes], Lanes]) -> Lanes:
    return x.combined(y, x.f.terms, lambda x, y: add(_addend(x), _incomparable(_addend(y))))


def _neg(x: Lanes) -> Lanes:
    result = -x
    for leaves in (x.f.terms, x.f.factors):
        leaves[result.text] = leaves.get(x.text, frozenset((x.text,)))
    return result


def _sub(x: Lanes, y: Lanes) -> Lanes:
    if x.text == y.text:
        return _is_finite(x).select(0.0, x.like(float("nan")))
    return _sum(x, y, Lanes.__sub__)


def equal(op: str) -> Callable[[Lanes, Lanes], Lanes]:
    """Return ==, <= or >=, which compilers assume between equal operands."""

    def holds(x: Lanes, y: Lanes) -> Lanes:
        result = x.let(f"{x.text} {op} {y.text}", "bool")
        return result if _is_known(x) or _is_known(y) else result & ~x.is_nan()

    return holds


def _is_finite(x: Lanes) -> Lanes:
    return x.abs().below(math.inf)


def _nextafter_half(dtype: np.dtype) -> Operation:
    """Return nextafter of 16-bit floats, whose bits count away from zero."""

    def nextafter(x: Lanes, y: Lanes) -> Lanes:
        bits, other = [v.let(bits_of_half(v.f, v.text, dtype), "u32") for v in (x, y)]
        away = x.abs().below(y.abs()) & ((bits ^ other) & 0x8000).equals(0)
        step = x.equals(0.0).select((other & 0x8000) | 1, away.select(bits + 1, bits - 1))
        moved = x.let(half_of_bits(x.f, step.text, dtype))
        return x.equals(y).select(y, x.compare("uno", y).select(x + y, moved))

    return nextafter


def _fma_half(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """Return x y + z of float16, whose product is exact in float32.

    The sum gets an odd last bit where it is inexact, so that rounding it again does no harm.
    """
    total, lost = exact_sum(x * y, z)
    bits = total.as_bits()
    outward = lost.above(0.0) ^ total.below(0.0)
    moved = outward.select(bits + 1, bits - 1).as_float()
    return ((bits & 1).equals(0) & lost.compare("one", 0.0) & _is_finite(total)).select(moved, total)


def _fma_brain(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """Return x y + z of bfloat16, whose products leave float32's range.

    What is not finite is kept away from that.
    """
    product = _is_finite(x) & _is_finite(y)
    ordinary = product & _is_finite(z)
    scaled = _fma_scaled(*[ordinary.select(v, 1.0) for v in (x, y, z)])
    return ordinary.select(scaled, product.select(z, x * y + z))


def _fma_scaled(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """Scale large numbers down, and small ones up where they would be flushed."""
    size, swapped = (x * y).abs().at_least(z.abs()), x.abs().above(y.abs())
    greater, lesser = swapped.select(x, y), swapped.select(y, x)
    large, small = size.above(2.0**100), size.below(2.0**-60)
    down, back = large.select(2.0**-8, x.like(1.0)), large.select(2.0**8, x.like(1.0))
    if x.f.module.device.subnormals:
        return _fma_half(greater * down, lesser, z * down) * back
    up, again = small.select(2.0**60, x.like(1.0)), small.select(2.0**-60, x.like(1.0))  # compilers put both factors together
    return _fma_half(greater * down, lesser * up * up, z * down * up * up) * back * again * again


def _extremum(predicate: str) -> Operation:
    """Return the operand that wins; NaN if either is.

    The comparison alone would be compiled to a maximum that passes over NaN.
    """

    def chosen(x: Lanes, y: Lanes) -> Lanes:
        wins = x.compare(predicate, y)
        return ((wins if _is_known(y) else wins & ~y.is_nan()) | x.is_nan()).select(x, y)

    return chosen


def _extrema(greater: str, less: str) -> dict[str, Operation]:
    upper, lower = _extremum(greater), _extremum(less)
    return {"max": upper, "min": lower, "clamp": lambda low, x, high: lower(upper(x, low), high)}


#: What differs from `scalars.floats`.
_MORE: dict[str, Operation] = {
    "eq": equal("=="),
    "ne": lambda x, y: ~equal("==")(x, y),
    "le": equal("<="),
    "ge": equal(">="),
    "is_finite": _is_finite,
    **_extrema("ogt", "olt"),
    "neg": _neg,
    "add": lambda x, y: _sum(x, y, Lanes.__add__),
    "sub": _sub,
    "div": lambda x, y: _opaque(x) / _incomparable(_opaque(y)),
}

#: Of float32 and float64, of bfloat16, and of float16, of whose equal zeros NumPy takes the first.
FLOAT: dict[str, Operation] = {**floats.FLOAT, **floats.NATIVE_ONLY, **_MORE}
BRAIN: dict[str, Operation] = {**floats.FLOAT, **_MORE, "nextafter": _nextafter_half(BFLOAT16), "fma": _fma_brain}
HALF: dict[str, Operation] = {**floats.HALF, **_MORE, **_extrema("oge", "ole"), "nextafter": _nextafter_half(FLOAT16), "fma": _fma_half}
