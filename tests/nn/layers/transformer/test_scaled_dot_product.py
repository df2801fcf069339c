"""scaled_dot_product_attention and causal masks against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.layers.transformer.oracle import check_against_torch
from tests.nn.torch_oracle import DTYPES, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

MASK = np.random.default_rng(3).random((2, 1, 5, 6)) < 0.7
MASK[..., 0] = True
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 4, 5, 8), (2, 4, 6, 8), {}),
    "scale": ((2, 4, 5, 8), (2, 4, 6, 8), {"scale": 0.3}),
    "causal": ((2, 4, 5, 8), (2, 4, 6, 8), {"is_causal": True}),
    "bool mask": ((2, 4, 5, 8), (2, 4, 6, 8), {"attn_mask": MASK}),
    "float mask": ((2, 4, 5, 8), (2, 4, 6, 8), {"attn_mask": numbers((4, 5, 6), "float32", 4)}),
    "grouped": ((2, 4, 5, 8), (2, 2, 6, 8), {"enable_gqa": True}),
    "no batch": ((4, 5, 8), (4, 6, 8), {"is_causal": True}),
    "no heads": ((5, 8), (6, 8), {"attn_mask": MASK[0, 0]}),
    "more axes": ((3, 2, 4, 5, 8), (3, 2, 4, 6, 8), {"attn_mask": MASK}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_torch(case, dtype):
    q, k, options = CASES[case]
    mask = options.get("attn_mask")
    mask = mask if mask is None or mask.dtype == bool else mask.astype(dtype)
    ours, theirs = dict(options), dict(options)
    if mask is not None:
        ours["attn_mask"], theirs["attn_mask"] = mask, torch.tensor(mask)
    inputs = [numbers(q, dtype, 0), numbers(k, dtype, 1), numbers((*k[:-1], 3), dtype, 2)]
    attend = torch.nn.functional.scaled_dot_product_attention
    check_against_torch(lambda _, *x: nn.scaled_dot_product_attention(*x, **ours), lambda *x: attend(*x, **theirs), None, inputs)


def test_is_dot_product_attention_in_another_layout():
    q, k, v = (numbers((2, 4, 5, 8), "float32", seed) for seed in range(3))
    turned = nn.dot_product_attention(*[x.swapaxes(1, 2) for x in (q, k, v)], is_causal=True)
    np.testing.assert_array_equal(nn.scaled_dot_product_attention(q, k, v, is_causal=True), turned.swapaxes(1, 2))


def test_mask_and_causality_together():
    q = numbers((1, 1, 5, 4), "float32")
    mask = MASK[:1, :, :, :5]
    both = nn.scaled_dot_product_attention(q, q, q, mask & np.tri(5, dtype=bool))
    np.testing.assert_array_equal(nn.scaled_dot_product_attention(q, q, q, mask, is_causal=True), both)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_queries_without_keys_weigh_all_alike(dtype):
    """By masks of any kind, together too: their results are the values' means, and nothing is NaN, derivatives neither."""
    q, k, v = (np.asarray(vf.random.normal(vf.random.key(i), (1, 3, 4)), np.float32).astype(dtype) for i in range(3))
    allowed = np.array([[True, True, True], [False, False, False], [False, True, True]])
    for least, of in ((-np.inf, dtype), (-np.inf, "float32"), (np.finfo(np.float32).min, "float32")):
        bias = np.where(allowed, np.float32(0), np.float32(least)).astype(of)
        for mask, causal in ((allowed, False), (bias, False), (bias, True)):
            attend = lambda q, k, v, mask=mask, causal=causal: nn.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
            out = np.asarray(attend(q, k, v), np.float32)
            tolerance = 1e-6 if dtype == "float32" else 1e-2  # three weights and values of size 1; bfloat16 has 8 bits. Seen: 1.3e-3
            np.testing.assert_allclose(out[0, 1], np.asarray(v, np.float32)[0].mean(0), atol=tolerance)
            gradients = vf.grad(lambda *x, attend=attend: (attend(*x) ** 2).sum().astype("float32"), (0, 1, 2))(q, k, v)
            assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in (out, *gradients))


def test_dropout_drops_weights():
    q, values = np.zeros((1, 1, 1, 4), np.float32), np.eye(1000, dtype=np.float32)[None, None]
    keys = np.zeros((1, 1, 1000, 4), np.float32)
    weights = nn.scaled_dot_product_attention(q, keys, values, dropout_p=0.25, key=vf.random.key(0))[0, 0, 0]
    np.testing.assert_allclose(np.unique(weights), [0, 1 / 750], rtol=1e-5)
    assert 0.2 < (np.asarray(weights) == 0).mean() < 0.3
    gradient = vf.grad(lambda v: nn.scaled_dot_product_attention(q, keys, v, None, 0.25, key=vf.random.key(0)).sum())(values)
    np.testing.assert_allclose(gradient[0, 0, :, 0], weights, rtol=1e-5)


def test_transforms_and_empty_arrays():
    q, k, v = (numbers((3, 4, 5, 8), "float32", seed) for seed in range(3))
    wanted = nn.scaled_dot_product_attention(q, k, v, MASK[0, 0, :, :5])
    call = lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, MASK[0, 0, :, :5])
    for actual in (vf.jit(call)(q, k, v), vf.vmap(call)(q, k, v), vf.vmap(call, 1, 1)(q, k, v)):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
    none = nn.scaled_dot_product_attention(q[:0], k[:0], v[:0])
    assert none.shape == (0, 4, 5, 8)
    np.testing.assert_array_equal(nn.scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0]), np.zeros_like(q))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    q, k, v = (numbers((2, 4, 5, 8), "float32", seed) for seed in range(3))
    result = nn.scaled_dot_product_attention(*[vf.numpy.asarray(x, dtype) for x in (q, k, v)], is_causal=True)
    assert result.dtype.name == dtype
    np.testing.assert_allclose(result.astype("float32"), nn.scaled_dot_product_attention(q, k, v, is_causal=True), atol=3e-2)


def test_causal_masks():
    np.testing.assert_array_equal(nn.causal_mask(3), np.tri(3, dtype=bool))
    np.testing.assert_array_equal(nn.causal_mask(2, 5, offset=2), np.tri(2, 5, 2, dtype=bool))
    np.testing.assert_array_equal(vf.jit(lambda n: nn.causal_mask(2, 5, offset=n))(2), np.tri(2, 5, 2, dtype=bool))


@pytest.mark.wide
def test_bad_arguments():
    x = np.ones((2, 4, 5, 8), np.float32)
    for k, v in ((x[:1], x[:1]), (x[:, :2], x[:, :2]), (x, x[:, :, :3]), (x[..., :4], x), (x[0], x[0])):
        with pytest.raises(ShapeError, match="heads that divide"):
            nn.scaled_dot_product_attention(x, k, v)
    with pytest.raises(ShapeError):
        nn.scaled_dot_product_attention(x, x[:, :3], x[:, :3], enable_gqa=True)
    with pytest.raises(ShapeError):
        nn.scaled_dot_product_attention(x[0, 0, 0], x[0, 0, 0], x[0, 0, 0])
    with pytest.raises(DTypeError, match="float32, float32, float64"):
        nn.scaled_dot_product_attention(x, x, x.astype(float))
    for mask in (np.ones((5, 4), bool), np.ones((1, 2, 4, 5, 5), bool), np.ones((3, 1, 5, 5), bool)):
        with pytest.raises(ShapeError, match="must broadcast"):
            nn.scaled_dot_product_attention(x, x, x, mask)
    with pytest.raises(DTypeError, match="True: may attend"):
        nn.scaled_dot_product_attention(x, x, x, np.ones((5, 5), np.int32))
    with pytest.raises(ArgumentError):
        nn.scaled_dot_product_attention(x, x, x, dropout_p=2.0)
    with pytest.raises(ArgumentTypeError, match="key"):
        nn.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
