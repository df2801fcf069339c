"""Order statistics, averages, covariances and histograms against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import BF16, FLOATS, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, OutOfBoundsError, ShapeError

METHODS = ["linear", "lower", "higher", "midpoint", "nearest"]
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


def test_dtypes():
    for dtype in FLOATS:
        x = sample((3, 6), dtype, 1)
        check(lambda xp, x: xp.median(x, axis=1), x)
        check(lambda xp, x: xp.quantile(x, 0.5, axis=0), x)
    for dtype in (np.int32, np.uint8, bool):
        check(lambda xp, x: xp.median(x, axis=1), sample((3, 6), dtype, 1), floats=True)


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


def test_gradients():
    x = np.array([3.0, 1.0, 2.0, 7.0])
    assert vf.grad(vnp.median)(x).tolist() == [0.5, 0.0, 0.5, 0.0]
    got = vf.grad(lambda v: vnp.quantile(v, 0.25))(x)
    np.testing.assert_allclose(np.asarray(got), [0.0, 0.25, 0.75, 0.0])


def test_bincount():
    x = np.array([0, 2, 2, 5], np.int32)
    check(lambda xp, x: xp.bincount(x), x, jax=False, traced=False)
    check(lambda xp, x: xp.bincount(x, minlength=8), x, jax=False, traced=False)
    check(lambda xp, x: xp.bincount(x, weights=np.array([1.5, 1.0, 2.0, 0.5], np.float32)), x, jax=False, traced=False)
    check(lambda xp, x: xp.bincount(x), np.ones((0,), np.int32), jax=False, traced=False)
    assert vf.jit(lambda x: vnp.bincount(x, length=4))(x).tolist() == [1, 0, 2, 0]
    with pytest.raises(ConcretizationError, match="length="):
        vf.jit(vnp.bincount)(x)


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


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vnp.quantile(np.ones(3), 0.5, method="x"), ArgumentError, "quantile: method"),
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
