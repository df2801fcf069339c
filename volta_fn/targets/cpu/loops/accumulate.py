"""Reductions under way, in vectors: see `codegen.loops.accumulate`."""

from __future__ import annotations

from dataclasses import dataclass

from volta_fn import dtypes
from volta_fn.codegen.loops.accumulate import BaseAccumulator
from volta_fn.runtime.llvm.text import Function, Value, element_of, i64, lanes_of
from volta_fn.targets.cpu.scalars import Number, combine, constant, horizontal

State = tuple[Value, ...]


@dataclass(frozen=True)
class Accumulator(BaseAccumulator[State]):
    """The carried state of one reduction, in a function being written."""

    f: Function

    def start(self, lanes: int) -> State:
        """Return the state before the first element."""
        first = constant(self.f, self.node.reduction.start(self.dtype), lanes).components
        if not self.node.is_index:
            return first
        zero = Value("i64", "0") if self.node.dtype.itemsize == 8 else Value(f"i{8 * self.node.dtype.itemsize}", "0")
        return (*first, self.f.splat(zero, lanes))

    def step(self, state: State, x: Number, index: Number | None, count: Value | None) -> State:
        """Emit the state after another vector, of which the first `count` lanes exist."""
        if self.node.is_index:
            assert index is not None
            new = self._better(state, (*x.components, *index.components), in_order=True)
        else:
            new = combine(self.f, self.node.reduction, Number(self.dtype, state), x).components
        lanes = lanes_of(state[0].type)
        if count is None or lanes == 1:
            return new
        there = mask_of(self.f, count, lanes)
        return tuple([self.f.select(there, y, old) for y, old in zip(new, state, strict=True)])

    def merge(self, x: State, y: State) -> State:
        """Emit the combination of two states."""
        if self.node.is_index:
            return self._better(x, y, in_order=False)
        return combine(self.f, self.node.reduction, Number(self.dtype, x), Number(self.dtype, y)).components

    def across(self, state: State) -> State:
        """Emit the combination of a state's lanes, by a tree."""
        if not self.node.is_index:
            return horizontal(self.f, self.node.reduction, Number(self.dtype, state)).components
        lanes = lanes_of(state[0].type)
        while lanes > 1:
            lanes //= 2
            low = tuple([_lanes(self.f, v, 0, lanes) for v in state])
            high = tuple([_lanes(self.f, v, lanes, lanes) for v in state])
            state = self.merge(low, high)
        return state

    def result(self, state: State) -> Number:
        """Return the reduction's value."""
        return Number(self.node.dtype, state[-1:] if self.node.is_index else state)

    def _better(self, x: State, y: State, in_order: bool) -> State:
        """Emit the better of two values, and of equal ones the one with the lower index.

        That is `x` if they come `in_order`. NaN is better than any number.
        """
        f, lanes = self.f, lanes_of(x[0].type)
        (value, index), (other, there) = x, y
        higher = self.node.reduction.step == "max"
        if self.dtype in dtypes.FLOATS:
            better = f.compare("fcmp ogt" if higher else "fcmp olt", other, value)
            is_nan, was_nan = f.compare("fcmp uno", other, other), f.compare("fcmp uno", value, value)
            both_nan = f.binary("and", is_nan, was_nan)
            better = f.binary("or", better, f.binary("and", is_nan, _not(f, was_nan, lanes)))
            same = f.binary("or", f.compare("fcmp oeq", value, other), both_nan)
        else:
            sign = "s" if self.dtype in dtypes.SIGNED else "u"
            better = f.compare(f"icmp {sign}{'gt' if higher else 'lt'}", other, value)
            same = f.compare("icmp eq", value, other)
        if not in_order:
            better = f.binary("or", better, f.binary("and", same, f.compare("icmp slt", there, index)))
        return f.select(better, other, value), f.select(better, there, index)


def mask_of(f: Function, count: Value, lanes: int) -> Value:
    """Emit a mask of the first `count` lanes, as a vector of i1."""
    numbers = Value(f"<{lanes} x i64>", f"<{', '.join(f'i64 {k}' for k in range(lanes))}>")
    return f.compare("icmp ult", numbers, f.splat(Value("i64", count.name), lanes))


def _not(f: Function, x: Value, lanes: int) -> Value:
    return f.binary("xor", x, f.splat(Value("i1", "true"), lanes))


def _lanes(f: Function, x: Value, start: int, lanes: int) -> Value:
    if lanes == 1:
        return f.let(element_of(x.type), f"extractelement {x}, {i64(start)}")
    return f.taken(x, range(start, start + lanes))
