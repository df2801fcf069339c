"""Gathers, scatters, sorting and selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.onnx.operators.registry import Node, as_array, operator, wrapped
from volta_fn.transforms.vmap import vmap


@operator("Gather")
def gather(node: Node, x: Any, indices: Any) -> Any:
    """Take elements along an axis."""
    axis = node.get("axis", 0)
    if node.xp is np:
        return np.take(x, indices, axis)
    return vnp.take(as_array(x), wrapped(indices, x.shape[axis]), axis)


@operator("GatherElements")
def gather_elements(node: Node, x: Any, indices: Any) -> Any:
    """Take elements along an axis, at positions of their own."""
    axis = node.get("axis", 0) % x.ndim
    positions = _positions_along(wrapped(indices, x.shape[axis]), axis)
    return as_array(x)[positions]


def _positions_along(indices: Any, axis: int) -> tuple[Any, ...]:
    """Return indices for all axes: of one those given, of the others each position."""
    positions: list[Any] = list(np.indices(indices.shape, sparse=True))
    positions[axis] = indices
    return tuple(positions)


@operator("GatherND")
def gather_nd(node: Node, x: Any, indices: Any) -> Any:
    """Take slices at positions of several axes."""

    def one(x: Any, indices: Any) -> Any:
        return x[_split(indices, x.shape)]

    for _ in range(node.get("batch_dims", 0)):
        one = vmap(one)
    return one(as_array(x), as_array(indices))


def _split(indices: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the indices of each axis, from those along the last axis."""
    return tuple([wrapped(indices[..., i], shape[i]) for i in range(indices.shape[-1])])


def _updated(node: Node, x: Any, positions: tuple[Any, ...], updates: Any) -> Any:
    at = as_array(x).at[positions]
    functions = {"none": at.set, "add": at.add, "mul": at.multiply, "max": at.max, "min": at.min}
    return functions[node.get("reduction", "none")](as_array(updates))


@operator("ScatterElements", "Scatter")
def scatter_elements(node: Node, x: Any, indices: Any, updates: Any) -> Any:
    """Update elements along an axis, at positions of their own."""
    axis = node.get("axis", 0) % x.ndim
    return _updated(node, x, _positions_along(wrapped(indices, x.shape[axis]), axis), updates)


@operator("ScatterND")
def scatter_nd(node: Node, x: Any, indices: Any, updates: Any) -> Any:
    """Update slices at positions of several axes."""
    return _updated(node, x, _split(indices, x.shape), updates)


@operator("TensorScatter")
def tensor_scatter(node: Node, cache: Any, update: Any, starts: Any = None) -> Any:
    """Write new positions of a sequence to a cache, from each example's start."""
    axis = node.get("axis", -2) % cache.ndim
    size, count = cache.shape[axis], update.shape[axis]
    begins = vnp.zeros(cache.shape[0], np.int64) if starts is None else as_array(starts)
    positions = begins[:, None] + vnp.arange(count, dtype=np.int64)
    positions = positions % size if node.get("mode", "linear") == "circular" else positions

    def one(kept: Any, new: Any, at: Any) -> Any:
        return vnp.moveaxis(vnp.moveaxis(kept, axis - 1, 0).at[at].set(vnp.moveaxis(new, axis - 1, 0)), 0, axis - 1)

    return vmap(one)(as_array(cache), as_array(update), positions)


@operator("OneHot")
def one_hot(node: Node, indices: Any, depth: Any, values: Any) -> Any:
    """Set one element for each index, and the others, to given values."""
    (count,), indices = node.ints(depth, "depth"), as_array(indices).astype(np.int64)
    axis = node.get("axis", -1) % (indices.ndim + 1)
    numbers = vnp.arange(count, dtype=np.int64).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return vnp.where(vnp.expand_dims(wrapped(indices, count), axis) == numbers, as_array(values)[1], as_array(values)[0])


@operator("NonZero")
def non_zero(node: Node, x: Any) -> Any:
    """Return the positions of elements that are not zero."""
    return np.stack(np.nonzero(np.atleast_1d(node.host(x, "X")))).astype(np.int64)


@operator("Compress")
def compress(node: Node, x: Any, condition: Any) -> Any:
    """Take what a condition on the host marks."""
    chosen = np.flatnonzero(node.host(condition, "condition"))
    return vnp.take(as_array(x), chosen, node.get("axis")) if "axis" in node.attributes else as_array(x).reshape(-1)[chosen]


@operator("TopK")
def top_k(node: Node, x: Any, k: Any = None) -> Any:
    """Return the largest or smallest elements along an axis, and their positions."""
    x = as_array(x)
    axis, count = node.get("axis", -1) % x.ndim, node.get("k") if k is None else node.ints(k, "k")[0]
    order = vnp.argsort(x, axis=axis, stable=True, descending=bool(node.get("largest", 1)))
    chosen = lax.slice_in_dim(order, 0, count, axis=axis)
    return vnp.take_along_axis(x, chosen, axis), chosen.astype(np.int64)


@operator("Unique")
def unique(node: Node, x: Any) -> Any:
    """Return the distinct elements, where they are, and how many of each there are."""
    values, axis = node.host(x, "X"), node.get("axis")
    found, first, inverse, counts = np.unique(values, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        found, first, counts = np.take(found, order, axis or 0), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return found, *[chunk.astype(np.int64) for chunk in (first, inverse, counts)]


@operator("ReverseSequence")
def reverse_sequence(node: Node, x: Any, lengths: Any) -> Any:
    """Reverse the first elements of each sequence."""
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    x = vnp.moveaxis(as_array(x), (batch, time), (0, 1))
    numbers, lengths = vnp.arange(x.shape[1], dtype=np.int64)[None], as_array(lengths)[:, None]
    order = vnp.where(numbers < lengths, lengths - 1 - numbers, numbers)
    found = vnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), 1)
    return vnp.moveaxis(found, (0, 1), (batch, time))


@operator("NonMaxSuppression")
def non_max_suppression(node: Node, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, threshold: Any = None) -> Any:
    """Return the boxes of each class that overlap with no better one.

    Their number depends on the data, so it runs on the host.
    """
    corners, numbers = node.host(boxes, "boxes"), node.host(scores, "scores")
    count = 0 if most is None else node.ints(most, "max_output_boxes_per_class")[0]
    limit = 0.0 if overlap is None else float(node.host(overlap, "iou_threshold").reshape(-1)[0])
    least = None if threshold is None else float(node.host(threshold, "score_threshold").reshape(-1)[0])
    if node.get("center_point_box", 0):
        centre, half = corners[..., [1, 0]], corners[..., [3, 2]] / 2
        corners = np.concatenate([centre - half, centre + half], -1)
    found = []
    for batch, of_classes in enumerate(numbers):
        for category, of_boxes in enumerate(of_classes):
            kept = _suppressed(corners[batch], of_boxes, count, limit, least)
            found += [(batch, category, index) for index in kept]
    return np.array(found, np.int64).reshape(-1, 3)


def _suppressed(boxes: np.ndarray, scores: np.ndarray, count: int, limit: float, least: float | None) -> list[int]:
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable"):
        if len(kept) >= count or (least is not None and scores[index] <= least):
            break
        if all(_overlap(boxes[index], boxes[other]) <= limit for other in kept):
            kept.append(int(index))
    return kept


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    low_a, high_a, low_b, high_b = np.minimum(a[:2], a[2:]), np.maximum(a[:2], a[2:]), np.minimum(b[:2], b[2:]), np.maximum(b[:2], b[2:])
    common = np.prod(np.maximum(0, np.minimum(high_a, high_b) - np.maximum(low_a, low_b)))
    union = np.prod(high_a - low_a) + np.prod(high_b - low_b) - common
    return float(common / union) if union > 0 else 0.0
