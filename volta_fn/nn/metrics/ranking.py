"""How well scores rank examples: the area under the receiver operating characteristic."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.nn.losses.common import real_operands


def roc_auc(scores: Any, labels: Any) -> Array:
    """The area under the receiver operating characteristic: how often a positive example scores above a negative one.

    Equal scores count half (Mann and Whitney 1947). NaN if a score is NaN, or if there are no positive or no negative examples.

    Args:
        scores: numbers of shape (N,), larger for what seems positive.
        labels: of the same shape: true, or not 0, for positive examples.

    Raises:
        ShapeError: other shapes. DTypeError: complex scores.

    >>> import volta_fn as vf
    >>> vf.nn.metrics.roc_auc(vf.numpy.array([0.1, 0.4, 0.35, 0.8]), vf.numpy.array([0, 0, 1, 1]))
    Array(0.75, dtype=float32)
    """
    _, (values,) = real_operands("roc_auc", scores)
    positive = as_value(labels) != 0
    if values.ndim != 1 or positive.shape != values.shape:
        raise ShapeError(f"roc_auc: scores and labels of one shape (N,) are needed, got {values.shape} and {positive.shape}")
    order = vnp.argsort(values)
    ranked, hit = values[order], positive[order]
    below = vnp.concatenate([vnp.zeros(1, "int32"), vnp.cumsum(~hit, dtype="int32")])
    # Of each example: the negative ones that score less, and those that score no more.
    less = below[vnp.searchsorted(ranked, ranked, side="left")]
    no_more = below[vnp.searchsorted(ranked, ranked, side="right")]
    won = (less + no_more) / (2 * below[-1])
    area = vnp.sum(vnp.where(hit, won, 0.0)) / vnp.sum(hit)
    return vnp.where(vnp.any(vnp.isnan(values)), vnp.nan, area)
