"""Block-scaled products against quantisation in NumPy, and against exact products."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

ROWS = (((2,), (2,)), ((0,), (0,)))
RNG = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    """Return numbers of many magnitudes, with a row of zeros."""
    x = (RNG.normal(size=shape) * 10.0 ** RNG.integers(-4, 4, (*shape[:-1], 1))).astype(np.float32)
    x[0, 0] = 0.0
    return x


def dequantised(x: np.ndarray, block: int, number_type: Any, scale: Any) -> np.ndarray:
    """Round each block to a format whose scale is a function of the ratio of the largest numbers."""
    largest = float(ml_dtypes.finfo(number_type).max)
    blocks = x.reshape((*x.shape[:-1], -1, block)).astype(np.float64)
    scales = scale(np.abs(blocks).max(-1, keepdims=True) / largest)
    scaled = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
    return (scaled.astype(np.float32).astype(number_type).astype(np.float64) * scales).reshape(x.shape)


def mx_scale(ratio: np.ndarray) -> np.ndarray:
    return np.exp2(np.ceil(np.log2(np.where(ratio > 0, ratio, 1.0))))


def nv_scale(ratio: np.ndarray) -> np.ndarray:
    return ratio.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def test_mxfp8_rounds_each_block():
    x, y = numbers(2, 4, 64), numbers(2, 5, 64)
    wanted = np.einsum("bmk,bnk->bmn", *[dequantised(a, 32, ml_dtypes.float8_e4m3fn, mx_scale) for a in (x, y)])
    for product in (nn.scaled_dot_general, vf.jit(nn.scaled_dot_general, static_argnums=2)):
        np.testing.assert_allclose(product(x, y, ROWS), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("number_type", "scale_type", "other"),
    [
        (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e5m2),
        (ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn),
        (ml_dtypes.float8_e4m3fn, np.float32, ml_dtypes.float8_e4m3fn),
        (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, np.float32),
    ],
)
def test_products_of_scaled_numbers_lose_no_bits(number_type: Any, scale_type: Any, other: Any) -> None:
    """Whether they are computed in bfloat16, or in float32 for scales or numbers of more bits."""
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(2, 6, 64)).astype(np.float32).astype(number_type), rng.normal(size=(2, 5, 64)).astype(np.float32).astype(other)
    scales = [np.exp2(rng.integers(-3, 4, (2, n, 4))).astype(np.float32).astype(scale_type) for n in (6, 5)]
    wide = [a.astype(np.float64) * np.repeat(s.astype(np.float64), 16, 2) for a, s in zip((x, y), scales, strict=True)]
    wanted = np.einsum("bmk,bnk->bmn", *wide)
    np.testing.assert_allclose(nn.scaled_matmul(x, y, *scales), wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_nvfp4_has_a_scale_for_all():
    x, y, configs = numbers(1, 4, 32), numbers(1, 5, 32), [nn.get_scaled_dot_general_config("nvfp4", np.float32([0.5]))] * 3
    rounded = [0.5 * dequantised(a / 0.5, 16, ml_dtypes.float4_e2m1fn, nv_scale) for a in (np.clip(x, -300, 300), np.clip(y, -300, 300))]
    wanted = np.einsum("bmk,bnk->bmn", *rounded)
    got = nn.scaled_dot_general(np.clip(x, -300, 300), np.clip(y, -300, 300), ROWS, configs=configs)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("mode", ["mxfp8", "nvfp4"])
def test_gradients_are_near_exact_ones(mode):
    x, y, w = (RNG.normal(size=(1, 32, 64)).astype(np.float32) for _ in range(3))
    w = w[:, :, :32]
    loss = lambda product: lambda x, y: (product(x, y) * w).sum()
    configs = [nn.get_scaled_dot_general_config(mode)] * 3
    actual = vf.grad(loss(lambda x, y: nn.scaled_dot_general(x, y, ROWS, configs=configs)), (0, 1))(x, y)
    exact = vf.grad(loss(lambda x, y: vf.lax.dot_general(x, y, ROWS)), (0, 1))(x, y)
    for ours, wanted in zip(actual, exact, strict=True):
        error = np.abs(np.asarray(ours) - np.asarray(wanted)).max() / np.abs(np.asarray(wanted)).max()
        assert error < (0.05 if mode == "mxfp8" else 1e-6)  # 3 bits of mantissa; gradients of nvfp4 are not rounded
        assert mode == "nvfp4" or error > 1e-4


def test_any_dimension_numbers():
    x, y = RNG.normal(size=(4, 2, 3, 32)).astype(np.float32), RNG.normal(size=(32, 5, 4)).astype(np.float32)
    dims = (((3,), (0,)), ((0,), (2,)))
    exact = np.asarray(vf.lax.dot_general(x, y, dims))
    got = nn.scaled_dot_general(x, y, dims, "bfloat16")
    assert got.shape == exact.shape and got.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(np.asarray(got, np.float32), exact, atol=0.05 * np.abs(exact).max())


def test_scaled_matrices():
    a, b = RNG.normal(size=(2, 3, 8)).astype(np.float32), RNG.normal(size=(2, 5, 8)).astype(np.float32)
    a_scales, b_scales = RNG.uniform(0.5, 2, (2, 3, 2)).astype(np.float32), RNG.uniform(0.5, 2, (2, 5, 4)).astype(np.float32)
    wanted = np.einsum("bmk,bnk->bmn", a * np.repeat(a_scales, 4, 2), b * np.repeat(b_scales, 2, 2))
    np.testing.assert_allclose(nn.scaled_matmul(a, b, a_scales, b_scales), wanted, rtol=1e-5, atol=1e-5)
    assert nn.scaled_matmul(a, b, a_scales, b_scales, "float16").dtype == np.float16


def test_bad_arguments():
    x = np.ones((1, 2, 33), np.float32)
    with pytest.raises(ShapeError, match="33 contracted numbers"):
        nn.scaled_dot_general(x, x, ROWS)
    with pytest.raises(DTypeError, match="not float64"):
        nn.scaled_dot_general(x, x, ROWS, "float64")
    with pytest.raises(ArgumentError, match="got 1"):
        nn.scaled_dot_general(x, x, ROWS, configs=[nn.get_scaled_dot_general_config("mxfp8")])
    with pytest.raises(ArgumentError, match="implementation"):
        nn.scaled_dot_general(x, x, ROWS, implementation="cudnn")
    with pytest.raises(ArgumentError, match="neither"):
        nn.get_scaled_dot_general_config("int8")
    with pytest.raises(ArgumentError, match="no global scale"):
        nn.get_scaled_dot_general_config("mxfp8", np.float32([1.0]))
    with pytest.raises(ShapeError, match="has no blocks"):
        nn.scaled_matmul(x, x, np.ones((1, 2, 2)), np.ones((1, 2, 3)))
    with pytest.raises(ShapeError, match="first or last axis"):
        nn.scaled_matmul(x, np.ones((1, 2, 3), np.float32), np.ones((1, 2, 3)), np.ones((1, 2, 3)))
