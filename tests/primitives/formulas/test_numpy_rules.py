"""Quotients, rounding, powers and bits, against Python's integers and against JAX."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from volta_fn.primitives.formulas import numpy_values as scalar

SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
INTEGERS = SIGNED + UNSIGNED
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.fixture(autouse=True)
def quiet():
    """The caller of kernels silences floating-point warnings."""
    with np.errstate(all="ignore"):
        yield


def corners(dtype: type) -> np.ndarray:
    """Values of an integer dtype where arithmetic goes wrong."""
    info = np.iinfo(dtype)
    ends = {info.min, info.min + 1, info.max // 2, info.max - 1, info.max}
    return np.array(sorted(ends | {v for v in (-7, -3, -2, -1, 0, 1, 2, 3, 7, 8, 9) if v >= info.min}), dtype)


def pairs(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Return every pair of corners."""
    x, y = np.meshgrid(corners(dtype), corners(dtype))
    return x.ravel(), y.ravel()


def wrapped(value: int, dtype: type) -> int:
    """Return a Python integer reduced to the range of a dtype."""
    info = np.iinfo(dtype)
    return (value - info.min) % (info.max - info.min + 1) + info.min


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_quotients_round_toward_zero(dtype):
    x, y = pairs(dtype)
    quotients, rests = scalar.div(x, y), scalar.rem(x, y)
    assert quotients.dtype == rests.dtype == dtype
    for a, b, quotient, rest in zip(x.tolist(), y.tolist(), quotients.tolist(), rests.tolist(), strict=True):
        exact = -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        assert quotient == wrapped(exact, dtype)
        assert rest == (a if b == 0 else a - b * exact)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_quotients_powers_and_bits_match_jax(dtype):
    jax = pytest.importorskip("jax")
    x, y = pairs(dtype)
    with jax.enable_x64(True):
        for name in ("div", "rem", "shift_left", "shift_right_arithmetic", "shift_right_logical"):
            np.testing.assert_array_equal(getattr(scalar, name)(x, y), getattr(jax.lax, name)(x, y), err_msg=name)
        for name in ("population_count", "clz", "sign"):
            np.testing.assert_array_equal(getattr(scalar, name)(x), getattr(jax.lax, name)(x), err_msg=name)
        for power in (1, 2, 3, 5, 8):
            np.testing.assert_array_equal(scalar.integer_pow(x, y=power), jax.lax.integer_pow(x, power))


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_functions_match_jax(dtype):
    jax = pytest.importorskip("jax")
    values = np.array([-np.inf, -2.5, -1.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.5, 7.0, np.inf, np.nan]).astype(dtype)
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    with jax.enable_x64(True):
        for name in ("rem", "nextafter", "div"):
            np.testing.assert_array_equal(getattr(scalar, name)(x, y).astype(float), np.asarray(getattr(jax.lax, name)(x, y)).astype(float))
        for name in ("sign", "rsqrt", "cbrt", "logistic"):
            ours, theirs = (np.asarray(f(values)).astype(float) for f in (getattr(scalar, name), getattr(jax.lax, name)))
            np.testing.assert_allclose(ours, theirs, rtol=2 * float(ml_dtypes.finfo(dtype).eps), err_msg=name)
            if name != "sign":  # whose zero is NumPy's and the Array API's: 0.0 for -0.0
                np.testing.assert_array_equal(np.signbit(ours[ours == 0]), np.signbit(theirs[ours == 0]), err_msg=name)
        rounded = np.asarray(jax.lax.round(values))
    np.testing.assert_array_equal(scalar.round_half_away(values).astype(float), rounded.astype(float))
    np.testing.assert_array_equal(np.signbit(scalar.round_half_away(values)), np.signbit(rounded))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("exponent", [0.5, 0.3, -0.5, 2.5, np.nan])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (3, 1), (0, 5)])
def test_powers_of_minus_infinity_by_exponents_that_neighbours_share(dtype, exponent, shape):
    x = np.full((3, 5), -np.inf, dtype)
    x[1, 2:] = 2, -2, np.nan
    y = np.broadcast_to(np.full(shape, exponent, dtype), (0, 5) if 0 in shape else (3, 5))
    x = x[: len(y)]
    with np.errstate(invalid="ignore"):
        wanted = [
            [math.pow(a, b) if not (np.isfinite(a) and a < 0) else math.nan for a, b in zip(*rows, strict=True)]
            for rows in zip(x, y, strict=True)
        ]
        np.testing.assert_allclose(scalar.pow(x, y), np.reshape(wanted, y.shape), rtol=1e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (3, 1)])
def test_roots_of_negative_zero_are_zero_if_exponents_are_shared(dtype, shape):
    x = np.array([[-0.0, 0.0, 4.0]] * 3, dtype)
    result = scalar.pow(x, np.broadcast_to(np.full(shape, 0.5, dtype), x.shape))
    assert result.astype(float).tolist() == [[0.0, 0.0, 2.0]] * 3
    assert not np.signbit(result).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_just_below_one_half_rounds_to_zero(dtype):
    below = np.nextafter(dtype(0.5), dtype(0))
    assert scalar.round_half_away(np.array([below, -below])).tolist() == [0.0, -0.0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_nextafter_steps_by_one_bit(dtype):
    x = np.array([0.0, 1.0, -1.0, 3.5]).astype(dtype)
    bits = np.abs(scalar.nextafter(x, x + dtype(1)).view(np.int16).astype(int) - x.view(np.int16).astype(int))
    assert bits.tolist() == [1, 1, 1, 1]


def test_logistic_has_tails():
    x = np.array([-100.0, -88.0, 0.0, 88.0, 100.0], np.float32)
    np.testing.assert_allclose(scalar.logistic(x), 1 / (1 + np.exp(-x.astype(float))), rtol=1e-6, atol=1e-45)
    assert scalar.logistic(x)[0] > 0
    z = np.array([-800 + 1j, 800 + 1j, 1 - 2j])
    np.testing.assert_allclose(scalar.logistic(z), [0, 1, 1 / (1 + np.exp(-1 + 2j))], rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_sign_is_the_direction(dtype):
    x = np.array([0, 3 + 4j, -2j, -5]).astype(dtype)
    np.testing.assert_allclose(scalar.sign(x), [0, 0.6 + 0.8j, -1j, -1], rtol=1e-6)


@pytest.mark.parametrize("dtype", [*FLOATS, np.complex64, np.complex128])
@pytest.mark.parametrize("power", [-3, -2, -1, 0, 1, 2, 5, 10])
def test_integer_pow_rounds_once_or_few_times(dtype, power):
    x = np.array([0.5, -0.75, 1.25, 1.5, -2.0]).astype(dtype)
    result = scalar.integer_pow(x, y=power)
    assert result.dtype == dtype
    tolerance = 4 * float(ml_dtypes.finfo(np.zeros(1, dtype).real.dtype).eps)
    wide = complex if np.dtype(dtype).kind == "c" else float
    np.testing.assert_allclose(result.astype(wide), x.astype(wide) ** power, rtol=tolerance)


@pytest.mark.parametrize("dtype", SIGNED)
def test_integer_powers_with_negative_exponents_round_toward_zero(dtype):
    x = np.array([2, 1, -1, -1, 0, 3, -3, 5], dtype)
    y = np.array([-1, -5, -2, -3, -1, 3, 3, 0], dtype)
    assert scalar.pow(x, y).tolist() == [0, 1, 1, -1, 0, 27, -27, 1]


def test_float_powers():
    x, y = np.array([2.0, 0.0, -2.0, np.nan, 0.0]), np.array([0.5, 0.0, 3.0, 0.0, -1.0])
    np.testing.assert_array_equal(scalar.pow(x, y), [2.0**0.5, 1, -8, 1, np.inf])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_counts_of_bits(dtype):
    width = np.dtype(dtype).itemsize * 8
    x = corners(dtype)
    for value, ones, zeros in zip(x.tolist(), scalar.population_count(x).tolist(), scalar.clz(x).tolist(), strict=True):
        bits = format(value % 2**width, f"0{width}b")
        assert (ones, zeros) == (bits.count("1"), (bits + "1").index("1"))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_scalars_and_broadcasting(dtype):
    one = np.ones((), dtype)
    assert scalar.div(one, one).shape == scalar.rem(one, one).shape == scalar.integer_pow(one, y=3).shape == ()
    assert scalar.rem(np.ones((2, 1), dtype), np.ones((1, 3), dtype)).shape == (2, 3)
    assert scalar.div(np.ones((0, 2), dtype), one).shape == (0, 2)
