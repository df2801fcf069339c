"""Fitted polynomials and zeros of polynomials against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, ShapeError

X = np.linspace(-2.0, 2.0, 9)


@pytest.mark.parametrize("shape", [(9,), (9, 2)])
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_polyfit(shape, degree):
    y, w = sample(shape, np.float64, 1), sample((9,), np.float64, 2, 0.1, 1)
    check(lambda xp, x, y: xp.polyfit(x, y, degree), X, y, tolerance=1e-9)
    check(lambda xp, x, y, w: xp.polyfit(x, y, degree, w=w), X, y, w, tolerance=1e-9)
    check(lambda xp, x, y: xp.polyfit(x, y, degree, cov=True), X, y, tolerance=1e-9)
    check(lambda xp, x, y: xp.polyfit(x, y, degree, cov="unscaled"), X, y, tolerance=1e-9)
    check(lambda xp, x, y: xp.polyfit(x, y, degree, full=True)[:4], X, y, tolerance=1e-9, index=True)


@pytest.mark.wide
def test_polyfit_is_differentiable():
    y = X**2
    slope = vf.grad(lambda y: vnp.polyfit(X, y, 1)[0])(y)
    np.testing.assert_allclose(np.asarray(slope), X / np.sum(X * X), rtol=1e-9, atol=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize(
    "p", [[1.0, 0.0, -4.0], [2.0, -3.0, 1.0, 5.0], [0.0, 0.0, 1.0, -2.0, 0.0], [3.0], [0.0, 0.0], [1j, 2.0, 1.0], [1.0, 5.0]], ids=str
)
def test_roots(p):
    got, wanted = np.asarray(vnp.roots(np.array(p))), np.roots(p)
    assert got.dtype == np.complex128
    np.testing.assert_allclose(np.sort_complex(got), np.sort_complex(wanted), atol=1e-12)


@pytest.mark.wide
def test_roots_of_traced_coefficients():
    result = vf.jit(lambda p: vnp.roots(p, strip_zeros=False))(np.array([1.0, -3.0, 2.0]))
    np.testing.assert_allclose(np.sort(np.asarray(result).real), [1.0, 2.0], rtol=1e-12)
    with pytest.raises(ConcretizationError, match="strip_zeros=False"):
        vf.jit(vnp.roots)(np.array([1.0, -3.0, 2.0]))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: vnp.polyfit(X, X, -1), ArgumentError),
        (lambda: vnp.polyfit(X, X[:3], 1), ShapeError),
        (lambda: vnp.polyfit(X, X, 1, w=X[:3]), ShapeError),
        (lambda: vnp.polyfit(X[:2], X[:2], 1, cov=True), ArgumentError),
        (lambda: vnp.poly(np.ones((0, 0))), ShapeError),
    ],
)
def test_errors(call, error):
    with pytest.raises(error, match="poly"):
        call()


def test_interp_continues_the_lines_at_the_ends():
    x, points, values = np.array([-1.0, 0.5, 4.0]), np.arange(3.0), np.array([0.0, 1.0, 4.0])
    assert np.array_equal(vnp.interp(x, points, values, left="extrapolate", right="extrapolate"), [-1.0, 0.5, 10.0])
    assert np.array_equal(vnp.interp(x, points, values, left=-7.0, right="extrapolate"), [-7.0, 0.5, 10.0])
    with pytest.raises(ArgumentError, match="'extrapolate', got 'nearest'"):
        vnp.interp(x, points, values, left="nearest")


def test_characteristic_polynomial() -> None:
    matrix = np.array([[2.0, 1.0], [0.0, 3.0]], np.float32)
    np.testing.assert_allclose(vnp.poly(matrix), np.poly(matrix), rtol=1e-5)


@pytest.mark.parametrize("name", ["hanning", "hamming", "blackman", "bartlett"])
def test_windows_take_arrays_of_one_number(name: str):
    for count in (5, 1, 0):
        expected = getattr(np, name)(count).astype(np.float32)
        np.testing.assert_allclose(np.asarray(getattr(vnp, name)(vnp.array(count))), expected, atol=1e-6)
    np.testing.assert_allclose(np.asarray(vnp.kaiser(vnp.array(4.0), 2.0)), np.kaiser(4, 2.0), atol=1e-6)
    with pytest.raises(ConcretizationError, match="static"):
        vf.jit(getattr(vnp, name))(5)
    with pytest.raises(ArgumentTypeError, match="number of points"):
        getattr(vnp, name)("five")
