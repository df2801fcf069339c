"""Rules of arithmetic: what they take away, what they must not, and that no bit changes at the edges of any dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.compiler.passes.common import algebra, left, names, passed, special
from volta_fn import lax

REALS = [np.int8, np.uint8, np.int32, np.uint64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
FLOATS = REALS[4:]
COMPLEX = [np.complex64, np.complex128]


def of(value: float, dtype: Any) -> Any:
    return np.asarray(value, dtype)


@pytest.mark.parametrize("dtype", REALS)
def test_units_go(dtype: Any) -> None:
    x = special(dtype)
    assert left(lambda x: lax.mul(x, of(1, dtype)), x) == []
    assert left(lambda x: lax.mul(of(1, dtype), x), x) == []
    assert left(lambda x: lax.sub(x, of(0, dtype)), x) == []
    assert left(lambda x: lax.div(x, of(1, dtype)), x) == []
    assert left(lambda x: lax.add(x, of(-0.0, dtype)), x) == []


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
def test_the_sign_of_zero_stays(dtype: Any) -> None:
    x = special(dtype)
    assert left(lambda x: lax.add(x, of(0.0, dtype)), x) == ["add"]
    assert left(lambda x: lax.sub(x, of(-0.0, dtype)), x) == ["sub"]
    assert left(lambda x: lax.mul(x, of(0.0, dtype)), x) == ["mul"]
    assert left(lambda x: lax.sub(of(0.0, dtype), x), x) == ["sub"]


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_units_that_touch_infinities_stay(dtype: Any) -> None:
    x = special(dtype)
    assert left(lambda x: lax.mul(x, of(1, dtype)), x) == ["mul"]
    assert left(lambda x: lax.div(x, of(1, dtype)), x) == ["div"]
    assert left(lambda x: lax.add(x, of(complex(0.0, -0.0), dtype)), x) == ["add"]
    assert left(lambda x: lax.add(x, of(complex(-0.0, -0.0), dtype)), x) == []
    assert left(lambda x: lax.sub(x, of(0.0, dtype)), x) == []


@pytest.mark.parametrize("dtype", FLOATS)
def test_division_by_powers_of_two_is_multiplication(dtype: Any) -> None:
    x = np.concatenate([special(dtype), np.linspace(-3, 3, 101).astype(dtype)])
    for divisor in (2, -4, 0.125, 4096):
        assert left(lambda x, d=divisor: lax.div(x, of(d, dtype)), x) == ["mul"]
    for divisor in (3, 0.0, -0.0, np.inf, np.nan, 0.1):
        assert left(lambda x, d=divisor: lax.div(x, of(d, dtype)), x) == ["div"]


def test_division_by_a_number_without_a_normal_reciprocal_stays() -> None:
    x = special(np.float32)
    assert left(lambda x: lax.div(x, np.float32(2.0**127)), x) == ["div"]
    assert left(lambda x: lax.div(x, np.float32(2.0**-149)), x) == ["div"]
    assert left(lambda x: lax.div(x, np.int32(2)), np.array([3, -3], np.int32)) == ["div"]


@pytest.mark.parametrize("dtype", REALS)
def test_signs_cancel(dtype: Any) -> None:
    x, y = special(dtype)[:, None], special(dtype)[None, :]
    assert left(lambda x: lax.neg(lax.neg(x)), x) == []
    assert left(lambda x, y: lax.add(x, lax.neg(y)), x, y) == ["sub"]
    assert left(lambda x, y: lax.add(lax.neg(x), y), x, y) == ["sub"]
    assert left(lambda x, y: lax.sub(x, lax.neg(y)), x, y) == ["add"]
    unsigned = np.dtype(dtype).kind == "u"
    assert left(lambda x: lax.abs(lax.neg(x)), x) == (["neg", "abs"] if unsigned else ["abs"])
    assert left(lambda x: lax.abs(lax.abs(x)), x) == ["abs"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_two_signs_of_a_product_or_quotient_cancel(dtype: Any) -> None:
    x, y = special(dtype)[:, None], special(dtype)[None, :]
    assert left(lambda x, y: lax.mul(lax.neg(x), lax.neg(y)), x, y) == ["mul"]
    assert left(lambda x, y: lax.div(lax.neg(x), lax.neg(y)), x, y) == ["div"]
    assert left(lambda x, y: lax.div(lax.neg(x), lax.neg(y)), *[np.array([-128, 3], np.int8)] * 2) == ["neg", "neg", "div"]


@pytest.mark.parametrize("dtype", COMPLEX)
def test_signs_of_complex_numbers_cancel(dtype: Any) -> None:
    x = special(dtype)[:, None]
    y = special(dtype)[None, ::7]
    assert left(lambda x, y: lax.add(x, lax.neg(y)), x, y) == ["sub"]
    assert left(lambda x: lax.conj(lax.conj(x)), x) == []


def test_repeated_rounding_and_extrema_go() -> None:
    x = special(np.float32)
    assert left(lambda x: lax.floor(lax.floor(x)), x) == ["floor"]
    assert left(lambda x: lax.sign(lax.sign(x)), x) == ["sign"]
    assert left(lambda x: lax.max(x, x), x) == []
    assert left(lambda x: lax.min(x, x), x) == []
    assert left(lambda x: lax.bitwise_not(lax.bitwise_not(x)), special(np.int8)) == []


@pytest.mark.parametrize("dtype", [*REALS, *COMPLEX])
def test_squares_are_products(dtype: Any) -> None:
    """But for complex numbers, whose square has a formula without a difference of squares."""
    assert left(lambda x: lax.integer_pow(x, 2), special(dtype)) == ["integer_pow" if dtype in COMPLEX else "mul"]
    assert left(lambda x: lax.integer_pow(x, 3), special(dtype)) == ["integer_pow"]


def test_powers_by_constants_where_they_are_exact() -> None:
    for dtype in (np.float32, np.float64):
        x = np.concatenate([special(dtype), np.random.default_rng(0).normal(size=1000).astype(dtype)])
        assert left(lambda x, d=dtype: lax.pow(x, of(1, d)), x) == []
        assert left(lambda x, d=dtype: lax.pow(x, of(2, d)), x) == ["mul"]
        assert left(lambda x, d=dtype: lax.pow(x, of(-1, d)), x) == ["div"]
        assert left(lambda x, d=dtype: lax.pow(x, of(0.5, d)), x) == ["pow"]
        assert left(lambda x, d=dtype: lax.pow(x, of(3, d)), x) == ["pow"]
    for kind in (np.int8, np.uint8, np.int64):
        x = special(kind)
        assert left(lambda x, k=kind: lax.pow(x, of(2, k)), x) == ["mul"]
        assert left(lambda x, k=kind: lax.pow(x, of(5, k)), x) == ["integer_pow"]
        assert left(lambda x, k=kind: lax.pow(x, of(0, k)), x) == ["pow"]


def test_parts_of_complex_numbers() -> None:
    x, y = special(np.float32), special(np.float32)[::-1].copy()
    assert left(lambda x, y: lax.real(lax.complex(x, y)), x, y) == []
    assert left(lambda x, y: lax.imag(lax.complex(x, y)), x, y) == []
    z = special(np.complex64)
    assert left(lambda z: lax.complex(lax.real(z), lax.imag(z)), z) == []
    assert left(lambda z: lax.complex(lax.imag(z), lax.real(z)), z) == ["imag", "real", "complex"]


def test_units_that_were_broadcast_keep_the_shape() -> None:
    ones = lambda shape: lax.broadcast_in_dim(np.float32(1), shape, ())
    assert left(lambda x: lax.mul(x, ones((14,))), special(np.float32)) == []
    after = passed(algebra, lambda x: lax.mul(x, ones((3, 14))), special(np.float32))
    assert names(after) == ["broadcast_in_dim"]
    assert after.out_avals[0].shape == (3, 14)
