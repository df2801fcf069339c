"""The passes over rows as loops, and reductions in vectors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.loops import BaseAccumulator, RowPass, reductions
from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import Range
from volta_fn.core.primitive import reduction_of
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, greatest, i64, lanes_of, least, rounded_down
from volta_fn.targets.cpu.loops.emit_values import LoopNest, VectorAxis, VectorScope, emit_unrolled
from volta_fn.targets.cpu.scalars import Number, combine, constant, horizontal, position
from volta_fn.targets.cpu.scalars.number import convert, lanes_below
from volta_fn.targets.cpu.scalars.values import Lanes

# Reductions in vectors, by the accumulators of `codegen.loops`.

#: What loops carry of a reduction, in registers.
State = tuple[Value, ...]

_LEAST = reduction_of("reduce_min")


@dataclass(frozen=True)
class Accumulator(BaseAccumulator[State]):
    """The carried state of one reduction, in a function being written."""

    f: Function
    #: Whether elements come in ascending order of position, so that the first of equal elements wins.
    ordered: bool = True

    @property
    def _at(self) -> np.dtype:
        """The dtype of indices in accumulators, whose greatest number stands for none."""
        return self.node.dtype if self.node.dtype.itemsize >= 4 else np.dtype(np.int32)

    def _none(self, lanes: int) -> Value:
        return constant(self.f, _LEAST.start(self._at), lanes).value

    def start(self, lanes: int) -> State:
        """Return the state before the first element.

        The state of an index reduction is the best number, its position and, for floats, the position of the first NaN. Positions are those
        of the first lane of the first of the unrolled vectors.
        """
        first = constant(self.f, self.node.reduction.start(self.dtype), lanes).components
        if not self.node.is_index:
            return first
        zero = constant(self.f, np.zeros((), self._at), lanes).value
        return (*first, zero, self._none(lanes)) if self.dtype in dtypes.FLOATS else (*first, zero)

    def step(self, state: State, x: Number, where: Value | None, count: Value | None) -> State:
        """Emit the state after another vector, of which the first `count` lanes exist.

        `where` is the position of the first of the vectors of its iteration.
        """
        if where is None:
            new = combine(self.f, self.node.reduction, Number(self.dtype, state), x).components
        else:
            index = position(self.f, where, 0, self._at, lanes_of(state[0].type)).value
            f, (best, at, *nan) = self.f, state
            better = self._wins((x.value, index), (best, at))
            nan = [f.select(f.compare("fcmp uno", x.value, x.value), self._lesser(first, index), first) for first in nan]
            new = f.select(better, x.value, best), f.select(better, index, at), *nan
        lanes = lanes_of(state[0].type)
        if count is None or lanes == 1:
            return new
        valid = lanes_below(self.f, count, lanes)
        return tuple([self.f.select(valid, y, old) for y, old in zip(new, state, strict=True)])

    def merge(self, x: State, y: State) -> State:
        """Emit the combination of two states, in the order of their elements."""
        if not self.node.is_index:
            return combine(self.f, self.node.reduction, Number(self.dtype, x), Number(self.dtype, y)).components
        better = self._wins((y[0], y[1]), (x[0], x[1]))
        both = [self.f.select(better, new, old) for new, old in zip(y[:2], x[:2], strict=True)]
        return *both, *map(self._lesser, x[2:], y[2:])

    def _wins(self, new: tuple[Value, Value], old: tuple[Value, Value]) -> Value:
        """Emit whether a number and its position replace those so far."""
        f, (x, index), (best, at) = self.f, new, old
        better = self._is_better(x, best)
        if self.ordered:
            return better
        earlier = f.compare("icmp slt" if self._at.kind == "i" else "icmp ult", index, at)
        return f.binary("or", better, f.binary("and", self._is_equal(x, best), earlier))

    def _lesser(self, x: Value, y: Value) -> Value:
        return combine(self.f, _LEAST, Number(self._at, (x,)), Number(self._at, (y,))).value

    def across(self, state: State) -> State:
        """Emit the combination of a state's lanes, by a tree."""
        return horizontal(self.f, self.node.reduction, Number(self.dtype, state)).components

    def reduced(self, states: Sequence[State], stride: int) -> Number:
        """Emit the value of the reduction over all lanes of the states.

        Adjacent lanes are `stride` positions apart. An index is the least position of a lane that equals the best number, or of a NaN. The
        best number is reduced without regard to NaN, which takes a short chain of instructions, and is replaced by NaN if there is one.
        """
        if not self.node.is_index:
            return self.result(self.across(self.merged(states)))
        f, lanes = self.f, lanes_of(states[0][0].type)
        best, none = self._best([value for value, *_ in states]), self._none(lanes)
        nans = [f.compare("icmp ne", first, none) for _, _, *nan in states for first in nan]
        if nans:
            some = Lanes(f, reduce(partial(f.binary, "or"), nans)).any()
            best = f.select(some, constant(f, np.array(np.nan, self.dtype), 1).value, best)
        best = f.splat(best, lanes)
        is_best = [self._is_equal(value, best) for value, *_ in states]
        is_best = [f.binary("or", *both) for both in zip(is_best, nans, strict=True)] if nans else is_best
        positions = [position(f, i64(k * lanes * stride), stride, self._at, lanes).value for k in range(len(states))]
        indices = [f.binary("add", self._index(state), at) for state, at in zip(states, positions, strict=True)]
        indices = [f.select(flag, index, none) for flag, index in zip(is_best, indices, strict=True)]
        return convert(f, horizontal(f, _LEAST, Number(self._at, (reduce(self._lesser, indices),))), self.node.dtype)

    def _best(self, values: list[Value]) -> Value:
        """Emit the best number in all lanes of some vectors, by a tree."""
        f = self.f
        while len(values) > 1 or lanes_of(values[0].type) > 1:
            if len(values) == 1:
                lanes = lanes_of(values[0].type) // 2
                values = [f.shuffle(values[0], range(lanes)), f.shuffle(values[0], range(lanes, 2 * lanes))]
            pairs = zip(values[::2], values[1::2], strict=False)
            values = [f.select(self._is_better(x, y), x, y) for x, y in pairs] + values[len(values) // 2 * 2 :]
        return values[0]

    def result(self, state: State) -> Number:
        """Return the reduction's value, in each lane."""
        if not self.node.is_index:
            return Number(self.node.dtype, state)
        return convert(self.f, Number(self._at, (self._index(state),)), self.node.dtype)

    def _index(self, state: State) -> Value:
        _, index, *nan = state
        for first in nan:  # NaN is better than any number
            index = self.f.select(self.f.compare("icmp ne", first, self._none(lanes_of(index.type))), first, index)
        return index

    def _is_equal(self, x: Value, y: Value) -> Value:
        return self.f.compare("fcmp oeq" if self.dtype in dtypes.FLOATS else "icmp eq", x, y)

    def _is_better(self, x: Value, y: Value) -> Value:
        sign = "fcmp o" if self.dtype in dtypes.FLOATS else "icmp s" if self.dtype in dtypes.SIGNED else "icmp u"
        return self.f.compare(sign + ("gt" if self.node.reduction.step == "max" else "lt"), x, y)


# The passes over rows as loops.
#
# Either the lanes of a vector are neighbouring elements of one row, or they are the same element of neighbouring rows (*rows as
# lanes*), of which a loop may be unrolled. A kernel without inner axes has rows of one element.

#: The block size of blocked summation, which bounds the rounding error of long sums.
_BLOCK = 64

#: Iterations of a search between checks whether it may stop: a reduction by `or` that is true stays true.
_SEARCHED = 16
#: The reductions of searches, and the result that is final.
_SETTLED = {"reduce_or": True, "reduce_and": False}

#: The most vectors of a row that stays in registers from pass to pass, for each 16 registers.
_RESIDENT = 4

#: The state of every reduction of a pass, for every unrolled vector.
States = list[list[State]]


class Segment(NamedTuple):
    """A part of an axis in which it is known which conditions hold."""

    start: int
    end: int
    decided: dict[Range, bool]


class Vectors(NamedTuple):
    """A walk along an axis: by `unroll` vectors of `lanes`, then by single ones."""

    axis: int
    lanes: int
    unroll: int
    segments: tuple[Segment, ...]

    def walk(
        self,
        f: Function,
        begin: Value,
        end: Value,
        carried: States,
        body: Callable[[Segment, Value, Value | None, int, States], States],
        loop: Callable[..., States],
    ) -> States:
        """Emit a walk along the axis.

        `body` takes a segment, a position, how many lanes exist, and how many vectors to do from there on. `begin` is a multiple of
        ``lanes * unroll``, as that of every chunk of a `grid` is.
        """
        for segment in self.segments:
            low, high = begin, end
            if len(self.segments) > 1:
                low = greatest(f, begin, i64(segment.start))
                high = greatest(f, low, least(f, end, i64(segment.end)))
            size = f.minus(high, low)
            wide = self.lanes * self.unroll
            rest = None if (n := f.known(size)) is None else n % wide
            if rest is None and len(self.segments) == 1:
                # What the last chunk leaves; the others are multiples of `wide`, and skip the loop below.
                rest = segment.end % wide
            middle = high if rest == 0 else f.plus(low, rounded_down(f, size, wide))

            def iteration(i: Value, states: States, segment: Segment = segment) -> States:
                return body(segment, i, None, self.unroll, states)

            if f.known(size) is None or f.known(f.minus(middle, low)):
                carried = loop(low, middle, wide, carried, iteration)
            # Into independent accumulators, which breaks the dependency chain.
            if n is not None and rest is not None and rest >= self.lanes and any(carried):
                carried = body(segment, middle, None, rest // self.lanes, carried)
                middle, rest = f.plus(middle, i64(rest // self.lanes * self.lanes)), rest % self.lanes
            if rest == 0:
                continue
            full = self.lanes == 1 or (rest is not None and rest % self.lanes == 0)

            def last(i: Value, states: States, segment: Segment = segment, high: Value = high, full: bool = full) -> States:
                count = None if full else least(f, f.minus(high, i), i64(self.lanes))
                return body(segment, i, count, 1, states)

            if n is not None and rest is not None and rest <= self.lanes:
                carried = last(middle, carried)
            else:
                carried = loop(middle, high, self.lanes, carried, last)
        return carried


def _is_search(row_pass: RowPass, accumulators: Sequence[Accumulator]) -> bool:
    """Return True for a search, a pass that may stop early.

    It stores nothing, and all its results are any/all reductions.
    """
    is_boolean = bool(accumulators) and all(a.node.op in _SETTLED and a.dtype == bool for a in accumulators)
    return is_boolean and not row_pass.stores and not row_pass.keeps


class RowCode:
    """The writer of the passes over a row, or over neighbouring rows."""

    def __init__(self, nest: LoopNest, passes: Sequence[RowPass], vectors: Vectors, resident: bool | None = None) -> None:
        #: Bounds of the inner axes that are not traversed in full.
        self.bounds: dict[int, tuple[Value, Value]] = {}
        self.nest = nest
        self.f = nest.f
        self.analysis: KernelAnalysis = nest.analysis
        self.passes = passes
        self.vectors = vectors
        self.lanes_are_elements = vectors.axis in self.analysis.reduction_axes
        sizes = self.analysis.kernel.sizes
        #: The inner axes that are loops around that of the vectors.
        self.loops = [a for a in self.analysis.kernel.reduction_axes if a != vectors.axis]
        count = -(-sizes[vectors.axis] // vectors.lanes) if sizes else 1
        can_be_resident = self.lanes_are_elements and not self.loops and len(vectors.segments) == 1
        self.resident = can_be_resident and resident is not False and count <= _RESIDENT * host().vector_registers // 16

    def accumulators(self, row_pass: RowPass) -> list[Accumulator]:
        """Return the reductions of a pass."""
        ordered = not self.lanes_are_elements or self.vectors.axis == max(self.analysis.reduction_axes)
        return [Accumulator(node, dtype, self.f, ordered) for node, dtype in reductions(self.analysis, row_pass.reduces)]

    # a row whose elements are the lanes

    def row(self, scope: VectorScope) -> None:
        """Emit all passes over one row."""
        scopes = self._residents(scope) if self.resident else []
        stride = coefficient(self.analysis.row_number, self.vectors.axis)
        for row_pass in self.passes:
            for s in row_pass.row_stores:
                scope.store(s)
            if not row_pass.has_iterations:
                continue
            scope.prepare(row_pass.targets(self.analysis), row_pass.stores, () if scopes else row_pass.keeps)
            accumulators = self.accumulators(row_pass)
            if scopes:
                vectors = self._emit_resident(row_pass, accumulators, scopes)
            else:
                first = [a.start(self.vectors.lanes) for a in accumulators]
                vectors = self._nested(row_pass, accumulators, scope, [], self.loops, [first] * self.vectors.unroll)
                self.nest.in_memory.update(row_pass.keeps)
            for k, (node, accumulator) in enumerate(zip(row_pass.reduces, accumulators, strict=True)):
                scope.values[node] = accumulator.reduced([states[k] for states in vectors], stride)
        self.nest.in_memory.clear()

    def _residents(self, scope: VectorScope) -> list[VectorScope]:
        """Emit the scopes of the vectors of a short row."""
        axis, lanes = self.vectors.axis, self.vectors.lanes
        size = self.analysis.kernel.sizes[axis]
        scopes = []
        for start in range(0, size, lanes):
            count = None if start + lanes <= size else i64(size - start)
            inner = scope.child({axis: i64(start)}, VectorAxis(axis, lanes, count))
            inner.decided.update(self.vectors.segments[0].decided)
            scopes.append(inner)
        return scopes

    def _emit_resident(self, row_pass: RowPass, accumulators: list[Accumulator], scopes: list[VectorScope]) -> States:
        """Emit a pass over a row that is in registers."""
        first = [a.start(self.vectors.lanes) for a in accumulators]
        states = [self._step(row_pass, accumulators, inner, first, scopes[0]) for inner in scopes]
        self._store_all(row_pass.stores, scopes)
        return states

    # rows as lanes

    def rows_as_lanes(self, scope: VectorScope, segment: Segment, position: Value, count: Value | None, unroll: int) -> list[VectorScope]:
        """Emit all passes over some vectors of rows, and return these."""
        row_vectors = scope.vectors(VectorAxis(self.vectors.axis, self.vectors.lanes, count), position, unroll, segment.decided)
        for row_pass in self.passes:
            self._store_all(row_pass.row_stores, row_vectors)
            if not row_pass.has_iterations:
                continue
            accumulators = self.accumulators(row_pass)
            scope.prepare(row_pass.targets(self.analysis), (), ())
            for row_vector in row_vectors:
                row_vector.prepare(row_pass.targets(self.analysis), row_pass.stores, row_pass.keeps)
            first = [a.start(self.vectors.lanes) for a in accumulators]
            iterations = self._nested(row_pass, accumulators, scope, row_vectors, self.loops, [first] * len(row_vectors))
            self.nest.in_memory.update(row_pass.keeps)
            for row_vector, states in zip(row_vectors, iterations, strict=True):
                for node, accumulator, state in zip(row_pass.reduces, accumulators, states, strict=True):
                    row_vector.values[node] = accumulator.result(state)
        self.nest.in_memory.clear()
        return row_vectors

    # loops

    def _nested(
        self,
        row_pass: RowPass,
        accumulators: list[Accumulator],
        scope: VectorScope,
        row_vectors: list[VectorScope],
        axes: Sequence[int],
        states: States,
    ) -> States:
        """Emit the loops over the reduction axes, of which the vectors' axis is the last."""
        if not axes:
            if row_vectors or not self.lanes_are_elements:
                return self._iteration(row_pass, accumulators, row_vectors, states)
            return self._along(row_pass, accumulators, scope, states)
        axis, *rest = axes

        def body(i: Value, carried: States) -> States:
            inner = scope.child({axis: i})
            inner_vectors = [row_vector.child({}, shared=(inner,)) for row_vector in row_vectors]
            for inner_vector, row_vector in zip(inner_vectors, row_vectors, strict=True):
                inner_vector.unrolled_from = (inner_vectors[0], row_vector.unrolled_from[1]) if row_vector.unrolled_from else None
            if rest or self.lanes_are_elements:
                inner.prepare(row_pass.targets(self.analysis), row_pass.stores, row_pass.keeps)
                for row_vector in inner_vectors:
                    row_vector.prepare(row_pass.targets(self.analysis), row_pass.stores, row_pass.keeps)
            return self._nested(row_pass, accumulators, inner, inner_vectors, rest, carried)

        terms = math.prod([self.analysis.kernel.sizes[inner] for inner in rest])
        if self.lanes_are_elements:
            terms *= -(-self.analysis.kernel.sizes[self.vectors.axis] // (self.vectors.lanes * self.vectors.unroll))
        return self._blocked_loop(accumulators, axis, 1, states, body, self._bounds(axis), terms)

    def _bounds(self, axis: int) -> tuple[Value, Value]:
        return self.bounds.get(axis, (i64(0), i64(self.analysis.kernel.sizes[axis])))

    def _along(self, row_pass: RowPass, accumulators: list[Accumulator], scope: VectorScope, states: States) -> States:
        axis, lanes = self.vectors.axis, self.vectors.lanes

        def body(segment: Segment, position: Value, count: Value | None, unroll: int, carried: States) -> States:
            iterations = scope.vectors(VectorAxis(axis, lanes, count), position, unroll, segment.decided)
            return [*self._iteration(row_pass, accumulators, iterations, carried[:unroll]), *carried[unroll:]]

        def loop(low: Value, high: Value, step: int, carried: States, iteration: Callable[[Value, States], States]) -> States:
            if _is_search(row_pass, accumulators):
                return self._search(accumulators, low, high, step, carried, iteration)
            return self._blocked_loop(accumulators, axis, step, carried, iteration, (low, high))

        return self.vectors.walk(self.f, *self._bounds(axis), states, body, loop)

    def _iteration(self, row_pass: RowPass, accumulators: list[Accumulator], iterations: list[VectorScope], states: States) -> States:
        """Emit one iteration of every vector, and return the new states."""
        for node in iterations[0].needed(row_pass.targets(self.analysis)):  # node by node, so that vectors alternate
            emit_unrolled(iterations, node)
        new = [
            self._step(row_pass, accumulators, iteration, state, iterations[0]) for iteration, state in zip(iterations, states, strict=True)
        ]
        self._store_all(row_pass.stores, iterations)
        for node in row_pass.keeps:
            for iteration in iterations:
                iteration.keep(node)
        return new

    def _step(
        self, row_pass: RowPass, accumulators: list[Accumulator], iteration: VectorScope, states: list[State], first: VectorScope
    ) -> list[State]:
        """Emit the states after one of the unrolled vectors, the first in `first`."""
        new = []
        for node, accumulator, state in zip(row_pass.reduces, accumulators, states, strict=True):
            x = iteration.spread(self.analysis.reduces[node].operand)
            where = first.affine(self.analysis.row_number) if accumulator.node.is_index else None
            new.append(accumulator.step(state, x, where, iteration.count if self.lanes_are_elements else None))
        return new

    def _store_all(self, stores: Sequence[int], iterations: Sequence[VectorScope]) -> None:
        if not stores:
            return
        for node in iterations[0].needed([self.analysis.kernel.stores[s].value for s in stores]):
            emit_unrolled(iterations, node)
        for s in stores:
            for iteration in iterations:
                iteration.store(s)

    def _blocked_loop(
        self,
        accumulators: list[Accumulator],
        axis: int,
        step: int,
        states: States,
        body: Callable[[Value, States], States],
        bounds: tuple[Value, Value],
        terms: int = 1,
    ) -> States:
        """Emit a loop along an axis; sums of a long loop that rounds are blocked.

        So are the sums of blocks. An iteration adds so many `terms` to a sum.
        """
        low, high = bounds
        size = self.f.known(self.f.minus(high, low))
        most = self.analysis.kernel.sizes[axis] if size is None else size
        if most * terms <= 2 * _BLOCK * step or not any(a.rounds for a in accumulators):
            return self._loop(low, high, step, states, body)
        length = step * max(1, _BLOCK // terms)

        def block(i: Value, totals: States) -> States:
            fresh = [[a.start(self.vectors.lanes) for a in accumulators] for _ in totals]
            if length == step:
                sums = body(i, fresh)
            else:
                stop = least(self.f, self.f.plus(i, i64(length)), high)
                sums = self._loop(i, stop, step, fresh, body, nonempty=True)
            return [[a.merge(x, y) for a, x, y in zip(accumulators, old, new, strict=True)] for old, new in zip(totals, sums, strict=True)]

        return self._blocked_loop(accumulators, axis, length, states, block, bounds)

    def _search(
        self, accumulators: list[Accumulator], low: Value, high: Value, step: int, states: States, body: Callable[[Value, States], States]
    ) -> States:
        """Emit a loop that stops once all its results are final."""
        f = self.f
        size = f.known(f.minus(high, low))
        if size is not None and size <= _SEARCHED * step:
            return self._loop(low, high, step, states, body)

        def settled(carried: States) -> Value:
            values = [a.across(a.merged([state[k] for state in carried]))[0] for k, a in enumerate(accumulators)]
            settling = [_SETTLED[a.node.op] for a in accumulators]
            flags = [f.compare("icmp eq", x, Value(x.type, "true" if want else "false")) for x, want in zip(values, settling, strict=True)]
            return functools.reduce(lambda x, y: f.binary("and", x, y), flags)

        def block(i: Value, carried: States) -> States:
            stop = f.select(settled(carried), i, least(f, f.plus(i, i64(_SEARCHED * step)), high))
            return self._loop(i, stop, step, carried, body)

        return self._loop(low, high, _SEARCHED * step, states, block)

    def _loop(
        self, low: Value, high: Value, step: int, states: States, body: Callable[[Value, States], States], nonempty: bool = False
    ) -> States:
        size = self.f.known(self.f.minus(high, low))
        shape = [[len(state) for state in vector] for vector in states]

        def flat(vectors: States) -> list[Value]:
            return [value for vector in vectors for state in vector for value in state]

        def unflat(values: Sequence[Value]) -> States:
            rest = iter(values)
            return [[tuple([next(rest) for _ in range(n)]) for n in vector] for vector in shape]

        results = self.f.loop(
            low, high, step, flat(states), lambda i, carried: flat(body(i, unflat(carried))), nonempty=nonempty or bool(size)
        )
        return unflat(results)
