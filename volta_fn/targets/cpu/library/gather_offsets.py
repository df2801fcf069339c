"""Index vectors as offsets: where in the operand each window of a gather or scatter begins, and whether it lies inside."""

from __future__ import annotations

import math
from typing import NamedTuple

from volta_fn.codegen.geometry.strides import row_major
from volta_fn.codegen.geometry.window_offsets import Layout, Starts
from volta_fn.runtime.llvm.index_arith import clamped, dotted, plus, quotient, remainder, times, widened
from volta_fn.runtime.llvm.text import Function, Value, i64


class Start(NamedTuple):
    """One window: the offset of its first element, its coordinate along the operand dimension asked for, whether it is valid."""

    offset: Value
    coordinate: Value | None
    valid: Value | None


def start_of(f: Function, starts: Starts, pointer: Value, number: Value, dimension: int | None = None) -> Start:
    """Code that finds out where a window is."""
    kind = starts.indices.dtype
    type_ = f"i{8 * kind.itemsize}"
    offset, coordinate, valid = i64(0), None, None
    for entry, (dim, stride, limit) in enumerate(starts.addressed):
        place = plus(f, times(f, number, len(starts.addressed)), i64(entry))
        index = widened(f, f.load(type_, f.at(pointer, type_, place), kind.itemsize), kind.kind == "i")
        inside = clamped(f, index, limit)
        if not starts.clips:
            here = f.compare("icmp ule", index, i64(limit))
            valid = here if valid is None else f.binary("and", valid, here)
        if dim == dimension:
            coordinate = inside
        offset = plus(f, offset, times(f, inside, stride))
    for dim, stride, batch_dim in starts.batching:
        step = math.prod(starts.batch[batch_dim + 1 :])
        turned = remainder(f, quotient(f, number, step), starts.batch[batch_dim]) if batch_dim else quotient(f, number, step)
        if dim == dimension:
            coordinate = turned
        offset = plus(f, offset, times(f, turned, stride))
    return Start(offset, coordinate, valid)


def offset_in(f: Function, layout: Layout, number: Value) -> Value:
    """Where the window of a number begins in the result or the updates."""
    sizes, strides = layout.batch
    steps = row_major(sizes)
    coordinates = []
    for d, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        whole = quotient(f, number, step)
        coordinates.append(remainder(f, whole, size) if d else whole)
    return dotted(f, coordinates, strides)
