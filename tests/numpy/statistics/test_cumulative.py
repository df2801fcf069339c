"""Running sums, differences, slopes, integrals and interpolation against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import ALL, BF16, check, sample
from volta_fn.errors import ArgumentError, ShapeError

ROUGH = {np.dtype(np.float16): 2e-2, BF16: 2e-1}


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running(name):
    for dtype in ALL:
        x = sample((3, 4), dtype, 1, -1.5, 1.5)
        for axis in (None, 0, -1):
            check(lambda xp, x, axis=axis: getattr(xp, name)(x, axis=axis), x, tolerance=ROUGH.get(dtype, 1e-5))
    check(lambda xp, x: getattr(xp, name)(x, axis=0), np.ones((0, 3), np.float32))
    check(lambda xp, x: getattr(xp, name)(x, dtype=np.float32), sample((4,), np.int32, 1))
    mask = np.array([False, True, False])
    assert getattr(vnp, name)(mask, dtype=bool).tolist() == getattr(np, name)(mask).astype(bool).tolist()


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_running_of_the_array_api(name):
    x = sample((3, 4), np.float32, 1)
    for initial in (False, True):
        check(lambda xp, x: getattr(xp, name)(x, axis=1, include_initial=initial), x, tolerance=1e-5)
        check(lambda xp, x: getattr(xp, name)(x, include_initial=initial), sample((3,), np.int8, 1), jax="sum" in name)
    with pytest.raises(ShapeError, match=f"{name}: give axis"):
        getattr(vnp, name)(x)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_diff(n):
    for dtype in (np.float32, np.int32, np.uint8, bool):
        for axis in (0, -1):
            check(lambda xp, x, axis=axis: xp.diff(x, n=n, axis=axis), sample((4, 5), dtype, 1))
    x, end = sample((4, 5), np.float32, 1), sample((4, 2), np.float32, 2)
    check(lambda xp, x, e: xp.diff(x, n=n, prepend=e, append=0.0), x, end)


@pytest.mark.wide
def test_diff_refuses():
    with pytest.raises(ArgumentError, match="diff: n"):
        vnp.diff(np.ones(3), n=-1)
    with pytest.raises(ShapeError, match="diff"):
        vnp.diff(np.float32(1))


def test_ediff1d():
    x = sample((3, 2), np.float32, 1)
    check(lambda xp, x: xp.ediff1d(x), x)
    check(lambda xp, x: xp.ediff1d(x, to_begin=x[0], to_end=x[1]), x)
    check(lambda xp, x: xp.ediff1d(x, to_end=xp.asarray(np.float32(9))), x)


def test_trapezoid():
    y, x = sample((3, 5), np.float32, 1), np.sort(sample((5,), np.float32, 2))
    check(lambda xp, y: xp.trapezoid(y, dx=0.5), y, tolerance=1e-5)
    check(lambda xp, y, x: xp.trapezoid(y, x), y, x, tolerance=1e-5)
    check(lambda xp, y: xp.trapezoid(y, axis=0), y, tolerance=1e-5)
    check(lambda xp, y, x: xp.trapezoid(y, x, axis=0), y, sample((3, 5), np.float32, 3), tolerance=1e-5)
    check(lambda xp, y, x: xp.trapezoid(y, x, axis=0), y, x[:3], tolerance=1e-5)
    check(lambda xp, y, d: xp.trapezoid(y, dx=d, axis=0), y, sample((2, 5), np.float32, 3), tolerance=1e-5)
    check(lambda xp, y, d: xp.trapezoid(y, dx=d), y, sample((3, 1), np.float32, 3), tolerance=1e-5)


@pytest.mark.wide
def test_gradient():
    f = sample((4, 5), np.float32, 1)
    check(lambda xp, f: xp.gradient(f), f, tolerance=1e-5)
    check(lambda xp, f: xp.gradient(f, axis=1), f, tolerance=1e-5)
    check(lambda xp, f: xp.gradient(f, 2.0, axis=0), f, tolerance=1e-5)
    check(lambda xp, f: xp.gradient(f, 2.0, 0.5), f, tolerance=1e-5)
    points = np.array([0.0, 1.0, 1.5, 4.0, 4.5], np.float32)
    check(lambda xp, f, p: xp.gradient(f, p, axis=1), f, points, tolerance=1e-5, jax=False)
    check(lambda xp, f: xp.gradient(f), f[0, :2], tolerance=1e-5)
    for call in (lambda: vnp.gradient(f[:1], axis=0), lambda: vnp.gradient(f, np.ones(3), axis=1)):
        with pytest.raises(ShapeError, match="gradient"):
            call()


def test_unwrap():
    x = np.cumsum(sample((3, 20), np.float64, 1, -2.5, 2.5), axis=1)
    wrapped = (x + np.pi) % (2 * np.pi) - np.pi
    check(lambda xp, p: xp.unwrap(p), wrapped, tolerance=1e-9)
    check(lambda xp, p: xp.unwrap(p, axis=0, period=4.0), wrapped, tolerance=1e-9)
    check(lambda xp, p: xp.unwrap(p, discont=4.0), wrapped, tolerance=1e-9)


@pytest.mark.wide
def test_interp():
    xp_, fp = np.sort(sample((6,), np.float32, 1)), sample((6,), np.float32, 2)
    x = np.concatenate([sample((3, 4), np.float32, 3, -4, 4).ravel(), xp_])
    check(lambda xp, x, a, b: xp.interp(x, a, b), x, xp_, fp, tolerance=1e-5)
    check(lambda xp, x, a, b: xp.interp(x, a, b, left=-1.0, right=9.0), x, xp_, fp, tolerance=1e-5)
    check(lambda xp, x, a, b: xp.interp(x, a, b, period=2.5), x, xp_, fp, tolerance=1e-4)
    check(lambda xp, x, a, b: xp.interp(x, a, b), x, xp_[:1], fp[:1])
    slope = vf.grad(lambda v: vnp.interp(v, vnp.array([0.0, 2.0]), vnp.array([1.0, 7.0])))(0.5)
    assert float(slope) == 3.0
    with pytest.raises(ShapeError, match="interp: xp and fp"):
        vnp.interp(1.0, np.ones(2), np.ones(3))


@pytest.mark.parametrize(("discont", "period"), [(None, 4), (np.pi, 4), (None, 5), (None, 7), (3, 7), (None, 1), (7.5, 6)])
def test_unwrapped_integers(discont: float | None, period: int) -> None:
    x = np.array([0, 1, 3, 0, 2, 9, -4, 1, 5, 8], np.int16)
    result = vnp.unwrap(x, discont=discont, period=period)
    np.testing.assert_array_equal(result, np.unwrap(x, discont=discont, period=period))
    assert result.dtype == np.int16
