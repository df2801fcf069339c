"""Products of warp groups (`wgmma`), for GPUs of compute capability 9.0.

A warp group is 128 threads, whose four warps have 16 rows each of blocks of 64. The right operand is in shared memory, the left one there
or in registers, and the sums are in registers. Products are begun, and awaited later: until then registers of sums may not be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.function import KernelFunction
from volta_fn.targets.nvidia.matmul.problem import FORMATS, HALVES

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
