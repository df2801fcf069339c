"""Operations that are exact, or rounded once: they have the bits of the evaluation rules."""

import ml_dtypes
import numpy as np
import pytest

import volta_fn  # noqa: F401  # declares the primitives
from tests.targets.cpu.scalars.running import run
from tests.targets.scalar_samples import BOOL, CASES, FLOATS, INTEGERS, assert_same_bits, operands, samples
from volta_fn import dtypes
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.targets.cpu import scalars

pytest.importorskip("llvmlite")


def check(op, arrays, lanes=16, **params):
    """Machine code against the evaluation rule."""
    primitive = PRIMITIVES[op]
    with np.errstate(all="ignore"):
        expected = np.asarray(primitive.evaluate(*arrays, **params))
    assert scalars.supports(op, tuple(a.dtype for a in arrays), params)
    assert_same_bits(run(op, *arrays, out_dtype=expected.dtype, lanes=lanes, **params), expected)


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


@pytest.mark.parametrize("word", ["first", "second", "mixed"])
def test_random_words(word):
    check("threefry2x32_word", operands(4, np.dtype(np.uint32)), word=word)
