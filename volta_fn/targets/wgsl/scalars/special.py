"""Hurwitz's zeta function and the derivatives of digamma, by the formulas of the evaluation rules, each sum a loop."""

from __future__ import annotations

import math

from volta_fn.codegen.scalars.functions import gamma, powers
from volta_fn.primitives.scalar_functions.gamma import BERNOULLI, DIRECT_TERMS
from volta_fn.targets.wgsl.scalars.values import Lanes, outlined


def zeta(s: Lanes, q: Lanes) -> Lanes:
    """The sum of (q + k)^-s over k >= 0, for s > 1; infinite at s = 1 and at q = 0, -1, -2, …, NaN for s < 1.

    For q < 0 the terms with q + k < 0 are, up to sign, those of f + j for j = 0, …, -q - f, where f is the least |q + k| among them: the
    difference of two sums, to which the sum from 1 - f is added. Such powers are real only for whole s.
    """
    f, type_ = s.f, s.type
    left = q.below(0.0)
    least = q.floor() + 1.0 - q
    half = s * 0.5
    sign = half.floor().compare("one", half).select(-1.0, s.like(1.0))
    total = f.var(type_, f"{type_}(0)")
    with f.loop(f"select(1u, 3u, {left.text})") as k:  # one call in a loop: compilers write out each call
        first, second = [s.new(f"({k} == {n}u)", "bool") for n in (0, 1)]
        start = left.select(first.select(least, second.select(1.0 - q, 1.0 - least)), q.above(0.0).select(q, 1.0))
        weight = left.select(first.select(sign, second.select(-sign, 1.0)), 1.0)
        f.line(f"{total} += {(weight * outlined('zeta_positive', _zeta_positive, s, start)).text};")
    out = (left & s.floor().compare("one", s)).select(math.nan, s.new(total, type_))
    pole = s.equals(1.0) | (q.compare("ole", 0.0) & q.floor().equals(q))
    return (s.below(1.0) | s.is_nan() | q.is_nan()).select(math.nan, pole.select(math.inf, out))


def _zeta_positive(s: Lanes, q: Lanes) -> Lanes:
    """Terms one by one, and the Euler-Maclaurin formula for the rest, which begins with the last of them."""
    f, type_ = s.f, s.type
    total, power = f.var(type_, f"{type_}(0)"), f.var(type_, f"{type_}(0)")
    with f.loop(DIRECT_TERMS + 1) as k:
        term = outlined("pow", powers.pow, q + q.new(k, "u32").converted(type_), -s)
        f.line(f"{total} += {power};")
        f.line(f"{power} = {term.text};")
    start = q + float(DIRECT_TERMS)
    rest, factor, square = start / (s - 1.0) + 0.5, s / start, start * start
    for number, bernoulli in enumerate(BERNOULLI, 1):
        rest = factor.mad(bernoulli / math.factorial(2 * number), rest)
        factor = factor * ((s + (2.0 * number - 1.0)) * (s + 2.0 * number)) / square
    last = s.new(power, type_)
    return s.new(total, type_) + last.equals(0.0).select(0.0, last * rest)


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
