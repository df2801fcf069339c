"""Signals side by side in memory, and tables of roots of unity."""

from __future__ import annotations

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of
from volta_fn.targets.cpu.fourier.butterflies import Complex
from volta_fn.targets.cpu.scalars.values import Lanes


class Buffers:
    """Writes accesses of signals side by side.

    In memory are, of each element, the real components of all signals, then the imaginary ones.
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

        Of so many numbers `each`, the real components are followed by the imaginary ones. Numbers less one are factors for `Complex.grown`.
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
