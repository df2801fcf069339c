"""Weights packed by GPTQ and AWQ, beside their packing written out number by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import io, nn
from volta_fn.errors import ArgumentError, ShapeError, StateDictError


def matrix(bits: int, size: int = 64, out: int = 16, groups: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes (in, out), zero points and scales (groups, out), and the weights that they stand for."""
    rng = np.random.default_rng(bits)
    codes, zeros = rng.integers(0, 2**bits, (size, out)), rng.integers(1, 2**bits, (groups, out))
    scales = rng.uniform(0.5, 1.5, (groups, out)).astype(np.float16)
    group = np.arange(size) // (size // groups)
    return codes, zeros, scales, (codes - zeros[group]) * scales[group].astype(np.float64)


def packed(codes: np.ndarray, axis: int, bits: int, order: Any = None) -> np.ndarray:
    """Pack codes along an axis, `order[i]` in bits i * bits of each word."""
    each = 32 // bits
    order = range(each) if order is None else order
    shape = list(codes.shape)
    shape[axis] //= each
    words = np.zeros(shape, np.uint32)
    for word in np.ndindex(*shape):
        for i in range(each):
            place = list(word)
            place[axis] = word[axis] * each + order[i]
            words[word] |= np.uint32(int(codes[tuple(place)]) << (bits * i))
    return words.view(np.int32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_shift", [0, 1])
def test_gptq(bits: Any, zero_shift: int) -> None:
    codes, zeros, scales, expected = matrix(bits)
    arrays = packed(codes, 0, bits), packed(zeros - zero_shift, 1, bits), scales
    w = io.from_gptq(*arrays, np.arange(64, dtype=np.int32) // 32, bits=bits, zero_shift=zero_shift)
    assert w.shape == (64, 16) and w.dtype == np.float16 and w.group_size == 32
    np.testing.assert_allclose(w.dequantize("float32"), expected, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(nn.Linear(w)(vf.numpy.ones((2, 64))), np.broadcast_to(expected.sum(0), (2, 16)), rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(io.from_gptq(*[vf.numpy.asarray(a) for a in arrays], bits=bits, zero_shift=zero_shift).data, w.data)


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_in_the_order_of_activations(bits: Any) -> None:
    codes, zeros, scales, _ = matrix(bits)
    group = np.random.default_rng(0).permutation(np.arange(64) // 32).astype(np.int32)
    expected = (codes - zeros[group]) * scales[group].astype(np.float64)
    w = io.from_gptq(packed(codes, 0, bits), packed(zeros - 1, 1, bits), scales, group, bits=bits)
    assert isinstance(w, nn.PermutedArray) and (w.shape, w.T.shape, w.dtype) == ((64, 16), (16, 64), np.float16)
    np.testing.assert_allclose(w.dequantize("float32"), expected, rtol=1e-6, atol=1e-5)
    x = np.random.default_rng(1).normal(size=(2, 3, 64)).astype(np.float32)
    np.testing.assert_allclose(vf.jit(nn.Linear(w))(x), x @ expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(nn.Projection(w.T)(x), x @ expected, rtol=1e-4, atol=1e-3)
    back = np.random.default_rng(2).normal(size=(5, 16)).astype(np.float32)
    np.testing.assert_allclose(back @ w.T, back @ expected.T, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(w @ back.T, expected @ back.T, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(w.T.take(vf.numpy.array([3, 1])), expected.T[[3, 1]], rtol=1e-2, atol=1e-2)
    gradient = vf.grad(lambda x: (x @ w).sum())(vf.numpy.asarray(x))
    np.testing.assert_allclose(gradient, np.broadcast_to(expected.sum(1), x.shape), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(nn.dequantize(nn.Linear(w)).weight, expected, rtol=2e-3)
    for x in (np.ones((2, 63), np.float32), np.ones((), np.float32)):
        with pytest.raises(ShapeError, match="64"):
            x @ w
    with pytest.raises(ShapeError, match="order"):
        nn.PermutedArray(w.array, vf.numpy.arange(63))


def test_awq() -> None:
    codes, zeros, scales, expected = matrix(4)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    w = io.from_awq(packed(codes, 1, 4, order), packed(zeros, 1, 4, order), scales)
    np.testing.assert_allclose(w.dequantize("float32"), expected, rtol=1e-6, atol=1e-5)


def test_a_state_dict() -> None:
    codes, zeros, scales, expected = matrix(4)
    state = {
        "a.qweight": packed(codes, 0, 4), "a.qzeros": packed(zeros - 1, 1, 4), "a.scales": scales, "a.bias": np.ones(16),
        "a.g_idx": np.arange(64) // 32, "norm.scales": np.ones(3),
    }  # fmt: skip
    result = io.unpack_weights(state, "gptq")
    assert sorted(result) == ["a.bias", "a.weight", "norm.scales"]
    np.testing.assert_allclose(result["a.weight"].dequantize("float32"), expected, rtol=1e-6, atol=1e-5)
    del state["a.scales"]
    with pytest.raises(StateDictError, match="scales"):
        io.unpack_weights(state, "gptq")
    with pytest.raises(ArgumentError, match="method"):
        io.unpack_weights(state, "other")  # type: ignore[arg-type]  # to be refused


def test_errors() -> None:
    codes, zeros, scales, _ = matrix(4)
    arrays = packed(codes, 0, 4), packed(zeros, 1, 4), scales
    with pytest.raises(ShapeError, match="g_idx"):
        io.from_gptq(*arrays, np.minimum(np.arange(64) // 31, 1))
    with pytest.raises(ArgumentError, match="bits"):
        io.from_gptq(*arrays, bits=3)  # type: ignore[arg-type]  # to be refused
    with pytest.raises(ShapeError, match="groups"):
        io.from_gptq(arrays[0], arrays[1], scales[:, :3])
    with pytest.raises(ShapeError, match="int32"):
        io.from_gptq(arrays[0].astype(np.int64), arrays[1], scales)
