"""Routines of Fourier transforms along an axis.

Neighbouring signals are the lanes of vectors. A group of as many signals as there are lanes is copied, its numbers side by side, to memory
that a processor's second cache holds, transformed there, and copied to the result. No signal's numbers meet those of another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.fourier import fft_p
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.index_arith import least
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.fourier import spectra
from volta_fn.targets.cpu.fourier.passes import Passes, factors_of
from volta_fn.targets.cpu.fourier.signals import Signals
from volta_fn.targets.cpu.library.entry_points import RoutineWriter, nothing, task_range
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars.number import element

#: The most complex numbers of a signal: a group of such signals takes 512 KB.
_LONGEST = 2048
_MOST_TASKS = 16


def fft(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive; None for what SciPy is to transform."""
    operand, kind, axis = avals[0], params["kind"], params["axis"]
    result = fft_p.result_avals(avals, params)
    if not result.size:
        return nothing()
    halves = kind in ("RFFT", "IRFFT")
    length = params["length"] // 2 if halves else params["length"]
    if not 1 < length <= _LONGEST or (halves and params["length"] % 2):
        return None
    factors = factors_of(length)
    if factors is None:
        return None
    transform = _Transform(operand, result, kind, axis, factors)
    return transform.routine() if transform.signals >= transform.lanes else None


class _Transform:
    """A transform of blocks of signals."""

    def __init__(self, operand: ShapedArray, result: ShapedArray, kind: str, axis: int, factors: Sequence[int]) -> None:
        self.kind = kind
        self.factors = factors
        self.length = math.prod(factors)
        outer, inner = (math.prod(sizes) for sizes in (operand.shape[:axis], operand.shape[axis + 1 :]))
        self.given, self.made = (Signals(aval.dtype, aval.shape[axis], inner) for aval in (operand, result))
        self.real = dtypes.real_dtype(operand.dtype)
        self.lanes = host().lanes(self.real.itemsize)
        #: The blocks, the signals of each, and the groups of these.
        self.blocks, self.signals = (1, outer) if inner == 1 else (outer, inner)
        self.groups = -(-self.signals // self.lanes)

    def routine(self) -> Routine:
        """Return the routine."""
        count = self.groups * self.blocks
        tasks = min(count, _MOST_TASKS)
        half = (self.length + 1) * 2 * self.lanes * self.real.itemsize
        writer = RoutineWriter("fft", 3)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            begin, end = task_range(f, number, count, tasks)
            passes = Passes(f, element(self.real), self.lanes, self.factors)
            memory = [f.at(pointers[2], f"[{half} x i8]", f.plus(f.times(number, 2), i64(k))) for k in range(2)]
            f.loop(begin, end, 1, [], lambda group, _: self._group(passes, pointers, memory, group))

        writer.launch(tasks, 0.2 * self.blocks * self.signals * self.length * math.log2(2 * self.length), task)
        return writer.routine(tasks * 2 * half)

    def _group(self, passes: Passes, pointers: Sequence[Value], memory: Sequence[Value], group: Value) -> None:
        """Emit the transforms of neighbouring signals."""
        f = passes.f
        block, number = f.divided(group, self.groups) if self.blocks > 1 else (i64(0), group)
        first = f.times(number, self.lanes)
        source, target = (
            array.start(f, base, block, first) for array, base in zip((self.given, self.made), (pointers[0], pointers[1]), strict=True)
        )
        count = least(f, f.minus(i64(self.signals), first), i64(self.lanes))
        full = f.compare("icmp eq", count, i64(self.lanes))
        f.branch(full, lambda: self._read(passes, source, memory[0], None), lambda: self._read(passes, source, memory[0], count))
        found = self._transformed(passes, *memory)
        f.branch(full, lambda: self._write(passes, target, found, None), lambda: self._write(passes, target, found, count))

    def _transformed(self, passes: Passes, here: Value, there: Value) -> Value:
        """Emit a transform in memory, and return where its results are."""
        if self.kind == "IRFFT":
            spectra.join(passes, here, there, self.length)
            here, there = there, here
        found = Passes(passes.f, passes.element, self.lanes, self.factors, self.kind in ("IFFT", "IRFFT")).emit(here, there)
        if self.kind != "RFFT":
            return found
        other = there if found is here else here
        spectra.split(passes, found, other, self.length)
        return other

    def _read(self, passes: Passes, source: Value, memory: Value, count: Value | None) -> None:
        f, given = passes.f, self.given
        if count is None and given.tiled(self.lanes):
            given.read_tiles(passes, source, memory)
            return

        def one(number: Value, _: list[Value]) -> None:
            passes.store(memory, number, given.read(f, source, number, self.lanes, count))

        f.loop(i64(0), i64(given.length), 1, [], one, once=True)

    def _write(self, passes: Passes, target: Value, memory: Value, count: Value | None) -> None:
        f, made = passes.f, self.made
        if count is None and made.tiled(self.lanes):
            made.write_tiles(passes, target, memory)
            return

        def one(number: Value, _: list[Value]) -> None:
            made.write(f, target, number, passes.load(memory, number), count)

        f.loop(i64(0), i64(made.length), 1, [], one, once=True)
