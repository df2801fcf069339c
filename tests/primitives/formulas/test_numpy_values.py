"""Special functions as NumPy evaluates them, against SciPy's in float64, in units of the last place, and where they are singular."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from volta_fn import lax

special = pytest.importorskip("scipy.special")

#: Per function: SciPy's, and (interval, largest error in units of the last place in float32, in float64).
#: SciPy's own error is the larger one in float64 where its erfc squares x and where its gammaln cancels near 1 and 2.
CASES = {
    "erf": (special.erf, [((-6, 6), 7, 4), ((-1e-3, 1e-3), 4, 4)]),
    "erfc": (special.erfc, [((-6, 1), 8, 10), ((0, 9.1), 8, 100), ((9.2, 26), None, 700)]),
    "erf_inv": (special.erfinv, [((-0.9, 0.9), 6, 6)]),
    "ndtr": (special.ndtr, [((-8, 8), 8, 100), ((-12.9, -8), 8, 400)]),
    "gelu": (lambda x: x * special.ndtr(x), [((-8, 8), 10, 100), ((-13, -8), 10, 400)]),
    "lgamma": (special.gammaln, [((0, 0.9), 1, 50), ((1.2, 1.8), 1, 50), ((3, 20), 1, 4), ((20, 1e6), 1, 4), ((-0.5, 0), 1, 5)]),
    "digamma": (special.psi, [((0, 1), 1, 4), ((1, 2), 1, 4), ((1.46, 1.463), 1, 4), ((2, 20), 1, 4), ((20, 1e6), 1, 3)]),
    "bessel_i0e": (special.i0e, [((-8, 8), 1, 12), ((8, 1000), 1, 5)]),
    "bessel_i1e": (special.i1e, [((-8, 8), 1, 16), ((8, 1000), 1, 5), ((-0.01, 0.01), 1, 14)]),
}
ROWS = [(name, *row) for name, (_, rows) in CASES.items() for row in rows]


@pytest.fixture(autouse=True)
def quiet():
    """The caller of kernels silences floating-point warnings."""
    with np.errstate(all="ignore"):
        yield


def ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of the result's dtype."""
    unit = np.spacing(np.maximum(np.abs(exact), np.finfo(result.dtype).tiny).astype(result.dtype)).astype(float)
    return np.abs(result.astype(float) - exact) / unit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name, interval, single, double", ROWS)
def test_is_right_to_a_few_units_of_the_last_place(name, interval, single, double, dtype):
    limit = single if dtype == np.float32 else double
    if limit is None:
        return  # below float32's normal range
    x = np.random.default_rng(0).uniform(*interval, 40_000).astype(dtype)
    result = getattr(lax, name).primitive.evaluate(x)
    assert result.dtype == dtype
    assert ulps(result, CASES[name][0](x.astype(float))).max() <= limit


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_half_precision_is_rounded_once(name, dtype):
    x = np.linspace(0.05, 0.95, 200).astype(dtype)
    result = getattr(lax, name).primitive.evaluate(x)
    assert result.dtype == dtype
    eps = ml_dtypes.finfo(dtype).eps
    np.testing.assert_allclose(result.astype(float), CASES[name][0](x.astype(float)), rtol=float(eps) * 0.51, atol=0)


INF, NAN = np.inf, np.nan
SINGULAR = {
    "erf": ([0.0, -0.0, INF, -INF, NAN], [0.0, -0.0, 1, -1, NAN]),
    "erfc": ([0.0, -0.0, INF, -INF, NAN, 30.0], [1, 1, 0, 2, NAN, 0]),
    "erf_inv": ([0.0, -0.0, 1, -1, 1.5, -INF, NAN], [0.0, -0.0, INF, -INF, NAN, NAN, NAN]),
    "ndtr": ([0.0, -0.0, INF, -INF, NAN, -40.0], [0.5, 0.5, 1, 0, NAN, 0]),
    "gelu": ([0.0, -0.0, INF, -INF, NAN, -40.0], [0.0, -0.0, INF, -0.0, NAN, -0.0]),
    "lgamma": ([0.0, -0.0, 1, 2, -1, -2, INF, -INF, NAN], [INF, INF, 0, 0, INF, INF, INF, INF, NAN]),
    "digamma": ([0.0, -0.0, -1, INF, -INF, NAN], [NAN, NAN, NAN, INF, NAN, NAN]),
    "bessel_i0e": ([0.0, INF, -INF, NAN], [1, 0, 0, NAN]),
    "bessel_i1e": ([0.0, -0.0, INF, -INF, NAN], [0.0, -0.0, 0.0, -0.0, NAN]),
}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("name", SINGULAR)
def test_singular_arguments(name, dtype):
    points, values = (np.array(v).astype(dtype) for v in SINGULAR[name])
    result = getattr(lax, name).primitive.evaluate(points)
    np.testing.assert_array_equal(result.astype(float), values.astype(float))
    zero = values == 0
    np.testing.assert_array_equal(np.signbit(result[zero].astype(float)), np.signbit(values[zero].astype(float)))


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_strides(name):
    f = getattr(lax, name).primitive.evaluate
    x = np.random.default_rng(1).uniform(0.1, 0.9, (6, 5)).astype(np.float32)
    np.testing.assert_array_equal(f(x[::2, ::-1]), f(x)[::2, ::-1])
    assert f(x[0, 0].reshape(())).shape == ()
    assert f(np.zeros((0, 3), np.float64)).shape == (0, 3)


def test_blocks_join_without_a_seam():
    x = np.linspace(-3, 3, 50_001)
    np.testing.assert_array_equal(
        lax.erf.primitive.evaluate(x), np.concatenate([lax.erf.primitive.evaluate(part) for part in np.array_split(x, 7)])
    )


def test_lgamma_keeps_its_relative_precision_around_its_zeros():
    for zero, slope in ((1.0, -np.euler_gamma), (2.0, 1 - np.euler_gamma)):
        step = np.array([-1e-9, 1e-9])
        x = zero + step
        np.testing.assert_allclose(lax.lgamma.primitive.evaluate(x), slope * (x - zero), rtol=5e-9)


def test_left_of_zero_the_reflection_formulas_hold():
    x = -np.random.default_rng(2).uniform(0, 30, 500)
    np.testing.assert_allclose(lax.lgamma.primitive.evaluate(x), special.gammaln(x), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(lax.digamma.primitive.evaluate(x), special.psi(x), rtol=1e-9, atol=1e-11)


def test_zeta():
    rng = np.random.default_rng(3)
    s, q = rng.uniform(1.1, 40, 300), rng.uniform(0.01, 200, 300)
    np.testing.assert_allclose(lax.zeta.primitive.evaluate(s, q), special.zeta(s, q), rtol=4e-14)
    result = lax.zeta.primitive.evaluate(np.array([1.0, 0.5, 2.0, 2.0, 2.5, NAN, 2.0]), np.array([3.0, 1.0, 0.0, -3.0, -0.5, 1.0, NAN]))
    np.testing.assert_array_equal(result, [INF, NAN, INF, INF, NAN, NAN, NAN])


@pytest.mark.parametrize("s", [2.0, 3.0, 6.0])
def test_zeta_of_negative_arguments_satisfies_its_recurrence(s):
    q = np.array([-0.25, -1.5, -7.3, -40.75])
    np.testing.assert_allclose(
        lax.zeta.primitive.evaluate(np.full(4, s), q), q**-s + lax.zeta.primitive.evaluate(np.full(4, s), q + 1), rtol=1e-11
    )


@pytest.mark.parametrize("n", range(7))
def test_polygamma(n):
    x = np.random.default_rng(4).uniform(0.05, 30, 200)
    np.testing.assert_allclose(lax.polygamma.primitive.evaluate(np.full(200, float(n)), x), special.polygamma(n, x), rtol=1e-13)


def test_polygamma_of_no_whole_order_is_nan():
    assert np.isnan(lax.polygamma.primitive.evaluate(np.array([0.5, -1.0, NAN]), np.full(3, 2.0))).all()


def test_normal_numbers_get_their_tails_from_erf_inv():
    x = 1 - 2.0 ** -np.arange(2, 24)
    np.testing.assert_allclose(lax.erf_inv.primitive.evaluate(x.astype(np.float32)), special.erfinv(x), rtol=5e-6)
