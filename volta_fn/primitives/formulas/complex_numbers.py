"""Complex numbers: pairs of floats with operators, and functions of them.

Functions other than exp2, expm1, pow and integer_pow are right to some ulps of each component, from the smallest subnormal number to the
largest, and have NumPy's branch cuts. Of infinite components and
NaN they are what C's standard says (annex G), but for expm1 and tanh, which follow the Array API standard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from volta_fn.primitives.formulas import exponential, trigonometric
from volta_fn.primitives.formulas.values import Values, exact_product, exact_sum


class Complex(NamedTuple):
    """re + i im, of a target's own class of `Values`."""

    re: Any
    im: Any

    def __add__(self, other: Complex) -> Complex:  # type: ignore[override]  # tuples add otherwise
        return Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.re - other.re, self.im - other.im)

    def __neg__(self) -> Complex:
        return Complex(-self.re, -self.im)

    def __mul__(self, other: Complex) -> Complex:  # type: ignore[override]  # tuples multiply otherwise
        """Multiply as NumPy does where there is a fused multiply-add."""
        return Complex(self.re.fma(other.re, -(self.im * other.im)), self.re.fma(other.im, self.im * other.re))

    def __truediv__(self, other: Complex) -> Complex:
        """Divide by Smith's algorithm (1962), as NumPy does.

        It divides by the larger component of the divisor, so that no square overflows.
        """
        flat = other.re.abs().compare("oge", other.im.abs())
        large, small = flat.select(other.re, other.im), flat.select(other.im, other.re)
        both_zero = large.abs().equals(0.0)
        ratio = small / large
        scale = 1.0 / (large + small * ratio)
        first, second = flat.select(self.re, self.im), flat.select(self.im, self.re)
        re = (first + second * ratio) * scale
        im = second - first * ratio
        im = flat.select(im, first * ratio - second) * scale
        zero = other.re.abs()
        return Complex(both_zero.select(self.re / zero, re), both_zero.select(self.im / zero, im))

    def squared(self) -> Complex:
        """Return the square by factors: a difference of squares cancels, or is inf - inf."""
        re, im = self.re * 0.5, self.im * 0.5
        difference, total = re - im, re + im
        # A compiler of shaders may halve sums instead, which may be infinite.
        vanishes = difference.equals(0.0) | total.equals(0.0)
        product = (self.re * self.im).opaque()  # twice one of the factors may be infinite
        return Complex(vanishes.select(0.0, difference * total * 4.0), product + product)

    def conj(self) -> Complex:
        """Return re - i im."""
        return Complex(self.re, -self.im)

    def scaled(self, factor: float | Values) -> Complex:
        """Return the product with a real number."""
        return Complex(self.re * factor, self.im * factor)

    def times_i(self) -> Complex:
        """Return the product with i."""
        return Complex(-self.im, self.re)

    def times_minus_i(self) -> Complex:
        """Return the product with -i."""
        return Complex(self.im, -self.re)

    def times_one_plus(self, factor: Complex) -> Complex:
        """Return self * (1 + factor), precisely if `factor` is small."""
        return self + self * factor


#: What is above, below: by which even exponents of two such numbers are scaled, so that squares are normal numbers.
_EXTREMES = {32: (1e15, 1e-15, -66, 96), 64: (1e150, 1e-150, -600, 600)}


def _scales(large: Values, share: float = 1.0) -> tuple[Values, Values]:
    """Return a power of two that makes a square normal, and its inverse ** `share`."""
    most, least, down, up = _EXTREMES[large.bits]
    huge, tiny = large.above(most), large.below(least)
    one = large.like(1.0)
    return (huge.select(2.0**down, tiny.select(2.0**up, one)), huge.select(2.0 ** (-down * share), tiny.select(2.0 ** (-up * share), one)))


def distance(x: Values, y: Values) -> Values:
    """Return sqrt(x^2 + y^2) without squares that overflow or vanish."""
    # float32 computes in float64 where it can; else both are scaled by a power of two.
    infinite = x.abs().equals(math.inf) | y.abs().equals(math.inf)
    if x.bits == 32 and x.widens:
        a, b = x.widened(), y.widened()
        return infinite.select(math.inf, a.fma(a, b * b).sqrt().narrowed())
    inward, outward = _scales(x.abs().at_least(y.abs()))
    a, b = x * inward, y * inward
    root = a.mad(a, b * b).sqrt() * outward
    return infinite.select(math.inf, x.compare("uno", y).select(math.nan, root))


ComplexFormula = Callable[..., Any]


def _of(formula: Callable[..., Any], x: Values, *others: Values) -> Any:
    """Call a function of real numbers."""
    return x.outline(formula.__name__, formula, *others)


def _abs(z: Complex) -> Values:
    return _of(distance, z.re, z.im)


def _rotated(function: Callable[[Complex], Complex]) -> Callable[[Complex], Complex]:
    """Return i f(-i z), as the sine from the hyperbolic sine."""
    return lambda z: function(z.times_minus_i()).times_i()


def _select(condition: Values, yes: Complex, no: Complex) -> Complex:
    return Complex(condition.select(yes.re, no.re), condition.select(yes.im, no.im))


def _infinite(x: Values) -> Values:
    return x.abs().equals(math.inf)


def _undirected(x: Values) -> Values:
    """Return whether an angle is infinite or NaN."""
    return ~x.abs().below(math.inf)


def _product(x: Values, y: Values) -> Values:
    """Return x y, where 0 times infinity is 0."""
    one = x.like(1.0)
    x_wins, y_wins = x.equals(0.0) & _infinite(y), y.equals(0.0) & _infinite(x)
    return x_wins.select(x * one.copysign(y), y_wins.select(y * one.copysign(x), x * y))


def _one(z: Complex) -> Complex:
    return Complex(z.re.like(1.0), z.re.like(0.0))


#: Thresholds above which e^x, and its product with the smallest number, may be infinite.
_GROWTH = {32: (88.0, 104.0), 64: (709.0, 745.0)}


def _times_exp(x: Values, *factors: Values, scale: float = 1.0) -> list[Values]:
    """Return `scale` e^x times factors of at most 1; e^x alone may be infinite.

    0 times infinity is 0.
    """
    most, shift = _GROWTH[x.bits]
    large = x.above(most) & x.below(math.inf)
    power = _of(exponential.exp, large.select(x - shift, x))
    half = large.select(math.exp(shift / 2), x.like(1.0))
    return [_product(factor * (half * scale), power) * half for factor in factors]


def exp(z: Complex) -> Complex:
    """Return e^x (cos y + i sin y)."""
    size = _of(exponential.exp, z.re)
    re, im = _times_exp(z.re, _of(trigonometric.cos, z.im), _of(trigonometric.sin, z.im))
    # At infinity any angle gives a number of that size.
    limit = _undirected(z.im) & _infinite(z.re)
    vanishes = z.im.equals(0.0) | (limit & z.re.below(0.0))
    return Complex(limit.select(size, re), vanishes.select(size.like(0.0).copysign(z.im), im))


def expm1(z: Complex) -> Complex:
    """Re = (e^x - 1) cos y - 2 sin(y/2)^2; at infinity as the Array API standard says."""
    less, half = _of(exponential.expm1, z.re), _of(trigonometric.sin, z.im * 0.5)
    undirected = _infinite(z.re) & _undirected(z.im)
    re = undirected.select(less, less * _of(trigonometric.cos, z.im) - half * half * 2.0)
    (im,) = _times_exp(z.re, _of(trigonometric.sin, z.im))
    im = (undirected & z.re.below(0.0)).select(0.0, im)
    return Complex(re.equals(0.0).select(0.0, re), z.im.equals(0.0).select(z.im, im))


#: The exponent of two by which subnormal numbers become normal.
_RAISED = {32: 32, 64: 64}


def _log_distance(x: Values, y: Values) -> Values:
    """Return log sqrt(x^2 + y^2)."""
    # Near the unit circle the squares' difference from 1 is taken.
    a, b = x.abs(), y.abs()
    large, small = a.at_least(b), a.at_most(b)
    near = large.above(0.5) & large.below(2.0) & ~x.compare("uno", y)
    around = _of(exponential.log1p, _less_one(large - 1.0, small)) * 0.5
    huge, tiny = large.above(1e30), large.below(1e-30)  # where the distance may overflow, or be subnormal
    scale = huge.select(0.25, tiny.select(2.0 ** _RAISED[x.bits], x.like(1.0)))
    added = huge.select(math.log(4.0), tiny.select(-_RAISED[x.bits] * math.log(2.0), x.like(0.0)))
    return near.select(around, _of(exponential.log, _of(distance, x * scale, y * scale)) + added)


def log(z: Complex) -> Complex:
    """Return log |z| + i arg z."""
    return Complex(_of(_log_distance, z.re, z.im), _of(trigonometric.atan2, z.im, z.re))


def _less_one(x: Values, y: Values) -> Values:
    """Return (1 + x)^2 + y^2 - 1, which may be much smaller than its terms."""
    if x.bits == 32 and x.widens:
        a, b = x.widened(), y.widened()
        return a.fma(a, b.fma(b, a + a)).narrowed()
    (a, a_rest), (b, b_rest) = exact_product(x, x), exact_product(y, y)
    total, rest = exact_sum(x + x, b)
    total, more = exact_sum(total, a)
    return total + (rest + more + (a_rest + b_rest))


def log1p(z: Complex) -> Complex:
    """Return log |1 + z| = log1p(2 x + x^2 + y^2) / 2, and the angle."""
    x, y = z.re, z.im
    less = _less_one(x, y)
    near = less.abs().below(0.75) & x.abs().below(3.0) & y.abs().below(3.0)
    size = near.select(_of(exponential.log1p, less) * 0.5, _of(_log_distance, x + 1.0, y))
    return Complex(size, _of(trigonometric.atan2, y, x + 1.0))


def sqrt(z: Complex) -> Complex:
    """Return the root whose real component is not negative."""
    # The larger component comes first, the other by division.
    size = z.re.abs()
    inward, outward = _scales(size.at_least(z.im.abs()), 0.5)
    large = ((_of(distance, z.re * inward, z.im * inward) + size * inward) * 0.5).sqrt() * outward
    small = large.equals(0.0).select(0.0, z.im.abs() / (large + large))
    large = (_infinite(z.re) | _infinite(z.im)).select(math.inf, large)
    small = _infinite(z.im).select(math.inf, _infinite(z.re).select(z.im.is_nan().select(z.im, 0.0), small))
    left = z.re.below(0.0)
    return Complex(left.select(small, large), left.select(large, small).copysign(z.im))


def _moderation(large: Values) -> Values:
    """Return a power of two that makes an absolute value normal and finite."""
    return large.above(1e38).select(0.5, large.below(1e-30).select(2.0 ** _RAISED[large.bits], large.like(1.0)))


#: Below this a quotient may have lost digits.
_SMALL = {32: 1e-37, 64: 1e-307}


def reciprocal(z: Complex) -> Complex:
    """Return 1 / z, as NumPy does: division has other signs of zero."""
    flat = z.im.abs().compare("ole", z.re.abs())
    large, small = flat.select(z.re, z.im), flat.select(z.im, z.re)
    ratio = small / large
    factor = _moderation(large.abs())
    below = large * factor + small * factor * ratio
    inverse = factor / below
    lost = ratio.abs().below(_SMALL[large.bits]) & ratio.abs().above(0.0)
    other = lost.select(small / (large * below), ratio * factor / below)
    return Complex(flat.select(inverse, other), -flat.select(other, inverse))


def rsqrt(z: Complex) -> Complex:
    """Return 1 / sqrt(z)."""
    return reciprocal(sqrt(z))


def logistic(z: Complex) -> Complex:
    """Return 1 / (1 + e^-z), on the left as e^z / (1 + e^z)."""
    left = z.re.below(0.0)
    power = exp(_select(left, z, -z))
    return _select(left, power, _one(z)) / (_one(z) + power)


def _grown(x: Values, direction: Complex, usual: Complex) -> Complex:
    """Return a direction times e^|x| / 2 where that may be infinite, else `usual`."""
    large = x.abs().above(_GROWTH[x.bits][0]) & x.abs().below(math.inf)
    return _select(large, Complex(*_times_exp(x.abs(), direction.re, direction.im, scale=0.5)), usual)


def sinh(z: Complex) -> Complex:
    """Return sinh x cos y + i cosh x sin y."""
    cos, sin = _of(trigonometric.cos, z.im), _of(trigonometric.sin, z.im)
    re, im = _product(_of(exponential.sinh, z.re), cos), _product(sin, _of(exponential.cosh, z.re))
    re, im = _grown(z.re, Complex(z.re.like(1.0).copysign(z.re) * cos, sin), Complex(re, im))
    re = _undirected(z.im).select(z.re.equals(0.0).select(z.re, _infinite(z.re).select(math.inf, re)), re)
    return Complex(re, z.im.equals(0.0).select(z.im, im))


def cosh(z: Complex) -> Complex:
    """Return cosh x cos y + i sinh x sin y."""
    cos, sin = _of(trigonometric.cos, z.im), _of(trigonometric.sin, z.im)
    re, im = _product(_of(exponential.cosh, z.re), cos), _product(_of(exponential.sinh, z.re), sin)
    re, im = _grown(z.re, Complex(cos, z.re.like(1.0).copysign(z.re) * sin), Complex(re, im))
    any_angle = _undirected(z.im) & _infinite(z.re)
    im = (_undirected(z.im) & z.re.equals(0.0)).select(0.0, (z.im.equals(0.0) & z.re.is_nan()).select(z.im, im))
    return Complex(any_angle.select(math.inf, re), im)


def tanh(z: Complex) -> Complex:
    """Kahan's form, with s = sinh x and t = tan y; far out 1 + 4 i e^-2x sin y cos y.

    At infinity the imaginary component is 0 with the sign of y.
    """
    size = z.re.abs().min_keep_nan(11.0 * z.re.bits / 32)
    s, t = _of(exponential.sinh, size), _of(trigonometric.tan, z.im)
    beta = t.mad(t, 1.0)
    below = beta.mad(s * s, 1.0)
    near = Complex(beta * s.mad(s, 1.0).sqrt() * s / below, t / below)
    one = (_undirected(z.im) & ~_infinite(z.re)).select(math.nan, s.like(1.0))
    far = Complex(one, _of(trigonometric.sin, z.im) * _of(trigonometric.cos, z.im) * _of(exponential.exp, z.re.abs() * -2.0) * 4.0)
    result = _select(z.re.abs().above(10.0 * z.re.bits / 32), far, near)
    im = z.re.abs().equals(math.inf).select(s.like(0.0).copysign(z.im), result.im)
    return Complex(z.re.equals(0.0).select(z.re, result.re.copysign(z.re)), z.im.equals(0.0).select(z.im, im))


def _asin_components(z: Complex) -> tuple[Values, Values, Values]:
    """Return |Re asin z|, |Re acos z| mirrored to the first quadrant, and |Im|."""
    # After Hull, Fairgrieve and Tang (1997). Instead of their rare cases, y is taken out of sums of its squares, which may vanish, and far
    # out asin z is -i log 2iz.
    x, y = z.re.abs(), z.im.abs()
    far = x.above(1e9) | y.above(1e9)
    r, s = [_of(distance, x + d, y) for d in (1.0, -1.0)]
    a = (r + s) * 0.5
    outside = x.above(1.0)
    sum_right, sum_left = r + (x + 1.0), s + (x - 1.0).abs()
    rise = y / sum_right  # (r - (x + 1)) / y
    other = sum_left.equals(0.0).select(0.0, y / sum_left)  # (s - |x - 1|) / y, at most 1
    less = outside.select(y * rise + sum_left, y * (rise + other)) * 0.5  # a - 1
    root = outside.select((less * (a + 1.0)).sqrt(), y.sqrt() * ((rise + other) * ((a + 1.0) * 0.5)).sqrt())
    half = (a + x) * 0.5
    leg = outside.select(y * (half * (1.0 / sum_right + 1.0 / sum_left)).sqrt(), (half * (y * rise + sum_left)).sqrt())
    size = _of(exponential.log1p, less + root)
    size, leg = far.select(_of(_log_distance, x, y) + math.log(2.0), size), far.select(y, leg)
    # At infinity only the directions count.
    infinite = _infinite(x) | _infinite(y)
    x = infinite.select(_infinite(x).select(1.0, x.is_nan().select(x, 0.0)), x)
    leg = infinite.select(_infinite(y).select(1.0, y.is_nan().select(y, 0.0)), (x.equals(0.0) & y.is_nan()).select(1.0, leg))
    size = infinite.select(math.inf, size)
    return _of(trigonometric.atan2, x, leg), _of(trigonometric.atan2, leg, x), size


def asin(z: Complex) -> Complex:
    """Odd, and conjugate where the argument is."""
    re, _, im = _asin_components(z)
    return Complex(re.copysign(z.re), im.copysign(z.im))


def asinh(z: Complex) -> Complex:
    """Return i asin(-i z), with the signs of z itself.

    The sign of -NaN depends on the target.
    """
    im, _, re = _asin_components(Complex(z.im, z.re))
    return Complex(re.copysign(z.re), im.copysign(z.im))


def acos(z: Complex) -> Complex:
    """Left of the imaginary axis pi less that of the mirror image."""
    _, re, im = _asin_components(z)
    left = z.re.as_bits().below(0)
    return Complex(left.select(math.pi - re, re), (-im.copysign(z.im)))


def acosh(z: Complex) -> Complex:
    """Return i acos z, rotated such that the real part is not negative."""
    angle = acos(z)
    return Complex(angle.im.abs(), angle.re.copysign(z.im))


#: The least number whose square does not change when 1 is added.
_FAR = {32: 1e7, 64: 1e14}


def atanh(z: Complex) -> Complex:
    """Return log1p(4 x / ((1 - x)^2 + y^2)) / 4 + i arg(1 - |z|^2 + 2 i y) / 2."""
    x, y = z.re.abs(), z.im
    far = x.above(_FAR[x.bits]) | y.abs().above(_FAR[x.bits])
    rest = 1.0 - x
    square = rest.mad(rest, y * y)
    re = _of(exponential.log1p, x * 4.0 / square) * 0.25
    pole = (math.log(2.0) - _of(_log_distance, rest, y)) * 0.5  # where the square may vanish
    re = square.below(1e-30).select(pole, re)
    im = _of(trigonometric.atan2, y + y, rest.mad(x + 1.0, -(y * y))) * 0.5
    quarter, size = x * 0.25, _of(distance, x * 0.25, y * 0.25)
    right_angle = (y.is_nan() | (x.is_nan() & ~_infinite(y))).select(math.nan, x.like(math.pi / 2).copysign(y))
    vanishes = _infinite(x) | _infinite(y) | (x.equals(0.0) & y.is_nan())
    re = vanishes.select(0.0, far.select(quarter / size / size * 0.25, re))
    return Complex(re.copysign(z.re), far.select(right_angle, im))


def pow(z: Complex, w: Complex) -> Complex:  # the primitive's name
    """Return e^(w log z); 1 for w = 0, and 0 for z = 0 where Re w > 0."""
    power = exp(w * log(z))
    z_zero, w_zero = z.re.equals(0.0) & z.im.equals(0.0), w.re.equals(0.0) & w.im.equals(0.0)
    at_zero = Complex(w.re.above(0.0).select(0.0, z.re.like(math.nan)), w.re.above(0.0).select(0.0, z.re.like(math.nan)))
    return _select(w_zero, _one(z), _select(z_zero, at_zero, power))


def sign(z: Complex) -> Complex:
    """Return z / |z|, and 0 for 0, as NumPy does.

    One infinite component gives its direction, two NaN; a component that is NaN does not count if the other is infinite.
    """
    re_infinite, im_infinite = z.re.abs().equals(math.inf), z.im.abs().equals(math.inf)
    z = z.scaled(_moderation(z.re.abs().at_least(z.im.abs())))
    size = _abs(z)
    one = z.re.like(1.0)
    along_re = re_infinite.select(one.copysign(z.re), im_infinite.select(0.0, z.re / size))
    along_im = im_infinite.select(one.copysign(z.im), re_infinite.select(0.0, z.im / size))
    both, zero = re_infinite & im_infinite, size.equals(0.0)
    return Complex(*[both.select(math.nan, zero.select(0.0, component)) for component in (along_re, along_im)])


def _extremum(first_wins: Callable[[Values, Values], Values]) -> ComplexFormula:
    """Compare the real components, and of equal ones the imaginary ones.

    NaN wins; of two the first.
    """

    def operation(z: Complex, w: Complex) -> Complex:
        beyond, even = first_wins(z.re, w.re), z.re.equals(w.re)
        no_nan = ~z.im.compare("uno", w.im)
        at_least = first_wins(z.im, w.im) | z.im.equals(w.im)
        return _select((beyond & no_nan) | (even & at_least) | z.re.compare("uno", z.im), z, w)

    return operation


def integer_pow(z: Complex, *, y: int) -> Complex:
    """Return an integer power; a negative one is a reciprocal."""
    power = exponential.repeated_product(z, abs(y), Complex.squared) if y else _one(z)
    return reciprocal(power) if y < 0 else power


#: The formulas of complex numbers, by the names of primitives.
COMPLEX: dict[str, ComplexFormula] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "conj": lambda x: x.conj(),
    "real": lambda x: x.re,
    "imag": lambda x: x.im,
    "eq": lambda x, y: x.re.equals(y.re) & x.im.equals(y.im),
    "ne": lambda x, y: x.re.compare("une", y.re) | x.im.compare("une", y.im),
    "max": _extremum(lambda x, y: x.above(y)),
    "min": _extremum(lambda x, y: x.below(y)),
    "exp": exp,
    "exp2": lambda z: exp(z.scaled(math.log(2.0))),
    "expm1": expm1,
    "log": log,
    "log2": lambda z: log(z).scaled(1 / math.log(2.0)),
    "log1p": log1p,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "logistic": logistic,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "sin": _rotated(sinh),
    "cos": lambda z: cosh(z.times_i()),
    "tan": _rotated(tanh),
    "asin": asin,
    "acos": acos,
    "atan": _rotated(atanh),
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "pow": pow,
    "sign": sign,
    "integer_pow": integer_pow,
    "abs": _abs,
}
