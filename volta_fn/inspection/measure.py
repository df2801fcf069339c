"""Run a program several times, and tell how long each of its items takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.program import Item, LoweredProgram
from volta_fn.core.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.jit.eager import PIPELINE

#: A time: the numbers of the items, begin and end in nanoseconds.
Span = tuple[tuple[int, ...], int, int]

#: Where other processes disturb calls, a single fastest one says little: calls go on until three are this near, up to so many times the
#: number that is asked for.
_NEAR, _MOST = 0.03, 10


class Measured(NamedTuple):
    """The times of a program's items.

    Attributes:
        items: the program and the item of each number; None for number 0, what is between items.
        seconds: the fastest call of the program as it always runs; what disturbs calls only makes them slower.
        spans: of the fastest timed call: items, begin and end.
        program: the timed program.
        outside: the seconds of that call before its first span and after its last, as far as the host's clock tells.
    """

    items: list[tuple[LoweredProgram, Item] | None]
    seconds: float
    spans: list[Span]
    program: Any
    outside: float

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

    def timed_call() -> _TimedCall:
        start = time.perf_counter()
        timed(False, *buffers)
        seconds = time.perf_counter() - start
        spans = timed.times()
        inside = sum(end - begin for _, begin, end in spans) / 1e9
        # The clock of a GPU is another one, and its commands run after the call that writes them.
        return _TimedCall(inside if timed.device == "gpu" else seconds, inside, spans)

    call()
    timed_call()
    timed.settle()
    timed_call()
    seconds: list[float] = []
    found: list[_TimedCall] = []

    def plain() -> None:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)

    # In alternation, so that both see the same load of the machine, and in either order, since threads that waited are scheduled first.
    order: list[Callable[[], None]] = [plain, lambda: found.append(timed_call())]
    while len(found) < calls or (not (_repeats(seconds) and _repeats([c.seconds for c in found])) and len(found) < _MOST * calls):
        for one in order:
            one()
        order.reverse()
    fastest = min(found, key=lambda c: c.seconds)
    return Measured(timed.items, min(seconds), fastest.spans, timed, fastest.seconds - fastest.inside)


class _TimedCall(NamedTuple):
    """A call's seconds, those of its spans together, and the spans."""

    seconds: float
    inside: float
    spans: list[Span]


def _repeats(seconds: Sequence[float]) -> bool:
    """Return True if the fastest call was no exception: others were about as fast."""
    return len(seconds) > 2 and sorted(seconds)[2] <= (1 + _NEAR) * min(seconds)
