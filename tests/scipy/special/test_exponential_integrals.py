"""Exponential integrals and erfcx against SciPy's, with their derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.scipy import special

scipy_special = pytest.importorskip("scipy.special")
INF, NAN = np.inf, np.nan
#: On both sides of every border between formulas.
POSITIVE = np.array([1e-30, 1e-6, 0.01, 0.3, 0.5, 0.999, 1.001, 2.0, 4.9, 5.1, 9.9, 10.2, 27.0, 27.6, 39.9, 40.1, 80.0])
#: Tolerances wider than each dtype's precision: erfcx far on the left and Ei beyond 40 are exponentials of large numbers.
TOLERANCES = [("float16", 2e-3), ("float32", 3e-6), pytest.param("float64", 5e-14, marks=pytest.mark.wide)]


def check(function, oracle, x, rtol):
    expected = oracle(x.astype(float))
    info = np.finfo(x.dtype)
    fits = (np.abs(expected) < float(info.max)) & (np.abs(expected) > float(info.tiny))
    result = function(x)
    assert result.dtype == x.dtype
    np.testing.assert_allclose(np.asarray(result).astype(float)[fits], expected[fits], rtol=rtol)


@pytest.mark.parametrize("dtype, rtol", TOLERANCES)
def test_values_match_scipy(dtype, rtol):
    x = POSITIVE.astype(dtype)
    check(special.exp1, scipy_special.exp1, x, rtol)
    check(special.expi, scipy_special.expi, np.concatenate([-x, x]), rtol)
    check(special.erfcx, scipy_special.erfcx, np.concatenate([-x, x, np.array([1e3, 6e4], dtype)]), rtol)
    for n in (0, 1, 2, 7, 20, 21, 50):
        check(lambda x, n=n: special.expn(n, x), lambda x, n=n: scipy_special.expn(n, x), x, rtol)


@pytest.mark.parametrize("dtype, rtol", TOLERANCES)
def test_slopes(dtype, rtol):
    x = POSITIVE[1:].astype(dtype)
    slope = lambda function: vf.vmap(vf.grad(function))
    check(slope(special.exp1), lambda x: -np.exp(-x) / x, x, rtol)
    check(slope(special.expi), lambda x: np.exp(x) / x, np.concatenate([-x, x]), rtol)
    check(slope(lambda x: special.expn(3, x)), lambda x: -scipy_special.expn(2, x), x, rtol)
    check(slope(lambda x: special.expn(0, x)), lambda x: -np.exp(-x) * (1 + 1 / x) / x, x, rtol)
    close = x[x < 3]
    by_product = lambda x: 2 * x * scipy_special.erfcx(x) - 2 / np.sqrt(np.pi)
    check(slope(special.erfcx), by_product, np.concatenate([-close, close]), rtol * 20)
    # Far on the right its fraction 1 / (x + 1/2 / (x + 1 / (x + 3/2 / (x + …)))) has this slope.
    far = x[x > 20].astype(float)
    series = -(1 - 1.5 / far**2 + 3.75 / far**4 - 13.125 / far**6 + 59.0625 / far**8) / (np.sqrt(np.pi) * far**2)
    np.testing.assert_allclose(np.asarray(slope(special.erfcx)(x[x > 20])).astype(float), series, rtol=max(rtol, 1e-10))


def test_ends():
    singles = lambda *numbers: np.array(numbers, np.float32)
    np.testing.assert_array_equal(special.expi(singles(0.0, -INF, INF, NAN)), [-INF, 0, INF, NAN])
    np.testing.assert_array_equal(special.exp1(singles(0.0, -1.0, INF, NAN)), [INF, NAN, 0, NAN])
    np.testing.assert_array_equal(special.erfcx(singles(-INF, INF, NAN)), [INF, 0, NAN])
    np.testing.assert_array_equal(special.expn(np.array([0, 1, 2, 3, -1], np.int32), 0.0), [INF, INF, 1, 0.5, NAN])
    np.testing.assert_array_equal(special.expn(singles(2.5, 2.0, 2.0), singles(1.0, INF, NAN)), [NAN, 0, NAN])
