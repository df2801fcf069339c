"""The Faddeeva function w(x + i y) = exp(-z^2) erfc(-i z): its components.

Far from zero it is Laplace's continued fraction (Gautschi 1970), elsewhere the sums of Zaghloul and Ali, "Algorithm 916: computing the
Faddeyeva and Voigt functions", 2011. The border is that of S. G. Johnson's Faddeeva package.
"""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.error import erfc_scaled, exp_minus_square
from volta_fn.primitives.formulas.exponential import exp, sinh
from volta_fn.primitives.formulas.precision import in_float64
from volta_fn.primitives.formulas.trigonometric import cos, sin
from volta_fn.primitives.formulas.values import Values

#: The step of the sums, with which their error is 2^-53, and how many terms of a Gaussian exp(-(STEP n)^2) are not negligible.
STEP = math.pi / math.sqrt(53 * math.log(2))
TERMS = 12
_FACTOR = 2.0 * STEP / math.pi
_GAUSSIAN = tuple(math.exp(-((STEP * n) ** 2)) for n in range(TERMS + 1))

#: The levels of the fraction, and from which size on its first one is enough.
_LEVELS, _FAR = 20, 1e8
_LARGEST = {32: 3.4028234e38, 64: 1.7976931348623157e308}

Pair = tuple[Values, Values]


@in_float64
def faddeeva_real(x: Values, y: Values) -> Values:
    """Return the real part of w(x + i y)."""
    return _faddeeva(x, y)[0]


@in_float64
def faddeeva_imag(x: Values, y: Values) -> Values:
    """Return the imaginary part of w(x + i y)."""
    return _faddeeva(x, y)[1]


def _faddeeva(x: Values, y: Values) -> Pair:
    """Lead to the first quadrant: w(-z) = 2 exp(-z^2) - w(z), w(-conj z) = conj w(z)."""
    below = y.below(0.0)
    real, imaginary = _first_quadrant(x.abs(), y.abs())
    depth = below.select((-y).capped(_LARGEST[x.bits]), 0.0)
    size = 2.0 * exp((depth - x.abs()) * (depth + x.abs()))
    angle = size.equals(0.0).select(0.0, 2.0 * x * depth)
    sine = angle.equals(0.0).select(0.0, size * sin(angle))
    mirrored_real, mirrored_imaginary = size * cos(angle) - real, sine + imaginary.signed(x)
    invalid = x.is_nan() | y.is_nan()
    out_real, out_imaginary = below.select(mirrored_real, real), below.select(mirrored_imaginary, imaginary.signed(x))
    return invalid.select(math.nan, out_real), invalid.select(math.nan, out_imaginary)


def _first_quadrant(x: Values, y: Values) -> Pair:
    close = x.compare("ole", 6.0) | (y.compare("ole", 0.1) & x.compare("ole", 8.0)) | (y.compare("ole", 1e-10) & x.compare("ole", 28.0))
    close = close & y.compare("ole", 7.0)
    sums = _sums(close.select(x, 1.0), close.select(y, 1.0))
    fraction = _fraction(close.select(10.0, x.capped(_LARGEST[x.bits])), close.select(10.0, y.capped(_LARGEST[x.bits])))
    return close.select(sums[0], fraction[0]), close.select(sums[1], fraction[1])


def _fraction(x: Values, y: Values) -> Pair:
    """Return i / sqrt(pi) / (z - (1/2) / (z - 1 / (z - (3/2) / (z - …))))."""
    largest = x.at_least(y)
    far = largest.above(_FAR)
    scale = far.select(1.0 / largest, x.like(1.0))
    u, v = x * scale, y * scale

    def level(k: Values, real: Values, imaginary: Values) -> list[Values]:
        ratio = far.select(0.0, (0.5 * (_LEVELS - 1) - 0.5 * k) / (real * real + imaginary * imaginary))
        return [u - real * ratio, v + imaginary * ratio]

    real, imaginary = u.iterated(_LEVELS - 1, level, u, v)
    factor = scale * (1.0 / math.sqrt(math.pi)) / (real * real + imaginary * imaginary)
    return imaginary * factor, real * factor


def _sums(x: Values, y: Values) -> Pair:
    """Return both components by algorithm 916; sums over n begin at n = x / STEP."""
    square = y * y
    decay = exp_minus_square(x)
    even, odd, plain = _gaussian_sums(x, square)
    angle = x * y
    sine, sine_twice, cosine_twice = sin(angle), sin(2.0 * angle), cos(2.0 * angle)
    zero = angle.equals(0.0)
    safe = zero.select(1.0, angle)
    first = decay * (erfc_scaled(y) - _FACTOR * y * plain)
    second = _FACTOR * x * decay
    real = first * cosine_twice + second * sine * zero.select(1.0, sine / safe) + 0.5 * _FACTOR * y * even
    imaginary = second * zero.select(1.0, sine_twice / (2.0 * safe)) - first * sine_twice + 0.5 * _FACTOR * odd
    return real, imaginary


def _gaussian_sums(x: Values, square: Values) -> tuple[Values, Values, Values]:
    """Return three sums over n other than 0, with a = STEP.

    They are of exp(-(a n - x)^2) / (a^2 n^2 + y^2), of a n times that, and of exp(-a^2 n^2) / (a^2 n^2 + y^2) for n > 0. Where x is less
    than half a step, positive and negative n cancel in the second; it is then the sum of hyperbolic sines.
    """
    start = (x * (1.0 / STEP)).nearest()
    rest = start.mad(-STEP, x)
    decay = exp(-(rest * rest))
    growth, shrinking = exp(rest * (2.0 * STEP)), exp(rest * (-2.0 * STEP))
    even, odd = _both(start, square, _GAUSSIAN[0])
    up = down = x.like(1.0)
    for j in range(1, TERMS + 1):
        up, down = up * growth, down * shrinking
        for n, weight in ((start + float(j), up), (start - float(j), down)):
            more_even, more_odd = _both(n, square, _GAUSSIAN[j])
            even, odd = even + weight * more_even, odd + weight * more_odd
    plain, by_sines = _sums_at_zero(rest, (growth + shrinking), square)
    return decay * even, decay * start.equals(0.0).select(by_sines, odd), plain


def _both(n: Values, square: Values, gaussian: float) -> Pair:
    """Return the terms of the even and the odd sum for n, which are 0 for n = 0."""
    point = n * STEP
    zero = n.equals(0.0)
    term = zero.select(0.0, gaussian / zero.select(1.0, point * point + square))
    return term, point * term


def _sums_at_zero(rest: Values, twice_cosine: Values, square: Values) -> Pair:
    """Return the sum without x, and the odd one by sinh((n + 1) t) of the two before."""
    plain = by_sines = rest.like(0.0)
    before, sine = rest.like(0.0), sinh(rest * (2.0 * STEP))
    for n in range(1, TERMS + 1):
        term = _GAUSSIAN[n] / (square + (STEP * n) ** 2)
        plain, by_sines = plain + term, by_sines + (2.0 * STEP * n) * term * sine
        before, sine = sine, twice_cosine * sine - before
    return plain, by_sines
