"""Approximations: how many units in the last place they are off, against wider arithmetic, and special arguments."""

import itertools

import numpy as np
import pytest

import volta_fn.primitives.elementwise.arithmetic
import volta_fn.primitives.elementwise.special
from tests.targets.cpu.scalars.running import run
from tests.targets.scalar_functions import FLOAT32, FLOAT64, ORACLES, SPECIAL, UNITS, arguments, assert_within, edges, tail_of_range
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.primitives.formulas.trigonometric import TWO_OVER_PI, TWO_OVER_PI_BITS
from volta_fn.targets.cpu import scalars

pytest.importorskip("llvmlite")


@pytest.fixture(autouse=True)
def silent():
    """Special arguments are the point here."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("op", [*ORACLES, *SPECIAL])
def test_float32(op):
    x = np.concatenate([arguments(FLOAT32, 1 << 17), edges(FLOAT32)])
    expected = {**ORACLES, **SPECIAL}[op](x.astype(np.float64))
    actual = run(op, x, out_dtype=FLOAT32)
    decided = ~(tail_of_range(expected, FLOAT32) & np.isfinite(expected))
    assert_within(actual[decided], expected[decided], UNITS.get(op, 2.0))
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
    "ndtr": (4, [(-37, -6), (-6, 0), (0, 6)]),
    "gelu": (4, [(-37, -6), (-6, 0), (0, 6), (1e-300, 1e-290)]),
    "lgamma": (3, [(0, 3), (3, 20), (20, 1e6), (1e-300, 1e-290)]),
    "digamma": (3, [(0, 3), (3, 20), (20, 1e6), (1e-300, 1e-290)]),
}


def precise(op, x):
    """Compute with twenty digits more than float64 has."""
    mpmath = pytest.importorskip("mpmath")
    named = {"lgamma": mpmath.loggamma, "ndtr": mpmath.ncdf, "gelu": lambda v: v * mpmath.ncdf(v)}
    function = named.get(op) or getattr(mpmath, op)
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


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("op", ["bessel_i0e", "bessel_i1e"])
def test_bessel_functions(op, dtype):
    """The formulas of the evaluation rule, in float64."""
    x = np.concatenate([arguments(dtype, 1 << 10), edges(dtype), np.linspace(-20, 20, 999).astype(dtype)])
    expected = PRIMITIVES[op].evaluate(x)
    actual = run(op, x, out_dtype=dtype)
    np.testing.assert_allclose(actual, expected, rtol=2e-7 if dtype == FLOAT32 else 1e-14, atol=np.finfo(dtype).smallest_subnormal)
    assert (np.signbit(actual) == np.signbit(expected))[expected == 0].all()


def test_fused_multiply_add():
    rng = np.random.default_rng(6)
    x, y, z = rng.normal(size=(3, 4000)).astype(np.float32)
    z[:2000] = -x[:2000] * y[:2000]
    exact = (x.astype(np.float64) * y + z).astype(np.float32)  # the sum is exact, too, where the terms nearly cancel
    np.testing.assert_array_equal(run("fma", x, y, z, out_dtype=FLOAT32)[:2000], exact[:2000])
    np.testing.assert_allclose(run("fma", x, y, z, out_dtype=FLOAT32), exact, rtol=1.2e-7)


def test_digits_of_two_over_pi():
    """2/pi = 0.6366…, so that pi computed from it by whole numbers has the digits that everybody knows."""
    pi = (10**60 << (TWO_OVER_PI_BITS + 1)) // TWO_OVER_PI
    assert str(pi).startswith("314159265358979323846264338327950288419716939937510582097494")
    # and to the last bit: Machin's formula in whole numbers
    one = 1 << (TWO_OVER_PI_BITS + 64)

    def arctan_of_inverse(n):
        term, total, k = one // n, 0, 0
        while term:
            total += term // (2 * k + 1) * (-1) ** k
            term, k = term // (n * n), k + 1
        return total

    machin = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    assert (2 * one << TWO_OVER_PI_BITS) // machin == TWO_OVER_PI


def test_unsupported_are_refused():
    assert not scalars.supports("erf", (np.dtype(np.complex64),), {})
    assert not scalars.supports("bitcast_convert_type", (FLOAT32,), {"new_dtype": FLOAT64})
    assert not scalars.supports("sort", (FLOAT32,), {})


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("op", "expm1 log1p sin tan asin atan sinh tanh asinh atanh".split())
def test_the_smallest_numbers_are_their_own_results(op, dtype):
    least = np.finfo(dtype).smallest_subnormal
    x = np.array([k * least * sign for k in (1, 2, 3, 5, 1001) for sign in (1, -1)], dtype)
    np.testing.assert_array_equal(run(op, x, out_dtype=dtype), x)
