"""Transposes: kernels some of whose loads cross their stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.compiler.ir.axes import KernelAnalysis
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops.emit_values import LANES, AxisSpan, KernelStep, LaneScope, bind_kernel
from volta_fn.targets.wgsl.loops.rows import write_together
from volta_fn.targets.wgsl.loops.schedule import Crossing, tile_dtype
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars import Number, Shader, ShaderArray

# A workgroup does a square of iterations of both axes: it reads those loads along their axis, and goes along the stores' axis afterwards,
# so that memory is read and written in long runs. In between, elements are in workgroup memory, in fours along the stores' axis: an
# invocation reads a block of four by four, four rows of it at once, and writes its columns.

#: The most invocations of a workgroup.
_GROUP = 256


def write_squares(analysis: KernelAnalysis, cross: Crossing, capabilities: TargetCapabilities, step: KernelStep) -> Dispatch:
    """Return the dispatch of a step whose loads cross its stores."""
    return _Squares(analysis, cross, Shader(capabilities, min(_GROUP, math.prod(cross.sides) // LANES**2)), step).write()


class _Squares:
    """The shader of such a step under construction."""

    def __init__(self, analysis: KernelAnalysis, cross: Crossing, shader: Shader, step: KernelStep) -> None:
        self.analysis = analysis
        self.cross = cross
        self.shader = shader
        sizes = [(axis, analysis.kernel.sizes[axis]) for axis in (cross.axis, cross.other)]
        self.along, self.across = [AxisSpan((axis,), (size,), LANES if size % LANES == 0 else 1) for axis, size in sizes]
        self.sides = {self.along: cross.sides[0], self.across: cross.sides[1]}
        #: Fours along the stores' side.
        self.fours = cross.sides[0] // LANES
        self.root = LaneScope(bind_kernel(shader, analysis, (self.along, self.across), step.buffers), None, {})

    def write(self) -> Dispatch:
        shader, analysis, sizes = self.shader, self.analysis, self.analysis.kernel.sizes
        sides = {self.cross.other: self.cross.sides[1], self.cross.axis: self.cross.sides[0]}
        count = {a: -(-sizes[a] // sides.get(a, 1)) for a in (*[a for a in range(len(sizes)) if a not in sides], *sides)}
        squares = AxisSpan(tuple(count), tuple(count.values()))
        bound = squares.bind(shader, shader.group)
        corner = {a: shader.let("u32", f"{bound.pop(a)[0]} * {side}u") for a, side in sides.items()}
        self.root.hoist(range(len(analysis.kernel.nodes)))
        outer = self.root.child(bound)
        outer.hoist(range(len(analysis.kernel.nodes)))
        dtypes = {n: tile_dtype(analysis.kernel.nodes[n].dtype) for n in self.cross.loads}
        tiles = {n: shader.tile(f"tile_{n}", dtype, math.prod(self.cross.sides)) for n, dtype in dtypes.items()}
        width = self.cross.sides[1] // LANES
        for k in range(width * self.fours // shader.invocations):
            self.read(outer, corner, tiles, self.divided(k, width))
        shader.emit("workgroupBarrier();")
        for store_step in self.store_steps(outer, corner):
            self.store(store_step, tiles)
        self.root.nest.pending.check()
        return shader.dispatch(squares.total)

    def read(self, outer: LaneScope, corner: dict[int, str], tiles: dict[int, ShaderArray], block: tuple[str, str]) -> None:
        """Emit the reads of a block into workgroup memory.

        Beyond an end they repeat the last row or column.
        """
        shader, across, along = self.shader, self.across, self.along
        (axis,), (other,) = along.axes, across.axes
        column, row = block
        first = shader.let("u32", f"{corner[axis]} + {row} * {LANES}u")
        strips = [self.within(f"{first} + {k}u", along.total, along) for k in range(LANES)]
        if across.lanes > 1:
            inside = [shader.let("u32", f"{column} * {LANES}u + {k}u") for k in range(LANES)]
            groups = [self.within(f"{corner[other]} / {LANES}u + {column}", across.lane_groups, across)]
        else:
            inside = [shader.let("u32", f"{column} + {k * self.cross.sides[1] // LANES}u") for k in range(LANES)]
            groups = [self.within(f"{corner[other]} + {k}", across.total, across) for k in inside]
        bound = [across.bind(shader, group) for group in groups]
        scopes = [[outer.child({**axes, axis: (strip,)}, across) for axes in bound] for strip in strips]
        write_together([scope for strip in scopes for scope in strip], self.cross.loads)
        for n, tile in tiles.items():
            columns = zip(*[[x for scope in strip for x in scope.spread(n)] for strip in scopes], strict=True)
            for k, numbers in zip(inside, columns, strict=True):
                tile.store4(self.slot(k, row), [Number(tile.dtype, x.text) for x in numbers])

    def store_steps(self, outer: LaneScope, corner: dict[int, str]) -> list[_StoreStep]:
        """Emit the scopes of an invocation's stores."""
        shader, across, along = self.shader, self.across, self.along
        width = self.cross.sides[0] // along.lanes
        result = []
        for k in range(width * self.cross.sides[1] // shader.invocations):
            column, strip = self.divided(k, width)
            group = shader.let("u32", f"{corner[along.axes[0]]} / {along.lanes}u + {column}")
            other = shader.let("u32", f"{corner[across.axes[0]]} + {strip}")
            tests = [f"{group} < {along.lane_groups}u"] if along.total % self.sides[along] else []
            tests += [f"{other} < {across.total}u"] if across.total % self.sides[across] else []
            bound = along.bind(shader, self.within(group, along.lane_groups, along))
            scope = outer.child({**bound, across.axes[0]: (self.within(other, across.total, across),)}, along)
            result.append(_StoreStep(scope, f"if ({' && '.join(tests)})" if tests else "", strip, column))
        return result

    def store(self, store_step: _StoreStep, tiles: dict[int, ShaderArray]) -> None:
        for n, tile in tiles.items():
            dtype = self.analysis.kernel.nodes[n].dtype
            if self.along.lanes > 1:
                numbers: Sequence[Number] = tile.load4(self.slot(store_step.strip, store_step.column))
            else:
                four = self.slot(store_step.strip, f"({store_step.column} / {LANES}u)")
                numbers = [tile.load(self.shader.let("u32", f"({four}) * {LANES}u + {store_step.column} % {LANES}u"))]
            store_step.scope.values[n] = tuple([Number(dtype, x.text) for x in numbers])
        with self.shader.block(store_step.exists):
            inside = store_step.scope.child({})
            targets = [store.value for store in self.analysis.kernel.stores]
            write_together([inside], targets)  # before the first store, since a result may share memory with an operand of another one
            for s in range(len(targets)):
                inside.store(s)

    # numbers

    def divided(self, store_step: int, width: int) -> tuple[str, str]:
        """Emit the column and the row of an invocation in a step, in rows of a width."""
        local = self.shader.local
        number = self.shader.let("u32", f"{local} + {store_step * self.shader.invocations}u") if store_step else local
        return self.shader.let("u32", f"{number} % {width}u"), self.shader.let("u32", f"{number} / {width}u")

    def within(self, number: str, count: int, axis: AxisSpan) -> str:
        """Emit a number clamped to the last one, if an axis is no multiple of the square."""
        return self.shader.named("u32", f"min({number}, {count - 1}u)" if axis.total % self.sides[axis] else number)

    def slot(self, column: str, four: str) -> str:
        """Emit the slot of a column's four.

        Neither neighbouring columns nor neighbouring fours are in one bank of memory.
        """
        return self.shader.let("u32", f"{column} * {self.fours}u + ({four} ^ ({column} / {LANES}u % {self.fours}u))")


class _StoreStep(NamedTuple):
    """The stores of an invocation at one position of a square."""

    scope: LaneScope
    #: The condition that the position is in the array, as the head of a block; empty if it always is.
    exists: str
    #: The position in the square.
    strip: str
    column: str
