"""The operations of `pallas.ops` beside JAX's kernels, interpreted, and NumPy."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, GradientError, ShapeError, UnsupportedError
from volta_fn.experimental.pallas import ops

SEGMENTS = np.array([[0] * 10 + [1] * 6, [0] * 16], np.int32)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def peer(module: str) -> Any:
    pytest.importorskip("jax")
    return importlib.import_module(f"jax.experimental.pallas.ops.{module}")


def assert_alike(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    ours, theirs = vf.tree.leaves(ours), vf.tree.leaves(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == np.asarray(b).dtype
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("causal", "segments", "dtype"), [(True, None, np.float32), (False, SEGMENTS, np.float32), (True, SEGMENTS, np.float16)]
)
def test_mha(causal: bool, segments: Any, dtype: Any) -> None:
    theirs = peer("gpu.attention")
    q, k, v = [normal(2, 16, 3, 8, seed=i, dtype=dtype) for i in range(3)]
    options = {"sm_scale": 0.7, "causal": causal}
    tolerance = 2e-5 if dtype == np.float32 else 4e-3
    expected = theirs.mha(q, k, v, segments, interpret=True, return_residuals=True, **options)
    arrays = [vnp.asarray(x) for x in (q, k, v)]
    segments = None if segments is None else vnp.asarray(segments)
    assert_alike(ops.mha(*arrays, segments, return_residuals=True, **options), expected, tolerance)
    assert_alike(ops.mha(*arrays, segments, block_sizes=ops.BlockSizes(5, 7), **options), expected[0], tolerance)
    reference = ops.mha_reference(*arrays, segments, **options)
    assert_alike(reference, theirs.mha_reference(q, k, v, None if segments is None else np.asarray(segments), **options), tolerance)
    assert_alike(ops.segment_mask(vnp.arange(3), vnp.arange(2)), theirs.segment_mask(np.arange(3), np.arange(2)))


def test_gradients_of_mha() -> None:
    q, k, v = [vnp.asarray(normal(1, 4, 2, 3, seed=i)) for i in range(3)]
    vf.test_util.check_grads(lambda *x: ops.mha(*x, vnp.array([[0, 0, 1, 1]]), causal=True), (q, k, v), order=1, modes=["rev"])
    with pytest.raises(GradientError, match="Kernel differentiation is not supported if return_residuals is True"):
        vf.grad(lambda q: ops.mha(q, k, v, None, return_residuals=True)[1].sum())(q)
    assert ops.BlockSizes.get_default().has_backward_blocks and not ops.BlockSizes(1, 2).has_backward_blocks


def test_flash_attention() -> None:
    theirs = peer("tpu.flash_attention")
    q, k, v = [normal(2, 3, size, 8, seed=i) for i, size in enumerate((16, 12, 12))]
    bias, segments = normal(2, 3, 16, 12), (SEGMENTS, SEGMENTS[:, :12])
    expected = theirs.mha_reference_no_custom_vjp(q, k, v, bias, theirs.SegmentIds(*segments), causal=True, sm_scale=0.5)
    ids = ops.SegmentIds(*[vnp.asarray(x) for x in segments])
    assert_alike(ops.flash_attention(*[vnp.asarray(x) for x in (q, k, v, bias)], ids, causal=True, sm_scale=0.5), expected)
    assert ops.FlashBlockSizes.get_default(1, 1, 1, 1, 1).has_backward_blocks


@pytest.mark.parametrize("limits", [{}, {"start_idx": 3, "kv_seq_len": np.array([40, 64], np.int32)}])
def test_attention_of_single_queries(limits: dict[str, Any]) -> None:
    theirs = peer("gpu.decode_attention")
    q, k, v = normal(2, 8, 16), normal(2, 64, 2, 16, seed=1), normal(2, 64, 2, 16, seed=2)
    arrays = [vnp.asarray(x) for x in (q, k, v)]
    options = {"return_residuals": True, **limits}
    assert_alike(ops.gqa(*arrays, **options), theirs.gqa_reference(q, k, v, **options))
    one = [arrays[0], *[x[:, :, 0] for x in arrays[1:]]]
    options["normalize_output"] = False
    assert_alike(ops.mqa(*one, **options), theirs.mqa_reference(q, k[:, :, 0], v[:, :, 0], **options))
    assert_alike(ops.mqa(*one, **limits), theirs.mqa(q, k[:, :, 0], v[:, :, 0], interpret=True, k_splits=1, **limits), 1e-4)
    with pytest.raises(UnsupportedError, match="return_residuals=True"):
        ops.gqa(*arrays, normalize_output=False)
    with pytest.raises(ShapeError, match="no multiple of"):
        ops.gqa(arrays[0][:, :3], *arrays[1:])


@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_attention_in_pages(soft_cap: float | None) -> None:
    theirs = peer("gpu.paged_attention")
    q, pages, values = normal(2, 4, 8), normal(2, 9, 4, 8, seed=1), normal(2, 9, 4, 8, seed=2)
    tables, lengths = np.array([[3, 0, 8], [1, 5, 2]], np.int32), np.array([7, 12], np.int32)
    rows = [np.moveaxis(x[:, tables].reshape(2, 2, 12, 8), 0, 2) for x in (pages, values)]
    options = {"attn_logits_soft_cap": soft_cap}
    expected = theirs.paged_attention_reference(q, *rows, lengths, **options)
    arrays = [vnp.asarray(x) for x in (q, pages, values, tables, lengths)]
    assert_alike(ops.paged_attention(*arrays, **options), expected)
    scales = [vnp.asarray(normal(2, 9, 4, seed=i)) for i in (3, 4)]
    scaled = ops.paged_attention(arrays[0], *[x * s[..., None] for x, s in zip(arrays[1:3], scales, strict=True)], *arrays[3:])
    assert_alike(ops.paged_attention(*arrays, *scales), scaled)
    quantized = [ops.quantize(x) for x in arrays[1:3]]
    out = ops.tpu_paged_attention(arrays[0], *quantized, arrays[4], arrays[3], pages_per_compute_block=1, **options)
    np.testing.assert_allclose(out, expected, atol=0.05)
    with pytest.raises(ShapeError, match="do not fit"):
        ops.paged_attention(arrays[0][:1], *arrays[1:])


def test_quantized_arrays() -> None:
    theirs = peer("tpu.paged_attention.quantization_utils")
    x = normal(3, 5)
    assert_alike(ops.quantize(vnp.asarray(x)), theirs.quantize_to_int8(x))
    assert_alike(
        ops.dequantize(ops.quantize(vnp.asarray(x)), np.float32), theirs.unquantize_from_int8(theirs.quantize_to_int8(x), np.float32)
    )


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_normalization(name: str) -> None:
    theirs = peer(f"gpu.{name}")
    x, weight, bias = normal(2, 3, 48), normal(48, seed=1), normal(48, seed=2)
    ours = getattr(ops, name)
    arrays = [vnp.asarray(a) for a in (x, weight, bias)]
    assert_alike(ours(*arrays), getattr(theirs, f"{name}_reference")(x, weight, bias))
    half = ours(arrays[0].astype("bfloat16"), *arrays[1:])
    assert half.dtype == "bfloat16"
    np.testing.assert_allclose(half.astype("float32"), ours(*arrays), rtol=0.02, atol=0.02)
    vf.test_util.check_grads(ours, arrays, order=1, modes=["rev"], rtol=1e-2, atol=1e-2)


def test_softmax() -> None:
    theirs = peer("gpu.softmax")
    for dtype in ("float32", "float16", "bfloat16"):
        x = vnp.asarray(normal(4, 125)).astype(dtype)
        assert_alike(ops.softmax(x), theirs.softmax(np.asarray(x), interpret=True), 2e-6 if dtype == "float32" else 1e-2)
    with pytest.raises(UnsupportedError, match="last axis"):
        ops.softmax(x, axis=0)


def test_products() -> None:
    x, y = vnp.asarray(normal(3, 5)), vnp.asarray(normal(5, 2))
    np.testing.assert_allclose(ops.matmul(x, y, block_shape=(8, 8)), np.asarray(x) @ np.asarray(y), rtol=1e-5)
    small = vnp.full((2, 4), 100, "int8")
    assert ops.matmul(small, small.T, block_shape=(8, 8), out_dtype="int32").tolist() == [[40000, 40000]] * 2
    with pytest.raises(ArgumentError, match="Cannot deduce output dtype"):
        ops.matmul(x, y.astype("bfloat16"), block_shape=(8, 8))


@pytest.mark.parametrize("transpose", [False, True])
def test_products_of_groups(transpose: bool) -> None:
    rows, matrices, sizes = normal(12, 4), normal(3, 4, 5, seed=1), np.array([5, 0, 7], np.int32)
    groups = np.repeat(np.arange(3), sizes)
    product = np.einsum("mk,mkn->mn", rows, matrices[groups])
    lhs, rhs, counts = vnp.asarray(rows), vnp.asarray(matrices.swapaxes(1, 2) if transpose else matrices), vnp.asarray(sizes)
    np.testing.assert_allclose(ops.gmm(lhs, rhs, counts, transpose_rhs=transpose), product, rtol=1e-5, atol=1e-5)
    assert ops.gmm(lhs, rhs, counts, np.dtype("bfloat16"), transpose_rhs=transpose).dtype == "bfloat16"
    shard = vf.jit(lambda offset: ops.gmm(lhs, rhs[1:], counts, group_offset=offset, transpose_rhs=transpose))(1)
    np.testing.assert_allclose(shard, np.where(groups[:, None] >= 1, product, 0), rtol=1e-5, atol=1e-5)
    out = ops.gmm(lhs, rhs[:1], counts, existing_out=vnp.full((12, 5), 9.0), transpose_rhs=transpose)
    np.testing.assert_allclose(out, np.where(groups[:, None] < 1, product, 9), rtol=1e-5, atol=1e-5)
    with pytest.raises(ArgumentError, match="Existing output dtype"):
        ops.gmm(lhs, rhs, counts, existing_out=vnp.zeros((12, 5), "bfloat16"))


def test_products_of_groups_of_columns() -> None:
    columns, rows, sizes = normal(4, 12), normal(12, 5, seed=1), np.array([5, 0, 7], np.int32)
    ends = np.cumsum(sizes)
    expected = np.stack([columns[:, e - s : e] @ rows[e - s : e] for s, e in zip(sizes, ends, strict=True)])
    lhs, rhs, counts = vnp.asarray(columns), vnp.asarray(rows), vnp.asarray(sizes)
    np.testing.assert_allclose(ops.tgmm(lhs, rhs, counts), expected, rtol=1e-5, atol=1e-5)
    part = ops.tgmm(lhs, rhs, counts, group_offset=vnp.int32(1), num_actual_groups=2, existing_out=vnp.ones((2, 4, 5)))
    np.testing.assert_allclose(part, expected[1:] + 1, rtol=1e-5, atol=1e-5)
    gradient = vf.grad(lambda m: (ops.gmm(lhs.T, m, counts) * rhs).sum())(vnp.zeros((3, 4, 5)))
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def test_paths_of_jax() -> None:
    from volta_fn.jax.experimental.pallas.ops.gpu.softmax import softmax
    from volta_fn.jax.experimental.pallas.ops.tpu import megablox
    from volta_fn.jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    assert (softmax, tgmm, megablox.gmm) == (ops.softmax, ops.tgmm, ops.gmm)
