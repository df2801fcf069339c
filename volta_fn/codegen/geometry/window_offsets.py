"""The windows of a gather or scatter: starts and memory layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple

from volta_fn.codegen.geometry.strides import Dims, merged, row_major
from volta_fn.codegen.index_arith import IndexArithmetic, V
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.data_movement.gather import gather_p
from volta_fn.primitives.data_movement.indexing import GatherScatterMode


class Starts(NamedTuple):
    """The windows of a call.

    Attributes:
        indices: the aval of the index vectors.
        addressed: for each entry of an index vector, the operand's dimension, its stride, and the greatest valid start.
        batching: for each dimension that runs in step with the indices: itself, its stride, and the dimension of the batch.
        clips: whether invalid windows move inside; else they are filled, or left out.
    """

    indices: ShapedArray
    addressed: tuple[tuple[int, int, int], ...]
    batching: tuple[tuple[int, int, int], ...]
    clips: bool

    @property
    def batch(self) -> Dims:
        """The dimensions along which windows are numbered."""
        return self.indices.shape[:-1]

    @property
    def number(self) -> int:
        """The number of windows."""
        return math.prod(self.batch)

    @property
    def dimensions(self) -> Dims:
        """The operand's dimensions along which windows begin at positions of their own."""
        return tuple([entry[0] for entry in self.addressed + self.batching])


class Layout(NamedTuple):
    """The memory layout of an array with one window per batch coordinate.

    It is a gather's result or a scatter's updates.

    Attributes:
        batch: sizes and strides of the batch, `merged`.
        lead: sizes, strides here and strides in the operand of the window's dimensions before the batch, `merged`.
        rest: the same of the other dimensions.
    """

    batch: tuple[Dims, ...]
    lead: tuple[Dims, ...]
    rest: tuple[Dims, ...]


class IndexedWindows(NamedTuple):
    """The windows of a gather or scatter: starts, sizes, and memory layout."""

    starts: Starts
    sizes: Dims
    layout: Layout


def gather_of(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> IndexedWindows:
    """Return the windows of a gather."""
    operand, indices = avals
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batching = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    clips = params["mode"] is not GatherScatterMode.FILL_OR_DROP
    starts = _starts(operand, indices, sizes, numbers.start_index_map, batching, clips)
    absent = numbers.operand_batching_dims + numbers.collapsed_slice_dims
    result = gather_p.result_avals(avals, params)
    return IndexedWindows(starts, sizes, _layout(result.shape, numbers.offset_dims, _window(operand, sizes, absent)))


def scatter_of(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> IndexedWindows:
    """Return the windows of a scatter."""
    operand, indices, updates = avals
    numbers = params["dimension_numbers"]
    absent = numbers.operand_batching_dims + numbers.inserted_window_dims
    inside = iter([updates.shape[d] for d in numbers.update_window_dims])
    sizes = tuple([1 if d in absent else next(inside) for d in range(operand.ndim)])
    batching = list(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    clips = params["mode"] is GatherScatterMode.CLIP
    starts = _starts(operand, indices, sizes, numbers.scatter_dims_to_operand_dims, batching, clips)
    return IndexedWindows(starts, sizes, _layout(updates.shape, numbers.update_window_dims, _window(operand, sizes, absent)))


class WindowStart(NamedTuple, Generic[V]):
    """Where a window begins in the operand.

    Attributes:
        offset: the offset of its first element.
        coordinates: its coordinate along each of the operand's dimensions in which windows begin anywhere.
        valid: whether the window lies inside the operand; None if all do.
    """

    offset: V
    coordinates: dict[int, V]
    valid: V | None


def window_start(
    f: IndexArithmetic[V],
    starts: Starts,
    clamp: Callable[[V, int], tuple[V, V | None]],
    conjunction: Callable[[V, V], V],
    number: V,
) -> WindowStart[V]:
    """Emit the start of the window of a number.

    ``clamp(position, limit)`` loads a number of the index vectors and moves it into [0, limit]; with it comes whether it was there already.
    """
    coordinates: dict[int, V] = {}
    valid: list[V] = []

    def terms() -> Iterator[V]:
        for entry, (dim, stride, limit) in enumerate(starts.addressed):
            position = f.plus(f.times(number, len(starts.addressed)), f.index(entry))
            coordinates[dim], inside = clamp(position, limit)
            if inside is not None and not starts.clips:
                valid[:] = [conjunction(valid[0], inside) if valid else inside]
            yield f.times(coordinates[dim], stride)
        for dim, stride, batch_dim in starts.batching:
            steps = f.quotient(number, math.prod(starts.batch[batch_dim + 1 :]))
            coordinates[dim] = f.remainder(steps, starts.batch[batch_dim]) if batch_dim else steps
            yield f.times(coordinates[dim], stride)

    return WindowStart(f.sum(terms()), coordinates, valid[0] if valid else None)


def window_offset(f: IndexArithmetic[V], layout: Layout, number: V) -> V:
    """Emit the offset of the window of a number in the result or the updates."""
    sizes, strides = layout.batch
    return f.dotted(f.coordinates(number, sizes), strides)


def _starts(
    operand: ShapedArray,
    indices: ShapedArray,
    sizes: Sequence[int],
    addressed: Sequence[int],
    batching: Sequence[tuple[int, int]],
    clips: bool,
) -> Starts:
    strides = row_major(operand.shape)
    return Starts(
        indices,
        tuple([(d, strides[d], operand.shape[d] - sizes[d]) for d in addressed]),
        tuple([(d, strides[d], partner) for d, partner in batching]),
        clips,
    )


def _window(operand: ShapedArray, sizes: Sequence[int], absent: Sequence[int]) -> list[tuple[int, int]]:
    """Return size and stride of the operand's dimensions that windows have."""
    strides = row_major(operand.shape)
    return [(size, strides[d]) for d, size in enumerate(sizes) if d not in absent]


def _layout(shape: Sequence[int], window_dims: Sequence[int], window: Sequence[tuple[int, int]]) -> Layout:
    strides = row_major(shape)
    batch = [d for d in range(len(shape)) if d not in window_dims]
    first = batch[0] if batch else len(shape)
    inside = [(d, size, strides[d], step) for d, (size, step) in zip(window_dims, window, strict=True)]
    lead = [dims for d, *dims in inside if d < first]
    rest = [dims for d, *dims in inside if d >= first]
    return Layout(
        merged([shape[d] for d in batch], [strides[d] for d in batch]),
        merged(*(zip(*lead, strict=True) if lead else ((), (), ()))),
        merged(*(zip(*rest, strict=True) if rest else ((), (), ()))),
    )
