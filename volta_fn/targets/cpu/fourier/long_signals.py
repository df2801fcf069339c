"""Fourier transforms of long signals, each as a matrix of complex numbers.

A signal of rows · columns numbers is a matrix with so many rows. Its spectrum is that of the columns, times powers of a root of unity, and
then that of the rows, transposed (Bailey's four steps). Neighbouring columns, and then rows, are the lanes of vectors, as signals are in
`routine`. Real signals are complex ones of half the length; `pairs` makes their spectra, or signals of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.fourier.buffers import Buffers
from volta_fn.targets.cpu.fourier.butterflies import Complex
from volta_fn.targets.cpu.fourier.groups import Groups
from volta_fn.targets.cpu.fourier.pairs import Pairs
from volta_fn.targets.cpu.fourier.passes import Passes, factors_of
from volta_fn.targets.cpu.fourier.roots import Roots
from volta_fn.targets.cpu.fourier.signals import Signals
from volta_fn.targets.cpu.library.entry_points import RoutineWriter, task_range
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars.number import element

#: The most rows, for which there is a table, and the most columns.
_MOST_ROWS, _MOST_COLUMNS = 1024, 4096
_MOST_TASKS = 16
#: Of a routine's arrays, the signal or spectrum, the result, and memory in which there is a spectrum between them.
_OPERAND, _RESULT, _BETWEEN = range(3)
#: Nanoseconds for a number of one pass over memory.
_PASS = 0.3


class Matrix(NamedTuple):
    """The shape of a signal as a matrix."""

    rows: int
    columns: int


def matrix_of(length: int, lanes: int) -> Matrix | None:
    """Return the best shape of a signal of a length; None if there is none.

    Rows and columns are at least as many as the lanes. The fewer lanes compute what others do, too, and the closer the sides, the better.
    """
    if factors_of(length) is None:
        return None

    def cost(shape: Matrix) -> float:
        return sum(-(-side // lanes) * lanes / side for side in shape) + 0.1 * math.log2(shape.columns / shape.rows)

    shapes = (Matrix(rows, length // rows) for rows in range(lanes, min(math.isqrt(length), _MOST_ROWS) + 1) if length % rows == 0)
    return min((shape for shape in shapes if shape.columns <= _MOST_COLUMNS), key=cost, default=None)


class Origin(NamedTuple):
    """Where a group's signal begins in memory, and its first column or row."""

    start: Value
    first: Value


#: Emits what is done for neighbouring columns or rows: passes, their memory, and where the first one is read and written.
Group = Callable[[Passes, tuple[Value, Value], Origin, Origin], None]


class LongTransform:
    """A transform of signals one after another in memory.

    Attributes:
        kind: as the primitive has it.
        dtype: of complex numbers.
        count: the signals.
        matrix: the shape of each.
    """

    def __init__(self, kind: str, dtype: np.dtype, count: int, matrix: Matrix) -> None:
        self.kind = kind
        self.dtype = dtype
        self.count = count
        self.matrix = matrix
        self.length = matrix.rows * matrix.columns
        self.element = element(dtype)
        self.lanes = host().lanes(dtype.itemsize // 2)
        self.inverse = kind in ("IFFT", "IRFFT")
        self.tasks = min(_MOST_TASKS, count * (matrix.rows // self.lanes))

    def routine(self) -> Routine:
        """Return the routine.

        A spectrum of a real signal is made of one of pairs, and its inverse begins with that one, in the memory of the result.
        """
        writer = RoutineWriter("long_fft", 3)
        source, middle, target = _OPERAND, _BETWEEN, _RESULT
        if self.kind == "IRFFT":
            Pairs(self.dtype, self.lanes, self.length, joins=True).launch(writer, self.count, _OPERAND, _RESULT)
            source = _RESULT
        if self.kind == "RFFT":
            middle, target = _RESULT, _BETWEEN
        self._launch(writer, self.matrix.columns, self.matrix.rows, (source, middle), self._columns)
        self._launch(writer, self.matrix.rows, self.matrix.columns, (middle, target), self._rows)
        if self.kind == "RFFT":
            Pairs(self.dtype, self.lanes, self.length, joins=False).launch(writer, self.count, _BETWEEN, _RESULT)
        return writer.routine(self._between_bytes + self.tasks * 2 * self._buffer_bytes)

    @property
    def _between_bytes(self) -> int:
        return -(-self.count * self.length * self.dtype.itemsize // 64) * 64

    @property
    def _buffer_bytes(self) -> int:
        return max(self.matrix) * self.lanes * self.dtype.itemsize

    def _launch(self, writer: RoutineWriter, side: int, length: int, arrays: tuple[int, int], group: Group) -> None:
        """Add the transforms of `side` columns or rows, each of so many numbers."""
        groups, factors = Groups(side, self.lanes), factors_of(length)
        assert factors is not None

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            passes = Passes(f, self.element, self.lanes, factors)
            base = f.at(pointers[_BETWEEN], "i8", i64(self._between_bytes))
            here, there = (f.at(base, f"[{self._buffer_bytes} x i8]", f.plus(f.times(number, 2), i64(k))) for k in range(2))

            def one(index: Value, _: list[Value]) -> None:
                signal, inside = f.divided(index, groups.runs)
                source, target = (f.at(pointers[k], f"[{self.length * self.dtype.itemsize} x i8]", signal) for k in arrays)
                groups.emit(f, inside, lambda first: group(passes, (here, there), Origin(source, first), Origin(target, first)))

            f.loop(*task_range(f, number, self.count * groups.runs, self.tasks), 1, [], one)

        writer.launch(self.tasks, _PASS * self.count * self.length * (2 + len(factors)), task)

    def _columns(self, passes: Passes, memory: tuple[Value, Value], source: Origin, target: Origin) -> None:
        """Emit the transforms of neighbouring columns, times powers of the root."""
        f, (rows, columns), lanes = passes.f, self.matrix, self.lanes
        signals = Signals(self.dtype, rows, columns)
        signals.read_all(self._outside(f), signals.start(f, source.start, i64(0), source.first), memory[0])
        found = passes.emit(*memory)
        table = passes.table(f"lanes.{rows}", np.outer(np.arange(rows), np.arange(lanes)), self.length, lanes, less_one=True)
        roots = Roots(passes, self.length)

        def turned(row: Value, z: Complex) -> Complex:
            return z.times(roots.power(f.binary("mul", row, source.first)).grown(passes.load(table, row)))

        signals.write_all(passes, signals.start(f, target.start, i64(0), target.first), found, turned)

    def _rows(self, passes: Passes, memory: tuple[Value, Value], source: Origin, target: Origin) -> None:
        """Emit the transforms of neighbouring rows, stored as columns."""
        f, (rows, columns) = passes.f, self.matrix
        given, made = Signals(self.dtype, columns, 1), Signals(self.dtype, columns, rows)
        given.read_all(passes, given.start(f, source.start, i64(0), source.first), memory[0])
        found = passes.emit(*memory)

        def scaled(_: Value, z: Complex) -> Complex:
            return z.scaled(1 / self.length) if self.inverse else z

        made.write_all(self._outside(f), made.start(f, target.start, i64(0), target.first), found, scaled)

    def _outside(self, f: Function) -> Buffers:
        """Return what reads signals and writes results.

        An inverse transform is a forward one of numbers whose components are swapped.
        """
        return Buffers(f, self.element, self.lanes, self.inverse)
