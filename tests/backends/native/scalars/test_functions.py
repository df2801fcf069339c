"""Approximations: how many units in the last place they are off, against wider arithmetic, and special arguments."""

import itertools

import numpy as np
import pytest

import volta_fn
from tests.backends.native.scalars.running import run
from volta_fn.backends.native import scalars
from volta_fn.backends.native.scalars.functions.reduction import _BITS, _TWO_OVER_PI
from volta_fn.core.primitive import PRIMITIVES

pytest.importorskip("llvmlite")

special = pytest.importorskip("scipy.special")
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


@pytest.fixture(autouse=True)
def silent():
    """Special arguments are the point here."""
    with np.errstate(all="ignore"):
        yield


def logistic(x):
    """In the arithmetic of x."""
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1) / (1 + power)


ORACLES = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "logistic": logistic,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
}


def lgamma(x):
    """SciPy's, infinite at both infinities."""
    return np.where(np.isinf(x), np.inf, special.gammaln(x))


def digamma(x):
    """SciPy's, NaN at its poles."""
    return np.where((x <= 0) & (x == np.floor(x)), np.nan, special.digamma(x))


SPECIAL = {"erf": special.erf, "erfc": special.erfc, "lgamma": lgamma, "digamma": digamma}


def arguments(dtype, count):
    """Numbers of all sizes, by their bits, and more of those that matter."""
    rng = np.random.default_rng(11)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    step = (1 << (8 * dtype.itemsize)) // count
    bits = np.arange(count, dtype=unsigned) * unsigned.type(step) + rng.integers(0, step, count, unsigned)
    ranges = [(-1, 1), (-4, 4), (-20, 20), (-110, 110), (0, 2), (-1000, 1000), (1e4, 1e6)]
    usual = [rng.uniform(low, high, count // 8).astype(dtype) for low, high in ranges]
    return np.concatenate([bits.view(dtype), *usual])


def edges(dtype):
    """Arguments at which something changes."""
    info = np.finfo(dtype)
    bounds = [88.722839, 89.4159, 103.972, 87.33655, 128.0, 149.0, 709.782712893384, 745.13, 1024.0, 1074.0, np.pi, np.pi / 2]
    sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 8.0, 1e30, info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan, *bounds]
    values = np.array([*sizes, *[-x for x in sizes]], dtype)
    return np.concatenate([values, np.nextafter(values, dtype.type(0)), np.nextafter(values, dtype.type(np.inf))])


def assert_within(actual, expected, units):
    """`actual` is off by at most so many units in the last place of `expected`, which is of a wider dtype."""
    dtype = actual.dtype
    rounded = expected.astype(dtype)
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(dtype).max)).astype(expected.dtype)
    off = np.where(same, 0, np.abs(np.where(same, 0, actual.astype(expected.dtype) - expected)) / unit)
    assert not np.isnan(off).any()
    assert off.max() <= units


def tail_of_range(expected, dtype):
    """Results so near to overflow that rounding decides."""
    return np.abs(expected) > 0.999999 * float(np.finfo(dtype).max)


@pytest.mark.parametrize("op", [*ORACLES, *SPECIAL])
def test_float32(op):
    x = np.concatenate([arguments(FLOAT32, 1 << 17), edges(FLOAT32)])
    expected = {**ORACLES, **SPECIAL}[op](x.astype(np.float64))
    actual = run(op, x, out_dtype=FLOAT32)
    decided = ~(tail_of_range(expected, FLOAT32) & np.isfinite(expected))
    assert_within(actual[decided], expected[decided], 2.0)
    assert (np.signbit(actual) == np.signbit(expected))[expected == 0].all()


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="the oracle needs a wider float")
@pytest.mark.parametrize("op", ORACLES)
def test_float64(op):
    x = np.concatenate([arguments(FLOAT64, 1 << 14), edges(FLOAT64)])
    expected = ORACLES[op](x.astype(np.longdouble))
    actual = run(op, x, out_dtype=FLOAT64, lanes=8)
    assert_within(actual, expected, 2.0)
    assert (np.signbit(actual) == np.signbit(expected))[expected == 0].all()


#: For float64: units allowed, and where.
RANGES = {
    "erf": (2, [(-6, 6), (1e-300, 1e-290)]),
    "erfc": (4, [(-6, 0), (0, 6), (6, 26.4)]),
    "lgamma": (3, [(0, 3), (3, 20), (20, 1e6), (1e-300, 1e-290)]),
    "digamma": (3, [(0, 3), (3, 20), (20, 1e6), (1e-300, 1e-290)]),
}


def precise(op, x):
    """With twenty digits more than float64 has."""
    mpmath = pytest.importorskip("mpmath")
    function = {"erf": mpmath.erf, "erfc": mpmath.erfc, "lgamma": mpmath.loggamma, "digamma": mpmath.digamma}[op]
    with mpmath.workdps(36):
        return np.array([np.longdouble(mpmath.nstr(mpmath.re(function(mpmath.mpf(float(v)))), 30)) for v in x])


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="the oracle needs a wider float")
@pytest.mark.parametrize("op", RANGES)
def test_special_functions_of_float64(op):
    units, ranges = RANGES[op]
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.uniform(low, high, 120) for low, high in ranges])
    assert_within(run(op, x, out_dtype=FLOAT64, lanes=8), precise(op, x), units)


@pytest.mark.parametrize("op, error", [("lgamma", 1e-13), ("digamma", 2e-12)])
def test_reflected_special_functions_of_float64(op, error):
    """Left of 0 the result is a difference, beside whose terms the error is small, not beside the result near its zeros."""
    x = np.random.default_rng(4).uniform(-30, -0.01, 300)
    x = x[np.abs(x - np.round(x)) > 0.05]
    np.testing.assert_allclose(run(op, x, out_dtype=FLOAT64, lanes=8), precise(op, x).astype(np.float64), rtol=0, atol=error)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("op", [*ORACLES, *SPECIAL, "erf_inv"])
def test_every_number_of_lanes(op, dtype):
    """One lane, few, and more than a register holds; beside the evaluation rule, at all special arguments."""
    x = edges(dtype)
    expected = PRIMITIVES[op].evaluate(x)
    for lanes in (1, 4, 32):
        actual = run(op, x, out_dtype=dtype, lanes=lanes)
        np.testing.assert_allclose(actual, expected, rtol=64 * np.finfo(dtype).eps, atol=np.finfo(dtype).smallest_subnormal)
        assert (np.signbit(actual) == np.signbit(expected))[expected == 0].all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("op", ["pow", "atan2"])
def test_two_operands(op, dtype):
    values = edges(dtype)[:50]
    x, y = [np.array(column, dtype) for column in zip(*itertools.product(values, repeat=2), strict=True)]
    rng = np.random.default_rng(2)
    x = np.concatenate([x, rng.uniform(0, 10, 5000).astype(dtype), rng.normal(size=5000).astype(dtype)])
    y = np.concatenate([y, rng.normal(size=5000).astype(dtype) * 10, rng.integers(-20, 20, 5000).astype(dtype)])
    wide = np.float64 if dtype == FLOAT32 else np.longdouble
    expected = (np.power if op == "pow" else np.arctan2)(x.astype(wide), y.astype(wide))
    actual = run(op, x, y, out_dtype=dtype)
    assert_within(actual, expected, 2.0)
    assert (np.signbit(actual) == np.signbit(expected))[expected == 0].all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_remainders_are_exact(dtype):
    values = edges(dtype)
    x, y = [np.array(column, dtype) for column in zip(*itertools.product(values, repeat=2), strict=True)]
    a, b = arguments(dtype, 1 << 14), np.random.default_rng(3).permutation(arguments(dtype, 1 << 14))
    x, y = np.concatenate([x, a]), np.concatenate([y, b])
    expected = PRIMITIVES["rem"].evaluate(x, y)
    actual = run("rem", x, y, out_dtype=dtype)
    np.testing.assert_array_equal(actual, expected)
    assert (np.signbit(actual) == np.signbit(expected))[expected == 0].all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_inverse_error_function(dtype):
    """The same formulas as the evaluation rule, which differ by roundings only; near 1 these count."""
    x = np.concatenate([np.linspace(-0.99, 0.99, 4001), [1.0, -1.0, 1.5, np.nan]]).astype(dtype)
    expected = PRIMITIVES["erf_inv"].evaluate(x)
    np.testing.assert_allclose(run("erf_inv", x, out_dtype=dtype), expected, rtol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["exp", "log", "tanh", "logistic", "erf", "sin", "lgamma"])
def test_narrow_floats(op, dtype):
    """All of them: the function of float32, rounded."""
    dtype = volta_fn.dtypes.as_dtype(dtype)
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    expected = {**ORACLES, **SPECIAL}[op](x.astype(np.float64))
    nearest = expected.astype(np.float32).astype(dtype)
    actual = run(op, x, out_dtype=dtype)
    apart = np.abs(actual.view(np.int16).astype(int) - nearest.view(np.int16).astype(int))
    nan = np.isnan(actual.astype(np.float32)) & np.isnan(expected)
    assert (apart[~nan] <= 1).all()


@pytest.mark.parametrize("op", ["log", "log2", "exp", "exp2", "expm1", "tanh"])
def test_without_wide_instructions(op):
    """Vectors that do not fill a register go another way."""
    x = np.concatenate([arguments(FLOAT32, 1 << 15), edges(FLOAT32)])
    expected = ORACLES[op](x.astype(np.float64))
    decided = ~(tail_of_range(expected, FLOAT32) & np.isfinite(expected))
    assert_within(run(op, x, out_dtype=FLOAT32, lanes=4)[decided], expected[decided], 2.0)


def test_fused_multiply_add():
    rng = np.random.default_rng(6)
    x, y, z = rng.normal(size=(3, 4000)).astype(np.float32)
    z[:2000] = -x[:2000] * y[:2000]
    exact = (x.astype(np.float64) * y + z).astype(np.float32)  # the sum is exact, too, where the terms nearly cancel
    np.testing.assert_array_equal(run("fma", x, y, z, out_dtype=FLOAT32)[:2000], exact[:2000])
    np.testing.assert_allclose(run("fma", x, y, z, out_dtype=FLOAT32), exact, rtol=1.2e-7)


def test_digits_of_two_over_pi():
    """2/pi = 0.6366…, so that pi computed from it by whole numbers has the digits that everybody knows."""
    pi = (10**60 << (_BITS + 1)) // _TWO_OVER_PI
    assert str(pi).startswith("314159265358979323846264338327950288419716939937510582097494")
    # and to the last bit: Machin's formula in whole numbers
    one = 1 << (_BITS + 64)

    def arctan_of_inverse(n):
        term, total, k = one // n, 0, 0
        while term:
            total += term // (2 * k + 1) * (-1) ** k
            term, k = term // (n * n), k + 1
        return total

    machin = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    assert (2 * one << _BITS) // machin == _TWO_OVER_PI


def test_unsupported_are_refused():
    assert not scalars.supports("zeta", (FLOAT32, FLOAT32), {})
    assert not scalars.supports("bitcast_convert_type", (FLOAT32,), {"new_dtype": FLOAT64})
    assert not scalars.supports("sort", (FLOAT32,), {})
