"""Kernels as one dispatch in which each workgroup computes some rows."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.codegen.loops import RowPass, reductions, row_passes
from volta_fn.compiler.ir.axes import KernelAnalysis
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops.emit_values import KernelStep, LaneScope, LoopNest, bind_kernel
from volta_fn.targets.wgsl.loops.reductions import Accumulator, State, Team, WorkgroupReduction, team
from volta_fn.targets.wgsl.loops.schedule import LoopSchedule
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars import Number, Shader

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
        wanted = [c for c in conditions if c is not None]
        if not wanted:
            for s in stores:
                for scope in scopes:
                    scope.store(s)
            return
        with self.shader.block(f"if ({' && '.join(wanted)})"):
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
    """Return the dispatch of a large kernel without reductions.

    An invocation has several elements, or groups of lanes, a workgroup's size from each other, whose loads are in flight together.
    """
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
