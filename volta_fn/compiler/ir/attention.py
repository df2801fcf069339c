"""Attention and its gradient as primitives, which only the attention pass uses.

``attention(q, k, v[, mask])`` gives the result and, for each query, its largest logit and the sum of its weights relative to that, as
float32 of the shape (heads, queries, 2). ``attention_gradient(q, k, v[, mask], result, statistics, cotangent)`` gives the cotangents of q,
k and v. Results have the layout of the operand they belong to: the first that of q, gradients that of their primal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive
from volta_fn.primitives.call import Axes, Form

_FLOAT = np.dtype(np.float32)


def result_avals(form: Form, q: ShapedArray, v: ShapedArray) -> tuple[ShapedArray, ShapedArray]:
    """Return the types of the results of `attention`."""
    shape = list(q.shape)
    shape[form.q.features] = v.shape[form.v.features]
    rows = [math.prod(q.shape[a] for a in form.q.heads), q.shape[form.q.rows]]
    return ShapedArray(tuple(shape), q.dtype), ShapedArray((*rows, 2), _FLOAT)


def _abstract(q: ShapedArray, k: ShapedArray, v: ShapedArray, *others: ShapedArray, form: Form) -> tuple[ShapedArray, ...]:
    return result_avals(form, q, v)


def _gradient_abstract(q: ShapedArray, k: ShapedArray, v: ShapedArray, *others: ShapedArray, form: Form) -> tuple[ShapedArray, ...]:
    return q, k, v


def _rows(x: np.ndarray, axes: Axes, heads: int = 0) -> np.ndarray:
    """Return an array as float32 matrices (…, heads, rows, features).

    Heads are repeated to the given number.
    """
    found = np.asarray(x, _FLOAT).transpose(axes.order)
    return np.repeat(found, heads // found.shape[-3], -3) if heads else found


def _weights(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, form: Form) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the weights, the statistics, and which query sees which key."""
    logits = q @ k.swapaxes(-1, -2) * np.float32(form.scale)
    t, s = logits.shape[-2:]
    seen = np.ones((t, s), np.bool_) if mask is None else mask
    if form.causal:
        seen = seen & np.tri(t, s, dtype=np.bool_)
    logits = np.where(seen, logits, np.float32(form.unseen))
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    return weights / total, np.concatenate([top, total], -1).reshape(-1, t, 2), seen


def _evaluate(q: np.ndarray, k: np.ndarray, v: np.ndarray, *others: np.ndarray, form: Form) -> tuple[np.ndarray, np.ndarray]:
    queries = _rows(q, form.q)
    heads = queries.shape[-3]
    weights, statistics, _ = _weights(queries, _rows(k, form.k, heads), others[0] if form.masked else None, form)
    return (weights @ _rows(v, form.v, heads)).transpose(form.q.inverse).astype(q.dtype), statistics


def _gradient(q: np.ndarray, k: np.ndarray, v: np.ndarray, *others: np.ndarray, form: Form) -> tuple[np.ndarray, ...]:
    assert form.cotangent is not None
    queries, cotangent = _rows(q, form.q), _rows(others[-1], form.cotangent)
    heads = queries.shape[-3]
    keys, values = _rows(k, form.k, heads), _rows(v, form.v, heads)
    weights, _, seen = _weights(queries, keys, others[0] if form.masked else None, form)
    slopes = cotangent @ values.swapaxes(-1, -2)
    slopes = weights * (slopes - (slopes * weights).sum(-1, keepdims=True))
    slopes = np.where(seen, slopes, 0) * np.float32(form.scale)

    def summed(x: np.ndarray, like: np.ndarray, axes: Axes) -> np.ndarray:
        """Sum over the heads that share a key or value."""
        groups = like.shape[axes.heads[-1]]
        total = x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:]).sum(-3)
        return total.transpose(axes.inverse).astype(like.dtype)

    to_k, to_v = slopes.swapaxes(-1, -2) @ queries, weights.swapaxes(-1, -2) @ cotangent
    return summed(slopes @ keys, q, form.q), summed(to_k, k, form.k), summed(to_v, v, form.v)


attention_routine_p = Primitive("attention_routine", _abstract, evaluate=_evaluate, multiple_results=True, listed=False)
attention_gradient_routine_p = Primitive(
    "attention_gradient_routine", _gradient_abstract, evaluate=_gradient, multiple_results=True, listed=False
)
