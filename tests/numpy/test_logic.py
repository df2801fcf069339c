"""Comparisons and tests of elements against NumPy."""

from __future__ import annotations

import operator as operators

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import ALL, COMPLEX, FLOATS, REALS, check, sample
from volta_fn.errors import ArgumentTypeError, DTypeError

SPECIAL = np.array([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf], np.float32)


@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
def test_comparisons(name):
    for dtype in ALL if "equal" in name and name[0] in "en" else [np.dtype(bool), *REALS]:
        check(lambda xp, x, y: getattr(xp, name)(x, y), sample((3, 1), dtype, 1), sample((4,), dtype, 2))
    check(lambda xp, x, y: getattr(xp, name)(x, y), SPECIAL[:, None], SPECIAL)
    check(lambda xp, x, y: getattr(xp, name)(x, y), sample((4,), np.int8, 1), sample((4,), np.float16, 2))


@pytest.mark.wide
@pytest.mark.parametrize("signed", ["int8", "int32", "int64"])
@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
def test_unsigned_numbers_compare_with_signed_ones_by_value(name, signed):
    unsigned = np.array([0, 1, 127, 2**60, 2**60 + 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    info = np.iinfo(signed)
    others = np.array([info.min, -1, 0, 1, 127, info.max - 1, info.max, min(2**60 + 1, info.max)], signed)[:, None]
    operator = {"equal": "eq", "not_equal": "ne"}.get(name, name[0] + ("e" if "equal" in name else "t"))
    for x, y in ((unsigned, others), (others, unsigned)):
        expected = getattr(np, name)(x, y)
        for compare in (getattr(vnp, name), vf.jit(getattr(vnp, name)), getattr(operators, operator)):
            np.testing.assert_array_equal(compare(vnp.asarray(x), vnp.asarray(y)), expected)
        np.testing.assert_array_equal(vf.vmap(getattr(vnp, name), (None, 1))(unsigned[0], others), getattr(np, name)(unsigned[0], others).T)
    assert not vnp.array_equal(unsigned[3:4], np.array([2**60 + 1]))


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [d for d in REALS if d.kind in "iu"], ids=str)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_integers_of_python_compare_by_value(name, dtype):
    info = np.iinfo(dtype)
    values = np.array([[info.min, 0, 1], [7, info.max - 1, info.max]], dtype)
    compare = getattr(operators, name)
    for number in (info.min - 1, info.max + 1, -1, 300, -(2**40), 2**63, 2**70, -(2**70)):
        for call in (lambda x, n=number: compare(x, n), lambda x, n=number: compare(n, x)):
            expected = call(values)
            for way in (call, vf.jit(call), vf.vmap(call)):
                result = way(vnp.asarray(values))
                assert result.dtype == bool
                np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logical(name):
    for dtype in ALL:
        check(lambda xp, x, y: getattr(xp, name)(x, y), sample((4,), dtype, 1, -1, 1), sample((4,), dtype, 2, -1, 1))
    check(lambda xp, x, y: getattr(xp, name)(x, y), SPECIAL, sample((6,), np.int32, 2, 0, 1))


@pytest.mark.parametrize("name", ["logical_not", "isnan", "isinf", "isfinite", "isreal", "iscomplex"])
def test_elements(name):
    for dtype in ALL:
        check(lambda xp, x: getattr(xp, name)(x), sample((4,), dtype, 1, -1, 1))
    check(lambda xp, x: getattr(xp, name)(x), SPECIAL)
    pairs = np.stack(np.broadcast_arrays(SPECIAL[:, None], SPECIAL), -1)
    check(lambda xp, x: getattr(xp, name)(x), np.ascontiguousarray(pairs).view(np.complex64))


@pytest.mark.parametrize("name", ["isposinf", "isneginf"])
def test_signed_infinities(name):
    for dtype in [*FLOATS, np.dtype(np.int32)]:
        check(lambda xp, x: getattr(xp, name)(x), SPECIAL.astype(dtype) if dtype.kind != "i" else sample((3,), dtype))
    with pytest.raises(ArgumentTypeError, match=name):
        getattr(vnp, name)(1j)


def test_isclose():
    a = np.array([1.0, 1.0, np.nan, np.inf, np.inf, 0.0], np.float32)
    b = np.array([1.0 + 5e-6, 1.1, np.nan, np.inf, -np.inf, 1e-9], np.float32)
    for equal_nan in (False, True):
        check(lambda xp, a, b, e=equal_nan: xp.isclose(a, b, equal_nan=e), a, b)
        check(lambda xp, a, b, e=equal_nan: xp.allclose(a, b, equal_nan=e), a[:2], b[:2])
    for dtype in (np.int32, np.uint8, np.complex64, np.float64):
        check(lambda xp, a, b: xp.isclose(a, b, rtol=0.3), sample((6,), dtype, 1), sample((6,), dtype, 2))
    check(lambda xp, a, b: xp.isclose(a, b), np.array([True, False]), np.array([True, True]))


@pytest.mark.wide
def test_array_equal_and_equiv():
    x = sample((2, 3), np.float32)
    assert bool(vnp.array_equal(x, x.copy()))
    assert not bool(vnp.array_equal(x, x[:1]))
    assert not bool(vnp.array_equal([np.nan], [np.nan]))
    assert bool(vnp.array_equal([np.nan, 1.0], [np.nan, 1.0], equal_nan=True))
    assert bool(vnp.array_equiv(np.ones((2, 3)), np.ones(3)))
    assert not bool(vnp.array_equiv(np.ones(2), np.ones(3)))
    assert bool(vnp.array_equal([], []))


@pytest.mark.wide
def test_kinds_of_objects():
    for value in (1, 2.0, 3j, np.float32(1), np.ones(2), np.ones(2, np.complex64), [1j], True):
        assert vnp.iscomplexobj(value) == np.iscomplexobj(value)
        assert vnp.isrealobj(value) == np.isrealobj(value)
    for value in (1, 2.0, "text", np.float32(1), [1], np.ones(2)):
        assert vnp.isscalar(value) == np.isscalar(value)
    assert vnp.isscalar(vnp.float32(1))
    assert not vnp.isscalar(vnp.ones(1))


@pytest.mark.wide
@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal"])
def test_complex_numbers_compare_by_real_part_then_imaginary_part(name):
    numbers = [complex(a, b) for a in (-1, 0, 2, np.inf) for b in (-3, 0, 1)]
    for dtype in COMPLEX:
        x = np.array(numbers, dtype)
        check(lambda xp, a, b: getattr(xp, name)(a, b), x[:, None], x)
        assert np.array_equal(vnp.array(x) < x[::-1], x < x[::-1])
        with pytest.raises(DTypeError, match="lt"):
            vf.lax.lt(x, x)
