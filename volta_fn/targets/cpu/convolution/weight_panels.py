"""Panels of w: its elements in the order in which register tiles read them.

A panel holds, for each step of the summation, the elements of `width` adjacent outputs, with zeros beyond the last output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, vector_of
from volta_fn.targets.cpu.convolution.emit_utils import Index, between, plus, repeat, step, times, transposed
from volta_fn.targets.cpu.convolution.input_tile import strided
from volta_fn.targets.cpu.convolution.loop_nest import LoopIndex
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, first_lanes, read, stored_as


def pack(
    f: Function, work: ComputeType, dtype: np.dtype, depth: Sequence[LoopIndex], along: int, left: Index, width: int, w: Value, to: Value
) -> None:
    """Fill one panel from `w`, which points to its first output.

    `depth` has the steps of the summation, outermost first: `w` is the stride in memory, `y` that in the panel, in elements.
    `along` is the stride of outputs in memory; `left` of them remain.
    """
    depth = [dim for dim in depth if dim.size != 1]
    if along != 1 and depth and depth[-1].w == 1 and width % work.lanes == 0:
        depth = _with_one_run(depth)
        _loops(f, work, dtype, depth[:-1], w, to, lambda at, to: _transposed(f, work, dtype, depth[-1], along, left, width, at, to))
    elif width % work.lanes == 0:
        _loops(f, work, dtype, depth, w, to, lambda at, to: _vectors(f, work, dtype, along, left, width, at, to))
    else:
        _loops(f, work, dtype, depth, w, to, lambda at, to: _numbers(f, work, dtype, along, left, width, at, to))


def _with_one_run(depth: list[LoopIndex]) -> list[LoopIndex]:
    """Merge the innermost steps that are adjacent in memory and in the panel."""
    *outer, last = depth
    while outer and isinstance(last.size, int) and outer[-1].w == last.size and outer[-1].y == last.size * last.y:
        size = outer.pop().size
        if not isinstance(size, int):
            return depth
        last = last._replace(size=size * last.size)
    return [*outer, last]


def _loops(
    f: Function, work: ComputeType, dtype: np.dtype, depth: Sequence[LoopIndex], w: Value, to: Value, body: Callable[[Value, Value], None]
) -> None:
    if not depth:
        body(w, to)
        return
    dim = depth[0]

    def one(index: Index) -> None:
        there = step(f, w, stored_as(dtype), times(f, index, dim.w)), step(f, to, work.type, times(f, index, dim.y))
        _loops(f, work, dtype, depth[1:], *there, body)

    repeat(f, dim.size, one)


def _vectors(f: Function, work: ComputeType, dtype: np.dtype, along: int, left: Index, width: int, at: Value, to: Value) -> None:
    """Emit one step of a panel, by vectors along the outputs."""
    for start in range(0, width, work.lanes):
        mask = _mask(f, work, start, left)
        found = strided(f, work, dtype, step(f, at, stored_as(dtype), start * along), along, mask)
        f.store(found, step(f, to, work.type, start), work.itemsize)


def _mask(f: Function, work: ComputeType, start: int, left: Index) -> Value | None:
    if isinstance(left, int):
        return first_lanes(max(0, left - start), work.lanes)
    return between(f, work.lanes, start, 0, left)


def _numbers(f: Function, work: ComputeType, dtype: np.dtype, along: int, left: Index, width: int, at: Value, to: Value) -> None:
    """Emit one step of a panel, number by number."""
    for k in range(width):

        def element(k: int = k) -> list[Value]:
            return [read(f, work, dtype, step(f, at, stored_as(dtype), k * along), 1)]

        if isinstance(left, int):
            (found,) = element() if k < left else [Value(work.type, "0.0")]
        else:
            there = f.compare("icmp sgt", left, Value("i64", str(k)))
            (found,) = f.branch(there, element, lambda: [Value(work.type, "0.0")])
        f.store(found, step(f, to, work.type, k), work.itemsize)


def _transposed(
    f: Function, work: ComputeType, dtype: np.dtype, run: LoopIndex, along: int, left: Index, width: int, at: Value, to: Value
) -> None:
    """Emit adjacent steps of a panel: read along the steps, written along the outputs."""
    lanes, stored = work.lanes, stored_as(dtype)
    for start in range(0, width, lanes):

        def square(index: Index, count: int, start: int = start) -> None:
            rows = []
            for k in range(lanes):
                there = step(f, at, stored, plus(f, index, (start + k) * along))
                inside = between(f, lanes, index, 0, run.size) if not isinstance(run.size, int) else first_lanes(count, lanes)
                rows.append(read(f, work, dtype, there, lanes, _if_left(f, lanes, inside, left, start + k)))
            columns = transposed(f, rows)
            for k in range(count):
                offset = plus(f, times(f, plus(f, index, k), run.y), start)
                f.store(columns[k], step(f, to, work.type, offset), work.itemsize)

        if isinstance(run.size, int):
            full_vectors = run.size // lanes * lanes
            repeat(f, full_vectors, functools.partial(square, count=lanes), 0, lanes)
            if run.size > full_vectors:
                square(full_vectors, run.size - full_vectors)
        else:
            repeat(f, run.size, functools.partial(square, count=lanes), 0, lanes)


def _if_left(f: Function, lanes: int, inside: Value | None, left: Index, k: int) -> Value | None:
    """Emit the mask `inside` where output `k` exists."""
    if isinstance(left, int):
        return inside if k < left else Value(vector_of("i1", lanes), "zeroinitializer")
    there = f.splat(f.compare("icmp sgt", left, Value("i64", str(k))), lanes)
    return there if inside is None else f.binary("and", there, inside)
