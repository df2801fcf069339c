"""Matrix units: rows in shared memory, stages, and products of warp groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.kernel import KernelFunction, i32
from volta_fn.targets.nvidia.matmul.problem import FORMATS, HALVES, UNIT

# Rows in shared memory.
#
# The number of a row's unit is changed by the row's number, by exclusive or, so that the same units of eight rows lie in different banks.


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


# Stages.
#
# The tensor memory accelerator copies to them.
#
# One thread, of the warp group that copies, fills a stage when it is empty; the warps that multiply read it when it is full. Two barriers
# (`mbarrier`) per stage tell so: a phase of the first ends when all bytes have arrived, one of the second when all warps have read them. A
# stage is known by its number and the parity of its phases, which changes with every round of the stages.

#: Bytes of a barrier.
BARRIER = 8


class TilePipeline:
    """The barriers of some stages.

    Those that tell of full stages lie at an offset from an address of shared memory, the others follow.
    """

    def __init__(self, f: KernelFunction, base: Value, offset: int, stages: int) -> None:
        self._f, self._stages = f, stages
        self._full, self._empty = [f.plus(base, i32(offset + k * BARRIER * stages)) for k in range(2)]

    def begin(self, readers: int, writers: int = 1) -> None:
        """Initialise the barriers, by one thread.

        So many warps read each stage, and so many threads or warps fill it.
        """
        f = self._f
        for stage in range(self._stages):
            for barriers, arrivals in ((self._full, writers), (self._empty, readers)):
                f.begin_barrier(f.plus(barriers, i32(BARRIER * stage)), arrivals)

    def next(self, stage: Value, parity: Value) -> list[Value]:
        """Return the next stage, and the parity of its phase."""
        f = self._f
        following = f.plus(stage, i32(1))
        wraps = f.equals(following, self._stages)
        return [f.select(wraps, i32(0), following), f.binary("xor", parity, f.cast("zext", wraps, "i32"))]

    def wait_for_room(self, stage: Value, parity: Value) -> None:
        """Wait until a stage is empty: until the phase of the other parity has ended."""
        self._f.wait_for_barrier(self._of_stage(self._empty, stage), self._f.exclusive_or(parity, 1))

    def expect(self, stage: Value, parity: Value, count: int) -> Value:
        """Wait for room; return the barrier at which copies of so many bytes arrive."""
        self.wait_for_room(stage, parity)
        barrier = self._of_stage(self._full, stage)
        self._f.expect_bytes(barrier, count)
        return barrier

    def wait(self, stage: Value, parity: Value) -> None:
        """Wait until a stage is full."""
        self._f.wait_for_barrier(self._of_stage(self._full, stage), parity)

    def fill(self, stage: Value) -> None:
        """Tell that this warp has written its part of a stage."""
        self._f.arrive_in_first_lane(self._of_stage(self._full, stage))

    def release(self, stage: Value) -> None:
        """Tell that this warp has read a stage."""
        self._f.arrive_in_first_lane(self._of_stage(self._empty, stage))

    def _of_stage(self, barriers: Value, stage: Value) -> Value:
        return self._f.plus(barriers, self._f.times(stage, BARRIER))


def divide_groups(f: KernelFunction, copy: Callable[[], None], multiply: Callable[[], None]) -> str:
    """Append what the first warp group does, and the others; return the module."""
    f.synchronise()
    f.do(f"br {f.below(f.warp, 4)}, label %copies, label %multiplies")
    for label, append in (("copies", copy), ("multiplies", multiply)):
        f.label(label)
        append()
        f.do("br label %end")
    f.label("end")
    return f.text()


# Products of warp groups.
#
# A warp group is 128 threads, whose four warps have 16 rows each of blocks of 64. The right operand is in shared memory, the left one there
# or in registers, and the sums are in registers. Products are begun, and awaited later: until then registers of sums may not be read.

#: Rows of a block, and bytes of the terms of one `wgmma`.
ROWS, TERM_BYTES = 64, 32


class SharedMatrix(NamedTuple):
    """A matrix in shared memory.

    It is a descriptor, and what is added to that, in units of 16 bytes.
    """

    descriptor: Value
    further: int = 0


class GroupStep(NamedTuple):
    """The terms of one `wgmma`, which it adds to a block of sums."""

    #: The left operand may be in four registers.
    left: SharedMatrix | Sequence[Value]
    right: SharedMatrix
    block: int = 0


class GroupProduct(NamedTuple):
    """What the instructions of a product have in common."""

    dtype: np.dtype
    columns: int
    #: Whether operands in shared memory are not contiguous along the terms.
    left_across: bool = False
    right_across: bool = False

    @property
    def each(self) -> int:
        """The sums that a thread has of a block."""
        return self.columns // 2

    def _instruction(self, sums: str, left: str, scale: str) -> str:
        """Return the text of one instruction; its right operand is `b`."""
        kind, terms = FORMATS[np.dtype(self.dtype)], TERM_BYTES // self.dtype.itemsize
        total, flags = ("s32", scale) if self.dtype == np.int8 else ("f32", f"{scale}, 1, 1")
        if self.dtype in HALVES:
            flags += (f", {int(self.left_across)}" if left == "a" else "") + f", {int(self.right_across)}"
        shape = f"m64n{self.columns}k{terms}.{total}.{kind}.{kind}"
        return f"wgmma.mma_async.sync.aligned.{shape} {{{sums}}}, {left}, b, {flags};"

    def begin(self, f: KernelFunction, steps: Sequence[GroupStep], sums: Sequence[Value] = (), remaining: int | None = None) -> list[Value]:
        """Append the instructions and return the sums.

        These begin with `sums`, or with zeros of one block. With `remaining` products are awaited until so many of those begun last are
        under way.
        """
        count = len(sums) or self.each
        operands: list[Value] = []
        numbers: dict[Value, int] = {}

        def operand(value: Value) -> int:
            if value not in numbers:
                numbers[value] = len(operands) + count + len(sums)
                operands.append(value)
            return numbers[value]

        code = ["{", ".reg .pred adds, none;", ".reg .b64 a, b;", "setp.ne.b32 adds, 1, 0;", "setp.ne.b32 none, 0, 0;"]
        code.append("wgmma.fence.sync.aligned;")
        for number, (left, right, block) in enumerate(steps):
            if isinstance(left, SharedMatrix):
                name = "a"
                code.append(f"add.s64 a, ${operand(left.descriptor)}, {left.further};")
            else:
                name = f"{{{', '.join([f'${operand(word)}' for word in left])}}}"
            code.append(f"add.s64 b, ${operand(right.descriptor)}, {right.further};")
            registers = ", ".join(f"${block * self.each + k}" for k in range(self.each))
            code.append(self._instruction(registers, name, "adds" if sums or number else "none"))
        code.append("wgmma.commit_group.sync.aligned;")
        code += [] if remaining is None else [f"wgmma.wait_group.sync.aligned {remaining};"]
        return f.ptx("\n".join([*code, "}"]), *operands, results=() if sums else ["float"] * count, tied=sums)


def await_products(f: KernelFunction, values: Sequence[Value], remaining: int = 0) -> list[Value]:
    """Wait for products, and return `values`, which are among them.

    The `remaining` ones that were begun last may still be under way.
    """
    return f.ptx(f"wgmma.wait_group.sync.aligned {remaining};", tied=values)
