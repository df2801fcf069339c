"""Running one routine by itself: its text compiled, its launches called one after another."""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from volta_fn.runtime.llvm.machine import LoadedCode, compile_object, load_objects
from volta_fn.runtime.llvm.text import SharedFunction
from volta_fn.targets.cpu.routine import Routine, SignalWord

#: Code that is not freed.
_KEPT: list[LoadedCode] = []
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
#: What a routine calls for signals to be handled, and its record, before the pointers to the buffers.
_NO_SIGNAL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda signals: 0)
_SIGNALS = np.array([ctypes.cast(_NO_SIGNAL, ctypes.c_void_p).value, *[0] * (len(SignalWord) - 1)], np.int64)

#: Bytes around buffers that a routine must leave as they are, and what they are full of.
_MARGIN, _FILLING = 192, 0xA5


#: Sets what may be done with pages of memory.
_PROTECT: Any = (lambda *_: 0) if os.name == "nt" else ctypes.CDLL(None).mprotect
if os.name != "nt":
    _PROTECT.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


@functools.lru_cache(maxsize=256)
def entries(text: str, symbols: tuple[str, ...], shared: tuple[SharedFunction, ...] = ()) -> tuple[int, ...]:
    """Return the addresses of a text's entry points, which may call shared functions."""
    loaded = load_objects([compile_object(text), *[_code(function) for function in shared]], symbols)
    _KEPT.append(loaded)
    return tuple(loaded.addresses)


@functools.cache
def _code(function: SharedFunction) -> bytes:
    return compile_object(function.text)


class Pointers:
    """The pointers that a launch is given, with a record of signals for which nothing is to be done."""

    def __init__(self, addresses: Sequence[int]) -> None:
        self.words = np.array([_SIGNALS.ctypes.data, *addresses, 0], np.int64)
        self.address = self.words[1:].ctypes.data


class Guarded:
    """Memory, `shift` bytes after the beginning of a cache line, with margins that tell if code wrote out of bounds; full of `filling`."""

    def __init__(self, size: int, shift: int = 0, filling: int = _FILLING) -> None:
        self.raw = np.full(size + 2 * _MARGIN + 64, filling, np.uint8)
        self.start = _MARGIN + (shift - (self.raw.ctypes.data + _MARGIN)) % 64
        self.size, self.filling = size, filling

    @property
    def inside(self) -> np.ndarray:
        """The bytes between the margins."""
        return self.raw[self.start : self.start + self.size]

    @property
    def address(self) -> int:
        """Where the bytes between the margins begin."""
        return self.raw.ctypes.data + self.start

    def check(self, what: str) -> None:
        """Fail if a margin was written to."""
        before, after = self.raw[: self.start], self.raw[self.start + self.size :]
        for margin, where in ((before[::-1], "before its beginning"), (after, "beyond its end")):
            written = np.flatnonzero(margin != self.filling)
            assert not written.size, f"{what}: byte {written[0] + 1} {where} was written"


class GuardedOperand(Guarded):
    """Memory with a margin before it, and a page after it whose access ends the process: code that reads beyond its end is noticed."""

    def __init__(self, size: int, filling: int = _FILLING) -> None:
        pages = -(-(size + _MARGIN) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = np.frombuffer(mmap.mmap(-1, pages + mmap.PAGESIZE), np.uint8)
        memory[:] = filling
        assert _PROTECT(memory.ctypes.data + pages, mmap.PAGESIZE, 0) == 0
        self.raw, self.start, self.size, self.filling = memory[:pages], pages - size, size, filling


def run_routine(
    routine: Routine,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[tuple[tuple[int, ...], np.dtype]],
    chunks: int = 1,
    places: Mapping[int, int] | None = None,
) -> list[np.ndarray]:
    """Return the results of a routine on contiguous copies of `inputs`.

    Every launch's tasks are split into so many `chunks`, done one by one in reverse order: tasks must not depend on each other. Fails if
    an operand is changed, or if memory next to results or workspace is; reading beyond an operand ends the process. `places` says which
    results lie in which operands' memory.
    """
    places = places or {}
    held: list[Guarded] = [GuardedOperand(x.nbytes) for x in inputs]
    for guarded, x in zip(held, inputs, strict=True):
        guarded.inside[:] = np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8)
    before = [guarded.inside.copy() for guarded in held]
    sizes = [int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in outputs]
    buffers = [held[places[n]] if n in places else Guarded(size) for n, size in enumerate(sizes)]
    extra = [Guarded(routine.workspace)] if routine.workspace else []
    memory = [*held, *buffers, *extra]
    pointers = Pointers([m.address for m in memory])
    addresses = entries(routine.text, tuple([launch.symbol for launch in routine.launches]), routine.shared)
    for launch, address in zip(routine.launches, addresses, strict=True):
        cuts = np.linspace(0, launch.tasks, max(1, min(chunks, launch.tasks)) + 1).astype(int).tolist()
        for begin, end in reversed(list(itertools.pairwise(cuts))):
            _ENTRY(address)(pointers.address, begin, end)
    for number, (guarded, old) in enumerate(zip(held, before, strict=True)):
        guarded.check(f"operand {number}")
        assert number in places.values() or (guarded.inside == old).all(), f"operand {number} was changed"
    for number, guarded in enumerate([*buffers, *extra]):
        guarded.check(f"result {number}" if number < len(buffers) else "the workspace")
    return [g.inside.copy().view(dtype).reshape(shape) for g, (shape, dtype) in zip(buffers, outputs, strict=True)]


def check_rooms(routine: Routine, inputs: Sequence[np.ndarray], outputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> None:
    """Fail if two tasks of a launch change the same byte of the workspace: threads do tasks at the same time."""
    sizes = [int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in outputs]
    memory = [Guarded(size) for size in (*[x.nbytes for x in inputs], *sizes, routine.workspace)]
    for guarded, x in zip(memory, inputs, strict=False):
        guarded.inside[:] = np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8)
    pointers, workspace = Pointers([m.address for m in memory]), memory[-1].inside
    addresses = entries(routine.text, tuple([launch.symbol for launch in routine.launches]), routine.shared)
    for launch, address in zip(routine.launches, addresses, strict=True):
        before, after, writers = workspace.copy(), workspace.copy(), np.full(routine.workspace, -1)
        for task in range(launch.tasks):
            workspace[:] = before
            _ENTRY(address)(pointers.address, task, task + 1)
            changed = workspace != before
            others = set(writers[changed].tolist()) - {-1}
            assert not others, f"{launch.symbol}: task {task} writes where tasks {sorted(others)} do"
            writers[changed], after[changed] = task, workspace[changed]
        workspace[:] = after
