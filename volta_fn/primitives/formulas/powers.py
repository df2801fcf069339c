"""Powers and cube roots."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.primitives.formulas.exponential import exp2, exp2_of_sum
from volta_fn.primitives.formulas.logarithm import log2, log2_as_sum
from volta_fn.primitives.formulas.numpy_values import of_numpy
from volta_fn.primitives.formulas.precision import exact_product, exact_sum_ordered, in_float64
from volta_fn.primitives.formulas.values import Values


@of_numpy(np.power)
def pow(x: Values, y: Values) -> Values:  # the primitive's name
    """Return x^y = 2^(y log2 |x|).

    The logarithm has a dozen digits more than the result: float32 computes in float64 if it can.
    """
    size = x.abs()
    if x.bits == 32 and x.widens:
        exponent = log2(size.widened()) * y.widened()
        power = exp2(exponent).narrowed()
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
    """Return 2^(log2(|x|) / 3), and a step of Newton's with an exact residual.

    Powers of 8 keep cubes in range.
    """
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
    return size.equals(0.0).select(x, result.signed(x))


def integer_pow(x: Any, *, y: int) -> Any:
    """Raise x to an integer power known beforehand.

    x is a value with operators, multiplied in the order of repeated squaring.

    Only floats have the power 0 and negative ones.
    """
    result, square, exponent = None, x, abs(y)
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        square = square * square if exponent else square
    if result is None:
        return x.like(1)
    return 1.0 / result if y < 0 else result
