"""Order statistics, averages, covariances and histograms against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import BF16, FLOATS, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, OutOfBoundsError, ShapeError

METHODS = ["linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf"]
AXES = [None, 0, -1, (0, 2)]
NAN = np.array([[1.0, np.nan, 3.0, -2.0], [np.nan, 5.0, 0.5, 1.5], [4.0, 2.0, -1.0, 0.0]], np.float32)


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_median_and_quantiles(axis):
    x = sample((3, 4, 5), np.float32, 1)
    for keepdims in (False, True):
        check(lambda xp, x: xp.median(x, axis=axis, keepdims=keepdims), x)
        for q in (np.float32(0.3), np.array([0.0, 0.5, 1.0], np.float32)):
            check(lambda xp, x, q: xp.quantile(x, q, axis=axis, keepdims=keepdims), x, q, tolerance=1e-5)
    check(lambda xp, x, q: xp.quantile(x, q, axis=axis), x, np.array([[0.25], [0.9]], np.float32), tolerance=1e-5, jax=False)
    check(lambda xp, x, q: xp.percentile(x, q, axis=axis), x, np.array([10.0, 50.0], np.float32), tolerance=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_methods(method):
    x = sample((7,), np.float32, 1)
    for q in (0.0, 0.1, 0.26, 0.5, 0.77, 1.0):
        check(lambda xp, x, q=np.float32(q): xp.quantile(x, q, method=method), x, tolerance=1e-5)


#: The sum of each row and of each column is a power of two, so that shares of it are exact; zeros come first and last in the order of X.
WEIGHTS = np.array([[0, 5, 1, 2], [3, 1, 3, 1], [5, 2, 0, 1]], np.int32)
X = np.array([[0.5, 4.0, 1.0, 2.0], [3.0, -1.0, 5.0, 2.5], [-2.0, 7.0, 9.0, 6.0]], np.float32)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_weights(dtype):
    weights = WEIGHTS.astype(dtype)
    shares = np.array([0.0, 0.125, 0.2, 0.5, 0.625, 0.99, 1.0], np.float32)
    for axis in (0, 1, (1, 0), None):
        for keepdims in (False, True):
            options = {"axis": axis, "method": "inverted_cdf", "keepdims": keepdims}
            for q in (shares, shares[3]):
                check(lambda xp, x, q, w, o=options: xp.quantile(x, q, weights=w, **o), X, q, weights)
            check(lambda xp, x, q, w, o=options: xp.percentile(x, q, weights=w, **o), X, np.array([0, 12.5, 50], np.float32), weights)
    check(lambda xp, x, q, w: xp.quantile(x, q, 1, weights=w, method="inverted_cdf"), X, shares, weights[0])
    cube = sample((3, 2, 4), np.float32, 1)
    both = {"axis": (2, 0), "method": "inverted_cdf"}  # NumPy takes weights in the order in which axes are named
    check(lambda xp, x, q, w: xp.quantile(x, q, weights=w, **both), cube, shares, weights.T, jax=False)


def test_weights_are_counts_of_copies():
    rows = [np.repeat(x, w) for x, w in zip(X, WEIGHTS, strict=True)]
    for q in np.linspace(0, 1, 12, dtype=np.float32):
        got = vnp.quantile(X, q, axis=1, method="inverted_cdf", weights=WEIGHTS)
        np.testing.assert_array_equal(got, [np.quantile(row, float(q), method="inverted_cdf") for row in rows])
        np.testing.assert_array_equal(got, [vnp.quantile(row, q, method="inverted_cdf") for row in rows])


def test_weights_with_nan():
    options = {"axis": 1, "method": "inverted_cdf"}
    weights = np.array([[1, 4, 2, 1], [3, 1, 3, 1], [1, 1, 1, 1]], np.float32)
    for name in ("quantile", "nanquantile"):
        for q in (0.0, 0.3, 0.5, 1.0):
            check(lambda xp, x, w, name=name, q=np.float32(q): getattr(xp, name)(x, q, weights=w, **options), NAN, weights)
    check(lambda xp, x, w: xp.nanpercentile(x, np.float32(50), weights=w, **options), NAN, weights)
    bad = np.array([[1, -1, 1, 1], [1, np.nan, 1, 1], [0, 0, 0, 0], [np.inf, 1, 1, 1], [0, 2, 0, 0]], np.float32)
    for function in (vnp.quantile, vnp.nanquantile):
        got = function(np.tile(np.array([4.0, 3.0, 2.0, 1.0], np.float32), (5, 1)), 0.5, weights=bad, **options)
        np.testing.assert_array_equal(got, [np.nan] * 4 + [3.0])


def test_weights_of_narrow_floats_are_summed_in_wide_ones():
    ramp = np.arange(5000, dtype=np.float32).astype(np.float16)
    ones = np.ones(5000, np.float16)
    assert float(vnp.quantile(ramp, 0.9, weights=ones, method="inverted_cdf")) == float(np.sort(ramp)[4499])
    assert vnp.quantile(ramp, 0.9, weights=ones, method="inverted_cdf").dtype == np.float16


def test_dtypes():
    for dtype in FLOATS:
        x = sample((3, 6), dtype, 1)
        check(lambda xp, x: xp.median(x, axis=1), x)
        check(lambda xp, x: xp.quantile(x, 0.5, axis=0), x)
    for dtype in (np.int32, np.uint8, bool):
        check(lambda xp, x: xp.median(x, axis=1), sample((3, 6), dtype, 1), floats=True)


@pytest.mark.wide
def test_nan_spreads_or_is_left_out():
    for axis in (None, 0, 1):
        for name in ("median", "nanmedian"):
            check(lambda xp, x, axis=axis, name=name: getattr(xp, name)(x, axis=axis), NAN)
        for name in ("quantile", "nanquantile"):
            check(lambda xp, x, axis=axis, name=name: getattr(xp, name)(x, np.float32(0.3), axis=axis), NAN, tolerance=1e-5)
        check(lambda xp, x, axis=axis: xp.nanpercentile(x, np.float32(30), axis=axis), NAN, tolerance=1e-5)
    assert np.isnan(np.asarray(vnp.nanmedian(np.full((2, 3), np.nan), axis=1))).all()


def test_average():
    x = sample((3, 4), np.float32, 1)
    check(lambda xp, x: xp.average(x), x, tolerance=1e-5)
    check(lambda xp, x, w: xp.average(x, weights=w), x, sample((3, 4), np.float32, 2, 0.1, 1), tolerance=1e-5)
    check(lambda xp, x, w: xp.average(x, axis=1, weights=w, returned=True), x, sample((4,), np.float32, 2, 0.1, 1), tolerance=1e-5)
    check(lambda xp, x, w: xp.average(x, axis=0, weights=w, keepdims=True), x, sample((3,), np.float32, 2, 0.1, 1), tolerance=1e-5)
    check(lambda xp, x: xp.average(x, axis=1, returned=True), x, tolerance=1e-5)
    check(lambda xp, x: xp.average(x, axis=0), sample((3, 4), np.int32, 1), floats=True)
    check(
        lambda xp, x, w: xp.average(x, axis=(2, 0), weights=w),
        sample((2, 3, 4), np.float32),
        sample((4, 2), np.float32, 2, 0.1, 1),
        tolerance=1e-5,
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's of one observation
@pytest.mark.parametrize("function", ["cov", "corrcoef"])
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (4, 3), (3,), (1, 1), (0, 2)])
@pytest.mark.parametrize("rowvar", [True, False])
def test_variables_in_rows_and_columns(function, shape, rowvar):
    m = sample(shape, np.float32)
    check(lambda xp, m: getattr(xp, function)(m, rowvar=rowvar), m, tolerance=1e-5)
    weights = np.ones(shape[-1] if rowvar or len(shape) == 1 else shape[0], np.float32)
    if weights.size and function == "cov":
        check(lambda xp, m, w: xp.cov(m, aweights=w, rowvar=rowvar, ddof=0), m, weights, tolerance=1e-5)


def test_a_second_variable_of_one_row():
    for rows, rowvar in (((1, 3), True), ((3, 1), False), ((3, 2), False)):
        m, y = sample(rows, np.float32), sample((1, 3), np.float32)
        check(lambda xp, m, y, rowvar=rowvar: xp.cov(m, y, rowvar=rowvar), m, y, tolerance=1e-5)


def test_cov():
    m, y = sample((3, 8), np.float32, 1), sample((2, 8), np.float32, 2)
    frequencies, weights = np.array([1, 2, 1, 3, 1, 1, 2, 1], np.int32), sample((8,), np.float32, 3, 0.1, 1)
    for options in ({}, {"bias": True}, {"ddof": 0}, {"ddof": 2}):
        check(lambda xp, m, o=options: xp.cov(m, **o), m, tolerance=1e-5)
        check(lambda xp, m, y, o=options: xp.cov(m, y, **o), m, y, tolerance=1e-5)
        check(lambda xp, m, f, o=options: xp.cov(m, fweights=f, **o), m, frequencies, tolerance=1e-5)
        check(lambda xp, m, w, o=options: xp.cov(m, aweights=w, **o), m, weights, tolerance=1e-5)
        check(lambda xp, m, f, w, o=options: xp.cov(m, fweights=f, aweights=w, **o), m, frequencies, weights, tolerance=1e-5)
    check(lambda xp, m: xp.cov(m, rowvar=False), m, tolerance=1e-5)
    check(lambda xp, m: xp.cov(m[0]), m, tolerance=1e-5)
    check(lambda xp, m: xp.cov(m), sample((2, 5), np.complex64, 1), tolerance=1e-5)
    check(lambda xp, m: xp.cov(m), sample((2, 5), np.int32, 1), floats=True, tolerance=1e-5)


def test_corrcoef():
    m = sample((3, 8), np.float32, 1)
    check(lambda xp, m: xp.corrcoef(m), m, tolerance=1e-5)
    check(lambda xp, m: xp.corrcoef(m, rowvar=False), m, tolerance=1e-5)
    check(lambda xp, m: xp.corrcoef(m[0], m[1]), m, tolerance=1e-5)
    check(lambda xp, m: xp.corrcoef(m[0]), m, tolerance=1e-5)
    check(lambda xp, m: xp.corrcoef(m), sample((3, 8), np.complex64, 1), tolerance=1e-5)


@pytest.mark.wide
def test_gradients():
    x = np.array([3.0, 1.0, 2.0, 7.0])
    assert vf.grad(vnp.median)(x).tolist() == [0.5, 0.0, 0.5, 0.0]
    got = vf.grad(lambda v: vnp.quantile(v, 0.25))(x)
    np.testing.assert_allclose(np.asarray(got), [0.0, 0.25, 0.75, 0.0])
    weights = np.array([1.0, 2.0, 4.0, 1.0])
    by_both = vf.grad(lambda v, w: 3 * vnp.quantile(v, 0.5, method="inverted_cdf", weights=w), (0, 1))
    assert [g.tolist() for g in by_both(x, weights)] == [[0.0, 0.0, 3.0, 0.0], [0.0] * 4]
    assert vf.vmap(by_both, (None, 0))(x, np.stack([weights, weights[::-1]]))[0].tolist() == [[0.0, 0.0, 3.0, 0.0], [0.0, 3.0, 0.0, 0.0]]


def test_bincount():
    x = np.array([0, 2, 2, 5], np.int32)
    check(lambda xp, x: xp.bincount(x), x, jax=False, traced=False)
    check(lambda xp, x: xp.bincount(x, minlength=8), x, jax=False, traced=False)
    check(lambda xp, x: xp.bincount(x, weights=np.array([1.5, 1.0, 2.0, 0.5], np.float32)), x, jax=False, traced=False)
    check(lambda xp, x: xp.bincount(x), np.ones((0,), np.int32), jax=False, traced=False)
    assert vf.jit(lambda x: vnp.bincount(x, length=4))(x).tolist() == [1, 0, 2, 0]
    with pytest.raises(ConcretizationError, match="length="):
        vf.jit(vnp.bincount)(x)
    with pytest.raises(ArgumentTypeError, match="minlength must be an integer"):
        vnp.bincount(x, minlength="8")


def test_histogram():
    x = sample((30,), np.float32, 1)
    for options in (
        {},
        {"bins": 4},
        {"bins": 5, "range": (-1.0, 2.0)},
        {"bins": np.array([-2.0, 0.0, 0.5, 3.0], np.float32)},
        {"density": True},
    ):
        check(lambda xp, x, o=options: xp.histogram(x, **o), x, tolerance=1e-5)
        edges = {k: v for k, v in options.items() if k != "density"}
        check(lambda xp, x, o=edges: xp.histogram_bin_edges(x, **o), x, tolerance=1e-5)
    check(lambda xp, x: xp.histogram(x, weights=x * x), x, tolerance=1e-5)
    many = np.full(30, 100, np.int8)
    check(lambda xp, x, w: xp.histogram(x, bins=2, weights=w, density=True), x, many, tolerance=1e-5)
    assert vnp.histogram(x, bins=1, weights=many)[0].tolist() == [3000.0]
    check(lambda xp, x: xp.histogram(x, bins=3), np.full((4,), 2.0, np.float32))
    check(lambda xp, x: xp.histogram(x, bins=3), np.ones((0,), np.float32), jax=False)
    check(lambda xp, x: xp.histogram(x, bins=3), sample((2, 5), np.int32), jax=False)


def test_histograms_of_several_dimensions():
    x, y = sample((40,), np.float32, 1), sample((40,), np.float32, 2)
    for options in (
        {},
        {"bins": [3, 4]},
        {"bins": np.array([-3.0, 0.0, 3.0], np.float32)},
        {"bins": 3, "range": [(-1, 1), (0, 2)]},
        {"density": True},
    ):
        check(lambda xp, x, y, o=options: xp.histogram2d(x, y, **o), x, y, tolerance=1e-5, jax=False)
    points = sample((50, 3), np.float32, 3)
    counts, edges = vnp.histogramdd(points, bins=(2, 3, 4))
    wanted, wanted_edges = np.histogramdd(points, bins=(2, 3, 4))
    np.testing.assert_array_equal(np.asarray(counts), wanted)
    for ours, theirs in zip(edges, wanted_edges, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vnp.quantile(np.ones(3), 0.5, method="x"), ArgumentError, "quantile: method"),
        (lambda: vnp.quantile(vnp.ones(3), 0.5, weights=vnp.ones(3)), ArgumentError, "'linear' takes no weights"),
        (
            lambda: vnp.quantile(vnp.ones(3), 0.5, method="inverted_cdf", weights=vnp.ones(2)),
            ShapeError,
            "quantile: weights of shape",
        ),
        (
            lambda: vnp.nanpercentile(vnp.ones((2, 3)), 5, method="inverted_cdf", weights=vnp.ones(3)),
            ShapeError,
            "nanpercentile: weights",
        ),
        (
            lambda: vnp.quantile(vnp.ones(3), 0.5, method="inverted_cdf", weights=vnp.ones(3, "complex64")),
            ArgumentTypeError,
            "complex",
        ),
        (lambda: vnp.quantile(vnp.ones(3), 0.5j), ArgumentTypeError, "complex"),
        (lambda: vnp.median(np.ones((0,))), ShapeError, "median of no elements"),
        (lambda: vnp.median(1j), ArgumentTypeError, "median: complex"),
        (lambda: vnp.average(np.ones((2, 3)), axis=0, weights=np.ones(3)), ShapeError, "average: weights"),
        (lambda: vnp.cov(np.ones((2, 2, 2))), ShapeError, "cov"),
        (lambda: vnp.cov(np.ones((2, 3)), fweights=np.ones(3)), ArgumentTypeError, "fweights must be integers"),
        (lambda: vnp.cov(np.ones((2, 3)), aweights=np.ones(2)), ShapeError, r"aweights must have shape \(3,\)"),
        (lambda: vnp.bincount(np.ones(3)), ArgumentTypeError, "bincount"),
        (lambda: vnp.bincount(np.ones(3, int), weights=np.ones(2)), ShapeError, "weights"),
        (lambda: vnp.histogram(np.ones(3), bins="auto"), ArgumentError, "auto"),
        (lambda: vnp.histogram(np.ones(3), bins=0), ArgumentError, "positive"),
        (lambda: vnp.histogramdd(np.ones((2, 3)), bins=[2, 2]), ShapeError, "histogramdd"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_narrow_floats_keep_their_dtype():
    assert vnp.median(vnp.ones(4, BF16)).dtype == BF16
    assert vnp.cov(vnp.ones((2, 3), "float16")).dtype == np.float16
    with pytest.raises(OutOfBoundsError):
        vnp.take(vnp.ones(3), 5)
