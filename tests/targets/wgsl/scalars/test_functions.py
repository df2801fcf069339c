"""Approximations: how many units in the last place they are off, against wider arithmetic, and special arguments."""

import itertools

import numpy as np
import pytest
import scipy.special

import volta_fn.primitives.elementwise.arithmetic  # declares the primitives
from tests.laws import subnormals
from tests.laws.subnormals import flushed
from tests.targets.scalar_functions import FLOAT32, FLOAT64, ORACLES, SPECIAL, UNITS, arguments, assert_within, edges, tail_of_range
from tests.targets.wgsl import running
from tests.targets.wgsl.scalars.running import Call, assert_reference, run
from volta_fn import dtypes
from volta_fn.core.primitive import PRIMITIVES

#: Units in the last place of float32 allowed, float64 not being at hand.
REFLECTED_UNITS = {"lgamma": 6.0, "digamma": 6.0}
REFLECTED = ("lgamma", "digamma")


@pytest.fixture(autouse=True)
def silent():
    """Special arguments are the point here."""
    with np.errstate(all="ignore"):
        yield


def results(ops, *arrays, capabilities=None):
    """Return the results of functions of the same operands."""
    calls = [Call(op, tuple(range(len(arrays))), arrays[0].dtype) for op in ops]
    return zip(ops, run(calls, arrays, capabilities), strict=True)


def check(ops, x, wide, units):
    """Functions of a float against their oracles."""
    for op, actual in results(ops, x):
        expected = {**ORACLES, **SPECIAL}[op](x.astype(wide))
        decided = ~(tail_of_range(expected, x.dtype) & np.isfinite(expected))
        if op in REFLECTED:
            decided &= ~(x < 0)
        if not running.capabilities().subnormals:
            decided &= ordinary(x) & ordinary(expected.astype(x.dtype))
        assert_within(actual[decided], expected[decided], units.get(op, 2.0), op)
        assert (np.signbit(actual) == np.signbit(expected))[decided & (expected == 0)].all(), op


def ordinary(x):
    """Mask numbers that are not, and whose small parts are not, such as the device may take for zeros."""
    return (flushed(x / 1024) * 1024 == x) | ~np.isfinite(x)


def test_float32():
    x = np.concatenate([arguments(FLOAT32, 1 << 16), edges(FLOAT32)])
    check([*ORACLES, *SPECIAL], x, np.float64, UNITS | REFLECTED_UNITS)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="the oracle needs a wider float")
def test_float64():
    x = np.concatenate([arguments(FLOAT64, 1 << 11), edges(FLOAT64)])
    check([*ORACLES], x, np.longdouble, {})


def test_special_functions_of_float64():
    x = np.concatenate([np.linspace(0.01, 6, 500), np.linspace(6, 26, 100)])
    for op, actual in results(SPECIAL, x):
        np.testing.assert_allclose(actual, SPECIAL[op](x), rtol=2e-13, err_msg=op)


@pytest.mark.parametrize("dtype, error", [(FLOAT32, 2e-5), (FLOAT64, 4e-12)], ids=str)
def test_reflected_functions(dtype, error):
    """Left of 0 the result is a difference, beside whose terms the error is small, not beside the result near its zeros."""
    x = np.random.default_rng(4).uniform(-30, -0.01, 2000).astype(dtype)
    x = x[np.abs(x - np.round(x)) > 0.05]
    for op, actual in results(REFLECTED, x):
        np.testing.assert_allclose(actual, SPECIAL[op](x.astype(np.float64)), rtol=0, atol=error, err_msg=op)


def test_where_fma_rounds_once():
    """That text is another one. Devices for tests may round twice, so little is asked."""
    x = np.concatenate([np.linspace(-8, 8, 2001), np.linspace(-300, 300, 501)]).astype(np.float32)
    for op, actual in results(
        [*[op for op in ORACLES if op != "tan"], "sqrt", "rsqrt"], x, capabilities=running.capabilities()._replace(fma=True)
    ):
        expected = {**ORACLES, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}[op](x.astype(np.float64)).astype(np.float32)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=op)


def test_exp_where_subnormal_numbers_are_zeros():
    """That text is another one, too."""
    x = np.concatenate([np.linspace(-90, 90, 20001).astype(FLOAT32), arguments(FLOAT32, 1 << 10), edges(FLOAT32)])
    ((_, actual),) = results(["exp"], x, capabilities=running.capabilities()._replace(subnormals=False))
    expected = np.exp(x.astype(np.float64))
    is_normal = ~(expected.astype(FLOAT32) < np.finfo(FLOAT32).tiny)
    assert_within(actual[is_normal], expected[is_normal], UNITS.get("exp", 2.0), "exp")
    assert (flushed(actual[~is_normal]) == 0).all()


def test_quotients_where_fma_rounds_once():
    """Infinity, NaN, and zeros with their signs are what they are.

    For the rest: where `fma` rounds twice, the remainder that corrects a quotient is known to half a unit in the last place of the
    dividend; the corrected quotient is rounded, and so is the expected one. That is one and a half units at most, of 2^-23 each.
    """
    values = edges(FLOAT32)
    x, y = [np.array(column, FLOAT32) for column in zip(*itertools.product(values, repeat=2), strict=True)]
    inside = (np.abs(x) < 1e37) | np.isinf(x) | np.isnan(x)  # rounded twice, the product of quotient and divisor may be infinite
    x, y = x[inside], y[inside]
    if not running.capabilities().subnormals:
        x, y = flushed(x), flushed(y)
    ((_, actual),) = results(["div"], x, y, capabilities=running.capabilities()._replace(fma=True))
    expected = x / y
    if not running.capabilities().subnormals:
        expected = np.where(ordinary(expected), expected, actual)
    np.testing.assert_allclose(actual, expected, rtol=1.5 * 2.0**-23, atol=3e-45)
    assert (np.signbit(actual) == np.signbit(expected))[expected == 0].all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_two_operands(dtype):
    values = edges(dtype)[:50]
    x, y = [np.array(column, dtype) for column in zip(*itertools.product(values, repeat=2), strict=True)]
    rng = np.random.default_rng(2)
    x = np.concatenate([x, rng.uniform(0, 10, 5000).astype(dtype), rng.normal(size=5000).astype(dtype)])
    y = np.concatenate([y, rng.normal(size=5000).astype(dtype) * 10, rng.integers(-20, 20, 5000).astype(dtype)])
    wide = np.float64 if dtype == FLOAT32 else np.longdouble
    if not running.capabilities().subnormals:
        x, y = flushed(x), flushed(y)
    for op, actual in results(["pow", "atan2"], x, y):
        expected = {"pow": np.power, "atan2": np.arctan2}[op](x.astype(wide), y.astype(wide))
        if not running.capabilities().subnormals:
            expected = np.where(ordinary(expected.astype(dtype)), expected, actual)
        assert_within(actual, expected, 2.0, op)
        assert (np.signbit(actual) == np.signbit(expected))[expected == 0].all(), op


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_exact_functions_of_two(name):
    dtype = dtypes.as_dtype(name)
    wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
    values = edges(wide).astype(dtype)
    x, y = [np.array(column, dtype) for column in zip(*itertools.product(values, repeat=2), strict=True)]
    a = arguments(wide, 1 << 12).astype(dtype)
    x, y = np.concatenate([x, a]), np.concatenate([y, np.random.default_rng(3).permutation(a)])
    for op, actual in results(["rem", "nextafter"], x, y):
        assert_reference(actual, PRIMITIVES[op].evaluate, [x, y])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_fused_multiply_add(name):
    dtype = dtypes.as_dtype(name)
    x, y, z = np.random.default_rng(6).normal(size=(3, 6000)).astype(dtype)
    z[:3000] = -x[:3000] * y[:3000]
    for values in (x, y, z):
        values[:5] = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    ((_, actual),) = results(["fma"], x, y, z)
    assert_reference(actual, PRIMITIVES["fma"].evaluate, [x, y, z])


def test_functions_that_are_sums():
    """Bessel functions, zeta, polygamma, and the inverse of erf, which is by the formulas of the evaluation rule."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-50, 50, 4000), 10.0 ** rng.uniform(-30, 30, 500), [0.0, -0.0, np.inf, -np.inf, np.nan]])
    for dtype, error in ((FLOAT32, 1e-6), (FLOAT64, 1e-14)):
        v = x.astype(dtype)
        for op, actual in results(["bessel_i0e", "bessel_i1e"], v):
            expected = {"bessel_i0e": scipy.special.i0e, "bessel_i1e": scipy.special.i1e}[op](v.astype(np.float64))
            np.testing.assert_allclose(actual, np.where(np.isinf(v), 0, expected), rtol=error, atol=1e-38, err_msg=f"{op} {dtype}")
        inside = np.concatenate([np.linspace(-0.99, 0.99, 4001), [1.0, -1.0, 1.5, np.nan]]).astype(dtype)
        ((_, actual),) = results(["erf_inv"], inside)
        np.testing.assert_allclose(actual, PRIMITIVES["erf_inv"].evaluate(inside), rtol=100 * np.finfo(dtype).eps)
        s, q = rng.uniform(1, 30, 3000), rng.uniform(-10, 30, 3000)
        s[:1000], q[:10], s[1:20:3] = np.round(s[:1000]), np.arange(-5, 5), np.nan
        s, q, order = s.astype(dtype), q.astype(dtype), rng.integers(-1, 12, 3000).astype(dtype)
        for op, operands in (("zeta", (s, q)), ("polygamma", (order, np.abs(q)))):
            ((_, actual),) = results([op], *operands)
            expected = PRIMITIVES[op].evaluate(*[v.astype(np.float64) for v in operands]).astype(dtype)
            np.testing.assert_allclose(actual, expected, rtol=4 * error, atol=1e-37, err_msg=f"{op} {dtype}")


def test_gamma():
    """To 4 ulp for positive float32; an exponential of its logarithm would have 30 at 34."""
    x = np.concatenate([np.linspace(0.01, 35.0, 20001), 10.0 ** np.arange(-37.0, 1), [36, 40, 1e30, np.inf, np.nan, 0.0, -0.0]])
    ((_, actual),) = results(["gamma"], x.astype(np.float32))
    expected = scipy.special.gamma(x.astype(np.float32).astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(actual, expected, rtol=4 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_floats(name):
    """All of them: the function of float32, rounded."""
    dtype = volta_fn.dtypes.as_dtype(name)
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    for op, actual in results(["exp", "log", "tanh", "logistic", "erf", "sin"], x):
        reference = lambda v, op=op: {**ORACLES, **SPECIAL}[op](v.astype(np.float64)).astype(np.float32)
        nearest = subnormals.expected(actual, reference, [x], preserved=running.capabilities().subnormals)
        apart = np.abs(actual.view(np.int16).astype(int) - nearest.view(np.int16).astype(int))
        nan = np.isnan(actual) & np.isnan(nearest)
        assert (apart[~nan] <= 1).all(), op
