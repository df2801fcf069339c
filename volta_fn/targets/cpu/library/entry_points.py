"""Routines under construction: entry points whose bodies do one task."""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.runtime.llvm.index_arith import least
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.routine import Launch, Routine

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
        self._phases: list[Launch] = []

    def launch(self, tasks: int, cost: float, body: Body, suffix: str = "", *, restores: bool = False) -> None:
        """Add an entry point."""
        parameters = [Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")]
        symbol = f"{self._name}_{len(self._phases)}{suffix}"
        f = Function(self.module, symbol, parameters)
        buffers, begin, end = parameters
        pointers = [f.load("ptr", f.at(buffers, "ptr", i64(k)), 8) for k in range(self._buffers)]

        def iteration(task: Value, _: list[Value]) -> None:
            body(f, pointers, task)

        f.loop(begin, end, 1, [], iteration)
        f.finish()
        self._phases.append(Launch(symbol, tasks, cost, restores))

    def routine(self, workspace: int = 0) -> Routine:
        """Return the routine. `buffers` includes the workspace, if there is one."""
        return Routine(str(self.module), tuple(self._phases), workspace, tuple(self.module.shared.values()))


def nothing() -> Routine:
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
