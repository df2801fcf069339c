"""Exponentials, logarithms, powers, hyperbolic functions, and exact operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn.primitives.formulas.values import BIAS, SIGNIFICAND, Values, exact_product, exact_sum_ordered, in_float64, of_numpy

# Exponentials and hyperbolic functions.
#
# All of them take a power of two out of the argument, x = n ln 2 + r with |r| <= ln(2) / 2, and have a polynomial for exp(r) - 1. ln 2 is
# subtracted as two floats with fused multiply-adds, so that r is as good as exact.

#: (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2, by width: with errors of 2^-26 r and 2^-60 r.
_EXPM1: dict[int, tuple[float, ...]] = {
    32: (0.00139406556, 0.00836640596, 0.0416664034, 0.16666545, 0.5),
    64: (
        2.0914717357800723e-09, 2.5105259538448494e-08, 2.7557273570048957e-07, 2.7557255297969643e-06, 2.4801587325605388e-05,
        0.00019841269874901259, 0.0013888888888883731, 0.0083333333333261116, 0.041666666666666671, 0.16666666666666671, 0.5,
    ),
}  # fmt: skip

#: 2^r for |r| <= 1/2: with errors of 2^-28 and 2^-56.
_EXP2: dict[int, tuple[float, ...]] = {
    32: (0.000154628797, 0.00133910007, 0.00961806253, 0.0555035956, 0.240226507, 0.693147182, 1.0),
    64: (
        2.57293853189062e-11, 4.4558302608529773e-10, 7.0548972697432176e-09, 1.0178057018210436e-07, 1.3215486808772514e-06,
        1.5252733841692036e-05, 0.0001540353039337068, 0.0013333558146416, 0.0096181291076284803, 0.055504108664821625,
        0.24022650695910072, 0.69314718055994529, 1.0,
    ),
}  # fmt: skip

#: (sinh(x) - x) / x^3 in powers of x^2, for |x| <= 1.
_SINH: dict[int, tuple[float, ...]] = {
    32: (0.000203766336, 0.00833022315, 0.166667178),
    64: (
        7.7461785930188273e-13, 1.6057679623801638e-10, 2.5052117695907823e-08, 2.7557319191381816e-06, 0.00019841269841324198,
        0.0083333333333332985, 0.16666666666666666,
    ),
}  # fmt: skip

LOG2_E = 1.4426950408889634
LN2 = {32: (0.693147182464599609375, -1.904654299957767878541e-9), 64: (0.69314718055994529, 2.3190468138462996e-17)}
#: The same with so few bits in the first term that its product with n is exact.
LN2_SHORT = 0.693145751953125, 1.428606820309417e-06
#: exp of them is 0, infinite, and twice infinite.
_LOW, _HIGH = {32: -104.0, 64: -746.0}, {32: 89.0, 64: 710.0}
#: Between them exp in float32 is a normal number.
_NORMAL = -87.33654, 88.72283


class _Reduced(NamedTuple):
    """x = n ln 2 + r; `exponent` is n + plus + the bias, modulo some power of two."""

    n: Values
    r: Values
    exponent: Values

    @property
    def power(self) -> Values:
        """2^(n + plus), if that is a normal number."""
        return (self.exponent << SIGNIFICAND[self.r.bits]).as_float()


def _reduced(x: Values, plus: int = 0, factor: int = 1) -> _Reduced:
    """Reduce `factor` x, a power of 2; r is to be multiplied by it, too."""
    high, low = LN2[x.bits]
    n, exponent = x.round_scaled(LOG2_E * factor, offset=BIAS[x.bits] + plus)
    return _Reduced(n, n.fma(-low / factor, n.fma(-high / factor, x)), exponent)


def _expm1_reduced(r: Values) -> Values:
    square = r * r
    return square.fma(r.polynomial(_EXPM1[r.bits], square), r)


@of_numpy(np.exp)
def exp(x: Values) -> Values:
    """Return e^x."""
    return _halved_exp(x, 0)


def _halved_exp(x: Values, halvings: int) -> Values:
    """Return e^x 2^-halvings."""
    normal = x.flushes and not halvings

    def inside(x: Values) -> Values:
        n, r, exponent = _reduced(x, -BIAS[x.bits])
        power = r.polynomial((*_EXPM1[x.bits], 1.0, 1.0))
        return power.ldexp_normal(exponent) if normal else power.ldexp(n - float(halvings) if halvings else n)

    low, high = _NORMAL if normal else (_LOW[x.range], _HIGH[x.range] + halvings)
    return x.bounded(low, high, inside, 0.0, math.inf)


@of_numpy(np.exp2)
def exp2(x: Values) -> Values:
    """Return 2^x."""
    n, power = _exp2_reduced(x)
    return power.ldexp(n)


def exp2_of_sum(x: Values, rest: Values) -> Values:
    """Return 2^(x + rest), where |rest| is a small fraction of |x|."""
    n, power = _exp2_reduced(x)
    most = {32: 1e-4, 64: 1e-9}[x.bits]
    return (power * LN2[x.bits][0]).fma(rest.clamped(-most, most), power).ldexp(n)


def _exp2_reduced(x: Values) -> tuple[Values, Values]:
    """Return n and 2^r with x = n + r."""
    bounded = x.clamped(1.45 * _LOW[x.bits], 1.45 * _HIGH[x.bits])
    n = bounded.small_integer()
    return n, (bounded - n).polynomial(_EXP2[x.bits])


@of_numpy(np.expm1)
def expm1(x: Values) -> Values:
    """Return e^x - 1, at half the size, since 2^n may overflow alone."""
    # Half of a subnormal number is none; of small numbers e^x - 1 is x.
    if x.is_pair:
        n, r, _ = _reduced(x.clamped(-0.75 * x.bits, _HIGH[x.range]))
        return _expm1_reduced(r).ldexp(n) + (x.like(1.0).ldexp(n) - 1.0)
    doubled = (_half_expm1(x.clamped(-0.75 * x.bits, _HIGH[x.bits])) * 2.0).copysign(x)
    return x.abs().below(1e-30).select(x, doubled)


def _half_expm1(x: Values) -> Values:
    """Return (e^x - 1) / 2, where 2^(n - 1) is a normal number."""
    # It is 2^(n - 1) (e^r - 1) + (2^(n - 1) - 1/2).
    reduced = _reduced(x, -1)
    half = reduced.power
    return half.fma(_expm1_reduced(reduced.r), half - 0.5)


def _half_expm1_of_double(x: Values) -> Values:
    """Return (e^(2 x) - 1) / 2, where 2^n is a normal number."""
    # The factors of 2 are in the constants.
    reduced = _reduced(x, factor=2)
    r, power = reduced.r, reduced.power
    square, series = r * r, _EXPM1[x.bits]
    doubled = [c * 2.0 ** (len(series) - k) for k, c in enumerate(series)]
    return power.fma(square.fma(r.polynomial(doubled, square), r), power.fma(0.5, -0.5))


def expm1_and_power(x: Values, rest: Values, plus: int) -> tuple[Values, Values]:
    """Return m and p with e^(x + rest) = (1 + m) p 2^-plus, in float32.

    The rest is small; p is a power of two, and a normal number.
    """
    reduced = _reduced(x, plus)
    high, low = LN2_SHORT
    return _expm1_reduced(reduced.n.fma(-high, x) + reduced.n.fma(-low, rest)), reduced.power


@of_numpy(lambda x: -np.expm1(x))
def one_less_exp(x: Values) -> Values:
    """Return 1 - e^x, where 2^n is a normal number."""
    reduced = _reduced(x)
    power = reduced.power
    return (-power).fma(_expm1_reduced(reduced.r), 1.0 - power)


def tanh(x: Values) -> Values:
    """Return h / (h + 1) with h = (e^(2|x|) - 1) / 2."""
    # For small h the division gives only the small difference from h. From some point on it is 1, so x may be bounded, and no power
    # overflows.
    half = _half_expm1_of_double(x.abs().min_keep_nan(10.0 * x.bits / 32))
    ratio = half.divide_bounded(half + 1.0)
    return half.below(0.5).select((-half).fma(ratio, half), ratio).copysign(x)


def logistic(x: Values) -> Values:
    """Return 1 / (1 + e^-x) without overflow."""
    # On the left it is e^x / (1 + e^x), and far on the left e^x less that times e^x.
    power = exp(-x.abs())
    ratio = x.below(0.0).select(power, 1.0).divide_bounded(power + 1.0)
    return x.below(-1.0).select((-power).fma(ratio, power), ratio)


def sinh(x: Values) -> Values:
    """Return a polynomial up to 1, and beyond (e^|x| - e^-|x|) / 2."""
    size, square = x.abs(), x * x
    half = _halved_exp(size, 1)
    near = (size * square).fma(square.polynomial(_SINH[x.bits]), size)
    return size.below(1.0).select(near, half - 0.25 / half).copysign(x)


def cosh(x: Values) -> Values:
    """Return (e^|x| + e^-|x|) / 2."""
    half = _halved_exp(x.abs(), 1)
    return half + 0.25 / half


# Logarithms (log, log2, log1p), and functions made of them: asinh, acosh, atanh.
#
# x = 2^k (1 + f) with 3/4 <= 1 + f < 3/2, so that k = 0 around 1 and log(1 + f) = f - t is precise there.

#: (log(1 + f) - f + f^2 / 2) / f^3 for -1/4 <= f <= 1/2: with an error of 2^-27 log(1 + f).
_LOG_32 = (-0.0451522246, 0.104725547, -0.131639421, 0.144776314, -0.166468784, 0.19990848, -0.250001103, 0.333334506)

#: (2 atanh(s) - 2 s) / s^3 in powers of s^2, for |s| <= 1/5: with an error of 2^-59 s.
_LOG_64 = (
    0.13612072300800057, 0.13209311771359084, 0.15388887982938487, 0.18181737120722347, 0.22222223054799634, 0.28571428567237178,
    0.40000000000008029, 0.66666666666666663,
)  # fmt: skip

#: ln 2 as a sum of two positive floats: where k is infinite, k ln 2 is so in both.
_LN2 = {32: (0.6931471228599548, 5.7699990475432854e-08), 64: LN2[64]}

#: The series of 2 atanh(s) = 2 s + 2/3 s^3 + s^5 (…), and what rounding takes from 2/3 and log2(e).
_ATANH_REST: dict[int, tuple[float, ...]] = {
    32: (2 / 15, 2 / 13, 2 / 11, 2 / 9, 2 / 7, 2 / 5),
    64: (
    0.11259879534127329, 0.10391355628363148, 0.11770271925847203, 0.13333200421271557, 0.15384617242704815, 0.18181818167256186,
    0.22222222222279311, 0.28571428571428487, 0.40000000000000002,
    ),
}  # fmt: skip
_TWO_THIRDS_REST = {32: 2 / 3 - float(np.float32(2 / 3)), 64: 3.700743415417188e-17}
_LOG2_E_REST = {32: LOG2_E - float(np.float32(LOG2_E)), 64: 2.0355273740931033e-17}

#: The bits of 3/4.
_THREE_QUARTERS = {32: 0x3F400000, 64: 0x3FE8000000000000}


class _Split(NamedTuple):
    """x = 2^k (1 + f); `shift` is k in the bits of the exponent."""

    k: Values
    f: Values
    shift: Values


def _split(x: Values) -> _Split:
    """Split a positive finite normal x."""
    bits = x.as_bits() - _THREE_QUARTERS[x.bits]
    significand = (1 << SIGNIFICAND[x.bits]) - 1
    f = ((bits & significand) + _THREE_QUARTERS[x.bits]).as_float() - 1.0
    k = bits.shift_right(SIGNIFICAND[x.bits], signed=True).small_float()
    return _Split(k, f, bits & ~significand)


def _split_any(x: Values) -> _Split:
    """Split a positive finite x; subnormal numbers are made normal first."""
    digits = SIGNIFICAND[x.bits] + 1
    tiny = x.below(2.0 ** (1 - BIAS[x.bits]))
    k, f, shift = _split(tiny.select(x * 2.0**digits, x))
    return _Split(tiny.select(k - float(digits), k), f, shift)


def _less(f: Values, k: Values | None = None) -> Values:
    """Return t, where log(1 + f) = f - t; with k, less the small part of k ln 2."""
    rest = None if k is None else k * -_LN2[f.bits][1]
    if f.bits == 32:
        square = f * f
        inner = (-f).fma(f.polynomial(_LOG_32, square), 0.5)
    else:
        square = f / (f + 2.0)
        z = square * square
        inner = (-z).fma(z.polynomial(_LOG_64), f)
    return square * inner if rest is None else square.fma(inner, rest)


def _finished(result: Values, x: Values) -> Values:
    """Replace the logarithm of 0, negative numbers, infinity and NaN."""
    outside = x.equals(0.0).select(-math.inf, x.like(math.nan))
    return x.above(0.0).select(x.below(math.inf).select(result, x), outside)


def _logarithm(x: Values, combine: Callable[[Values, Values], Values]) -> Values:
    """Return the logarithm of any x from that of k and f."""
    # Instructions, if there are any, split special x such that its formula is right.
    if x.is_pair:
        k = _split_any(x.narrowed()).k.widened()
        return _finished(combine(k, x.ldexp(-k) - 1.0), x)
    if (by_instructions := x.exponent_and_significand()) is not None:
        k, significand = by_instructions
        return combine(significand.below(1.0).select(k + 1.0, k), significand - 1.0)
    split = _split_any(x)
    return _finished(combine(split.k, split.f), x)


def _natural(k: Values, f: Values) -> Values:
    return k.fma(_LN2[f.bits][0], f - _less(f, k))


@of_numpy(np.log)
def log(x: Values) -> Values:
    """Return the natural logarithm."""
    return _logarithm(x, _natural)


@of_numpy(np.log2)
def log2(x: Values) -> Values:
    """Return the logarithm to base 2, exact for powers of 2."""
    return _logarithm(x, lambda k, f: (f - _less(f)).fma(LOG2_E, k))


def log2_as_sum(x: Values) -> tuple[Values, Values]:
    """Return the logarithm to base 2 as a sum of two floats.

    It has a dozen digits more than one float. With s = f / (2 + f), log(1 + f) = 2 s + 2/3 s^3 + …; the first two terms are kept as sums of
    two floats. For x = 0, infinity, NaN the first one is all.
    """
    k, f, _ = _split_any(x)
    below, below_error = exact_sum_ordered(2.0, f)
    high = f / below
    low = ((-high).fma(below, f) - high * below_error) / below
    square, square_error = exact_product(high, high)
    square_error = square_error + high * low * 2.0
    cubic, cubic_error = exact_product(square, high)
    cubic_error = cubic_error + square_error * high + square * low
    third, third_error = exact_product(cubic, 2.0 / 3.0)
    third_error = (
        third_error + cubic_error * (2.0 / 3.0) + cubic * _TWO_THIRDS_REST[x.bits] + cubic * square * square.polynomial(_ATANH_REST[x.bits])
    )
    total, error = exact_sum_ordered(high * 2.0, third)
    error = error + third_error + low * 2.0
    scaled, scaled_error = exact_product(total, LOG2_E)
    scaled_error = scaled_error + total * _LOG2_E_REST[x.bits] + error * LOG2_E
    first, rest = exact_sum_ordered(k, scaled)
    rest = rest + scaled_error
    result, result_rest = exact_sum_ordered(first, rest)
    ordinary = x.above(0.0) & x.below(math.inf)
    return _finished(result, x), ordinary.select(result_rest, 0.0)


@of_numpy(np.log1p)
def log1p(x: Values) -> Values:
    """Return log(1 + x)."""
    # The exponent is that of 1 + x rounded, but f = 2^-k x + (2^-k - 1) is made of x itself.
    total = x + 1.0
    if x.is_pair:
        return log(total) + (x - (total - 1.0)) / total
    k, _, shift = _split(total)
    one = x.like(1.0).as_bits()
    most = shift.above(one - (1 << SIGNIFICAND[x.bits])).select(one - (1 << SIGNIFICAND[x.bits]), shift)
    f = (x.as_bits() - shift).as_float() + ((one - most).as_float() - 1.0)
    return _finished(_natural(k, f), total).copysign(x)


def logaddexp(x: Values, y: Values) -> Values:
    """Return log(e^x + e^y) = max + log1p(e^-|x - y|)."""
    # Equal infinities, whose difference is NaN, add log 2 to themselves.
    distance = x.equals(y).select(0.0, (x - y).abs())
    largest = (x.is_nan() | y.is_nan()).select(x + y, x.at_least(y))
    return largest + log1p(exp(-distance))


#: From here on x^2 + 1 is x^2.
_LARGE = {32: 2.0**13, 64: 2.0**28}


@in_float64
def asinh(x: Values) -> Values:
    """Return log(|x| + sqrt(x^2 + 1))."""
    # Near 1 it is a log1p; where x^2 might overflow, the argument is 2|x|.
    size = x.abs()
    square = size * size
    near = log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    return size.below(_LARGE[x.bits]).select(near, log(size) + math.log(2.0)).copysign(x)


@in_float64
def acosh(x: Values) -> Values:
    """Return log(x + sqrt(x^2 - 1)); NaN below 1."""
    # With t = x - 1 it is log1p(t + sqrt(2 t + t^2)).
    t = x - 1.0
    near = log1p(t + t.fma(t, t + t).sqrt())
    return x.below(1.0).select(math.nan, x.below(_LARGE[x.bits]).select(near, log(x) + math.log(2.0)))


@in_float64
def atanh(x: Values) -> Values:
    """Return log((1 + x) / (1 - x)) / 2, as log1p of 2 x / (1 - x)."""
    size = x.abs()
    return (log1p((size + size) / (1.0 - size)) * 0.5).copysign(x)


# Powers and cube roots.


@of_numpy(np.power)
def pow(x: Values, y: Values) -> Values:  # the primitive's name
    """Return x^y = 2^(y log2 |x|)."""
    # The logarithm has a dozen digits more than the result: float32 computes in float64 if it can.
    size = x.abs()
    if x.bits == 32 and x.widens:
        exponent = log2(size.widened()) * y.widened()
        power = exp2(exponent).narrowed()
    elif x.is_pair:
        power = exp(y * log(size))
    else:
        power = _power_by_sum(size, y)
    return _special(x, y, power)


def _power_by_sum(size: Values, y: Values) -> Values:
    high, low = log2_as_sum(size)
    most = {32: 1e30, 64: 1e290}[y.bits]
    factor = y.clamped(-most, most)
    product, error = exact_product(high, factor)
    total, more = exact_sum_ordered(product, error + low * factor)
    ordinary = high.abs().below(math.inf)
    return exp2_of_sum(ordinary.select(total, product), ordinary.select(more, 0.0))


def _special(x: Values, y: Values, power: Values) -> Values:
    """Return x^y from |x|^y, as C defines it.

    It is 1 for x = 1 and for y = 0 even with NaN; of negative x there are only integer powers.
    """
    size, infinite = x.abs(), y.abs().equals(math.inf)
    one = size.equals(1.0)
    power = (infinite & one).select(1.0, power)
    integral = y.trunc().equals(y)
    half = y * 0.5
    odd = integral & half.trunc().compare("one", half) & y.abs().below(2.0 ** (24 if x.bits == 32 else 53))
    negative = x.as_bits().below(0)
    power = (negative & odd).select(-power, power)
    nowhere = negative & ~integral & size.above(0.0) & size.below(math.inf)
    power = nowhere.select(math.nan, power)
    power = (x.is_nan() | y.is_nan()).select(x + y, power)
    return (x.equals(1.0) | y.equals(0.0)).select(1.0, power)


@in_float64
def cbrt(x: Values) -> Values:
    """Return 2^(log2(|x|) / 3), and a step of Newton's with an exact residual."""
    # Powers of 8 keep cubes in range.
    finite = x.abs().below(math.inf)
    return finite.select(_cbrt_finite(finite.select(x, 1.0)), x)


def _cbrt_finite(x: Values) -> Values:
    size, digits = x.abs(), {32: 20, 64: 100}[x.bits]
    large = size.above(1.0)
    scaled = size * large.select(2.0 ** (-3 * digits), x.like(2.0 ** (3 * digits)))
    root = exp2(log2(scaled) * (1.0 / 3.0))
    square, error = exact_product(root, root)
    cube, rest = exact_product(square, root)
    residual = (cube - scaled) + error.fma(root, rest)
    better = root - residual / (square * 3.0)
    result = better * large.select(2.0**digits, x.like(2.0**-digits))
    return size.equals(0.0).select(x, result.copysign(x))


def integer_pow(x: Any, *, y: int) -> Any:
    """Raise x to an integer power known beforehand.

    x is a value with operators, multiplied in the order of repeated squaring. Only floats have the power 0 and negative ones.
    """
    if y == 0:
        return x.like(1)
    power = repeated_product(x, abs(y), lambda square: square * square)
    return 1.0 / power if y < 0 else power


def repeated_product(x: Any, count: int, squared: Callable[[Any], Any]) -> Any:
    """Return the product of `count` times x, by repeated squaring."""
    result, square = None, x
    while count:
        if count & 1:
            result = square if result is None else result * square
        count >>= 1
        square = squared(square) if count else square
    return result


# Floats: the operations that are exact, or rounded once, with NumPy's bits.

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
    return (x.compare("ueq", 0.0)).select(x.abs(), x.like(1.0).copysign(x))  # of NaN and zeros, which lose their signs


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

#: Operations whose results need no rounding to float16 or bfloat16, if the operands are of that dtype.
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
    "round": lambda x: x.round_half_away(),
    "round_half_even": lambda x: x.nearest(),
    "is_finite": _is_finite,
}

FLOAT: dict[str, Operation] = {**EXACT, **_ONCE}

_MAX, _MIN = _extremum_first("oge"), _extremum_first("ole")
HALF: dict[str, Operation] = {**FLOAT, "max": _MAX, "min": _MIN, "clamp": _clamp(_MAX, _MIN)}

#: Operations that depend on a number's own dtype, and so have no formula for float16 and bfloat16.
NATIVE_ONLY: dict[str, Operation] = {"nextafter": _nextafter, "fma": lambda x, y, z: x.fma(y, z)}
