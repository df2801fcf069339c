"""Attention under masks that are described, not stored.

The names are those of `jax.experimental.pallas.ops.tpu.splash_attention`.

A `Mask` has a shape and gives any block of itself as a NumPy array. `make_splash_mha` makes a function of queries, keys and values from
one; it computes on every target by `nn.dot_product_attention`, so that sizes of blocks have no effect.

>>> import volta_fn as vf
>>> kernel = make_splash_mha_single_device(MultiHeadMask([CausalMask((4, 4))] * 2))
>>> kernel(*[vf.numpy.ones((2, 4, 8))] * 3).shape
(2, 4, 8)
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import nn
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.devices.sharding import PartitionSpec
from volta_fn.errors import ArgumentError, ShapeError, UnsupportedError
from volta_fn.experimental.pallas.ops import DEFAULT_MASK_VALUE, SegmentIds, segment_mask, wide_dtype, without_gradient
from volta_fn.tree.registry import register_pytree_node_class

__all__ = [
    "CausalMask", "ChunkedCausalMask", "ComputableMask", "FullMask", "LocalMask", "LogicalAnd", "LogicalOr", "Mask", "MultiHeadMask",
    "NumpyMask", "QKVLayout", "SplashAttentionKernel", "SplashBlockSizes", "attention_reference", "attention_reference_custom",
    "make_attention_reference", "make_causal_mask", "make_chunk_attention_mask", "make_local_attention_mask",
    "make_masked_mha_reference", "make_masked_mqa_reference", "make_random_mask", "make_splash_mha", "make_splash_mha_single_device",
    "make_splash_mqa", "make_splash_mqa_single_device",
]  # fmt: skip


# Masks.

Shape = tuple[int, ...]


class Mask:
    """A mask of queries by keys; True shows a key to a query.

    A subclass has a `shape` and ``mask[rows, columns]``. Masks of equal shapes are combined by `|` and `&`.
    """

    @property
    def shape(self) -> Shape:
        """The numbers of queries and of keys, of a `MultiHeadMask` after that of heads."""
        raise UnsupportedError(f"{type(self).__name__} must define the property shape")

    def __getitem__(self, index: Any) -> np.ndarray:
        raise UnsupportedError(f"{type(self).__name__} must define __getitem__")

    def __bool__(self) -> bool:
        raise UnsupportedError("Conversion to bool is unsupported: combine masks by | and &, not by `or` and `and`")

    def __or__(self, other: Mask) -> Mask:
        return LogicalOr(self, other)

    def __and__(self, other: Mask) -> Mask:
        return LogicalAnd(self, other)


@dataclass(frozen=True)
class _Pair(Mask):
    left: Mask
    right: Mask

    def __post_init__(self) -> None:
        if self.left.shape != self.right.shape:
            raise ShapeError(f"Invalid shape for other: {self.right.shape}, expected: {self.left.shape}. Masks must have the same shape")

    @property
    def shape(self) -> Shape:
        return self.left.shape


class LogicalOr(_Pair):
    """What either of two masks shows."""

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.left[index] | self.right[index]


class LogicalAnd(_Pair):
    """What both of two masks show."""

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.left[index] & self.right[index]


@dataclass(frozen=True)
class MultiHeadMask(Mask):
    """A mask for each head, of one shape.

    Raises `ArgumentError` if there is none, or one of several heads, `ShapeError` if the shapes differ.
    """

    masks: Sequence[Mask]

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", tuple(self.masks))
        if not self.masks or any(not isinstance(mask, Mask) or isinstance(mask, MultiHeadMask) for mask in self.masks):
            raise ArgumentError(f"MultiHeadMask takes masks of single heads, at least one; got {list(self.masks)!r:.200}")
        if len({mask.shape for mask in self.masks}) > 1:
            raise ShapeError(f"Unexpected mask shape: the masks of heads have the shapes {[mask.shape for mask in self.masks]}")

    @property
    def shape(self) -> Shape:
        """The numbers of heads, of queries and of keys."""
        return (len(self.masks), *self.masks[0].shape)

    def __getitem__(self, index: Any) -> np.ndarray:
        if not isinstance(index, tuple) or len(index) != 3:
            raise UnsupportedError(f"Unsupported slice: {index!r}; index heads, queries and keys, as in mask[:, :, :]")
        heads, *block = index
        if isinstance(heads, slice):
            return np.stack([mask[tuple(block)] for mask in self.masks[heads]])
        return self.masks[heads][tuple(block)]


@dataclass(frozen=True)
class NumpyMask(Mask):
    """A mask that is a NumPy array of bool with two axes.

    Raises `ArgumentError` for others.
    """

    array: np.ndarray

    def __post_init__(self) -> None:
        if self.array.ndim != 2 or self.array.dtype != np.bool_:
            raise ArgumentError(f"Expected a 2-dim array of bool, got {self.array.dtype.name}{list(self.array.shape)}")

    @property
    def shape(self) -> Shape:
        """The shape of the array."""
        return self.array.shape

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.array[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumpyMask) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((self.shape, self.array.tobytes()))


class ComputableMask(Mask):
    """A mask that is a function of the positions of queries and keys.

    `mask_function` takes integers, those of queries in a column and those of keys in a row. Masks are equal if their classes, shapes and
    `settings` are, or without settings their functions. Raises `ArgumentError` unless the square of `shard_count` divides the queries.
    """

    q_sequence: np.ndarray
    mask_function: Callable[[Any, Any], Any]

    def __init__(self, shape: tuple[int, int], mask_function: Callable[[Any, Any], Any], shard_count: int = 1, **settings: Any) -> None:
        if shape[0] % shard_count**2:
            raise ArgumentError(f"Shard count squared ({shard_count**2}) must divide Q seq_len ({shape[0]}) evenly.")
        self._shape = tuple(shape)
        self._settings = tuple(settings.values()) or (mask_function,)
        self.mask_function = mask_function
        self.q_sequence = np.arange(shape[0], dtype=np.int32)
        vars(self).update(settings)

    @property
    def shape(self) -> Shape:
        """The numbers of queries and of keys."""
        return self._shape

    def __getitem__(self, index: Any) -> np.ndarray:
        if not isinstance(index, tuple) or len(index) != 2 or not all(isinstance(i, slice) for i in index):
            raise UnsupportedError(f"Unsupported slice: {index!r}; index by two slices, as in mask[:8, 16:32]")
        rows, columns = self.q_sequence[index[0]], np.arange(self._shape[1], dtype=np.int32)[index[1]]
        return np.array(np.broadcast_to(self.mask_function(rows[:, None], columns[None]), (len(rows), len(columns))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComputableMask) and (type(self), self._shape, self._settings) == (
            type(other),
            other._shape,
            other._settings,
        )

    def __hash__(self) -> int:
        return hash((type(self), self._shape, self._settings))


def _show_all(rows: Any, columns: Any) -> bool:
    return True


class FullMask(ComputableMask):
    """A mask that shows all keys."""

    def __init__(self, _shape: tuple[int, int]) -> None:
        if not isinstance(_shape, tuple):
            raise ArgumentError(f"Unsupported shape type: {type(_shape)}")
        super().__init__(_shape, _show_all)


class CausalMask(ComputableMask):
    """A mask that shows query t the keys up to ``t + offset``."""

    offset: int

    def __init__(self, shape: tuple[int, int], offset: int = 0, shard_count: int = 1) -> None:
        super().__init__(shape, self._visible, shard_count, offset=offset)

    def _visible(self, rows: np.ndarray, columns: np.ndarray) -> Any:
        return rows + self.offset >= columns


class LocalMask(ComputableMask):
    """A mask that shows keys within a window.

    The window says how many to the left and right of ``t + offset``; None is no limit.
    """

    window_size: tuple[int | None, int | None]
    offset: int

    def __init__(self, shape: tuple[int, int], window_size: tuple[int | None, int | None], offset: int, shard_count: int = 1) -> None:
        super().__init__(shape, self._visible, shard_count, window_size=tuple(window_size), offset=offset)

    def _visible(self, rows: np.ndarray, columns: np.ndarray) -> Any:
        distance, (left, right) = columns - (rows + self.offset), self.window_size
        return (True if left is None else distance >= -left) & (True if right is None else distance <= right)


class ChunkedCausalMask(ComputableMask):
    """A causal mask within chunks of a size: positions of other chunks are hidden."""

    chunk_size: int

    def __init__(self, shape: tuple[int, int], chunk_size: int, shard_count: int = 1) -> None:
        if chunk_size <= 0:
            raise ArgumentError(f"chunk_size must be positive, got {chunk_size}")
        super().__init__(shape, self._visible, shard_count, chunk_size=chunk_size)

    def _visible(self, rows: np.ndarray, columns: np.ndarray) -> Any:
        return (rows // self.chunk_size == columns // self.chunk_size) & (rows >= columns)


def make_causal_mask(shape: tuple[int, int], offset: int = 0) -> np.ndarray:
    """Return a `CausalMask` as an array.

    >>> make_causal_mask((2, 3)).astype(int)
    array([[1, 0, 0],
           [1, 1, 0]])
    """
    return CausalMask(shape, offset)[:, :]


def make_local_attention_mask(shape: tuple[int, int], window_size: tuple[int | None, int | None], *, offset: int = 0) -> np.ndarray:
    """Return a `LocalMask` as an array."""
    return LocalMask(shape, window_size, offset)[:, :]


def make_chunk_attention_mask(shape: tuple[int, int], chunk_size: int) -> np.ndarray:
    """Return a `ChunkedCausalMask` as an array."""
    return ChunkedCausalMask(shape, chunk_size)[:, :]


def make_random_mask(shape: tuple[int, int], sparsity: float, seed: int) -> np.ndarray:
    """Return an array of bool, of which a share `sparsity` is False.

    The share is an average; numbers are drawn as JAX draws them.
    """
    return np.random.RandomState(seed).binomial(n=1, p=1.0 - sparsity, size=shape).astype(np.bool_)


# Attention.


class QKVLayout(enum.IntEnum):
    """Orders of axes in a TPU's memory, which have no effect."""

    HEAD_DIM_MINOR = enum.auto()
    SEQ_MINOR = enum.auto()


@dataclass(frozen=True, slots=True)
class SplashBlockSizes:
    """Blocks of the kernels, which have no effect."""

    block_q: int
    block_kv: int
    block_kv_compute: int | None = None
    block_q_dkv: int | None = None
    block_kv_dkv: int | None = None
    block_kv_dkv_compute: int | None = None
    block_q_dq: int | None = None
    block_kv_dq: int | None = None
    use_fused_bwd_kernel: bool = False
    q_layout: QKVLayout = QKVLayout.HEAD_DIM_MINOR
    k_layout: QKVLayout = QKVLayout.HEAD_DIM_MINOR
    v_layout: QKVLayout = QKVLayout.HEAD_DIM_MINOR

    def __post_init__(self) -> None:
        if self.block_kv_compute is None:
            object.__setattr__(self, "block_kv_compute", self.block_kv)
        if self.block_kv_dkv_compute is None:
            object.__setattr__(self, "block_kv_dkv_compute", self.block_kv_dkv)
        if self.use_fused_bwd_kernel and (self.block_q_dq, self.block_kv_dq) != (None, None):
            raise ArgumentError("Block sizes for dq kernel are not needed with a fused kernel.")

    @property
    def has_backward_blocks(self) -> bool:
        """Whether all sizes of the gradient are there."""
        dq = () if self.use_fused_bwd_kernel else (self.block_q_dq, self.block_kv_dq)
        return None not in (self.block_q_dkv, self.block_kv_dkv, self.block_kv_dkv_compute, *dq)

    @classmethod
    def get_default(cls) -> SplashBlockSizes:
        """Return the sizes that JAX takes."""
        return cls(128, 128, 128, 128, 128, 128, 128, 128)


def _attend(
    mask: Any, q: Any, k: Any, v: Any, segment_ids: SegmentIds | None, sinks: Any, save_residuals: bool, soft_cap: float | None
) -> Any:
    """Return softmax(q kᵀ) v under a mask, maybe with logarithms of sums.

    The result has the shape (heads, T, features of v), the mask (heads, T, S).

    A sink is a logit of its head's, to which no value belongs. It is that of a further key here: of zeros, with the sink as its bias.
    """
    if segment_ids is not None:
        mask = mask & segment_mask(segment_ids.q, segment_ids.kv)
    dtype, width, features = q.dtype, v.shape[-1], max(q.shape[-1], v.shape[-1])
    q, k, v = [vnp.pad(x, [(0, 0), (0, int(sinks is not None and x is not q)), (0, features - x.shape[-1])]) for x in (q, k, v)]
    bias = None
    if sinks is not None:
        mask = vnp.pad(mask, [(0, 0), (0, 0), (0, 1)], constant_values=True)
        bias = vnp.where(vnp.arange(mask.shape[-1]) == mask.shape[-1] - 1, vnp.asarray(sinks)[:, None, None], 0)[None]
    q, k, v = [vnp.swapaxes(x, 0, 1)[None] for x in (q, k, v)]
    options: dict[str, Any] = {"scale": 1.0, "logits_soft_cap": soft_cap}
    if not save_residuals:
        return vnp.swapaxes(nn.dot_product_attention(q, k, v, bias, mask[None], **options)[0, ..., :width], 0, 1)
    q, k, v = [x.astype(wide_dtype(dtype)) for x in (q, k, v)]  # the dtype of the logarithms
    out, sums = nn.dot_product_attention(q, k, v, bias, mask[None], return_residual=True, **options)
    return without_gradient((vnp.swapaxes(out[0, ..., :width], 0, 1).astype(dtype), (vnp.swapaxes(sums[0], 0, 1),)))


def attention_reference(
    mask: Any,
    q: Any,
    k: Any,
    v: Any,
    segment_ids: SegmentIds | None,
    sinks: Any = None,
    *,
    mask_value: float = DEFAULT_MASK_VALUE,
    save_residuals: bool = False,
    custom_type: str = "flash",
    attn_logits_soft_cap: float | None = None,
) -> Any:
    """Compute softmax(q kᵀ) v of one head, in float32 at least.

    Args:
        mask: bool, of shape (T, S).
        q, k, v: shapes (T, features), (S, features) and (S, features of values).
        segment_ids: the segments of queries and keys; a query sees keys of its own.
        sinks: a logit that takes weight without a value, without axes.
        save_residuals: return the pair of the result and of a tuple with the logarithms of sums of exponentials, of shape (T,), which
            cannot be differentiated.
        attn_logits_soft_cap: bounds logits smoothly: x becomes ``cap tanh(x / cap)``.
    """
    q, k, v = [vnp.asarray(x)[None].astype(wide_dtype(q.dtype)) for x in (q, k, v)]
    sinks = None if sinks is None else vnp.asarray(sinks)[None]
    out = _attend(vnp.asarray(mask)[None], q, k, v, segment_ids, sinks, save_residuals, attn_logits_soft_cap)
    return (out[0][0], (out[1][0][0],)) if save_residuals else out[0]


attention_reference_custom = attention_reference


def make_attention_reference(mask: Any, is_mqa: bool, backward_impl: str = "vanilla", **params: Any) -> Callable[..., Any]:
    """Return the function that a kernel with this mask computes.

    It computes in float32 at least; `params` are options of `attention_reference`.
    """
    kernel = _make_kernel(mask, is_mqa=is_mqa, head_shards=1, q_seq_shards=1)

    def reference(
        q: Any,
        k: Any,
        v: Any,
        segment_ids: SegmentIds | None = None,
        sinks: Any = None,
        *,
        mask_value: float = DEFAULT_MASK_VALUE,
        save_residuals: bool = False,
        attn_logits_soft_cap: float | None = None,
    ) -> Any:
        options: dict[str, Any] = {"save_residuals": save_residuals, "attn_logits_soft_cap": attn_logits_soft_cap, **params}
        q, k, v = [x.astype(wide_dtype(x.dtype)) for x in (q, k, v)]
        return SplashAttentionKernel(kernel.mask, is_mqa=is_mqa, **options)(q, k, v, segment_ids, sinks)

    return reference


make_masked_mha_reference = functools.partial(make_attention_reference, is_mqa=False)
make_masked_mqa_reference = functools.partial(make_attention_reference, is_mqa=True)


@register_pytree_node_class
class SplashAttentionKernel:
    """Attention under a mask, a tree with the mask as its leaf.

    `make_splash_mha` makes one.

    It is called with queries of shape (heads, T, features), keys and values of shape (groups, S, features) or, with `is_mqa`,
    (S, features), and maybe `SegmentIds` and sinks, one logit for each head. Logits are not scaled.
    """

    def __init__(
        self, mask: Any, *, is_mqa: bool, save_residuals: bool = False, attn_logits_soft_cap: float | None = None, **options: Any
    ) -> None:
        self.mask = mask
        self.is_mqa, self.save_residuals, self.attn_logits_soft_cap = is_mqa, save_residuals, attn_logits_soft_cap

    def __call__(self, q: Any, k: Any, v: Any, segment_ids: SegmentIds | None = None, sinks: Any = None) -> Any:
        """Return the result, maybe with logarithms of sums.

        These are a tuple beside it, with an array of shape (heads, T).
        """
        k, v = (k[None], v[None]) if self.is_mqa else (k, v)
        return _attend(self.mask, q, k, v, segment_ids, sinks, self.save_residuals, self.attn_logits_soft_cap)

    def manual_sharding_spec(self, sharding: Any) -> SplashAttentionKernel:
        """Return a tree like this with a partition spec of the mask.

        It is for `shard_map`; `sharding` splits heads and queries.
        """
        heads, queries = sharding.spec
        return self._like(PartitionSpec(heads, queries, None))

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        """Return the mask, and what else there is."""
        return (self.mask,), (self.is_mqa, self.save_residuals, self.attn_logits_soft_cap)

    @classmethod
    def tree_unflatten(cls, settings: Any, children: tuple[Any]) -> SplashAttentionKernel:
        """Return the kernel of `tree_flatten`."""
        is_mqa, save_residuals, soft_cap = settings
        return cls(children[0], is_mqa=is_mqa, save_residuals=save_residuals, attn_logits_soft_cap=soft_cap)

    def _like(self, mask: Any) -> SplashAttentionKernel:
        return self.tree_unflatten(self.tree_flatten()[1], (mask,))


def _make_kernel(
    mask: Any,
    *,
    block_sizes: SplashBlockSizes | None = None,
    is_mqa: bool,
    save_residuals: bool = False,
    mask_value: float = DEFAULT_MASK_VALUE,
    attn_logits_soft_cap: float | None = None,
    downcast_smem_data: bool = True,
    head_shards: int,
    q_seq_shards: int,
    residual_checkpoint_name: str | None = None,
    interpret: bool = False,
) -> SplashAttentionKernel:
    """Return attention under a mask.

    The mask is a `MultiHeadMask`, or an array of bool of shape (heads, T, S).
    """
    if len(mask.shape) != 3:
        raise ShapeError(f"Unexpected mask shape: {mask.shape}; it has axes of heads, queries and keys")
    values = mask if isinstance(mask, Array) else vnp.asarray(mask[:, :, :])
    return SplashAttentionKernel(values, is_mqa=is_mqa, save_residuals=save_residuals, attn_logits_soft_cap=attn_logits_soft_cap)


make_splash_mha = functools.partial(_make_kernel, is_mqa=False)
make_splash_mqa = functools.partial(_make_kernel, is_mqa=True)
make_splash_mha_single_device = functools.partial(make_splash_mha, head_shards=1, q_seq_shards=1)
make_splash_mqa_single_device = functools.partial(make_splash_mqa, head_shards=1, q_seq_shards=1)
