"""Several correlations in one routine, which share launches.

Each has up to four stages, and those of one kind are one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from volta_fn.compiler.contractions.correlation import Correlation
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.convolution.emit_utils import Index, least, most, plus, repeat, step, times, value
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, stored_as, write
from volta_fn.targets.cpu.routine import Launch, Routine

#: About how many nanoseconds a multiplication takes.
NANOSECONDS = 1 / 60

#: Bytes of the workspace of all correlations, at most.
ROOM = 32 << 20

#: Tasks of a stage, at most.
_TASKS = 32

#: The stages of a correlation: packing w, packing or transforming x, the sums, and what follows them.
STAGES = ("prepare", "enter", "sum", "finish")


@dataclass
class Job:
    """A stage of a correlation: a function of x, w, y, the workspace and a task."""

    symbol: str
    tasks: int
    cost: float


@dataclass
class CorrelationBuilder:
    """The routine of one correlation, while it is written."""

    name: str
    module: Module
    c: Correlation
    work: ComputeType
    x_dtype: np.dtype
    w_dtype: np.dtype
    y_dtype: np.dtype
    #: Bytes of the workspace that it may take.
    room: int
    #: Bytes of the workspace taken so far, by all correlations.
    workspace: int = 0
    jobs: dict[str, Job] = field(default_factory=dict)

    def reserve(self, elements: int, itemsize: int) -> int:
        """Reserve room in the workspace and return its offset in bytes."""
        offset = self.workspace
        self.workspace += -(-elements * itemsize // 64) * 64
        return offset

    def tasks(self, units: int, elements: int) -> int:
        """Return the number of tasks for some units, if each needs room for `elements`."""
        return max(1, min(units, _TASKS, self.room // 2 // max(1, elements * self.work.itemsize)))

    def job(self, stage: str, tasks: int, cost: float, body: Callable[[Function, Arguments, Value], None]) -> None:
        """Add a stage, whose code `body` writes."""
        parameters = [Value("ptr", f"%{name}") for name in ("x", "w", "y", "workspace")]
        symbol = f"{self.name}_{stage}"
        task = Value("i64", "%task")
        f = Function(self.module, symbol, [Value("ptr noalias", p.name) for p in parameters] + [task], attributes="nounwind noinline")
        body(f, Arguments(*parameters), task)
        f.finish()
        self.jobs[stage] = Job(symbol, tasks, cost)

    def shared(self, f: Function, task: Value, units: int, tasks: int, body: Callable[[Index], None]) -> None:
        """Emit `body` for each of a task's units, near-equal shares of them all."""
        if units == tasks:
            body(task)
            return
        first = f.binary("udiv", value(times(f, task, units)), i64(tasks))
        last = f.binary("udiv", value(times(f, plus(f, task, 1), units)), i64(tasks))
        repeat(f, last, body, first)

    def at(self, f: Function, which: str, pointer: Value, *indices: Index) -> Value:
        """Emit the address of the element of x, w or y at indices (group first)."""
        view, dtype = {"x": (self.c.x, self.x_dtype), "w": (self.c.w, self.w_dtype), "y": (self.c.y, self.y_dtype)}[which]
        offset = plus(f, view.offset, *[times(f, i, s) for i, s in zip(indices, view.strides, strict=False)])
        return pointer if offset == 0 else f.let("ptr", f"getelementptr {stored_as(dtype)}, {pointer}, {value(offset)}")


@dataclass
class Arguments:
    """The arguments of a stage's function."""

    x: Value
    w: Value
    y: Value
    workspace: Value

    def room(self, f: Function, offset: int, size: int = 0, task: Index = 0) -> Value:
        """Emit the address of a room in the workspace: of rooms of `size`, the task's own."""
        start = plus(f, offset, times(f, task, size))
        return f.let("ptr", f"getelementptr i8, {self.workspace}, {value(start)}")


def assembled(module: Module, builders: Sequence[CorrelationBuilder], workspace: int) -> Routine:
    """Return the routine of correlations written into one module."""
    launches = []
    for stage in STAGES:
        jobs = [builder.jobs[stage] for builder in builders if stage in builder.jobs]
        if jobs:
            symbol = f"convolution_{stage}"
            _entry(module, symbol, jobs, workspace > 0)
            launches.append(Launch(symbol, sum(job.tasks for job in jobs), sum(job.cost for job in jobs)))
    return Routine(str(module), tuple(launches), workspace)


def _entry(module: Module, symbol: str, jobs: Sequence[Job], workspace: bool) -> None:
    """Write the entry point of a launch, whose tasks are those of its jobs in order."""
    buffers, begin, end = Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")
    f = Function(module, symbol, [buffers, begin, end])
    pointers = [f.load("ptr", f.at(buffers, "ptr", i64(k)), 8) for k in range(4 if workspace else 3)]
    if not workspace:
        pointers.append(Value("ptr", "null"))
    first = 0
    for job in jobs:
        start, stop = most(f, plus(f, begin, -first), 0), least(f, plus(f, end, -first), job.tasks)

        def one(index: Value, _: list[Value], job: Job = job) -> list[Value]:
            f.run(job.symbol, *pointers, index)
            return []

        f.loop(value(start), value(stop), 1, [], one)
        first += job.tasks
    f.finish()


def write_zeros(builder: CorrelationBuilder) -> None:
    """Add the stage that fills results without taps with zeros."""
    c = builder.c
    sizes = [c.images, c.outputs, *(axis.positions for axis in c.axes)]
    sides = sorted(zip(sizes, c.y.strides[1:], strict=True), key=lambda side: -side[1])

    def fill(f: Function, args: Arguments, task: Value) -> None:
        def loops(rest: list[tuple[int, int]], at: Value) -> None:
            if not rest:
                write(f, builder.work, builder.y_dtype, Value(builder.work.type, "0.0"), 1, at)
                return
            (size, stride), *inner = rest

            def one(index: Index) -> None:
                loops(inner, step(f, at, stored_as(builder.y_dtype), times(f, index, stride)))

            repeat(f, size, one)

        loops(sides, builder.at(f, "y", args.y, task))

    builder.job("sum", c.groups, c.groups * prod(sizes) * 0.5, fill)
