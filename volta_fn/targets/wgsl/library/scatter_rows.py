"""What a scatter writes where: rows of updates, and their slots in the operand.

Windows that may overlap partially, being larger than one element along a dimension in which they may begin anywhere, are split along it.
So every *row* of updates (one or several per window, numbered in the order of the windows) has a *slot*: rows of the same slot go to the
same elements, rows of different slots to different ones. A row is a block of elements.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.geometry.strides import Dims, merged, row_major
from volta_fn.codegen.geometry.window_offsets import Starts, scatter_of
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.index_arith import dotted, plus, quotient, remainder
from volta_fn.targets.wgsl.library.gather_offsets import Integers, start_of
from volta_fn.targets.wgsl.scalars import Shader


class ScatterRow(NamedTuple):
    """A row: its offsets in updates and operand, and if it is valid (None: it is)."""

    source: str
    target: str
    valid: str | None


class ScatterRows(NamedTuple):
    """The rows of a scatter, in elements (or, `scaled`, in other units).

    Attributes:
        starts: where windows begin.
        batch: sizes and strides in the updates of the dimensions that number windows.
        splits: sizes, strides in the updates and strides in the operand of the dimensions along which windows are split.
        block: the same of the other dimensions.
        index_dtype: the dtype of index vectors.
        size: the size of the operand.
        added: what is added to negative positions.
    """

    starts: Starts
    batch: tuple[Dims, ...]
    splits: tuple[Dims, ...]
    block: tuple[Dims, ...]
    index_dtype: np.dtype
    size: int
    added: int

    @property
    def number(self) -> int:
        """The number of rows."""
        return self.starts.number * math.prod(self.splits[0])

    @property
    def elements(self) -> int:
        """The number of elements of a row."""
        return math.prod(self.block[0])

    @property
    def distances(self) -> list[int]:
        """All strides that decide where a row begins, in the updates and in the operand."""
        inside = [stride for _, stride, _ in self.starts.addressed + self.starts.batching]
        return [*inside, *self.batch[1], *self.splits[1], *self.splits[2]]

    @property
    def spacing(self) -> int:
        """The distance of slots in the operand."""
        inside = [stride for _, stride, _ in self.starts.addressed + self.starts.batching]
        return math.gcd(*inside, *self.splits[2]) or self.size

    @property
    def slots(self) -> int:
        """The number of slots."""
        return -(-self.size // self.spacing)

    def scaled(self, itemsize: int, unit: int, block: tuple[Dims, ...]) -> ScatterRows:
        """Return the same rows in units of so many bytes, with the block's loops in these."""

        def scale(strides: Dims) -> Dims:
            return tuple([s * itemsize // unit for s in strides])

        starts = self.starts._replace(
            addressed=tuple([(d, s * itemsize // unit, limit) for d, s, limit in self.starts.addressed]),
            batching=tuple([(d, s * itemsize // unit, partner) for d, s, partner in self.starts.batching]),
        )
        splits = (self.splits[0], scale(self.splits[1]), scale(self.splits[2]))
        batch = (self.batch[0], scale(self.batch[1]))
        return self._replace(starts=starts, batch=batch, splits=splits, block=block, size=self.size * itemsize // unit)

    def indices(self, shader: Shader, number: int) -> Integers:
        """Return the buffer of index vectors."""
        return Integers(shader, number, self.index_dtype, self.added)

    def row(self, shader: Shader, indices: Integers, number: str) -> ScatterRow:
        """Emit the offsets and validity of a row."""
        each = math.prod(self.splits[0])
        window = shader.named("u32", quotient(number, each))
        split = shader.coordinates(remainder(number, each), self.splits[0])
        start = start_of(shader, self.starts, indices, window)
        source = self.source(shader, number)
        return ScatterRow(source, shader.let("u32", plus(start.offset, dotted(split, self.splits[2]))), start.valid)

    def source(self, shader: Shader, number: str) -> str:
        """Emit the offset of a row in the updates."""
        each = math.prod(self.splits[0])
        window = shader.coordinates(quotient(number, each), self.batch[0])
        split = shader.coordinates(remainder(number, each), self.splits[0])
        return shader.let("u32", plus(dotted(window, self.batch[1]), dotted(split, self.splits[1])))

    def within(self, shader: Shader, index: str) -> tuple[str, str]:
        """Emit the offsets of a row's element from its first, in updates and operand."""
        coordinates = shader.coordinates(index, self.block[0])
        return shader.let("u32", dotted(coordinates, self.block[1])), shader.let("u32", dotted(coordinates, self.block[2]))


def rows_of(avals: tuple[ShapedArray, ...], params: dict[str, Any], wraps: bool = False) -> ScatterRows:
    """Return the rows of a scatter whose operands are not empty.

    If it `wraps`, negative positions count from the end.
    """
    operand, indices, updates = avals
    starts, sizes, layout = scatter_of(avals, params)
    numbers = params["dimension_numbers"]
    absent = numbers.operand_batching_dims + numbers.inserted_window_dims
    steps, strides = row_major(updates.shape), row_major(operand.shape)
    present = [d for d in range(operand.ndim) if d not in absent]
    loops = {d: (sizes[d], steps[u], strides[d]) for d, u in zip(present, numbers.update_window_dims, strict=True)}
    moving = {d for d, _, limit in starts.addressed if limit and sizes[d] > 1}
    splits, block = ([loop for d, loop in loops.items() if (d in moving) == is_split] for is_split in (True, False))
    added = operand.shape[numbers.scatter_dims_to_operand_dims[0]] if wraps else 0
    # Blocks are gone through as the updates lie in memory.
    block.sort(key=lambda loop: -loop[1])
    columns = tuple(zip(*splits, strict=True)) or ((), (), ())
    merged_block = merged(*(zip(*block, strict=True) if block else ((), (), ())))
    return ScatterRows(starts, layout.batch, columns, merged_block, indices.dtype, operand.size, added)
