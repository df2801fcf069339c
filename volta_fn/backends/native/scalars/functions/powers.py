"""Powers and cube roots."""

from __future__ import annotations

import math

from volta_fn.backends.native.scalars.functions.exact import exact_product, exact_sum_ordered
from volta_fn.backends.native.scalars.functions.exponential import exp2, exp2_of_sum
from volta_fn.backends.native.scalars.functions.logarithm import log2, log2_in_parts
from volta_fn.backends.native.scalars.functions.wide import wide
from volta_fn.backends.native.scalars.lanes import Lanes


def pow(x: Lanes, y: Lanes) -> Lanes:  # the primitive's name
    """x^y = 2^(y log2 |x|), where the logarithm has a dozen digits more than the result: float32 computes in float64."""
    size = x.abs()
    if x.bits == 32:
        exponent = log2(size.cast("fpext", "double")) * y.cast("fpext", "double")
        power = exp2(exponent).cast("fptrunc", "float")
    else:
        power = _power_64(size, y)
    return _special(x, y, power)


def _power_64(size: Lanes, y: Lanes) -> Lanes:
    high, low = log2_in_parts(size)
    factor = y.clamped(-1e290, 1e290)
    product, error = exact_product(high, factor)
    total, more = exact_sum_ordered(product, error + low * factor)
    ordinary = high.abs().below(math.inf)
    return exp2_of_sum(ordinary.select(total, product), ordinary.select(more, 0.0))


def _special(x: Lanes, y: Lanes, power: Lanes) -> Lanes:
    """x^y from |x|^y, as C has it: 1 for x = 1 and for y = 0 even with NaN; of negative x only whole powers."""
    size, infinite = x.abs(), y.abs().equals(math.inf)
    one = size.equals(1.0)
    power = (infinite & one).select(1.0, power)
    whole = y.trunc().equals(y)
    half = y * 0.5
    odd = whole & half.trunc().compare("one", half) & y.abs().below(2.0 ** (24 if x.bits == 32 else 53))
    negative = x.as_bits().below(0)
    power = (negative & odd).select(-power, power)
    nowhere = negative & ~whole & size.above(0.0) & size.below(math.inf)
    power = nowhere.select(math.nan, power)
    power = (x.is_nan() | y.is_nan()).select(x + y, power)
    return (x.equals(1.0) | y.equals(0.0)).select(1.0, power)


@wide
def cbrt(x: Lanes) -> Lanes:
    """2^(log2(|x|) / 3), and a step of Newton's with an exact residual. Powers of 8 keep cubes in range."""
    size = x.abs()
    large = size.above(1.0)
    scaled = size * large.select(2.0**-300, x.like(2.0**300))
    root = exp2(log2(scaled) * (1.0 / 3.0))
    square, error = exact_product(root, root)
    cube, rest = exact_product(square, root)
    residual = (cube - scaled) + error.fma(root, rest)
    better = root - residual / (square * 3.0)
    result = better * large.select(2.0**100, x.like(2.0**-100))
    return (size.equals(0.0) | size.compare("ueq", math.inf)).select(x, result.signed(x))
