"""Gathers and scatters, as indices into the flattened operand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from volta_fn.core.jaxpr import Equation
from volta_fn.onnx.rules.registry import Writer, aval, ints, result, rule, scalar, shaped
from volta_fn.primitives.data_movement.indexing import GatherScatterMode

_SCATTERS = {"scatter": "none", "scatter_add": "add", "scatter_max": "max", "scatter_min": "min", "scatter_mul": "mul"}
_INT64 = 7


class Positions:
    """The positions in a flattened operand that index vectors and windows address."""

    def __init__(
        self,
        w: Writer,
        indices: str,
        index_shape: Sequence[int],
        shape: Sequence[int],
        window: Sequence[int],
        mapped: Sequence[int],
        operand_batching: Sequence[int],
        index_batching: Sequence[int],
    ) -> None:
        self.w, self.shape, self.window = w, shape, window
        self.strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
        self.batch = list(index_shape[:-1])
        wide = w.op("Cast", indices, to=_INT64)
        chunks = [w.op("Gather", wide, ints(w, j), axis=len(self.batch)) for j in range(len(mapped))]
        limits = [shape[k] - window[k] for k in mapped]
        #: Whether every start lies inside.
        self.inside = self._inside(chunks, limits)
        start = ints(w, np.zeros(self.batch))
        for chunk, k, limit in zip(chunks, mapped, limits, strict=True):
            clamped = w.op("Max", w.op("Min", chunk, ints(w, limit)), ints(w, 0))
            start = w.op("Add", start, w.op("Mul", clamped, ints(w, self.strides[k])))
        for k, b in zip(operand_batching, index_batching, strict=True):
            numbers = np.arange(self.batch[b]).reshape([-1 if i == b else 1 for i in range(len(self.batch))])
            start = w.op("Add", start, ints(w, numbers * self.strides[k]))
        self.start = start

    def _inside(self, chunks: list[str], limits: list[int]) -> str:
        w = self.w
        found = w.constant(np.ones(self.batch, bool))
        for chunk, limit in zip(chunks, limits, strict=True):
            low, high = w.op("GreaterOrEqual", chunk, ints(w, 0)), w.op("LessOrEqual", chunk, ints(w, limit))
            found = w.op("And", found, w.op("And", low, high))
        return found

    def flat(self, window_dims: Sequence[int], kept: Sequence[int], rank: int) -> str:
        """Return positions in the flattened operand, windows along the given dimensions."""
        offsets = np.zeros([1] * rank, np.int64)
        for dim, k in zip(window_dims, kept, strict=True):
            numbers = np.arange(self.window[k]) * self.strides[k]
            offsets = offsets + numbers.reshape([-1 if i == dim else 1 for i in range(rank)])
        return self.w.op("Add", self.spread(self.start, window_dims, rank), ints(self.w, offsets))

    def spread(self, name: str, window_dims: Sequence[int], rank: int) -> str:
        """Add axes of size 1 for the windows."""
        sizes = iter(self.batch)
        return shaped(self.w, name, [1 if i in window_dims else next(sizes) for i in range(rank)])


@rule("gather")
def gather(w: Writer, eqn: Equation, x: str, indices: str) -> str:
    """Take windows of an array."""
    params, operand, index = eqn.params, aval(eqn), aval(eqn, 1)
    d = params["dimension_numbers"]
    missing = (*d.collapsed_slice_dims, *d.operand_batching_dims)
    kept = [k for k in range(operand.ndim) if k not in missing]
    positions = Positions(
        w,
        indices,
        index.shape,
        operand.shape,
        params["slice_sizes"],
        d.start_index_map,
        d.operand_batching_dims,
        d.start_indices_batching_dims,
    )
    rank = result(eqn).ndim
    found = w.op("Gather", shaped(w, x, [-1]), positions.flat(d.offset_dims, kept, rank), axis=0)
    if params["mode"] is not GatherScatterMode.FILL_OR_DROP:
        return found
    return w.op("Where", positions.spread(positions.inside, d.offset_dims, rank), found, scalar(w, _fill(eqn), operand))


def _fill(eqn: Equation) -> object:
    """Return what a gather gives where an index is out of range."""
    value, dtype = eqn.params["fill_value"], aval(eqn).dtype
    if value is not None:
        return value
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.min if dtype.kind == "i" else limits.max
    return True if dtype == np.bool_ else np.nan


@rule(*_SCATTERS)
def scatter(w: Writer, eqn: Equation, x: str, indices: str, updates: str) -> str:
    """Update windows of an array; those out of range go to an element that is dropped."""
    params, operand, index, new = eqn.params, aval(eqn), aval(eqn, 1), aval(eqn, 2)
    d = params["dimension_numbers"]
    missing = (*d.inserted_window_dims, *d.operand_batching_dims)
    kept = [k for k in range(operand.ndim) if k not in missing]
    window = [1] * operand.ndim
    for dim, k in zip(d.update_window_dims, kept, strict=True):
        window[k] = new.shape[dim]
    positions = Positions(
        w,
        indices,
        index.shape,
        operand.shape,
        window,
        d.scatter_dims_to_operand_dims,
        d.operand_batching_dims,
        d.scatter_indices_batching_dims,
    )
    flat = positions.flat(d.update_window_dims, kept, new.ndim)
    if params["mode"] is not GatherScatterMode.CLIP:
        flat = w.op("Where", positions.spread(positions.inside, d.update_window_dims, new.ndim), flat, ints(w, operand.size))
    longer = w.op("Concat", shaped(w, x, [-1]), w.constant(np.zeros(1, operand.dtype)), axis=0)
    spread = w.op("Expand", flat, ints(w, new.shape))
    found = w.op(
        "ScatterElements", longer, shaped(w, spread, [-1]), shaped(w, updates, [-1]), axis=0, reduction=_SCATTERS[eqn.primitive.name]
    )
    return shaped(w, w.op("Slice", found, ints(w, [0]), ints(w, [operand.size]), ints(w, [0])), operand.shape)
