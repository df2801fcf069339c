"""Dtypes of 8 bits and less: they store numbers; arrays of them are moved and converted, and not computed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import dtypes, lax
from volta_fn.errors import DTypeError, GradientError

NAMES = sorted(dtype.name for dtype in dtypes.STORAGE)
NUMBERS = np.float32([1.5, 2.7, -3, 0.1, 300, -300, 7.6, 8.4, -8.4, np.nan, np.inf, -np.inf, 0.0])

MOVES: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(1, -1),
    "transpose": lambda x: x.reshape(2, 3).T,
    "slice": lambda x: x[1:4:2],
    "reverse": lambda x: x[::-1],
    "gather": lambda x: x[np.array([3, 1, 1])],
    "concatenate": lambda x: vnp.concatenate([x, x]),
    "stack": lambda x: vnp.stack([x, x], -1),
    "broadcast": lambda x: vnp.broadcast_to(x, (2, 6)),
    "select": lambda x: vnp.where(vnp.arange(6) > 2, x, x[::-1]),
    "pad": lambda x: vnp.pad(x, 1),
    "repeat": lambda x: vnp.repeat(x, 2),
    "dynamic slice": lambda x: lax.dynamic_slice(x, (2,), (3,)),
    "update": lambda x: x.at[1].set(x[0]),
    "scan": lambda x: lax.scan(lambda carry, row: (carry, row), 0.0, x)[1],
}


def converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert floats: those to integers saturate and truncate, NaN becomes 0."""
    if dtype not in dtypes.STORAGE_INTEGERS:
        return x.astype(dtype).astype(np.float32)
    info = ml_dtypes.iinfo(dtype)
    return np.trunc(np.clip(np.nan_to_num(x), info.min, info.max))


@pytest.mark.parametrize("name", NAMES)
def test_conversions(name: str) -> None:
    dtype = dtypes.as_dtype(name)
    there_and_back = lambda x: x.astype(name).astype("float32")
    for convert in (there_and_back, vf.jit(there_and_back), vf.vmap(there_and_back)):
        np.testing.assert_array_equal(convert(vnp.asarray(NUMBERS)), converted(NUMBERS, dtype))
    integers = np.arange(-4, 5, dtype=np.int32)
    np.testing.assert_array_equal(vnp.asarray(integers).astype(name).astype("int32"), integers.astype(dtype).astype(np.int32))
    assert vnp.asarray(np.ones(2, dtype)).dtype == getattr(vnp, name).dtype == dtype


@pytest.mark.parametrize("other", ["bool", "int8", "uint64", "float16", "bfloat16", "float64", "complex64"])
@pytest.mark.wide
def test_conversions_with_every_kind(other: str) -> None:
    x = np.array([0, 1, 2, 3]).astype(other)
    for name in ("float8_e5m2", "uint4"):
        back = vf.jit(lambda x, n=name: x.astype(n).astype(other))(x)
        np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("move", MOVES)
def test_elements_move(move: str) -> None:
    bits = np.array([3, 1, 4, 1, 5, 9], np.uint8)
    for name in ("float8_e4m3fn", "float8_e5m2"):
        x = vnp.asarray(bits.view(dtypes.as_dtype(name)))
        wanted = np.asarray(MOVES[move](vnp.asarray(bits)))
        for function in (MOVES[move], vf.jit(MOVES[move])):
            result = function(x)
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(np.asarray(result).view(np.uint8), wanted)


def test_bits_can_be_read() -> None:
    x = vnp.asarray([1.0, -2.0]).astype("float8_e5m2")
    assert lax.bitcast_convert_type(x, "uint8").tolist() == [0x3C, 0xC0]


@pytest.mark.parametrize(
    "compute",
    [lambda x: x + x, lambda x: x * 2.0, lambda x: x.sum(), lambda x: x == x, lambda x: x @ x, lambda x: -x, lambda x: vnp.exp(x)],
)
def test_computing_asks_for_a_conversion(compute: Callable[[Any], Any]) -> None:
    for function in (compute, vf.jit(compute)):
        with pytest.raises(DTypeError, match="float8_e4m3fn"):
            function(vnp.ones(3, "float8_e4m3fn"))


def test_no_promotion() -> None:
    with pytest.raises(DTypeError, match=r"float32 and float8_e5m2 do not promote.*x\.astype"):
        vnp.ones(2, "float8_e5m2") + vnp.ones(2)
    with pytest.raises(DTypeError, match="do not promote"):
        vnp.result_type("int4", "int8")
    assert vnp.result_type("int4", 1) == dtypes.as_dtype("int4")


def test_there_are_no_tangents() -> None:
    rounded = lambda x: x.astype("float8_e5m2").astype("float32")
    with pytest.raises(GradientError, match="stop_gradient"):
        vf.grad(rounded)(1.0)
    assert vf.grad(lambda x: x * rounded(lax.stop_gradient(x)))(3.0) == 3.0


def test_kinds_and_limits() -> None:
    assert vnp.issubdtype("float8_e5m2", np.floating) and not vnp.issubdtype("int4", np.floating)
    assert vnp.issubdtype("int4", np.signedinteger) and vnp.issubdtype("uint2", np.unsignedinteger)
    assert (vnp.iinfo("int4").min, vnp.iinfo("uint2").max, float(vnp.finfo("float8_e4m3fn").max)) == (-8, 3, 448.0)


def test_programs_name_them_as_jax_does() -> None:
    text = str(vf.make_jaxpr(lambda x: (x.astype("float8_e4m3fn"), x.astype("int4")))(1.0))
    assert ":f8_e4m3fn[]" in text and ":i4[]" in text
