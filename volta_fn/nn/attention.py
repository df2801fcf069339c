"""Attention as a function, in all the variants of JAX and PyTorch."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

import volta_fn.numpy as vnp
from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray, broadcasts_to, check_option
from volta_fn.core.primitive import SharedParams
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import current_trace
from volta_fn.dtypes import BOOL, FLOATS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.call import CAUSAL, Axes, Form, Window, attention_p, attention_params, stop_gradient
from volta_fn.scipy.special.exponential import softmax
from volta_fn.transforms.custom_derivatives import custom_vjp

__all__ = ["dot_product_attention", "get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"]


# Products of numbers of 8 or 4 bits that share a scale block by block.
#
# A *block* is some consecutive numbers along the contracting axis. The formats are MXFP8 (OCP Microscaling Formats 1.0: 32 numbers, a
# power of two) and NVFP4 (16 numbers, a scale of 8 bits, and one scale for all). Numbers and scales are stored in few bits; products
# are computed in float32.


class BlockScaleConfig(NamedTuple):
    """How numbers are quantised block by block.

    Attributes:
        mode: the format, "mxfp8" or "nvfp4".
        block_size: how many numbers share a scale.
        data_type: the dtype of the numbers.
        scale_type: the dtype of the scales.
        global_scale: one more scale for all numbers (nvfp4), of shape (1,).
        infer_only: whether there are no gradients to be quantised.
    """

    mode: str
    block_size: int
    data_type: Any
    scale_type: Any
    global_scale: Any = None
    infer_only: bool = False


def get_scaled_dot_general_config(mode: Literal["nvfp4", "mxfp8"], global_scale: Any = None) -> BlockScaleConfig:
    """Return the configuration of a format for `scaled_dot_general`.

    Args:
        mode: "mxfp8" or "nvfp4".
        global_scale: the scale of all numbers, for nvfp4: float32 of shape (1,); None: 1.

    Raises `ArgumentError` for another mode, or a global scale with mxfp8.

    >>> nn.get_scaled_dot_general_config("mxfp8").block_size
    32
    """
    if mode == "nvfp4":
        scale = vnp.ones((1,), "float32") if global_scale is None else as_value(global_scale)
        return BlockScaleConfig(mode, 16, dtypes.as_dtype("float4_e2m1fn"), dtypes.as_dtype("float8_e4m3fn"), scale)
    if mode != "mxfp8":
        raise ArgumentError(f"get_scaled_dot_general_config: mode={mode!r} is neither 'nvfp4' nor 'mxfp8'")
    if global_scale is not None:
        raise ArgumentError("get_scaled_dot_general_config: mxfp8 has no global scale; leave global_scale out, or use nvfp4")
    return BlockScaleConfig(mode, 32, dtypes.as_dtype("float8_e4m3fn"), dtypes.as_dtype("float8_e8m0fnu"))


def scaled_matmul(lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any = np.float32) -> Array:
    """Multiply matrices whose numbers share scales block by block.

    Args:
        lhs: numbers of shape (b, m, k).
        rhs: numbers of shape (b, n, k).
        lhs_scales: a scale for each block along the last axis, of shape (b, m, k / block).
        rhs_scales: likewise, of shape (b, n, k / block), where blocks may have another size.
        preferred_element_type: the dtype of the result.

    Returns an array of shape (b, m, n). Raises `ShapeError` for shapes that do not fit.

    >>> a, b = jnp.array([[[1.0, 2.0, 3.0]]]), jnp.array([[[4.0, 5.0, 6.0]]])
    >>> nn.scaled_matmul(a, b, jnp.full((1, 1, 1), 0.5), jnp.full((1, 1, 1), 0.5))
    Array([[[8.]]], dtype=float32)
    """
    a, b = _scaled("lhs", lhs, lhs_scales), _scaled("rhs", rhs, rhs_scales)
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[2]:
        raise ShapeError(f"scaled_matmul: lhs of shape {a.shape} and rhs of shape {b.shape} differ in their first or last axis")
    dtype = a.dtype if a.dtype == b.dtype else np.dtype(np.float32)
    product = lax.dot_general(a.astype(dtype), b.astype(dtype), (((2,), (2,)), ((0,), (0,))), preferred_element_type=np.float32)
    return product.astype(preferred_element_type)


#: The significant bits of bfloat16.
_BFLOAT16_BITS = 8


def _scaled(name: str, numbers: Any, scales: Any) -> Array:
    """Return numbers times their scales.

    They are of bfloat16 if that has all bits of the products, as of MXFP8 and NVFP4, or else of float32.
    """
    x, by_block = as_value(numbers), as_value(scales)
    if x.ndim != 3 or by_block.ndim != 3 or x.shape[:2] != by_block.shape[:2] or not by_block.shape[2] or x.shape[2] % by_block.shape[2]:
        raise ShapeError(f"scaled_matmul: {name} of shape {x.shape} has no blocks for scales of shape {by_block.shape}")
    bits = [dtypes.finfo(v.dtype).nmant + 1 if v.dtype in dtypes.STORAGE_FLOATS else _BFLOAT16_BITS for v in (x, by_block)]
    dtype = dtypes.bfloat16 if sum(bits) <= _BFLOAT16_BITS else np.float32
    return x.astype(dtype) * vnp.repeat(by_block.astype(dtype), x.shape[2] // by_block.shape[2], axis=2)


def scaled_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    preferred_element_type: Any = np.float32,
    configs: Sequence[BlockScaleConfig] | None = None,
    implementation: None = None,
) -> Array:
    """Contract arrays after quantising both block by block.

    Gradients are products of quantised numbers, too (nvfp4: of the numbers as they are, zero where a number was clipped).

    Args:
        lhs, rhs: floats; the contracting axes together are a multiple of the block's size.
        dimension_numbers: as in `lax.dot_general`.
        preferred_element_type: float32, bfloat16 or float16.
        configs: for `lhs`, `rhs`, and gradients; None: mxfp8.
        implementation: must be None.

    Raises:
        ArgumentError: an implementation, or other than three configurations.
        DTypeError: another dtype of results.
        ShapeError: a count of contracted numbers that is no multiple of a block's.

    >>> x = jnp.ones((1, 2, 32))
    >>> nn.scaled_dot_general(x, x, (((2,), (2,)), ((0,), (0,))))
    Array([[[32., 32.],
            [32., 32.]]], dtype=float32)
    """
    if implementation is not None:
        raise ArgumentError(f"scaled_dot_general: implementation={implementation!r} is not known here; leave it out")
    dtype = dtypes.as_dtype(preferred_element_type)
    if dtype.name not in ("float32", "bfloat16", "float16"):
        raise DTypeError(f"scaled_dot_general: results are float32, bfloat16 or float16, not {dtype.name}")
    chosen = tuple(configs) if configs is not None else (get_scaled_dot_general_config("mxfp8"),) * 3
    if len(chosen) != 3:
        raise ArgumentError(f"scaled_dot_general: configs are for lhs, rhs and gradients, got {len(chosen)}")
    x, y = as_value(lhs), as_value(rhs)
    (x_contract, y_contract), (x_batch, y_batch) = dimension_numbers
    x_rows, x_free = _as_matrices(x, x_contract, x_batch)
    y_rows, y_free = _as_matrices(y, y_contract, y_batch)
    scales = tuple(None if c.global_scale is None else as_value(c.global_scale) for c in chosen)
    formats = tuple(c._replace(global_scale=None) for c in chosen)
    product = _product(formats, x_rows, y_rows, scales)
    return product.astype(dtype).reshape((*[x.shape[i] for i in x_batch], *x_free, *y_free))


def _as_matrices(x: Array, contract: Sequence[int], batch: Sequence[int]) -> tuple[Array, list[int]]:
    """Return an operand as (batch, free, contracting), and the sizes of the free axes."""
    free = [i for i in range(x.ndim) if i not in (*contract, *batch)]
    sizes = [[x.shape[i] for i in axes] for axes in (batch, free, contract)]
    return vnp.transpose(x, (*batch, *free, *contract)).reshape([int(np.prod(s)) for s in sizes]), sizes[1]


def _quantised(x: Array, config: BlockScaleConfig, global_scale: Array | None) -> tuple[Array, Array]:
    """Return the numbers of a format and the scale of each block."""
    count = x.shape[-1]
    if not count or count % config.block_size:
        raise ShapeError(
            f"scaled_dot_general: {count} contracted numbers are no multiple of the {config.block_size} of a block ({config.mode})"
        )
    largest = float(dtypes.finfo(config.data_type).max)
    blocks = x.astype("float32").reshape((*x.shape[:-1], count // config.block_size, config.block_size))
    if global_scale is not None:
        blocks = blocks / global_scale
    ratio = vnp.max(vnp.abs(blocks), axis=-1, keepdims=True) / largest
    if config.mode == "mxfp8":
        scales = _power_of_two(ratio).astype(config.scale_type)
    else:
        scales = vnp.minimum(ratio, float(dtypes.finfo(config.scale_type).max)).astype(config.scale_type)
    wide = scales.astype("float32")
    numbers = vnp.where(wide > 0, blocks / vnp.where(wide > 0, wide, 1.0), blocks * vnp.inf)
    numbers = vnp.clip(vnp.where(blocks == 0, 0.0, numbers), -largest, largest)
    return numbers.astype(config.data_type).reshape(x.shape), vnp.squeeze(scales, -1)


def _power_of_two(x: Array) -> Array:
    """Return the least power of two that is not below x, from 2^-127 on."""
    mantissa, exponent = vnp.frexp(x)
    exponent = vnp.where(mantissa == 0.5, exponent - 1, exponent)
    return vnp.ldexp(vnp.float32(1.0), vnp.where(x == 0, -127, vnp.maximum(exponent, -127)))


def _forward(formats: Any, x: Array, y: Array, scales: Any) -> Array:
    quantised = [_quantised(*operand) for operand in zip((x, y), formats[:2], scales[:2], strict=True)]
    product = scaled_matmul(*[q[0] for q in quantised], *[q[1] for q in quantised])
    for scale in scales[:2]:
        product = product if scale is None else product * scale
    return product


def _backward(formats: Any, saved: Any, cotangent: Array) -> tuple[Any, ...]:
    x, y, scales = saved
    y_across, x_across = vnp.swapaxes(y, 1, 2), vnp.swapaxes(x, 1, 2)
    if formats[2].mode == "nvfp4":
        x_bar, y_bar = vnp.matmul(cotangent, y), vnp.matmul(vnp.swapaxes(cotangent, 1, 2), x)
        x_bar, y_bar = _mask_clipped(x, x_bar, formats[0], scales[0]), _mask_clipped(y, y_bar, formats[1], scales[1])
    else:
        x_bar = _forward((formats[2], formats[1]), cotangent, y_across, (scales[2], scales[1]))
        y_bar = _forward((formats[2], formats[0]), vnp.swapaxes(cotangent, 1, 2), x_across, (scales[2], scales[0]))
    return x_bar.astype(x.dtype), y_bar.astype(y.dtype), tuple(None if s is None else vnp.zeros_like(s) for s in scales)


def _mask_clipped(x: Array, cotangent: Array, config: BlockScaleConfig, global_scale: Any) -> Array:
    """Return cotangents with zeros where quantisation clipped the number."""
    limit = float(dtypes.finfo(config.data_type).max) * float(dtypes.finfo(config.scale_type).max) * global_scale
    return vnp.where(vnp.abs(x) <= limit, cotangent, 0.0)


_product: Any = custom_vjp(_forward, nondiff_argnums=(0,))
_product.defvjp(lambda formats, x, y, scales: (_forward(formats, x, y, scales), (x, y, scales)), _backward)


# Attention, under the name and with the options of `jax.nn`.


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: Any = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    logits_soft_cap: float | None = None,
    implementation: Literal["xla", "cudnn"] | None = None,
    return_residual: bool = False,
) -> Any:
    """Compute softmax(scale query key^T + bias) value for each head.

    See Vaswani et al. (2017). float16 and bfloat16 compute logits and softmax in float32. Long sequences go block by block with a running
    softmax, and their gradients recompute weights (FlashAttention-2, Dao 2023): memory grows with T + S, not with their product, and
    blocks of keys that no query of a block sees cost nothing. A bias and a mask take the memory of their own shapes: that of ALiBi is
    ``slopes[:, None, None] * arange(S)``, as what all logits of a query have in common does not change its weights.

    Args:
        query: shape (batch, T, heads, features), or without the batch.
        key: shape (batch, S, groups, features); `groups` divides `heads`, and each group of heads shares one (grouped queries).
        value: likewise.
        bias: added to the logits; broadcasts to (batch, heads, T, S).
        mask: bool, broadcasts likewise; False hides a key from a query. A query that sees no key weights all equally.
        scale: factor of the logits (default 1 / sqrt(features)).
        is_causal: query t sees keys up to t only.
        query_seq_lengths: int32 per batch entry; queries beyond are padding, whose result is 0.
        key_value_seq_lengths: int32 per batch entry; keys beyond are padding, which no query sees.
        local_window_size: how many keys to the left and right of its own position a query sees; one number for both sides.
        logits_soft_cap: bounds scaled logits smoothly, before the bias: x becomes ``cap tanh(x / cap)`` (Gemma 2, 2024).
        implementation: accepted for compatibility; there is one implementation.
        return_residual: return the pair of the result and the logsumexp of the logits, of shape (batch, T, heads), which has no
            gradient.

    Raises:
        ShapeError: the shapes do not fit.
        DTypeError: the dtypes of query, key and value differ, or `mask` is not bool.
        ArgumentError: `logits_soft_cap` is not positive, `local_window_size` is no integer or pair of them, or `implementation` is unknown.

    >>> q = vf.numpy.ones((2, 5, 4, 8))
    >>> vf.nn.dot_product_attention(q, q, q, is_causal=True).shape
    (2, 5, 4, 8)
    """
    check_option(implementation, "dot_product_attention: implementation", (None, "xla", "cudnn"))
    if logits_soft_cap is not None and not logits_soft_cap > 0:
        raise ArgumentError(f"dot_product_attention: logits_soft_cap is None or a positive number, got {logits_soft_cap!r}")
    arrays = [as_value(x) for x in (query, key, value)]
    batched = arrays[0].ndim == 4
    q, k, v = arrays if batched else [x[None] for x in arrays]
    _check(q, k, v, mask, batched)
    t, s = q.shape[1], k.shape[1]
    masks = [] if mask is None else [as_value(mask)]
    if key_value_seq_lengths is not None:
        masks.append(vnp.arange(s) < _per_entry(key_value_seq_lengths))
    logits = LogitOptions(scale, _window(local_window_size, is_causal), logits_soft_cap or 0.0)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    out, statistics = attention_with_statistics(q, k, v, bias, masks, logits)
    out = out.swapaxes(1, 2)
    exists = None
    if query_seq_lengths is not None:
        exists = vnp.arange(t)[:, None, None] < _per_entry(query_seq_lengths)
        out = vnp.where(exists, out, 0)
    if not return_residual:
        return out if batched else out[0]
    residual = (statistics[..., 0] + vnp.log(statistics[..., 1])).swapaxes(1, 2)
    if exists is not None:
        residual = vnp.where(exists[..., 0], residual, float(least_logit(residual.dtype)) + math.log(max(s, 1)))
    residual = stop_gradient(residual.astype(k.dtype))
    return (out, residual) if batched else (out[0], residual[0])


def least_logit(dtype: np.dtype) -> np.generic:
    """Return the logit of masked keys: a query without keys then weighs all equally."""
    least: np.generic = dtype.type(-0.7 * float(np.finfo(dtype).max))
    return least


class LogitOptions(NamedTuple):
    """How logits follow from products of queries and keys.

    Attributes:
        scale: their factor (None: 1 / sqrt(features)).
        window: the keys that a query sees by their positions.
        softcap: the bound of scaled logits (0: none).
    """

    scale: Any = None
    window: Window = Window()
    softcap: float = 0.0


def _window(size: Any, is_causal: bool) -> Window:
    """Return the window of an argument `local_window_size`."""
    before = after = None
    if size is not None:
        try:
            before, after = map(operator.index, size if np.ndim(size) else (size, size))
        except (TypeError, ValueError):
            raise ArgumentError(f"dot_product_attention: local_window_size is None, an integer or a pair of them, got {size!r}") from None
    return Window(before, (0 if after is None else min(after, 0)) if is_causal else after)


def _clipped(window: Window, t: int, s: int) -> Window:
    """Return a window without sides that hide none of s keys from t queries.

    Other sides are numbers that positions of 32 bits can be added to.
    """
    before, after = window
    before = None if before is None or before >= t - 1 else max(before, -s)
    return Window(before, None if after is None or after >= s - 1 else max(after, -t))


def window_conditions(window: Window, t: int, s: int) -> list[Array]:
    """Return the masks (t, s) of the keys that queries see by their positions."""
    rows, columns = vnp.arange(t)[:, None], vnp.arange(s)[None, :]
    masks = [] if window.before is None else [columns >= rows - window.before]
    return masks if window.after is None else [*masks, columns <= (rows + window.after if window.after else rows)]


def attend(
    q: Array,
    k: Array,
    v: Array,
    bias: Any = None,
    masks: Sequence[Any] = (),
    scale: Any = None,
    drop: Callable[[Array], Array] | None = None,
    is_causal: bool = False,
) -> Array:
    """Return softmax(scale q kᵀ + bias) v, of shape (batch, heads, T, value features).

    Args:
        q: shape (batch, heads, T, features).
        k: shape (batch, groups, S, features).
        v: shape (batch, groups, S, value features).
        bias: added to the logits; broadcasts to (batch, heads, T, S).
        masks: bool, each broadcasts likewise; False hides a key from a query.
        scale: factor of the logits (default 1 / sqrt(features)).
        drop: a function of the weights, such as dropout.
        is_causal: query t sees keys up to t only, and only where `masks` allow it.
    """
    logits = LogitOptions(scale, CAUSAL if is_causal else Window())
    if drop is not None:
        return _expanded(q, k, v, bias, masks, logits, drop)[0]
    return attention_with_statistics(q, k, v, bias, masks, logits)[0]


def attention_with_statistics(q: Array, k: Array, v: Array, bias: Any, masks: Sequence[Any], options: LogitOptions) -> tuple[Array, Array]:
    """Return the result of `attend`, and the statistics of the softmax.

    These are each query's largest logit and the sum of its weights relative to that, of shape (batch, heads, T, 2). All functions and
    layers of attention without dropout use this one. It is the primitive of attention, for which targets may have routines.
    """
    logits_shape = (*q.shape[:3], k.shape[2])
    options = options._replace(window=_clipped(options.window, *logits_shape[2:]))
    conditions = [_with_four_axes(as_value(mask)) for mask in masks]
    extra = [] if bias is None else [_bias(as_value(bias), accumulator(q.dtype))]
    plain = q.dtype in FLOATS and (options.scale is None or isinstance(options.scale, (int, float)))
    if not plain or 0 in (*q.shape, *k.shape, *v.shape) or not all(broadcasts_to(x.shape, logits_shape) for x in (*extra, *conditions)):
        out, logits = _expanded(q, k, v, bias, masks, options)
        return out, _statistics(logits) if logits.size else vnp.zeros((*q.shape[:3], 2), logits.dtype)
    factor = 1 / math.sqrt(max(q.shape[3], 1)) if options.scale is None else float(options.scale)
    least = float(least_logit(accumulator(q.dtype)))
    axes = (_HEADS_FIRST, _HEADS_FIRST, _HEADS_FIRST, None)
    form = Form(*axes, factor, least, options.window, float(options.softcap), bool(extra), len(conditions))
    operands = (q, k, v, *extra, *conditions)
    program = _expansion(form, tuple([ShapedArray(x.shape, x.dtype) for x in operands]))
    out, statistics = current_trace().process(attention_p, operands, program)
    return out, statistics


def _with_four_axes(x: Array) -> Array:
    return x.reshape((1,) * (4 - x.ndim) + x.shape) if x.ndim < 4 else x


def _bias(bias: Array, wide: np.dtype) -> Array:
    """Return a bias as floats that are no wider than the logits."""
    narrow = bias.dtype in FLOATS and bias.dtype.itemsize <= wide.itemsize
    return _with_four_axes(bias if narrow else bias.astype(wide))


#: Arrays (batch, heads, rows, features).
_HEADS_FIRST = Axes((0, 1), 2, 3)


@functools.lru_cache(maxsize=256)
def _expansion(form: Form, avals: tuple[ShapedArray, ...]) -> SharedParams:
    """Return the parameters of attention for operands of these types."""

    def expand(q: Array, k: Array, v: Array, *others: Array) -> list[Array]:
        bias, masks = others[0] if form.biased else None, others[form.biased :]
        out, logits = _expanded(q, k, v, bias, masks, LogitOptions(form.scale, form.window, form.softcap))
        return [out, _statistics(logits)]

    return SharedParams(attention_params(trace_to_jaxpr(expand, avals, "attention"), form))


def _statistics(logits: Array) -> Array:
    top = logits.max(-1, keepdims=True)
    return vnp.concatenate([top, vnp.exp(logits - top).sum(-1, keepdims=True)], -1)


def _expanded(
    q: Array,
    k: Array,
    v: Array,
    bias: Any,
    masks: Sequence[Any],
    options: LogitOptions,
    drop: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array]:
    """Return the result of `attend` by products and a softmax, and the logits."""
    batch, heads, t, features = q.shape
    groups, s = k.shape[1:3]
    wide = accumulator(q.dtype)
    grouped = q.reshape(batch, groups, heads // max(groups, 1) * t, features)
    logits = vnp.matmul(grouped, k.swapaxes(2, 3), preferred_element_type=wide).reshape(batch, heads, t, s)
    logits = logits * (1 / math.sqrt(max(features, 1)) if options.scale is None else options.scale)
    if options.softcap:
        logits = vnp.tanh(logits / options.softcap) * options.softcap
    if bias is not None:
        logits = (logits + bias).astype(wide)
    conditions = [*masks, *window_conditions(options.window, t, s)]
    if conditions:
        logits = vnp.where(functools.reduce(operator.and_, conditions), logits, least_logit(wide))
    weights = softmax(logits).astype(v.dtype)
    weights = weights if drop is None else drop(weights)
    out = vnp.matmul(weights.reshape(batch, groups, heads // max(groups, 1) * t, s), v)
    return out.reshape(batch, heads, t, v.shape[3]), logits


def _per_entry(lengths: Any) -> Array:
    """Return lengths per batch entry, to broadcast against (batch, …) with four axes."""
    return as_value(lengths)[:, None, None, None]


def _check(q: Array, k: Array, v: Array, mask: Any, batched: bool) -> None:
    fits = q.ndim == k.ndim == 4 and k.shape == v.shape and (q.shape[0], q.shape[3]) == (k.shape[0], k.shape[3])
    if not fits or (k.shape[2] and q.shape[2] % k.shape[2]):
        lead = "batch, " if batched else ""
        shapes = [x.shape if batched else x.shape[1:] for x in (q, k, v)]
        raise ShapeError(
            f"dot_product_attention: query ({lead}T, heads, features), key and value ({lead}S, groups, features) with groups dividing "
            f"heads are needed, got {shapes[0]}, {shapes[1]}, {shapes[2]}"
        )
    if not q.dtype == k.dtype == v.dtype:
        names = ", ".join(x.dtype.name for x in (q, k, v))
        raise DTypeError(f"dot_product_attention: query, key and value have dtypes {names}; convert them to one")
    if mask is not None and as_value(mask).dtype not in BOOL:
        raise DTypeError(f"dot_product_attention: the mask is bool, got {as_value(mask).aval}; numbers to add to the logits go into bias")
