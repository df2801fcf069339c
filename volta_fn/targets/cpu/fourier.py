"""Fourier transforms of several signals at a time, one per lane of a vector.

Transforms of a few numbers (butterflies) are one for each factor of a length; elements of neighbouring signals are read and written as
vectors, and real signals have half spectra. Of these are made passes over signals, one for each factor, and transforms of long signals as
matrices, whose columns and then rows are transformed. The routine, at the end, chooses, and divides signals among tasks. SciPy computes all
other transforms, on the host.
"""

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
from volta_fn.runtime.llvm.text import Function, Value, i64, least, transposed, vector_of
from volta_fn.targets.cpu.routine import Routine, RoutineWriter, empty_routine, task_range
from volta_fn.targets.cpu.scalars import Number, load, store
from volta_fn.targets.cpu.scalars.number import element
from volta_fn.targets.cpu.scalars.values import Lanes

# Powers of a root of unity whose exponents are known when the code runs.


class Roots:
    """The numbers exp(-2πi e / n).

    Each is the product of an entry of two tables in double precision: one of small angles, less one, and one of multiples of these.
    """

    def __init__(self, buffers: Buffers, n: int) -> None:
        self._buffers = buffers
        self._bits = n.bit_length() // 2
        fine = 1 << self._bits
        self._fine = buffers.table(f"fine.{n}", np.arange(fine), n, element="double", less_one=True)
        self._coarse = buffers.table(f"coarse.{n}", np.arange(-(-n // fine)) * fine, n, element="double")

    def power(self, exponent: Value) -> Complex:
        """Emit the power of an exponent from 0 to n - 1, in every lane."""
        f = self._buffers.f
        fine = self._entry(self._fine, f.binary("and", exponent, i64((1 << self._bits) - 1)))
        product = self._entry(self._coarse, f.binary("lshr", exponent, i64(self._bits))).times_one_plus(fine)
        narrow = [f.cast("fptrunc", component.value, self._buffers.element) for component in product]
        return Complex(*[Lanes(f, f.splat(component, self._buffers.lanes)) for component in narrow])

    def _entry(self, table: Value, number: Value) -> Complex:
        f = self._buffers.f
        pointer = f.at(table, "[2 x double]", number)
        return Complex(*[Lanes(f, f.load("double", f.at(pointer, "double", i64(k)), 8)) for k in range(2)])


# Groups of neighbours, one per lane of a vector.
#
# Neighbours are signals, columns, rows or numbers.


class Groups(NamedTuple):
    """The groups of `size` neighbours, at least one per lane.

    The last group is as large as the others: it computes some of the group before again. Both are in one run, so that what is stored last
    does not depend on threads.
    """

    size: int
    lanes: int

    @property
    def runs(self) -> int:
        """How many runs of groups tasks share."""
        return self.size // self.lanes

    def emit(self, f: Function, run: Value, group: Callable[[Value], None]) -> None:
        """Emit the groups of a run; `group` takes the number of the first neighbour."""
        first = f.times(run, self.lanes)
        end = f.plus(first, i64(self.lanes))
        if self.size % self.lanes:
            end = f.select(f.compare("icmp eq", run, i64(self.runs - 1)), i64(self.size), end)
        f.loop(first, end, self.lanes, [], lambda start, _: group(least(f, start, i64(self.size - self.lanes))), nonempty=True)


# Interleaved signals in memory, and tables of roots of unity.


class Buffers:
    """The writer of accesses of interleaved signals.

    Memory holds, for each element, the real components of all signals and then the imaginary ones.
    """

    def __init__(self, f: Function, element: str, lanes: int, inverse: bool = False) -> None:
        self.f = f
        self.element = element
        self.lanes = lanes
        #: An inverse transform is a forward one of numbers whose components are swapped, and divides by the length.
        self.inverse = inverse
        self.vector = vector_of(element, lanes)
        self.itemsize = 4 if element == "float" else 8
        #: The alignment of vectors.
        self.align = lanes * self.itemsize

    def load(self, base: Value, index: Value) -> Complex:
        """Emit the load of an element of all signals."""
        return Complex(*[Lanes(self.f, self.f.load(self.vector, p, self.align)) for p in self._components(base, index)])

    def store(self, base: Value, index: Value, value: Complex) -> None:
        """Emit the store of an element of all signals."""
        for component, pointer in zip(value, self._components(base, index), strict=True):
            self.f.store(component.value, pointer, self.align)

    def row(self, base: Value, number: Value) -> Value:
        """Emit the address of a real number of all signals, of which each element has two."""
        return self.f.at(base, self.element, self.f.times(number, self.lanes))

    def _components(self, base: Value, index: Value) -> list[Value]:
        return [self.row(base, self.f.plus(self.f.times(index, 2), i64(k))) for k in ((1, 0) if self.inverse else (0, 1))]

    def twiddle(self, table: Value, number: Value) -> Complex:
        """Emit the load of a number of a table, for all signals."""
        f = self.f
        components = [f.load(self.element, f.at(table, self.element, f.plus(f.times(number, 2), i64(k))), self.itemsize) for k in range(2)]
        return Complex(*[Lanes(f, f.splat(component, self.lanes)) for component in components])

    def table(self, name: str, steps: np.ndarray, n: int, each: int = 1, element: str = "", *, less_one: bool = False) -> Value:
        """Return the table of exp(-2πi s / n) for some steps s, of exact angles.

        The real components of every `each` numbers are followed by their imaginary components. With `less_one`, the table holds the numbers
        minus one, as `Complex.times_one_plus` takes them.
        """
        steps, symbol = np.ravel(steps) % n, f"vf.twiddles.{name}"
        values = np.exp(-2j * np.pi / n * steps)
        quarters, beyond = np.divmod(4 * steps, n)
        exact = beyond == 0
        values[exact] = np.array([1, -1j, -1, 1j])[quarters[exact]]
        real = -2 * np.sin(np.pi / n * steps) ** 2 if less_one else values.real
        components = np.stack([real.reshape(-1, each), values.imag.reshape(-1, each)], 1)
        data = components.astype(np.float32 if (element or self.element) == "float" else np.float64).tobytes()
        text = "".join(f"\\{byte:02X}" for byte in data)
        self.f.module.declare(symbol, f'@{symbol} = internal constant [{len(data)} x i8] c"{text}", align 64')
        return Value("ptr", f"@{symbol}")


# Fourier transforms of a few complex numbers in registers.
#
# They are forward transforms without scaling.


def butterfly(x: Sequence[Complex]) -> list[Complex]:
    """Return Σ_j x[j] exp(-2πi j k / r) for every k < r, where r is 2, 4, 8 or odd."""
    r = len(x)
    if r == 2:
        return [x[0] + x[1], x[0] - x[1]]
    if r % 2:
        return _odd(x)
    even, odd = butterfly(x[::2]), butterfly(x[1::2])
    odd = [_rotated(z, k, r) for k, z in enumerate(odd)]
    return [a + b for a, b in zip(even, odd, strict=True)] + [a - b for a, b in zip(even, odd, strict=True)]


def _rotated(z: Complex, k: int, r: int) -> Complex:
    """Return z exp(-2πi k / r) for k < r / 2, r a power of two up to 8."""
    if not k:
        return z
    if 4 * k == r:
        return z.times_minus_i()
    turned = (z + z.times_minus_i()).scaled(math.sqrt(0.5))
    return turned if 8 * k == r else turned.times_minus_i()


def _odd(x: Sequence[Complex]) -> list[Complex]:
    """Combine the cosines with sums of pairs, the sines with their differences."""
    r = len(x)
    pairs = range(1, (r + 1) // 2)
    sums, differences = [x[j] + x[r - j] for j in pairs], [x[j] - x[r - j] for j in pairs]
    first = x[0]
    for term in sums:
        first = first + term
    results = [first] * r
    for k in pairs:
        cosines, sines = x[0], None
        for j, both, between in zip(pairs, sums, differences, strict=True):
            angle = 2 * math.pi * (j * k % r) / r
            c, s = math.cos(angle), math.sin(angle)
            cosines = Complex(both.re.fma(c, cosines.re), both.im.fma(c, cosines.im))
            sines = between.scaled(s) if sines is None else Complex(between.re.fma(s, sines.re), between.im.fma(s, sines.im))
        assert sines is not None
        results[k], results[r - k] = cosines + sines.times_minus_i(), cosines - sines.times_minus_i()
    return results


# Butterflies of longer primes, as loops over memory.
#
# The cosines meet sums of pairs and the sines their differences, as in the butterflies above; a few results at a time are sums in
# registers.

#: Vector registers that a result takes: its four sums, and those with which they are computed.
_REGISTERS = 6


def long_butterfly(buffers: Buffers, r: int, read: Callable[[Value], Complex], write: Callable[[Value, Complex], None]) -> None:
    """Emit Σ_j x[j] exp(-2πi j k / r) for every k < r, an odd number."""
    f, half, width = buffers.f, r // 2, host().vector_registers // _REGISTERS
    sums, differences = (f.alloca(buffers.vector, 2 * half) for _ in range(2))
    first = read(i64(0))

    def pair(j: Value, carried: list[Value]) -> list[Value]:
        a, b = read(f.plus(j, i64(1))), read(f.minus(i64(r - 1), j))
        both = a + b
        buffers.store(sums, j, both)
        buffers.store(differences, j, a - b)
        return _values(_complex(buffers, carried) + both)

    write(i64(0), _complex(buffers, f.loop(i64(0), i64(half), 1, _values(first), pair, nonempty=True)))
    starts = range(0, half, width)
    steps = [np.outer(np.arange(1, half + 1), np.arange(start, min(start + width, half)) + 1).ravel() for start in starts]
    table = buffers.table(f"prime.{r}", np.concatenate(steps), r)

    def results(start: Value, count: int) -> None:
        """Emit `count` results, and their mirror images."""

        def term(j: Value, carried: list[Value]) -> list[Value]:
            both, between, accumulators = buffers.load(sums, j), buffers.load(differences, j), []
            for k in range(count):
                number = f.plus(f.times(start, half), f.plus(f.times(j, count), i64(k)))
                root = buffers.twiddle(table, number)
                cosines, sines = (_complex(buffers, carried[4 * k + at : 4 * k + at + 2]) for at in (0, 2))
                accumulators += _values(Complex(both.re.fma(root.re, cosines.re), both.im.fma(root.re, cosines.im)))
                accumulators += _values(Complex(between.re.fma(root.im, sines.re), between.im.fma(root.im, sines.im)))
            return accumulators

        zero = first.re.like(0.0)
        begun = [*_values(first), *_values(Complex(zero, zero))] * count
        totals = f.loop(i64(0), i64(half), 1, begun, term, nonempty=True)
        for k in range(count):
            cosines, sines = (_complex(buffers, totals[4 * k + at : 4 * k + at + 2]) for at in (0, 2))
            number = f.plus(start, i64(k + 1))
            write(number, cosines - sines.times_minus_i())
            write(f.minus(i64(r), number), cosines + sines.times_minus_i())

    blocks = half // width
    f.loop(i64(0), i64(blocks), 1, [], lambda block, _: results(f.times(block, width), width))
    if half % width:
        results(i64(blocks * width), half % width)


def _complex(buffers: Buffers, components: list[Value]) -> Complex:
    return Complex(*[Lanes(buffers.f, component) for component in components])


def _values(z: Complex) -> list[Value]:
    return [z.re.value, z.im.value]


# Signals in memory: elements of neighbouring signals as vectors.
#
# An even number of real numbers is read as half as many complex numbers, whose components are adjacent.

#: Maps an index and its number to the number that is stored.
Change = Callable[[Value, Complex], Complex]


class Signals(NamedTuple):
    """An array of signals.

    Attributes:
        dtype: of its elements.
        size: the elements of a signal.
        inner: the signals between two elements of one.
    """

    dtype: np.dtype
    size: int
    inner: int

    @property
    def is_paired(self) -> bool:
        """Whether real numbers are components."""
        return self.dtype.kind != "c" and self.size % 2 == 0

    @property
    def length(self) -> int:
        """The complex numbers of a signal."""
        return self.size // 2 if self.is_paired else self.size

    @property
    def distance(self) -> int:
        """The stride from one signal to the next, in elements."""
        return self.size if self.inner == 1 else 1

    def start(self, f: Function, base: Value, block: Value, first: Value) -> Value:
        """Emit the address of a signal of a block."""
        offset = f.plus(f.times(block, self.inner * self.size), f.times(first, self.distance))
        return self._at(f, base, offset)

    def _at(self, f: Function, base: Value, element: Value) -> Value:
        return f.at(base, f"[{self.dtype.itemsize} x i8]", element)

    def _addresses(self, f: Function, start: Value, number: Value) -> list[Value]:
        """Emit where a complex number of the first signal is, or its two components are."""
        elements = [f.plus(f.times(number, 2), i64(k)) for k in range(2)] if self.is_paired else [number]
        return [self._at(f, start, f.times(element, self.inner)) for element in elements]

    def read_all(self, buffers: Buffers, start: Value, memory: Value) -> None:
        """Emit the load of a group of signals, one per lane."""
        f = buffers.f

        def read_number(number: Value, _: list[Value]) -> None:
            numbers = [load(f, self.dtype, at, buffers.lanes, stride=self.distance) for at in self._addresses(f, start, number)]
            components = [Lanes(f, component) for number in numbers for component in number.components]
            buffers.store(memory, number, Complex(components[0], components[1] if components[1:] else components[0].like(0.0)))

        if self._is_tiled(buffers.lanes):
            self._read_tiles(buffers, start, memory)
        else:
            f.loop(i64(0), i64(self.length), 1, [], read_number, nonempty=True)

    def write_all(self, buffers: Buffers, start: Value, memory: Value, change: Change | None = None) -> None:
        """Emit the store of a group of signals, one per lane, mapped by `change`."""
        f = buffers.f

        def write_number(number: Value, _: list[Value]) -> None:
            z = buffers.load(memory, number)
            components = tuple(component.value for component in (change(number, z) if change else z))
            numbers = [components] if self.dtype.kind == "c" else [(component,) for component in components]
            for components_of_one, address in zip(numbers, self._addresses(f, start, number), strict=False):
                store(f, Number(self.dtype, components_of_one), address, stride=self.distance)

        if change is None and self._is_tiled(buffers.lanes):
            self._write_tiles(buffers, start, memory)
        else:
            f.loop(i64(0), i64(self.length), 1, [], write_number, nonempty=True)

    # contiguous signals: squares of `lanes` by `lanes` numbers are transposed in registers

    def _is_tiled(self, lanes: int) -> bool:
        return self.inner == 1 and 2 * self.length >= lanes and (self.dtype.kind == "c" or self.is_paired)

    def _read_tiles(self, buffers: Buffers, start: Value, memory: Value) -> None:
        """Emit the load of a group of signals, one per lane."""
        f = buffers.f

        def tile(column: Value) -> None:
            rows = [f.load(buffers.vector, self._number(buffers, start, k, column), buffers.itemsize) for k in range(buffers.lanes)]
            for j, vector in enumerate(transposed(f, rows)):
                f.store(vector, buffers.row(memory, f.plus(column, i64(j))), buffers.align)

        self._tiles(buffers, tile)

    def _write_tiles(self, buffers: Buffers, start: Value, memory: Value) -> None:
        """Emit the store of a group of signals, one per lane."""
        f = buffers.f

        def tile(column: Value) -> None:
            rows = [f.load(buffers.vector, buffers.row(memory, f.plus(column, i64(j))), buffers.align) for j in range(buffers.lanes)]
            for k, vector in enumerate(transposed(f, rows)):
                f.store(vector, self._number(buffers, start, k, column), buffers.itemsize)

        self._tiles(buffers, tile)

    def _tiles(self, buffers: Buffers, tile: Callable[[Value], None]) -> None:
        """Emit the tiles of a group; the last one may overlap the one before."""
        width, lanes = 2 * self.length, buffers.lanes
        buffers.f.loop(i64(0), i64(width // lanes * lanes), lanes, [], lambda column, _: tile(column), nonempty=True)
        if width % lanes:
            tile(i64(width - lanes))

    def _number(self, buffers: Buffers, start: Value, signal: int, column: Value) -> Value:
        """Emit the address of a real number of a signal."""
        return buffers.f.at(start, buffers.element, buffers.f.plus(i64(signal * 2 * self.length), column))


# Half spectra of real signals.
#
# A signal x of 2m real numbers is transformed as z of m complex ones, z[j] = x[2j] + i x[2j+1]. With E and O the spectra of the numbers
# of even and odd indices, Z = E + i O, and the spectrum of x is X[k] = E[k] + w^k O[k], w = exp(-πi / m). E and O are spectra of real
# numbers, so they follow from Z[k] and Z[m-k], or X[k] and X[m-k], together. A signal of an odd number is transformed as complex
# numbers.

#: Numbers k and m - k of the target by number k of the source, the conjugate of its number m - k, and exp(-πi k / m).
Pair = Callable[[Complex, Complex, Complex], tuple[Complex, Complex]]


def split_pair(at_k: Complex, at_mirror: Complex, root: Complex) -> tuple[Complex, Complex]:
    """Return X[k] and X[m-k] by those of Z."""
    even, odd = (at_k + at_mirror).scaled(0.5), (at_k - at_mirror).scaled(0.5)
    turned = odd.times_minus_i() * root
    return even + turned, (even - turned).conj()


def join_pair(at_k: Complex, at_mirror: Complex, root: Complex) -> tuple[Complex, Complex]:
    """Return Z[k] and Z[m-k] by those of X."""
    even, odd = (at_k + at_mirror).scaled(0.5), (at_k - at_mirror).scaled(0.5)
    turned = (odd * root.conj()).times_minus_i()
    return even - turned, (even + turned).conj()


def split_ends(first: Complex) -> tuple[Complex, Complex]:
    """Return X[0] and X[m] by Z[0]."""
    zero = first.re.like(0.0)
    return Complex(first.re + first.im, zero), Complex(first.re - first.im, zero)


def join_ends(first: Complex, last: Complex) -> Complex:
    """Return Z[0] by X[0] and X[m], which are taken as real."""
    return Complex(first.re + last.re, first.re - last.re).scaled(0.5)


def split(buffers: Buffers, z: Value, x: Value, m: int) -> None:
    """Emit X[0], …, X[m] of Z[0], …, Z[m-1]."""
    for number, end in zip((0, m), split_ends(buffers.load(z, i64(0))), strict=True):
        buffers.store(x, i64(number), end)
    _pairs(buffers, z, x, m, split_pair)


def join(buffers: Buffers, x: Value, z: Value, m: int) -> None:
    """Emit Z[0], …, Z[m-1] of X[0], …, X[m]."""
    buffers.store(z, i64(0), join_ends(buffers.load(x, i64(0)), buffers.load(x, i64(m))))
    _pairs(buffers, x, z, m, join_pair)


def complete(buffers: Buffers, x: Value, n: int) -> None:
    """Emit X[n-k] of X[k] for k ≤ n / 2, n odd, and take X[0] as real."""
    f, first = buffers.f, buffers.load(x, i64(0))
    buffers.store(x, i64(0), Complex(first.re, first.re.like(0.0)))

    def mirror(k: Value, _: list[Value]) -> None:
        buffers.store(x, f.minus(i64(n), k), buffers.load(x, k).conj())

    f.loop(i64(1), i64(n // 2 + 1), 1, [], mirror)


def _pairs(buffers: Buffers, source: Value, target: Value, m: int, pair: Pair) -> None:
    """Emit numbers k and m - k of the target, for every such pair."""
    f = buffers.f
    if m % 2 == 0:
        buffers.store(target, i64(m // 2), buffers.load(source, i64(m // 2)).conj())
    if m < 3:
        return
    table = buffers.table(f"half.{m}", np.arange((m + 1) // 2), 2 * m)

    def emit_pair(k: Value, _: list[Value]) -> None:
        mirror = f.minus(i64(m), k)
        at_k, at_mirror = buffers.load(source, k), buffers.load(source, mirror).conj()
        for number, value in zip((k, mirror), pair(at_k, at_mirror, buffers.twiddle(table, k)), strict=True):
            buffers.store(target, number, value)

    f.loop(i64(1), i64((m + 1) // 2), 1, [], emit_pair, nonempty=True)


# Half spectra of long real signals.
#
# The rules are those of half spectra above, and neighbouring numbers are the lanes of vectors.

#: The most tasks of a launch.
_MOST_TASKS = 16
#: Nanoseconds for a number.
_NUMBER = 0.5


def mirror_pairs(m: int) -> int:
    """Return how many pairs of different k and m - k a spectrum has."""
    return (m - 1) // 2


class Pairs:
    """The conversion of spectra Z of m pairs to half spectra X, or back.

    Both are contiguous complex numbers; X has one more than Z. There are at least as many mirror pairs as lanes.
    """

    def __init__(self, dtype: np.dtype, lanes: int, m: int, joins: bool) -> None:
        self.dtype = dtype
        self.lanes = lanes
        self.m = m
        self.joins = joins

    def launch(self, writer: RoutineWriter, count: int, source: int, target: int) -> None:
        """Add an entry point for `count` spectra, from array `source` to array `target`."""
        groups = Groups(mirror_pairs(self.m), self.lanes)
        tasks = min(_MOST_TASKS, count * groups.runs)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            buffers = Buffers(f, element(self.dtype), self.lanes)
            table = buffers.table("lanes.half", np.arange(self.lanes), 2 * self.m, self.lanes, less_one=True)
            roots = Roots(buffers, 2 * self.m)

            def emit_run(index: Value, _: list[Value]) -> None:
                signal, inside = f.divided(index, groups.runs)
                operand, result = (
                    f.at(pointers[which], f"[{self.dtype.itemsize * (self.m + more)} x i8]", signal)
                    for which, more in ((source, self.joins), (target, not self.joins))
                )

                def group(first: Value) -> None:
                    k = f.plus(first, i64(1))
                    self._group(f, operand, result, k, roots.power(k).times_one_plus(buffers.load(table, i64(0))))

                f.branch(f.compare("icmp eq", inside, i64(0)), lambda: self._ends(f, operand, result))
                groups.emit(f, inside, group)

            f.loop(*task_range(f, number, count * groups.runs, tasks), 1, [], emit_run)

        writer.launch(tasks, _NUMBER * count * self.m, task)

    def _ends(self, f: Function, operand: Value, result: Value) -> None:
        """Emit the numbers without a partner."""
        m, first = self.m, self._load(f, operand, i64(0), 1)
        if self.joins:
            self._store(f, result, i64(0), join_ends(first, self._load(f, operand, i64(m), 1)))
        else:
            for number, end in zip((0, m), split_ends(first), strict=True):
                self._store(f, result, i64(number), end)
        if m % 2 == 0:
            self._store(f, result, i64(m // 2), self._load(f, operand, i64(m // 2), 1).conj())

    def _group(self, f: Function, operand: Value, result: Value, k: Value, root: Complex) -> None:
        """Emit numbers from k on, and their partners, which are in descending order."""
        mirror = f.minus(i64(self.m - self.lanes + 1), k)
        at_k, at_mirror = self._load(f, operand, k, self.lanes), self._load(f, operand, mirror, self.lanes)
        rule = join_pair if self.joins else split_pair
        first, second = rule(at_k, self._reversed(at_mirror).conj(), root)
        self._store(f, result, k, first)
        self._store(f, result, mirror, self._reversed(second))

    def _reversed(self, z: Complex) -> Complex:
        return Complex(*[component.shuffle(range(self.lanes - 1, -1, -1)) for component in z])

    def _load(self, f: Function, base: Value, number: Value, lanes: int) -> Complex:
        """Emit the load of neighbouring numbers."""
        numbers = load(f, self.dtype, self._at(f, base, number), lanes)
        return Complex(*[Lanes(f, component) for component in numbers.components])

    def _store(self, f: Function, base: Value, number: Value, z: Complex) -> None:
        """Emit the store of neighbouring numbers."""
        store(f, Number(self.dtype, (z.re.value, z.im.value)), self._at(f, base, number))

    def _at(self, f: Function, base: Value, number: Value) -> Value:
        return f.at(base, f"[{self.dtype.itemsize} x i8]", number)


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
# signals are otherwise. Real signals are complex ones of half the length; `Pairs` makes their spectra, or signals of these.

#: The most rows, for which there is a table, and the most columns.
_MOST_ROWS, _MOST_COLUMNS = 1024, 4096
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
            join(passes, source, target, self.length)
            source, target = target, source
        elif self.kind == "IRFFT":
            complete(passes, source, self.length)
        results = Passes(passes.f, passes.element, self.lanes, self.factors, self.kind in ("IFFT", "IRFFT")).emit(source, target)
        if self.kind != "RFFT" or not self.operand.is_paired:
            return results
        other = target if results is source else source
        split(passes, results, other, self.length)
        return other
