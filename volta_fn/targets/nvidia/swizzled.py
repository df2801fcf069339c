"""Rows in shared memory whose units of 16 bytes change places.

The number of a row's unit is changed by the row's number, by exclusive or, so that the same units of eight rows lie in different banks.
"""

from __future__ import annotations

from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.function import KernelFunction, i32
from volta_fn.targets.nvidia.matmul.problem import UNIT


def fragment_addresses(f: KernelFunction, row_bytes: int, first_row: Value, first_unit: Value, units: int, *, crossed: bool) -> list[Value]:
    """Return a lane's addresses of fragments (`load_matrices`).

    They are those of 16 rows and every second of some units. The four matrices of a fragment are listed by rows first, or, `crossed`, by
    units first. The first row is a multiple of 8, the first unit one of 2.
    """
    low, middle, high = f.remainder(f.lane, 8), f.remainder(f.quotient(f.lane, 8), 2), f.quotient(f.lane, 16)
    row, unit = f.plus(low, f.times(high if crossed else middle, 8)), middle if crossed else high
    line = f.times(f.plus(first_row, row), row_bytes)
    place = f.exclusive_or(f.plus(first_unit, unit), low)
    return [f.plus(line, f.times(f.exclusive_or(place, change), UNIT)) for change in range(0, units, 2)]


class SwizzledRows:
    """Rows at an offset in shared memory.

    All threads of a block copy them, unit by unit.
    """

    def __init__(self, f: KernelFunction, rows: int, units: int, offset: int) -> None:
        self.f, self.offset = f, offset
        self.row_bytes = units * UNIT
        self.bytes = rows * self.row_bytes
        #: Rows that all threads copy at once, and how often they do.
        self.together = f.threads // units
        self.passes = rows // self.together
        assert self.together % 8 == 0 and rows % self.together == 0, "the same units of a row have the same number in all passes"
        #: The row that this thread copies first, and its unit in memory.
        self.row, self.unit = f.divided(f.thread, units)
        place = f.exclusive_or(self.unit, f.remainder(self.row, 8))
        self._to = f.plus(f.times(self.row, self.row_bytes), f.times(place, UNIT), i32(offset))

    def copy_unit(self, number: int, source: Value, stage: Value, size: Value) -> None:
        """Begin to copy this thread's unit of a pass, of which so many bytes exist."""
        f = self.f
        f.copy_unit(f.plus(self._to, stage, i32(number * self.together * self.row_bytes)), source, size)
