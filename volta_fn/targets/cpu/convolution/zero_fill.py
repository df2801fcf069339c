"""Results that no tap reaches: zeros."""

from __future__ import annotations

from math import prod

from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.convolution.emit_utils import Index, repeat, step, times
from volta_fn.targets.cpu.convolution.stages import Arguments, Piece
from volta_fn.targets.cpu.matmul.compute_dtype import stored_as, write


def write_zeros(piece: Piece) -> None:
    """Add the stage that fills a piece's part of the result with zeros."""
    c = piece.c
    sizes = [c.images, c.outputs, *(axis.places for axis in c.axes)]
    sides = sorted(zip(sizes, c.y.strides[1:], strict=True), key=lambda side: -side[1])

    def fill(f: Function, args: Arguments, task: Value) -> None:
        def loops(rest: list[tuple[int, int]], at: Value) -> None:
            if not rest:
                write(f, piece.work, piece.y_dtype, Value(piece.work.type, "0.0"), 1, at)
                return
            (size, stride), *inner = rest

            def one(index: Index) -> None:
                loops(inner, step(f, at, stored_as(piece.y_dtype), times(f, index, stride)))

            repeat(f, size, one)

        loops(sides, piece.at(f, "y", args.y, task))

    piece.job("sum", c.groups, c.groups * prod(sizes) * 0.5, fill)
