"""Elementwise arithmetic against NumPy's values and JAX's dtypes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.laws import limits, subnormals
from tests.numpy.oracle import ALL, BF16, BOOL, COMPLEX, FLOATS, INTEGERS, REALS, SIGNED, UNSIGNED, assert_close, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, BroadcastError, DTypeError

NUMBERS = REALS + COMPLEX
UNARY = {
    "negative": NUMBERS, "positive": NUMBERS, "absolute": ALL, "fabs": FLOATS + INTEGERS, "sign": REALS, "square": NUMBERS,
    "reciprocal": FLOATS + COMPLEX, "floor": REALS, "ceil": REALS, "trunc": REALS, "rint": FLOATS + COMPLEX,
    "signbit": FLOATS + SIGNED, "real": NUMBERS, "imag": NUMBERS, "conjugate": NUMBERS, "angle": NUMBERS, "nan_to_num": NUMBERS,
    "modf": FLOATS,
}  # fmt: skip
BINARY = {
    "add": ALL, "subtract": NUMBERS, "multiply": ALL, "divide": NUMBERS, "floor_divide": INTEGERS + FLOATS[2:], "remainder": REALS,
    "fmod": REALS, "maximum": ALL, "minimum": ALL, "fmax": REALS, "fmin": REALS, "hypot": FLOATS + INTEGERS, "copysign": FLOATS,
    "heaviside": FLOATS, "divmod": FLOATS[2:] + INTEGERS,
}  # fmt: skip


def nonzero(shape, dtype, seed):
    """Numbers of at least 1 in magnitude."""
    return sample(shape, dtype, seed, 1.0, 3.0)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    for dtype in UNARY[name]:
        check(lambda xp, x: getattr(xp, name)(x), sample((3, 4), dtype), floats=name == "angle")
    check(lambda xp, x: getattr(xp, name)(x), sample((0, 2), UNARY[name][0]))
    check(lambda xp, x: getattr(xp, name)(x), sample((), np.float32))


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    second = nonzero if name in ("divide", "floor_divide", "remainder", "fmod", "divmod") else sample
    for dtype in BINARY[name]:
        check(lambda xp, x, y: getattr(xp, name)(x, y), sample((3, 1, 4), dtype, 1), second((2, 1), dtype, 2), floats=name == "hypot")
    check(lambda xp, x, y: getattr(xp, name)(x, y), sample((0, 3), np.float32), second((3,), np.float32, 1))


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "maximum", "hypot", "power", "floor_divide"])
def test_operands_promote(name):
    for a in (np.int8, np.uint16, np.int32, np.float16, BF16, np.float32, bool):
        for b in (np.uint8, np.float16, np.float32, np.int16):
            x, y = nonzero((3,), a, 1), nonzero((3,), b, 2)
            check(lambda xp, x, y: getattr(xp, name)(x, y), x, y, tolerance=2e-2, floats=name == "hypot")


def test_python_scalars_are_weak():
    x = vnp.asarray(np.ones(2, np.float16))
    for result in (vnp.add(x, 1.5), vnp.hypot(x, 2.0), vnp.power(x, 2), vnp.maximum(3, x), vnp.copysign(2.0, x), vnp.clip(x, 0, 2.0)):
        assert (result.dtype, result.weak_type) == (np.dtype(np.float16), False)
    assert vnp.hypot(3.0, 4.0).weak_type
    assert vnp.add(vnp.asarray(np.int8(1)), 2).dtype == np.int8


def test_power():
    for dtype in FLOATS + COMPLEX:
        check(lambda xp, x, y: xp.power(x, y), nonzero((3,), dtype, 1), sample((3,), dtype, 2), tolerance=4e-2 if dtype == BF16 else 8e-3)
    for exponent in (0, 1, 2, 3, 5, -1, -2):
        check(lambda xp, x, n=exponent: xp.power(x, n), nonzero((4,), np.float32, 3))
    for dtype in INTEGERS:
        check(lambda xp, x, y: xp.power(x, y), sample((4,), dtype, 1), sample((4,), dtype, 2, 0, 3))
    check(lambda xp, x, y: xp.float_power(x, y), sample((4,), np.int32, 1, 1, 3), sample((4,), np.int32, 2, 1, 3), jax=False)


def test_special_values():
    with np.errstate(all="ignore"):
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0], np.float32)
        x, y = special[:, None], special[None, :]
        names = ("add", "divide", "hypot", "copysign", "fmax", "fmin", "maximum", "heaviside", "remainder", "fmod", "power", "nextafter")
        for name in names:
            got, want = np.asarray(getattr(vnp, name)(x, y)), getattr(np, name)(x, y)
            np.testing.assert_array_equal(got, want, err_msg=name)
            numbers = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers], err_msg=name)
        for name in ("floor", "ceil", "trunc", "rint", "sign", "signbit", "absolute", "negative", "nan_to_num", "square", "reciprocal"):
            got, want = np.asarray(getattr(vnp, name)(special)), getattr(np, name)(special)
            np.testing.assert_array_equal(got, want, err_msg=name)
            if name != "signbit":
                np.testing.assert_array_equal(np.signbit(got), np.signbit(want), err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=str)
def test_quotients_remainders_and_signs_of_zero_and_infinity(dtype):
    limits.check_divisions(vnp.divmod, dtype)
    limits.check_divisions(vf.jit(vnp.divmod), dtype)
    limits.check_sign(vnp.sign, dtype)
    limits.check_sign(vf.jit(vnp.sign), dtype)


def test_remainders_have_a_derivative_where_they_are_zero():
    for x, y in ((4.0, 2.0), (4.0, -2.0), (-0.0, 2.0), (0.0, -2.0), (5.0, -2.0)):
        assert vf.grad(vnp.remainder)(x, y) == 1.0
        assert vf.grad(vnp.remainder, argnums=1)(x, y) == -math.floor(x / y)
        assert vf.grad(vnp.floor_divide)(x, y) == 0.0


@pytest.mark.parametrize("dtype", [np.complex64, pytest.param(np.complex128, marks=pytest.mark.wide)])
@pytest.mark.parametrize("name", limits.COMPLEX)
def test_complex_functions_at_infinity(name, dtype):
    limits.check_complex(name, getattr(vnp, name), dtype)
    limits.check_complex(name, vf.jit(getattr(vnp, name)), dtype)


def test_division_by_zero_of_integers():
    zero = vnp.zeros(2, int)
    assert (vnp.array([7, -7]) / zero).tolist() == [np.inf, -np.inf]


def test_hypot_neither_overflows_nor_underflows():
    big, tiny = np.float32(3e38), np.float32(1e-40)
    assert np.isfinite(vnp.hypot(vnp.asarray(big), big / 4).item())
    assert_close(vnp.hypot(vnp.asarray(tiny), tiny), np.hypot(np.float64(tiny), np.float64(tiny)))
    slopes = vf.grad(lambda x: vnp.hypot(x, 4.0))(3.0), vf.grad(lambda x: vnp.hypot(x, x))(2.0)
    np.testing.assert_allclose([float(s) for s in slopes], [0.6, np.sqrt(2)], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_slopes_of_hypot_of_any_size(dtype):
    info = vnp.finfo(dtype)
    for size in (float(info.smallest_subnormal), float(info.tiny) / 4, 1.0, float(info.max) / 8):
        x, y = vnp.asarray([3 * size, -3 * size, 4 * size], dtype), vnp.asarray([4 * size, 4 * size, 4 * size], dtype)
        for slopes in (vf.vmap(vf.grad(vnp.hypot, (0, 1))), vf.jit(vf.vmap(vf.grad(vnp.hypot, (0, 1))))):
            expected = [[0.6, -0.6, 0.5**0.5], [0.8, 0.8, 0.5**0.5]]
            np.testing.assert_allclose(np.asarray(slopes(x, y), np.float64), expected, rtol=4 * float(info.eps))


@pytest.mark.parametrize("decimals", [0, 1, 2, -1, -2])
def test_round(decimals):
    for dtype in [np.dtype(np.float32), np.dtype(np.float64), *INTEGERS, np.dtype(np.complex64)]:
        check(lambda xp, x: xp.round(x, decimals), sample((20,), dtype, 1, -120, 120), jax=dtype.kind not in "iu")
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    check(lambda xp, x: xp.round(x), halves)
    check(lambda xp, x: xp.round(x, -1), np.array([5, 15, 25, 35, -5, -15, 14, 16], np.int32), jax=False)


@pytest.mark.parametrize(
    ("dtype", "x", "decimals", "wanted"),
    [
        (np.float16, 60000, 2, 60000), (np.float16, 1.25, 5, 1.25), (np.float16, 1250, -5, 0), (np.float16, -1.5, 400, -1.5),
        (np.float32, 1e30, 10, 1e30), (np.float32, 1.25, 39, 1.25), (np.float32, 1.25, 400, 1.25), (np.float32, 3e38, 1, 3e38),
        (np.float32, 1e38, -39, 0), (np.float32, -5, -50, 0), (np.float32, 0, 400, 0), (np.float32, np.inf, 400, np.inf),
        (np.float32, -np.inf, -400, -np.inf), (np.float32, np.nan, -400, np.nan), (np.float64, 1e300, 10, 1e300),
        (np.float64, 1.25, 400, 1.25), (np.float64, 1e300, -400, 0), (np.complex64, 1e30 + 1.25j, 10, 1e30 + 1.25j),
    ],
)  # fmt: skip
def test_round_by_powers_beyond_the_dtype(dtype, x, decimals, wanted):
    for function in (vnp.round, vf.jit(vnp.round, static_argnums=1)):
        np.testing.assert_array_equal(function(dtype(x), decimals), dtype(wanted))


def test_clip():
    for dtype in REALS:
        check(lambda xp, x: xp.clip(x, 0, 2), sample((5,), dtype))
        check(lambda xp, x: xp.clip(x, None, 2), sample((5,), dtype))
    low, high = np.array([0.0, 1.0, 2.0], np.float32), np.array([1.0, 0.0, 3.0], np.float32)
    check(lambda xp, x, lo, hi: xp.clip(x, lo, hi), sample((4, 3), np.float32), low, high)
    with pytest.raises(DTypeError, match="complex"):
        vnp.clip(np.ones(2, np.complex64), 0, 1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_frexp_and_ldexp(dtype):
    values = [0.0, -0.0, 1.0, -3.5, 1e38, 6.0, np.inf, -np.inf, np.nan, 1e-45, -3e-40, 1.1754942e-38, 1.1754944e-38, 6e-8, -4e-5, 5e-324]
    with np.errstate(over="ignore"):
        x = np.array(values).astype(dtype)
    mantissa, exponent = vnp.frexp(x)
    with np.errstate(all="ignore"):
        wanted = np.frexp(x.astype(np.float64))
    finite = np.isfinite(x)
    np.testing.assert_array_equal(np.asarray(mantissa).astype(np.float64), wanted[0])
    np.testing.assert_array_equal(np.asarray(exponent)[finite], wanted[1][finite])
    assert (mantissa.dtype, exponent.dtype) == (np.dtype(dtype), np.dtype(np.int32))
    again = x if subnormals.preserves_subnormals() else subnormals.flushed(x)
    np.testing.assert_array_equal(np.asarray(vnp.ldexp(mantissa, exponent))[finite], again[finite])


def test_derivatives_of_frexp_are_powers_of_two():
    x = np.array([6.0, -0.3, 0.0, 1e30, np.inf], np.float32)
    slopes = vf.vmap(vf.grad(lambda x: vnp.frexp(x)[0]))(x)
    np.testing.assert_array_equal(slopes, [2.0**-3, 2.0, 1.0, 2.0**-100, 1.0])


def test_ldexp():
    for dtype in FLOATS:
        check(lambda xp, x, n: xp.ldexp(x, n), sample((4,), dtype), np.array([0, 3, -3, 12], np.int8))
        check(lambda xp, x, n: xp.ldexp(x, n), sample((4,), dtype), np.array([2**31 - 1, -(2**31), 5000, -5000], np.int32))
    check(lambda xp, x, n: xp.ldexp(x, n), sample((2,), np.float32), np.array([2**32 - 1, 2], np.uint32), jax=False)
    check(lambda xp, x, n: xp.ldexp(x, n), sample((2,), np.float32), np.array([True, False]))
    with pytest.raises(ArgumentTypeError, match="integers"):
        vnp.ldexp(1.0, 2.0)


def test_nextafter_and_spacing():
    x = np.array([0.0, 1.0, -1.0, 3e38, 1e-45], np.float32)
    check(lambda xp, x: xp.nextafter(x, xp.ones_like(x)), x)
    check(lambda xp, x: xp.spacing(x), x, oracle=lambda w: np.spacing(w.astype(np.float32)))


def test_nan_to_num_replacements():
    x = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    check(lambda xp, x: xp.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-3.0), x)
    z = np.array([complex(np.nan, np.inf), 1 + 2j], np.complex64)
    got = np.asarray(vnp.nan_to_num(z))
    np.testing.assert_array_equal(got, np.nan_to_num(z))


def test_aliases():
    for alias, name in (("abs", "absolute"), ("conj", "conjugate"), ("divide", "true_divide"), ("mod", "remainder"), ("pow", "power")):
        assert getattr(vnp, alias) is getattr(vnp, name)


def test_derivatives():
    x = vnp.array([0.7, -1.3])
    for function, slope in (
        (vnp.square, lambda v: 2 * v), (vnp.reciprocal, lambda v: -1 / v**2), (vnp.absolute, np.sign),
        (lambda v: vnp.clip(v, -1.0, 1.0), lambda v: (np.abs(v) < 1).astype(float)),
        (lambda v: vnp.where(v > 0, v**3, 0.0), lambda v: np.where(v > 0, 3 * v**2, 0)), (vnp.round, np.zeros_like),
        (lambda v: v // 0.3, np.zeros_like),
    ):  # fmt: skip
        got = vf.grad(lambda v, f=function: vnp.sum(f(v)))(x)
        np.testing.assert_allclose(np.asarray(got), slope(np.asarray(x, np.float64)), rtol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vnp.add([1, 2], 3), ArgumentTypeError, "add: argument 1.*list"),
        (lambda: vnp.add(np.ones(2), np.ones(3)), BroadcastError, r"\(2,\).*\(3,\)"),
        (lambda: vnp.hypot(1j, 2.0), ArgumentTypeError, "hypot"),
        (lambda: vnp.subtract(np.True_, np.True_), DTypeError, "sub.*bool"),
        (lambda: vnp.add(np.uint8(1), "x"), ArgumentTypeError, "add: argument 2"),
        (lambda: vnp.floor_divide(vnp.ones(2, "int8"), 1000), ArgumentError, "floor_divide: the integer 1000 does not fit int8"),
        (lambda: vnp.ones(2, "int32") + 2**40, ArgumentError, "the integer 1099511627776 does not fit int32"),
        (lambda: vnp.floor(1j), ArgumentTypeError, "floor: x is complex"),
        (lambda: vnp.round(vnp.ones(2), out=vnp.ones(2)), ArgumentError, "round: .*out="),
    ],
)
def test_errors_name_function_and_argument(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "uint32"])
def test_bounds_beyond_the_dtype_clip_nothing(dtype):
    info = np.iinfo(dtype)
    values = np.array([info.min, 3, info.max], dtype)
    for low, high in ((info.min - 1, info.max + 1), (-(2**40), 5), (2, 2**40), (None, 2**70), (-(2**70), None)):
        for clip in (vnp.clip, vf.jit(vnp.clip, static_argnums=(1, 2))):
            result = clip(vnp.asarray(values), low, high)
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, np.clip(values, low, high))
    for bounds in ((info.max + 1, None), (None, info.min - 1)):
        with pytest.raises(ArgumentError, match="does not fit"):
            vnp.clip(vnp.asarray(values), *bounds)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("power_dtype", ["int32", "uint8"])
def test_integer_powers_are_converted_to_the_dtype_of_the_base(dtype: str, power_dtype: str) -> None:
    base, power = vnp.asarray([2, -3, 0.5, 1], dtype), vnp.asarray([3, 2, 1, 0], power_dtype)
    for result in (vf.lax.pow(base, power), vf.jit(vf.lax.pow)(base, power)):
        assert result.dtype == base.dtype
        np.testing.assert_array_equal(np.asarray(result, np.complex64), [8, 9, 0.5, 1])
    assert vf.grad(lambda x: vf.lax.pow(x, vnp.int32(3)))(2.0) == 12.0
    with pytest.raises(DTypeError, match="one dtype"):
        vf.lax.pow(power, base)


def test_derivatives_of_powers_at_an_exponent_of_zero():
    """Check x^y at y = 0: dx is y x^(y-1), dxdy is x^(y-1) (1 + y log x) = 1/x."""
    by_x = vf.grad(vf.lax.pow)
    both = (0, 1)
    for x in (4.0, 0.5):
        for second in (vf.hessian(vf.lax.pow, both), vf.jacrev(vf.jacrev(vf.lax.pow, both), both), vf.jit(vf.hessian(vf.lax.pow, both))):
            (xx, xy), (yx, yy) = second(x, 0.0)
            np.testing.assert_allclose([xx, xy, yx, yy], [0.0, 1 / x, 1 / x, np.log(x) ** 2], rtol=1e-6)
    assert [float(by_x(x, 0.0)) for x in (0.0, 2.0, np.inf)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["remainder", "fmod", "divmod"])
def test_remainders_of_integers_by_zero_are_zero(name: str) -> None:
    for dtype in ("int32", "uint32", "int8", "uint8"):
        x, y = np.array([5, 0, 7, 100], dtype), np.array([0, 0, 3, 0], dtype)
        ours, quotient = getattr(vnp, name), np.array([0, 0, 1, 0], dtype)
        for result in (ours(x, y), vf.jit(ours)(x, y)):
            np.testing.assert_array_equal(result[1] if name == "divmod" else result, quotient, strict=True)
    assert (int(vnp.array(-7) % 0), int(vnp.array(-7) % 3), int(7 % vnp.array(0))) == (0, 2, 0)


@pytest.mark.wide
def test_large_integers_stay_exact():
    x = np.array([2**62, -(2**62) + 1], np.int64)
    assert vnp.floor_divide(x, np.int64(3)).tolist() == (x // 3).tolist()
    assert vnp.remainder(x, np.int64(7)).tolist() == (x % 7).tolist()
    assert vnp.add(x, np.int64(1)).dtype == np.int64


@pytest.mark.parametrize("dtype", [*BOOL, *UNSIGNED], ids=str)
def test_absolute_of_unsigned_numbers(dtype):
    x = sample((3,), dtype)
    assert vnp.absolute(x).dtype == dtype
    np.testing.assert_array_equal(np.asarray(vnp.absolute(x)), x)


@pytest.mark.parametrize(("dtype", "exponents"), [("float16", 26), ("float32", 151), ("float64", 1076)])
def test_ldexp_rounds_once_and_frexp_is_exact_for_subnormal_numbers(dtype, exponents):
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        x = (rng.normal(size=20_000) * 2.0 ** rng.integers(-exponents, exponents - 4, 20_000)).astype(dtype)
        x[:3] = np.inf, -np.inf, np.nan
        powers = rng.integers(-2 * exponents, 2 * exponents, 20_000).astype(np.int32)
        wanted = np.ldexp(x, powers)
    np.testing.assert_array_equal(vf.jit(vnp.ldexp)(x, powers), wanted)
    for actual, expected in zip(vf.jit(vnp.frexp)(x[3:]), np.frexp(x[3:]), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["fmax", "fmin"])
def test_extremes_of_complex_numbers(name: str) -> None:
    a = np.array([1 + 2j, 1 + 2j, np.nan, -1], np.complex64)
    b = np.array([1 + 3j, 0 + 9j, 2, np.nan], np.complex64)
    np.testing.assert_array_equal(getattr(vnp, name)(a, b), getattr(np, name)(a, b))


def test_the_square_of_a_boolean_is_an_integer():
    result = vnp.square(np.array([True, False]))
    assert result.dtype == np.int32
    assert result.tolist() == [1, 0]
