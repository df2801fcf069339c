"""Write docs/reference/special_accuracy.md, errors of special functions.

python tools/special_accuracy.py [--points 1000000]

SciPy in float64 is the oracle. Where it differs by more than a few units, mpmath decides: SciPy is wrong at some extremes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
import scipy.special as ss
import scipy.stats

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import volta_fn as vf  # noqa: E402
from volta_fn import lax  # noqa: E402
from volta_fn import numpy as vnp  # noqa: E402
from volta_fn.scipy import special, stats  # noqa: E402

TARGET = ROOT / "docs" / "reference" / "special_accuracy.md"
#: Differences from SciPy above it are decided by mpmath, at most so many of them.
DOUBT, DECISIONS = 2.0, 200
SMALLEST_NORMAL, LARGEST = 2.0**-126, float(np.finfo(np.float32).max)

Array = np.ndarray
Draw = Callable[[np.random.Generator, int], Array]


class Case(NamedTuple):
    """A function, its oracles, draws of arguments, and arguments of derivatives."""

    function: Callable[..., Any]
    scipy: Callable[..., Any]
    exact: Callable[..., Any]
    draws: tuple[Draw, ...]
    slopes: tuple[int, ...] = (0,)


def anywhere(rng: np.random.Generator, count: int) -> Array:
    """Draw from all bit patterns, and as many ordinary numbers and integers."""
    patterns = rng.integers(0, 2**32, count // 2, dtype=np.uint64).astype(np.uint32).view(np.float32)
    middle = np.exp2(rng.uniform(-12, 8, count // 4)) * rng.choice([-1.0, 1.0], count // 4)
    integers = np.round(rng.uniform(-40, 40, count // 8)).astype(np.float32)
    neighbours = np.nextafter(
        np.round(rng.uniform(-12, 12, count - count // 2 - count // 4 - count // 8)).astype(np.float32), np.float32(1e9)
    )
    out = np.concatenate([np.where(np.isfinite(patterns), patterns, np.float32(1.0)), middle, integers, neighbours]).astype(np.float32)
    return rng.permutation(out)


def positive(rng: np.random.Generator, count: int) -> Array:
    """Draw the magnitudes of `anywhere`."""
    return np.abs(anywhere(rng, count))


def unit(rng: np.random.Generator, count: int) -> Array:
    """Draw from [0, 1]: all exponents, and numbers close to 1 and to 1/2."""
    small = np.exp2(rng.uniform(-149, 0, count // 4))
    ends = 1 - np.exp2(rng.uniform(-24, -1, count // 4))
    middle = 0.5 + rng.choice([-1.0, 1.0], count // 4) * np.exp2(rng.uniform(-25, -2, count // 4))
    rest = rng.random(count - 3 * (count // 4))
    return rng.permutation(np.concatenate([small, ends, middle, rest]).astype(np.float32))


def symmetric(rng: np.random.Generator, count: int) -> Array:
    """Draw from [-1, 1]."""
    return (unit(rng, count) * rng.choice([-1.0, 1.0], count)).astype(np.float32)


def order(rng: np.random.Generator, count: int) -> Array:
    """Draw integers from 1 to 128, small ones more often."""
    return np.round(np.exp2(rng.uniform(0, 7, count))).astype(np.float32)


def count(rng: np.random.Generator, count: int) -> Array:
    """Draw integers from 0 to 1023, small ones more often."""
    return np.floor(np.exp2(rng.uniform(0, 10, count)) - 1).astype(np.float32)


def above_one(rng: np.random.Generator, count: int) -> Array:
    """Draw numbers above 1."""
    return (1 + np.exp2(rng.uniform(-20, 7, count))).astype(np.float32)


def one(name: str, exact: Callable[..., Any], draw: Draw = anywhere, scipy: Callable[..., Any] | None = None) -> Case:
    """Return the case of a function of one argument that SciPy has by the same name."""
    return Case(getattr(special, name), scipy or getattr(ss, name), exact, (draw,))


def two(name: str, exact: Callable[..., Any], first: Draw = positive, second: Draw = positive, slopes: tuple[int, ...] = (0, 1)) -> Case:
    """Return the case of a function of two arguments that SciPy has by the same name."""
    return Case(getattr(special, name), getattr(ss, name), exact, (first, second), slopes)


def _ndtri(p: Any) -> Any:
    return -mp.sqrt(2) * mp.erfinv(1 - 2 * p)


def _owens_t(h: Any, a: Any) -> Any:
    end = min(abs(a), 10 / max(abs(h), mp.mpf(2) ** -99))  # beyond it the integrand is less than 2^-72 of what it is at 0
    integral = mp.quad(lambda t: mp.exp(-h * h * t * t / 2) / (1 + t * t), [0, end / 4, end / 2, end])
    return mp.sign(a) * mp.exp(-h * h / 2) * integral / (2 * mp.pi)


def _boxcox(x: Any, power: Any) -> Any:
    return mp.log(x) if power == 0 else (x**power - 1) / power


def _wofz(x: Any, y: Any) -> Any:
    z = mp.mpc(x, y)
    return mp.exp(-z * z) * mp.erfc(mp.mpc(0, -1) * z)


def _log_ratio(x: Any, y: Any) -> Any:
    return mp.log(x / y)


def _betainc(a: Array, b: Array, x: Array) -> Array:
    """Return SciPy's, or where that is NaN, for large parameters, 0 or 1."""
    out = ss.betainc(a, b, x)
    return np.where(np.isnan(out) & (a > 0) & (b > 0), np.where(x > a / (a + b), 1.0, 0.0), out)


def _comb(n: Any, k: Any) -> Any:
    return mp.binomial(n, k) if k <= n else mp.mpf(0)


def _sinc(x: Array) -> Array:
    """Return NumPy's, which loses digits far from 0, of the distance from an integer."""
    nearest = np.rint(x)
    sine = np.sin(np.pi * (x - nearest)) * np.where(nearest % 2 == 0, 1.0, -1.0)
    return np.where(x == 0, 1.0, sine / np.where(x == 0, 1.0, np.pi * x))


def _density(name: str, exact: Callable[..., Any], *draws: Draw, slopes: tuple[int, ...] = (0,)) -> Case:
    """Return the case of a density or a probability in `scipy.stats`."""
    distribution, _, function = name.partition(".")
    ours, scipys = (getattr(getattr(module, distribution), function) for module in (stats, scipy.stats))
    return Case(ours, scipys, exact, draws, slopes)


def _gamma_pdf(x: Any, a: Any) -> Any:
    with mp.workdps(140):
        return mp.exp((a - 1) * mp.log(x) - x - mp.loggamma(a))


def _beta_pdf(x: Any, a: Any, b: Any) -> Any:
    with mp.workdps(140):
        return mp.exp((a - 1) * mp.log(x) + (b - 1) * mp.log(1 - x) + mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b))


def _t_pdf(x: Any, df: Any) -> Any:
    with mp.workdps(140):
        level = mp.loggamma((df + 1) / 2) - mp.loggamma(df / 2) - mp.log(df * mp.pi) / 2
        return mp.exp(level - (df + 1) / 2 * mp.log1p(x * x / df))


def _binom_pmf(k: Any, n: Any, p: Any) -> Any:
    return mp.binomial(n, k) * p**k * (1 - p) ** (n - k)


def _nbinom_pmf(k: Any, n: Any, p: Any) -> Any:
    with mp.workdps(140):
        return mp.exp(mp.loggamma(k + n) - mp.loggamma(k + 1) - mp.loggamma(n) + n * mp.log(p)) * (1 - p) ** k


DENSITIES: dict[str, Case] = {
    "norm.pdf": _density("norm.pdf", mp.npdf, anywhere),
    "expon.pdf": _density("expon.pdf", lambda x: mp.exp(-x), positive),
    "laplace.pdf": _density("laplace.pdf", lambda x: mp.exp(-abs(x)) / 2, anywhere),
    "logistic.pdf": _density("logistic.pdf", lambda x: mp.exp(-abs(x)) / (1 + mp.exp(-abs(x))) ** 2, anywhere),
    "cauchy.pdf": _density("cauchy.pdf", lambda x: 1 / (mp.pi * (1 + x * x)), anywhere),
    "gamma.pdf": _density("gamma.pdf", _gamma_pdf, positive, positive, slopes=(0, 1)),
    "chi2.pdf": _density("chi2.pdf", lambda x, df: _gamma_pdf(x / 2, df / 2) / 2, positive, positive, slopes=(0, 1)),
    "beta.pdf": _density("beta.pdf", _beta_pdf, unit, positive, positive, slopes=(0, 1, 2)),
    "t.pdf": _density("t.pdf", _t_pdf, anywhere, positive, slopes=(0, 1)),
    "poisson.pmf": _density("poisson.pmf", lambda k, mu: _gamma_pdf(mu, k + 1), count, positive, slopes=(1,)),
    "binom.pmf": Case(
        lambda k, more, p: stats.binom.pmf(k, k + more, p),
        lambda k, more, p: scipy.stats.binom.pmf(k, k + more, p),
        lambda k, more, p: _binom_pmf(k, k + more, p),
        (count, count, unit),
        (2,),
    ),
    "nbinom.pmf": _density("nbinom.pmf", _nbinom_pmf, count, positive, unit, slopes=(1, 2)),
    "geom.pmf": _density("geom.pmf", lambda k, p: p * (1 - p) ** (k - 1), order, unit, slopes=(1,)),
}

CASES: dict[str, Case] = {
    "digamma": one("digamma", mp.digamma, scipy=lambda x: np.where(x == 0, np.nan, ss.digamma(x))),
    "gamma": one("gamma", mp.gamma, scipy=lambda x: np.where(x == -np.inf, np.nan, ss.gamma(x))),
    "gammaln": one("gammaln", lambda x: mp.re(mp.loggamma(x))),
    "loggamma": one("loggamma", mp.loggamma, positive),
    "factorial": one("factorial", lambda n: mp.gamma(n + 1), positive),
    "erf": one("erf", mp.erf),
    "erfc": one("erfc", mp.erfc),
    "erfcx": one("erfcx", lambda x: mp.exp(x * x) * mp.erfc(x)),
    "erfinv": one("erfinv", mp.erfinv, symmetric),
    "ndtr": one("ndtr", mp.ncdf),
    "log_ndtr": one("log_ndtr", lambda x: mp.log1p(-mp.ncdf(-x)) if x > 0 else mp.log(mp.ncdf(x))),
    "ndtri": one("ndtri", _ndtri, unit),
    "dawsn": one("dawsn", lambda x: mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x)),
    "spence": one("spence", lambda x: mp.re(mp.polylog(2, 1 - x)), positive),
    "exp1": one("exp1", mp.e1, positive),
    "expi": one("expi", mp.ei),
    "fresnel, S": Case(lambda x: special.fresnel(x)[0], lambda x: ss.fresnel(x)[0], mp.fresnels, (anywhere,)),
    "fresnel, C": Case(lambda x: special.fresnel(x)[1], lambda x: ss.fresnel(x)[1], mp.fresnelc, (anywhere,)),
    "sici, Si": Case(lambda x: special.sici(x)[0], lambda x: ss.sici(x)[0], mp.si, (anywhere,)),
    "sici, Ci": Case(lambda x: special.sici(x)[1], lambda x: ss.sici(x)[1], mp.ci, (positive,)),
    "i0": one("i0", lambda x: mp.besseli(0, x)),
    "i0e": one("i0e", lambda x: mp.exp(-abs(x)) * mp.besseli(0, x)),
    "i1": one("i1", lambda x: mp.besseli(1, x)),
    "i1e": one("i1e", lambda x: mp.exp(-abs(x)) * mp.besseli(1, x)),
    "expit": one("expit", lambda x: 1 / (1 + mp.exp(-x))),
    "logit": one("logit", lambda x: mp.log(x / (1 - x)), unit),
    "log_expit": one("log_expit", lambda x: -mp.log1p(mp.exp(-x))),
    "softplus": Case(special.softplus, lambda x: np.logaddexp(x, 0), lambda x: mp.log1p(mp.exp(x)), (anywhere,)),
    "exprel": one("exprel", lambda x: mp.expm1(x) / x),
    "entr": one("entr", lambda x: -x * mp.log(x), positive),
    "numpy.sinc": Case(vnp.sinc, _sinc, mp.sincpi, (anywhere,)),
    "xlogy": two("xlogy", lambda x, y: x * mp.log(y)),
    "xlog1py": two("xlog1py", lambda x, y: x * mp.log1p(y)),
    "rel_entr": two("rel_entr", lambda x, y: x * _log_ratio(x, y)),
    "kl_div": two("kl_div", lambda x, y: x * _log_ratio(x, y) - x + y),
    "boxcox": two("boxcox", _boxcox, second=anywhere),
    "boxcox1p": two("boxcox1p", lambda x, power: _boxcox(1 + x, power), second=anywhere),
    "gammainc": two("gammainc", lambda a, x: mp.gammainc(a, 0, x, regularized=True)),
    "gammaincc": two("gammaincc", lambda a, x: mp.gammainc(a, x, mp.inf, regularized=True)),
    "beta": two("beta", mp.beta),
    "betaln": two("betaln", lambda a, b: mp.log(abs(mp.beta(a, b)))),
    "comb": Case(special.comb, lambda n, k: np.where(k > n, 0.0, ss.binom(n, k)), _comb, (positive, positive), (0, 1)),
    "poch": two("poch", mp.rf),
    "zeta": two("zeta", mp.zeta, above_one, positive, (1,)),
    "polygamma": two("polygamma", lambda n, x: mp.psi(int(n), x), order, positive, (1,)),
    "expn": Case(special.expn, lambda n, x: ss.expn(n.astype(int), x), mp.expint, (order, positive), (1,)),
    "owens_t": two("owens_t", _owens_t, anywhere, anywhere),
    "wofz, real": Case(
        lambda x, y: special.wofz(lax.complex(x, y)).real,
        lambda x, y: ss.wofz(x + 1j * y).real,
        lambda x, y: mp.re(_wofz(x, y)),
        (anywhere, positive),
        (0, 1),
    ),
    "wofz, imaginary": Case(
        lambda x, y: special.wofz(lax.complex(x, y)).imag,
        lambda x, y: ss.wofz(x + 1j * y).imag,
        lambda x, y: mp.im(_wofz(x, y)),
        (anywhere, positive),
        (0, 1),
    ),
    "betainc": Case(
        special.betainc, _betainc, lambda a, b, x: mp.betainc(a, b, 0, x, regularized=True), (positive, positive, unit), (0, 1, 2)
    ),
    **DENSITIES,
}

#: The size of terms that cancel in a derivative by an argument, of which it has the precision: 1 - 2 x dawsn(x), I0 - I1, ….
TERMS: dict[str, Callable[..., Any]] = {
    "dawsn": lambda k, x: 1.0,
    "entr": lambda k, x: 1.0,
    "erfcx": lambda k, x: np.maximum(2.0 / np.sqrt(np.pi), np.abs(2.0 * x * ss.erfcx(x))),
    "expit": lambda k, x: ss.expit(x),
    "factorial": lambda k, n: ss.gamma(n + 1),
    "i0e": lambda k, x: ss.i0e(x),
    "i1e": lambda k, x: ss.i0e(x),
    "numpy.sinc": lambda k, x: 1.0 / np.abs(x),
    "poch": lambda k, z, m: ss.poch(z, m) * (np.abs(ss.digamma(z + m)) + np.abs(ss.digamma(z))),
    "rel_entr": lambda k, x, y: 1.0,
    "wofz, real": lambda k, x, y: 2.0 / np.sqrt(np.pi),
    "wofz, imaginary": lambda k, x, y: 2.0 / np.sqrt(np.pi),
}


def _gamma_terms(k: int, x: Array, a: Array) -> Array:
    by_shape = np.abs(np.log(x)) + np.abs(ss.digamma(a))
    return scipy.stats.gamma.pdf(x, a) * (np.abs(a - 1) / x + 1.0 if k == 0 else by_shape)


def _beta_terms(k: int, x: Array, a: Array, b: Array) -> Array:
    by_x = np.abs(a - 1) / x + np.abs(b - 1) / (1 - x)
    logarithm = -np.log(x) if k == 1 else -np.log1p(-x)
    return scipy.stats.beta.pdf(x, a, b) * (by_x if k == 0 else logarithm + np.abs(ss.digamma(a + b)) + np.abs(ss.digamma((a, b)[k - 1])))


def _t_terms(k: int, x: Array, df: Array) -> Array:
    by_shape = 0.5 * (1.0 / df + np.log1p(x * x / df)) + (df + 1) / df / 2
    return scipy.stats.t.pdf(x, df) * (0.0 if k == 0 else by_shape)


TERMS |= {
    "gamma.pdf": _gamma_terms,
    "chi2.pdf": lambda k, x, df: _gamma_terms(k, x / 2, df / 2) / 4,
    "beta.pdf": _beta_terms,
    "t.pdf": _t_terms,
    "poisson.pmf": lambda k, n, mu: scipy.stats.poisson.pmf(n, mu) * (n / mu + 1.0),
    "binom.pmf": lambda k, n, more, p: scipy.stats.binom.pmf(n, n + more, p) * (n / p + more / (1 - p)),
    "nbinom.pmf": lambda k, n, m, p: (
        scipy.stats.nbinom.pmf(n, m, p) * (m / p + n / (1 - p) if k == 2 else np.abs(ss.digamma(m)) + np.abs(ss.digamma(n + m)) - np.log(p))
    ),
    "geom.pmf": lambda k, n, p: scipy.stats.geom.pmf(n, p) * (1 / p + (n - 1) / (1 - p)),
}


def units(actual: Array, exact: Array) -> Array:
    """Return |actual - exact| in units in the last place of float32.

    It is infinite where one of them alone is NaN or infinite.
    """
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit_of = np.spacing(np.minimum(np.abs(rounded), np.float32(LARGEST)) * np.float32(1 - 2**-24)).astype(float)
        same = (actual == rounded) & np.isinf(rounded) | np.isnan(actual) & np.isnan(exact)
        error = np.abs(actual.astype(float) - exact) / unit_of
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def exactly(case: Case, point: Sequence[float]) -> float:
    """Return mpmath's value, with fifty digits on the way; NaN where it has none."""
    with mp.workdps(50):
        try:
            value = case.exact(*[mp.mpf(x) for x in point])
            return float(mp.re(value))
        except (ValueError, ZeroDivisionError, OverflowError, TypeError, mp.libmp.NoConvergence):
            return float("nan")


class Report(NamedTuple):
    """The largest error, its arguments, that of one point in a thousand, and seconds."""

    worst: float
    at: tuple[float, ...]
    seldom: float
    seconds: float


def arguments(case: Case, count: int, rng: np.random.Generator) -> list[Array]:
    """Return `count` points."""
    return [draw(rng, count) for draw in case.draws]


def measured(case: Case, evaluate: Callable[..., Any], count: int, seed: int, decisions: int = DECISIONS, flushes: bool = False) -> Report:
    """Compare a function with SciPy at random points, in doubt with mpmath.

    Where subnormal numbers may be zeros, points with one are left out.
    """
    rng = np.random.default_rng(seed)
    points = arguments(case, count, rng)
    evaluate(*points)  # compiles
    start = time.perf_counter()
    actual = np.asarray(evaluate(*points))
    seconds = time.perf_counter() - start
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.asarray(case.scipy(*[x.astype(float) for x in points]), float)
    error = units(actual, expected)
    if flushes:
        subnormal = np.any([(x != 0) & (np.abs(x) < SMALLEST_NORMAL) for x in (*points, expected)], axis=0)
        error[subnormal] = 0.0
    doubtful = np.flatnonzero(error > DOUBT)
    worst = doubtful[np.argsort(-error[doubtful])[: decisions // 2]]
    chosen = np.union1d(worst, rng.choice(doubtful, min(doubtful.size, decisions // 2), replace=False)).astype(int)
    exact = np.array([exactly(case, [float(x[i]) for x in points]) for i in chosen])
    decided = units(actual[chosen], np.where(np.isnan(exact), expected[chosen], exact))
    error[doubtful] = decided.max(initial=0.0)  # a sample stands for the others
    error[chosen] = decided
    top = int(np.argmax(error))
    return Report(float(error[top]), tuple([float(x[top]) for x in points]), float(np.quantile(error, 0.999, method="higher")), seconds)


def ordinary_points(case: Case, count: int, seed: int) -> list[Array]:
    """Return at most `count` points that are neither small nor large.

    Nor are they close to 1 where that is the end of the domain.
    """
    rng = np.random.default_rng(seed)
    drawn = [np.asarray(draw(rng, 64 * count)) for draw in case.draws]
    ordinary = np.all([(np.abs(x) > 2.0**-8) & (np.abs(x) < 24.0) for x in drawn], axis=0)
    for x, draw in zip(drawn, case.draws, strict=True):
        ordinary &= (x < 1 - 2.0**-8) | (draw not in (unit, symmetric))
    return [x[ordinary][:count] for x in drawn]


def error_in_float64(case: Case, count: int, seed: int) -> float:
    """Return the largest error in float64 at ordinary points, in units."""
    points = [x.astype(float) for x in ordinary_points(case, count, seed)]
    actual = np.asarray(case.function(*points))
    assert actual.dtype == np.float64
    exact = np.array([exactly(case, [float(x[i]) for x in points]) for i in range(actual.size)])
    fine = np.isfinite(exact) & (np.abs(exact) > 1e-300)
    with np.errstate(all="ignore"):
        error = np.abs(actual - exact)[fine] / np.spacing(np.abs(exact[fine]))
    return float(np.where(np.isnan(error), np.inf, error).max(initial=0.0))


def slope_error(name: str, count: int, seed: int) -> float:
    """Return the largest error of derivatives at ordinary points.

    Units are those of the derivatives, or of `TERMS` where these are larger.
    """
    case, worst = CASES[name], 0.0
    points = ordinary_points(case, count, seed)
    slopes = np.asarray(vf.vmap(vf.grad(case.function, case.slopes))(*points))
    for argument, slope in zip(case.slopes, slopes, strict=True):
        exact = np.array([_slope(case, argument, [float(x[i]) for x in points]) for i in range(points[0].size)])
        fine = np.isfinite(exact) & (np.abs(exact) > 1e-30) & (np.abs(exact) < 1e30)
        terms = np.broadcast_to(TERMS[name](argument, *[x.astype(float) for x in points]) if name in TERMS else 0.0, exact.shape)
        unit_ratio = np.spacing(np.abs(exact[fine]).astype(np.float32)) / np.spacing(
            np.maximum(np.abs(exact), terms)[fine].astype(np.float32)
        )
        worst = max(worst, float((units(slope[fine], exact[fine]) * unit_ratio).max(initial=0.0)))
    return worst


def _slope(case: Case, argument: int, point: Sequence[float]) -> float:
    def moved(sign: int) -> Any:
        return case.exact(*[mp.mpf(x) + sign * (k == argument) * mp.mpf(10) ** -15 for k, x in enumerate(point)])

    if np.isnan(exactly(case, point)):
        return float("nan")
    with mp.workdps(50):
        try:
            return float(mp.re(moved(1) - moved(-1)) / (2 * mp.mpf(10) ** -15))
        except (ValueError, ZeroDivisionError, OverflowError, TypeError, mp.libmp.NoConvergence):
            return float("nan")


#: Points per function on the GPU, which may be one in software; in float64; and of slopes.
GPU_POINTS, DOUBLE_POINTS, SLOPES = 2_000, 1_000, 24

HEAD = """# Accuracy of special functions

The largest errors of special functions, densities and probabilities, in units in the last place of the exact result. One run of
`python tools/special_accuracy.py` makes this page.

| column | what it is |
| --- | --- |
| compiled | the largest error of machine code in float32, at {count:,} points per function |
| at | the arguments of that error |
| seconds | the time of one call with all points |
| NumPy | the same without a compiler, at {numpy:,} of such points |
| float64 | the largest error in float64, in its own units, at up to {double:,} ordinary points |
| slopes | the largest error of `grad` in float32, by all arguments that it is defined for, at {slopes} ordinary points |
| GPU | the largest error in float32 on a GPU, here one in software, at {gpu:,} points |
| GPU, seldom | the error that one of a thousand of those points exceeds |

Half of the points are drawn from all bit patterns of float32, the others near ordinary numbers, integers and the ends of domains;
arguments are independent. *Ordinary* points are between 2^-8 and 24, and at most 1 - 2^-8 where a domain ends at 1. The oracle is SciPy
in float64, and mpmath with fifty digits where they differ by more than {doubt:g} units. Of float64 and of slopes, which are
differences, it is mpmath alone.

In float32, machine code, NumPy and GPUs are within 4 units everywhere. What is above that in the other columns, and why:

- **float64.** Near a zero of the function its terms cancel (digamma, gammaln, betaln, Ci). An exponential of v costs v / 2 units
  (gamma, power transforms, beta functions, incomplete functions and densities). The sums of wofz have an error of 2^-53 of the largest.
- **slopes.** Where terms cancel in a derivative, as in 1 - 2 x dawsn(x), I0 - I1, 2 x erfcx(x) - 2 / sqrt(pi), s - s^2 of a sigmoid s,
  2 i / sqrt(pi) - 2 z w(z), log(x) + 1 and the derivatives of densities, units are those of the terms. A power whose exponent is
  rounded costs as many units as that has before the point (power transforms, Owen's T, zeta, erfinv).
- **GPU.** Nothing is above 4. WGSL has no float64, in which the other columns compute what needs more digits: there numbers are sums of
  two float32, of 46 bits and in the range of float32. WGSL permits that subnormal numbers are 0: points with a subnormal argument or
  result are not counted.

| function | compiled | at | seconds | NumPy | float64 | slopes | GPU | GPU, seldom |
| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def worst_on_target(names: Sequence[str], count: int, seed: int, environment: dict[str, str]) -> dict[str, list[float]]:
    """Return the worst error of each function and the seldom one, by another process."""
    command = [sys.executable, __file__, "--errors", "--points", str(count), "--seed", str(seed), *names]
    out = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True).stdout
    return dict(map(json.loads, out.splitlines()))


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000, help="points per function")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--errors", action="store_true", help="print the errors on the target that the environment chooses, as JSON")
    parser.add_argument("--gpu", type=Path, help="what --errors printed with VOLTA_DEVICE=gpu, perhaps on another machine")
    parser.add_argument("functions", nargs="*", help="only these, printed instead of written")
    options = parser.parse_args()
    names = options.functions or list(CASES)
    if options.errors:
        for name in names:
            flushes = os.environ.get("VOLTA_DEVICE") == "gpu"
            report = measured(CASES[name], vf.jit(CASES[name].function), options.points, options.seed, flushes=flushes)
            print(json.dumps([name, [report.worst, report.seldom]]), flush=True)
        return
    numpy_errors = worst_on_target(names, options.points // 20, options.seed, {"VOLTA_NATIVE": "0"})
    if options.gpu:
        gpu_errors = dict(map(json.loads, options.gpu.read_text().splitlines()))
    else:
        gpu_errors = worst_on_target(names, GPU_POINTS, options.seed, {"VOLTA_DEVICE": "gpu"})
    rows = []
    for name in names:
        case = CASES[name]
        report = measured(case, vf.jit(case.function), options.points, options.seed)
        at = ", ".join(f"{x:.9g}" for x in report.at)
        numpy, gpu = numpy_errors[name], gpu_errors[name]
        double, slopes = error_in_float64(case, DOUBLE_POINTS, options.seed), slope_error(name, SLOPES, options.seed)
        cells = f"{report.worst:.1f} | {at} | {report.seconds:.2f} | {numpy[0]:.1f} | {double:.1f} | {slopes:.1f}"
        rows.append(f"| {name} | {cells} | {gpu[0]:.3g} | {gpu[1]:.1f} |")
        print(rows[-1], flush=True)
    if not options.functions:
        TARGET.write_text(
            HEAD.format(count=options.points, numpy=options.points // 20, double=DOUBLE_POINTS, slopes=SLOPES, gpu=GPU_POINTS, doubt=DOUBT)
            + "\n".join(rows)
            + "\n"
        )


if __name__ == "__main__":
    main()
