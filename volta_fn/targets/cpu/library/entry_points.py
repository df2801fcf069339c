"""Writing a routine: entry points whose bodies do one task."""

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
    """A routine in the making: phases are added in the order in which they run."""

    def __init__(self, name: str, buffers: int) -> None:
        self.module = Module()
        self._name = name
        self._buffers = buffers
        self._phases: list[Launch] = []

    def phase(self, tasks: int, cost: float, body: Body, suffix: str = "") -> None:
        """Add an entry point."""
        parameters = [Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")]
        symbol = f"{self._name}_{len(self._phases)}{suffix}"
        f = Function(self.module, symbol, parameters)
        buffers, begin, end = parameters
        pointers = [f.load("ptr", f.at(buffers, "ptr", i64(k)), 8) for k in range(self._buffers)]

        def iteration(task: Value, _: list[Value]) -> list[Value]:
            body(f, pointers, task)
            return []

        f.loop(begin, end, 1, [], iteration)
        f.finish()
        self._phases.append(Launch(symbol, tasks, cost))

    def routine(self, workspace: int = 0) -> Routine:
        """The routine. `buffers` includes the workspace, if it has some."""
        return Routine(str(self.module), tuple(self._phases), workspace)


def nothing() -> Routine:
    """The routine of results without elements."""
    return Routine("", ())


def chunk_count(size: int, smallest: int, most: int = 64) -> int:
    """Into how many pieces to cut `size` things, for pieces of at least so many."""
    return max(1, min(most, size // max(1, smallest)))


def task_range(f: Function, task: Value, size: int, count: int, grain: int = 1) -> tuple[Value, Value]:
    """Which of `size` things are those of a task, of `count`; but for the last they are a multiple of `grain`."""
    step = -(-size // (count * grain)) * grain
    begin = least(f, f.times(task, step), i64(size))
    return begin, least(f, f.plus(begin, i64(step)), i64(size))
