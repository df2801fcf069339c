"""Operations that are exact, or rounded once: they have the bits of the evaluation rules."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import volta_fn  # noqa: F401  # declares the primitives
from tests.backends.native.scalars.running import run
from volta_fn import dtypes
from volta_fn.backends.native import scalars
from volta_fn.core.primitive import PRIMITIVES

pytest.importorskip("llvmlite")

INTEGERS = sorted(dtypes.INTEGERS, key=str)
FLOATS = sorted(dtypes.FLOATS, key=str)
BOOL = [np.dtype(bool)]


def samples(dtype):
    """Values of a dtype, with all that is special about it."""
    rng = np.random.default_rng(7)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        edges = np.array([0, 1, 2, 3, 7, info.bits - 1, info.bits, info.max, info.max - 1, info.min, info.min + 1], dtype)
        return np.concatenate([edges, -edges, rng.integers(info.min, info.max, 12, dtype, endpoint=True)])
    info = ml_dtypes.finfo(dtype)
    tiny = float(info.smallest_subnormal)
    edges = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 7.3, float(info.max), float(info.tiny), tiny, 3 * tiny, np.inf, np.nan]
    values = np.concatenate([edges, rng.normal(size=6), 10.0 ** rng.uniform(-6, 6, 8)])
    with np.errstate(all="ignore"):
        return np.concatenate([values, -values]).astype(dtype)


def operands(arity, dtype):
    """All combinations of samples, as arrays."""
    values = samples(dtype)
    chosen = values if arity < 3 else values[::3]
    return [np.array(column, dtype) for column in zip(*itertools.product(chosen, repeat=arity), strict=True)]


def assert_same_bits(actual, expected):
    """Equal, zeros with their signs, all NaNs alike."""
    assert actual.dtype == expected.dtype
    if actual.dtype in dtypes.FLOATS:
        with np.errstate(all="ignore"):
            nan = np.isnan(expected)
            assert np.array_equal(np.isnan(actual), nan)
        actual, expected = (np.where(nan, np.zeros((), x.dtype), x).view(f"u{x.dtype.itemsize}") for x in (actual, expected))
    np.testing.assert_array_equal(actual, expected)


def check(op, arrays, lanes=16, **params):
    """Machine code against the evaluation rule."""
    primitive = PRIMITIVES[op]
    with np.errstate(all="ignore"):
        expected = np.asarray(primitive.evaluate(*arrays, **params))
    assert scalars.supports(op, tuple(a.dtype for a in arrays), params)
    assert_same_bits(run(op, *arrays, out_dtype=expected.dtype, lanes=lanes, **params), expected)


COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
BITS = ["and", "or", "xor", "not"]
SHIFTS = ["shift_left", "shift_right_logical", "shift_right_arithmetic", "population_count", "clz"]
ARITHMETIC = ["add", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "clamp"]
ROUNDING = ["floor", "ceil", "round", "round_half_even", "is_finite", "sqrt", "rsqrt"]
CASES = [
    *itertools.product([*COMPARISONS, *BITS, "add", "mul", "max", "min", "clamp"], BOOL),
    *itertools.product([*COMPARISONS, *BITS, *SHIFTS, *ARITHMETIC, "rem", "pow"], INTEGERS),
    *itertools.product([*COMPARISONS, *ARITHMETIC, *ROUNDING], FLOATS),
    *itertools.product(["nextafter"], [np.dtype(np.float32), np.dtype(np.float64)]),
]


@pytest.mark.parametrize("op, dtype", CASES, ids=str)
def test_bits_of_the_evaluation_rule(op, dtype):
    check(op, operands(PRIMITIVES[op].arity, dtype), lanes=max(64 // dtype.itemsize, 1) if dtype.kind in "iu" else 16)


@pytest.mark.parametrize("op", ["add", "div", "max", "sign", "lt"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32", "uint64"])
def test_one_lane(op, dtype):
    dtype = dtypes.as_dtype(dtype)
    check(op, operands(PRIMITIVES[op].arity, dtype), lanes=1)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("power", [2, 3, 10, -1, -2, 0])
def test_integer_pow(dtype, power):
    if power >= 0 or dtype in dtypes.FLOATS:
        check("integer_pow", operands(1, dtype), y=power)


REAL = [*BOOL, *INTEGERS, *FLOATS]


@pytest.mark.parametrize("old", REAL, ids=str)
def test_conversion(old):
    for new in REAL:
        values = samples(old)
        check("convert_element_type", [values], new_dtype=new, weak_type=False)


def test_conversion_of_float64_rounds_once():
    rng = np.random.default_rng(1)
    halves = rng.integers(0, 0x7C00, 4000, np.uint16).view(np.float16).astype(np.float64)
    middle = np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float64) / 2 + halves / 2
    values = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), -middle * (1 + 1e-12)])
    check("convert_element_type", [values], new_dtype=np.dtype(np.float16), weak_type=False)


@pytest.mark.parametrize("old", [*INTEGERS, *FLOATS], ids=str)
def test_bits_as_another_dtype(old):
    for new in [*INTEGERS, *FLOATS]:
        if new.itemsize == old.itemsize:
            values = samples(old)
            check("bitcast_convert_type", [values], new_dtype=new)


def test_every_float16_and_bfloat16_survives():
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        check("bitcast_convert_type", [bits], new_dtype=dtype)
        check("convert_element_type", [bits.view(dtype)], new_dtype=np.dtype(np.float32), weak_type=False)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "float32", "float64"])
def test_select_n(dtype):
    x, y = operands(2, dtypes.as_dtype(dtype))
    check("select_n", [np.arange(x.size) % 3 == 0, x, y])
    check("select_n", [np.arange(x.size, dtype=np.int32) % 3, x, y, x[::-1].copy()])
