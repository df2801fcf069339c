"""betainc against SciPy's, with derivatives by all three arguments."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import volta_fn as vf
from volta_fn.scipy import special

scipy_special = pytest.importorskip("scipy.special")
NAN, INF = np.nan, np.inf


def points(low: float, high: float, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return shape parameters between powers of ten, and points around their mean."""
    rng = np.random.default_rng(seed)
    a, b = 10 ** rng.uniform(low, high, (2, 300))
    return a, b, rng.beta(a, b).clip(1e-12, 1 - 1e-12)


#: The logarithm of the density has the rounding error of its terms, which grow as a and b.
@pytest.mark.wide
# Powers and gamma functions of large parameters lose digits. Seen of each bound: a fortieth at most.
@pytest.mark.parametrize(("low", "high", "rtol"), [(-2, 0.5, 1e-12), (0.5, 2, 1e-11), (2, 4, 1e-8)])
def test_values(low: float, high: float, rtol: float) -> None:
    a, b, x = points(low, high)
    np.testing.assert_allclose(special.betainc(a, b, x), scipy_special.betainc(a, b, x), rtol=rtol)
    np.testing.assert_allclose(vf.jit(vf.lax.betainc)(b, a, 1 - x), scipy_special.betainc(b, a, 1 - x), rtol=rtol)


@pytest.mark.wide
def test_tails_of_large_parameters() -> None:
    """From 36 standard deviations below the mean to 8 above, on both sides of where an expansion begins."""
    rng = np.random.default_rng(2)
    a, b = 10 ** rng.uniform(3.5, 6.5, (2, 400))
    deviation = np.sqrt(a * b / (a + b + 1)) / (a + b)
    x = (a / (a + b) + rng.uniform(-36, 8, 400) * deviation).clip(1e-12, 1 - 1e-12)
    expected = scipy_special.betainc(a, b, x)
    normal = expected > 1e-290
    for function in (special.betainc, vf.jit(special.betainc)):
        np.testing.assert_allclose(np.asarray(function(a, b, x))[normal], expected[normal], rtol=2e-11)


@pytest.mark.wide
@pytest.mark.parametrize(("a", "b"), [(9e3, 9e3), (1.2e4, 1.2e4), (1.1e4, 1e5), (2e5, 1.1e4), (9e5, 2e6)])
def test_slopes_by_large_parameters(a: float, b: float) -> None:
    """The integrals of the density times the logarithms, by quadrature in 40 digits."""
    mpmath = pytest.importorskip("mpmath")
    mean, deviation = a / (a + b), np.sqrt(a * b / (a + b + 1)) / (a + b)
    for position in (-8.0, -2.0, 1.0):
        x = mean + position * deviation
        with mpmath.workdps(40):
            p, q, end = map(mpmath.mpf, (a, b, x))
            log_beta = mpmath.loggamma(p) + mpmath.loggamma(q) - mpmath.loggamma(p + q)
            density = lambda t, p=p, q=q, c=log_beta: mpmath.exp((p - 1) * mpmath.log(t) + (q - 1) * mpmath.log(1 - t) - c)
            nodes = [*(min(x, mean) - k * deviation for k in (20, 12, 8, 5, 3, 2, 1)), *([mean] if x > mean else []), x]
            nodes = [max(mpmath.mpf(node), mpmath.mpf(10) ** -40) for node in nodes[:-1]] + [end]
            value = mpmath.quad(density, nodes)
            by_a = mpmath.quad(lambda t: density(t) * mpmath.log(t), nodes) - value * (mpmath.psi(0, p) - mpmath.psi(0, p + q))
            by_b = mpmath.quad(lambda t: density(t) * mpmath.log(1 - t), nodes) - value * (mpmath.psi(0, q) - mpmath.psi(0, p + q))
        slopes = vf.grad(special.betainc, (0, 1))(*np.array([a, b, x]))
        np.testing.assert_allclose(np.array(slopes, float), [float(by_a), float(by_b)], rtol=1e-11)


def test_single_precision() -> None:
    a, b, x = (v.astype(np.float32) for v in points(-1, 1.5))
    expected = scipy_special.betainc(*(v.astype(float) for v in (a, b, x)))
    got = special.betainc(a, b, x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)  # the same in float32. Seen: 2.2e-5, a fifth of what is allowed


@pytest.mark.wide
@pytest.mark.parametrize(("low", "high"), [(-1, 0.5), (0.5, 2), (2, 3)])
def test_slopes_match_differences(low: float, high: float) -> None:
    a, b, x = points(low, high, seed=1)
    at = a, b, x.clip(1e-5, 1 - 1e-5)  # nearer to the ends differences are of few digits
    slopes = vf.vmap(vf.grad(special.betainc, (0, 1, 2)))(*at)
    for argument, slope in enumerate(slopes):
        step = 1e-5 * at[argument] * (1 - at[2] if argument == 2 else 1)
        above, below = ([v + sign * step if i == argument else v for i, v in enumerate(at)] for sign in (1, -1))
        difference = (scipy_special.betainc(*above) - scipy_special.betainc(*below)) / (2 * step)
        np.testing.assert_allclose(slope, difference, rtol=2e-5, atol=2e-6 * np.abs(difference).max())


def test_only_slopes_asked_for_are_computed() -> None:
    text = str(vf.make_jaxpr(vf.grad(special.betainc, 2))(1.0, 2.0, 0.5))
    assert "beta_density" in text
    assert "betainc_grad" not in text


def test_the_ends() -> None:
    a = np.array([1.0, 2, 0, -1, 1, 1, INF, NAN, 2], np.float32)
    b = np.array([2.0, 2, 1, 1, 1, 1, 1, 1, 1], np.float32)
    x = np.array([0.0, 1, 0.5, 0.5, -0.1, 1.1, 0.5, 0.5, NAN], np.float32)
    np.testing.assert_array_equal(special.betainc(a, b, x), [0, 1, 1, NAN, NAN, NAN, 0, NAN, NAN])
    by_x = vf.grad(special.betainc, 2)
    assert [float(by_x(a, b, x)) for a, b, x in ((1.0, 3.0, 0.0), (2.0, 3.0, 0.0), (0.5, 3.0, 0.0), (3.0, 1.0, 1.0))] == [3, 0, INF, 3]
    assert [float(v) for v in vf.grad(special.betainc, (0, 1))(2.0, 3.0, 0.0)] == [0, 0]


def test_integers_scalars_and_shapes() -> None:
    np.testing.assert_allclose(special.betainc(np.int32(2), 3, 0.5), 0.6875, rtol=1e-6)
    assert special.betainc(np.ones((2, 1), np.float32), 1.0, np.full(3, 0.5, np.float32)).shape == (2, 3)
    assert special.betainc(np.ones((0, 2), np.float32), 1.0, 0.5).shape == (0, 2)


@pytest.mark.wide
def test_ends_of_the_shapes_are_scipys():
    shapes = np.array([0.0, 1.0, 2.5, np.inf, -1.0, np.nan])
    arguments = shapes[:, None, None], shapes[:, None], np.array([0.0, 0.5, 1.0, 1.5])
    np.testing.assert_allclose(special.betainc(*arguments), scipy.special.betainc(*arguments), rtol=1e-12)
