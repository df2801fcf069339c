"""Convolution, windows and polynomials against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import check, sample
from volta_fn.errors import ArgumentError, ShapeError

MODES = ["full", "same", "valid"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_convolve_and_correlate(name, mode):
    for sizes in ((7, 3), (3, 7), (5, 5), (6, 4), (1, 3)):
        for dtype in (np.float32, np.int32, np.complex64):
            a, v = sample((sizes[0],), dtype, 1), sample((sizes[1],), dtype, 2)
            # JAX converts integers to floats here; NumPy and volta_fn compute in integers.
            check(lambda xp, a, v: getattr(xp, name)(a, v, mode=mode), a, v, tolerance=1e-5, jax=dtype != np.int32)
    check(lambda xp, a, v: getattr(xp, name)(a, v, mode=mode), sample((4,), np.int8, 1), sample((2,), np.float16, 2))


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int32"])
def test_every_pair_of_lengths(dtype):
    """The middle of an even length is another one where the second vector is the longer one."""
    for name, mode, n, m in itertools.product(["convolve", "correlate"], MODES, range(1, 8), range(1, 10)):
        x = (np.arange(n) + 1 + (1j * np.arange(n) if dtype == "complex64" else 0)).astype(dtype)
        y = (np.arange(m) ** 2 - 3 + (2j if dtype == "complex64" else 0)).astype(dtype)
        result = getattr(vnp, name)(x, y, mode=mode)
        np.testing.assert_allclose(result, getattr(np, name)(x, y, mode), rtol=1e-6, err_msg=f"{name} {mode} {n} {m}")


@pytest.mark.parametrize("name", ["bartlett", "blackman", "hamming", "hanning"])
def test_windows(name):
    for points in (0, 1, 2, 7, 12):
        np.testing.assert_allclose(np.asarray(getattr(vnp, name)(points)), getattr(np, name)(points), atol=1e-7)


def test_kaiser():
    for points in (0, 1, 2, 9):
        for beta in (0.0, 5.0, 14.0):
            np.testing.assert_allclose(np.asarray(vnp.kaiser(points, beta)), np.kaiser(points, beta), rtol=1e-5, atol=1e-6)


@pytest.mark.wide
def test_polyval():
    for dtype in (np.float32, np.int32, np.complex64):
        check(lambda xp, p, x: xp.polyval(p, x), sample((4,), dtype, 1), sample((2, 3), dtype, 2), tolerance=1e-5)
    check(lambda xp, p, x: xp.polyval(p, x), np.ones((0,), np.float32), sample((2,), np.float32))
    slope = vf.grad(lambda x: vnp.polyval(np.array([2.0, 0.0, 1.0]), x))(3.0)
    assert float(slope) == 12.0


@pytest.mark.parametrize("name", ["polyadd", "polysub", "polymul"])
def test_sums_and_products(name):
    for sizes in ((3, 5), (4, 4), (1, 2)):
        a, b = sample((sizes[0],), np.float32, 1), sample((sizes[1],), np.float32, 2)
        check(lambda xp, a, b: getattr(xp, name)(a, b), a, b, tolerance=1e-5)


@pytest.mark.wide
def test_division():
    for sizes in ((5, 3), (3, 3), (4, 1)):
        u, v = sample((sizes[0],), np.float64, 1, 1, 3), sample((sizes[1],), np.float64, 2, 1, 3)
        quotient, rest = vnp.polydiv(u, v)
        rebuilt = np.polyadd(np.polymul(np.asarray(quotient), v), np.asarray(rest))
        np.testing.assert_allclose(rebuilt, u, rtol=1e-12)
        np.testing.assert_allclose(np.asarray(quotient), np.polydiv(u, v)[0], rtol=1e-12)
    quotient, rest = vnp.polydiv(np.array([1.0, 2.0]), np.array([1.0, 0.0, 0.0]))
    assert (quotient.tolist(), rest.tolist()) == ([0.0], [1.0, 2.0])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's
@pytest.mark.parametrize(("u", "v"), [([2, 1, 3], [0, 0, 1]), ([1, 2, 3, 4], [0, 1]), ([0, -3, 2], [0, 0, 1]), ([np.inf, 1], [1, 1])])
def test_division_by_a_leading_zero_has_a_remainder_of_nan(u, v):
    u, v = np.float32(u), np.float32(v)
    for function in (vnp.polydiv, vf.jit(vnp.polydiv)):
        quotient, rest = function(u, v)
        expected = np.polydiv(u, v)
        np.testing.assert_array_equal(quotient, expected[0])
        np.testing.assert_array_equal(rest, expected[1])


def test_calculus():
    p = sample((5,), np.float32, 1)
    for order in (0, 1, 2):
        check(lambda xp, p, m=order: xp.polyder(p, m), p)
        check(lambda xp, p, m=order: xp.polyint(p, m), p, tolerance=1e-5)
    check(lambda xp, p: xp.polyint(p, 2, k=np.array([3.0, -1.0], np.float32)), p, tolerance=1e-5)
    check(lambda xp, p: xp.polyder(p), np.array([1, 2, 3], np.int32), floats=True)


def test_from_roots_and_vandermonde():
    check(lambda xp, r: xp.poly(r), sample((4,), np.float32, 1), tolerance=1e-5, jax=False)
    for dtype in (np.int32, np.float32):
        for n in (None, 2, 0):
            for increasing in (False, True):
                check(lambda xp, x, n=n, i=increasing: xp.vander(x, n, increasing=i), sample((3,), dtype, 1), jax=n != 0)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: vnp.convolve(np.ones((2, 2)), np.ones(2)), ShapeError), (lambda: vnp.convolve(np.ones(0), np.ones(2)), ShapeError),
        (lambda: vnp.convolve(np.ones(2), np.ones(2), mode="x"), ArgumentError), (lambda: vnp.polyder(np.ones(3), -1), ArgumentError),
        (lambda: vnp.polyint(np.ones(3), 2, k=np.ones(3)), ShapeError), (lambda: vnp.vander(np.ones((2, 2))), ShapeError),
        (lambda: vnp.polyadd(np.ones((2, 2)), np.ones(2)), ShapeError),
    ],
)  # fmt: skip
def test_errors(call, error):
    with pytest.raises(error):
        call()
