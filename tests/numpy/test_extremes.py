"""Values and slopes at the ends of the range, beside mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sinc_near_its_zeros_and_far_out(dtype):
    most = float(np.finfo(dtype).max)
    x = np.array([0.0, 1e-30, 0.3, 1 - 1e-7, 2.5, -3.25, 100.0000076, 1e10, most / 2, most], dtype)
    with mpmath.workdps(400):
        wanted = [float(mpmath.sincpi(mpmath.mpf(float(v)))) for v in x]
    for compute in (vnp.sinc, vf.jit(vnp.sinc)):
        np.testing.assert_allclose(compute(x), wanted, rtol=8 * np.finfo(dtype).eps, atol=0)
    np.testing.assert_array_equal(vnp.sinc(np.float16([65504.0])), [0.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_slopes_of_sinc_far_out_are_numbers(dtype: str) -> None:
    kind = vf.dtypes.as_dtype(dtype)
    most = float(vnp.finfo(kind).max)
    x = vnp.asarray([most, -most, most / 2, 0.0], kind)
    for compute in (vf.vmap(vf.grad(vnp.sinc)), vf.jit(vf.vmap(vf.grad(vnp.sinc)))):
        slopes = np.asarray(compute(x), np.float64)
        np.testing.assert_allclose(slopes, 0, atol=2 / most)


@pytest.mark.wide
@pytest.mark.parametrize(("dtype", "ends"), [(np.float32, (1e-25, 1e-21, 1.0, 1e25)), (np.float64, (1e-250, 1e-170, 1.0, 1e250))])
def test_slopes_of_arctan2_at_all_sizes(dtype, ends):
    for y, x in [(dtype(a * s), dtype(b)) for a in ends for b in ends for s in (3, -4)]:
        actual = vf.grad(vnp.arctan2, (0, 1))(y, x)
        square = mpmath.mpf(float(x)) ** 2 + mpmath.mpf(float(y)) ** 2
        info = np.finfo(dtype)
        for slope, part in zip(actual, (mpmath.mpf(float(x)), -mpmath.mpf(float(y))), strict=True):
            with np.errstate(over="ignore"):
                wanted = dtype(float(part / square))
            np.testing.assert_allclose(slope, wanted, rtol=8 * info.eps, atol=8 * float(info.tiny))


#: By function the slope of a number in mpmath's precision, and whether a number belongs to the domain.
SLOPES = {
    "arcsinh": (lambda x: 1 / mpmath.sqrt(1 + x * x), lambda x: True),
    "arctan": (lambda x: 1 / (1 + x * x), lambda x: True),
    "arccosh": (lambda x: 1 / mpmath.sqrt(x * x - 1), lambda x: x > 1),
    "arcsin": (lambda x: 1 / mpmath.sqrt(1 - x * x), lambda x: abs(x) < 1),
    "arccos": (lambda x: -1 / mpmath.sqrt(1 - x * x), lambda x: abs(x) < 1),
    "arctanh": (lambda x: 1 / (1 - x * x), lambda x: abs(x) < 1),
    "log": (lambda x: 1 / x, lambda x: x > 0),
    "log2": (lambda x: 1 / (x * mpmath.log(2)), lambda x: x > 0),
    "log10": (lambda x: 1 / (x * mpmath.log(10)), lambda x: x > 0),
    "log1p": (lambda x: 1 / (1 + x), lambda x: x > -1),
    "sqrt": (lambda x: 0.5 / mpmath.sqrt(x), lambda x: x > 0),
    "cbrt": (lambda x: 1 / (3 * mpmath.cbrt(x * x)), lambda x: x > 0),
    "square": (lambda x: 2 * x, lambda x: True),
}
REAL_DTYPES = ("float16", "bfloat16", "float32", "float64")


def _grid(dtype: np.dtype) -> np.ndarray:
    """Return numbers of both signs from the least normal one to the largest."""
    info = vf.numpy.finfo(dtype)
    exponents = range(info.minexp, info.maxexp, max(1, (info.maxexp - info.minexp) // 60))
    sizes = [m * 2.0**k for k in exponents for m in (1.0, 1.37109375)] + [float(info.max), 1.0 - float(info.epsneg), 1.0 + float(info.eps)]
    return np.array([sign * size for size in sizes for sign in (1, -1)]).astype(dtype)


def _rounded(numbers: list[mpmath.mpf], dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array([float(n) for n in numbers]).astype(dtype)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", REAL_DTYPES)
@pytest.mark.parametrize("name", SLOPES)
def test_slopes_at_all_sizes(name: str, dtype: str) -> None:
    slope, is_in = SLOPES[name]
    kind = vf.dtypes.as_dtype(dtype)
    x = np.array([v for v in _grid(kind) if is_in(float(v))])
    function, info = getattr(vnp, name), vf.numpy.finfo(kind)
    with mpmath.workdps(60):
        exact = _rounded([slope(mpmath.mpf(float(v))) for v in x], kind)
    forward = lambda x: vf.jvp(function, (x,), (vnp.ones_like(x),))[1]
    reverse = lambda x: vf.vjp(function, x)[1](vnp.ones_like(x))[0]
    for compute in (forward, reverse, vf.jit(forward), vf.jit(reverse)):
        actual = np.asarray(compute(vnp.asarray(x)))
        assert actual.dtype == kind
        allowed = {"rtol": 6 * float(info.eps), "atol": 4 * float(info.smallest_subnormal)}
        np.testing.assert_allclose(actual.astype(np.float64), exact.astype(np.float64), **allowed)


COMPLEX_SLOPES = {
    "arcsinh": lambda z: 1 / (mpmath.sqrt(1 + 1j * z) * mpmath.sqrt(1 - 1j * z)),
    "arctan": lambda z: 1 / ((1 + 1j * z) * (1 - 1j * z)),
    "arccosh": lambda z: 1 / (mpmath.sqrt(z - 1) * mpmath.sqrt(z + 1)),
    "arcsin": lambda z: 1 / (mpmath.sqrt(1 - z) * mpmath.sqrt(1 + z)),
    "arccos": lambda z: -1 / (mpmath.sqrt(1 - z) * mpmath.sqrt(1 + z)),
    "arctanh": lambda z: 1 / ((1 - z) * (1 + z)),
    "log": lambda z: 1 / z,
    "sqrt": lambda z: 0.5 / mpmath.sqrt(z),
}


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", COMPLEX_SLOPES)
def test_slopes_of_complex_numbers_at_all_sizes(name: str, dtype: str) -> None:
    info = np.finfo(dtype)
    step = (info.maxexp - info.minexp) // 40
    sizes = [1.37 * 2.0**k for k in range(info.minexp // 2, info.maxexp - 1, step)]
    z = np.array([size * np.exp(1j * angle) for size in sizes for angle in (0.3, 1.4, 2.0, -0.7, -2.8)]).astype(dtype)
    with mpmath.workdps(60):
        exact = np.array([complex(COMPLEX_SLOPES[name](mpmath.mpc(complex(v)))) for v in z]).astype(dtype)
    for compute in (lambda z: vf.jvp(getattr(vnp, name), (z,), (vnp.ones_like(z),))[1],):
        for function in (compute, vf.jit(compute)):
            error = np.abs(np.asarray(function(vnp.asarray(z))).astype(np.complex128) - exact.astype(np.complex128))
            allowed = 16 * float(info.eps) * np.abs(exact.astype(np.complex128)) + 8 * float(info.smallest_subnormal)
            assert (error <= allowed).all(), (name, z[error > allowed][:3])


@pytest.mark.wide
def test_second_slopes_beyond_the_range_of_squares() -> None:
    for x in (-1.0, 1.0, 0.0, 0.5, 3.0, 1e6, -1e10):
        value = np.float32(x)
        with mpmath.workdps(60):
            v = mpmath.mpf(float(value))
            exact = [float(-2 * v / (1 + v * v) ** 2), float(-v / (1 + v * v) ** mpmath.mpf(1.5))]
        for function, wanted in zip((vnp.arctan, vnp.arcsinh), exact, strict=True):
            np.testing.assert_allclose(vf.grad(vf.grad(function))(value), np.float32(wanted), rtol=1e-5, atol=1e-44)
    np.testing.assert_array_equal(vf.vmap(vf.grad(vf.grad(vf.scipy.special.erf)))(np.float16([40000, -40000, 65504])), 0)


def test_slopes_of_owens_t_by_long_intervals() -> None:
    """The square of the interval's length overflows, and its product with h = 0 would be NaN."""
    slope = vf.grad(vf.scipy.special.owens_t, 1)
    np.testing.assert_allclose(slope(np.float32(0), np.float32(1e15)), 0.5 / np.pi / 1e30, rtol=1e-5)
    np.testing.assert_array_equal([slope(np.float32(h), np.float32(1e25)) for h in (0.0, 1e-25, 2.0)], [0, 0, 0])
