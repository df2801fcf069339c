"""gammainc and gammaincc against SciPy's, with derivatives by both arguments."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import volta_fn as vf
from volta_fn.scipy import special

scipy_special = pytest.importorskip("scipy.special")
RNG = np.random.default_rng(0)
INF, NAN = np.inf, np.nan


def points(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Shape parameters between powers of ten, and arguments around them."""
    a = 10 ** RNG.uniform(low, high, 500)
    return a, np.abs(a + np.sqrt(a) * RNG.normal(size=500) * 2) if low >= 1 else 10 ** RNG.uniform(-3, 1.5, 500)


#: The logarithm of the density has the rounding error of its terms, which grow as a. SciPy's own error grows beyond 1e5.
@pytest.mark.wide
@pytest.mark.parametrize("low, high, rtol", [(-3, 1, 5e-12), (1, 3, 5e-12), (3, 4, 1e-10), (4, 5, 1e-8)])
def test_values(low, high, rtol):
    a, x = points(low, high)
    np.testing.assert_allclose(special.gammainc(a, x), scipy_special.gammainc(a, x), rtol=rtol)
    np.testing.assert_allclose(special.gammaincc(a, x), scipy_special.gammaincc(a, x), rtol=rtol)


@pytest.mark.wide
def test_values_of_large_arguments():
    a, x = np.array([688255.0908885252, 1600875075.8250947]), np.array([684497.964536561, 1600666681.4118395])
    by_quadrature = [2.8578281516725437e-6, 9.5107766057928567e-8]  # of the density, with forty digits
    np.testing.assert_allclose(special.gammainc(a, x), by_quadrature, rtol=1e-7)


def test_single_precision():
    a, x = (v.astype(np.float32) for v in points(-1, 2))
    np.testing.assert_allclose(special.gammainc(a, x), scipy_special.gammainc(a.astype(float), x.astype(float)), rtol=2e-4, atol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("low, high", [(-1, 1), (1, 2), (3, 4), (4, 5)])
def test_slopes_match_differences(low, high):
    a, x = points(low, high)
    step = 1e-5 * a
    for function, oracle in ((special.gammainc, scipy_special.gammainc), (special.gammaincc, scipy_special.gammaincc)):
        by_a, by_x = vf.vmap(vf.grad(function, (0, 1)))(a, x)
        difference = (oracle(a + step, x) - oracle(a - step, x)) / (2 * step)
        np.testing.assert_allclose(by_a, difference, rtol=1e-5, atol=1e-6 * np.abs(difference).max())
        difference = (oracle(a, x * (1 + 1e-6)) - oracle(a, x * (1 - 1e-6))) / (2e-6 * x)
        np.testing.assert_allclose(by_x, difference, rtol=1e-5, atol=1e-6 * np.abs(difference).max())


@pytest.mark.wide
def test_the_ends_of_the_quadrant():
    a = np.array([0.0, 1, 0, -1, 1, INF, 1, NAN])
    x = np.array([1.0, 0, 0, 1, -1, 1, INF, 1])
    lower = [1, 0, NAN, NAN, NAN, 0, 1, NAN]
    np.testing.assert_array_equal(special.gammainc(a, x), lower)
    np.testing.assert_array_equal(special.gammaincc(a, x), 1 - np.array(lower))


@pytest.mark.wide
def test_integers_scalars_and_shapes():
    assert special.gammainc(np.int32(2), 1).dtype == np.float32
    assert special.gammainc(np.ones((2, 1)), np.ones(3)).shape == (2, 3)
    assert special.gammainc(np.ones((0, 2)), 1.0).shape == (0, 2)


@pytest.mark.wide
def test_names_of_lax():
    assert (vf.lax.igamma, vf.lax.igammac) == (special.gammainc, special.gammaincc)
    sample = scipy_special.gammaincinv(3.0, 0.4)
    moved = (scipy_special.gammaincinv(3.0 + 1e-6, 0.4) - scipy_special.gammaincinv(3.0 - 1e-6, 0.4)) / 2e-6  # the quantile is held
    np.testing.assert_allclose(vf.lax.random_gamma_grad(3.0, sample), moved, rtol=1e-6)


def test_the_derivative_by_a_is_that_of_grad():
    a, x = np.array([0.5, 2.0, 30.0]), np.array([1.0, 0.3, 28.0])
    wanted = [vf.grad(vf.lax.igamma)(*pair) for pair in zip(a, x, strict=True)]
    np.testing.assert_allclose(vf.lax.igamma_grad_a(a, x), np.asarray(wanted), rtol=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_ends_of_the_shapes_are_scipys(name):
    values = np.array([0.0, 1.0, np.inf, -1.0, np.nan])
    result = getattr(special, name)(values[:, None], values)
    np.testing.assert_allclose(result, getattr(scipy.special, name)(values[:, None], values), rtol=1e-12)
