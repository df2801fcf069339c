"""Routines of Fourier transforms along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.formulas.complex_numbers import Complex
from volta_fn.primitives.fourier import fft_p
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.fourier import signals as spectra
from volta_fn.targets.cpu.fourier.signals import Buffers, Groups, Pairs, Roots, Signals, butterfly, long_butterfly, mirror_pairs
from volta_fn.targets.cpu.routine import Routine, RoutineWriter, empty_routine, task_range
from volta_fn.targets.cpu.scalars.number import element

# Transforms whose length is a product of small ones.
#
# They have a pass for each factor, and give results in natural order (Stockham's algorithm).

#: Factors up to this are butterflies in registers.
_LONGEST_UNROLLED = 8
#: The longest prime factor; the operations of a butterfly grow with the square of its length.
_LONGEST_PRIME = 127
#: Factors of lengths, the most profitable first.
_FACTORS = (8, 4, 2, 5, 3, 7, *[n for n in range(11, _LONGEST_PRIME + 1, 2) if all(n % k for k in range(3, n, 2))])


def factors_of(length: int) -> tuple[int, ...] | None:
    """Return factors whose product is a length; None if it has others."""
    factors = []
    for factor in _FACTORS:
        while length % factor == 0:
            factors.append(factor)
            length //= factor
    return tuple(factors) if length == 1 else None


class Passes(Buffers):
    """The writer of the passes over interleaved signals."""

    def __init__(self, f: Function, element: str, lanes: int, factors: Sequence[int], inverse: bool = False) -> None:
        super().__init__(f, element, lanes, inverse)
        self.factors = factors

    def emit(self, source: Value, target: Value) -> Value:
        """Emit a transform of the elements at `source`, with `target` as scratch memory.

        Return the address of the results, one of the two.
        """
        length, stride = int(np.prod(self.factors)), 1
        for factor in self.factors:
            self._pass(source, target, factor, length // factor, stride)
            source, target = target, source
            length, stride = length // factor, stride * factor
        return source

    def _pass(self, source: Value, target: Value, factor: int, rest: int, stride: int) -> None:
        """Emit the pass of one factor: `rest` blocks of `stride` butterflies."""
        f = self.f
        angles = np.outer(np.arange(rest), np.arange(1, factor))
        table = self.table(f"{factor}.{rest}", angles, factor * rest) if rest > 1 else None
        unrolled = factor <= _LONGEST_UNROLLED

        def block(p: Value, _: list[Value]) -> None:
            def root(k: Value) -> Complex | None:
                return None if table is None else self.twiddle(table, f.plus(f.times(p, factor - 1), f.minus(k, i64(1))))

            roots = [root(i64(k)) for k in range(1, factor)] if unrolled else []

            def butterfly_at(q: Value, _: list[Value]) -> None:
                def read(j: Value) -> Complex:
                    return self.load(source, f.plus(q, f.times(f.plus(p, f.times(j, rest)), stride)))

                def write(k: Value, z: Complex) -> None:
                    number = f.known(k)
                    twiddle = None if number == 0 else roots[number - 1] if unrolled and number else root(k)
                    z = z if twiddle is None else z * twiddle
                    z = z.scaled(1 / np.prod(self.factors)) if self.inverse and rest == 1 else z
                    self.store(target, f.plus(q, f.times(f.plus(f.times(p, factor), k), stride)), z)

                if unrolled:
                    for k, z in enumerate(butterfly([read(i64(j)) for j in range(factor)])):
                        write(i64(k), z)
                else:
                    long_butterfly(self, factor, read, write)

            f.loop(i64(0), i64(stride), 1, [], butterfly_at, nonempty=True)

        f.loop(i64(0), i64(rest), 1, [], block, nonempty=True)


# Fourier transforms of long signals, each as a matrix of complex numbers.
#
# A signal of rows · columns numbers is a row-major matrix. Its spectrum is that of the columns, times powers of a root of
# unity, and then that of the rows, transposed (Bailey's four steps). Neighbouring columns, and then rows, are the lanes of vectors, as
# signals are below. Real signals are complex ones of half the length; `Pairs` makes their spectra, or signals of these.

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
    """Return the best shape of a signal of a length; None if there is none."""
    # Rows and columns are at least as many as the lanes. The fewer lanes compute what others do, too, and the closer the sides, the better.
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


#: Emits the transforms of neighbouring columns or rows, with passes, their memory, and where the first one is read and written.
Group = Callable[[Passes, tuple[Value, Value], Origin, Origin], None]


class LongTransform:
    """A transform of contiguous signals.

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
        """Add the transforms of `side` columns or rows of `length` numbers."""
        groups, factors = Groups(side, self.lanes), factors_of(length)
        assert factors is not None

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            passes = Passes(f, self.element, self.lanes, factors)
            base = f.at(pointers[_BETWEEN], "i8", i64(self._between_bytes))
            buffer, scratch = (f.at(base, f"[{self._buffer_bytes} x i8]", f.plus(f.times(number, 2), i64(k))) for k in range(2))

            def transform_run(index: Value, _: list[Value]) -> None:
                signal, inside = f.divided(index, groups.runs)
                source, target = (f.at(pointers[k], f"[{self.length * self.dtype.itemsize} x i8]", signal) for k in arrays)
                groups.emit(f, inside, lambda first: group(passes, (buffer, scratch), Origin(source, first), Origin(target, first)))

            f.loop(*task_range(f, number, self.count * groups.runs, self.tasks), 1, [], transform_run)

        writer.launch(self.tasks, _PASS * self.count * self.length * (2 + len(factors)), task)

    def _columns(self, passes: Passes, memory: tuple[Value, Value], source: Origin, target: Origin) -> None:
        """Emit the transforms of neighbouring columns, times powers of the root."""
        f, (rows, columns), lanes = passes.f, self.matrix, self.lanes
        signals = Signals(self.dtype, rows, columns)
        signals.read_all(self._outside(f), signals.start(f, source.start, i64(0), source.first), memory[0])
        results = passes.emit(*memory)
        table = passes.table(f"lanes.{rows}", np.outer(np.arange(rows), np.arange(lanes)), self.length, lanes, less_one=True)
        roots = Roots(passes, self.length)

        def twiddled(row: Value, z: Complex) -> Complex:
            return z * roots.power(f.binary("mul", row, source.first)).times_one_plus(passes.load(table, row))

        signals.write_all(passes, signals.start(f, target.start, i64(0), target.first), results, twiddled)

    def _rows(self, passes: Passes, memory: tuple[Value, Value], source: Origin, target: Origin) -> None:
        """Emit the transforms of neighbouring rows, stored as columns."""
        f, (rows, columns) = passes.f, self.matrix
        source_signals, target_signals = Signals(self.dtype, columns, 1), Signals(self.dtype, columns, rows)
        source_signals.read_all(passes, source_signals.start(f, source.start, i64(0), source.first), memory[0])
        results = passes.emit(*memory)

        def scaled(_: Value, z: Complex) -> Complex:
            return z.scaled(1 / self.length) if self.inverse else z

        target_signals.write_all(self._outside(f), target_signals.start(f, target.start, i64(0), target.first), results, scaled)

    def _outside(self, f: Function) -> Buffers:
        """Return the buffers through which signals are read and results are written."""
        # An inverse transform is a forward one of numbers whose components are swapped.
        return Buffers(f, self.element, self.lanes, self.inverse)


# Routines of Fourier transforms along an axis.
#
# Neighbouring signals are the lanes of vectors. A group of signals, one per lane, is copied to interleaved memory that
# fits a level-2 cache, transformed there, and copied to the result. Each signal is transformed separately.

#: The most complex numbers of a signal: a group of such signals takes 512 KB.
_LONGEST = 2048


def fft(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Return the routine of the primitive; None for what SciPy is to transform."""
    operand, kind, axis = avals[0], params["kind"], params["axis"]
    result = fft_p.result_avals(avals, params)
    if not result.size:
        return empty_routine()
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
    if matrix is None or transform.operand.inner > 1:
        return None
    if kind in ("RFFT", "IRFFT") and (not paired or mirror_pairs(length) < transform.lanes):
        return None
    return LongTransform(kind, dtypes.complex_dtype(operand.dtype), transform.signals, matrix).routine()


class _Transform:
    """A transform of blocks of signals."""

    def __init__(self, operand: ShapedArray, result: ShapedArray, kind: str, axis: int, factors: Sequence[int]) -> None:
        self.kind = kind
        self.factors = factors
        self.length = math.prod(factors)
        outer, inner = (math.prod(sizes) for sizes in (operand.shape[:axis], operand.shape[axis + 1 :]))
        self.operand, self.result = (Signals(aval.dtype, aval.shape[axis], inner) for aval in (operand, result))
        self.real = dtypes.real_dtype(operand.dtype)
        self.lanes = host().lanes(self.real.itemsize)
        #: The blocks, and the signals of each.
        self.blocks, self.signals = (1, outer) if inner == 1 else (outer, inner)
        self.groups = Groups(self.signals, self.lanes)

    def routine(self) -> Routine:
        count = self.groups.runs * self.blocks
        tasks = min(count, _MOST_TASKS)
        half = (self.length + 1) * 2 * self.lanes * self.real.itemsize
        writer = RoutineWriter("fft", 3)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            begin, end = task_range(f, number, count, tasks)
            passes = Passes(f, element(self.real), self.lanes, self.factors)
            memory = [f.at(pointers[2], f"[{half} x i8]", f.plus(f.times(number, 2), i64(k))) for k in range(2)]

            def transform_run(index: Value, _: list[Value]) -> None:
                block, inside = f.divided(index, self.groups.runs)
                self.groups.emit(f, inside, lambda first: self._group(passes, pointers, memory, block, first))

            f.loop(begin, end, 1, [], transform_run)

        writer.launch(tasks, 0.2 * self.blocks * self.signals * self.length * math.log2(2 * self.length), task)
        return writer.routine(tasks * 2 * half)

    def _group(self, passes: Passes, pointers: Sequence[Value], memory: Sequence[Value], block: Value, first: Value) -> None:
        """Emit the transforms of neighbouring signals."""
        f = passes.f
        source, target = (array.start(f, base, block, first) for array, base in zip((self.operand, self.result), pointers, strict=False))
        self.operand.read_all(passes, source, memory[0])
        self.result.write_all(passes, target, self._transformed(passes, *memory))

    def _transformed(self, passes: Passes, source: Value, target: Value) -> Value:
        """Emit a transform in memory, and return where its results are."""
        if self.kind == "IRFFT" and self.result.is_paired:
            spectra.join(passes, source, target, self.length)
            source, target = target, source
        elif self.kind == "IRFFT":
            spectra.complete(passes, source, self.length)
        results = Passes(passes.f, passes.element, self.lanes, self.factors, self.kind in ("IFFT", "IRFFT")).emit(source, target)
        if self.kind != "RFFT" or not self.operand.is_paired:
            return results
        other = target if results is source else source
        spectra.split(passes, results, other, self.length)
        return other
