"""Run a program several times, and tell how long each of its items takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.program import Item, LoweredProgram
from volta_fn.core.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.jit.eager import PIPELINE

#: A time: the numbers of the items, begin and end in nanoseconds.
Span = tuple[tuple[int, ...], int, int]


class Measured(NamedTuple):
    """The times of a program's items.

    Attributes:
        items: the program and the item of each number; None for number 0, what is between items.
        seconds: the fastest call of the program as it always runs; what disturbs calls only makes them slower.
        spans: of the fastest timed call: items, begin and end.
        program: the timed program.
    """

    items: list[tuple[LoweredProgram, Item] | None]
    seconds: float
    spans: list[Span]
    program: Any

    def totals(self) -> dict[int, tuple[float, int]]:
        """Return seconds and runs by an item's number; items of one dispatch share it."""
        found: dict[int, tuple[float, int]] = {}
        before: tuple[int, ...] = ()
        for numbers, begin, end in self.spans:
            for number in numbers:
                seconds, runs = found.get(number, (0.0, 0))
                found[number] = seconds + (end - begin) / 1e9 / len(numbers), runs + (numbers != before)
            before = numbers
        return found


def measure(closed: ClosedJaxpr, donated: Sequence[bool], device: Device, buffers: Sequence[Any], calls: int) -> Measured | None:
    """Measure a program on the buffers of its arguments, which stay as they are.

    None where NumPy runs programs.
    """
    timed = device.backend.timed(closed, donated, PIPELINE)
    if timed is None:
        return None
    run = device.backend.compile(closed, donated, PIPELINE)

    def call() -> None:
        run(False, *buffers)
        device.backend.synchronize(None)

    call()
    timed(False, *buffers)
    timed.times()
    timed.settle()
    timed(False, *buffers)
    timed.times()
    seconds, spans = [], []
    for _ in range(max(calls, 1)):  # in alternation, so that both see the same load of the machine
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
        timed(False, *buffers)
        spans.append(timed.times())
    spans.sort(key=lambda found: sum(end - begin for _, begin, end in found))
    return Measured(timed.items, min(seconds), spans[0], timed)
