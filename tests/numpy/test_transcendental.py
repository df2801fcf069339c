"""Exponentials, logarithms and trigonometry: NumPy's values, JAX's dtypes."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import BF16, COMPLEX, FLOATS, INTEGERS, check, sample

#: Each function with the interval that it is sampled on.
UNARY = {
    "exp": (-3, 3), "exp2": (-3, 3), "expm1": (-3, 3), "log": (0.1, 5), "log2": (0.1, 5), "log10": (0.1, 5), "log1p": (-0.5, 5),
    "sqrt": (0, 9), "sin": (-6, 6), "cos": (-6, 6), "tan": (-1, 1), "arcsin": (-1, 1), "arccos": (-1, 1), "arctan": (-5, 5),
    "sinh": (-3, 3), "cosh": (-3, 3),
    "tanh": (-3, 3), "arcsinh": (-5, 5), "arccosh": (1, 5), "arctanh": (-0.9, 0.9), "deg2rad": (-360, 360), "rad2deg": (-6, 6),
    "sinc": (-3, 3), "cbrt": (-9, 9), "i0": (-8, 8),
}  # fmt: skip
REAL_ONLY = {"cbrt", "deg2rad", "rad2deg", "i0"}


@pytest.mark.parametrize("name", UNARY)
def test_values(name):
    low, high = UNARY[name]
    wide = name in ("tan", "i0", "sinc", "arccos", "arcsin", "arctanh")
    for dtype in FLOATS + ([] if name in REAL_ONLY else COMPLEX):
        # Some amplify the rounding of their argument.
        precision = {2: 6e-2 if dtype == BF16 else 1e-2, 4: 1e-5, 8: 1e-11}[dtype.itemsize // (2 if dtype.kind == "c" else 1)]
        check(lambda xp, x: getattr(xp, name)(x), sample((3, 4), dtype, 1, low, high), tolerance=precision if wide else None)
    check(lambda xp, x: getattr(xp, name)(x), sample((2, 0), np.float32), traced=False)


@pytest.mark.parametrize("name", ["exp", "sin", "sqrt", "log10", "sinc", "deg2rad", "arctan", "i0"])
def test_integers_become_floats(name):
    for dtype in [*INTEGERS, np.dtype(bool)]:
        check(lambda xp, x: getattr(xp, name)(x), sample((4,), dtype, 2, 1, 3), floats=True, tolerance=1e-5)


@pytest.mark.parametrize("name", ["arctan2", "logaddexp", "logaddexp2"])
def test_binary(name):
    for dtype in FLOATS:
        check(lambda xp, x, y: getattr(xp, name)(x, y), sample((3, 1), dtype, 1), sample((4,), dtype, 2))


@pytest.mark.wide
def test_logaddexp_at_the_ends():
    x = np.array([-np.inf, -np.inf, np.inf, 1000.0, np.nan, np.inf], np.float32)
    y = np.array([-np.inf, 2.0, np.inf, 1000.0, 1.0, -np.inf], np.float32)
    for name in ("logaddexp", "logaddexp2"):
        check(lambda xp, x, y, name=name: getattr(xp, name)(x, y), x, y)
    slopes = vf.grad(lambda x, y: vnp.sum(vnp.logaddexp(x, y)), (0, 1))(np.array([-np.inf, 3.0, 1.0]), np.array([-np.inf, -np.inf, 1.0]))
    np.testing.assert_allclose([np.asarray(s) for s in slopes], [[0.5, 1.0, 0.5], [0.5, 0.0, 0.5]])


def test_second_derivative_of_logaddexp_at_a_tie():
    """Check d²/dx² log(e^x + e^y) = s (1 - s), s = logistic(x - y), 1/4 at a tie."""
    second = vf.grad(vf.grad(lambda x: vnp.logaddexp(x, 1.0)))
    for x in (1.0, 0.3, 4.0):
        s = 1 / (1 + np.exp(1.0 - x))
        np.testing.assert_allclose(float(second(x)), s * (1 - s), rtol=1e-5)


@pytest.mark.wide
def test_i0_over_its_range():
    x = np.linspace(-700.0, 700.0, 601)
    np.testing.assert_allclose(np.asarray(vnp.i0(x)), np.i0(x), rtol=1e-13)


@pytest.mark.wide
def test_sinc_is_smooth_at_zero():
    slope = vf.grad(vnp.sinc)
    curvature = vf.grad(slope)
    assert float(slope(0.0)) == 0.0
    np.testing.assert_allclose(float(curvature(0.0)), -(np.pi**2) / 3, rtol=1e-5)
    for x in (1e-3, 0.05, 0.3, 1.0):
        u = np.pi * x
        wanted = np.pi * (np.cos(u) / u - np.sin(u) / u**2)
        np.testing.assert_allclose(float(slope(np.float64(x))), wanted, rtol=1e-9)


@pytest.mark.wide
def test_derivatives_against_differences():
    for name, x in (("i0", 2.0), ("i0", 20.0), ("log10", 3.0), ("cbrt", -2.0), ("exp2", 1.5), ("deg2rad", 90.0)):
        function = getattr(vnp, name)
        step = 1e-6
        numeric = (float(function(np.float64(x + step))) - float(function(np.float64(x - step)))) / (2 * step)
        np.testing.assert_allclose(float(vf.grad(function)(np.float64(x))), numeric, rtol=1e-7)


@pytest.mark.wide
@pytest.mark.parametrize("base", [np.e, 2.0])
def test_logaddexp_of_complex_numbers(base):
    name = "logaddexp" if base == np.e else "logaddexp2"
    numbers = np.array([0.5 + 2j, -3 + 1j, 1j, 2 - 3j])
    for dtype in COMPLEX:
        x, y = numbers[:, None].astype(dtype), numbers.astype(dtype)
        result = getattr(vnp, name)(x, y)
        assert result.dtype == dtype
        assert np.allclose(np.power(base, result), np.power(base, x) + np.power(base, y), atol=1e-5)
        assert np.abs(result.imag).max() <= np.pi / np.log(base) + 1e-6
    assert vnp.logaddexp(np.complex64(1000 + 1j), np.complex64(1000 + 1j)) == pytest.approx(1000 + np.log(2) + 1j)


def test_the_slope_of_the_cube_root_at_zero_is_infinite() -> None:
    assert [float(vf.grad(vnp.cbrt)(x)) for x in (0.0, -0.0, np.inf)] == [np.inf, np.inf, 0]


def test_log10_of_complex_zero() -> None:
    assert vnp.log10(np.complex64(0)).item() == complex(-np.inf, 0)


@pytest.mark.parametrize("jit", [False, True])
def test_log1p_of_small_and_huge_complex_numbers(jit: bool) -> None:
    z = np.array([1e-15 + 1e-15j, 1e-20 + 4.5e-8j, 4.5e-8 + 1e-30j, 1e-5 + 0j, 3e38 + 3e38j, 1e30 - 1e-5j, -0.3 + 0.2j], np.complex64)
    # log |1 + z| is half of log1p(x (2 + x) + y^2), which keeps small numbers; that of huge ones is log |z|.
    x, y = z.real.astype(float), z.imag.astype(float)
    wanted = np.where(abs(x) > 1, np.log(np.hypot(x, y)), np.log1p(x * (2 + x) + y * y) / 2) + 1j * np.arctan2(y, 1 + x)
    actual = np.asarray((vf.jit(vnp.log1p) if jit else vnp.log1p)(z))
    np.testing.assert_allclose(actual.real, wanted.real, rtol=1e-6)
    np.testing.assert_allclose(actual.imag, wanted.imag, rtol=1e-6)
