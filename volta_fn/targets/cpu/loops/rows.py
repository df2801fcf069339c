"""The passes over rows as loops.

Either the lanes of a vector are neighbouring elements of one row, or they are the same element of neighbouring rows (*columns*), of which
several vectors may go side by side. A kernel without inner axes has rows of one element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from volta_fn.codegen.loops.accumulate import reductions
from volta_fn.codegen.loops.passes import Pass
from volta_fn.compiler.ir.analysis import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import Range
from volta_fn.runtime.llvm.index_arith import greatest, least, rounded_down
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.loops.accumulate import Accumulator, State
from volta_fn.targets.cpu.loops.emit_values import Lane, Nest, VectorScope, make_side_by_side
from volta_fn.targets.cpu.scalars import Number, position

#: Turns after which a sum begins anew, so that long sums are sums of short ones.
_BLOCK = 64

#: Rows of up to so many vectors stay in registers from pass to pass.
_RESIDENT = 4

#: The state of every reduction of a pass, for every vector that goes on its own.
States = list[list[State]]


class Segment(NamedTuple):
    """A part of an axis in which it is known which conditions hold."""

    start: int
    end: int
    decided: dict[Range, bool]


class Vectors(NamedTuple):
    """How an axis is walked: by `unroll` vectors of `lanes` at a time, then by single ones."""

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
        """Go along the axis. `body` takes a segment, a place, how many lanes count, and how many vectors are to be done from there on."""
        for segment in self.segments:
            low, high = begin, end
            if len(self.segments) > 1:
                low = greatest(f, begin, i64(segment.start))
                high = greatest(f, low, least(f, end, i64(segment.end)))
            size = f.minus(high, low)
            wide = self.lanes * self.unroll
            rest = None if (n := f.known(size)) is None else n % wide
            if rest is None and len(self.segments) == 1:
                rest = segment.end % wide  # or nothing: where the axis is cut, it is cut into multiples of `wide`
            middle = high if rest == 0 else f.plus(low, rounded_down(f, size, wide))

            def turn(i: Value, states: States, segment: Segment = segment) -> States:
                return body(segment, i, None, self.unroll, states)

            if f.known(size) is None or f.known(f.minus(middle, low)):
                carried = loop(low, middle, wide, carried, turn)
            if rest == 0:
                continue
            whole = self.lanes == 1 or (rest is not None and rest % self.lanes == 0)

            def last(i: Value, states: States, segment: Segment = segment, high: Value = high, whole: bool = whole) -> States:
                count = None if whole else least(f, f.minus(high, i), i64(self.lanes))
                return body(segment, i, count, 1, states)

            if n is not None and rest is not None and rest <= self.lanes:
                carried = last(middle, carried)
            else:
                carried = loop(middle, high, self.lanes, carried, last)
        return carried


class RowCode:
    """Writes the passes over a row, or over rows side by side."""

    def __init__(self, nest: Nest, passes: Sequence[Pass], vectors: Vectors) -> None:
        #: From where to where inner axes go, where that is not all of them.
        self.bounds: dict[int, tuple[Value, Value]] = {}
        self.nest = nest
        self.f = nest.f
        self.facts: KernelAnalysis = nest.facts
        self.passes = passes
        self.vectors = vectors
        self.inside = vectors.axis in self.facts.reduction_axes
        sizes = self.facts.kernel.sizes
        #: The inner axes that are loops around that of the vectors.
        self.loops = [a for a in self.facts.kernel.reduction_axes if a != vectors.axis]
        count = -(-sizes[vectors.axis] // vectors.lanes) if sizes else 1
        self.resident = self.inside and not self.loops and len(vectors.segments) == 1 and count <= _RESIDENT

    def accumulators(self, here: Pass) -> list[Accumulator]:
        """The reductions of a pass."""
        return [Accumulator(node, dtype, self.f) for node, dtype in reductions(self.facts, here.reduces)]

    # a row whose elements are the lanes

    def row(self, scope: VectorScope) -> None:
        """All passes over one row."""
        places = self._residents(scope) if self.resident else []
        for here in self.passes:
            for number in here.row_stores:
                scope.store(number)
            if not here.has_iterations:
                continue
            scope.prepare(here.targets(self.facts), here.stores, () if places else here.keeps)
            accumulators = self.accumulators(here)
            if places:
                states = [[state] for state in self._at_once(here, accumulators, places)]
            else:
                first = [a.start(self.vectors.lanes) for a in accumulators]
                turns = self._nested(here, accumulators, scope, [], self.loops, [first] * self.vectors.unroll)
                states = [[s[k] for s in turns] for k in range(len(accumulators))]
                self.nest.kept.update(here.keeps)
            for number, accumulator, state in zip(here.reduces, accumulators, states, strict=True):
                scope.numbers[number] = accumulator.result(accumulator.across(accumulator.merged(state)))
        self.nest.kept.clear()

    def _residents(self, scope: VectorScope) -> list[VectorScope]:
        """The vectors of a short row."""
        axis, lanes = self.vectors.axis, self.vectors.lanes
        size = self.facts.kernel.sizes[axis]
        places = []
        for start in range(0, size, lanes):
            count = None if start + lanes <= size else i64(size - start)
            place = scope.child({axis: i64(start)}, Lane(axis, lanes, count))
            place.decided.update(self.vectors.segments[0].decided)
            places.append(place)
        return places

    def _at_once(self, here: Pass, accumulators: list[Accumulator], places: list[VectorScope]) -> list[State]:
        """A pass over a row that is in registers."""
        first = [a.start(self.vectors.lanes) for a in accumulators]
        parts = [self._step(here, accumulators, place, first) for place in places]
        self._stored(here, places)
        return [a.merged([part[k] for part in parts]) for k, a in enumerate(accumulators)]

    # columns

    def columns(self, scope: VectorScope, segment: Segment, place: Value, count: Value | None, unroll: int) -> list[VectorScope]:
        """All passes over some vectors of rows, which it returns."""
        columns = scope.vectors(Lane(self.vectors.axis, self.vectors.lanes, count), place, unroll, segment.decided)
        self.side_by_side(scope, columns)
        return columns

    def side_by_side(self, scope: VectorScope, columns: list[VectorScope]) -> None:
        """All passes over rows in the lanes of vectors."""
        for here in self.passes:
            self._do_stores(here.row_stores, columns)
            if not here.has_iterations:
                continue
            accumulators = self.accumulators(here)
            scope.prepare(here.targets(self.facts), (), ())
            for column in columns:
                column.prepare(here.targets(self.facts), here.stores, here.keeps)
            first = [a.start(self.vectors.lanes) for a in accumulators]
            turns = self._nested(here, accumulators, scope, columns, self.loops, [first] * len(columns))
            self.nest.kept.update(here.keeps)
            for column, states in zip(columns, turns, strict=True):
                for number, accumulator, state in zip(here.reduces, accumulators, states, strict=True):
                    column.numbers[number] = accumulator.result(state)
        self.nest.kept.clear()

    # loops

    def _nested(
        self,
        here: Pass,
        accumulators: list[Accumulator],
        scope: VectorScope,
        columns: list[VectorScope],
        axes: Sequence[int],
        states: States,
    ) -> States:
        """The loops over the inner axes, in which the vectors' axis is the last."""
        if not axes:
            if columns or not self.inside:
                return self._turn(here, accumulators, columns, states)
            return self._along(here, accumulators, scope, states)
        axis, *rest = axes

        def body(i: Value, carried: States) -> States:
            inner = scope.child({axis: i})
            beside = [column.child({}, shared=(inner,)) for column in columns]
            for one, column in zip(beside, columns, strict=True):
                one.beside = (beside[0], column.beside[1]) if column.beside else None
            if rest or self.inside:
                inner.prepare(here.targets(self.facts), here.stores, here.keeps)
                for column in beside:
                    column.prepare(here.targets(self.facts), here.stores, here.keeps)
            return self._nested(here, accumulators, inner, beside, rest, carried)

        low, high = self._bounds(axis)
        return self._turns(accumulators, low, high, 1, states, body)

    def _bounds(self, axis: int) -> tuple[Value, Value]:
        return self.bounds.get(axis, (i64(0), i64(self.facts.kernel.sizes[axis])))

    def _along(self, here: Pass, accumulators: list[Accumulator], scope: VectorScope, states: States) -> States:
        """The loop over the elements of a row by vectors."""
        axis, lanes = self.vectors.axis, self.vectors.lanes

        def body(segment: Segment, place: Value, count: Value | None, unroll: int, carried: States) -> States:
            turns = scope.vectors(Lane(axis, lanes, count), place, unroll, segment.decided)
            return [*self._turn(here, accumulators, turns, carried[:unroll]), *carried[unroll:]]

        def loop(low: Value, high: Value, step: int, carried: States, turn: Callable[[Value, States], States]) -> States:
            return self._turns(accumulators, low, high, step, carried, turn)

        return self.vectors.walk(self.f, *self._bounds(axis), states, body, loop)

    def _turn(self, here: Pass, accumulators: list[Accumulator], turns: list[VectorScope], states: States) -> States:
        """What is done in one turn, by every vector."""
        for number in turns[0].needed(here.targets(self.facts)):  # node by node, so that vectors take turns
            make_side_by_side(turns, number)
        new = [self._step(here, accumulators, turn, state) for turn, state in zip(turns, states, strict=True)]
        self._stored(here, turns)
        for number in here.keeps:
            for turn in turns:
                turn.keep(number)
        return new

    def _step(self, here: Pass, accumulators: list[Accumulator], turn: VectorScope, states: list[State]) -> list[State]:
        """The reductions with what one vector adds to them."""
        new = []
        for number, accumulator, state in zip(here.reduces, accumulators, states, strict=True):
            x = turn.spread(self.facts.reduces[number].operand)
            place = self._place(accumulator, turn) if accumulator.node.is_index else None
            new.append(accumulator.step(state, x, place, turn.count if self.inside else None))
        return new

    def _place(self, accumulator: Accumulator, turn: VectorScope) -> Number:
        number = self.facts.row_number
        return position(self.f, turn.affine(number), coefficient(number, self.vectors.axis), accumulator.node.dtype, turn.lanes)

    def _stored(self, here: Pass, turns: Sequence[VectorScope]) -> None:
        self._do_stores(here.stores, turns)

    def _do_stores(self, stores: Sequence[int], turns: Sequence[VectorScope]) -> None:
        """Stores by every vector."""
        if not stores:
            return
        for number in turns[0].needed([self.facts.kernel.stores[s].value for s in stores]):
            make_side_by_side(turns, number)
        for s in stores:
            for turn in turns:
                turn.store(s)

    def _turns(
        self,
        accumulators: list[Accumulator],
        low: Value,
        high: Value,
        step: int,
        states: States,
        body: Callable[[Value, States], States],
    ) -> States:
        """A loop; if it is long and something rounds, in blocks whose sums are added up."""
        size = self.f.known(self.f.minus(high, low))
        long = size is None or size > 2 * _BLOCK * step
        if not (long and any(a.rounds for a in accumulators)):
            return self._loop(low, high, step, states, body)

        def block(i: Value, totals: States) -> States:
            stop = least(self.f, self.f.plus(i, i64(_BLOCK * step)), high)
            fresh = [[a.start(self.vectors.lanes) for a in accumulators] for _ in totals]
            sums = self._loop(i, stop, step, fresh, body, once=True)
            return [[a.merge(x, y) for a, x, y in zip(accumulators, old, new, strict=True)] for old, new in zip(totals, sums, strict=True)]

        return self._loop(low, high, _BLOCK * step, states, block)

    def _loop(
        self, low: Value, high: Value, step: int, states: States, body: Callable[[Value, States], States], once: bool = False
    ) -> States:
        """A loop that carries states."""
        size = self.f.known(self.f.minus(high, low))
        shape = [[len(state) for state in vector] for vector in states]

        def flat(vectors: States) -> list[Value]:
            return [value for vector in vectors for state in vector for value in state]

        def unflat(values: Sequence[Value]) -> States:
            rest = iter(values)
            return [[tuple([next(rest) for _ in range(n)]) for n in vector] for vector in shape]

        turned = self.f.loop(low, high, step, flat(states), lambda i, carried: flat(body(i, unflat(carried))), once=once or bool(size))
        return unflat(turned)
