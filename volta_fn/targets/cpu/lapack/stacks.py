"""Routines of stacks of matrices, written as a function of one matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.lapack import is_available
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.lapack.threads import Threads
from volta_fn.targets.cpu.library.entry_points import RoutineWriter, nothing, task_range
from volta_fn.targets.cpu.routine import Routine

RoutineMaker = Callable[[tuple[ShapedArray, ...], dict[str, Any]], Routine | None]

#: Writes what is done for one matrix, with pointers to its operands, its results and its scratch arrays.
Body = Callable[[Function, list[Value], list[Value], list[Value]], None]

#: Nanoseconds of a call of LAPACK, operations in a nanosecond, and nanoseconds that a task should take.
_CALL, _SPEED, _TASK = 1000.0, 4.0, 20_000.0
#: The most tasks, each of which has scratch arrays; and where these would take more than so many bytes.
_MOST_TASKS, _FEW_TASKS, _SCRATCH = 64, 8, 1 << 26
#: OpenBLAS leaves factorisations of so many rows to one thread.
_SMALL = 64
#: Several threads gain little for matrices of so many rows, and for LU and Cholesky's factors of more.
_MEDIUM, LARGE = 256, 512
#: Scratch arrays begin at multiples of so many bytes.
_ALIGNMENT = 64


def if_available(maker: RoutineMaker) -> RoutineMaker:
    """Return a maker that makes nothing where there is no LAPACK to call."""

    def make(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
        return maker(operands, params) if is_available() else None

    return make


def stack_routine(
    name: str,
    operands: Sequence[ShapedArray],
    results: Sequence[ShapedArray],
    ranks: Sequence[int],
    scratch: Sequence[int],
    operations: float,
    body: Body,
    threads_beyond: int = _SMALL,
    one_thread_up_to: int = _MEDIUM,
) -> Routine:
    """Make the routine that does `body` for each matrix of a stack.

    Args:
        name: the name of its entry points.
        operands, results: what is stacked; their last dimensions, as many as `ranks` say in their order, belong to one matrix.
        scratch: the bytes of the scratch arrays that a matrix needs.
        operations: additions and multiplications that a matrix takes, about.
        threads_beyond: up to how many rows OpenBLAS computes a single matrix on one thread by itself.
        one_thread_up_to: up to how many rows it is to do so.
    """
    arrays = [*operands, *results]
    stack = math.prod(operands[0].shape[: operands[0].ndim - ranks[0]])
    if not stack or not any(r.size for r in results):
        return nothing()
    strides = [math.prod(a.shape[a.ndim - rank :]) * a.dtype.itemsize for a, rank in zip(arrays, ranks, strict=True)]
    rounded = [-(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT for size in scratch]
    each = _CALL + operations / _SPEED
    most = max(_FEW_TASKS, min(_MOST_TASKS, _SCRATCH // max(1, sum(rounded))))
    tasks = max(1, min(stack, most, int(stack * each / _TASK)))
    writer = RoutineWriter(name, len(arrays) + bool(scratch))

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        here = [f.at(pointers[-1], "i8", f.plus(f.times(number, sum(rounded)), i64(sum(rounded[:k])))) for k in range(len(rounded))]

        def matrix(i: Value, _: list[Value]) -> None:
            found = [f.at(p, "i8", f.times(i, stride)) for p, stride in zip(pointers, strides, strict=False)]
            body(f, found[: len(operands)], found[len(operands) :], here)

        f.loop(*task_range(f, number, stack, tasks), 1, [], matrix)

    rows = max(operands[0].shape[-2:])
    threads = Threads(many=tasks == 1 and rows > one_thread_up_to) if tasks > 1 or rows > threads_beyond else None
    if threads:
        writer.launch(1, 0.0, threads.begin)
    writer.launch(tasks, stack * each, task)
    if threads:
        writer.launch(1, 0.0, threads.end, restores=True)
    return writer.routine(tasks * sum(rounded))
