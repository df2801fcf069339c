"""Losses of embeddings: contrastive and triplets."""

from __future__ import annotations

import math
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.nn.activations import relu
from volta_fn.nn.losses.common import real_operands
from volta_fn.optim.losses.regression import cosine_similarity
from volta_fn.scipy.special.exponential import logsumexp

__all__ = ["ntxent", "triplet_margin_loss"]


def ntxent(embeddings: Any, labels: Any, temperature: Any = 0.07) -> Array:
    """Return the normalised, temperature-scaled cross entropy (Chen et al. 2020).

    Each pair of embeddings with equal labels is a positive one, contrasted with all embeddings of other labels.

    Args:
        embeddings: vectors of shape (N, D).
        labels: numbers of shape (N,).
        temperature: divides the cosine similarities.

    Returns the mean over positive pairs (NaN if there are none). Raises `ShapeError` if the shapes do not fit.

    >>> embeddings = vnp.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> optim.losses.ntxent(embeddings, vnp.array([0, 0, 1, 1]), temperature=0.5).round(4)
    Array(0.2899, dtype=float32)
    """
    dtype, (x,) = real_operands("ntxent", embeddings)
    names = as_value(labels)
    if x.ndim != 2 or names.shape != x.shape[:1]:
        raise ShapeError(f"ntxent: embeddings have shape (N, D) and labels (N,), got {x.shape} and {names.shape}")
    scores = cosine_similarity(x[None], x[:, None], epsilon=float(vnp.finfo(x.dtype).eps)) / temperature
    equal = names[:, None] == names[None]
    others = logsumexp(vnp.where(equal, -math.inf, scores), 1, keepdims=True)
    positive = equal & ~vnp.eye(x.shape[0], dtype=bool)
    terms = vnp.logaddexp(others, scores) - scores
    return (vnp.sum(vnp.where(positive, terms, 0.0)) / vnp.sum(positive)).astype(dtype)


def triplet_margin_loss(
    anchors: Any, positives: Any, negatives: Any, axis: int = -1, norm_degree: float = 2, margin: Any = 1.0, eps: Any = 1e-6
) -> Array:
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin).

    d is the norm (Σ|x - y|ᵖ + eps)^(1/p). (`nn.triplet_margin_loss` adds eps to the differences instead, as PyTorch does.)

    Args:
        anchors: vectors.
        positives: vectors that should be close to the anchors.
        negatives: vectors that should be further away.
        axis: the vectors' axis.
        norm_degree: p.
        margin: how much further.
        eps: keeps the derivative of a distance of 0 finite.

    >>> a, p, n = (vnp.array([[value, 0.0]]) for value in (0.0, 1.0, 1.5))
    >>> optim.losses.triplet_margin_loss(a, p, n).round(4)
    Array([0.5], dtype=float32)
    """
    dtype, (a, near, far) = real_operands("triplet_margin_loss", anchors, positives, negatives)

    def distance(other: Array) -> Array:
        powers = vnp.abs(a - other) ** norm_degree
        return (vnp.sum(powers, axis) + eps) ** (1 / norm_degree)

    return relu(distance(near) - distance(far) + margin).astype(dtype)
