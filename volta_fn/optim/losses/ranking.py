"""Losses of rankings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.nn.losses.common import real_operands
from volta_fn.scipy.special.exponential import log_softmax

__all__ = ["ranking_softmax_loss"]


def ranking_softmax_loss(
    logits: Any, labels: Any, *, where: Any = None, weights: Any = None, reduce_fn: Callable[..., Any] | None = vnp.mean
) -> Array:
    """Return minus the sum of label · log(softmax(logits)) over lists of items.

    It is the loss of ListNet (Cao et al. 2007), for relevances instead of probabilities.

    Args:
        logits: scores of shape (…, items).
        labels: relevances of the same shape.
        where: True for the items that exist; of the same shape.
        weights: factors of the labels.
        reduce_fn: reduces the lists' losses, with an argument `where` for the lists that have items; None for no reduction. The mean of
            no lists is 0.

    >>> optim.losses.ranking_softmax_loss(vnp.array([2.0, 1.0, 0.0]), vnp.array([1.0, 0.0, 0.0])).round(4)
    Array(0.4076, dtype=float32)
    """
    dtype, (x, y) = real_operands("ranking_softmax_loss", logits, labels)
    mask = None if where is None else as_value(where)
    if mask is not None:
        x, y = vnp.where(mask, x, -math.inf), vnp.where(mask, y, 0.0)
    if weights is not None:
        y = y * weights
    values = -vnp.sum(y * log_softmax(x), -1, where=mask)
    lists = None if mask is None else vnp.any(mask, -1)
    return _reduced(values, lists, reduce_fn).astype(dtype)


def _reduced(values: Array, lists: Array | None, reduce_fn: Callable[..., Any] | None) -> Array:
    if reduce_fn is None:
        return values if lists is None else vnp.where(lists, values, 0.0)
    result = reduce_fn(values, where=lists)
    if reduce_fn is not vnp.mean:
        return result
    none = values.size == 0 if lists is None else ~vnp.any(lists)
    return vnp.where(none, 0.0, result)
