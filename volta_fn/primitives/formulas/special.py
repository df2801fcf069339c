"""Bessel functions, and functions that are defined by integrals.

The integrals are Dawson's, Fresnel's and Owen's, Spence's function and the Faddeeva function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from volta_fn.primitives.formulas.error import erfc_scaled, exp_minus_square, ndtr
from volta_fn.primitives.formulas.exponential import exp, log, log1p, sinh
from volta_fn.primitives.formulas.gamma import BERNOULLI
from volta_fn.primitives.formulas.trigonometric import cos, sin
from volta_fn.primitives.formulas.values import Values, exact_product, in_float64, in_float64_or_pairs

# The modified Bessel functions I0 and I1, scaled by exp(-|x|).

BORDER = 8.0

I0_NEAR = (
    -1.1662904878442954e-9, 4.4693725818566154e-9, -7.8603697075082112e-9, 2.6273368345256395e-8, -1.1339523685907105e-7,
    3.6755928932882931e-7, -1.0891964284507318e-6, 3.2293850630678377e-6, -9.2505971062553692e-6, 2.5202271984440892e-5,
    -6.5509561306355137e-5, 1.6240546727013591e-4, -3.8290150894575591e-4, 8.5631524839514468e-4, -1.8118870527295522e-3,
    3.6171264596770618e-3, -6.792399792271578e-3, 1.1960077903963349e-2, -1.9682654708082412e-2, 3.017791202356886e-2,
    -4.2985949452267378e-2, 5.6777032019843217e-2, -6.9541195617423416e-2, 7.9275225907168981e-2, -8.4963380916151247e-2,
    8.734341617552291e-2, -8.9043441360759906e-2, 9.4515628539951033e-2, -1.1300432688620548e-1, 2.070019212239867e-1,
)  # fmt: skip

I0_FAR = (
    -7.0689385118187804e-11, -1.9216763724933513e-11, 5.1819369712882837e-10, 1.4672236659214397e-10, -1.7789375042917174e-9,
    -5.5622019900803933e-10, 3.8811512539960668e-9, 1.497880830187091e-9, -6.1882650904973612e-9, -3.4857887470034955e-9,
    7.5802213391527192e-9, 7.5406013788908335e-9, -5.4685974495866e-9, -1.340424199198087e-8, -6.7297241119235485e-9,
    7.5535164703558962e-9, 2.1545177650836004e-8, 3.9326024597031091e-8, 8.8722535112858405e-8, 2.9735984324791689e-7,
    1.4838475473607392e-6, 1.1143033791556743e-5, 1.3621607439232747e-4, 3.3605519836678541e-3, 4.0217650944500808e-1,
)  # fmt: skip

I1_NEAR = (
    -9.3657519097422365e-11, 3.7276304092377714e-10, -7.3792911303740426e-10, 2.6037822441041466e-9, -1.1191257727176943e-8,
    3.8028049651067334e-8, -1.2000364861910368e-7, 3.7594003760089223e-7, -1.1380759138279983e-6, 3.2938951625746042e-6,
    -9.1318463152736424e-6, 2.4233756432468165e-5, -6.1426513494941233e-5, 1.4842124144631648e-4, -3.4117474373539277e-4,
    7.4451234528156603e-4, -1.5388749636515488e-3, 3.005762419557192e-3, -5.5345677605445821e-3, 9.5839621507740595e-3,
    -1.557130925657511e-2, 2.3686016957724229e-2, -3.367135551994034e-2, 4.4674572621255067e-2, -5.5280039227050581e-2,
    6.3767403713407195e-2, -6.8482606205825496e-2, 6.80575999095116e-2, -6.1124338029666293e-2, 4.4687709875608832e-2,
)  # fmt: skip

I1_FAR = (
    7.3479924417346639e-11, 1.7502497778701306e-11, -5.3882859959235238e-10, -1.3422663200822221e-10, 1.8513716745511988e-9,
    5.1464988260871419e-10, -4.0477854037118586e-9, -1.4171698018664596e-9, 6.4870195719816896e-9, 3.4066361301967943e-9,
    -8.0442312761665085e-9, -7.6307519700655778e-9, 6.0408773421609881e-9, 1.4029693589852717e-8, 6.7157951280850176e-9,
    -8.4266228295981544e-9, -2.3370596271118569e-8, -4.3129353699713559e-8, -1.0001323461066435e-7, -3.4838556090099369e-7,
    -1.8349101134666434e-6, -1.5038547201176271e-5, -2.1923576383430275e-4, -9.7495771932357289e-3, 3.8939845902587233e-1,
)  # fmt: skip


#: The same interpolants of fewer points, for results of float32: within 5e-10 of those above.
SHORT_I0_NEAR = (
    -0.00013152060331505361, 0.00034824107947639883, -0.00022722970056580281, 0.00041439195929270762, -0.0020044757823421719,
    0.0041660155465143966, -0.0066514195421716535, 0.011557353777958808, -0.019745851366336529, 0.030358703617536474,
    -0.042968811317895539, 0.056727955927006177, -0.06954385401732377, 0.079282843338259273, -0.084963172147195634,
    0.08734281771766432, -0.08904344770442349, 0.094515646728902974, -0.11300432685447351, 0.20700192113298868,
)  # fmt: skip

SHORT_I0_FAR = (
    3.3635801754972057e-08, 1.0910233026045765e-07, 3.0383309225848198e-07, 1.4754756347164228e-06, 1.1141542188615287e-05,
    0.00013621740783476043, 0.0033605520313902378, 0.40217650940530553,
)  # fmt: skip

SHORT_I1_NEAR = (
    -1.694785504456625e-05, 4.7479076487962703e-05, -4.3177184763505084e-05, 9.375812591982576e-05, -0.00036364523304571592,
    0.00081204788791642548, -0.0015224710083058632, 0.0029563629017666511, -0.005541908258962381, 0.0096060953449341405,
    -0.015569320917180421, 0.023680016683177811, -0.033671663704408855, 0.044675503157473651, -0.055280015036779859,
    0.063767330646632786, -0.068482606940651655, 0.068057602129585587, -0.061124338025992611, 0.044687709864502642,
)  # fmt: skip

SHORT_I1_FAR = (
    -3.7856024037719045e-08, -1.2318419617685092e-07, -3.5481954276106453e-07, -1.8250069393453702e-06, -1.5037047143281329e-05,
    -0.00021923738535612825, -0.0097495772413154925, 0.38939845907447135,
)  # fmt: skip


def bessel_i0e(x: Values) -> Values:
    """Return exp(-|x|) I0(x)."""
    return _i0e(x) if x.bits == 64 else _short_i0e(x)


def bessel_i1e(x: Values) -> Values:
    """Return exp(-|x|) I1(x), an odd function."""
    return _i1e(x) if x.bits == 64 else _short_i1e(x)


@in_float64_or_pairs
def bessel_i0(x: Values) -> Values:
    """Return I0(x)."""
    return _grown(x.abs(), _i0e(x))


@in_float64_or_pairs
def bessel_i1(x: Values) -> Values:
    """Return I1(x), an odd function."""
    return _grown(x.abs(), _i1e(x))


def _grown(size: Values, scaled: Values) -> Values:
    """Return e^size times a function, also where that power alone is infinite."""
    root = exp(size * 0.5)
    infinite = size.equals(math.inf)
    return infinite.select(size, infinite.select(0.0, root) * scaled * root).copysign(scaled)


def _i0e(x: Values, near: Sequence[float] = I0_NEAR, far: Sequence[float] = I0_FAR) -> Values:
    size = x.abs()
    return _far(size, _near(size, near), far)


def _i1e(x: Values, near: Sequence[float] = I1_NEAR, far: Sequence[float] = I1_FAR) -> Values:
    size = x.abs()
    return _far(size, size * _near(size, near), far).copysign(x)


_short_i0e = in_float64_or_pairs(functools.partial(_i0e, near=SHORT_I0_NEAR, far=SHORT_I0_FAR))
_short_i1e = in_float64_or_pairs(functools.partial(_i1e, near=SHORT_I1_NEAR, far=SHORT_I1_FAR))


def _near(size: Values, coefficients: Sequence[float]) -> Values:
    """Evaluate the interpolant in x/4 - 1, for x up to the border."""
    return size.min_keep_nan(BORDER).mad(0.25, -1.0).polynomial(coefficients)


def _far(size: Values, near: Values, coefficients: Sequence[float]) -> Values:
    """Evaluate the interpolant in 16/x - 1, beyond the border."""
    beyond = size.above(BORDER)
    bounded = beyond.select(size, BORDER)
    return beyond.select((16.0 / bounded - 1.0).polynomial(coefficients) / bounded.sqrt(), near)


# Dawson's integral, by Chebyshev interpolation (Rybicki 1989 compares methods).

#: D(x) / x for |x| <= 4, in powers of x^2 / 8 - 1.
DAWSON_NEAR = (
    -1.8415661220389286e-09, 6.942808431660272e-09, -1.1974767896017549e-08, 4.069450180977135e-08, -1.7639185401349827e-07,
    5.6912743150141e-07, -1.6832966763369728e-06, 4.989790063871062e-06, -1.4279953089235196e-05, 3.885098253020314e-05,
    -0.00010083969901304291, 0.00024958016064282956, -0.000587289824114168, 0.001310388553506182, -0.002765052437675618,
    0.005501582407047025, -0.01028873387648249, 0.018023197694790487, -0.029465250103905532, 0.044786751702697726, -0.06305464462948565,
    0.0819485953442981, -0.09808250266983057, 0.10808625359186626, -0.11008414480023389, 0.10470230415584103, -0.09479475974332541,
    0.08391631505312465, -0.0745921286034794, 0.06759907395335052,
)  # fmt: skip

#: 2 x D(x) for |x| >= 4, in powers of 32 / x^2 - 1.
DAWSON_FAR = (
    7.514716258816251e-10, -1.0592193232399307e-09, -5.703273626980669e-09, 7.970771789432765e-09, 2.030535668601908e-08,
    -2.7961320377567326e-08, -4.646108328153527e-08, 6.14661182631366e-08, 8.130656962042491e-08, -9.529166427045958e-08,
    -1.2648268230238048e-07, 1.0353052452997536e-07, 1.9170370022505928e-07, -3.727433774727657e-08, -2.512467663849105e-07,
    -1.8279779613757157e-07, 7.260084470508347e-08, 3.2992540314990253e-07, 5.941487582341672e-07, 1.1936339932556202e-06,
    3.4758573058539677e-06, 1.501535594859852e-05, 9.585187418933793e-05, 0.000953664547515196, 0.017292146289629776,
    1.0164219728980834,
)  # fmt: skip


@in_float64_or_pairs
def dawsn(x: Values) -> Values:
    """Return D(x), exp(-x^2) times the integral of exp(t^2) from 0 to x."""
    size = x.abs()
    far = size.above(4.0)
    inverse = 1.0 / far.select(size, 4.0)
    bounded = size.min_keep_nan(4.0)
    near = bounded * (bounded * bounded).mad(0.125, -1.0).polynomial(DAWSON_NEAR)
    return far.select(inverse * 0.5 * (inverse * inverse).mad(32.0, -1.0).polynomial(DAWSON_FAR), near).copysign(x)


# Fresnel, sine and cosine integrals.
#
# Near zero they are x, x^3 or x^2 times an interpolant. Far away they are sums of sines and cosines with slowly varying amplitudes f
# and g, which are interpolated (Abramowitz & Stegun 5.2.6 and 7.3.5; by Chebyshev's polynomials, as in Cephes by rational functions).

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

#: Thresholds from which on the amplitudes are used.
FRESNEL_BORDER, SICI_BORDER = 2.5, 10.0

#: The largest finite numbers, and one beyond which Fresnel integrals are 1/2, by width.
_LARGEST_INTEGRAL = {32: 3.4028234e38, 64: 1.7976931348623157e308}
_CONSTANT = 1e17
#: From here on numbers, and their squares, are multiples of 4, by width.
_EVEN = {32: 2.0**25, 64: 2.0**54}


@in_float64_or_pairs
def fresnel_sin(x: Values) -> Values:
    """Return S(x), the integral of sin(pi t^2 / 2) from 0 to x."""
    size, near, amplitude_f, amplitude_g, sine, cosine = _fresnel(x)
    bounded = near.select(size, 1.0)
    inside = bounded * bounded * bounded * _fourth_power(bounded / FRESNEL_BORDER).polynomial(FRESNEL_S)
    return near.select(inside, 0.5 - amplitude_f * cosine - amplitude_g * sine).copysign(x)


@in_float64_or_pairs
def fresnel_cos(x: Values) -> Values:
    """Return C(x), the integral of cos(pi t^2 / 2) from 0 to x."""
    size, near, amplitude_f, amplitude_g, sine, cosine = _fresnel(x)
    bounded = near.select(size, 1.0)
    inside = bounded * _fourth_power(bounded / FRESNEL_BORDER).polynomial(FRESNEL_C)
    return near.select(inside, 0.5 + amplitude_f * sine - amplitude_g * cosine).copysign(x)


def _fourth_power(ratio: Values) -> Values:
    """Return 2 ratio^4 - 1, the variable of the interpolants."""
    square = ratio * ratio
    return (square * square).mad(2.0, -1.0)


def _fresnel(x: Values) -> tuple[Values, ...]:
    """Return |x|, whether it is near, both amplitudes, sine and cosine of pi x^2 / 2."""
    size = x.abs()
    near = size.below(FRESNEL_BORDER)
    far = near.select(FRESNEL_BORDER, size.min_keep_nan(_CONSTANT))
    inverse = 1.0 / far
    variable = _fourth_power(FRESNEL_BORDER * inverse)
    amplitude_f = inverse * (1.0 / math.pi) * variable.polynomial(FRESNEL_F)
    amplitude_g = inverse * inverse * inverse * (1.0 / math.pi**2) * variable.polynomial(FRESNEL_G)
    return size, near, amplitude_f, amplitude_g, *_sine_and_cosine(far)


def _sine_and_cosine(x: Values) -> tuple[Values, Values]:
    """Return sine and cosine of pi x^2 / 2, to full precision near their zeros."""
    # The square is exact, so that its remainder modulo 4 is. Mesa's compilers lose its error in a sum with a plain difference.
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
    return x.abs().equals(math.inf).select(math.nan, _sine_and_cosine(x.abs().min_keep_nan(_EVEN[x.range]))[0])


@in_float64
def fresnel_cos_slope(x: Values) -> Values:
    """Return cos(pi x^2 / 2), NaN at infinity."""
    return x.abs().equals(math.inf).select(math.nan, _sine_and_cosine(x.abs().min_keep_nan(_EVEN[x.range]))[1])


@in_float64
def sin_integral(x: Values) -> Values:
    """Return Si(x), the integral of sin(t) / t from 0 to x."""
    size, near, amplitude_f, amplitude_g, far = _sici(x)
    bounded = size.min_keep_nan(SICI_BORDER)
    inside = bounded * (bounded * bounded).mad(0.02, -1.0).polynomial(SI_NEAR)
    return near.select(inside, 0.5 * math.pi - amplitude_f * cos(far) - amplitude_g * sin(far)).copysign(x)


@in_float64_or_pairs
def cos_integral(x: Values) -> Values:
    """Return Ci(|x|), the cosine integral; NaN at -infinity.

    It is gamma + log |x| + the integral of (cos(t) - 1) / t from 0 to |x|.
    """
    size, near, amplitude_f, amplitude_g, far = _sici(x)
    bounded = size.min_keep_nan(SICI_BORDER)
    square = bounded * bounded
    inside = log(bounded) + square.mad(square.mad(0.02, -1.0).polynomial(CI_NEAR), 0.5772156649015329)
    out = near.select(inside, amplitude_f * sin(far) - amplitude_g * cos(far))
    return x.equals(-math.inf).select(math.nan, size.equals(math.inf).select(0.0, out))


def _sici(x: Values) -> tuple[Values, ...]:
    """Return |x|, whether it is near, both amplitudes, and |x| where it is not near."""
    size = x.abs()
    near = size.below(SICI_BORDER)
    far = near.select(SICI_BORDER, size.min_keep_nan(_LARGEST_INTEGRAL[x.range]))
    inverse = 1.0 / far
    variable = inverse.mad(2.0 * SICI_BORDER, -1.0)
    return size, near, inverse * variable.polynomial(SICI_F), inverse * inverse * variable.polynomial(SICI_G), far


# Owen's T function.

#: The squares of the positive nodes, and the weights, of Gauss-Legendre quadrature with 40 nodes.
_SQUARES = (
    0.0015033003592635162, 0.013475511464537647, 0.03713235760816143, 0.0719055943241644, 0.11695995815973713, 0.17121322997039845,
    0.23336223017474425, 0.3019141215603053, 0.3752222677473721, 0.45152578599767995, 0.5289918443325199, 0.6057596870424587,
    0.6799853312398909, 0.7498858612036233, 0.8137822575346664, 0.870139735288751, 0.917604632532668, 0.955037009842289,
    0.9815384800475735, 0.9964785250881827,
)  # fmt: skip

_WEIGHTS = (
    0.0775059479784248, 0.07703981816424797, 0.07611036190062624, 0.07472316905796826, 0.07288658239580406, 0.07061164739128678,
    0.0679120458152339, 0.06480401345660104, 0.06130624249292894, 0.05743976909939155, 0.05322784698393682, 0.04869580763507223,
    0.04387090818567327, 0.038782167974472016, 0.033460195282547844, 0.0279370069800234, 0.02224584919416696, 0.01642105838190789,
    0.010498284531152813, 0.004521277098533191,
)  # fmt: skip

#: From this h on the function is 0 in float64.
_ZERO_FROM = 40.0
#: Of h t: beyond it the integrand is less than 2^-57 of what it is at 0.
_REACH = 9.0
#: The largest finite numbers, by width.
_LARGEST_OWENS_T = {32: 3.4028234e38, 64: 1.7976931348623157e308}


@in_float64_or_pairs
def owens_t(h: Values, a: Values) -> Values:
    """Return the integral of exp(-h^2 (1 + t^2) / 2) / (1 + t^2) / (2 pi) from 0 to a."""
    # Beyond a = 1 it follows from T(a h, 1/a) (Owen 1956); up to 1 it is computed by quadrature (method T5 of Patefield and Tandy, "Fast
    # and accurate calculation of Owen's T function", 2000, with as many nodes as make it exact everywhere).
    size, slope = h.abs(), a.abs().min_keep_nan(_LARGEST_OWENS_T[a.range])
    beyond = slope.above(1.0)
    scaled = size.min_keep_nan(_LARGEST_OWENS_T[a.range]) * slope
    inner = _quadrature(beyond.select(scaled, size), beyond.select(1.0 / beyond.select(slope, 1.0), slope))
    first, second = ndtr(-size), ndtr(-scaled)
    out = beyond.select((first + second) * 0.5 - first * second - inner, inner)
    return (h.is_nan() | a.is_nan()).select(math.nan, out).copysign(a)


def _quadrature(h: Values, a: Values) -> Values:
    """Return T(h, a) for h >= 0 and 0 <= a <= 1; the integral ends where h t = 9."""
    bounded = h.min_keep_nan(_ZERO_FROM)
    product = (bounded * a).min_keep_nan(_REACH)
    end = (bounded * a).above(_REACH).select(_REACH / bounded.max_keep_nan(1.0), a)
    exponent, square = product * product * -0.5, end * end

    def add(node: Values, weight: Values, total: Values) -> Sequence[Values]:
        return [total + weight * exp(exponent * node) / square.mad(node, 1.0)]

    (total,) = h.repeated([_SQUARES, _WEIGHTS], add, h.like(0.0))
    return h.above(_ZERO_FROM).select(0.0, total * exp_minus_square(bounded, 0.5) * end * (0.5 / math.pi))


# Spence's function, the dilogarithm of 1 - x.

#: Of spence(exp(-u)) = u - u^2 / 4 + Σ B_2k u^(2k + 1) / (2k + 1)! for |u| <= log 2, in powers of u^2.
_SERIES = (*(b / math.factorial(2 * k + 1) for k, b in reversed([*enumerate(BERNOULLI[:9], 1)])), 1.0)


@in_float64
def spence(x: Values) -> Values:
    """Return minus the integral of log(t) / (t - 1) from 1 to x; NaN for x < 0."""
    # Reflections lead to a series in the logarithm (Lewin, Polylogarithms and Associated Functions, 1981, chapter 1): of 1 - x for x < 1/2,
    # of 1 - 1/x for x > 2.
    small, large = x.below(0.5), x.above(2.0)
    logarithm = log(x)
    ratio = small.select(-x, large.select(-1.0 / large.select(x, 2.0), -0.5))
    reflected = log1p(ratio)
    series = _series(-(small | large).select(reflected, logarithm))
    product = x.equals(0.0).select(0.0, logarithm * reflected)
    out = small.select(math.pi**2 / 6 - product - series, series)
    return large.select(series - logarithm * logarithm * 0.5 - product - math.pi**2 / 6, out)


def _series(u: Values) -> Values:
    square = u * u
    return u * square.polynomial(_SERIES) - square * 0.25


# The Faddeeva function w(x + i y) = exp(-z^2) erfc(-i z): its components.
#
# Far from zero it is Laplace's continued fraction (Gautschi 1970), elsewhere the sums of Zaghloul and Ali, "Algorithm 916: computing the
# Faddeyeva and Voigt functions", 2011. The border is that of S. G. Johnson's Faddeeva package.

#: The step of the sums, with which their error is 2^-53, and how many terms of a Gaussian exp(-(STEP n)^2) are not negligible.
STEP = math.pi / math.sqrt(53 * math.log(2))
TERMS = 12
_FACTOR = 2.0 * STEP / math.pi
_GAUSSIAN = tuple(math.exp(-((STEP * n) ** 2)) for n in range(TERMS + 1))

#: The levels of the fraction, and from which size on its first one is enough.
_LEVELS, _FAR = 20, 1e8
_LARGEST_FADDEEVA = {32: 3.4028234e38, 64: 1.7976931348623157e308}

Pair = tuple[Values, Values]


@in_float64_or_pairs
def faddeeva_real(x: Values, y: Values) -> Values:
    """Return the real part of w(x + i y)."""
    return _faddeeva(x, y)[0]


@in_float64_or_pairs
def faddeeva_imag(x: Values, y: Values) -> Values:
    """Return the imaginary part of w(x + i y)."""
    return _faddeeva(x, y)[1]


def _faddeeva(x: Values, y: Values) -> Pair:
    """Lead to the first quadrant: w(-z) = 2 exp(-z^2) - w(z), w(-conj z) = conj w(z)."""
    below = y.below(0.0)
    real, imaginary = _first_quadrant(x.abs(), y.abs())
    depth = below.select((-y).min_keep_nan(_LARGEST_FADDEEVA[x.range]), 0.0)
    size = 2.0 * exp((depth - x.abs()) * (depth + x.abs()))
    angle = size.equals(0.0).select(0.0, 2.0 * x * depth)
    sine = angle.equals(0.0).select(0.0, size * sin(angle))
    mirrored_real, mirrored_imaginary = size * cos(angle) - real, sine + imaginary.copysign(x)
    invalid = x.is_nan() | y.is_nan()
    out_real, out_imaginary = below.select(mirrored_real, real), below.select(mirrored_imaginary, imaginary.copysign(x))
    return invalid.select(math.nan, out_real), invalid.select(math.nan, out_imaginary)


def _first_quadrant(x: Values, y: Values) -> Pair:
    close = x.compare("ole", 6.0) | (y.compare("ole", 0.1) & x.compare("ole", 8.0)) | (y.compare("ole", 1e-10) & x.compare("ole", 28.0))
    close = close & y.compare("ole", 7.0)
    sums = _sums(close.select(x, 1.0), close.select(y, 1.0))
    fraction = _fraction(
        close.select(10.0, x.min_keep_nan(_LARGEST_FADDEEVA[x.range])), close.select(10.0, y.min_keep_nan(_LARGEST_FADDEEVA[x.range]))
    )
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

    def add(j: Values, gaussian: Values, *values: Values) -> Sequence[Values]:
        up, down, even, odd = values
        up, down = up * growth, down * shrinking
        for n, weight in ((start + j, up), (start - j, down)):
            more_even, more_odd = _both(n, square, gaussian)
            even, odd = even + weight * more_even, odd + weight * more_odd
        return [up, down, even, odd]

    one = x.like(1.0)
    _, _, even, odd = x.repeated([range(1, TERMS + 1), _GAUSSIAN[1:]], add, one, one, even, odd)
    plain, by_sines = _sums_at_zero(rest, (growth + shrinking), square)
    return decay * even, decay * start.equals(0.0).select(by_sines, odd), plain


def _both(n: Values, square: Values, gaussian: Values | float) -> Pair:
    """Return the terms of the even and the odd sum for n, which are 0 for n = 0."""
    point = n * STEP
    zero = n.equals(0.0)
    term = zero.select(0.0, gaussian / zero.select(1.0, point * point + square))
    return term, point * term


def _sums_at_zero(rest: Values, twice_cosine: Values, square: Values) -> Pair:
    """Return the sum without x, and the odd one by sinh((n + 1) t) of the two before."""

    def add(gaussian: Values, point: Values, *values: Values) -> Sequence[Values]:
        plain, by_sines, before, sine = values
        term = gaussian / (square + point * point)
        return [plain + term, by_sines + 2.0 * point * term * sine, sine, twice_cosine * sine - before]

    zero, points = rest.like(0.0), [STEP * n for n in range(1, TERMS + 1)]
    return tuple(rest.repeated([_GAUSSIAN[1:], points], add, zero, zero, zero, sinh(rest * (2.0 * STEP)))[:2])  # type: ignore[return-value]
