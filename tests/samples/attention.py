"""Samples of attention, its tangent and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.samples.sample import Arg, Sample
from volta_fn.nn.attention import attend

_MASK = np.array([[True, False, True, True], [True, True, False, True], [False, True, True, False]])
_CAUSAL = np.tri(3, 4, dtype=bool)
_Q, _K, _V = Arg((1, 2, 3, 2)), Arg((1, 2, 4, 2)), Arg((1, 2, 4, 3))
_SHARED = Arg((1, 1, 4, 2)), Arg((1, 1, 4, 3))


def _attention(q: Any, k: Any, v: Any, seen: Any = True) -> Any:
    """Attention by its definition."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    logits = np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e30)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def _unit(k: Any) -> Any:
    """Values with which the result of attention is its weights."""
    return np.broadcast_to(np.eye(k.shape[2]), (*k.shape[:2], k.shape[2], k.shape[2]))


def _tangent(q: Any, k: Any, v: Any, direction: Any) -> Any:
    """Return the tangent for a direction of q."""
    weights = _attention(q, k, _unit(k))
    slopes = direction @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return weights * (slopes - (weights * slopes).sum(-1, keepdims=True)) @ v


def _gradient(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
    """Multiply the transposed weights by the result's cotangent."""
    return _attention(q, k, _unit(k)).swapaxes(-1, -2) @ cotangent


SAMPLES = [
    Sample("attention", lambda q, k, v: attend(q, k, v), (_Q, _K, _V), _attention, dtypes=("float32", "float64")),
    Sample("attention", lambda q, k, v: attend(q, k, v), (_Q, *_SHARED), _attention, label="shared"),
    Sample(
        "attention", lambda q, k, v: attend(q, k, v, masks=[vf.numpy.asarray(_MASK)]), (_Q, _K, _V), lambda *a: _attention(*a, _MASK),
        label="mask",
    ),
    Sample("attention", lambda q, k, v: attend(q, k, v, is_causal=True), (_Q, _K, _V), lambda *a: _attention(*a, _CAUSAL), label="causal"),
    Sample(
        "attention_tangent", lambda q, k, v, t: vf.jvp(lambda x: attend(x, k, v), (q,), (t,))[1], (_Q, _K, _V, _Q), _tangent,
        dtypes=("float64",), linear=(3,),
    ),
    Sample(
        "attention_gradient", lambda q, k, v, g: vf.vjp(lambda x: attend(q, k, x), v)[1](g)[0], (_Q, _K, _V, Arg((1, 2, 3, 3))), _gradient,
        dtypes=("float64",), linear=(3,),
    ),
]  # fmt: skip
