"""Butterflies: Fourier transforms of a few complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.primitives.formulas.complex_numbers import Complex
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64, least, vector_of
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
