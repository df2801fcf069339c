"""What the metrics of classes share: reading predictions, and weighted shares."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import BOOL, INTEGERS
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.nn.losses.common import class_axis, class_labels, real_operands

#: The prediction from scores that hold NaN.
_NONE = np.iinfo(np.int32).min


def predicted_classes(metric: str, predictions: Any, labels: Any, axis: int | None) -> tuple[Array, Array]:
    """Predicted class numbers, one that is no label where there are none, and the labels."""
    given, wanted = as_value(predictions), as_value(labels)
    if given.ndim == wanted.ndim + 1:
        _, (scores,) = real_operands(metric, given)
        place = class_axis(metric, scores, axis)
        wanted = class_labels(metric, wanted, scores.shape, place)
        spoilt = vnp.any(vnp.isnan(scores), place)
        return vnp.where(spoilt, _NONE, vnp.argmax(scores, place)), wanted
    for array in (given, wanted):
        if array.dtype not in INTEGERS | BOOL:
            raise DTypeError(f"{metric}: class numbers are integers, got {array.aval}; scores need one axis more than the labels")
    if given.shape != wanted.shape:
        raise ShapeError(f"{metric}: predictions and labels need the same shape, got {given.shape} and {wanted.shape}")
    return given, wanted


def weighted_share(hits: Array, weight: Any, metric: str) -> Array:
    """The weighted mean of truth values, NaN of none."""
    if weight is None:
        return vnp.mean(hits.astype("float32"))
    (factors,) = real_operands(metric, weight)[1]
    if factors.shape != hits.shape:
        raise ShapeError(f"{metric}: {hits.shape} examples need a weight of that shape, got {factors.shape}")
    return vnp.sum(vnp.where(hits, factors, 0.0)) / vnp.sum(factors)
