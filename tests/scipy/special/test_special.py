"""Special functions against SciPy's, and their derivatives against JAX's."""

from __future__ import annotations

import itertools

import jax
import ml_dtypes
import mpmath
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, DTypeError, GradientError
from volta_fn.scipy import special

scipy_special = pytest.importorskip("scipy.special")

ANY = np.array([-4.3, -2.5, -0.7, -0.2, 0.1, 0.5, 0.9, 1.0, 1.7, 2.5, 4.2])
POSITIVE = np.array([0.1, 0.5, 0.9, 1.0, 1.7, 2.5, 4.2, 9.3])
SHARE = np.array([0.01, 0.2, 0.5, 0.7, 0.99])
#: Name: the points for each operand.
POINTS = {
    "erf": [ANY], "erfc": [ANY], "erfinv": [SHARE], "erfcinv": [2 * SHARE], "ndtr": [ANY], "log_ndtr": [ANY], "ndtri": [SHARE],
    "gammaln": [POSITIVE], "digamma": [POSITIVE], "gamma": [POSITIVE], "loggamma": [POSITIVE],
    "factorial": [POSITIVE], "i0": [ANY], "i0e": [ANY], "i1": [ANY], "i1e": [ANY], "expit": [ANY], "logit": [SHARE],
    "entr": [POSITIVE], "xlogy": [ANY, POSITIVE], "xlog1py": [ANY, POSITIVE], "rel_entr": [POSITIVE, POSITIVE],
    "kl_div": [POSITIVE, POSITIVE], "boxcox": [POSITIVE, ANY], "boxcox1p": [POSITIVE, ANY], "beta": [POSITIVE, POSITIVE],
    "betaln": [POSITIVE, POSITIVE], "poch": [POSITIVE, POSITIVE], "zeta": [POSITIVE + 1.5, POSITIVE],
    "comb": [POSITIVE + 9.4, POSITIVE],
}  # fmt: skip
#: By which operands there are derivatives.
SLOPES = {name: tuple(range(len(points))) for name, points in POINTS.items()}
TOLERANCE = {"float16": 8e-3, "bfloat16": 6e-2, "float32": 1e-5, "float64": 2e-13}
FLOATS = [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]


def operands(name: str, dtype: np.dtype) -> list[np.ndarray]:
    """Return every combination of points."""
    return [g.ravel().astype(dtype) for g in np.meshgrid(*POINTS[name])]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", POINTS)
def test_values_match_scipy(name, dtype):
    xs = operands(name, dtype)
    expected = getattr(scipy_special, name)(*[x.astype(float) for x in xs])
    result = getattr(special, name)(*xs)
    assert result.dtype == dtype
    fits = np.abs(expected) < float(ml_dtypes.finfo(dtype).max)
    tolerance = TOLERANCE[dtype.name]
    np.testing.assert_allclose(np.asarray(result).astype(float)[fits], expected[fits], rtol=tolerance, atol=tolerance)


@pytest.mark.wide
@pytest.mark.parametrize("name", POINTS)
def test_slopes_match_differences(name):
    xs, function = operands(name, np.dtype(np.float64)), getattr(special, name)
    step = 1e-6
    for i in SLOPES[name]:
        ends = [[x + sign * step * (j == i) for j, x in enumerate(xs)] for sign in (1, -1)]
        slopes = (function(*ends[0]) - function(*ends[1])) / (2 * step)
        smooth = np.isfinite(slopes) & (np.abs(xs[i]) > 2 * step)
        gradient = vf.vmap(vf.grad(function, i))(*xs)
        np.testing.assert_allclose(np.asarray(gradient)[smooth], slopes[smooth], rtol=2e-6, atol=1e-7)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["ndtri", "log_ndtr", "logit", "entr", "gammaln", "i0e", "i1e"])
def test_second_derivatives_match_differences(name):
    xs = operands(name, np.dtype(np.float64))
    slope = vf.vmap(vf.grad(getattr(special, name)))
    curvature = vf.vmap(vf.grad(vf.grad(getattr(special, name))))(*xs)
    step = 1e-6
    np.testing.assert_allclose(curvature, (slope(xs[0] + step) - slope(xs[0] - step)) / (2 * step), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", POINTS)
def test_integers_become_floats(name):
    ones = [np.array([1, 2], np.int32)] * len(POINTS[name])
    assert getattr(special, name)(*ones).dtype == np.float32


INF, NAN = np.inf, np.nan
SINGULAR = [
    ("logit", [0.0, 1.0, 2.0, NAN], [-INF, INF, NAN, NAN]),
    ("entr", [0.0, -1.0, INF, NAN], [0, -INF, -INF, NAN]),
    ("ndtr", [-INF, INF, NAN], [0, 1, NAN]),
    ("log_ndtr", [-INF, INF, NAN], [-INF, 0, NAN]),
    ("ndtri", [0.0, 1.0, -0.5, 1.5, NAN], [-INF, INF, NAN, NAN, NAN]),
    ("gamma", [0.0, -0.0, -1.0, -2.0, INF], [INF, -INF, NAN, NAN, INF]),
    ("gammasgn", [0.0, -0.0, -0.5, -1.5, -1.0, 2.0, NAN], [1, -1, -1, 1, NAN, 1, NAN]),
    ("loggamma", [0.5, -0.5], [0.5723649429247, NAN]),
    ("factorial", [0.0, 5.0, -1.0], [1, 120, 0]),
]


@pytest.mark.wide
@pytest.mark.parametrize("name, points, values", SINGULAR)
def test_singular_points(name, points, values):
    np.testing.assert_allclose(getattr(special, name)(np.array(points)), values, rtol=1e-12)


@pytest.mark.wide
def test_zero_times_infinity_is_zero():
    zero = np.zeros(1)
    assert special.xlogy(zero, zero).tolist() == special.xlog1py(zero, zero - 1).tolist() == [0]
    assert np.isnan(special.xlogy(0.0, np.nan))
    assert float(vf.grad(special.xlogy, 1)(0.0, 0.0)) == float(vf.grad(special.xlog1py, 1)(0.0, -1.0)) == 0
    pairs = special.rel_entr(np.array([0.0, 0.0, 1.0, -1.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0, NAN]))
    np.testing.assert_array_equal(pairs, [0, 0, INF, INF, NAN])


@pytest.mark.wide
def test_the_normal_distributions_logarithm_in_float64():
    mpmath = pytest.importorskip("mpmath")
    x = np.array([-1e150, -200.0, -60.0, -38.0, -36.0, -35.1, -34.9, -20.0, -5.0, -1.0, 0.0, 3.0, 8.0])
    with mpmath.workdps(40):
        logs = [mpmath.log(mpmath.erfc(-mpmath.mpf(v) / mpmath.sqrt(2)) / 2) for v in x]
        slopes = [mpmath.exp(-(mpmath.mpf(v) ** 2) / 2 - log) / mpmath.sqrt(2 * mpmath.pi) for v, log in zip(x, logs, strict=True)]
    np.testing.assert_allclose(special.log_ndtr(x), np.array(logs, float), rtol=1e-15)
    # At -1e150 the exact quotient of exponentials loses all digits; the slope is -x.
    np.testing.assert_allclose(vf.vmap(vf.grad(special.log_ndtr))(x)[1:], np.array(slopes[1:], float), rtol=3e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_normal_distributions_tails(dtype):
    x = np.array([-1e4, -200.0, -37.0, -20.0, -10.1, -9.9, -5.0, 5.0, 9.0]).astype(dtype)
    rtol = 5e-6 if dtype == np.float32 else 3e-13  # of float32 values at 9, erfc's argument has that error
    expected = scipy_special.log_ndtr(x.astype(float))
    np.testing.assert_allclose(special.log_ndtr(x), expected, rtol=rtol, atol=1e-45)
    slopes = np.exp(-0.5 * x.astype(float) ** 2 - 0.5 * np.log(2 * np.pi) - expected)
    np.testing.assert_allclose(vf.vmap(vf.grad(special.log_ndtr))(x)[2:], slopes[2:], rtol=1e-3 if dtype == np.float32 else 1e-9)
    p = np.array([1e-300, 1e-100, 1e-30, 1e-12, 1e-5, 0.07, 0.08, 1 - 1e-3, 1 - 1e-9]).astype(dtype)[3 if dtype == np.float32 else 0 :]
    np.testing.assert_allclose(special.ndtri(p), scipy_special.ndtri(p.astype(float)), rtol=2e-6 if dtype == np.float32 else 2e-15)


@pytest.mark.wide
def test_counts():
    assert special.comb(5.0, np.array([0.0, 2.0, 6.0, -1.0])).round(3).tolist() == [1, 10, 0, 0]
    np.testing.assert_allclose(special.comb(5.0, 2.0, repetition=True), 15, rtol=1e-5)
    expected = [scipy_special.multigammaln(v, 3) for v in (3.5, 5.0)]
    np.testing.assert_allclose(special.multigammaln(np.array([3.5, 5.0]), 3), expected, rtol=1e-12)
    np.testing.assert_allclose(special.polygamma(np.arange(4.0), 2.3), [scipy_special.polygamma(n, 2.3) for n in range(4)], rtol=1e-13)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: special.log_ndtr(0.0, -1), ArgumentError, "between 0 and 30"),
        (lambda: special.factorial(3, exact=True), ArgumentError, "math.factorial"),
        (lambda: special.gammaln(1j), DTypeError, "complex64"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("axis", [None, 0, (0, 2), -1])
def test_softmax_is_scipys(axis):
    """Over all elements, if no axis is given; that of `nn` is along the last one."""
    x = np.random.default_rng(5).normal(size=(3, 4, 5)).astype(np.float32) * 20
    for name, off in (("softmax", 1e-30), ("log_softmax", 2e-7)):  # the logarithm of a sum near 1 is off by as much as that
        expected = getattr(scipy_special, name)(x.astype(float), axis=axis)
        # Sums of 60 exponentials at most, whose arguments, up to some 100, are rounded to 4e-6.
        np.testing.assert_allclose(getattr(special, name)(x, axis=axis), expected, rtol=2e-5, atol=off)
        np.testing.assert_array_equal(getattr(vf.nn, name)(x), getattr(special, name)(x, axis=-1))


def test_derivatives_that_do_not_exist_are_refused():
    with pytest.raises(GradientError, match="has no derivative by"):
        vf.grad(vf.lax.polygamma)(2.0, 1.5)
    assert np.isfinite(vf.grad(vf.lax.polygamma, 1)(2.0, 1.5))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 4e-7), ("float64", 1e-14), ("bfloat16", 4e-3)])
def test_slopes_of_zeta_by_its_exponent(dtype: str, tolerance: float) -> None:
    for s, q in itertools.product([1.0078125, 1.5, 2.5, 7.25, 20.0, 33.0], [0.125, 0.5, 1.0, 1.75, 2.0, 10.0, 55.0, 1024.0]):
        with mpmath.workdps(200):
            wanted = float(mpmath.zeta(s, q, 1))
        if float(vnp.finfo(dtype).tiny) < -wanted:
            gradient = vf.grad(special.zeta)(vnp.asarray(s, dtype), vnp.asarray(q, dtype))
            np.testing.assert_allclose(float(gradient), wanted, rtol=tolerance)


@pytest.mark.wide
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 2e-13)])
def test_riemanns_zeta_of_every_number(dtype: str, tolerance: float) -> None:
    points = np.array([-33.5, -20, -7.25, -4, -3, -2, -1.5, -1, -0.25, -1e-3, 0, 1e-3, 0.25, 0.5, 0.75, 0.99, 1.01, 1.5, 2, 30], dtype)
    values, slopes = ([float(mpmath.zeta(float(s), 1, n)) for s in points] for n in (0, 1))
    for zeta in (special.zeta, vf.jit(special.zeta)):
        result = zeta(vnp.asarray(points))
        assert result.dtype == dtype
        np.testing.assert_allclose(result, values, rtol=tolerance)
    np.testing.assert_allclose(vf.vmap(vf.grad(special.zeta))(vnp.asarray(points)), slopes, rtol=50 * tolerance)
    assert special.zeta(vnp.asarray(1, dtype)) == np.inf
    assert vnp.isnan(special.zeta(vnp.asarray([np.nan, 0.5], dtype), 1.0)).all()  # Hurwitz's, as in SciPy and JAX


def test_slopes_of_zeta_at_its_ends() -> None:
    slope = vf.vmap(vf.grad(special.zeta))
    s, q = np.float32([1.0, 0.5, 2.0, 2.0, np.nan, 2.0, 1e4, np.inf]), np.float32([2.0, 1.0, 0.0, -1.5, 1.0, np.nan, 2.0, 0.5])
    np.testing.assert_array_equal(slope(s, q), [-np.inf, np.nan, np.inf, np.nan, np.nan, np.nan, 0.0, np.inf])
    with mpmath.workdps(30):
        second = float(mpmath.zeta(2.5, 2.0, 2))
    np.testing.assert_allclose(vf.grad(vf.grad(special.zeta))(2.5, 2.0), second, rtol=1e-6)
    np.testing.assert_allclose(vf.grad(special.zeta)(2.5, 2.0), jax.grad(jax.scipy.special.zeta)(2.5, 2.0), rtol=1e-6)


def test_arguments_by_name():
    assert vf.scipy.special.beta(a=2, b=3.0) == vf.scipy.special.beta(2, b=3) == pytest.approx(1 / 12)


def test_elements_outside_of_where_have_no_derivative():
    mask = np.array([True, True, False])
    slopes = vf.grad(lambda x: vf.scipy.special.logsumexp(x, where=mask))(np.array([0.0, 0.0, np.nan], np.float32))
    assert np.array_equal(slopes, [0.5, 0.5, 0.0])


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_mixed_second_derivatives_at_zero(name: str) -> None:
    mixed = vf.grad(vf.grad(getattr(vf.scipy.special, name), 1), 0)(0.0, 3.0)
    np.testing.assert_allclose(mixed, 1 / 3.0 if name == "xlogy" else 1 / 4.0, rtol=1e-6)


def test_spherical_harmonics_of_negative_angles() -> None:
    n, m, theta, phi = np.array([1, 3, 2]), np.array([1, -3, 2]), np.array([-2.0, -0.5, -1.0]), np.array([0.3, 1.0, -2.0])
    result = vf.scipy.special.sph_harm_y(n, m, theta, phi)
    np.testing.assert_allclose(result, scipy_special.sph_harm_y(n, m, theta, phi), rtol=1e-5)
