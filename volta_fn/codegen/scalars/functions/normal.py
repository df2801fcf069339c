"""The normal distribution's function and GELU, by the part of the distribution beyond z = |x|: e^(-z^2 / 2) times Mills' ratio."""

from __future__ import annotations

import math

from volta_fn.codegen.scalars.functions.error import erfc_scaled, exp_minus_square
from volta_fn.codegen.scalars.functions.exponential import LN2_SHORT, LOG2_E
from volta_fn.codegen.scalars.values import BIAS, SIGNIFICAND, Values
from volta_fn.primitives.scalar_functions.error import NORMAL_LIMITS

#: For z >= 0 Mills' ratio, times the density at 0, is N(z) / ((a z + b) N(z) + R(z)): a minimax fit on [0, 13.2], of relative error 2^-26.
#: For large z, a z + b is nearly all of N's factor, so that what is rounded off in N is in both parts of the quotient and does no harm; a
#: quotient of plain polynomials is off by twice as much.
_N = (1.0, 9.952378273010254, 45.150291442871094, 108.54097747802734, 124.62744140625)
_R = (2.444570541381836, 25.390911102294922, 103.3273696899414, 248.97801208496094)
_SLOPE, _OFFSET = 2.506592035293579, 0.0022215682547539473

#: (e^(-r/2) - 1) / r for |r| <= ln 2, with an error of 2^-28.
_EXPM1_HALF = (2.197100028789978e-05, -0.0002618458286241754, 0.0026040483294964482, -0.02083295590435127, 0.12500001088401447, -0.5)

#: Powers of 2 that grow small are taken times 2^_LIFTED, so that they are normal numbers.
_LIFTED = 32


def ndtr(x: Values) -> Values:
    """The normal distribution's function: the tail, or 1 less the tail on the right. In float32 off by at most 3.3 units."""
    ratio, power = _tail(x.abs().capped(NORMAL_LIMITS[x.bits // 8]))
    tail = ratio * power
    return x.below(0.0).select(tail, 1.0 - tail)


def gelu(x: Values) -> Values:
    """x ndtr(x) as max(x, 0) less |x| times the tail. In float32 off by at most 3.9 units."""
    size = x.abs().capped(NORMAL_LIMITS[x.bits // 8])
    ratio, power = _tail(size)
    return (-(size * power)).mad(ratio, x.floored(-0.0))


def _tail(z: Values) -> tuple[Values, Values]:
    """The tail as two factors; the second one times z is a normal number wherever z is one."""
    return _tail_32(z) if z.bits == 32 else (0.5 * erfc_scaled(math.sqrt(0.5) * z), exp_minus_square(z, 0.5))


def _tail_32(z: Values) -> tuple[Values, Values]:
    """With z^2 = r - 2 n ln 2, where n <= 0: Mills' ratio times e^(-r / 2), and 2^n; z^2 is not rounded where it counts."""
    n, biased = (z * z).counted(-0.5 * LOG2_E, offset=BIAS[32] + _LIFTED)
    high, low = LN2_SHORT
    r = n.mad(2.0 * low, z.fma(z, n * (2.0 * high)))
    ratio = _mills_ratio(z, 2.0**_LIFTED)
    return ratio.mad(r * r.polynomial(_EXPM1_HALF), ratio), (biased << SIGNIFICAND[32]).as_float()


def _mills_ratio(z: Values, divisor: float) -> Values:
    """Mills' ratio over a power of 2."""
    n, r = z.polynomial(_N), z.polynomial([c * divisor for c in _R])
    return n / z.mad(_SLOPE * divisor, _OFFSET * divisor).mad(n, r)
