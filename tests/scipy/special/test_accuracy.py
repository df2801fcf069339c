"""Special functions beside SciPy in float64 and mpmath: a sample of docs/reference/special_accuracy.md, and the ends of domains."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tools.special_accuracy import CASES, measured, slope_error
from volta_fn.scipy import special, stats

INF, NAN = np.inf, np.nan
#: CI draws other points for every commit.
SEED = int(os.environ.get("GITHUB_SHA", "0")[:8], 16)


#: Without a compiler logarithms and exponentials are NumPy's, off by up to 3.83 and 2.52 units in float32; one more rounds the result.
LIMITS = {"kl_div": 5.0, "log_ndtr": 5.0, "exprel": 5.0}


@pytest.mark.parametrize("name", CASES)
def test_worst_errors(name: str) -> None:
    report = measured(CASES[name], CASES[name].function, 8_000, SEED, decisions=20)
    assert report.worst <= LIMITS.get(name, 4.0), report


#: A derivative is a product of at most four values, each off by up to 2 units of its own.
SLOPES = 8.0
#: An exponent v that is rounded costs v / 2 units, and as many for each further rounding of it. At ordinary points v
#: is x^2, of a value that is off by up to 2.5 units, in erfinv: 2.04^2 · 2.5 + 8; h^2 (1 + a^2) / 2 < 88, as more underflows, in Owen's T;
#: (power - 1) log x < 24 log 24 = 77 in power transforms; (s + 1) log q < 77 in zeta.
STEEP = {"erfinv": 22.0, "owens_t": 2 * 88.0, "boxcox": 77.0 + SLOPES, "boxcox1p": 77.0 + SLOPES, "zeta": 77.0 / 2 + SLOPES}


@pytest.mark.parametrize("name", CASES)
def test_slopes(name: str) -> None:
    """Where terms cancel, units are those of the terms."""
    assert slope_error(name, 24, SEED) <= STEEP.get(name, SLOPES)


@pytest.mark.parametrize(
    ("function", "args", "value"),
    [
        (special.exp1, (2.8590865e38,), 0),  # its fraction never settled, since 1 / x is subnormal
        (special.expi, (-2.8590865e38,), 0),
        (special.expn, (2, 2.8590865e38), 0),
        (special.expn, (3, INF), 0),
        (special.betainc, (1e30, 2e30, 1 / 3), 1),  # its fraction took as many levels as the root of the parameters
        (special.betainc, (1e-30, 3e38, 1e-45), 1),
        (special.gammainc, (3e38, 1e38), 0),
        (special.gammaincc, (1e-6, 1.0), 2.1938416e-07),
        (special.gammaincc, (1e-30, 1e-3), 6.3315397e-30),
        (special.betainc, (1.0, 1e-9, 0.9), 2.3025851e-09),
        (special.loggamma, (0.0,), INF),
        (special.log_ndtr, (-2.3e19,), -2.645e38),
        (special.logit, (0.49999997,), -1.1920929e-07),
        (special.exprel, (1e-45,), 1),
        (special.exprel, (92.0,), 9.80177e37),
        (special.boxcox, (2.0, 1e-45), 0.6931472),
        (special.zeta, (1e10, 1e-15), INF),
        (special.beta, (-3.0, 2.0), 0.16666667),
        (special.beta, (-3.0, 5.0), INF),
        (special.beta, (-2.5, 1.5), 0),
        (special.betaln, (1e20, -2.5), 115.07301),
        (special.poch, (-3.0, 2.0), 6),
        (special.poch, (-3.0, 5.0), 0),
        (special.poch, (1e-36, -1.0), -1),
        (special.comb, (10.0, 3.0), 120),
        (vf.numpy.sinc, (29.0,), 0),
        (vf.numpy.sinc, (3e38,), 0),
        (stats.gamma.logsf, (1.0, 1e-6), -15.332441),
        (stats.chi2.sf, (2.0, 2e-6), 2.1938416e-07),
        (stats.beta.sf, (0.45898953, 0.028288623, 102.66037), 2.74514e-31),
        (stats.beta.sf, (0.3, 1e-9, 2.0), 5.039728e-10),
        (stats.gennorm.cdf, (-0.5523735, 188.82440), 0.2229741),
    ],
)
def test_values_at_the_ends(function: Callable[..., Any], args: tuple[float, ...], value: float) -> None:
    out = function(*map(np.float32, args))
    np.testing.assert_allclose(out, np.float32(value), rtol=6e-7)


@pytest.mark.parametrize(
    ("function", "argument", "args", "slope"),
    [
        (special.gammainc, 1, (1.0, 0.0), 1),
        (special.gammainc, 1, (2.0, 0.0), 0),
        (special.gammainc, 1, (0.5, 0.0), INF),
        (special.gammaincc, 1, (1.0, 0.0), -1),
        (special.gammainc, 0, (2.0, 0.0), 0),
        (special.gammaincc, 0, (2.0, 0.0), 0),
        (special.betainc, 2, (1.0, 3.0, 0.0), 3),
        (special.betainc, 2, (3.0, 1.0, 1.0), 3),
        (special.betainc, 2, (2.0, 3.0, 0.0), 0),
        (special.betainc, 0, (2.0, 3.0, 0.0), 0),
        (special.betainc, 1, (2.0, 3.0, 1.0), 0),
        (special.expn, 1, (2, 0.0), -INF),
        (special.erfcx, 0, (1e20,), 0),
        (special.i1, 0, (0.0,), 0.5),
        (special.logit, 0, (0.5,), 4),
        (special.comb, 0, (2.0, 3.0), 0),
        (vf.numpy.sinc, 0, (1.0,), -1),
    ],
)
def test_slopes_at_the_ends(function: Callable[..., Any], argument: int, args: tuple[float, ...], slope: float) -> None:
    assert float(vf.grad(function, argument)(*map(np.float32, args))) == pytest.approx(slope, rel=1e-6)


#: Compositions in the dtype itself, some of which take complex numbers, and one that has none of these dtypes.
NARROW = sorted(CASES.keys() - {"binom.pmf", "numpy.sinc", "logit", "xlogy", "xlog1py", "wofz, real", "wofz, imaginary"})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NARROW)
def test_narrow_dtypes_do_not_overflow_on_the_way(name: str, dtype: str) -> None:
    """Compare with float32 at the same numbers, rounded once."""
    rng = np.random.default_rng(0)
    points = [vf.numpy.asarray(np.clip(draw(rng, 400), -6e4, 6e4)).astype(dtype) for draw in CASES[name].draws]
    out = CASES[name].function(*points)
    wide = CASES[name].function(*[x.astype("float32") for x in points])
    np.testing.assert_array_equal(np.asarray(out.astype("float32")), np.asarray(wide.astype(dtype).astype("float32")))


def test_binomial_sampling_ends() -> None:
    """Infinitely many trials were never accepted, and gaps of -0.0 led backward."""
    key = vf.random.key(0)
    ends = np.array([0.0, -0.0, 1e-45, 0.5, 1.0, INF, NAN], np.float32)
    for n in ends:
        out = np.asarray(vf.random.binomial(key, np.full(7, n), ends))
        assert np.all(np.isnan(out) | (out >= 0))
