"""Routines run on machine code and in WGSL between guard bytes, at odd addresses, in every order of their tasks."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.targets.cpu.running import entries
from volta_fn.targets.cpu.library.movement import COPY
from volta_fn.targets.cpu.routine import Launch, Routine

#: Bytes on both sides of a buffer. Around operands they are NaN in every dtype, so that a number read from them shows; around results
#: they are another pattern, so that a NaN written there shows.
MARGIN = 192
_NAN, _GUARD = 0xFF, 0xA5

#: The most calls that tasks are run in, one by one.
_MOST_CALLS = 64

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Placement(NamedTuple):
    """How a routine is run: elements by which buffers are displaced from cache lines, the order of tasks, and the result's operand."""

    shift: int = 0
    order: str = "whole"
    place: int | None = None


class Mismatch(AssertionError):
    """A routine that wrote where it must not."""


class _Buffer:
    """Memory between margins, `shift` bytes after the beginning of a cache line."""

    def __init__(self, size: int, shift: int, margin: int, content: bytes | None = None) -> None:
        self._raw = np.full(size + 2 * MARGIN + 64, margin, np.uint8)
        self._margin, self.size = margin, size
        self._start = MARGIN + -(self._raw.ctypes.data + MARGIN) % 64 + shift % 64
        self.inside = self._raw[self._start : self._start + size]
        self.inside[:] = _NAN if content is None else np.frombuffer(content, np.uint8)
        self.address = self._raw.ctypes.data + self._start

    def check(self, what: str) -> None:
        """Raise unless the margins are what they were."""
        before, after = self._raw[: self._start], self._raw[self._start + self.size :]
        if (before != self._margin).any():
            raise Mismatch(f"{what}: {np.flatnonzero(before[::-1] != self._margin)[0] + 1} bytes before its beginning were written")
        if (after != self._margin).any():
            raise Mismatch(f"{what}: {np.flatnonzero(after != self._margin)[0] + 1} bytes beyond its end were written")


def placements(place: int | None, shift: int) -> Iterator[Placement]:
    """The ways in which a routine is run: all must give the same bits."""
    yield Placement()
    yield Placement(shift, "reversed")
    yield Placement(shift, "threads")
    if place is not None:
        yield Placement(0, "whole", place)
        yield Placement(shift, "reversed", place)


def run_on_cpu(
    routine: Routine, inputs: Sequence[np.ndarray], outputs: Sequence[tuple[tuple[int, ...], Any]], how: Placement = Placement()
) -> list[np.ndarray]:
    """The results of a routine. Raises `Mismatch` if it changed an operand, or a byte next to a buffer."""
    operands = [_Buffer(x.nbytes, how.shift * _alignment(x.dtype), _NAN, np.ascontiguousarray(x).tobytes()) for x in inputs]
    before = [buffer.inside.copy() for buffer in operands]
    results = [
        _Buffer(int(np.prod(shape, dtype=np.int64)) * np.dtype(d).itemsize, how.shift * _alignment(np.dtype(d)), _GUARD)
        for shape, d in outputs
    ]
    if how.place is not None:
        results[0] = operands[how.place] = _Buffer(results[0].size, how.shift * _alignment(inputs[how.place].dtype), _GUARD)
        results[0].inside[:] = before[how.place]
    workspace = [_Buffer(routine.workspace, 0, _GUARD)] if routine.workspace else []
    pointers = np.array([b.address for b in (*operands, *results, *workspace)] + [0], np.int64)
    addresses = entries(routine.text, tuple([launch.symbol for launch in routine.launches]), routine.shared)
    for launch, address in zip(routine.launches, addresses, strict=True):
        if how.place is not None and how.order == "reversed" and launch.symbol.endswith(COPY):
            continue  # such a launch may as well be left out
        _launch(_ENTRY(address), pointers.ctypes.data, launch, how.order)
    for number, (buffer, old) in enumerate(zip(operands, before, strict=True)):
        buffer.check(f"operand {number}")
        if number != how.place and (buffer.inside != old).any():
            raise Mismatch(f"operand {number} was changed")
    for number, buffer in enumerate([*results, *workspace]):
        buffer.check(f"result {number}" if number < len(results) else "the workspace")
    return [b.inside.copy().view(d).reshape(shape) for b, (shape, d) in zip(results, outputs, strict=True)]


def _alignment(dtype: np.dtype) -> int:
    """The bytes to which NumPy aligns elements."""
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
