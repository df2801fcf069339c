"""A program's memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from volta_fn.compiler.buffers.memory_layout import Lifetime, Memory
from volta_fn.core.jaxpr import ClosedJaxpr, Var


class MemoryTimeline(NamedTuple):
    """The memory of a program from its first command to its last.

    `memory` are the bytes that a call takes; `temporaries` the bytes of values in between that are needed at each command.
    """

    memory: Memory
    temporaries: tuple[int, ...]

    @property
    def peak(self) -> int:
        """The most bytes: arguments, results, and what is reserved for values in between."""
        return self.memory.peak

    @property
    def busiest(self) -> int:
        """The number of the command at which most is needed."""
        return max(range(len(self.temporaries)), key=self.temporaries.__getitem__, default=0)

    def total(self, command: int) -> int:
        """Return the bytes that are needed at a command, arguments and results included."""
        return self.memory.arguments + self.memory.results + self.temporaries[command]


def timeline_of(memory: Memory, lifetimes: Sequence[Lifetime]) -> MemoryTimeline:
    """Return the timeline of values with these lifetimes."""
    last = max([value.end for value in lifetimes], default=0)
    changes = [0] * (last + 2)
    for value in lifetimes:
        changes[value.begin] += value.bytes
        changes[value.end + 1] -= value.bytes
    return MemoryTimeline(memory, tuple(accumulate(changes[:-1])))


def lifetimes_of(program: ClosedJaxpr) -> list[Lifetime]:
    """Return the lifetimes of values that equations compute one by one."""
    last = {v: number for number, eqn in enumerate(program.eqns) for v in eqn.invars if isinstance(v, Var)}
    outputs = set(program.outvars)
    return [
        Lifetime(number, last.get(v, number), v.aval.nbytes)
        for number, eqn in enumerate(program.eqns)
        for v in eqn.outvars
        if v not in outputs
    ]
