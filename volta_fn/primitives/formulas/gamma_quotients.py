"""Quotients of gamma functions: beta, binomial coefficients, rising factorials.

With large positive arguments the large terms of logarithms cancel by Stirling's series; poles and zeros are decided by the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from volta_fn.primitives.formulas.exponential import exp
from volta_fn.primitives.formulas.gamma import digamma, gamma_factors, gamma_one_more, gamma_positive, gamma_sign, lgamma
from volta_fn.primitives.formulas.logarithm import log, log1p
from volta_fn.primitives.formulas.powers import pow
from volta_fn.primitives.formulas.precision import exact_sum, in_float64
from volta_fn.primitives.formulas.stirling import LEAST, excess, log_rise, remainder
from volta_fn.primitives.formulas.values import Values

#: Positive numbers below it have gamma functions, and products of them, that do not overflow.
_MODERATE = 14.0

#: In float32 from here on binomial coefficients of ten and more are infinite, gamma functions, and rising factorials that end here.
_LARGEST_THINGS, _LARGEST_STEP, _LARGEST_END = 1e5, 35.0, 40.0

#: Rising factorials of fewer factors are products.
_SHORT = 200.0


def _is_integer(x: Values) -> Values:
    return x.floor().equals(x)


def _is_pole(x: Values) -> Values:
    return x.compare("ole", 0.0) & _is_integer(x)


def _sign_of_power(n: Values) -> Values:
    """Return (-1)^n of an integer."""
    half = n * 0.5
    return half.floor().compare("one", half).select(-1.0, n.like(1.0))


def _lgamma(x: Values) -> Values:
    return x.called("lgamma", lgamma)


def _log_rise_positive(a: Values, b: Values) -> Values:
    """Return log(gamma(a + b) / gamma(a)) for a > 0, a + b > 0."""
    far = a.compare("oge", LEAST) & (a + b).compare("oge", LEAST)
    step = far.select(b, 1.0)
    plain = _lgamma(far.select(1.0, a + b)) - _lgamma(far.select(1.0, a))
    return far.select(log_rise(far.select(a, LEAST), step), plain)


def _log_beta_and_sign(a: Values, b: Values) -> tuple[Values, Values]:
    """Return log |B(a, b)| and B's sign.

    At a pole of gamma(a), an integer, B is infinite, unless b is an integer that makes a + b another one: then it is ±B(1 - a - b, b).
    """
    least, most = a.at_most(b), a.at_least(b)
    sign = a.like(1.0)
    pole = _is_pole(least)
    other = 1.0 - least - most
    finite = pole & _is_integer(most) & other.above(0.0) & most.above(0.0)
    sign = finite.select(_sign_of_power(most), sign)
    first, second = finite.select(other.at_most(most), least), finite.select(other.at_least(most), most)
    positive = first.above(0.0) | ((first + second).compare("oge", LEAST) & ~_is_pole(first))
    p, q = positive.select(first, 1.0), positive.select(second, 1.0)
    regular = _lgamma(p) - _log_rise_positive(q, p)
    x, y = positive.select(0.5, first), positive.select(0.5, second)
    total = x + y
    reflected = _lgamma(x) + _lgamma(y) - _lgamma(total)
    zero = ~positive & _is_pole(total) & ~_is_pole(x) & ~_is_pole(y)
    infinite = ~positive & (_is_pole(x) | _is_pole(y))
    signs = gamma_sign(x) * gamma_sign(y) * gamma_sign(total)
    logarithm = infinite.select(float("inf"), zero.select(float("-inf"), positive.select(regular, reflected)))
    sign = sign * first.above(0.0).select(1.0, infinite.select(1.0, positive.select(gamma_sign(p), signs)))
    return (a.is_nan() | b.is_nan()).select(float("nan"), logarithm), sign


@in_float64
def betaln(a: Values, b: Values) -> Values:
    """Return log |B(a, b)|."""
    return _log_beta_and_sign(a, b)[0]


@in_float64
def beta(a: Values, b: Values) -> Values:
    """Return B(a, b) = gamma(a) gamma(b) / gamma(a + b)."""
    logarithm, sign = _log_beta_and_sign(a, b)
    direct = a.above(0.0) & b.above(0.0) & a.below(_MODERATE) & b.below(_MODERATE)
    p, q = direct.select(a, 1.0), direct.select(b, 1.0)
    least, most = p.at_most(q), p.at_least(q)
    plain = gamma_one_more(p) / _gamma_of_sum(p, q) * gamma_one_more(q) * (1.0 + least / most) / least
    other = sign * exp(logarithm)
    if a.bits == 32:
        least, most = a.at_most(b), a.at_least(b)
        far = least.above(0.0) & most.compare("oge", LEAST)
        other = far.select(_beta_by_powers(far.select(least, 1.0), far.select(most, LEAST)), other)
    return direct.select(plain, other)


# in float32, where an exponential of a large logarithm loses digits


def _beta_by_powers(p: Values, q: Values) -> Values:
    """Return B(p, q) for 0 < p <= q and q >= LEAST."""
    large = p.compare("oge", LEAST)
    few, many = large.select(1.0, p), large.select(p, LEAST)
    first, second, factor = _beta_of_large(many, q)
    root, rest = _rise_of_large(q, few)
    return large.select(first * second * factor, gamma_one_more(few) / few / root / rest / root)


def _beta_of_large(p: Values, q: Values) -> tuple[Values, Values, Values]:
    """Return (p / s)^p, (q / s)^q, and sqrt(2 pi s / (p q)) times Stirling's series.

    s = p + q is at least 2 LEAST.
    """
    total, lost = exact_sum(p, q)
    y, z = p / total, q / total
    rest = -((y.fma(total, -p) + y * lost) + (z.fma(total, -q) + z * lost))
    series = remainder(p) + remainder(q) - remainder(total)
    factor = exp(rest.clamped(-80.0, 80.0) + series) * (2.0 * math.pi / (p * z)).sqrt()
    return y.called("pow", pow, p), z.called("pow", pow, q), factor


def _rise_of_large(a: Values, b: Values) -> tuple[Values, Values]:
    """Return r and s, r s r being gamma(a + b) / gamma(a).

    a >= LEAST, and b is at most some ten.
    """
    total, lost = exact_sum(a, b)
    step = b / a
    series = remainder(total) - remainder(a) - a * excess(step, step + 1.0) - 0.5 * log1p(step)
    return total.called("pow", pow, b * 0.5), exp(series + b * (lost / total))


def _change_of_gamma(total: Values, lost: Values) -> Values:
    """Return gamma(total + lost) / gamma(total) for a rounding error."""
    large = total.above(1.0)
    safe = large.select(total, 1.0)
    return large.select(1.0 + lost * (log(safe) - 0.5 / safe), 1.0)


def _gamma_of_sum(p: Values, q: Values) -> Values:
    """Return gamma(p + q + 1) for p + q > 0, in float32 without the error of the sum."""
    if p.bits == 64:
        return gamma_one_more(p + q)
    total, lost = exact_sum(p, q)
    return gamma_one_more(total) * _change_of_gamma(total + 1.0, lost)


@in_float64
def comb(n: Values, k: Values) -> Values:
    """Return gamma(n + 1) / (gamma(k + 1) gamma(n - k + 1)) for 0 <= k <= n, else 0."""
    possible = k.compare("ole", n) & k.compare("oge", 0.0)
    things, chosen = possible.select(n, 1.0), possible.select(k, 0.0)
    rest = things - chosen
    direct = things.below(2.0 * _MODERATE)
    fewer = chosen.at_most(rest)
    by_logarithm = exp(_log_rise_positive(things - fewer + 1.0, fewer) - _lgamma(fewer + 1.0))
    total, first = direct.select(things, 0.0), direct.select(chosen, 0.0)
    plain = gamma_one_more(total) / gamma_one_more(first) / _gamma_of_sum(total, -first)
    if n.bits == 32:
        few, large = ~direct & fewer.below(LEAST), ~direct & fewer.compare("oge", LEAST) & things.below(_LARGEST_THINGS)
        left, right, factor = _beta_of_large(*(large.select(v + 1.0, LEAST) for v in (fewer, things - fewer)))
        by_beta = 1.0 / left / factor / (things + 1.0) / right
        step = few.select(fewer, 1.0)
        root, rest = _rise_of_large(few.select(things - fewer + 1.0, LEAST), step)
        by_logarithm = few.select(root * (rest / gamma_one_more(step)) * root, large.select(by_beta, by_logarithm))
    out = direct.select(plain, by_logarithm)
    return (n.is_nan() | k.is_nan()).select(float("nan"), possible.select(out, 0.0))


@in_float64
def poch(z: Values, m: Values) -> Values:
    """Return gamma(z + m) / gamma(z).

    Where both are poles it is (-1)^m gamma(1 - z) / gamma(1 - z - m); 0 where only the lower one is. For small integers m it is a product.
    """
    pole, integral = _is_pole(z), _is_integer(m)
    end, lost = exact_sum(z, m)
    mirrored = pole & integral & end.compare("ole", 0.0)
    start, stop = mirrored.select(1.0 - end, z), mirrored.select(1.0 - z, end)
    positive = start.above(0.0) & stop.above(0.0)
    up = m.compare("oge", 0.0)
    low, high = positive.select(start.at_most(stop), 1.0), positive.select(start.at_least(stop), 1.0)
    step = positive.select(m.abs(), 0.0)
    direct = high.below(2.0 * _MODERATE)
    p, q = direct.select(low, 1.0), direct.select(high, 1.0)
    plain = gamma_one_more(q) / gamma_one_more(p) * (p / q)
    by_logarithm = exp(_log_rise_positive(direct.select(1.0, low), direct.select(1.0, step)))
    if z.bits == 32:
        plain = plain * _change_of_gamma(direct.select(end, 0.0), up.select(lost, -lost))
        by_logarithm = _rise_by_powers(direct, low, high, step, by_logarithm)
    rise = direct.select(plain, by_logarithm)
    ratio = up.select(rise, 1.0 / rise) * mirrored.select(_sign_of_power(m), m.like(1.0))
    x, y = positive.select(1.0, z), positive.select(1.0, end)
    reflected = gamma_sign(x) * gamma_sign(y) * exp(_lgamma(y) - _lgamma(x))
    zero = pole & ~mirrored
    out = zero.select(0.0, positive.select(ratio, _is_pole(y).select(float("inf"), reflected)))
    short = integral & m.abs().below(_SHORT)
    out = short.select(_product(short.select(z, 1.0), short.select(m, 0.0)), out)
    return (z.is_nan() | m.is_nan()).select(float("nan"), m.equals(0.0).select(1.0, out))


def _rise_by_powers(direct: Values, low: Values, high: Values, step: Values, other: Values) -> Values:
    """Return gamma(low + step) / gamma(low) where powers give it, else `other`."""
    large = ~direct & low.compare("oge", LEAST)
    few, many = large & step.below(LEAST), large & step.compare("oge", LEAST) & step.below(_LARGEST_STEP)
    moderate = ~direct & ~large & high.below(_LARGEST_END)
    root, rest = _rise_of_large(few.select(low, LEAST), few.select(step, 1.0))
    left, right, factor = _beta_of_large(many.select(low, LEAST), many.select(step, LEAST))
    by_beta = many.select(step, 1.0).called("gamma_positive", gamma_positive) / left / factor / right
    start = moderate.select(low, 1.0)
    total, lost = exact_sum(start, moderate.select(step, 1.0))
    power, scale = gamma_factors(total)
    by_gamma = power * scale * _change_of_gamma(total, lost) / start.called("gamma_positive", gamma_positive) * power
    return few.select(root * rest * root, many.select(by_beta, moderate.select(by_gamma, other)))


def _product(z: Values, m: Values) -> Values:
    """Return z (z + 1) … (z + m - 1), for m < 0 one over (z - 1) (z - 2) … (z + m)."""
    up = m.compare("oge", 0.0)

    def multiply(k: Values, product: Values) -> Sequence[Values]:
        return [k.below(m.abs()).select(product * up.select(z + k, z - (k + 1.0)), product)]

    (product,) = z.iterated(m.abs(), multiply, z.like(1.0))
    return up.select(product, 1.0 / product)


@in_float64
def digamma_rise(a: Values, b: Values) -> Values:
    """Return digamma(a + b) - digamma(a)."""
    return (a + b).called("digamma", digamma) - a.called("digamma", digamma)


@in_float64
def factorial(n: Values) -> Values:
    """Return gamma(n + 1) for n >= 0, else 0."""
    negative = n.below(0.0)
    return negative.select(0.0, gamma_one_more(negative.select(0.0, n)))
