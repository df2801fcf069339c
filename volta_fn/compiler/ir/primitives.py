"""Primitives that only passes of the compiler introduce."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive, evaluation_rules
from volta_fn.primitives.call import Axes as AttentionAxes
from volta_fn.primitives.call import Form
from volta_fn.primitives.data_movement.gather import gather_p, scatter_add_p

# Attention and its gradient: the primitives of the attention pass.
#
# ``attention(q, k, v[, mask])`` gives the result and, for each query, its largest logit and the sum of its weights relative to that, as
# float32 of the shape (heads, queries, 2). ``attention_gradient(q, k, v[, mask], result, statistics, cotangent)`` gives the cotangents
# of q, k and v. Results have the layout of the operand they belong to: the first that of q, gradients that of their primal.

_FLOAT = np.dtype(np.float32)


def result_avals(form: Form, q: ShapedArray, v: ShapedArray) -> tuple[ShapedArray, ShapedArray]:
    """Return the types of the results of `attention`."""
    shape = list(q.shape)
    shape[form.q.features] = v.shape[form.v.features]
    rows = [math.prod(q.shape[a] for a in form.q.heads), q.shape[form.q.rows]]
    return ShapedArray(tuple(shape), q.dtype), ShapedArray((*rows, 2), _FLOAT)


def _attention_avals(q: ShapedArray, k: ShapedArray, v: ShapedArray, *others: ShapedArray, form: Form) -> tuple[ShapedArray, ...]:
    return result_avals(form, q, v)


def _rows(x: np.ndarray, axes: AttentionAxes, heads: int = 0) -> np.ndarray:
    """Return float32 matrices (…, heads, rows, features), heads repeated to a number."""
    matrices = np.asarray(x, _FLOAT).transpose(axes.order)
    return np.repeat(matrices, heads // matrices.shape[-3], -3) if heads else matrices


def attention_weights(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, form: Form) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the weights, the statistics, and the mask of visible keys."""
    logits = q @ k.swapaxes(-1, -2) * np.float32(form.scale)
    t, s = logits.shape[-2:]
    visible = np.ones((t, s), np.bool_) if mask is None else mask
    if form.causal:
        visible = visible & np.tri(t, s, dtype=np.bool_)
    logits = np.where(visible, logits, np.float32(form.unseen))
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    return weights / total, np.concatenate([top, total], -1).reshape(-1, t, 2), visible


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *others: np.ndarray, form: Form) -> tuple[np.ndarray, np.ndarray]:
    queries = _rows(q, form.q)
    heads = queries.shape[-3]
    weights, statistics, _ = attention_weights(queries, _rows(k, form.k, heads), others[0] if form.masked else None, form)
    return (weights @ _rows(v, form.v, heads)).transpose(form.q.inverse).astype(q.dtype), statistics


def _attention_gradient(q: np.ndarray, k: np.ndarray, v: np.ndarray, *others: np.ndarray, form: Form) -> tuple[np.ndarray, ...]:
    assert form.cotangent is not None
    queries, cotangent = _rows(q, form.q), _rows(others[-1], form.cotangent)
    heads = queries.shape[-3]
    keys, values = _rows(k, form.k, heads), _rows(v, form.v, heads)
    weights, _, visible = attention_weights(queries, keys, others[0] if form.masked else None, form)
    slopes = cotangent @ values.swapaxes(-1, -2)
    slopes = weights * (slopes - (slopes * weights).sum(-1, keepdims=True))
    slopes = np.where(visible, slopes, 0) * np.float32(form.scale)

    def summed(x: np.ndarray, like: np.ndarray, axes: AttentionAxes) -> np.ndarray:
        """Sum over the heads that share a key or value."""
        groups = like.shape[axes.heads[-1]]
        total = x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:]).sum(-3)
        return total.transpose(axes.inverse).astype(like.dtype)

    to_k, to_v = slopes.swapaxes(-1, -2) @ queries, weights.swapaxes(-1, -2) @ cotangent
    return summed(slopes @ keys, q, form.q), summed(to_k, k, form.k), summed(to_v, v, form.v)


attention_routine_p = Primitive("attention_routine", _attention_avals, evaluate=_attention, multiple_results=True, listed=False)
attention_gradient_routine_p = Primitive(
    "attention_gradient_routine",
    lambda q, k, v, *others, form: (q, k, v),
    evaluate=_attention_gradient,
    multiple_results=True,
    listed=False,
)


# Gathers and scatters whose negative indices count from the end: the primitives of the pass for negative indices.
#
# ``wrapped_gather`` and ``wrapped_scatter_add`` are `gather` and `scatter_add` of one position per window, with the same parameters. A
# negative position stands for itself plus the size of the operand's dimension.


def _from_the_start(operand: np.ndarray, indices: np.ndarray, dim: int) -> np.ndarray:
    return np.where(indices < 0, indices + operand.shape[dim], indices).astype(indices.dtype)


def _wrapped_gather(operand: np.ndarray, indices: np.ndarray, **params: Any) -> Any:
    (dim,) = params["dimension_numbers"].start_index_map
    return evaluation_rules[gather_p](operand, _from_the_start(operand, indices, dim), **params)


def _wrapped_scatter_add(operand: np.ndarray, indices: np.ndarray, updates: np.ndarray, **params: Any) -> Any:
    (dim,) = params["dimension_numbers"].scatter_dims_to_operand_dims
    return evaluation_rules[scatter_add_p](operand, _from_the_start(operand, indices, dim), updates, **params)


wrapped_gather_p = Primitive("wrapped_gather", gather_p.abstract, evaluate=_wrapped_gather, listed=False)
wrapped_scatter_add_p = Primitive("wrapped_scatter_add", scatter_add_p.abstract, evaluate=_wrapped_scatter_add, listed=False)
