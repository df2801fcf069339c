"""The error function, its inverse, and the normal distribution's functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from volta_fn.primitives.formulas.exponential import LN2_SHORT, LOG2_E, exp, expm1_and_power, log, log1p, one_less_exp
from volta_fn.primitives.formulas.values import BIAS, SIGNIFICAND, Values, exact_product, in_float64_or_pairs, in_float64_unless_fused

# The quantile of the standard normal distribution.

# Coefficients of ndtri: Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37, 1988.

_Rational = tuple[tuple[float, ...], tuple[float, ...]]

_CENTRE: _Rational = (
    (
        2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
        1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080,
    ),
    (
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
        5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0,
    ),
)  # fmt: skip
_TAIL: _Rational = (
    (
        7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258,
        3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734,
    ),
    (
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
        6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187, 1.0,
    ),
)  # fmt: skip
_FAR_TAIL: _Rational = (
    (
        2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
        2.96560571828504891230e-1, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720,
    ),
    (
        2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
        1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0,
    ),
)  # fmt: skip


def _ratio(x: Values, coefficients: _Rational) -> Values:
    return x.polynomial(coefficients[0]) / x.polynomial(coefficients[1])


@in_float64_or_pairs
def ndtri(p: Values) -> Values:
    """Return the number that a standard normal one does not exceed with probability p."""
    centred = p - 0.5
    central = centred.abs().compare("ole", 0.425)
    centre = centred * _ratio(0.180625 - central.select(centred * centred, 0.0), _CENTRE)
    inside = ~central & p.above(0.0) & p.below(1.0)
    depth = (-log(inside.select(p.at_most(1.0 - p), 0.04))).sqrt()
    far = depth.above(5.0)
    reach = far.select(_ratio(far.select(depth - 5.0, 0.0), _FAR_TAIL), _ratio(depth - 1.6, _TAIL)).copysign(centred)
    ends = p.equals(0.0).select(-math.inf, p.equals(1.0).select(math.inf, p.like(math.nan)))
    return central.select(centre, inside.select(reach, ends))


# The error function, its inverse, the normal distribution's function, and GELU.

#: erf(x) = x T(x^2) for |x| <= 1: the Taylor series (Abramowitz & Stegun 7.1.5) to float64's precision.
ERF_TAYLOR = tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in reversed(range(19)))

#: (x + 3) exp(x^2) erfc(x) for 0 <= x <= the limit, beyond which erfc is 0, as a polynomial of a Möbius map of that interval onto
#: [-1, 1]: by Chebyshev interpolation, after Schonfelder, "Chebyshev expansions for the error and related functions", 1978.
ERFC_POLE = 3.0

ERFC_LIMITS = {4: 10.1, 8: 27.3}

ERFC_COEFFICIENTS = {
    4: (
        -3.0317364e-7, -3.15744812e-5, 2.43322296e-5, 5.43188703e-4, -1.37583737e-3, -5.87107542e-3, 5.22726217e-2, -1.98641122e-1,
        5.01857525e-1, -9.31881729e-1, 1.31133935,
    ),
    8: (
        1.603929090320707e-11, -1.5705783048137668e-10, -4.1467628818575201e-10, 1.4722951647236487e-9, 4.8103124218725129e-9,
        -6.0463376287984413e-9, -3.9221592436143149e-8, 1.1223780929480485e-9, 2.7492121618879179e-7, 2.2425715876318972e-7,
        -1.9047823731614587e-6, -2.68708592737756e-6, 1.4830648020023585e-5, 2.2810495065610638e-5, -1.4223885383437377e-4,
        -1.1284989469072657e-4, 1.6191324328507384e-3, -1.8408699913877124e-3, -1.5114484614875379e-2, 8.7332166976616889e-2,
        -2.636002719765294e-1, 5.5991503467944974e-1, -9.0989071076736714e-1, 1.1675707663696275,
    ),
}  # fmt: skip

#: Polynomials in w = -log(1 - x^2), or in its root for large w: Giles, "Approximating the erfinv function", GPU Computing Gems 2012.
ERF_INV_32 = (
    (
        2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727,
        1.50140941,
    ),
    (
        -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406,
        2.83297682,
    ),
)  # fmt: skip

#: The same of more terms: with errors of 2^-24.5 and 2^-26.
ERF_INV_EXACT_32 = (
    (
        -1.89297489e-09, -8.11172374e-09, 5.51008128e-08, 4.58935688e-07, -3.65081678e-06, -4.94168398e-06, 0.000218798334,
        -0.00125275552, -0.00417777058, 0.24664028, 1.50140941,
    ),
    (
        0.000113402661, -0.000305243244, -5.5750108e-05, 0.00147938938, -0.0035964034, 0.00568958838, -0.00763784535, 0.0094448179,
        1.00167501, 2.83297682,
    ),
)  # fmt: skip

ERF_INV_64 = (
    (
        -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18, 1.115787767802518096e-17,
        -1.333171662854620906e-16, 2.0972767875968561637e-17, 6.6376381343583238325e-15, -4.0545662729752068639e-14,
        -8.1519341976054721522e-14, 2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
        1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
        -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352, -0.00074070253416626697512,
        -0.0060336708714301490533, 0.24015818242558961693, 1.6536545626831027356,
    ),
    (
        2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
        1.5027403968909827627e-06, -4.013867526981545969e-06, 2.9234449089955446044e-06, 1.2475304481671778723e-05,
        -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
        0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066, -0.0037512085075692412107,
        0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635,
    ),
    (
        -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09, -3.7894654401267369937e-09,
        7.6157012080783393804e-09, -1.4960026627149240478e-08, 2.9147953450901080826e-08, -6.7711997758452339498e-08,
        2.2900482228026654717e-07, -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
        7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026, 1.0103004648645343977,
        4.8499064014085844221,
    ),
)  # fmt: skip

#: From these on the tail, and |x| times the tail, are 0.
NORMAL_LIMITS = {4: 14.4, 8: 38.6}

#: (log(erfc(x)) / x + c) / x for 0 <= x <= 4, where c = 2 / sqrt(pi) is the limit at 0; it leaves an error of 2^-28 erf(x).
_LOG_ERFC = (
    -9.55540713e-07, 1.8385048e-05, -0.000152786044, 0.000703399419, -0.00174693414, 0.000211986786, 0.0191347394, -0.102774553,
    -0.636619627,
)  # fmt: skip
_SLOPE, _SLOPE_REST = -1.128379225730896, 5.863538343753305e-08


def erf(x: Values) -> Values:
    """Return the error function; in float32 it is 1 - e^log(erfc(|x|))."""
    # For that logarithm one polynomial is enough.
    if x.bits == 64:
        return _erf_64(x)
    size = x.abs().min_keep_nan(4.0)
    return one_less_exp(size.fma(_SLOPE, size * size.polynomial((*_LOG_ERFC, _SLOPE_REST)))).copysign(x)


def _erf_64(x: Values) -> Values:
    """Return the Taylor series up to 1, and from there on 1 - erfc(x)."""
    size = x.abs()
    near = size.below(1.0)
    return near.choose(lambda v: v * (v * v).polynomial(ERF_TAYLOR), lambda v: 1.0 - _erfc_positive(v), size).copysign(x)


#: e^(x^2) erfc(x) (x + pole) for 0 <= x <= limit as a polynomial of t, which is linear in 1 / (x + pole).
_POLE, _LIMIT = 1.375, 10.1
_T = (3.1243813, -1.23631728)
_ERFC_SCALED = (
    2.48837405e-05, -2.27375494e-05, -0.000142841964, 0.000336309255, 2.40912304e-05, -0.00176130107, 0.00373679795, 0.00388507405,
    -0.0346636884, 0.00886739511, 0.398755729, 0.983886302,
)  # fmt: skip
#: The relative change of e^(x^2) erfc(x) by a small relative change of 1 / (x + pole): 1.1 to 1.6 times as much.
_SENSITIVITY = 1.25


def erfc(x: Values) -> Values:
    """Return 1 - erf(x), with full precision where it is small."""
    if x.bits == 32 and x.widens and not x.fuses:
        return erfc(x.widened()).narrowed()
    size = x.abs()
    side = x.like(1.0).copysign(x)
    return (_erfc_32(size) if x.bits == 32 and x.fuses else _erfc_positive(size)) * side + (1.0 - side)


def _erfc_32(x: Values) -> Values:
    """Return erfc(x) = e^(-x^2) P(t) / (x + pole)."""
    # Rounding errors are kept and added at the end.
    bounded = x.min_keep_nan(_LIMIT)
    below = (bounded + _POLE).opaque()
    inverse = 1.0 / below
    missing = (-inverse).fma(bounded - (below - _POLE), (-inverse).fma(below, 1.0))
    square = bounded * bounded
    rest = missing.fma(_SENSITIVITY, (-bounded).fma(bounded, square))
    t = inverse.fma(*_T)
    slope = t.polynomial(_ERFC_SCALED[:-1])
    scaled = slope.fma(t, _ERFC_SCALED[-1])
    scaled_rest = slope.fma(t, _ERFC_SCALED[-1] - scaled)
    product = inverse * scaled
    product_rest = inverse.fma(scaled_rest, inverse.fma(scaled, -product))
    more, power = expm1_and_power(-square, rest, 64)
    return (more.fma(product, product_rest) + product) * power * 2.0**-64


def _erfc_positive(x: Values) -> Values:
    """Return erfc(x) by a scaled one; from some x on 0."""
    bounded = x.min_keep_nan(ERFC_LIMITS[x.bits // 8])
    return erfc_scaled(bounded) * exp_minus_square(bounded)


def erfc_scaled(x: Values) -> Values:
    """Return e^(x^2) erfc(x) for 0 <= x <= the limit."""
    # It is P(t) / (x + 3), with a Möbius map t of x.
    below = x + ERFC_POLE
    width = x.bits // 8
    return (x.mad(1.0 + 2.0 * ERFC_POLE / ERFC_LIMITS[width], -ERFC_POLE) / below).polynomial(ERFC_COEFFICIENTS[width]) / below


def exp_minus_square(x: Values, factor: float = 1.0) -> Values:
    """Return e^(-factor x^2)."""
    # The rounding error of x^2 becomes a factor; `factor` is a power of two.
    square, lost = exact_product(x, x)
    power = exp(square * -factor)
    return power.mad(lost * -factor, power)


#: From here on e^(-x^2) is 0, in every width.
_GAUSSIAN_END = 50.0


@in_float64_unless_fused
def gaussian(x: Values) -> Values:
    """Return e^(-x^2)."""
    return exp_minus_square(x.abs().min_keep_nan(_GAUSSIAN_END))


def erf_inv(x: Values) -> Values:
    """Return the x for which erf is the argument; ±inf at ±1, NaN beyond."""
    # The rounding error of x^2 is kept, so that 1 - x^2 has full precision.
    square, lost = exact_product(x, x)
    near = square.below(0.5)
    rest = (1.0 - square) - lost
    w = -near.select(log1p(-near.select(square, 0.0)), log(near.select(1.0, rest)))
    result = (_inverse_32(w, ERF_INV_EXACT_32) if x.bits == 32 else _inverse_64(w)) * x
    return x.abs().equals(1.0).select(x * math.inf, result)


def erf_inv_of_uniform(x: Values) -> Values:
    """Return the same with less precision near ±1, for normal random numbers.

    x^2 is rounded before it is subtracted from 1, as XLA does it, so that normal random numbers agree with JAX's. For 0.99 < |x| < 1 that
    costs precision: the relative error reaches 5e-6 in float32 (elsewhere 3e-7) and 1e-10 in float64.
    """
    rest = 1.0 - (x * x).opaque()
    exponent = rest.fast_log2()
    if exponent is not None:
        return _inverse_by_log2(x, rest, exponent)
    w = -log(rest)
    result = (_inverse_32(w, ERF_INV_32) if x.bits == 32 else _inverse_64(w)) * x
    return x.abs().equals(1.0).select(x * math.inf, result)


def _inverse_32(w: Values, coefficients: Sequence[Sequence[float]]) -> Values:
    centre, tail = coefficients
    return w.compare("oge", 5.0).choose_if_any(lambda w: (w.sqrt() - 3.0).polynomial(tail), lambda w: (w - 2.5).polynomial(centre), w)


def _inverse_by_log2(x: Values, rest: Values, exponent: Values) -> Values:
    """Return `_inverse_32` of XLA's coefficients by the target's own logarithm."""
    # A small absolute error of w is enough for both polynomials. All that is not inside of (-1, 1) is in the rare branch; NaN, which may be
    # in either, makes the product with x NaN.
    centre, tail = ERF_INV_32

    def beyond(rest: Values, exponent: Values, x: Values) -> Values:
        near = ((exponent * -math.log(2.0)).sqrt() - 3.0).polynomial(tail)
        return rest.above(0.0).select(near, x.abs().equals(1.0).select(math.inf, x.like(math.nan)))

    def within(rest: Values, exponent: Values, x: Values) -> Values:
        return exponent.mad(-math.log(2.0), -2.5).polynomial(centre)

    return rest.compare("ole", math.exp(-5.0)).choose_if_any(beyond, within, rest, exponent, x) * x


def _inverse_64(w: Values) -> Values:
    centre, tail, far = ERF_INV_64

    def beyond(w: Values) -> Values:
        root = w.sqrt()
        return w.compare("oge", 16.0).select((root - 5.0).polynomial(far), (root - 3.25).polynomial(tail))

    return w.compare("oge", 6.25).choose(beyond, lambda w: (w - 3.125).polynomial(centre), w)


# the normal distribution

#: For z >= 0 Mills' ratio, times the density at 0, is N(z) / ((a z + b) N(z) + R(z)): a minimax fit on [0, 13.2], of relative error 2^-26.
#: For large z, a z + b is nearly all of N's factor, so that N's rounding error is in both terms of the quotient and cancels; a
#: quotient of plain polynomials is off by twice as much.
_MILLS_N = (1.0, 9.952378273010254, 45.150291442871094, 108.54097747802734, 124.62744140625)
_MILLS_R = (2.444570541381836, 25.390911102294922, 103.3273696899414, 248.97801208496094)
_MILLS_SLOPE, _MILLS_OFFSET = 2.506592035293579, 0.0022215682547539473

#: (e^(-r/2) - 1) / r for |r| <= ln 2, with an error of 2^-28.
_EXPM1_HALF = (2.197100028789978e-05, -0.0002618458286241754, 0.0026040483294964482, -0.02083295590435127, 0.12500001088401447, -0.5)

#: Powers of 2 that grow small are taken times 2^_LIFTED, so that they are normal numbers.
_LIFTED = 32


def ndtr(x: Values) -> Values:
    """Return the normal distribution's function, in float32 off by at most 3.3 units."""
    ratio, power = _tail(x.abs().min_keep_nan(NORMAL_LIMITS[x.bits // 8]))
    tail = ratio * power
    return x.below(0.0).select(tail, 1.0 - tail)


def gelu(x: Values) -> Values:
    """Return x ndtr(x) as max(x, 0) - |x| times the tail.

    In float32 off by at most 3.9 units; at -inf it is -0, its limit.
    """
    size = x.abs().min_keep_nan(NORMAL_LIMITS[x.bits // 8])
    ratio, power = _tail(size)
    return (-(size * power)).mad(ratio, x.max_keep_nan(-0.0))


def _tail(z: Values) -> tuple[Values, Values]:
    """Return the tail as two factors."""
    # The second one times z is a normal number wherever z is one.
    return _tail_32(z) if z.bits == 32 else (0.5 * erfc_scaled(math.sqrt(0.5) * z), exp_minus_square(z, 0.5))


def _tail_32(z: Values) -> tuple[Values, Values]:
    """Return Mills' ratio times e^(-r / 2), and 2^n, where z^2 = r - 2 n ln 2.

    n <= 0; z^2 is not rounded where it counts.
    """
    n, biased = (z * z).round_scaled(-0.5 * LOG2_E, offset=BIAS[32] + _LIFTED)
    high, low = LN2_SHORT
    r = n.mad(2.0 * low, z.fma(z, n * (2.0 * high)))
    ratio = _mills_ratio(z, 2.0**_LIFTED)
    return ratio.mad(r * r.polynomial(_EXPM1_HALF), ratio), (biased << SIGNIFICAND[32]).as_float()


def _mills_ratio(z: Values, divisor: float) -> Values:
    """Return Mills' ratio over a power of 2."""
    n, r = z.polynomial(_MILLS_N), z.polynomial([c * divisor for c in _MILLS_R])
    return n / z.mad(_MILLS_SLOPE * divisor, _MILLS_OFFSET * divisor).mad(n, r)
