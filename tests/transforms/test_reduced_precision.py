"""Rounding to fewer bits, against JAX, ml_dtypes and NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import ArgumentError, DTypeError


def numbers(dtype: type) -> np.ndarray:
    """Return numbers of many magnitudes, and special ones."""
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        spread = rng.normal(size=200) * 10.0 ** rng.integers(-8, 8, 200)
        return np.concatenate([spread, [np.inf, -np.inf, np.nan, 0.0, -0.0, 65504, 65520, -65520, 3e38, 6e-8]]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [(5, 10), (8, 7), (4, 3), (5, 2), (8, 23), (1, 2), (2, 0), (11, 52)])
def test_values_are_jaxs(dtype, bits):
    jax = pytest.importorskip("jax")
    x = numbers(dtype)
    wanted = np.asarray(jax.lax.reduce_precision(x, *bits))
    for reduce in (lax.reduce_precision, vf.jit(lax.reduce_precision, static_argnums=(1, 2))):
        got = np.asarray(reduce(x, *bits))
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


def test_formats_are_those_of_their_dtypes():
    x = numbers(np.float32)
    normal = (np.abs(x) > 1e-3) | (x == 0) | ~np.isfinite(x)  # below 2^-14 a float16 is subnormal, and here zero
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(np.asarray(lax.reduce_precision(x, 5, 10))[normal], x.astype(np.float16).astype(np.float32)[normal])
    np.testing.assert_array_equal(np.asarray(lax.reduce_precision(x, 8, 7)), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_derivatives_pass():
    assert vf.grad(lambda x: lax.reduce_precision(x, 5, 3) * 1.5)(2.1) == 1.5
    assert vf.vmap(lambda x: lax.reduce_precision(x, 5, 3))(np.float32([1.01, 2.02])).tolist() == [1.0, 2.0]


def test_bad_formats():
    with pytest.raises(ArgumentError, match="1 or more exponent bits"):
        lax.reduce_precision(1.0, 0, 3)
    with pytest.raises(ArgumentError, match="0 or more mantissa"):
        lax.reduce_precision(1.0, 3, -1)
    with pytest.raises(DTypeError, match="real floats"):
        lax.reduce_precision(np.int32(1), 5, 3)


def test_tangents_and_cotangents_are_rounded_too() -> None:
    rounded = lambda x: vf.lax.reduce_precision(x, 8, 7)
    x = np.float32(np.pi)
    wanted = np.float32(3.140625)
    assert vf.jvp(rounded, (x,), (x,)) == (wanted, wanted)
    out, pullback = vf.vjp(rounded, x)
    assert (out, pullback(x)[0]) == (wanted, wanted)
