"""The gamma function's family: log-gamma, digamma, Hurwitz zeta, polygamma.

All work in float64, whatever the dtype, which spares a set of coefficients per dtype. On [1, 2] a polynomial holds (Chebyshev
interpolation of the function divided by its zeros, so that relative precision is kept around them); from 8 on the asymptotic
series does; recurrences lead from elsewhere to those, and reflection formulas from the negative axis to the positive one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from volta_fn.primitives.scalar_functions.blocks import blockwise, polynomial, replace

Formula = Callable[[np.ndarray], np.ndarray]

#: Where the asymptotic series take over: 8 is far enough for float64 with ten terms.
FAR = 8.0

#: The Bernoulli numbers B_2, B_4, …, B_24.
BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730,
)  # fmt: skip


def _fraction_from_integer(x: np.ndarray) -> np.ndarray:
    """x minus the nearest whole number, exactly."""
    return x - np.round(x)


# lgamma

#: lgamma(x) / ((x - 1)(x - 2)) on [1, 2], in powers of 2x - 3.
LGAMMA = (
    -3.7005711329047426e-12, 1.1577613910649688e-11, -1.5936042537298723e-11, 5.0300670906054817e-11, -2.075322954216366e-10,
    6.5655031582107999e-10, -2.0184741279133344e-9, 6.4303665062167918e-9, -2.0619851263731667e-8, 6.6238705716423163e-8,
    -2.1386380605280233e-7, 6.9484283937040619e-7, -2.2742472358027586e-6, 7.5113918468379533e-6, -2.5094328700900634e-5,
    8.510090373634476e-5, -2.9455070151643118e-4, 1.049818664454635e-3, -3.913560937626331e-3, 1.5727850268641098e-2,
    -7.2979947957153041e-2, 4.8312895054098089e-1,
)  # fmt: skip

#: Stirling's series: lgamma(x) - ((x - 1/2) log x - x + log(2 pi)/2) in powers of 1/x^2, divided by x.
STIRLING = tuple(b / (2 * k * (2 * k - 1)) for k, b in reversed([*enumerate(BERNOULLI[:10], 1)]))
HALF_LOG_TWO_PI_LESS_HALF = 0.5 * math.log(2 * math.pi) - 0.5


@blockwise(wide=True)
def lgamma(x: np.ndarray) -> np.ndarray:
    """log |gamma(x)|; inf at zero and the negative integers, and at both infinities."""
    negative = x < 0
    out = _lgamma_positive(np.where(negative, 1.0 - x, x))
    replace(out, negative, _lgamma_reflected, x, out)
    return np.where(np.isinf(x) | (negative & (np.floor(x) == x)), np.inf, out)


def _lgamma_positive(x: np.ndarray) -> np.ndarray:
    return _by_range(x, lambda x: _lgamma_unit(x) - np.log(x), _lgamma_near, _lgamma_far)


def _by_range(x: np.ndarray, below_one: Formula, near: Formula, far: Formula) -> np.ndarray:
    """Each formula where it holds: for 0 <= x < 1, for 1 <= x < 8, and from there on."""
    out = np.empty_like(x)
    is_small, is_near = x < 1.0, x < FAR
    replace(out, is_small, below_one, x)
    replace(out, is_near & ~is_small, near, x)
    replace(out, ~is_near, far, x)
    return out


def _lgamma_near(x: np.ndarray) -> np.ndarray:
    """gamma(x) = (x - 1) … (x - n) gamma(x - n) with x - n in [1, 2]: those factors are just the x - k that exceed 1."""
    product = np.ones_like(x)
    for k in range(1, int(FAR) - 1):
        product *= np.maximum(x - k, 1.0)
    return np.log(product) + _lgamma_unit(_unit_base(x) - 1.0)


def _lgamma_unit(x: np.ndarray) -> np.ndarray:
    """lgamma(1 + x) for x in [0, 1]."""
    return x * (x - 1.0) * polynomial(2.0 * x - 1.0, LGAMMA)


def _unit_base(x: np.ndarray) -> np.ndarray:
    """The number in [1, 2] that differs from x >= 1 by a whole number."""
    return x - np.maximum(np.ceil(x) - 2.0, 0.0)


def _lgamma_far(x: np.ndarray) -> np.ndarray:
    inverse = 1.0 / x
    return (x - 0.5) * (np.log(x) - 1.0) + HALF_LOG_TWO_PI_LESS_HALF + inverse * polynomial(inverse * inverse, STIRLING)


def _lgamma_reflected(x: np.ndarray, mirrored: np.ndarray) -> np.ndarray:
    """gamma(x) gamma(1 - x) = pi / sin(pi x); `mirrored` is lgamma(1 - x)."""
    return -np.log(np.abs(np.sin(math.pi * _fraction_from_integer(x))) / math.pi) - mirrored


# digamma

#: digamma's positive zero, in two parts.
DIGAMMA_ZERO, DIGAMMA_ZERO_REST = 1.4616321449683622, 9.5499954299656977e-17

#: digamma(x) / (x - zero) on [1, 2], in powers of 2x - 3.
DIGAMMA = (
    -9.7203004042022443e-12, 2.9160936010853641e-11, -2.9161179626023812e-11, 8.7484200374362866e-11, -4.1555064115551964e-10,
    1.246669023186403e-9, -3.5092354924107181e-9, 1.0528133851878113e-8, -3.1807298477301726e-8, 9.5432615707604287e-8,
    -2.8621216825577647e-7, 8.589062683365892e-7, -2.5781337016107129e-6, 7.7412344413683949e-6, -2.3258232758953131e-5,
    6.9950188265504409e-5, -2.1074841284590126e-4, 6.3688803038479007e-4, -1.9350666647392833e-3, 5.9367952783018757e-3,
    -1.8550615381739702e-2, 6.013562106019684e-2, -2.1181371064073025e-1, 9.5105587603183288e-1,
)  # fmt: skip

#: log x - 1/(2x) - digamma(x), in powers of 1/x^2, times x^2.
DIGAMMA_FAR = tuple(b / (2 * k) for k, b in reversed([*enumerate(BERNOULLI[:10], 1)]))


@blockwise(wide=True)
def digamma(x: np.ndarray) -> np.ndarray:
    """The derivative of lgamma; NaN at zero, at the negative integers and at -inf."""
    negative = x < 0
    out = _digamma_positive(np.where(negative, 1.0 - x, x))
    replace(out, negative, lambda x, mirrored: mirrored - math.pi * _cotangent_of_turn(_fraction_from_integer(x)), x, out)
    return np.where((x <= 0) & (x == np.floor(x)), np.nan, out)


def _cotangent_of_turn(fraction: np.ndarray) -> np.ndarray:
    """cot(pi t) for |t| <= 1/2, beyond 1/4 as a tangent: it is 0 at 1/2, beside which pi / 2 is not a float."""
    size = np.abs(fraction)
    tangent = np.tan(math.pi * np.minimum(size, 0.5 - size))
    return np.copysign(np.where(size > 0.25, tangent, 1.0 / tangent), fraction)


def _digamma_positive(x: np.ndarray) -> np.ndarray:
    return _by_range(x, lambda x: _digamma_near(x + 1.0) - 1.0 / x, _digamma_near, _digamma_far)


def _digamma_near(x: np.ndarray) -> np.ndarray:
    """digamma(x) = 1/(x - 1) + … + 1/(x - n) + digamma(x - n) with x - n in [1, 2]."""
    total = np.zeros_like(x)
    for k in range(1, int(FAR) - 1):
        total += (x > k + 1) / np.maximum(x - k, 1.0)
    base = _unit_base(x)
    return total + ((base - DIGAMMA_ZERO) - DIGAMMA_ZERO_REST) * polynomial(2.0 * base - 3.0, DIGAMMA)


def _digamma_far(x: np.ndarray) -> np.ndarray:
    inverse = 1.0 / x
    square = inverse * inverse
    return np.log(x) - 0.5 * inverse - square * polynomial(square, DIGAMMA_FAR)


# zeta and polygamma

#: Terms summed one by one before the Euler-Maclaurin formula gives the rest.
DIRECT_TERMS = 10


@blockwise(wide=True)
def zeta(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Hurwitz's zeta function, the sum of (q + k)^-s over k >= 0, for s > 1; infinite at s = 1 and at q = 0, -1, -2, …

    For other negative q the powers are real only for whole s; NaN elsewhere, and for s < 1.
    """
    return _zeta(s, q)


def _zeta(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    out = _zeta_positive(s, np.where(q > 0, q, 1.0))
    replace(out, q < 0, _zeta_negative, s, q)
    pole = (s == 1) | ((q <= 0) & (q == np.floor(q)))
    out = np.where(pole, np.inf, out)
    return np.where((s < 1) | np.isnan(s) | np.isnan(q), np.nan, out)


def _zeta_positive(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Abramowitz & Stegun 23.1.30 (the Euler-Maclaurin formula), from q + 10 on."""
    total = np.zeros_like(q)
    for k in range(DIRECT_TERMS):
        total += (q + k) ** -s
    start = q + DIRECT_TERMS
    power = start**-s
    rest = start / (s - 1.0) + 0.5
    factor = s / start
    for k, bernoulli in enumerate(BERNOULLI, 1):
        rest += factor * (bernoulli / math.factorial(2 * k))
        factor = factor * ((s + (2 * k - 1)) * (s + 2 * k)) / (start * start)
    return total + np.where(power == 0, 0.0, power * rest)


def _zeta_negative(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The terms with q + k < 0 are, up to sign, those of f + j for j = 0, …, -q - f, where f is the least |q + k| among them."""
    least = np.floor(q) + 1.0 - q
    odd = np.mod(s, 2.0) == 1.0
    below = _zeta_positive(s, least) - _zeta_positive(s, 1.0 - q)
    total = np.where(odd, -below, below) + _zeta_positive(s, 1.0 - least)
    return np.where(s == np.floor(s), total, np.nan)


@blockwise(wide=True)
def polygamma(n: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The n-th derivative of digamma, for whole n >= 0; NaN for other n.

    For n >= 1 it is (-1)^(n + 1) n! zeta(n + 1, x) (Abramowitz & Stegun 6.4.10).
    """
    order = np.where((n >= 1) & (n == np.floor(n)), n, 1.0)
    out = np.exp(_lgamma_positive(order + 1.0)) * _zeta(order + 1.0, x)
    np.negative(out, out=out, where=np.mod(order, 2.0) == 0)
    replace(out, n == 0, digamma, x)
    return np.where((n >= 0) & (n == np.floor(n)), out, np.nan)
