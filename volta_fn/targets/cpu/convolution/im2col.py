"""Convolution by patches: the matrix of what every place meets, made tile by tile, times panels of w.

The same loops as the implicit product (`igemm`), but the elements that a place meets are copied next to each other first, so that its rows
are read from end to end.
"""

from __future__ import annotations

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.convolution.emit_utils import Index, repeat, step, times
from volta_fn.targets.cpu.convolution.gather import strided
from volta_fn.targets.cpu.convolution.igemm import Igemm
from volta_fn.targets.cpu.convolution.igemm_plan import Plan
from volta_fn.targets.cpu.convolution.loop_nest import dense
from volta_fn.targets.cpu.convolution.stages import Arguments, Piece
from volta_fn.targets.cpu.matmul.compute_dtype import first_lanes

#: Elements of a tile of the matrix, at most.
LARGEST = 128 * 1024


class Im2col(Igemm):
    """The writer of one correlation's code."""

    def __init__(self, piece: Piece, plan: Plan) -> None:
        super().__init__(piece, plan)
        self._sizes = [plan.blocks.images, *plan.blocks.places, *(size for _, size in plan.depth)]
        self._strides = dense(self._sizes)

    @property
    def own(self) -> int:
        """Elements of a task's room: a tile of x (if it is copied), then its patches."""
        return super().own + self._patches

    @property
    def _patches(self) -> int:
        return -(-self._sizes[0] * self._strides[0] // self.work.lanes) * self.work.lanes + self.work.lanes

    def _depth_stride(self, name: str) -> int:
        names = [depth for depth, _ in self.plan.depth]
        return self._strides[1 + len(self.c.axes) + names.index(name)]

    def _row_strides(self) -> list[int]:
        return self._strides[: 1 + len(self.c.axes)]

    def _x(self, f: Function, args: Arguments, task: Value, group: Index, image: Index, places: list[Index], starts: list[Index]) -> Value:
        """A block's patches, copied into the task's room."""
        x = super()._x(f, args, task, group, image, places, starts)
        to = args.room(f, self.tile_room + super().own * self.work.itemsize, self.own * self.work.itemsize, task)
        sources = super()._row_strides() + [super(Im2col, self)._depth_stride(name) for name, _ in self.plan.depth]
        self._copy(f, self._sizes, sources, self._strides, x, to)
        return to

    def _copy(self, f: Function, sizes: list[int], sources: list[int], strides: list[int], x: Value, to: Value) -> None:
        """Copy an array; what is written beyond the end of its lines is overwritten by the next."""
        work = self.work
        if len(sizes) > 1:

            def one(index: Index) -> None:
                there = step(f, x, work.type, times(f, index, sources[0])), step(f, to, work.type, times(f, index, strides[0]))
                self._copy(f, sizes[1:], sources[1:], strides[1:], *there)

            repeat(f, sizes[0], one)
            return

        def some(index: Index, count: int) -> None:
            at = step(f, x, work.type, times(f, index, sources[0]))
            dtype = np.dtype(np.float32 if work.type == "float" else np.float64)
            found = strided(f, work, dtype, at, sources[0], first_lanes(count, work.lanes))
            f.store(found, step(f, to, work.type, index), work.itemsize)

        whole = sizes[0] // work.lanes * work.lanes
        repeat(f, whole, lambda index: some(index, work.lanes), 0, work.lanes)
        if sizes[0] > whole:
            some(whole, sizes[0] - whole)
