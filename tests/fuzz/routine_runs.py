"""Routines run on machine code, between guard bytes, at odd addresses and before pages without access, in every order of their tasks."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.targets.cpu.running import Guarded, GuardedOperand, Pointers, entries
from volta_fn.targets.cpu.routine import Launch, Routine

#: What is around operands, NaN in every dtype, so that a number read from there shows. Around results it is another pattern, so that a
#: NaN written there shows.
_NAN, _GUARD = 0xFF, 0xA5

#: The most calls that tasks are run in, one by one.
_MOST_CALLS = 64

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Placement(NamedTuple):
    """How a routine is run: elements by which buffers are displaced from cache lines, the order of tasks, and the result's operand."""

    shift: int = 0
    order: str = "whole"
    place: int | None = None
    #: Whether operands end where a page without access begins.
    at_page: bool = False


def placements(place: int | None, shift: int) -> Iterator[Placement]:
    """Yield the ways in which a routine is run: all must give the same bits."""
    yield Placement(at_page=True)
    yield Placement(0, "reversed")
    yield Placement(shift, "threads")
    if place is not None:
        yield Placement(0, "whole", place)
        yield Placement(shift, "reversed", place)


def run_on_cpu(
    routine: Routine, inputs: Sequence[np.ndarray], outputs: Sequence[tuple[tuple[int, ...], Any]], how: Placement = Placement()
) -> list[np.ndarray]:
    """Return the results of a routine.

    Fail if it changed an operand, or a byte next to a buffer; reading beyond a page ends the process.
    """

    def displaced(size: int, dtype: Any, filling: int) -> Guarded:
        return Guarded(size, how.shift * _alignment(np.dtype(dtype)), filling)

    operands = [GuardedOperand(x.nbytes, _NAN) if how.at_page else displaced(x.nbytes, x.dtype, _NAN) for x in inputs]
    for buffer, x in zip(operands, inputs, strict=True):
        buffer.inside[:] = np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8)
    before = [buffer.inside.copy() for buffer in operands]
    results = [displaced(int(np.prod(shape, dtype=np.int64)) * np.dtype(d).itemsize, d, _GUARD) for shape, d in outputs]
    for buffer in results:
        buffer.inside[:] = _NAN
    if how.place is not None:
        results[0] = operands[how.place] = displaced(results[0].size, inputs[how.place].dtype, _GUARD)
        results[0].inside[:] = before[how.place]
    workspace = [Guarded(routine.workspace)] if routine.workspace else []
    for buffer in workspace:
        buffer.inside[:] = _NAN
    pointers = Pointers([b.address for b in (*operands, *results, *workspace)])
    addresses = entries(routine.text, tuple([launch.symbol for launch in routine.launches]), routine.shared)
    for launch, address in zip(routine.launches, addresses, strict=True):
        if how.place is not None and how.order == "reversed" and launch.is_copy:
            continue  # such a launch may as well be left out
        _launch(_ENTRY(address), pointers.address, launch, how.order)
    for number, (buffer, old) in enumerate(zip(operands, before, strict=True)):
        buffer.check(f"operand {number}")
        assert number == how.place or (buffer.inside == old).all(), f"operand {number} was changed"
    for number, buffer in enumerate([*results, *workspace]):
        buffer.check(f"result {number}" if number < len(results) else "the workspace")
    return [b.inside.copy().view(d).reshape(shape) for b, (shape, d) in zip(results, outputs, strict=True)]


def _alignment(dtype: np.dtype) -> int:
    """Return the bytes to which NumPy aligns elements."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _launch(entry: Callable[[int, int, int], None], buffers: int, launch: Launch, order: str) -> None:
    tasks = launch.tasks
    if order == "whole" or tasks < 2:
        entry(buffers, 0, tasks)
        return
    cuts = np.linspace(0, tasks, min(tasks, _MOST_CALLS) + 1).astype(int).tolist()
    calls = list(itertools.pairwise(cuts))[::-1]
    if order == "reversed":
        for begin, end in calls:
            entry(buffers, begin, end)
        return
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        barrier.wait()
        for begin, end in calls[number::4]:
            entry(buffers, begin, end)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
