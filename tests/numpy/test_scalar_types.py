"""Dtypes as callables stand for a dtype, and convert their argument."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp

NAMES = "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128".split()


@pytest.mark.parametrize("name", NAMES)
def test_as_a_dtype(name):
    kind = getattr(vnp, name)
    x = vnp.zeros(2, kind)
    assert x.dtype == kind
    assert kind == x.dtype
    assert x.dtype == vf.dtypes.as_dtype(kind) == np.dtype(kind)
    assert hash(kind) == hash(x.dtype.type)  # JAX's hash is that of NumPy's scalar type, not of the dtype
    assert x.dtype.type in {kind} and kind in {x.dtype.type}
    assert vnp.astype(vnp.ones(2), kind).dtype == kind
    assert vnp.issubdtype(x.dtype, kind)
    assert np.zeros(2, kind).dtype == kind
    assert pickle.loads(pickle.dumps(kind)) == kind
    assert kind.__name__ in repr(kind)


@pytest.mark.parametrize("name", NAMES)
def test_as_a_converter(name):
    kind = getattr(vnp, name)
    for value in (1, np.float64(1), vnp.ones(2), [1, 0]):
        got = kind(value)
        assert (got.dtype, got.weak_type) == (kind.dtype, False)
    assert vf.jit(kind)(1.0).dtype == kind


def test_different_types_differ():
    kinds = {getattr(vnp, name) for name in NAMES}
    assert len(kinds) == len(NAMES)
    assert vnp.float32 != vnp.float16
    assert vnp.float32 != "float32x"
    assert vnp.half == vnp.float16
    assert vnp.double == np.float64
    assert vnp.int_ == np.int32
    assert vnp.float_ == np.float32


def test_kinds():
    assert vnp.issubdtype(vnp.bfloat16, vnp.floating)
    assert vnp.issubdtype(np.int8, vnp.integer)
    assert not vnp.issubdtype(vnp.float32, vnp.complexfloating)
    assert vnp.isdtype(vnp.int8, "integral")
    assert vnp.isdtype(vnp.int8, (vnp.float32, vnp.int8))
    assert vnp.finfo(vnp.bfloat16).bits == 16
    assert vnp.iinfo(vnp.uint8).max == 255
    assert vnp.promote_types(vnp.int8, vnp.uint8) == vnp.int16
    assert vnp.result_type(vnp.ones(1, "float16"), 1.0) == vnp.float16
    assert vnp.can_cast(vnp.int8, vnp.bfloat16)


def test_scalars_of_numpy_are_instances():
    assert isinstance(np.float32(1), vnp.float32) and isinstance(np.dtype(vnp.bfloat16).type(1), vnp.bfloat16)
    assert not isinstance(np.float64(1), vnp.float32)
    assert not isinstance(1.0, vnp.float32) and not isinstance(vnp.float32(1), vnp.float32)
