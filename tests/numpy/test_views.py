"""Views of bits as another dtype, and numbers with their bytes reversed: NumPy's own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

KINDS = ["int8", "uint8", "int16", "float16", "bfloat16", "int32", "uint32", "float32", "complex64"]


@pytest.mark.parametrize("wanted", [*KINDS, "bool"])
@pytest.mark.parametrize("source", [*KINDS, "bool"])
def test_views_are_numpys(source: str, wanted: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2, 16) if "bool" in (source, wanted) else np.arange(1, 17)
    x = bits.astype(np.uint8).view(np.dtype(source)).reshape(2, -1) if source != "bool" else bits.astype(bool).reshape(2, -1)
    actual = vf.jit(lambda x: x.view(wanted))(x)
    expected = x.view(np.dtype(wanted))
    assert actual.dtype == expected.dtype
    assert np.asarray(actual).tobytes() == expected.tobytes()
    assert actual.shape == expected.shape


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "uint2"])
def test_small_integers_are_packed_into_bytes(kind: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind))
    info = ml_dtypes.iinfo(dtype)
    x = np.resize(np.arange(info.min, info.max + 1), 8).astype(dtype)
    packed = vnp.asarray(x).view("uint8")
    mask = (1 << info.bits) - 1
    numbers = [int(v) & mask for v in x.astype(int)]
    per_byte = 8 // info.bits
    wanted = [sum(n << (info.bits * k) for k, n in enumerate(numbers[i : i + per_byte])) for i in range(0, 8, per_byte)]
    assert packed.tolist() == wanted
    np.testing.assert_array_equal(np.asarray(packed.view(dtype)).astype(int), x.astype(int))


def test_empty_and_scalar_views() -> None:
    assert vnp.zeros((3, 0), "float32").view("uint8").shape == (3, 0)
    assert vnp.zeros((0, 2), "float32").view("uint8").shape == (0, 8)
    assert vnp.float32(1.0).view("int32").item() == 0x3F800000
    with pytest.raises(ShapeError, match="scalar"):
        vnp.float32(1.0).view("uint8")
    with pytest.raises(ShapeError, match="whole number"):
        vnp.zeros(3, "uint8").view("uint16")


@pytest.mark.parametrize("kind", KINDS)
def test_reversed_bytes(kind: str) -> None:
    x = np.arange(48, dtype=np.uint8).view(np.dtype(kind)).reshape(2, -1)
    result = vf.jit(lambda x: x.byteswap())(x)
    assert np.asarray(result).tobytes() == x.byteswap().tobytes()
    assert vnp.asarray(x).tobytes() == x.tobytes()


def test_mistakes() -> None:
    with pytest.raises(ArgumentError, match="immutable"):
        vnp.ones(2).byteswap(inplace=True)
    with pytest.raises(DTypeError, match="whole bytes"):
        vnp.ones(2, "int4").byteswap()
