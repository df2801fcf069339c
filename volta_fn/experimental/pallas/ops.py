"""The operations of `jax.experimental.pallas.ops`.

They are attention, normalization and products by groups.

There they are kernels for one kind of hardware each; here they are functions of arrays, which this compiler makes loops and kernels of on
every target. Parameters that choose blocks, grids, warps or stages, and `interpret` and `debug`, have no effect: sizes need not be
multiples of blocks.

>>> import volta_fn as vf
>>> q = vf.numpy.ones((2, 5, 4, 8))
>>> mha(q, q, q, None, causal=True).shape
(2, 5, 4, 8)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax, nn
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, GradientError, ShapeError, UnsupportedError
from volta_fn.primitives.contraction import RaggedDotDimensionNumbers, ragged_dot, ragged_dot_general
from volta_fn.transforms.custom_derivatives import custom_vjp

__all__ = [
    "DEFAULT_MASK_VALUE", "BlockSizes", "FlashBlockSizes", "QuantizedTensor", "SegmentIds", "dequantize", "flash_attention", "gmm", "gqa",
    "int8_values", "layer_norm", "matmul", "mha", "mha_reference", "mqa", "paged_attention", "paged_attention_reference", "quantize",
    "rms_norm", "segment_mask", "softmax", "tgmm", "tpu_paged_attention",
]  # fmt: skip

#: The logit of a hidden key.
DEFAULT_MASK_VALUE = -0.7 * float(np.finfo(np.float32).max)
#: What int8 numbers stand for: ``values * scales / MAX_INT8``.
MAX_INT8 = 127.5


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of logits and sums: at least float32."""
    return dtypes.promote_types(dtype, np.float32)


# Attention of sequences.


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """Blocks of the kernels behind `mha`, which have no effect."""

    block_q: int
    block_k: int
    block_q_dkv: int | None = None
    block_kv_dkv: int | None = None
    block_q_dq: int | None = None
    block_kv_dq: int | None = None

    @classmethod
    def get_default(cls) -> BlockSizes:
        """Return the sizes that JAX takes."""
        return cls(128, 128, 32, 32, 32, 32)

    @property
    def has_backward_blocks(self) -> bool:
        """Whether all sizes of the gradient are there."""
        return None not in (self.block_q_dkv, self.block_kv_dkv, self.block_q_dq, self.block_kv_dq)


@dataclass(frozen=True)
class FlashBlockSizes:
    """Blocks of the kernels behind `flash_attention`, which have no effect."""

    block_q: int
    block_k_major: int
    block_k: int
    block_b: int
    block_q_major_dkv: int | None = None
    block_k_major_dkv: int | None = None
    block_k_dkv: int | None = None
    block_q_dkv: int | None = None
    block_k_major_dq: int | None = None
    block_k_dq: int | None = None
    block_q_dq: int | None = None

    @classmethod
    def get_default(cls, batch_size: int, num_heads: int, q_seq_len: int, kv_len: int, d_model: int) -> FlashBlockSizes:
        """Return the sizes that JAX takes."""
        return cls(128, 128, 128, 1, 128, 128, 128, 128, 128, 128, 128)

    @property
    def has_backward_blocks(self) -> bool:
        """Whether all sizes of the gradient are there."""
        dkv = (self.block_q_major_dkv, self.block_k_major_dkv, self.block_q_dkv, self.block_k_dkv)
        return None not in (*dkv, self.block_k_major_dq, self.block_k_dq, self.block_q_dq)


class SegmentIds(NamedTuple):
    """The segment of each query and of each key.

    The arrays have the shapes (batch, T) and (batch, S).
    """

    q: Any
    kv: Any


def segment_mask(q_segment_ids: Any, kv_segment_ids: Any) -> Array:
    """Return True where a query and a key are in the same segment.

    The shapes are (…, T) and (…, S), the result's is (…, T, S).
    """
    return vnp.expand_dims(q_segment_ids, -1) == vnp.expand_dims(kv_segment_ids, -2)


@custom_vjp
def without_gradient(values: Any) -> Any:
    """Return a tree of arrays whose gradient raises `GradientError`."""
    return values


def _refuse_gradient(_: Any, cotangents: Any) -> Any:
    raise GradientError("Kernel differentiation is not supported if return_residuals is True. Call it without residuals for the gradient")


without_gradient.defvjp(lambda values: (values, None), _refuse_gradient)


def mha(
    q: Any,
    k: Any,
    v: Any,
    segment_ids: Any,
    sm_scale: float = 1.0,
    causal: bool = False,
    block_sizes: BlockSizes = BlockSizes.get_default(),  # noqa: B008  # frozen
    backward_pass_impl: str = "triton",
    num_warps: int | None = None,
    num_stages: int = 2,
    grid: tuple[int, ...] | None = None,
    interpret: bool = False,
    debug: bool = False,
    return_residuals: bool = False,
) -> Any:
    """Compute softmax(sm_scale q kᵀ) v for each head.

    Args:
        q: shape (batch, T, heads, features).
        k, v: shape (batch, S, heads, features).
        segment_ids: shape (batch, S), or None: queries see keys of their own segment; T is S then.
        sm_scale: factor of the logits.
        causal: query t sees keys up to t only.
        return_residuals: return a list of the result and of the logarithms to base 2 of the sums of exponentials, of shape
            (batch, heads, T); it cannot be differentiated.

    >>> mha(*[vf.numpy.ones((1, 3, 2, 4))] * 3, vf.numpy.array([[0, 0, 1]])).shape
    (1, 3, 2, 4)
    """
    mask = None if segment_ids is None else segment_mask(segment_ids, segment_ids)[:, None]
    options: dict[str, Any] = {"mask": mask, "scale": sm_scale, "is_causal": causal}
    if not return_residuals:
        return nn.dot_product_attention(q, k, v, **options)
    wide = [x.astype(wide_dtype(x.dtype)) for x in (q, k, v)]  # the dtype of the logarithms
    out, sums = nn.dot_product_attention(*wide, return_residual=True, **options)
    return list(without_gradient((out.astype(q.dtype), sums.swapaxes(1, 2) / math.log(2))))


def mha_reference(q: Any, k: Any, v: Any, segment_ids: Any, sm_scale: float = 1.0, causal: bool = False) -> Array:
    """Return `mha` in the dtype of its sums, at least float32."""
    q, k, v = [x.astype(wide_dtype(x.dtype)) for x in (q, k, v)]
    out: Array = mha(q, k, v, segment_ids, sm_scale, causal)
    return out


def flash_attention(
    q: Any,
    k: Any,
    v: Any,
    ab: Any = None,
    segment_ids: SegmentIds | None = None,
    *,
    causal: bool = False,
    sm_scale: float = 1.0,
    block_sizes: FlashBlockSizes | None = None,
    debug: bool = False,
) -> Array:
    """Compute softmax(sm_scale (q kᵀ + ab)) v for each head.

    Args:
        q: shape (batch, heads, T, features).
        k, v: shape (batch, heads, S, features).
        ab: added to the logits, of shape (batch, heads, T, S).
        segment_ids: the segments of queries and keys; a query sees keys of its own.
        causal: query t sees keys up to t only.
        sm_scale: factor of the logits.

    >>> flash_attention(*[vf.numpy.ones((1, 2, 3, 4))] * 3).shape
    (1, 2, 3, 4)
    """
    mask = None if segment_ids is None else segment_mask(segment_ids.q, segment_ids.kv)[:, None]
    bias = None if ab is None else ab * sm_scale
    q, k, v = [vnp.swapaxes(x, 1, 2) for x in (q, k, v)]
    return vnp.swapaxes(nn.dot_product_attention(q, k, v, bias, mask, scale=sm_scale, is_causal=causal), 1, 2)


# Attention of one query for each head, as decoding needs it.


def _decode(q: Any, k: Any, v: Any, mask: Any, scale: float, soft_cap: float | None, mask_value: float) -> tuple[Array, Array, Array]:
    """Return sums of weighted values, sums of weights, and the largest logits.

    The weights are exponentials of logits less the largest; all are by example and head.
    """
    (batch, heads, features), groups = q.shape, k.shape[2]
    if heads % groups:
        raise ShapeError(f"{heads} heads of queries are no multiple of {groups} heads of keys")
    wide = wide_dtype(q.dtype)
    grouped = vnp.reshape(q, (batch, groups, heads // groups, features))
    logits = vnp.einsum("bgqd,bsgd->bgqs", grouped, k, preferred_element_type=wide) * scale
    if soft_cap is not None:
        logits = vnp.tanh(logits / soft_cap) * soft_cap
    if mask is not None:
        logits = vnp.where(mask[:, None, None], logits, mask_value)
    largest = logits.max(-1)
    weights = vnp.exp(logits - largest[..., None])
    sums = vnp.einsum("bgqs,bsgd->bgqd", weights, v.astype(wide))
    return (
        vnp.reshape(sums, (batch, heads, v.shape[-1])),
        vnp.reshape(weights.sum(-1), (batch, heads)),
        vnp.reshape(largest, (batch, heads)),
    )


def gqa(
    q: Any,
    k: Any,
    v: Any,
    start_idx: Any = None,
    kv_seq_len: Any = None,
    sm_scale: float | None = None,
    block_h: int = 16,
    block_k: int = 128,
    k_splits: int = 16,
    num_warps: int | None = None,
    num_stages: int = 2,
    grid: tuple[int, ...] | None = None,
    interpret: bool = False,
    debug: bool = False,
    return_residuals: bool = False,
    normalize_output: bool = True,
) -> Any:
    """Attend with one query for each head, of which groups share keys and values.

    Args:
        q: shape (batch, heads, features).
        k, v: shape (batch, S, groups, features); `groups` divides `heads`.
        start_idx, kv_seq_len: the first key that is seen, and the number of keys, by example or for all.
        sm_scale: factor of the logits (default 1 / sqrt(features)).
        return_residuals: return the result and the pair of sums of exponentials and largest logits, each of shape (batch, heads).
        normalize_output: whether to divide by the sums; without, `return_residuals` must be true, else `UnsupportedError` is raised.

    >>> gqa(vf.numpy.ones((1, 4, 8)), *[vf.numpy.ones((1, 3, 2, 8))] * 2, kv_seq_len=2).shape
    (1, 4, 8)
    """
    if not (normalize_output or return_residuals):
        raise UnsupportedError("gqa with normalize_output=False needs return_residuals=True: without the sums its result has no meaning")
    positions, mask = vnp.arange(k.shape[1]), None
    if start_idx is not None or kv_seq_len is not None:
        first, end = [
            vnp.broadcast_to(default if x is None else x, (q.shape[0],))[:, None]
            for x, default in ((start_idx, 0), (kv_seq_len, k.shape[1]))
        ]
        mask = (positions >= first) & (positions < end)
    scale = 1 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
    values, total, largest = _decode(q, k, v, mask, scale, None, DEFAULT_MASK_VALUE)
    out = (values / total[..., None] if normalize_output else values).astype(q.dtype)
    return (out, (total, largest)) if return_residuals else out


def mqa(
    q: Any,
    k: Any,
    v: Any,
    start_idx: Any = None,
    kv_seq_len: Any = None,
    sm_scale: float | None = None,
    block_h: int = 16,
    block_k: int = 256,
    k_splits: int = 16,
    num_warps: int | None = None,
    num_stages: int = 2,
    grid: tuple[int, ...] | None = None,
    interpret: bool = False,
    debug: bool = False,
    return_residuals: bool = False,
    normalize_output: bool = True,
) -> Any:
    """Attend with one query for each head, all of which share keys and values.

    `k` and `v` have the shape (batch, S, features); everything else is as of `gqa`, but that the result without `normalize_output` can be
    had by itself.
    """
    out = gqa(
        q,
        vnp.expand_dims(k, 2),
        vnp.expand_dims(v, 2),
        start_idx,
        kv_seq_len,
        sm_scale,
        return_residuals=True,
        normalize_output=normalize_output,
    )
    return out if return_residuals else out[0]


def paged_attention(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    block_tables: Any,
    lengths: Any,
    k_scales_pages: Any = None,
    v_scales_pages: Any = None,
    *,
    block_h: int = 16,
    pages_per_compute_block: int = 8,
    k_splits: int = 16,
    num_warps: int = 8,
    num_stages: int = 2,
    interpret: bool = False,
    debug: bool = False,
    mask_value: float = DEFAULT_MASK_VALUE,
    attn_logits_soft_cap: float | None = None,
) -> Array:
    """Attend with one query for each head, to keys and values in pages.

    Logits are not scaled.

    Args:
        q: shape (batch, heads, features).
        k_pages, v_pages: shape (groups, pages, page size, features).
        block_tables: the pages of each example, integers of shape (batch, pages of an example).
        lengths: how many keys each example has, int32 of shape (batch,); None for all.
        k_scales_pages, v_scales_pages: factors of keys and values, of shape (groups, pages, page size).
        mask_value: the logit of hidden keys.
        attn_logits_soft_cap: bounds logits smoothly: x becomes ``cap tanh(x / cap)``.

    >>> pages = vf.numpy.ones((2, 6, 4, 8))
    >>> paged_attention(vf.numpy.ones((1, 4, 8)), pages, pages, vf.numpy.array([[5, 0]]), vf.numpy.array([7])).shape
    (1, 4, 8)
    """
    if k_pages.shape != v_pages.shape or q.shape[-1] != k_pages.shape[-1] or len(block_tables) != len(q):
        raise ShapeError(
            f"paged_attention: pages of keys {k_pages.shape} and values {v_pages.shape}, queries {q.shape} and tables {block_tables.shape} "
            "do not fit: they have the same features, and queries and tables the same batch"
        )
    rows = []
    for pages, scales in ((k_pages, k_scales_pages), (v_pages, v_scales_pages)):
        values = pages[:, block_tables]  # (groups, batch, pages, page size, features)
        if scales is not None:
            values = values.astype(wide_dtype(q.dtype)) * scales[:, block_tables][..., None]
        groups, batch, *_, features = values.shape
        rows.append(vnp.moveaxis(vnp.reshape(values, (groups, batch, -1, features)), 0, 2))
    keys, values = rows
    return paged_attention_reference(q, keys, values, lengths, mask_value=mask_value, attn_logits_soft_cap=attn_logits_soft_cap)


def paged_attention_reference(
    q: Any, k: Any, v: Any, lengths: Any, *, mask_value: float = DEFAULT_MASK_VALUE, attn_logits_soft_cap: float | None = None
) -> Array:
    """Return `paged_attention` of keys and values that are not in pages.

    They have the shape (batch, S, groups, features).
    """
    mask = None if lengths is None else vnp.arange(k.shape[1]) < lengths[:, None]
    values, total, _ = _decode(q, k, v, mask, 1.0, attn_logits_soft_cap, mask_value)
    return (values / total[..., None]).astype(q.dtype)


class QuantizedTensor(NamedTuple):
    """An array as int8 numbers and factors; see `quantize`.

    `weight` has the numbers, `scales` the largest magnitudes along their last axis.
    """

    weight: Any
    scales: Any


def int8_values(x: Any, h: Any, dtype: Any = dtypes.bfloat16) -> Array:
    """Return what int8 numbers stand for, with the largest magnitudes `h`, in a dtype."""
    return x.astype(dtype) * h / MAX_INT8


def quantize(x: Any) -> QuantizedTensor:
    """Return an array as int8 numbers.

    They are scaled by the largest magnitude along the last axis.

    >>> quantize(vf.numpy.array([1.0, -0.5])).weight
    Array([127, -64], dtype=int8)
    """
    scales = abs(x).max(-1, keepdims=True)
    return QuantizedTensor(vnp.rint(x * (MAX_INT8 / scales)).astype(np.int8), scales)


def dequantize(x: QuantizedTensor, dtype: Any = dtypes.bfloat16) -> Array:
    """Return the numbers of a quantized array, in a dtype."""
    return int8_values(x.weight, x.scales, dtype)


def tpu_paged_attention(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    lengths: Any,
    page_indices: Any,
    *,
    mask_value: float = DEFAULT_MASK_VALUE,
    attn_logits_soft_cap: float | None = None,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    inline_seq_dim: bool = True,
) -> Array:
    """Return `paged_attention` of pages that may be `QuantizedTensor`.

    `page_indices` is its `block_tables`.
    """
    keys, values = [dequantize(x, wide_dtype(q.dtype)) if isinstance(x, QuantizedTensor) else x for x in (k_pages, v_pages)]
    return paged_attention(q, keys, values, page_indices, lengths, mask_value=mask_value, attn_logits_soft_cap=attn_logits_soft_cap)


# Normalization of rows.


def layer_norm(
    x: Any,
    weight: Any,
    bias: Any,
    num_warps: int | None = None,
    num_stages: int | None = 3,
    eps: float = 1e-5,
    backward_pass_impl: str = "triton",
    interpret: bool = False,
) -> Array:
    """Return rows of mean 0 and variance 1, times `weight`, plus `bias`.

    Statistics are computed in float32.

    >>> layer_norm(vf.numpy.array([[1.0, 3.0]]), 1.0, 0.0, eps=0.0)
    Array([[-1.,  1.]], dtype=float32)
    """
    wide = x.astype(wide_dtype(x.dtype))
    return _scaled(wide - wide.mean(-1, keepdims=True), weight, bias, eps, x.dtype)


def rms_norm(
    x: Any,
    weight: Any,
    bias: Any,
    num_warps: int | None = None,
    num_stages: int | None = 3,
    eps: float = 1e-5,
    backward_pass_impl: str = "triton",
    interpret: bool = False,
) -> Array:
    """Return rows divided by the root of their mean square.

    They are multiplied by `weight`, and `bias` is added; statistics are computed in float32.

    >>> rms_norm(vf.numpy.array([[3.0, 3.0]]), 1.0, 0.5, eps=0.0)
    Array([[1.5, 1.5]], dtype=float32)
    """
    return _scaled(x.astype(wide_dtype(x.dtype)), weight, bias, eps, x.dtype)


def _scaled(x: Array, weight: Any, bias: Any, eps: float, dtype: np.dtype) -> Array:
    return (x * lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias).astype(dtype)


def softmax(x: Any, *, axis: int = -1, num_warps: int = 4, interpret: bool = False, debug: bool = False) -> Array:
    """Return the softmax along the last axis, computed in float32.

    Raises `UnsupportedError` for other axes, as JAX does.

    >>> softmax(vf.numpy.zeros(2))
    Array([0.5, 0.5], dtype=float32)
    """
    if axis not in (-1, x.ndim - 1):
        raise UnsupportedError(f"softmax of pallas.ops reduces the last axis, not {axis}; use jax.nn.softmax")
    return nn.softmax(x.astype(wide_dtype(x.dtype)), axis).astype(x.dtype)


# Products.


def _sum_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.int32) if dtypes.issubdtype(dtype, np.integer) else wide_dtype(dtype)


def matmul(x: Any, y: Any, *, block_shape: tuple[int, int], block_k: int = 256, out_dtype: Any = None, debug: bool = False) -> Array:
    """Return the product of two matrices, summed in float32 or int32.

    The result has the dtype `out_dtype`; raises `ArgumentError` if it is None and the operands' dtypes differ.

    >>> matmul(vf.numpy.ones((2, 3)), vf.numpy.ones((3, 1)), block_shape=(128, 128)).ravel()
    Array([3., 3.], dtype=float32)
    """
    if out_dtype is None and x.dtype != y.dtype:
        raise ArgumentError(f"Cannot deduce output dtype for different input dtypes: {x.dtype.name}, {y.dtype.name}. Give out_dtype")
    return vnp.matmul(x, y, preferred_element_type=_sum_dtype(x.dtype)).astype(x.dtype if out_dtype is None else out_dtype)


#: A function of m, k and n that gives the sizes of tiles; they have no effect.
Tiling = tuple[int, int, int] | Callable[[int, int, int], Any] | None


def gmm(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = np.float32,
    tiling: Tiling = (128, 128, 128),
    group_offset: Any = None,
    existing_out: Any = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
) -> Array:
    """Multiply groups of consecutive rows, each by a matrix of its own.

    Args:
        lhs: rows, of shape (m, k).
        rhs: a matrix for each group, of shape (groups, k, n), or (groups, n, k) with `transpose_rhs`.
        group_sizes: how many rows each group has. There may be more than matrices: these belong to the groups from `group_offset` on.
        preferred_element_type: the dtype of the result.
        group_offset: the first group, an integer array without axes.
        existing_out: the rows of other groups, of the result's type; zeros without it.

    >>> matrices = vf.numpy.array([[[1.0]], [[10.0]]])
    >>> gmm(vf.numpy.array([[1.0], [2.0], [3.0]]), matrices, vf.numpy.array([2, 1])).ravel()
    Array([ 1.,  2., 30.], dtype=float32)
    """
    if existing_out is not None and existing_out.dtype != preferred_element_type:
        raise ArgumentError(f"Existing output dtype must match preferred_element_type, but it is {existing_out.dtype.name}")
    matrices = vnp.swapaxes(rhs, 1, 2) if transpose_rhs else rhs
    offset = 0 if group_offset is None else group_offset
    if len(matrices) != len(group_sizes):
        everything = vnp.zeros((len(group_sizes), *matrices.shape[1:]), matrices.dtype)
        matrices = lax.dynamic_update_slice_in_dim(everything, matrices, offset, 0)
    out = ragged_dot(lhs, matrices, group_sizes, preferred_element_type=_sum_dtype(lhs.dtype)).astype(preferred_element_type)
    if existing_out is None:
        return out
    ends = vnp.concatenate([vnp.zeros(1, group_sizes.dtype), vnp.cumsum(group_sizes)])
    rows = vnp.arange(len(lhs))
    return vnp.where(((rows >= ends[offset]) & (rows < ends[offset + len(rhs)]))[:, None], out, existing_out)


def tgmm(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = np.float32,
    tiling: Tiling = (128, 128, 128),
    group_offset: Any = None,
    num_actual_groups: int | None = None,
    existing_out: Any = None,
    interpret: bool = False,
) -> Array:
    """Multiply groups of consecutive columns by groups of rows.

    This is the gradient of `gmm` by its matrices.

    Args:
        lhs: columns, of shape (k, m).
        rhs: rows, of shape (m, n).
        group_sizes: how many columns and rows each group has.
        preferred_element_type: the dtype of the result.
        group_offset, num_actual_groups: the first group of the result, and the number of its groups (default: all).
        existing_out: added to the result.

    >>> tgmm(vf.numpy.ones((1, 3)), vf.numpy.ones((3, 1)), vf.numpy.array([2, 1])).ravel()
    Array([2., 1.], dtype=float32)
    """
    dimensions = RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
    out = ragged_dot_general(lhs, rhs, group_sizes, dimensions, preferred_element_type=_sum_dtype(lhs.dtype)).astype(preferred_element_type)
    if num_actual_groups is not None:
        out = lax.dynamic_slice_in_dim(out, 0 if group_offset is None else group_offset, num_actual_groups, 0)
    return out if existing_out is None else out + existing_out
