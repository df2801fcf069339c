"""Attention in PyTorch's layout, (…, heads, T, features), and its masks.

A mask is bool, True where a query may attend to a key, or float, added to the logits. It broadcasts to (…, heads, T, S), with T queries
and S keys.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import BOOL, FLOATS, accumulator
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.nn.attention import attend, least_logit
from volta_fn.nn.layers.common import broadcasts_to
from volta_fn.nn.layers.dropout import Dropout

__all__ = ["causal_mask", "scaled_dot_product_attention"]


def causal_mask(length: int, key_length: int | None = None, *, offset: Any = 0) -> Array:
    """Return a bool mask (length, key_length): query t sees keys up to t + offset.

    Args:
        length: the number of queries.
        key_length: the number of keys (default: as many).
        offset: the index of the first query's key, an integer, which may be traced.

    >>> vf.nn.causal_mask(3)
    Array([[ True, False, False],
           [ True,  True, False],
           [ True,  True,  True]], dtype=bool)
    """
    keys = vnp.arange(length if key_length is None else key_length)
    return keys[None, :] <= vnp.arange(length)[:, None] + offset


def scaled_dot_product_attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
    key: Any = None,
) -> Array:
    """Compute softmax(scale q kᵀ + mask) v for each head, in PyTorch's layout.

    See Vaswani et al. (2017). It equals `dot_product_attention` except for the layout and the dropout. A query that may attend to no key
    weights all equally.

    Args:
        q: shape (…, heads, T, features), or (T, features).
        k: shape (…, heads, S, features), with the same leading axes.
        v: shape (…, heads, S, value features).
        attn_mask: bool, True where a query may attend to a key, or float, added to the logits; broadcasts to (…, heads, T, S).
        dropout_p: the probability of dropping a weight; 0 except in training.
        is_causal: query t attends only to keys up to t, and only where the mask allows it.
        scale: factor of the logits (default 1 / sqrt(features)).
        enable_gqa: `k` and `v` may have fewer heads, each of which serves as many of q's, next to one another (grouped queries).
        key: of the dropout; needed if there is dropout.

    Returns:
        Shape (…, heads, T, value features).

    Raises:
        ShapeError, DTypeError: the shapes or dtypes do not fit. ArgumentError: `dropout_p` is no probability.
        ArgumentTypeError: the key is missing.

    >>> q = vf.numpy.ones((2, 4, 5, 8))
    >>> vf.nn.scaled_dot_product_attention(q, q, q, is_causal=True).shape
    (2, 4, 5, 8)
    """
    q, k, v = as_value(q), as_value(k), as_value(v)
    _check(q, k, v, enable_gqa)
    masks = [] if attn_mask is None else [as_value(attn_mask)]
    dropout = Dropout.init(dropout_p)
    drop = None if dropout_p == 0 else functools.partial(dropout, key=key, training=True)
    run = functools.partial(masked_attention, masks=masks, scale=scale, drop=drop, is_causal=is_causal)
    return run(q[None], k[None], v[None])[0] if q.ndim == 2 else run(q, k, v)


def masked_attention(
    q: Array,
    k: Array,
    v: Array,
    masks: Sequence[Array],
    *,
    scale: Any = None,
    drop: Callable[[Array], Array] | None = None,
    is_causal: bool = False,
) -> Array:
    """Compute attention under several masks, after a check; the weights pass `drop`."""
    lead = q.shape[:-3]
    shape = (*q.shape[:-1], k.shape[-2])
    q, k, v = (x.reshape(math.prod(lead), *x.shape[-3:]) for x in (q, k, v))
    bias = seen = None
    for mask in masks:
        fitted = _fit(mask, shape)
        if mask.dtype in BOOL:
            seen = fitted if seen is None else seen & fitted
        else:
            bias = fitted if bias is None else bias + fitted
    if bias is not None:
        wide = accumulator(q.dtype)
        bias = vnp.maximum(bias.astype(vnp.promote_types(bias.dtype, wide)), least_logit(wide))
    out = attend(q, k, v, bias, seen, scale, drop, is_causal)
    return out.reshape(*lead, *out.shape[1:])


def _fit(mask: Array, shape: tuple[int, ...]) -> Array:
    """Reshape a mask for attention whose leading axes are merged into one."""
    if mask.dtype not in BOOL | FLOATS:
        raise DTypeError(f"attention: a mask is bool (True: may attend) or float (added to the logits), got {mask.aval}")
    if not broadcasts_to(mask.shape, shape):
        raise ShapeError(f"attention: a mask must broadcast to (…, heads, T, S) = {shape}, got shape {mask.shape}")
    if mask.ndim <= 3 or len(shape) == 4:
        return mask
    full = vnp.broadcast_to(mask, (*shape[:-3], *mask.shape[-3:]))
    return full.reshape(math.prod(shape[:-3]), *mask.shape[-3:])


def _check(q: Array, k: Array, v: Array, grouped: bool) -> None:
    fits = q.ndim == k.ndim == v.ndim >= 2 and q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1]
    if fits and q.ndim > 2:
        heads, groups = q.shape[-3], k.shape[-3]
        fits = q.shape[:-3] == k.shape[:-3] and (heads == groups or (grouped and groups > 0 and heads % groups == 0))
    if not fits:
        raise ShapeError(
            "scaled_dot_product_attention: q (…, heads, T, features), k (…, heads, S, features) and v (…, heads, S, value features) are "
            f"needed, with enable_gqa=True also k and v with heads that divide q's; got {q.shape}, {k.shape}, {v.shape}"
        )
    if not q.dtype == k.dtype == v.dtype:
        names = ", ".join(x.dtype.name for x in (q, k, v))
        raise DTypeError(f"scaled_dot_product_attention: q, k and v have dtypes {names}; convert them to one")
