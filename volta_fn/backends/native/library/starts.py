"""Index vectors as offsets: where in the operand each window of a gather or scatter begins, and whether it lies inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.backends.native.library.moving import merged
from volta_fn.backends.native.library.whole import clamped, dotted, plus, quotient, remainder, times, widened
from volta_fn.backends.native.library.writing import row_major
from volta_fn.backends.native.llvm.text import Function, Value, i64
from volta_fn.core.aval import ShapedArray


class Start(NamedTuple):
    """One window: the offset of its first element, its coordinate along the operand dimension asked for, whether it is valid."""

    offset: Value
    coordinate: Value | None
    valid: Value | None


class Starts(NamedTuple):
    """The windows of a call.

    Attributes:
        indices: the aval of the index vectors.
        addressed: for each entry of an index vector, the operand's dimension, its stride, and the greatest valid start.
        batching: for each dimension that runs in step with the indices: itself, its stride, and the dimension of the batch.
        clips: whether invalid windows move inside; else their `Start` tells of them.
    """

    indices: ShapedArray
    addressed: tuple[tuple[int, int, int], ...]
    batching: tuple[tuple[int, int, int], ...]
    clips: bool

    @property
    def batch(self) -> tuple[int, ...]:
        """The dimensions along which windows are numbered."""
        return self.indices.shape[:-1]

    @property
    def number(self) -> int:
        """The number of windows."""
        return math.prod(self.batch)

    @property
    def places(self) -> tuple[int, ...]:
        """The operand's dimensions along which windows have places of their own."""
        return tuple([entry[0] for entry in self.addressed + self.batching])

    def start(self, f: Function, pointer: Value, number: Value, dimension: int | None = None) -> Start:
        """Code that finds out where a window is."""
        kind = self.indices.dtype
        type_ = f"i{8 * kind.itemsize}"
        offset, coordinate, valid = i64(0), None, None
        for entry, (dim, stride, limit) in enumerate(self.addressed):
            place = plus(f, times(f, number, len(self.addressed)), i64(entry))
            index = widened(f, f.load(type_, f.at(pointer, type_, place), kind.itemsize), kind.kind == "i")
            inside = clamped(f, index, limit)
            if not self.clips:
                here = f.compare("icmp ule", index, i64(limit))
                valid = here if valid is None else f.binary("and", valid, here)
            if dim == dimension:
                coordinate = inside
            offset = plus(f, offset, times(f, inside, stride))
        for dim, stride, batch_dim in self.batching:
            step = math.prod(self.batch[batch_dim + 1 :])
            turned = remainder(f, quotient(f, number, step), self.batch[batch_dim]) if batch_dim else quotient(f, number, step)
            if dim == dimension:
                coordinate = turned
            offset = plus(f, offset, times(f, turned, stride))
        return Start(offset, coordinate, valid)


def starts_of(
    operand: ShapedArray,
    indices: ShapedArray,
    sizes: Sequence[int],
    addressed: Sequence[int],
    batching: Sequence[tuple[int, int]],
    clips: bool,
) -> Starts:
    """The windows, of `sizes`, of an operand; `batching` pairs its dimensions with those of the indices."""
    strides = row_major(operand.shape)
    return Starts(
        indices,
        tuple([(d, strides[d], operand.shape[d] - sizes[d]) for d in addressed]),
        tuple([(d, strides[d], partner) for d, partner in batching]),
        clips,
    )


class Layout(NamedTuple):
    """Where windows lie in an array that holds them one per batch coordinate (a gather's result, a scatter's updates).

    Attributes:
        batch: sizes and strides of the batch, `merged`.
        lead: sizes, strides here and strides in the operand of the window's dimensions before the batch, `merged`.
        rest: the same of the others.
    """

    batch: tuple[tuple[int, ...], ...]
    lead: tuple[tuple[int, ...], ...]
    rest: tuple[tuple[int, ...], ...]

    def offset(self, f: Function, number: Value) -> Value:
        """Where the window of a number begins."""
        sizes, strides = self.batch
        steps = row_major(sizes)
        coordinates = []
        for d, (size, step) in enumerate(zip(sizes, steps, strict=True)):
            whole = quotient(f, number, step)
            coordinates.append(remainder(f, whole, size) if d else whole)
        return dotted(f, coordinates, strides)


def layout_of(shape: Sequence[int], window_dims: Sequence[int], window: Sequence[tuple[int, int]]) -> Layout:
    """The layout of an array of `shape`; `window` has the size and the operand's stride of each of its `window_dims`."""
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
