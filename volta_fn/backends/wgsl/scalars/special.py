"""Hurwitz's zeta function and the derivatives of digamma, by the formulas of the evaluation rules, each sum a loop."""

from __future__ import annotations

import math

from volta_fn.backends.scalars.functions import gamma, powers
from volta_fn.backends.wgsl.scalars.lanes import Lanes, outlined
from volta_fn.primitives.scalar_functions.gamma import BERNOULLI, DIRECT_TERMS


def _pow(x: Lanes, y: Lanes) -> Lanes:
    return outlined("pow", powers.pow, x, y)


def zeta(s: Lanes, q: Lanes) -> Lanes:
    """The sum of (q + k)^-s over k >= 0, for s > 1; infinite at s = 1 and at q = 0, -1, -2, …, NaN for s < 1."""
    usual = outlined("zeta_positive", _zeta_positive, s, q.above(0.0).select(q, 1.0))
    out = q.below(0.0).rarely("zeta_negative", _zeta_negative, [s, q], usual)
    pole = s.equals(1.0) | (q.compare("ole", 0.0) & q.floor().equals(q))
    return (s.below(1.0) | s.is_nan() | q.is_nan()).select(math.nan, pole.select(math.inf, out))


def _zeta_positive(s: Lanes, q: Lanes) -> Lanes:
    """Terms one by one, and the Euler-Maclaurin formula for the rest."""
    f, type_ = s.f, s.type
    total = f.var(type_, f"{type_}(0)")
    with f.loop(DIRECT_TERMS) as k:
        term = _pow(q + q.new(k, "u32").converted(type_), -s)
        f.line(f"{total} += {term.text};")
    start = q + float(DIRECT_TERMS)
    power = _pow(start, -s)
    rest, factor, square = start / (s - 1.0) + 0.5, s / start, start * start
    for number, bernoulli in enumerate(BERNOULLI, 1):
        rest = factor.mad(bernoulli / math.factorial(2 * number), rest)
        factor = factor * ((s + (2.0 * number - 1.0)) * (s + 2.0 * number)) / square
    return s.new(total, type_) + power.equals(0.0).select(0.0, power * rest)


def _zeta_negative(s: Lanes, q: Lanes) -> Lanes:
    """The terms with q + k < 0 are, up to sign, those of f + j for j = 0, …, -q - f, where f is the least |q + k| among them."""
    least = q.floor() + 1.0 - q
    first, beyond, right = [outlined("zeta_positive", _zeta_positive, s, start) for start in (least, 1.0 - q, 1.0 - least)]
    below, half = first - beyond, s * 0.5
    is_odd = half.floor().compare("one", half)
    total = is_odd.select(-below, below) + right
    return s.floor().equals(s).select(total, math.nan)


def polygamma(n: Lanes, x: Lanes) -> Lanes:
    """The n-th derivative of digamma, (-1)^(n + 1) n! zeta(n + 1, x), for whole n >= 0; NaN for other n."""
    is_whole = n.compare("oge", 0.0) & n.floor().equals(n)
    order = (is_whole & n.above(0.0)).select(n, 1.0)
    size = outlined("factorial", _factorial, order) * outlined("zeta", zeta, order + 1.0, x)
    half = order * 0.5
    out = half.floor().equals(half).select(-size, size)
    out = n.equals(0.0).rarely("digamma", gamma.digamma, [x], out)
    return is_whole.select(out, math.nan)


def _factorial(n: Lanes) -> Lanes:
    """n! of a whole number, as long as it is finite."""
    f, most = n.f, {32: 35, 64: 171}[n.bits]
    result = f.var(n.type, f"{n.type}(1)")
    with f.loop(most + 1, 2) as k:
        factor = n.new(k, "u32").converted(n.type)
        f.line(f"{result} *= {factor.above(n).select(1.0, factor).text};")
    return n.new(result, n.type)
