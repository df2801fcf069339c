"""Special functions where plain formulas cancel or overflow, against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.scipy import special

scipy_special = pytest.importorskip("scipy.special")


def singles(low: float, high: float, seed: int) -> np.ndarray:
    """Return 200 numbers between powers of ten, the same in any order of tests."""
    return (10 ** np.random.default_rng(seed).uniform(low, high, 200)).astype(np.float32)


def check(name: str, *xs: np.ndarray, rtol: float) -> None:
    expected = getattr(scipy_special, name)(*[x.astype(float) for x in xs])
    fits = (np.abs(expected) < 1e38) & (np.abs(expected) > 1e-37)
    np.testing.assert_allclose(np.asarray(getattr(special, name)(*xs))[fits], expected[fits], rtol=rtol)


#: Before exponentials, logarithms up to 88 have an error of half an ulp, 4e-6; seen: 2e-5.
@pytest.mark.parametrize("name, rtol", [("betaln", 3e-6), ("beta", 5e-5), ("comb", 5e-5), ("poch", 5e-5)])
def test_gamma_functions_quotients_of_large_arguments(name, rtol):
    large, small = singles(1, 6, 0), singles(-3, 1.3, 1)
    check(name, large, small, rtol=rtol)
    check(name, large, np.minimum(large, singles(1, 6, 2)), rtol=rtol)


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_functions_of_large_arguments(name):
    a = singles(1, 5, 0)
    x = np.abs(a + np.sqrt(a) * np.random.default_rng(1).normal(size=a.size)).astype(np.float32)
    check(name, a, x, rtol=1e-4)  # an exponential of a number up to 88, as above, and sums of some hundred terms; seen: 3e-5
    assert float(special.gammainc(np.float32(27000), np.float32(1e-5))) == 0  # it was NaN


def test_incomplete_beta_functions_do_not_depend_on_their_neighbours():
    a, b = np.array([135.5, 2e4, 300.0], np.float32), np.array([0.04, 2e4, 900.0], np.float32)
    x = np.array([0.9973, 0.499, 0.24], np.float32)
    check("betainc", a, b, x, rtol=1e-4)  # as for gammainc; seen: 3e-5
    np.testing.assert_allclose(special.betainc(a, b, x)[0], special.betainc(a[0], b[0], x[0]), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_entropies_of_almost_equal_numbers(dtype):
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 2000, 300)
    x, y = x.astype(dtype), (x * (1 + rng.uniform(-0.02, 0.02, 300))).astype(dtype)
    ratio = (x.astype(float) - y.astype(float)) / y.astype(float)
    rtol = 2e-3 if dtype == np.float16 else 2e-6  # some ulps; seen: 5e-4 and 5e-7
    np.testing.assert_allclose(np.asarray(special.rel_entr(x, y)).astype(float), x.astype(float) * np.log1p(ratio), rtol=rtol, atol=1e-7)
    expected = y * (ratio**2 / 2 - ratio**3 / 6 + ratio**4 / 12 - ratio**5 / 20)
    np.testing.assert_allclose(np.asarray(special.kl_div(x, y)).astype(float), expected, rtol=rtol, atol=1e-7)
    assert float(special.rel_entr(dtype(30000), dtype(20000))) == pytest.approx(12163.95, rel=rtol)  # 30000 log(30000) is no float16


def test_slopes_far_out():
    x = np.array([-50.0, -1e4, -1e20, -3e38], np.float32)
    np.testing.assert_allclose(vf.vmap(vf.grad(special.log_ndtr))(x), -x, rtol=5e-4)  # it is about -x - 1/x: 4e-4 more at -50
    x = np.array([-90.0, 1e-30, 0.5, 89.5], np.float32)  # exp(90) is no float32
    # Exponentials of 90, whose error is 90 half ulps of 1; seen: 3e-7.
    np.testing.assert_allclose(special.i0(x), scipy_special.i0(x.astype(float)), rtol=1e-5)
    np.testing.assert_allclose(vf.vmap(vf.grad(special.i0))(x), scipy_special.i1(x.astype(float)), rtol=1e-5)
    np.testing.assert_allclose(vf.vmap(vf.grad(special.i1))(x), scipy_special.ivp(1, x.astype(float)), rtol=1e-5)
    assert float(vf.grad(special.factorial)(-1.0)) == 0


@pytest.mark.parametrize("power", [0.0, 1e-8, -1e-3, 0.3, 2.0])
def test_power_transforms_by_their_power(power):
    slope = vf.grad(special.boxcox, 1)(np.float32(3.0), np.float32(power))
    t, log = power * np.log(3.0), np.log(3.0)
    expected = log**2 * (0.5 + t / 3 + t**2 / 8) if abs(t) < 0.01 else log**2 * (t * np.exp(t) - np.expm1(t)) / t**2
    assert float(slope) == pytest.approx(expected, rel=3e-6)
    assert float(vf.grad(special.boxcox)(np.float32(3.0), np.float32(power))) == pytest.approx(3.0 ** (power - 1), rel=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_growing_bessel_functions_at_infinity(sign: int) -> None:
    assert [float(f(sign * np.inf)) for f in (special.i0, special.i1, special.i0e, special.i1e)] == [np.inf, sign * np.inf, 0, 0]
    assert float(vf.numpy.i0(sign * np.inf)) == np.inf


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_slopes_of_bessel_functions_where_they_are_subnormal_or_infinite(dtype: str) -> None:
    info = vf.numpy.finfo(dtype)
    small = [k * float(info.smallest_subnormal) for k in (1, 3, -1, -5)] + [k * float(info.tiny) for k in (1, 3, 5, -9)]
    for name in ("i1", "i1e"):
        function = getattr(special, name)
        for slopes in (vf.vmap(vf.grad(function)), vf.jit(vf.vmap(vf.grad(function)))):
            np.testing.assert_allclose(np.asarray(slopes(vf.numpy.asarray(small, dtype)), float), 0.5, rtol=2 * float(info.eps))
            # The exponential of 100 is no number of these dtypes: I1 is infinite, and so is its slope.
            far = np.asarray(slopes(vf.numpy.asarray([100.0, -100.0], dtype)), float)
            np.testing.assert_allclose(
                far, np.inf if name == "i1" else scipy_special.i0e(100) - 1.01 * scipy_special.i1e(100), atol=float(info.eps)
            )


@pytest.mark.parametrize("x", [-200.0, -1.0, -0.4, 0.0, 0.3, 1.0, 20.0, 79.0, 81.0, 88.5, 90.0, 92.5])
def test_slopes_of_exprel_where_exponentials_overflow(x):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        at = mpmath.mpf(x)
        wanted = float((at * mpmath.exp(at) - mpmath.expm1(at)) / at**2) if x else 0.5
    for function in (vf.grad(special.exprel), vf.jit(vf.grad(special.exprel))):
        np.testing.assert_allclose(function(np.float32(x)), wanted, rtol=2e-5 if x > 1 else 2e-6)
