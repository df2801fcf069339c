"""Samples of elementwise primitives, derived from their declarations.

A new primitive needs no line here. Only three things cannot be derived from arity, dtypes and domain: an oracle other than the declared
NumPy function, parameters, and where complex numbers are safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath
import numpy as np
import scipy.special
import scipy.stats

from tests.laws.integers import BY_PYTHON, by_python, extremes
from tests.samples.sample import USUAL_SHAPE, Arg, Draw, Sample, uniform
from volta_fn import dtypes as dt
from volta_fn.core.primitive import PRIMITIVES, Primitive
from volta_fn.core.trace import bind
from volta_fn.primitives.declare import Domain


def _lgamma(x: np.ndarray) -> np.ndarray:
    """Evaluate SciPy's, but at -inf (inf in C) and near zero, where Γ(x) is 1 / x."""
    values = np.where(np.isneginf(x), np.inf, scipy.special.gammaln(x))
    return np.where(np.abs(x) < 1e-300, -np.log(np.abs(x)), values)


@partial(np.vectorize, otypes=[float])
def _fused_multiply_add(x: float, y: float, z: float) -> float:
    """Compute in fractions, so that nothing is rounded before the end."""
    if not all(map(math.isfinite, (x, y, z))):
        return z if math.isfinite(x) and math.isfinite(y) else x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return float(exact) if exact and abs(exact) < 2**1023 else x * y + z


def _complex(re: np.ndarray, im: np.ndarray) -> np.ndarray:
    """Join components; re + 1j * im would be NaN for infinite ones."""
    return np.stack(np.broadcast_arrays(re, im), -1).astype(np.float64).view(np.complex128)[..., 0]


def _difference(function: Callable[..., Any], position: int) -> Callable[..., np.ndarray]:
    """Return a derivative of mpmath's function, as a difference with fifty digits."""

    def derivative(*xs: float) -> float:
        with mpmath.workdps(50):
            step = mpmath.mpf(10) ** -15
            above, below = (function(*[mpmath.mpf(x) + sign * step * (k == position) for k, x in enumerate(xs)]) for sign in (1, -1))
            return float((above - below) / (2 * step))

    return np.vectorize(derivative, otypes=[float])


_GAMMAINC_BY_A = _difference(lambda a, x: mpmath.gammainc(a, 0, x, regularized=True), 0)
_BETAINC_BY_A, _BETAINC_BY_B = (_difference(lambda a, b, x: mpmath.betainc(a, b, 0, x, regularized=True), k) for k in (0, 1))


def _of_half_square(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return function(x^2 / 2), which no float of x^2 would give for large x."""

    def value(x: float) -> float:
        with mpmath.workprec(4400):
            return float(function(mpmath.mpf(float(x)) ** 2 / 2)) if np.isfinite(x) else np.nan

    return np.vectorize(value, otypes=[float])


def _gamma_density(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    return x ** (a - 1) * np.exp(-x) / scipy.special.gamma(a)


#: Independent oracles for inexact dtypes, for primitives whose declared function is not NumPy's own.
REFERENCES: dict[str, Callable[..., Any]] = {
    "div": np.divide,
    "rem": np.fmod,
    "sign": lambda x: np.sign(x),
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "nextafter": lambda x, y: np.where(x == y, y, np.nextafter(x, y)),
    "pow": np.power,
    "integer_pow": lambda x, *, y: x ** np.float64(y),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "cbrt": np.cbrt,
    "logistic": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erf_inv": scipy.special.erfinv,
    "ndtr": scipy.special.ndtr,
    "gelu": lambda x: np.maximum(x, -40.0) * scipy.special.ndtr(x),
    "lgamma": _lgamma,
    "digamma": lambda x: np.where(x == 0, np.nan, scipy.special.digamma(x)),
    "polygamma": lambda order, x: scipy.special.polygamma(order.astype(int), x),
    "real": lambda x: ((x + np.conj(x)) / 2).real,
    "imag": lambda x: ((x - np.conj(x)) / 2j).real,
    "fma": _fused_multiply_add,
    "zeta": scipy.special.zeta,
    "gamma": scipy.special.gamma,
    "hyp1f1": scipy.special.hyp1f1,
    "hyp2f1": scipy.special.hyp2f1,
    "dawsn": scipy.special.dawsn,
    "fresnel_sin": lambda x: scipy.special.fresnel(np.clip(x, -1e100, 1e100))[0],  # SciPy's is NaN at the largest numbers
    "fresnel_sin_slope": _of_half_square(mpmath.sinpi),
    "fresnel_cos_slope": _of_half_square(mpmath.cospi),
    "gaussian": lambda x: np.exp(-x * x),
    "fresnel_cos": lambda x: scipy.special.fresnel(np.clip(x, -1e100, 1e100))[1],
    "sin_integral": lambda x: scipy.special.sici(x)[0],
    "cos_integral": lambda x: scipy.special.sici(x)[1],
    "spence": scipy.special.spence,
    "owens_t": scipy.special.owens_t,
    "faddeeva_real": lambda x, y: scipy.special.wofz(_complex(x, y)).real,
    "faddeeva_imag": lambda x, y: scipy.special.wofz(_complex(x, y)).imag,
    "erf_inv_of_uniform": scipy.special.erfinv,
    "ndtri": scipy.special.ndtri,
    "erfcx": scipy.special.erfcx,
    "expi": scipy.special.expi,
    "expn": lambda n, x: scipy.special.expn(n.astype(int), x),
    "igamma": scipy.special.gammainc,
    "igammac": scipy.special.gammaincc,
    "gamma_density": _gamma_density,
    "igamma_grad_a": _GAMMAINC_BY_A,
    "random_gamma_grad": lambda a, x: -_GAMMAINC_BY_A(a, x) / _gamma_density(a, x),
    "regularized_incomplete_beta": scipy.special.betainc,
    "regularized_incomplete_beta_complement": scipy.special.betaincc,
    "beta_density": lambda a, b, x: x ** (a - 1) * (1 - x) ** (b - 1) / scipy.special.beta(a, b),
    "betainc_grad_a": _BETAINC_BY_A,
    "betainc_grad_b": _BETAINC_BY_B,
    "gamma_pdf": scipy.stats.gamma.pdf,
    "beta_pdf": scipy.stats.beta.pdf,
    "nbinom_pmf": lambda k, n, p: scipy.special.poch(n, k) / scipy.special.gamma(k + 1) * p**n * (1 - p) ** k,
    "t_pdf": scipy.stats.t.pdf,
    "normal_pdf": scipy.stats.norm.pdf,
    "exponential_pdf": lambda x, loc, scale: 2.0 * scipy.stats.laplace.pdf(x, loc, scale),
    "logistic_pdf": scipy.stats.logistic.pdf,
    "cauchy_pdf": scipy.stats.cauchy.pdf,
    "beta": scipy.special.beta,
    "betaln": scipy.special.betaln,
    "comb": scipy.special.binom,
    "poch": scipy.special.poch,
    "digamma_rise": lambda a, b: scipy.special.digamma(a + b) - scipy.special.digamma(a),
    "factorial": scipy.special.factorial,
    "boxcox": scipy.special.boxcox,
    "boxcox1p": scipy.special.boxcox1p,
    "bessel_i0": lambda x: np.where(np.isinf(x), np.inf, scipy.special.i0(x)),
    "bessel_i1": lambda x: np.where(np.isinf(x), x, scipy.special.i1(x)),
    "bessel_i0e": scipy.special.i0e,
    "bessel_i1e": scipy.special.i1e,
    "complex": lambda re, im: _complex(re, im),
    "clamp": lambda low, x, high: np.clip(x, low, high),
}

#: Primitives with parameters, and which ones to sample.
PARAMETERS: dict[str, tuple[dict[str, Any], ...]] = {
    "integer_pow": ({"y": 2}, {"y": 3}, {"y": 5}, {"y": -2}),
    "philox4x32_word": tuple([{"word": word} for word in range(4)]),
    "threefry2x32_word": tuple([{"word": word} for word in ("first", "second", "mixed")]),
}

#: Further domains, where the declared one shows too little.
MORE_DOMAINS: dict[str, Domain] = {"rem": Domain(-4.4, -4.2, operands={1: (1.15, 1.35)})}

#: Smaller domains for the real and imaginary parts of complex operands, away from poles and branch points.
COMPLEX_DOMAINS: dict[str, Domain] = {
    "tan": Domain(-0.8, 0.8),
    "tanh": Domain(-0.8, 0.8),
    "logistic": Domain(-1.5, 1.5),
    "atan": Domain(-0.6, 0.6),
    "asinh": Domain(-0.6, 0.6),
}

#: Primitives whose derivative by some operands is zero by convention, unseen by finite differences: by which ones it is not.
DIFFERENTIABLE: dict[str, tuple[int, ...]] = {
    "nextafter": (),
    "polygamma": (1,),
    "hyp1f1": (2,),
    "hyp2f1": (3,),
    "expn": (1,),
}
#: Incomplete functions have no second derivatives by their shapes; their first ones have tests of their own.
DIFFERENTIABLE |= {"expn": (1,), "igamma": (1,), "igammac": (1,), "igamma_grad_a": (1,), "random_gamma_grad": ()}
DIFFERENTIABLE |= {
    "regularized_incomplete_beta_complement": (2,),
    "regularized_incomplete_beta": (2,),
    "betainc_grad_a": (2,),
    "betainc_grad_b": (2,),
}

#: Results equal to the last bit in every dtype, where even rounding to float16 leaves no choice.
EXACT = frozenset({"neg", "floor", "ceil", "round", "round_half_even", "nextafter", "max", "min", "clamp", "abs", "is_finite"})


def on_grid(domain: Domain, position: int) -> Draw:
    """Draw operands from a domain, no two closer than 0.02 to each other or to a kink.

    Functions may have kinks at multiples of 1/2, and where operands are equal; finite differences do not survive them.
    """
    low, high = domain.operands.get(position, (domain.low, domain.high))
    width = high - low
    if width < 0.3:
        return uniform(low, high, domain.avoid, domain.margin)

    def draw_real(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        steps = rng.integers(0, int(width / 0.1 + 1e-9), shape)
        values = low + 0.1 * steps + 0.03 * (position + 1) + rng.uniform(-0.005, 0.005, shape)
        for point in domain.avoid:
            near = np.abs(values - point) < domain.margin
            values = np.where(near, point + 2 * domain.margin + 0.03 * position, values)
        return values

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        values = draw_real(rng, shape)
        return (values + 1j * draw_real(rng, shape) if dtype in dt.COMPLEX else values).astype(dtype)

    return draw


def shapes_of(arity: int) -> Iterator[tuple[str, tuple[tuple[int, ...], ...]]]:
    """Yield names and shapes: equal, zero-dimensional, empty, broadcast both ways."""
    yield "", (USUAL_SHAPE,) * arity
    yield "0d", ((),) * arity
    yield "empty", ((0, 3),) * arity
    if arity > 1:
        yield "outer", tuple([((2, 1), (3,))[i % 2] for i in range(arity)])
        yield "scalar", tuple([((3,), ())[i % 2] for i in range(arity)])


def samples_of(primitive: Primitive) -> Iterator[Sample]:
    """Yield all samples of an elementwise primitive."""
    for label, shapes in shapes_of(primitive.arity):
        yield from samples_with(primitive, shapes, label)


def samples_with(primitive: Primitive, shapes: Sequence[tuple[int, ...]], label: str = "") -> Iterator[Sample]:
    """Yield the samples with operands of the given shapes."""
    for params in PARAMETERS.get(primitive.name, ({},)):
        called = "".join(f"{k}={v}" for k, v in params.items())
        yield from _samples(primitive, params, tuple(shapes), "-".join(filter(None, (called, label))))


def _samples(primitive: Primitive, params: dict[str, Any], shapes: tuple[tuple[int, ...], ...], label: str) -> Iterator[Sample]:
    """Yield one sample for each kind of dtype, which has its own oracle and domain."""
    allowed = primitive.dtypes or frozenset()
    floats = tuple(sorted(d.name for d in allowed & dt.FLOATS))
    complexes = tuple(sorted(d.name for d in allowed & dt.COMPLEX))
    integers = tuple(sorted(d.name for d in allowed - dt.INEXACT))
    domain = primitive.domain or Domain()
    if floats:
        yield _sample(primitive, params, shapes, domain, floats, f"{label}")
        if primitive.name in MORE_DOMAINS:
            yield _sample(primitive, params, shapes, MORE_DOMAINS[primitive.name], floats, f"{label}more")
    if complexes:
        yield _sample(primitive, params, shapes, COMPLEX_DOMAINS.get(primitive.name, domain), complexes, f"{label}complex")
    if integers and params.get("y", 1) > 0:
        reference = by_python(primitive.name, **params) if primitive.name in BY_PYTHON else primitive.evaluate
        args = tuple([Arg(shape, extremes) for shape in shapes])
        yield Sample(
            primitive.name,
            _call(primitive, params),
            args,
            reference,
            dtypes=integers,
            result_dtype=RESULTS.get(primitive.name),
            label=f"{label}whole",
        )


def oracle(primitive: Primitive) -> Callable[..., Any]:
    """Return the NumPy function that is the primitive's meaning for inexact dtypes."""
    reference = REFERENCES.get(primitive.name, primitive.evaluate)
    assert reference is not None, f"the elementwise primitive {primitive} declares no function"
    return reference


def _sample(
    primitive: Primitive, params: dict[str, Any], shapes: tuple[tuple[int, ...], ...], domain: Domain, names: tuple[str, ...], label: str
) -> Sample:
    reference = oracle(primitive)
    return Sample(
        primitive.name,
        _call(primitive, params),
        tuple([Arg(shape, on_grid(domain, i)) for i, shape in enumerate(shapes)]),
        lambda *xs: reference(*xs, **params),
        dtypes=names,
        result_dtype=RESULTS.get(primitive.name),
        exact=primitive.name in EXACT,
        differentiable=DIFFERENTIABLE.get(primitive.name),
        linear=primitive.linear,
        label=label,
        **TOLERANCES.get(primitive.name, {}),
    )


#: Tolerances of functions whose rounding errors are larger than a few units in the last place, and why.
TOLERANCES: dict[str, dict[str, Any]] = {}


def _call(primitive: Primitive, params: dict[str, Any]) -> Callable[..., Any]:
    return lambda *xs: bind(primitive, *xs, **params)


_TO_BOOL = lambda dtype: np.bool_

#: Results of another dtype than the operands'.
RESULTS: dict[str, Callable[[np.dtype], Any]] = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "is_finite"), _TO_BOOL),
    **dict.fromkeys(("real", "imag", "abs"), dt.real_dtype),
    "complex": dt.complex_dtype,
}

SAMPLES: list[Sample] = [s for p in list(PRIMITIVES.values()) if p.arity for s in samples_of(p)]
