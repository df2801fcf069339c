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
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.fourier import spectra
from volta_fn.targets.cpu.fourier.groups import Groups
from volta_fn.targets.cpu.fourier.long_signals import LongTransform, matrix_of
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
    paired = kind in ("RFFT", "IRFFT") and params["length"] % 2 == 0
    length = params["length"] // 2 if paired else params["length"]
    if length < 2:
        return None
    factors = factors_of(length)
    if factors is None:
        return None
    transform = _Transform(operand, result, kind, axis, factors)
    if length <= _LONGEST and transform.signals >= transform.lanes:
        return transform.routine()
    matrix = matrix_of(length, transform.lanes)
    if matrix is None or transform.given.inner > 1 or (kind in ("RFFT", "IRFFT") and not paired):
        return None
    return LongTransform(kind, dtypes.complex_dtype(operand.dtype), transform.signals, matrix).routine()


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
        #: The blocks, and the signals of each.
        self.blocks, self.signals = (1, outer) if inner == 1 else (outer, inner)
        self.groups = Groups(self.signals, self.lanes)

    def routine(self) -> Routine:
        """Return the routine."""
        count = self.groups.runs * self.blocks
        tasks = min(count, _MOST_TASKS)
        half = (self.length + 1) * 2 * self.lanes * self.real.itemsize
        writer = RoutineWriter("fft", 3)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            begin, end = task_range(f, number, count, tasks)
            passes = Passes(f, element(self.real), self.lanes, self.factors)
            memory = [f.at(pointers[2], f"[{half} x i8]", f.plus(f.times(number, 2), i64(k))) for k in range(2)]

            def run(index: Value, _: list[Value]) -> None:
                block, inside = f.divided(index, self.groups.runs)
                self.groups.emit(f, inside, lambda first: self._group(passes, pointers, memory, block, first))

            f.loop(begin, end, 1, [], run)

        writer.launch(tasks, 0.2 * self.blocks * self.signals * self.length * math.log2(2 * self.length), task)
        return writer.routine(tasks * 2 * half)

    def _group(self, passes: Passes, pointers: Sequence[Value], memory: Sequence[Value], block: Value, first: Value) -> None:
        """Emit the transforms of neighbouring signals."""
        f = passes.f
        source, target = (array.start(f, base, block, first) for array, base in zip((self.given, self.made), pointers, strict=False))
        self.given.read_all(passes, source, memory[0])
        self.made.write_all(passes, target, self._transformed(passes, *memory))

    def _transformed(self, passes: Passes, here: Value, there: Value) -> Value:
        """Emit a transform in memory, and return where its results are."""
        if self.kind == "IRFFT" and self.made.is_paired:
            spectra.join(passes, here, there, self.length)
            here, there = there, here
        elif self.kind == "IRFFT":
            spectra.complete(passes, here, self.length)
        found = Passes(passes.f, passes.element, self.lanes, self.factors, self.kind in ("IFFT", "IRFFT")).emit(here, there)
        if self.kind != "RFFT" or not self.given.is_paired:
            return found
        other = there if found is here else here
        spectra.split(passes, found, other, self.length)
        return other
