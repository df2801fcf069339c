"""Products without contracted axes are elementwise: they keep the sign of zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax

ZEROS = np.array([-0.0, 0.0, 1.0, -2.0])
TARGETS = [vf.devices("cpu")[0], vf.devices("gpu")[0]]


@pytest.mark.parametrize("device", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_zeros_keep_their_signs(device: Any, dtype: str) -> None:
    x = np.asarray(vf.numpy.asarray(ZEROS, dtype))
    with vf.default_device(device):
        outer = vf.jit(lambda x, y: lax.dot_general(x, y, (((), ()), ((), ()))))(x, x)
        np.testing.assert_array_equal(np.signbit(np.asarray(outer, np.float32)), np.signbit(np.outer(ZEROS, ZEROS)))
        a, b = np.broadcast_to(x, (3, 4)), np.broadcast_to(x[:, None], (4, 3))
        stacked = vf.jit(lambda a, b: lax.dot_general(a, b, (((), ()), ((1,), (0,)))))(a, b)
        expected = np.broadcast_to((ZEROS * ZEROS)[:, None, None], (4, 3, 3))
        np.testing.assert_array_equal(np.asarray(stacked, np.float64), expected)


@pytest.mark.parametrize("dtypes", [("int8", "int32"), ("float32", "float64"), ("bool", "bool"), ("complex64", "complex64")])
def test_products_are_those_of_numpy(dtypes: tuple[str, str]) -> None:
    operand_dtype, result_dtype = dtypes
    draw = np.random.default_rng(0)
    x, y = (draw.integers(0, 100, shape).astype(operand_dtype) for shape in ((2, 3, 4), (5, 4, 2)))
    result = vf.jit(lambda x, y: lax.dot_general(x, y, (((), ()), ((2, 0), (1, 2))), preferred_element_type=np.dtype(result_dtype)))(x, y)
    assert result.dtype == result_dtype
    np.testing.assert_array_equal(result, np.einsum("bia,jab->abij", x.astype(result_dtype), y.astype(result_dtype)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64", "int8", "bool"])
def test_sums_of_one_product_are_products_plus_zero(dtype: str) -> None:
    x = np.asarray(vf.numpy.asarray(ZEROS.astype(bool) if dtype == "bool" else ZEROS, dtype))
    product = vf.jit(lambda x, y: lax.dot_general(x, y, (((0, 1), (2, 1)), ((), ()))))
    result = product(x.reshape(1, 1, 4), x.reshape(4, 1, 1))
    wide = x.astype("complex64" if dtype == "complex64" else "float64")
    assert result.dtype == dtype and "dot_general" not in product.lower(x.reshape(1, 1, 4), x.reshape(4, 1, 1)).as_text("kernels")
    np.testing.assert_array_equal(np.asarray(result).astype(wide.dtype), np.asarray(np.outer(wide, wide).astype(x.dtype), wide.dtype))
    if dtype not in ("bool", "int8"):
        assert not np.signbit(np.asarray(result).real.astype("float64"))[0, 1]  # 0 + -0
