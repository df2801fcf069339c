"""Fresnel, sine and cosine integrals.

Near zero they are x, x^3 or x^2 times an interpolant. Far away they are sums of sines and cosines with slowly varying amplitudes f and g,
which are interpolated (Abramowitz & Stegun 5.2.6 and 7.3.5; by Chebyshev's polynomials, as in Cephes by rational functions).
"""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.logarithm import log
from volta_fn.primitives.formulas.precision import exact_product, in_float64
from volta_fn.primitives.formulas.trigonometric import cos, sin
from volta_fn.primitives.formulas.values import Values

#: S(x) / x^3 for |x| <= 5/2, in powers of 2 (2 x / 5)^4 - 1.
FRESNEL_S = (
    1.1869259184318597e-12, -2.664424747077638e-11, 5.2150373210592e-10, -8.966825475095407e-09, 1.330262937483244e-07,
    -1.6816862378603422e-06, 1.7851707279502797e-05, -0.00015630426309292918, 0.0011039540747591918, -0.006112444041511001,
    0.025536095485929493, -0.07623133563228572, 0.14932202253975493, -0.16379083472368478, 0.06520207980627148,
    0.004307037727359542, 0.0404310668223974,
)  # fmt: skip

#: C(x) / x for |x| <= 5/2, in powers of 2 (2 x / 5)^4 - 1.
FRESNEL_C = (
    2.470516625626296e-11, -5.193929869712854e-10, 9.460995259575347e-09, -1.5065331395640202e-07, 2.0552902682738757e-06,
    -2.368754715376054e-05, 0.00022677625495066405, -0.0017658516059095655, 0.010883857233390469, -0.05117737686090517,
    0.1739476742047808, -0.3905437301390034, 0.47473763618152426, -0.09331354989226466, -0.3458032078710706, 0.12830694914629892,
    0.2774878011488111,
)  # fmt: skip

#: pi x f(x) for x >= 5/2, in powers of 2 (5 / (2 x))^4 - 1.
FRESNEL_F = (
    1.2949473973088076e-11, -2.199717270513894e-11, -2.325414603305595e-11, 3.617740131025901e-11, 6.696407374872824e-11,
    -1.2364609747883673e-10, 1.0524987174811392e-10, -2.646629672393957e-10, 7.782426958428114e-10, -2.049896751978285e-09,
    5.840756083519346e-09, -1.8596844122307945e-08, 6.721335047519204e-08, -2.861129608406434e-07, 1.5185799562911173e-06,
    -1.1029493556268682e-05, 0.00012983993691519143, -0.0035898473856474508, 0.9962673834758357,
)  # fmt: skip

#: pi^2 x^3 g(x) for x >= 5/2, in powers of 2 (5 / (2 x))^4 - 1.
FRESNEL_G = (
    -1.6519974887736126e-10, 2.559646334306982e-10, 5.058400424451097e-10, -7.632555765043953e-10, -9.936848510707668e-10,
    1.5479483062708021e-09, 4.348003894141e-10, -4.77745966557235e-10, -2.0771435649076608e-09, 4.125929560864047e-09,
    -7.3967297541606414e-09, 1.7526719854652474e-08, -4.451781150894761e-08, 1.1978075031159272e-07, -3.524420839977467e-07,
    1.159478375001672e-06, -4.395248418855635e-06, 2.0093612545703697e-05, -0.00011908613703011115, 0.0010362055091422033,
    -0.016910517432915703, 0.9819079939332481,
)  # fmt: skip

#: Si(x) / x for |x| <= 10, in powers of x^2 / 50 - 1.
SI_NEAR = (
    3.981434236986635e-18, -1.3377594803375023e-16, 4.0415191868719594e-15, -1.1018497145071852e-13, 2.682785348720769e-12,
    -5.792802707305391e-11, 1.1004987324695858e-09, -1.8227987527426884e-08, 2.60471740124251e-07, -3.171659447423928e-06,
    3.2428034354631575e-05, -0.00027346373898534557, 0.0018602830460358658, -0.009922251565041533, 0.03995194684155958,
    -0.11512706502801384, 0.2188334598299597, -0.238537230928208, 0.11555203694157262, -0.05321941908333428, 0.20668696344253562,
)  # fmt: skip

#: (Ci(x) - gamma - log x) / x^2 for x <= 10, in powers of x^2 / 50 - 1.
CI_NEAR = (
    -9.489803755668628e-20, 3.3520326287026997e-18, -1.0680606829167127e-16, 3.0794370135564634e-15, -7.957091810659433e-14,
    1.830686538425998e-12, -3.7228123656645994e-11, 6.635999934944024e-10, -1.0269908497402291e-08, 1.3646987730674833e-07,
    -1.5369777226275563e-06, 1.4445662236552801e-05, -0.00011120365885965954, 0.0006851706423225653, -0.003282274679696973,
    0.011777329065032652, -0.030153699209330455, 0.0518599890437305, -0.05709439768789209, 0.04603664249686649,
    -0.04898316343378207,
)  # fmt: skip

#: x f(x) for x >= 10, in powers of 20 / x - 1.
SICI_F = (
    -1.9082295759133488e-11, 4.0567558249912215e-11, 5.3136451657829725e-11, -2.5940276469915655e-10, 3.984788560784352e-10,
    -2.4187913239327954e-10, -1.2534217704885192e-09, 6.496997238392352e-09, -1.5361233458733118e-08, 7.551477225292458e-09,
    1.0113701539390881e-07, -4.6535422982917983e-07, 7.524778058612296e-07, 2.8932214086499617e-06, -2.406076846730365e-05,
    4.837194282744432e-05, 0.0004358972557463752, -0.0042356915273414, -0.00945749886912727, 0.9951400531804259,
)  # fmt: skip

#: x^2 g(x) for x >= 10, in powers of 20 / x - 1.
SICI_G = (
    1.0268508265037975e-10, -2.93672348885443e-10, -5.818539815507143e-11, 1.2912480290496846e-09, -2.615719769025508e-09,
    2.9712272269222154e-09, 1.4195259205139846e-09, -2.1701200103725743e-08, 6.874255175228905e-08, -1.0590405301226535e-07,
    -8.612327354026154e-08, 1.0867139938835908e-06, -3.277907210752652e-06, 2.297025190916581e-06, 2.5519888732496613e-05,
    -0.00012700528656826632, 0.0001215558721271707, 0.0019370767945146926, -0.011399382814791149, -0.027386380792940666,
    0.9856825543112986,
)  # fmt: skip

#: Where the amplitudes take over.
FRESNEL_BORDER, SICI_BORDER = 2.5, 10.0

#: The largest finite numbers, and one beyond which Fresnel integrals are 1/2, by width.
_LARGEST = {32: 3.4028234e38, 64: 1.7976931348623157e308}
_CONSTANT = 1e17
#: From here on numbers, and their squares, are multiples of 4, by width.
_EVEN = {32: 2.0**25, 64: 2.0**54}


@in_float64
def fresnel_sin(x: Values) -> Values:
    """Return S(x), the integral of sin(pi t^2 / 2) from 0 to x."""
    size, near, amplitude_f, amplitude_g, sine, cosine = _fresnel(x)
    bounded = near.select(size, 1.0)
    inside = bounded * bounded * bounded * _fourth_power(bounded / FRESNEL_BORDER).polynomial(FRESNEL_S)
    return near.select(inside, 0.5 - amplitude_f * cosine - amplitude_g * sine).signed(x)


@in_float64
def fresnel_cos(x: Values) -> Values:
    """Return C(x), the integral of cos(pi t^2 / 2) from 0 to x."""
    size, near, amplitude_f, amplitude_g, sine, cosine = _fresnel(x)
    bounded = near.select(size, 1.0)
    inside = bounded * _fourth_power(bounded / FRESNEL_BORDER).polynomial(FRESNEL_C)
    return near.select(inside, 0.5 + amplitude_f * sine - amplitude_g * cosine).signed(x)


def _fourth_power(ratio: Values) -> Values:
    """Return 2 ratio^4 - 1, the variable of the interpolants."""
    square = ratio * ratio
    return (square * square).mad(2.0, -1.0)


def _fresnel(x: Values) -> tuple[Values, ...]:
    """Return |x|, whether it is near, both amplitudes, sine and cosine of pi x^2 / 2."""
    size = x.abs()
    near = size.below(FRESNEL_BORDER)
    far = near.select(FRESNEL_BORDER, size.capped(_CONSTANT))
    inverse = 1.0 / far
    variable = _fourth_power(FRESNEL_BORDER * inverse)
    amplitude_f = inverse * (1.0 / math.pi) * variable.polynomial(FRESNEL_F)
    amplitude_g = inverse * inverse * inverse * (1.0 / math.pi**2) * variable.polynomial(FRESNEL_G)
    return size, near, amplitude_f, amplitude_g, *_sine_and_cosine(far)


def _sine_and_cosine(x: Values) -> tuple[Values, Values]:
    """Return sine and cosine of pi x^2 / 2, to full precision near their zeros.

    The square is exact, so that its remainder modulo 4 is. Mesa's compilers lose its error in a sum with a plain difference.
    """
    square, lost = exact_product(x, x)
    rest = (square * 0.25).nearest().fma(-4.0, square)
    size = rest.abs()
    beyond = size.above(1.0)
    outward = rest.below(0.0).select(-lost, lost)
    sine = sin((beyond.select(2.0 - size, size) + beyond.select(-outward, outward)) * (0.5 * math.pi))
    return rest.below(0.0).select(-sine, sine), sin(((1.0 - size) - outward) * (0.5 * math.pi))


@in_float64
def fresnel_sin_slope(x: Values) -> Values:
    """Return sin(pi x^2 / 2), NaN at infinity."""
    return x.abs().equals(math.inf).select(math.nan, _sine_and_cosine(x.abs().capped(_EVEN[x.bits]))[0])


@in_float64
def fresnel_cos_slope(x: Values) -> Values:
    """Return cos(pi x^2 / 2), NaN at infinity."""
    return x.abs().equals(math.inf).select(math.nan, _sine_and_cosine(x.abs().capped(_EVEN[x.bits]))[1])


@in_float64
def sin_integral(x: Values) -> Values:
    """Return Si(x), the integral of sin(t) / t from 0 to x."""
    size, near, amplitude_f, amplitude_g, far = _sici(x)
    bounded = size.capped(SICI_BORDER)
    inside = bounded * (bounded * bounded).mad(0.02, -1.0).polynomial(SI_NEAR)
    return near.select(inside, 0.5 * math.pi - amplitude_f * cos(far) - amplitude_g * sin(far)).signed(x)


@in_float64
def cos_integral(x: Values) -> Values:
    """Return Ci(|x|), the cosine integral; NaN at -infinity.

    It is gamma + log |x| + the integral of (cos(t) - 1) / t from 0 to |x|.
    """
    size, near, amplitude_f, amplitude_g, far = _sici(x)
    bounded = size.capped(SICI_BORDER)
    square = bounded * bounded
    inside = log(bounded) + square.mad(square.mad(0.02, -1.0).polynomial(CI_NEAR), 0.5772156649015329)
    out = near.select(inside, amplitude_f * sin(far) - amplitude_g * cos(far))
    return x.equals(-math.inf).select(math.nan, size.equals(math.inf).select(0.0, out))


def _sici(x: Values) -> tuple[Values, ...]:
    """Return |x|, whether it is near, both amplitudes, and |x| where it is not near."""
    size = x.abs()
    near = size.below(SICI_BORDER)
    far = near.select(SICI_BORDER, size.capped(_LARGEST[x.bits]))
    inverse = 1.0 / far
    variable = inverse.mad(2.0 * SICI_BORDER, -1.0)
    return size, near, inverse * variable.polynomial(SICI_F), inverse * inverse * variable.polynomial(SICI_G), far
