"""Blocks read or replaced at positions that are known when the program runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from volta_fn.codegen.geometry.strides import merged, row_major
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.index_arith import clamped, widened
from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.library.copy_ops import copy_block, copy_bytes, unit
from volta_fn.targets.cpu.library.entry_points import TASK_BYTES, RoutineWriter, chunk_count, nothing, task_range
from volta_fn.targets.cpu.routine import Routine

#: The end of the symbol of a launch that copies an operand, and does nothing where that is the result.
COPY = "_copy"


def dynamic_slice(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive."""
    operand, *starts = avals
    sizes: tuple[int, ...] = params["slice_sizes"]
    if not math.prod(sizes):
        return nothing()
    type_ = unit(operand.dtype.itemsize)
    loops = merged(sizes, row_major(sizes), row_major(operand.shape))
    tasks, outermost = _tasks(loops[0], operand.dtype.itemsize)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        source = _corner(f, pointers[0], pointers[1:-1], operand, starts, sizes)
        copy_block(f, type_, pointers[-1], source, loops, task_range(f, number, outermost, tasks) if tasks > 1 else None)

    writer = RoutineWriter("dynamic_slice", len(avals) + 1)
    writer.launch(tasks, math.prod(sizes) * operand.dtype.itemsize / 6, task)
    return writer.routine()


def dynamic_update_slice(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive.

    Its first launch copies the operand, unless that is the result.
    """
    operand, update, *starts = avals
    if not operand.size:
        return nothing()
    writer = RoutineWriter("dynamic_update_slice", len(avals) + 1)
    copy_operand(writer, operand)
    if update.size:
        type_ = unit(operand.dtype.itemsize)
        loops = merged(update.shape, row_major(operand.shape), row_major(update.shape))
        tasks, outermost = _tasks(loops[0], operand.dtype.itemsize)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            target = _corner(f, pointers[-1], pointers[2:-1], operand, starts, update.shape)
            copy_block(f, type_, target, pointers[1], loops, task_range(f, number, outermost, tasks) if tasks > 1 else None)

        writer.launch(tasks, update.size * operand.dtype.itemsize / 6, task)
    return writer.routine()


def copy_operand(writer: RoutineWriter, operand: ShapedArray, result: int = -1) -> None:
    """Add a launch that copies the first operand to a buffer, if that is another."""
    size = operand.size * operand.dtype.itemsize
    tasks = chunk_count(size, TASK_BYTES)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        source, target = pointers[0], pointers[result]

        def copy() -> None:
            begin, end = task_range(f, number, operand.size, tasks)
            type_ = unit(operand.dtype.itemsize)
            count = f.times(f.minus(end, begin), operand.dtype.itemsize)
            copy_bytes(f, f.at(target, type_, begin), f.at(source, type_, begin), count, min(8, operand.dtype.itemsize))

        f.branch(f.compare("icmp ne", source, target), copy)

    writer.launch(tasks, size / 6, task, COPY)


def _tasks(sizes: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Return the number of tasks, and the size of the outermost loop that they divide."""
    outermost = sizes[0] if sizes else 1
    return min(outermost, chunk_count(math.prod(sizes) * itemsize, TASK_BYTES)), outermost


def _corner(
    f: Function, base: Value, starts: Sequence[Value], operand: ShapedArray, avals: Sequence[ShapedArray], sizes: Sequence[int]
) -> Value:
    """Emit the address of a block's first element."""
    positions = []
    for pointer, aval, full, size in zip(starts, avals, operand.shape, sizes, strict=True):
        index = f.load(f"i{8 * aval.dtype.itemsize}", pointer, aval.dtype.itemsize)
        positions.append(clamped(f, widened(f, index, aval.dtype.kind == "i"), full - size))
    return f.at(base, unit(operand.dtype.itemsize), f.dotted(positions, row_major(operand.shape)))
