"""The error function, its complement and its inverse, the normal distribution's function, and GELU."""

from __future__ import annotations

import math

import numpy as np

from volta_fn.primitives.scalar_functions.blocks import blockwise, polynomial, replace

# erf

#: erf(x) = x P(x^2) / Q(x^2) for |x| <= 3.92, beyond which it is 1 in float32: the minimax fit, of relative error 1.9e-8.
_ERF_LIMIT = np.float32(3.92)
_ERF_P = (2.050099672e-6, 2.848821193e-4, 3.765573547e-3, 5.274858683e-2, 1.904054067e-1, 1.128379146)
_ERF_Q = (3.809181299e-5, 1.162525754e-3, 1.496912803e-2, 1.141086775e-1, 5.020751392e-1, 1.0)

#: erf(x) = x T(x^2) for |x| <= 1: the Taylor series (Abramowitz & Stegun 7.1.5) to float64's precision.
ERF_TAYLOR = tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in reversed(range(19)))


@blockwise()
def erf(x: np.ndarray) -> np.ndarray:
    """The error function 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    if x.dtype == np.float32:
        return _erf_rational(x)
    near = np.abs(x) < 1.0
    out = np.empty_like(x)
    replace(out, near, lambda x: x * polynomial(x * x, ERF_TAYLOR), x)
    replace(out, ~near, lambda x: np.copysign(1.0 - _erfc_positive(np.abs(x)), x), x)
    return out


def _erf_rational(x: np.ndarray) -> np.ndarray:
    clipped = np.clip(x, -_ERF_LIMIT, _ERF_LIMIT)
    square = clipped * clipped
    numerator = polynomial(square, _ERF_P)
    numerator *= clipped
    out = np.clip(numerator / polynomial(square, _ERF_Q), -1.0, 1.0)
    replace(out, np.abs(clipped) == _ERF_LIMIT, lambda x: np.copysign(np.float32(1), x), x)
    return out


# erfc

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

#: Masks that keep the upper half of the significand, so that the square of what is left is exact.
_UPPER_HALF = {4: (np.uint32, np.uint32(0xFFFFF000)), 8: (np.uint64, np.uint64(0xFFFFFFFFF8000000))}


@blockwise()
def erfc(x: np.ndarray) -> np.ndarray:
    """1 - erf(x), to full relative precision where it is small."""
    side = np.copysign(x.dtype.type(1), x)
    out = _erfc_positive(np.abs(x))
    out *= side
    out += 1.0 - side  # 2 - erfc(|x|) on the left; cheaper than a choice by an unpredictable mask
    return out


def _erfc_positive(x: np.ndarray) -> np.ndarray:
    bounded = np.minimum(x, ERFC_LIMITS[x.dtype.itemsize])
    result = _erfc_scaled(bounded)
    result *= _exp_minus_square(bounded)
    return result


def _erfc_scaled(x: np.ndarray) -> np.ndarray:
    """exp(x^2) erfc(x) for 0 <= x <= the limit."""
    width = x.dtype.itemsize
    stretch = 1.0 + 2.0 * ERFC_POLE / ERFC_LIMITS[width]
    share = np.reciprocal(x + ERFC_POLE)
    result = polynomial((stretch * x - ERFC_POLE) * share, ERFC_COEFFICIENTS[width])
    result *= share
    return result


def _exp_minus_square(x: np.ndarray, factor: float = 1.0) -> np.ndarray:
    """exp(-factor x^2) without the error that rounding x^2 would bring: -x^2 = -h^2 + (h - x)(h + x), with few digits in h.

    `factor` is a power of two.
    """
    unsigned, mask = _UPPER_HALF[x.dtype.itemsize]
    head = (x.view(unsigned) & mask).view(x.dtype)
    return np.exp(-factor * head * head) * np.exp(factor * (head - x) * (head + x))


# the normal distribution: with z = |x|, the part of it beyond z is exp(-z^2 / 2) times Mills' ratio, which changes slowly

#: From these on the tail, and |x| times the tail, are 0.
NORMAL_LIMITS = {4: 14.4, 8: 38.6}


@blockwise()
def ndtr(x: np.ndarray) -> np.ndarray:
    """The normal distribution's function, the part of it below x, to full relative precision where it is small."""
    tail = _normal_tail(_bounded_size(x))
    return np.where(x < 0.0, tail, 1.0 - tail)


@blockwise()
def gelu(x: np.ndarray) -> np.ndarray:
    """x ndtr(x) as max(x, 0) less |x| times the tail; at -inf it is -0, its limit."""
    size = _bounded_size(x)
    return np.copysign(np.where(x < 0.0, 0.0, x) - size * _normal_tail(size), x)


def _bounded_size(x: np.ndarray) -> np.ndarray:
    return np.minimum(np.abs(x), NORMAL_LIMITS[x.dtype.itemsize])


def _normal_tail(z: np.ndarray) -> np.ndarray:
    tail = _erfc_scaled(math.sqrt(0.5) * z)
    tail *= 0.5 * _exp_minus_square(z, 0.5)
    return tail


# erf_inv

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


@blockwise()
def erf_inv(x: np.ndarray) -> np.ndarray:
    """The x for which erf is the argument; ±inf at ±1, NaN beyond.

    x^2 is rounded before it is subtracted from 1, as XLA does it, so that normal random numbers agree with JAX's. For 0.99 < |x| < 1
    that costs precision: the relative error reaches 5e-6 in float32 (elsewhere 3e-7) and 1e-10 in float64.
    """
    w = 1.0 - x * x
    np.log(w, out=w)
    np.negative(w, out=w)
    out = _inverse_32(w) if x.dtype == np.float32 else _inverse_64(w)
    out *= x
    replace(out, np.abs(x) == 1.0, lambda x: x * np.inf, x)
    return out


def _inverse_32(w: np.ndarray) -> np.ndarray:
    centre, tail = ERF_INV_32
    out = polynomial(w - 2.5, centre)
    replace(out, w >= 5.0, lambda w: polynomial(np.sqrt(w) - 3.0, tail), w)
    return out


def _inverse_64(w: np.ndarray) -> np.ndarray:
    centre, tail, far_tail = ERF_INV_64
    out = polynomial(w - 3.125, centre)
    replace(out, (w >= 6.25) & (w < 16.0), lambda w: polynomial(np.sqrt(w) - 3.25, tail), w)
    replace(out, w >= 16.0, lambda w: polynomial(np.sqrt(w) - 5.0, far_tail), w)
    return out
