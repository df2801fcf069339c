"""Kernels whose workgroups compute rows.

One dispatch, a few long rows in steps, and transposes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.loops import RowPass, reductions, row_passes
from volta_fn.compiler.ir.axes import KernelAnalysis, rewritten
from volta_fn.compiler.ir.index import Affine, Range, along, combine, row_major
from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, Kernel, Load, NodeBuilder, Reduce, Store, closure, restricted
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops.emit_values import LANES, AxisSpan, Buffers, KernelStep, LaneScope, LoopNest, bind_kernel
from volta_fn.targets.wgsl.loops.reductions import INT32, Accumulator, State, Team, WorkgroupReduction, team
from volta_fn.targets.wgsl.loops.schedule import Crossing, Cut, LoopSchedule, tile_dtype
from volta_fn.targets.wgsl.routine import Dispatch, Shader, ShaderArray, Workspaces
from volta_fn.targets.wgsl.scalars import Number

# Without reductions, rows have one element. The elements of a row are divided between the invocations of a team (`WorkgroupReduction`), and
# so are those of groups of neighbouring rows, if the rows are columns in memory. A short row is *resident*: the code for an invocation's
# elements is unrolled, and the values of a pass stay in registers for the next one. Passes over a long row are loops, which read its
# elements anew.

#: The block size of blocked summation, which bounds the rounding error of long sums.
_BLOCK = 32


def write(analysis: KernelAnalysis, schedule: LoopSchedule, shader: Shader, step: KernelStep) -> Dispatch:
    """Return the dispatch of a step."""
    write_rows(analysis, schedule, shader, step)
    return shader.dispatch(-(-schedule.outer.lane_groups // schedule.rows_per_workgroup))


def write_rows(analysis: KernelAnalysis, schedule: LoopSchedule, shader: Shader, step: KernelStep) -> None:
    """Emit the code of a step, for workgroups of a shader under construction."""
    nest = bind_kernel(shader, analysis, (schedule.lane_span,), step.buffers)
    _RowEmitter(nest, schedule, step).write()
    nest.pending.check()


class _RowEmitter:
    """Emits the code of a step, pass by pass over a row."""

    def __init__(self, nest: LoopNest, schedule: LoopSchedule, step: KernelStep) -> None:
        self.nest = nest
        self.shader = nest.shader
        self.analysis = nest.analysis
        self.schedule = schedule
        self.condition = step.condition
        self.team: Team = team(nest.shader, schedule.per_row, schedule.rows_per_workgroup, schedule.by_columns)
        self.reduction = WorkgroupReduction(nest.shader, self.team)
        self.index_in_row = step.index_in_row or self.analysis.row_number
        #: Whether the invocation's row exists, where that is not certain.
        self.live: str | None = None

    def write(self) -> None:
        """Emit all passes over a row."""
        passes = row_passes(self.analysis)
        root = LaneScope(self.nest, None, {})
        scope = root.child(self.schedule.outer.bind(self.shader, self.row_number()), self.schedule.outer)
        scopes = self.residents(scope) if self.schedule.resident else []
        for row_pass in passes:
            self.store_rows(row_pass, scope)
            if not row_pass.has_iterations:
                continue
            scope.hoist(row_pass.targets(self.analysis))
            accumulators = self.accumulators(row_pass)
            states = self.emit_resident(row_pass, accumulators, scopes) if scopes else self.emit_loops(row_pass, accumulators, scope)
            for node, accumulator, lanes in zip(row_pass.reduces, accumulators, states, strict=True):
                totals = self.reduction.combined(accumulator, lanes)
                scope.values[node] = tuple([accumulator.result(state) for state in totals])

    def row_number(self) -> str:
        """Emit the number of this invocation's row; beyond the last row it is the last."""
        count, rows_per_workgroup = self.schedule.outer.lane_groups, self.schedule.rows_per_workgroup
        if rows_per_workgroup == 1:
            return self.shader.group
        number = self.shader.let("u32", f"{self.shader.group} * {rows_per_workgroup}u + {self.team.row_index}")
        if count % rows_per_workgroup == 0:
            return number
        self.live = self.shader.let("bool", f"{number} < {count}u")
        return self.shader.let("u32", f"min({number}, {count - 1}u)")

    def accumulators(self, row_pass: RowPass) -> list[Accumulator]:
        return [Accumulator(node, dtype, self.shader) for node, dtype in reductions(self.analysis, row_pass.reduces)]

    # stores

    def store_rows(self, row_pass: RowPass, scope: LaneScope) -> None:
        """Emit the stores per row, by its first invocation."""
        for s in row_pass.row_stores:
            scope.value(self.analysis.kernel.stores[s].value)
        conditions = [self.live, f"{self.team.rank} == 0u" if self.schedule.per_row > 1 else None]
        self.store(row_pass.row_stores, [scope], conditions)

    def store(self, stores: Sequence[int], scopes: Sequence[LaneScope], conditions: Sequence[str | None]) -> None:
        """Emit stores in some scopes, if all conditions hold."""
        if not stores:
            return
        present = [c for c in conditions if c is not None]
        if not present:
            for s in stores:
                for scope in scopes:
                    scope.store(s)
            return
        with self.shader.block(f"if ({' && '.join(present)})"):
            for s in stores:
                for scope in scopes:
                    scope.child({}).store(s)

    # resident rows

    def residents(self, scope: LaneScope) -> list[LaneScope]:
        """Emit the scopes of an invocation's elements, the row's last one beyond its end."""
        row, per_row, shader = self.schedule.inner, self.schedule.per_row, self.shader
        scopes = []
        for k in range(self.schedule.unroll):
            number = self.element_index(k)
            if (k + 1) * per_row > row.lane_groups:
                number = shader.let("u32", f"min({number}, {row.lane_groups - 1}u)")
            scopes.append(scope.child(row.bind(shader, shader.named("u32", number)), row))
        return scopes

    def element_index(self, k: int) -> str:
        """Return the index of the k-th element, or group of lanes, of an invocation."""
        if self.schedule.per_row == 1:
            return f"{k}u"
        return f"{self.team.rank} + {k * self.schedule.per_row}u" if k else self.team.rank

    def element_exists(self, k: int) -> str | None:
        """Return the condition that an invocation has a k-th element; None if it has."""
        groups, per_row = self.schedule.inner.lane_groups, self.schedule.per_row
        return None if (k + 1) * per_row <= groups else f"{self.element_index(k)} < {groups}u"

    def emit_resident(self, row_pass: RowPass, accumulators: list[Accumulator], scopes: list[LaneScope]) -> list[list[State]]:
        """Emit a pass over a row that is in registers, and return its states."""
        write_together(scopes, row_pass.targets(self.analysis))
        exist = [self.element_exists(k) for k in range(len(scopes))]
        result = []
        for node, accumulator in zip(row_pass.reduces, accumulators, strict=True):
            states = [
                [accumulator.where(exists, x) for x in self.contributions(node, accumulator, scope)]
                for scope, exists in zip(scopes, exist, strict=True)
            ]
            result.append(self.merged(accumulator, states))
        certain = [scope for scope, exists in zip(scopes, exist, strict=True) if exists is None]
        self.store(row_pass.stores, certain, [self.live])
        for scope, exists in zip(scopes, exist, strict=True):
            if exists is not None:
                self.store(row_pass.stores, [scope], [self.live, exists])
        return result

    def contributions(self, node: int, accumulator: Accumulator, scope: LaneScope) -> list[State]:
        """Emit the states to accumulate in a scope, one for each lane."""
        values = scope.spread(self.analysis.reduces[node].operand)
        if not accumulator.node.is_index:
            return [(x,) for x in values]
        where = [Number(accumulator.dtypes[1], self.shader.let("i32", f"i32({text})")) for text in scope.affine(self.index_in_row)]
        return [(x, where[k % len(where)]) for k, x in enumerate(values)]

    def merged(self, accumulator: Accumulator, states: Sequence[Sequence[State]]) -> list[State]:
        """Emit the states of some scopes merged; if lanes are rows, one for each."""
        if self.schedule.inner.lanes > 1:
            return [accumulator.merged([state for lanes in states for state in lanes])]
        return [accumulator.merged(rows) for rows in zip(*states, strict=True)]

    # long rows

    def emit_loops(self, row_pass: RowPass, accumulators: list[Accumulator], scope: LaneScope) -> list[list[State]]:
        """Emit a pass as loops over a row's elements, and return its states."""
        row, per_row, unroll = self.schedule.inner, self.schedule.per_row, self.schedule.unroll
        full = row.lane_groups // (per_row * unroll)
        totals = self.variables(accumulators)
        if full > 2 * _BLOCK and any(a.rounds for a in accumulators):
            self._emit_blocks(row_pass, accumulators, scope, full, totals)
        elif full:
            self.loop(row_pass, accumulators, scope, (self.team.rank, f"{full * unroll * per_row}u", unroll), totals)
        if full * unroll * per_row < row.lane_groups:
            first = f"{self.team.rank} + {full * unroll * per_row}u" if full else self.team.rank
            self.loop(row_pass, accumulators, scope, (first, f"{row.lane_groups}u", 1), totals)
        return [[accumulator.read(v) for v in variables] for accumulator, variables in zip(accumulators, totals, strict=True)]

    def _emit_blocks(
        self, row_pass: RowPass, accumulators: list[Accumulator], scope: LaneScope, full: int, totals: list[list[list[str]]]
    ) -> None:
        """Emit a loop over blocks of a row, which keeps rounding errors of sums small."""
        per_row, unroll = self.schedule.per_row, self.schedule.unroll
        with self.shader.loop(full * unroll * per_row, 0, _BLOCK * unroll * per_row) as start:
            sums = self.variables(accumulators)
            stop = self.shader.let("u32", f"min({start} + {_BLOCK * unroll * per_row}u, {full * unroll * per_row}u)")
            first = self.shader.let("u32", f"{start} + {self.team.rank}") if per_row > 1 else start
            self.loop(row_pass, accumulators, scope, (first, stop, unroll), sums)
            for accumulator, into, fresh in zip(accumulators, totals, sums, strict=True):
                for old, new in zip(into, fresh, strict=True):
                    accumulator.add(old, accumulator.read(new))

    def variables(self, accumulators: list[Accumulator]) -> list[list[list[str]]]:
        """Declare the variables of every reduction, for all rows that are lanes."""
        return [[a.variables() for _ in range(self.schedule.outer.lanes)] for a in accumulators]

    def loop(
        self,
        row_pass: RowPass,
        accumulators: list[Accumulator],
        scope: LaneScope,
        bounds: tuple[str, str, int],
        totals: list[list[list[str]]],
    ) -> None:
        """Emit a loop from one element's number to another, unrolled."""
        start, stop, unroll = bounds
        row, per_row = self.schedule.inner, self.schedule.per_row
        with self.shader.loop(stop, start, unroll * per_row) as i:
            scopes = []
            for k in range(unroll):
                number = self.shader.let("u32", f"{i} + {k * per_row}u") if k else i
                scopes.append(scope.child(row.bind(self.shader, number), row))
            if self.condition is None:
                self.step(row_pass, accumulators, scopes, totals)
                return
            for element in scopes:
                holds = element.holds((self.condition,))
                assert holds is not None and len(holds) == 1
                with self.shader.block(f"if ({holds[0]})"):
                    self.step(row_pass, accumulators, [element.child({})], totals)

    def step(self, row_pass: RowPass, accumulators: list[Accumulator], scopes: list[LaneScope], totals: list[list[list[str]]]) -> None:
        """Emit one iteration of a loop: its scopes' values are merged and accumulated."""
        write_together(scopes, row_pass.targets(self.analysis))
        for node, accumulator, variables in zip(row_pass.reduces, accumulators, totals, strict=True):
            states = self.merged(accumulator, [self.contributions(node, accumulator, scope) for scope in scopes])
            for state, into in zip(states, variables, strict=True):
                accumulator.add(into, state)
        self.store(row_pass.stores, scopes, [self.live])


def write_together(scopes: Sequence[LaneScope], targets: Sequence[int]) -> None:
    """Emit nodes in several scopes, node by node: loads are in flight together."""
    for n in scopes[0].needed(targets):
        for scope in scopes:
            scope.value(n)


def write_flat(analysis: KernelAnalysis, schedule: LoopSchedule, capabilities: TargetCapabilities, step: KernelStep) -> Dispatch:
    """Return the dispatch of a large kernel without reductions."""
    # An invocation has several elements, or groups of lanes, a workgroup's size from each other, whose loads are in flight together.
    rows, width, unroll = schedule.outer, schedule.rows_per_workgroup, schedule.unroll
    shader = Shader(capabilities, width)
    root = LaneScope(bind_kernel(shader, analysis, (rows,), step.buffers), None, {})
    stores = range(len(analysis.kernel.stores))
    targets = [store.value for store in analysis.kernel.stores]
    root.hoist(targets)
    first = shader.let("u32", f"{shader.group} * {width * unroll}u + {shader.local}")
    numbers = [shader.let("u32", f"{first} + {k * width}u") if k else first for k in range(unroll)]
    certain = rows.lane_groups % (width * unroll) == 0
    within = numbers if certain else [shader.let("u32", f"min({number}, {rows.lane_groups - 1}u)") for number in numbers]
    scopes = [root.child(rows.bind(shader, number), rows) for number in within]
    write_together(scopes, targets)
    for number, scope in zip(numbers, scopes, strict=True):
        with shader.block("" if certain else f"if ({number} < {rows.lane_groups}u)"):
            inside = scope.child({})
            for s in stores:
                inside.store(s)
    root.nest.pending.check()
    return shader.dispatch(-(-rows.lane_groups // (width * unroll)))


# Reductions of a few long rows, in steps that keep many workgroups busy.
#
# For each stage of a kernel's reductions, one step reduces *chunks* of the rows into workspaces. Another one combines these partial
# results, computes the stores per row, and stores the results of reductions that later steps need. Stores per element come last.

#: The fewest rows for which the partial results of neighbouring rows are contiguous; of fewer, those of one row are.
_MANY = 32

_BOOL = np.dtype(np.bool_)


class ChunkBuffers(NamedTuple):
    """The buffers of partial results: values, and indices for arg-extrema."""

    values: int
    positions: int | None


class Split:
    """The steps of a kernel."""

    def __init__(self, analysis: KernelAnalysis, cut: Cut, buffers: Buffers, workspaces: Workspaces) -> None:
        self.analysis = analysis
        self.kernel = analysis.kernel
        self.cut = cut
        self.buffers = buffers
        self.workspaces = workspaces
        outer = range(self.kernel.parallel)
        self.row_count = analysis.size(outer)
        self.row_offset = row_major(tuple(map(along, outer)), tuple([self.kernel.sizes[a] for a in outer]))
        #: The buffers of results of reductions, by node.
        self.result_buffers: dict[int, int] = {}
        #: The stores per row and per element, by the stages of their values.
        self.row_stores: dict[int, list[int]] = {}
        self.stores: dict[int, list[int]] = {}
        for s, store in enumerate(self.kernel.stores):
            which = self.stores if analysis.store_axes(s) & analysis.reduction_axes else self.row_stores
            which.setdefault(analysis.stages[store.value], []).append(s)

    def steps(self) -> list[KernelStep]:
        """Return all steps in order; the last ones have no reduction axes."""
        result: list[KernelStep] = []
        last = [s for stage, stores in self.stores.items() if stage for s in stores]
        for stage in range(1, max(self.analysis.stages) + 1):
            ready = [n for n in self.analysis.reduces if self.analysis.stages[n] == stage]
            partials = {n: self.of_chunks(n) for n in ready}
            result.append(self.chunks(partials, self.stores.get(0, []) if stage == 1 else []))
            row_stores = [*self.row_stores.get(stage, []), *(self.row_stores.get(0, []) if stage == 1 else [])]
            result.append(self.combined(partials, row_stores, self.live_results(stage, ready, last)))
        if last:
            result.append(self.elementwise(last))
        return [s._replace(kernel=restricted(s.kernel, range(len(s.kernel.stores)))) for s in result]

    def live_results(self, stage: int, ready: Sequence[int], last: Sequence[int]) -> list[int]:
        """Return the results of a stage's reductions that later steps need."""
        stores = [s for later, stores in self.row_stores.items() if later > stage for s in stores]
        targets = [r.operand for n, r in self.analysis.reduces.items() if self.analysis.stages[n] > stage]
        needed = closure(self.kernel.nodes, [*targets, *[self.kernel.stores[s].value for s in (*stores, *last)]])
        return [n for n in ready if n in needed]

    # buffers

    def of_chunks(self, node: int) -> ChunkBuffers:
        """Return buffers for the partial results."""
        reduce, size = self.analysis.reduces[node], self.row_count * self.cut.chunks
        values = self.workspaces.new(size * self.kernel.nodes[reduce.operand].dtype.itemsize)
        return ChunkBuffers(values, self.workspaces.new(size * reduce.dtype.itemsize) if reduce.is_index else None)

    def partial_layout(self) -> tuple[tuple[int, int], tuple[Affine, Affine]]:
        """Return the shape of partial results, and the index in it.

        The chunk is the axis after the parallel ones.
        """
        chunk = along(self.kernel.parallel)
        if self.row_count >= _MANY:
            return (self.cut.chunks, self.row_count), (chunk, self.row_offset)
        return (self.row_count, self.cut.chunks), (self.row_offset, chunk)

    def build_step(
        self, nodes: NodeBuilder, sizes: tuple[int, ...], outer: int, stores: Sequence[tuple[Store, int]], more: Sequence[int]
    ) -> KernelStep:
        """Return a step with more inputs than the kernel's, and stores with buffers."""
        inputs = [*self.kernel.inputs]
        for number in more:
            dtype = next(n.dtype for n in nodes.nodes if isinstance(n, Load) and n.input == len(inputs))
            inputs.append(Buffer(self.workspaces.size_of(number) // dtype.itemsize, dtype))
        kernel = Kernel(sizes, outer, tuple(inputs), tuple(nodes.nodes), tuple([store for store, _ in stores]))
        return KernelStep(kernel, Buffers((*self.buffers.inputs, *more), tuple([number for _, number in stores])))

    def begin_nodes(self) -> tuple[NodeBuilder, list[int]]:
        """Return nodes that include loads of earlier results, and the buffers of those."""
        nodes, more = NodeBuilder(self.kernel), list(self.result_buffers.values())
        for k, n in enumerate(self.result_buffers):
            nodes.numbers[n] = nodes.add(
                _load(self.analysis.reduces[n].dtype, len(self.kernel.inputs) + k, (self.row_count,), (self.row_offset,))
            )
        return nodes, more

    def stored(self, nodes: NodeBuilder, stores: Iterable[int]) -> list[tuple[Store, int]]:
        """Return stores of the kernel, with their buffers."""
        result = []
        for s in stores:
            store = self.kernel.stores[s]
            nodes.copy([store.value])
            result.append((replace(store, value=nodes.numbers[store.value]), self.buffers.outputs[s]))
        return result

    # steps

    def chunks(self, partials: dict[int, ChunkBuffers], stores: Sequence[int]) -> KernelStep:
        """Return the step of reductions, and stores per element, over the chunks."""
        nodes, more = self.begin_nodes()
        old = self.stored(nodes, stores)
        shape, index = self.partial_layout()
        partial: list[tuple[Store, int]] = []
        for n, buffers in partials.items():
            reduce = self.analysis.reduces[n]
            nodes.copy([reduce.operand])
            operand = nodes.numbers[reduce.operand]
            value = Reduce(nodes.nodes[operand].dtype, reduce.reduction.index_of or reduce.op, operand)
            partial.append((Store(shape, index, nodes.add(value)), buffers.values))
            if buffers.positions is not None:
                partial.append((Store(shape, index, nodes.add(replace(reduce, operand=operand))), buffers.positions))
        step = self.build_step(nodes, self.kernel.sizes, self.kernel.parallel, old, more)
        return self.in_chunks(step, partial)

    def in_chunks(self, step: KernelStep, partial: Sequence[tuple[Store, int]]) -> KernelStep:
        """Return a step whose rows are chunks of the original rows, with further stores."""
        axis, chunks, size = self.cut
        outer = self.kernel.parallel
        moved = {a: along(a + 1) for a in self.analysis.reduction_axes}
        moved[axis] = combine([(size, along(outer)), (1, along(axis + 1))])
        old = step.kernel.sizes
        sizes = (*old[:outer], chunks, *[size if a == axis else old[a] for a in range(outer, len(old))])
        kernel = rewritten(step.kernel, sizes, outer + 1, moved)
        kernel = replace(kernel, stores=(*kernel.stores, *[store for store, _ in partial]))
        outputs = (*step.buffers.outputs, *[number for _, number in partial])
        condition = None if chunks * size == old[axis] else Range(moved[axis], 0, old[axis])
        return KernelStep(kernel, step.buffers._replace(outputs=outputs), condition, self.analysis.row_number.replaced(moved))

    def combined(self, partials: dict[int, ChunkBuffers], stores: Sequence[int], live: Sequence[int]) -> KernelStep:
        """Return the step that combines partial results, with the stores per row."""
        nodes, more = self.begin_nodes()
        shape, index = self.partial_layout()
        for n, buffers in partials.items():
            reduce = self.analysis.reduces[n]
            dtype = self.kernel.nodes[reduce.operand].dtype
            value = nodes.add(_load(dtype, len(self.kernel.inputs) + len(more), shape, index))
            more.append(buffers.values)
            result = nodes.add(Reduce(dtype, reduce.reduction.index_of or reduce.op, value))
            if buffers.positions is not None:
                position = nodes.add(_load(INT32, len(self.kernel.inputs) + len(more), shape, index))
                more.append(buffers.positions)
                result = _first_index(nodes, value, result, position)
            nodes.numbers[n] = result
        outputs = self.stored(nodes, stores)
        for n in live:
            dtype = self.analysis.reduces[n].dtype
            self.result_buffers[n] = self.workspaces.new(self.row_count * dtype.itemsize)
            outputs.append((Store((self.row_count,), (self.row_offset,), nodes.numbers[n]), self.result_buffers[n]))
        outer = self.kernel.parallel
        return self.build_step(nodes, (*self.kernel.sizes[:outer], self.cut.chunks), outer, outputs, more)

    def elementwise(self, stores: Sequence[int]) -> KernelStep:
        """Return the step of the stores per element."""
        nodes, more = self.begin_nodes()
        outputs = self.stored(nodes, stores)
        return self.build_step(nodes, self.kernel.sizes, len(self.kernel.sizes), outputs, more)


def _load(dtype: np.dtype, buffer: int, shape: tuple[int, ...], index: tuple[Affine, ...]) -> Load:
    return Load(dtype, buffer, shape, index, (), Constant.of(0, dtype))


def _first_index(nodes: NodeBuilder, value: int, best: int, position: int) -> int:
    """Return the least index of the values that equal the best one, or are NaN, too."""

    def apply(op: str, *operands: int, dtype: np.dtype = _BOOL) -> int:
        return nodes.add(Apply(dtype, op, operands))

    same = apply("eq", value, best)
    if nodes.nodes[value].dtype in dtypes.FLOATS:
        same = apply("or", same, apply("and", apply("ne", value, value), apply("ne", best, best)))
    never = nodes.add(Constant.of(np.iinfo(np.int32).max, INT32))
    return nodes.add(Reduce(INT32, "reduce_min", apply("select_n", same, never, position, dtype=INT32)))


# Transposes: kernels some of whose loads cross their stores.
#
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
        """Emit the reads of a block into workgroup memory."""
        # Beyond an end they repeat the last row or column.
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
        """Emit the slot of a column's four."""
        # Neither neighbouring columns nor neighbouring fours are in one bank of memory.
        return self.shader.let("u32", f"{column} * {self.fours}u + ({four} ^ ({column} / {LANES}u % {self.fours}u))")


class _StoreStep(NamedTuple):
    """The stores of an invocation at one position of a square."""

    scope: LaneScope
    #: The condition that the position is in the array, as the head of a block; empty if it always is.
    exists: str
    #: The position in the square.
    strip: str
    column: str
