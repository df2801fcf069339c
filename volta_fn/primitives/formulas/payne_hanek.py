"""Reduction of large angles by the method of Payne and Hanek (1983).

|x| = m 2^e with an integer m of 53 bits, and of 2^e 2/pi only some bits matter: those worth 4 or more give full periods, and those far
below add nothing. They are cut out of the digits of 2/pi, which are in memory, 53 at a time, and multiplied by m.
"""

from __future__ import annotations

from volta_fn.primitives.formulas.precision import V, exact_product, exact_sum

#: The first 1184 bits of 2/pi.
TWO_OVER_PI_BITS = 1184
TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1d"
    "eb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b"
    "5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046",
    16,
)
#: Zeros in front of them, in bytes.
_PADDING = 16
#: The last one is number 0.
_DIGITS = TWO_OVER_PI.to_bytes(TWO_OVER_PI_BITS // 8 + _PADDING, "little")
_WINDOW = 53
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)


def reduced_large(x: V) -> tuple[V, V, V]:
    """Reduce large arguments as `Values.quarter_periods` does, in float64."""
    bits = x.as_bits()
    exponent = (bits.shift_right(52) & 0x7FF) - 1075
    integral = ((bits & ((1 << 52) - 1)) | (1075 << 52)).as_float()
    first, second, third = [_window(exponent, k) * 2.0 ** (2 - _WINDOW * (k + 1)) for k in range(3)]
    k1, rest1, error1 = _integer_and_rest(*exact_product(integral, first))
    high, error2 = exact_product(integral, second)
    near, error3 = exact_sum(rest1, high)
    k2 = near.nearest()
    low = (error3 + error2) + integral * third
    fraction, more = exact_sum(near - k2, low + (x - x))
    r, rest = exact_product(fraction, _HALF_PI[0])
    rest = rest + fraction.fma(_HALF_PI[1], more * _HALF_PI[0])
    quarters = (k1.as_integer() + error1.as_integer()) + k2.as_integer()
    negative = bits.below(0)
    return negative.select(-quarters, quarters), negative.select(-r, r), negative.select(-rest, rest)


def _integer_and_rest(high: V, low: V) -> tuple[V, V, V]:
    """Return (k, rest, more) with high + low = k + more + rest, k and more integers."""
    k, more = high.nearest(), low.nearest()
    return k, (high - k) + (low - more), more


def _window(exponent: V, number: int) -> V:
    """Return 53 bits of 2^exponent 2/pi as an integer.

    The first of them (of window 0) is worth 2.
    """
    most = exponent.above(971).select(971, exponent)
    bounded = most.below(-60).select(-60, most)
    lowest = (TWO_OVER_PI_BITS + 2 - _WINDOW * (number + 1)) - bounded
    words = lowest.shift_right(3).bits_of_table("digits_of_two_over_pi", _DIGITS)
    return (words.shift_right(lowest & 7) & ((1 << _WINDOW) - 1)).number()
