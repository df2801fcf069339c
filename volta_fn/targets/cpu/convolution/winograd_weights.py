"""The taps of Winograd's convolution, at its points."""

from __future__ import annotations

from volta_fn.compiler.contractions.winograd_points import of_taps
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.convolution.algebra import Algebra
from volta_fn.targets.cpu.convolution.emit_utils import Index, between, plus, repeat, split, step, times, value
from volta_fn.targets.cpu.convolution.gather import strided
from volta_fn.targets.cpu.convolution.stages import Arguments, Piece
from volta_fn.targets.cpu.convolution.winograd_schedule import Shape
from volta_fn.targets.cpu.matmul.compute_dtype import stored_as


def write_taps(f: Function, piece: Piece, shape: Shape, args: Arguments, unit: Index, room: int) -> None:
    """Transform one part of the taps of one channel and one panel: by point, panel, part and channel."""
    work, c, parts = shape.work, shape.c, shape.scheme.parts
    group, panel, row, column, channel = split(f, unit, [c.groups, shape.panels, parts, parts, shape.channels])
    line = unit if c.groups == 1 else plus(f, unit, times(f, group, -shape.panels * shape.parts * shape.channels))
    apart = shape.tapped
    to = args.room(f, room, work.itemsize, plus(f, times(f, group, shape.points**2 * apart), times(f, line, shape.width)))
    first = times(f, panel, shape.width)
    known = f.compare("icmp slt", value(channel), i64(c.channels))
    left = f.select(known, value(plus(f, c.outputs, times(f, first, -1))), i64(0))
    start = [times(f, part, shape.places) for part in (row, column)]
    w = piece.at(f, "w", args.w, group, first, channel, *start)
    a, stored, taps = Algebra(f, work), stored_as(piece.w_dtype), min(shape.scheme.taps, c.axes[0].taps)
    there = [[_there(f, shape, part, k) for k in range(taps)] for part in (row, column)]

    def vector(v: Index) -> None:
        output = times(f, v, work.lanes)
        mask = between(f, work.lanes, output, 0, left)
        here = step(f, w, stored, times(f, output, c.w.strides[1]))

        def tap(i: int, j: int) -> Value:
            some = mask
            for inside in (there[0][i], there[1][j]):
                some = some if inside is None else f.binary("and", some, f.splat(inside, work.lanes))
            at = step(f, here, stored, i * c.w.strides[3] + j * c.w.strides[4])
            return strided(f, work, piece.w_dtype, at, c.w.strides[1], some)

        columns = [of_taps(a, [tap(i, j) for i in range(taps)], shape.points) for j in range(taps)]
        for i in range(shape.points):
            for j, found in enumerate(of_taps(a, [one[i] for one in columns], shape.points)):
                f.store(found, step(f, to, work.type, plus(f, output, (i * shape.points + j) * apart)), work.itemsize)

    repeat(f, shape.vectors, vector)


def _there(f: Function, shape: Shape, part: Index, tap: int) -> Value | None:
    """Whether a part has a tap: all but the last have as many as tiles have places, and the last has the rest. None: surely."""
    scheme, taps = shape.scheme, shape.c.axes[0].taps
    if scheme.parts == 1:
        return None
    last = taps - (scheme.parts - 1) * scheme.places
    if tap < min(last, scheme.places):
        return None
    is_last = f.compare("icmp eq", value(part), i64(scheme.parts - 1))
    if tap < last:
        return is_last
    return f.binary("xor", is_last, Value("i1", "true")) if tap < scheme.places else Value("i1", "false")
