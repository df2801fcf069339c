"""Reductions in vectors, by the accumulators of `codegen.loops`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.loops import BaseAccumulator
from volta_fn.core.primitive import reduction_of
from volta_fn.runtime.llvm.text import Function, Value, counting, i64, lanes_of
from volta_fn.targets.cpu.scalars import Number, combine, constant, horizontal, position
from volta_fn.targets.cpu.scalars.number import convert
from volta_fn.targets.cpu.scalars.values import Lanes

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
        of the first lane of the first of the interleaved vectors.
        """
        first = constant(self.f, self.node.reduction.start(self.dtype), lanes).components
        if not self.node.is_index:
            return first
        zero = constant(self.f, np.zeros((), self._at), lanes).value
        return (*first, zero, self._none(lanes)) if self.dtype in dtypes.FLOATS else (*first, zero)

    def step(self, state: State, x: Number, where: Value | None, count: Value | None) -> State:
        """Emit the state after another vector, of which the first `count` lanes exist.

        `where` is the position of the first of the vectors that are interleaved with it.
        """
        if where is None:
            new = combine(self.f, self.node.reduction, Number(self.dtype, state), x).components
        else:
            new = self._extremum_step(state, x.value, position(self.f, where, 0, self._at, lanes_of(state[0].type)).value)
        lanes = lanes_of(state[0].type)
        if count is None or lanes == 1:
            return new
        valid = mask_of(self.f, count, lanes)
        return tuple([self.f.select(valid, y, old) for y, old in zip(new, state, strict=True)])

    def _extremum_step(self, state: State, x: Value, index: Value) -> State:
        f, (best, at, *nan) = self.f, state
        better = self._is_better(x, best)
        if not self.ordered:
            earlier = f.compare("icmp slt" if self._at.kind == "i" else "icmp ult", index, at)
            better = f.binary("or", better, f.binary("and", self._is_equal(x, best), earlier))
        nan = [f.select(f.compare("fcmp uno", x, x), self._lesser(first, index), first) for first in nan]
        return f.select(better, x, best), f.select(better, index, at), *nan

    def merge(self, x: State, y: State) -> State:
        """Emit the combination of two states; those of an index must come in order."""
        if not self.node.is_index:
            return combine(self.f, self.node.reduction, Number(self.dtype, x), Number(self.dtype, y)).components
        better = self._is_better(y[0], x[0])
        both = [self.f.select(better, new, old) for new, old in zip(y[:2], x[:2], strict=True)]
        return *both, *map(self._lesser, x[2:], y[2:])

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


def mask_of(f: Function, count: Value, lanes: int) -> Value:
    """Emit a mask of the first `count` lanes, as a vector of i1."""
    return f.compare("icmp ult", counting(lanes), f.splat(count, lanes))
