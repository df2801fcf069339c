"""Argument checks and axes of losses with Optax's signatures."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ShapeError
from volta_fn.nn.losses.common import real_operands
from volta_fn.primitives.data_movement.movement import canonical_axis

#: One axis, several, or None for all.
Axes = int | tuple[int, ...] | None


def same_shapes(loss: str, first: Any, second: Any) -> tuple[np.dtype, list[Array]]:
    """Return the dtype of the result and the operands; `ShapeError` if shapes differ."""
    dtype, (x, y) = real_operands(loss, first, second)
    if x.shape != y.shape:
        raise ShapeError(f"{loss}: the arguments need one shape, got {x.shape} and {y.shape}; reshape or broadcast one of them")
    return dtype, [x, y]


def broadcast(loss: str, first: Any, second: Any) -> tuple[np.dtype, list[Array]]:
    """Return the dtype of the result and the operands, broadcast to one shape."""
    dtype, arrays = real_operands(loss, first, second)
    return dtype, list(vnp.broadcast_arrays(*arrays))


def errors_of(loss: str, predictions: Any, targets: Any) -> tuple[np.dtype, Array]:
    """Return the dtype of the result and predictions - targets (None: predictions)."""
    dtype, (x, y) = real_operands(loss, predictions, 0.0 if targets is None else targets)
    return dtype, x - y


def with_last_axis(loss: str, x: Array, axis: Axes) -> Array:
    """Return `x` with the given axes flattened to one, the last."""
    if not x.ndim:
        raise ShapeError(f"{loss}: an axis of classes is needed, got a 0-d array")
    axes = range(x.ndim) if axis is None else [canonical_axis(a, x.ndim) for a in ((axis,) if isinstance(axis, int) else axis)]
    batch = [a for a in range(x.ndim) if a not in axes]
    moved = x.transpose(*batch, *axes)
    return moved.reshape(*[x.shape[a] for a in batch], -1)
