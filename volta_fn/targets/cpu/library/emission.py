"""Routines under construction: entry points, lanes, conversions, and loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from volta_fn import dtypes
from volta_fn.dtypes import accumulator
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Module, Value, i64, least
from volta_fn.targets.cpu.routine import BEGIN, END, Launch, Routine, buffer_pointer, entry_point
from volta_fn.targets.cpu.scalars import Number, apply

# Routines under construction: entry points whose bodies do one task.

#: Bytes that a task of moving memory should touch.
TASK_BYTES = 1 << 17

#: ``body(f, pointers, task)`` writes one task; pointers are those of the operands, the results, and the workspace if there is one.
Body = Callable[[Function, list[Value], Value], None]


class RoutineWriter:
    """A routine under construction; launches are added in the order in which they run."""

    def __init__(self, name: str, buffers: int) -> None:
        self.module = Module()
        self._name = name
        self._buffers = buffers
        self._launches: list[Launch] = []

    def launch(self, tasks: int, cost: float, body: Body, suffix: str = "", *, restores: bool = False) -> None:
        """Add an entry point."""
        symbol = f"{self._name}_{len(self._launches)}{suffix}"
        f = entry_point(self.module, symbol)
        pointers = [buffer_pointer(f, k) for k in range(self._buffers)]

        def iteration(task: Value, _: list[Value]) -> None:
            body(f, pointers, task)

        f.loop(BEGIN, END, 1, [], iteration)
        f.finish()
        self._launches.append(Launch(symbol, tasks, cost, restores))

    def routine(self, workspace: int = 0) -> Routine:
        """Return the routine. `buffers` includes the workspace, if there is one."""
        return Routine.of(self.module, self._launches, workspace)


def empty_routine() -> Routine:
    """Return the routine of results without elements."""
    return Routine("", ())


def chunk_count(size: int, smallest: int, most: int = 64) -> int:
    """Return the number of chunks of at least `smallest` elements, and at most `most`."""
    return max(1, min(most, size // max(1, smallest)))


def task_range(f: Function, task: Value, size: int, count: int, grain: int = 1) -> tuple[Value, Value]:
    """Emit the range, out of `size` elements, of one of `count` tasks.

    All ranges but the last are multiples of `grain`.
    """
    step = -(-size // (count * grain)) * grain
    begin = least(f, f.times(task, step), i64(size))
    return begin, least(f, f.plus(begin, i64(step)), i64(size))


# Numbers in routines: lanes, conversions, and loops over runs of them.

_HALF = (np.dtype(np.float16), np.dtype(dtypes.bfloat16))


def lanes_for(dtype: np.dtype) -> int:
    """Return how many numbers a vector has: a register's worth, but at most 16."""
    return min(16, host().lanes(accumulator(dtype).itemsize))


def converted(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Emit numbers in another dtype; float16 and bfloat16 are held as float32 already."""
    if x.dtype == dtype:
        return x
    if x.dtype in _HALF and dtype == np.float32:
        return Number(dtype, x.components)
    return apply(f, "convert_element_type", (x,), dtype, {"new_dtype": dtype, "weak_type": False})


def map_run(f: Function, begin: Value, end: Value, lanes: int, write: Callable[[Value, int, Value | None], None]) -> None:
    """Call ``write(i, lanes, count)`` for vectors from `begin` up to `end`.

    Of the last one perhaps only `count` lanes exist.
    """

    def full_vector(i: Value, _: list[Value]) -> None:
        write(i, lanes, None)

    size = f.minus(end, begin)
    rest = f.remainder(size, lanes)
    last = f.minus(end, rest)
    if f.known(last) is None or f.known(last) != f.known(begin):
        f.loop(begin, last, lanes, [], full_vector)
    if f.known(rest) == 0:
        return

    def remainder() -> None:
        write(last, lanes, rest)

    remainder() if f.known(rest) else f.branch(f.compare("icmp sgt", rest, i64(0)), remainder)
