"""Rounding in training: values and gradients beside PyTorch's, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import volta_fn as vf
from volta_fn import nn, optim
from volta_fn.errors import ArgumentError, DTypeError, ShapeError


@pytest.mark.parametrize(("low", "high", "zero"), [(-128, 127, 0), (0, 255, 10), (-8, 7, -3)])
def test_one_scale(low: int, high: int, zero: int) -> None:
    x = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32) * 3
    value = torch.tensor(x, requires_grad=True)
    expected = torch.fake_quantize_per_tensor_affine(value, 0.07, zero, low, high)
    expected.backward(torch.tensor(x))
    actual, pull = vf.vjp(lambda x: nn.fake_quant(x, 0.07, zero, low, high), vf.numpy.asarray(x))
    np.testing.assert_allclose(actual, expected.detach(), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(pull(x)[0], value.grad)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_for_each_channel(axis: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 6)).astype(np.float32)
    scales, zeros = rng.uniform(0.01, 0.1, x.shape[axis]).astype(np.float32), rng.integers(-5, 5, x.shape[axis]).astype(np.int32)
    value = torch.tensor(x, requires_grad=True)
    expected = torch.fake_quantize_per_channel_affine(value, torch.tensor(scales), torch.tensor(zeros), axis % 2, -16, 15)
    expected.sum().backward()
    actual, pull = vf.vjp(lambda x: nn.fake_quant(x, scales, zeros, -16, 15, axis=axis), vf.numpy.asarray(x))
    np.testing.assert_allclose(actual, expected.detach(), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(pull(np.ones_like(x))[0], value.grad)


@pytest.mark.parametrize("zero", [0, 1, -3, 4])
def test_ties_are_rounded_to_even_before_the_offset_is_added(zero: int) -> None:
    x = (np.arange(-9, 10) / 2 * 0.25).astype(np.float32)
    expected = torch.fake_quantize_per_tensor_affine(torch.tensor(x), 0.25, zero, -6, 6)
    np.testing.assert_array_equal(nn.fake_quant(x, 0.25, zero, -6, 6), expected)
    by_channel = torch.fake_quantize_per_channel_affine(torch.tensor(x[None]), torch.tensor([0.25]), torch.tensor([zero]).int(), 0, -6, 6)
    np.testing.assert_array_equal(nn.fake_quant(x[None], np.float32([0.25]), np.int32([zero]), -6, 6, axis=0), by_channel)


def test_dtypes_and_scales_without_gradient() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        assert nn.fake_quant(vf.numpy.ones(3, dtype), 0.5).dtype == vf.numpy.dtype(dtype)
    assert vf.grad(lambda s: nn.fake_quant(vf.numpy.ones(3), s).sum())(0.5) == 0
    assert nn.fake_quant(vf.numpy.zeros((0, 2)), 0.5).shape == (0, 2)


def test_training_with_rounded_weights_learns() -> None:
    x = vf.random.normal(vf.random.key(0), (256, 8))
    y = x @ vf.random.normal(vf.random.key(1), (8, 1))
    w = vf.numpy.zeros((8, 1))
    optimizer = optim.adam(0.05)

    def loss(w: vf.Array) -> vf.Array:
        return vf.numpy.mean((x @ nn.fake_quant(w, 0.125, 0, -32, 31) - y) ** 2)

    state = optimizer.init(w)
    for _ in range(100):
        updates, state = optimizer.update(vf.grad(loss)(w), state, w)
        w = optim.apply_updates(w, updates)
    assert float(loss(w)) < 0.03 * float(vf.numpy.mean(y**2))


def test_errors() -> None:
    x = vf.numpy.ones((2, 3))
    with pytest.raises(DTypeError, match="float"):
        nn.fake_quant(vf.numpy.arange(3), 0.1)
    with pytest.raises(ArgumentError, match="quant_min"):
        nn.fake_quant(x, 0.1, 0, 5, 5)
    for scale, axis in ((vf.numpy.ones(2), None), (vf.numpy.ones(2), 1), (vf.numpy.ones(3), 2)):
        with pytest.raises(ShapeError, match="axis"):
            nn.fake_quant(x, scale, axis=axis)
