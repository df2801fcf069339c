"""Matrices of products with few rows: memory, and registers.

A matrix has a row of numbers for each output. A *unit* is some bytes of a row that a thread loads at once, a *region* the units of four
neighbouring threads, which matrix units multiply together; so a region has numbers of one group. Numbers are converted to the dtype of x,
which represents each code exactly: a group's scale multiplies sums of products.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from volta_fn.primitives.quantized import BLOCK, QuantizedLayout
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.function import KernelFunction, half_type, i32

#: Bytes of a block of packed codes, and the units that a row may consist of, in bytes.
_PACKED, _UNITS = BLOCK // 2, (16, 8, 4)

#: Schemes of codes that are converted in registers. (A table of numbers, as NF4 has, would bound the kernel.)
_SCHEMES = frozenset(["int8", "int4", "fp8"])

#: By type: two numbers whose last bits count ones, 128 or 1024; and minus those and 8, the code of 0.
_COUNTING = {"bfloat": (0x43004300, -136.0), "half": (0x64006400, -1032.0)}


class WeightLayout(NamedTuple):
    """A matrix whose rows are contiguous.

    Strides and sizes of units are in bytes.
    """

    #: The dtype of x, and of a matrix of floats.
    dtype: np.dtype
    #: Numbers of a row, and bytes from one row to the next.
    size: int
    pitch: int
    #: How codes are grouped; None for a matrix of floats.
    quantized: QuantizedLayout | None
    #: The dtype of scales and offsets, and whether there are offsets.
    scale_dtype: np.dtype | None = None
    has_offsets: bool = False

    @property
    def scheme(self) -> str:
        """The scheme of codes, or the dtype of floats."""
        return self.dtype.name if self.quantized is None else self.quantized.scheme

    @property
    def is_packed(self) -> bool:
        """Whether a byte has two numbers."""
        return self.quantized is not None and self.quantized.is_packed

    @property
    def width(self) -> int:
        """The bytes of a row."""
        return self.size * self.dtype.itemsize if self.quantized is None else self.quantized.width

    @property
    def groups(self) -> int:
        """The groups of a row that have a scale; 1 without scales, too."""
        return 1 if self.quantized is None else self.quantized.groups

    @property
    def numbers(self) -> int:
        """The numbers of a unit."""
        return self.unit * 2 if self.is_packed else self.unit // (2 if self.quantized is None else 1)

    @property
    def unit(self) -> int:
        """The bytes of a unit; 0 if no unit divides rows and groups."""
        return next((unit for unit in _UNITS if self._fits(unit)), 0)

    def _fits(self, unit: int) -> bool:
        numbers = unit * 2 if self.is_packed else unit // (2 if self.quantized is None else 1)
        if numbers < 4 or self.pitch % unit or self.width % unit:
            return False
        return self.groups == 1 or (self.quantized is not None and self.quantized.group_size % (4 * numbers) == 0)

    @property
    def regions(self) -> int:
        """The regions of a row."""
        return ceil(self.width / (4 * self.unit))

    @property
    def is_computable(self) -> bool:
        """Whether there is a kernel for it."""
        return self.dtype.itemsize == 2 and (self.quantized is None or self.scheme in _SCHEMES) and self.size > 0 and self.unit > 0

    def place(self, f: KernelFunction, number: Value) -> Value:
        """Emit where a number of a row of x is in shared memory.

        Of four numbers that packed codes are multiplied by, those in the middle change places: halves of bytes 0 and 2 are one operand.
        """
        if not self.is_packed:
            return number
        low, four = f.remainder(number, 4), f.times(f.quotient(number, 4), 4)
        swapped = f.plus(f.times(f.remainder(low, 2), 2), f.quotient(low, 2))
        return f.plus(four, swapped)

    def segments(self, f: KernelFunction, unit: Value) -> list[tuple[Value, int]]:
        """Emit which numbers a unit has.

        There is the first one of each consecutive range, and their count.
        """
        if not self.is_packed:
            return [(f.times(unit, self.numbers), self.numbers)]
        block, inside = f.divided(unit, _PACKED // self.unit)
        first = f.plus(f.times(block, BLOCK), f.times(inside, self.unit))
        return [(first, self.unit), (f.plus(first, i32(BLOCK // 2)), self.unit)]


class Fragments:
    """The conversion of units to operands of matrix units.

    These are pairs of two 16-bit floats.

    The terms of a product of matrix units may be in any order, as long as both operands have the same.
    """

    def __init__(self, f: KernelFunction, layout: WeightLayout) -> None:
        self.f, self.layout = f, layout
        self.type = half_type(layout.dtype)

    def weights(self, words: Sequence[Value]) -> list[tuple[Value, Value]]:
        """Emit the numbers of a unit, four for each product."""
        scheme = self.layout.scheme
        if scheme == "int4":
            # The lower halves of the bytes, then the upper ones: of bytes 0 and 2, and of bytes 1 and 3.
            halves = [[self._nibbles(word, shift) for shift in (0, 8, 4, 12)] for word in words]
            return [(four[0], four[1]) for four in halves] + [(four[2], four[3]) for four in halves]
        if scheme == "int8":
            return [self._integers(word) for word in words]
        if scheme == "fp8":
            return [self._float8(word) for word in words]
        return list(zip(words[::2], words[1::2], strict=True))

    def ones(self) -> Value:
        """Return two ones."""
        return i32(0x3C003C00 if self.type == "half" else 0x3F803F80)

    def _nibbles(self, word: Value, shift: int) -> Value:
        """Emit the codes of 4 bits from bit `shift` and from 16 bits further on, minus 8."""
        f, (bits, least) = self.f, _COUNTING[self.type]
        shifted = f.binary("lshr", word, i32(shift)) if shift else word
        counted = f.binary("or", f.binary("and", shifted, i32(0x000F000F)), i32(bits))
        vector = f.cast("bitcast", counted, f"<2 x {self.type}>")
        constant = f"{self.type} {_literal(least, self.type)}"
        return f.cast("bitcast", f.fadd(vector, Value(vector.type, f"<{constant}, {constant}>")), "i32")

    def _integers(self, word: Value) -> tuple[Value, Value]:
        """Emit four integers of 8 bits."""
        f, (bits, _) = self.f, _COUNTING[self.type]
        pairs = []
        for selector in (0x4140, 0x4342):  # the lower and the upper two bytes, with zeros above each
            two = f.intrinsic("llvm.nvvm.prmt", "i32", word, i32(0), i32(selector))
            if self.type == "half":  # plus 128, from 0 to 255
                counted, least = f.binary("or", f.binary("xor", two, i32(0x00800080)), i32(bits)), i32(0x64806480)
            else:  # of 128 plus the lower bits 128 are taken, or 256 of negative ones: the last bit of the exponent is the sign
                counted = f.binary("or", f.binary("and", two, i32(0x007F007F)), i32(bits))
                least = f.binary("or", f.binary("and", two, i32(0x00800080)), i32(bits))
            both = [f.cast("bitcast", x, f"<2 x {self.type}>") for x in (counted, least)]
            pairs.append(f.cast("bitcast", f.fsub(*both), "i32"))
        return pairs[0], pairs[1]

    def _float8(self, word: Value) -> tuple[Value, Value]:
        """Emit four numbers of float8_e4m3fn."""
        f, pairs = self.f, []
        for half in range(2):
            two = f.cast("trunc", f.binary("lshr", word, i32(16)) if half else word, "i16")
            (halves,) = f.ptx("cvt.rn.f16x2.e4m3x2 $0, $1;", two, results=["i32"])
            if self.type == "bfloat":
                floats = f.cast("fpext", f.cast("bitcast", halves, "<2 x half>"), "<2 x float>")
                halves = f.cast("bitcast", f.cast("fptrunc", floats, "<2 x bfloat>"), "i32")
            pairs.append(halves)
        return pairs[0], pairs[1]


def _literal(number: float, type_: str) -> str:
    """Return a number that the 16-bit type represents, as LLVM writes it."""
    if type_ == "bfloat":
        return f"0xR{int(np.float32(number).view(np.uint32)) >> 16:04X}"
    return f"0xH{int(np.float16(number).view(np.uint16)):04X}"


def as_float(f: KernelFunction, number: Value, dtype: np.dtype) -> Value:
    """Emit a float of 16 or 32 bits as one of 32; bfloat16 is given as i16."""
    if dtype == np.float32:
        return number
    if dtype == np.float16:
        return f.cast("fpext", f.cast("bitcast", number, "half"), "float")
    return f.cast("bitcast", f.binary("shl", f.cast("zext", number, "i32"), i32(16)), "float")
