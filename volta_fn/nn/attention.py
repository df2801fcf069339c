"""Attention, under the name and with the options of `jax.nn`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import SharedParams
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import current_trace
from volta_fn.dtypes import BOOL, FLOATS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.call import Axes, Form, attention_p, attention_params, stop_gradient
from volta_fn.scipy.special.exponential import logsumexp, softmax

__all__ = ["dot_product_attention"]


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
    implementation: Literal["xla", "cudnn"] | None = None,
    return_residual: bool = False,
) -> Any:
    """Compute softmax(scale query key^T + bias) value for each head.

    See Vaswani et al. (2017). float16 and bfloat16 compute logits and softmax in float32.

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
        implementation: accepted for compatibility; there is one implementation.
        return_residual: return the pair of the result and the logsumexp of the logits, of shape (batch, T, heads), which has no
            gradient.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: the dtypes of query, key and value differ, or `mask` is not bool.

    >>> q = vf.numpy.ones((2, 5, 4, 8))
    >>> vf.nn.dot_product_attention(q, q, q, is_causal=True).shape
    (2, 5, 4, 8)
    """
    if implementation not in (None, "xla", "cudnn"):
        raise ArgumentError(f"dot_product_attention: implementation is None, 'xla' or 'cudnn', got {implementation!r}")
    arrays = [as_value(x) for x in (query, key, value)]
    batched = arrays[0].ndim == 4
    q, k, v = arrays if batched else [x[None] for x in arrays]
    _check(q, k, v, mask, batched)
    t, s = q.shape[1], k.shape[1]
    seen = _visible(t, s, mask, query_seq_lengths, key_value_seq_lengths, local_window_size)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    if return_residual:
        seen = _both(seen, causal_condition(t, s) if is_causal else None)
        out, logits = expanded_attention(q, k, v, bias, seen, scale)
    else:
        out = attend(q, k, v, bias, seen, scale, is_causal=is_causal)
    out = out.swapaxes(1, 2)
    if query_seq_lengths is not None:
        out = vnp.where(vnp.arange(t)[:, None, None] < _per_entry(query_seq_lengths), out, 0)
    if not return_residual:
        return out if batched else out[0]
    residual = stop_gradient(logsumexp(logits, -1).astype(k.dtype).transpose(0, 2, 1))
    return (out, residual) if batched else (out[0], residual[0])


def least_logit(dtype: np.dtype) -> np.generic:
    """Return the logit of masked keys: a query without keys then weighs all equally."""
    least: np.generic = dtype.type(-0.7 * float(np.finfo(dtype).max))
    return least


def causal_condition(t: int, s: int) -> Array:
    """Return the mask under which query i sees keys up to i."""
    return vnp.arange(s)[None, :] <= vnp.arange(t)[:, None]


def attend(
    q: Array,
    k: Array,
    v: Array,
    bias: Any = None,
    seen: Any = None,
    scale: Any = None,
    drop: Callable[[Array], Array] | None = None,
    is_causal: bool = False,
) -> Array:
    """Return softmax(scale q kᵀ + bias) v, of shape (batch, heads, T, value features).

    All functions and layers of attention use this one. Without a bias and dropout it is the primitive of attention, for which targets may
    have routines.

    Args:
        q: shape (batch, heads, T, features).
        k: shape (batch, groups, S, features).
        v: shape (batch, groups, S, value features).
        bias: added to the logits; broadcasts to (batch, heads, T, S).
        seen: bool, broadcasts likewise; False hides a key from a query.
        scale: factor of the logits (default 1 / sqrt(features)).
        drop: a function of the weights, such as dropout.
        is_causal: query t sees keys up to t only, and only where `seen` allows it.
    """
    plain = bias is None and drop is None and q.dtype in FLOATS and (scale is None or isinstance(scale, (int, float)))
    if not plain or 0 in (*q.shape, *k.shape, *v.shape):
        condition = causal_condition(q.shape[2], k.shape[2]) if is_causal else None
        return expanded_attention(q, k, v, bias, _both(seen, condition), scale, drop)[0]
    masks = [] if seen is None else [as_value(seen).reshape((1,) * (4 - seen.ndim) + seen.shape)]
    factor = 1 / math.sqrt(max(q.shape[3], 1)) if scale is None else float(scale)
    form = Form(_HEADS_FIRST, _HEADS_FIRST, _HEADS_FIRST, None, factor, float(least_logit(accumulator(q.dtype))), is_causal, bool(masks))
    operands = (q, k, v, *masks)
    program = _expansion(form, tuple([ShapedArray(x.shape, x.dtype) for x in operands]))
    out: Array = current_trace().process(attention_p, operands, program)[0]
    return out


#: Arrays (batch, heads, rows, features).
_HEADS_FIRST = Axes((0, 1), 2, 3)


@functools.lru_cache(maxsize=256)
def _expansion(form: Form, avals: tuple[ShapedArray, ...]) -> SharedParams:
    """Return the parameters of attention for operands of these types."""

    def expand(q: Array, k: Array, v: Array, *masks: Array) -> list[Array]:
        condition = causal_condition(q.shape[2], k.shape[2]) if form.causal else None
        out, logits = expanded_attention(q, k, v, None, _both(masks[0] if masks else None, condition), form.scale)
        top = logits.max(-1, keepdims=True)
        return [out, vnp.concatenate([top, vnp.exp(logits - top).sum(-1, keepdims=True)], -1)]

    return SharedParams(attention_params(trace_to_jaxpr(expand, avals, "attention"), form))


def expanded_attention(
    q: Array, k: Array, v: Array, bias: Any = None, seen: Any = None, scale: Any = None, drop: Callable[[Array], Array] | None = None
) -> tuple[Array, Array]:
    """Return the result of `attend` by products and a softmax, and the logits."""
    batch, heads, t, features = q.shape
    groups, s = k.shape[1:3]
    wide = accumulator(q.dtype)
    grouped = q.reshape(batch, groups, heads // max(groups, 1) * t, features)
    logits = vnp.matmul(grouped, k.swapaxes(2, 3), preferred_element_type=wide).reshape(batch, heads, t, s)
    logits = logits * (1 / math.sqrt(max(features, 1)) if scale is None else scale)
    if bias is not None:
        logits = (logits + bias).astype(wide)
    if seen is not None:
        logits = vnp.where(seen, logits, least_logit(wide))
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


def _visible(t: int, s: int, mask: Any, query_lengths: Any, key_lengths: Any, window: Any) -> Any:
    """Return a mask of the keys that each query sees, or None for all."""
    rows, columns = vnp.arange(t)[:, None], vnp.arange(s)[None, :]
    conditions = [] if mask is None else [as_value(mask)]
    if window is not None:
        left, right = (window, window) if isinstance(window, int) else window
        conditions.append((columns >= rows - left) & (columns <= rows + right))
    if query_lengths is not None:
        conditions.append(rows < _per_entry(query_lengths))
    if key_lengths is not None:
        conditions.append(columns < _per_entry(key_lengths))
    seen = None
    for condition in conditions:
        seen = _both(seen, condition)
    return seen


def _both(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else one & other
