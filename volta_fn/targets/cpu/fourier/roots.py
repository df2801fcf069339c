"""Powers of a root of unity whose exponents are known when the code runs."""

from __future__ import annotations

import numpy as np

from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.cpu.fourier.buffers import Buffers
from volta_fn.targets.cpu.fourier.butterflies import Complex
from volta_fn.targets.cpu.scalars.values import Lanes


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
        found = self._entry(self._coarse, f.binary("lshr", exponent, i64(self._bits))).grown(fine)
        narrow = [f.cast("fptrunc", component.value, self._buffers.element) for component in found]
        return Complex(*[Lanes(f, f.splat(component, self._buffers.lanes)) for component in narrow])

    def _entry(self, table: Value, number: Value) -> Complex:
        f = self._buffers.f
        pointer = f.at(table, "[2 x double]", number)
        return Complex(*[Lanes(f, f.load("double", f.at(pointer, "double", i64(k)), 8)) for k in range(2)])
