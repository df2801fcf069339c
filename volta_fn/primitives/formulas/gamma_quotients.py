"""Quotients of gamma functions of any sign: beta, binomial coefficients, rising factorials.

With large positive arguments the large terms of logarithms cancel by Stirling's series; poles and zeros are decided by the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.primitives.formulas.exponential import exp
from volta_fn.primitives.formulas.gamma import gamma, gamma_positive, gamma_sign, lgamma
from volta_fn.primitives.formulas.precision import in_float64
from volta_fn.primitives.formulas.stirling import LEAST, log_rise
from volta_fn.primitives.formulas.values import Values

#: Positive numbers below it have gamma functions, and products of them, that do not overflow.
_MODERATE = 14.0

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


def _gamma_one_more(x: Values) -> Values:
    return (x + 1.0).called("gamma_positive", gamma_positive)


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
    plain = _gamma_one_more(p) / _gamma_one_more(p + q) * _gamma_one_more(q) * (1.0 + least / most) / least
    return direct.select(plain, sign * exp(logarithm))


@in_float64
def comb(n: Values, k: Values) -> Values:
    """Return gamma(n + 1) / (gamma(k + 1) gamma(n - k + 1)) for 0 <= k <= n, else 0."""
    possible = k.compare("ole", n) & k.compare("oge", 0.0)
    things, chosen = possible.select(n, 1.0), possible.select(k, 0.0)
    rest = things - chosen
    direct = things.below(2.0 * _MODERATE)
    fewer = chosen.at_most(rest)
    by_logarithm = exp(_log_rise_positive(things - fewer + 1.0, fewer) - _lgamma(fewer + 1.0))
    total, first, second = (direct.select(v, 0.0) for v in (things, chosen, rest))
    plain = _gamma_one_more(total) / _gamma_one_more(first) / _gamma_one_more(second)
    out = direct.select(plain, by_logarithm)
    return (n.is_nan() | k.is_nan()).select(float("nan"), possible.select(out, 0.0))


@in_float64
def poch(z: Values, m: Values) -> Values:
    """Return gamma(z + m) / gamma(z).

    Where both are poles it is (-1)^m gamma(1 - z) / gamma(1 - z - m); 0 where only the lower one is. For small integers m it is a product.
    """
    pole, whole = _is_pole(z), _is_integer(m)
    end = z + m
    mirrored = pole & whole & end.compare("ole", 0.0)
    start, stop = mirrored.select(1.0 - end, z), mirrored.select(1.0 - z, end)
    positive = start.above(0.0) & stop.above(0.0)
    up = m.compare("oge", 0.0)
    low, high = positive.select(start.at_most(stop), 1.0), positive.select(start.at_least(stop), 1.0)
    step = positive.select(m.abs(), 0.0)
    direct = high.below(2.0 * _MODERATE)
    p, q = direct.select(low, 1.0), direct.select(high, 1.0)
    plain = _gamma_one_more(q) / _gamma_one_more(p) * (p / q)
    rise = direct.select(plain, exp(_log_rise_positive(direct.select(1.0, low), direct.select(1.0, step))))
    ratio = up.select(rise, 1.0 / rise) * mirrored.select(_sign_of_power(m), m.like(1.0))
    x, y = positive.select(1.0, z), positive.select(1.0, end)
    reflected = gamma_sign(x) * gamma_sign(y) * exp(_lgamma(y) - _lgamma(x))
    zero = pole & ~mirrored
    out = zero.select(0.0, positive.select(ratio, _is_pole(y).select(float("inf"), reflected)))
    short = whole & m.abs().below(_SHORT)
    out = short.select(_product(short.select(z, 1.0), short.select(m, 0.0)), out)
    return (z.is_nan() | m.is_nan()).select(float("nan"), m.equals(0.0).select(1.0, out))


def _product(z: Values, m: Values) -> Values:
    """Return z (z + 1) … (z + m - 1), for m < 0 one over (z - 1) (z - 2) … (z + m)."""
    up = m.compare("oge", 0.0)

    def multiply(k: Values, product: Values) -> Sequence[Values]:
        return [k.below(m.abs()).select(product * up.select(z + k, z - (k + 1.0)), product)]

    (product,) = z.iterated(m.abs(), multiply, z.like(1.0))
    return up.select(product, 1.0 / product)


@in_float64
def factorial(n: Values) -> Values:
    """Return gamma(n + 1) for n >= 0, else 0."""
    negative = n.below(0.0)
    return negative.select(0.0, negative.select(0.0, n + 1.0).called("gamma", gamma))
