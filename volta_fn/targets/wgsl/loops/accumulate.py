"""Reductions under way, in shaders: see `codegen.loops.accumulate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from volta_fn.codegen.loops.accumulate import BaseAccumulator
from volta_fn.targets.wgsl.loops.widening import INT32
from volta_fn.targets.wgsl.scalars import Number, Shader, combine, combine_indexed, constant, wgsl_type
from volta_fn.targets.wgsl.text import Function

State = tuple[Number, ...]

#: Steps that are one operator, for most dtypes; others are functions of the module.
_OPERATORS = ("add", "mul", "and", "or", "xor")

#: Steps for which WGSL has functions, if neither number is NaN.
_EXTREMA = ("max", "min")


@dataclass(frozen=True)
class Accumulator(BaseAccumulator[State]):
    """One reduction, in a shader being written."""

    shader: Shader

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """The dtypes of what is carried."""
        return (self.dtype, INT32) if self.node.is_index else (self.dtype,)

    @property
    def start(self) -> State:
        """The state before the first element.

        If the least number of all is the greatest in a row, it is at the row's beginning.
        """
        first = constant(self.dtype, self.node.reduction.start(self.dtype))
        return (first, constant(INT32, 0)) if self.node.is_index else (first,)

    def merge(self, x: State, y: State) -> State:
        """Emit the combination of two states."""
        if self.node.reduction.step in _OPERATORS:
            return (combine(self.shader, self.node.reduction, x[0], y[0]),)
        name = self.shader.module.define(f"{self.node.op}_{self.dtype.name}", self._merging)
        both = ", ".join(number.text for number in (*x, *y))
        if not self.node.is_index:
            return (Number(self.dtype, self.shader.let(wgsl_type(self.dtype), f"{name}({both})")),)
        found = self.shader.let(f"{name}_state", f"{name}({both})")
        return Number(self.dtype, f"{found}.value"), Number(INT32, f"{found}.place")

    def _merging(self) -> str:
        f, name, type_ = Function(self.shader.module), f"{self.node.op}_{self.dtype.name}", wgsl_type(self.dtype)
        x, y = Number(self.dtype, "x"), Number(self.dtype, "y")
        if not self.node.is_index:
            answer = combine(f, self.node.reduction, x, y).text
            return "\n".join([f"fn {name}(x: {type_}, y: {type_}) -> {type_} {{", *f.statements, f"  return {answer};", "}"])
        value, index = combine_indexed(f, self.node.reduction, (x, Number(INT32, "i")), (y, Number(INT32, "j")))
        return "\n".join(
            [
                f"struct {name}_state {{ value: {type_}, place: i32 }}",
                f"fn {name}(x: {type_}, i: i32, y: {type_}, j: i32) -> {name}_state {{",
                *f.statements,
                f"  return {name}_state({value.text}, {index.text});",
                "}",
            ]
        )

    def merged(self, states: Sequence[State]) -> State:
        """Emit the combination of several states, by a tree."""
        if len(states) > 2 and self.dtype == np.float32 and not self.node.is_index and self.node.reduction.step in _EXTREMA:
            return (self._extremum([x.text for (x,) in states]),)
        return super().merged(states)

    def _extremum(self, texts: Sequence[str]) -> Number:
        """Emit the extremum of numbers by operations that may ignore NaN.

        A NaN is found by the sum of the numbers' magnitudes.
        """
        shader = self.shader
        best = _by_tree(texts, lambda x, y: shader.let("f32", f"{self.node.reduction.step}({x}, {y})"))
        total = _by_tree([f"abs({x})" for x in texts], lambda x, y: shader.let("f32", f"{x} + {y}"))
        is_nan = f"(bitcast<u32>({total}) & 0x7fffffffu) > 0x7f800000u"
        return Number(self.dtype, shader.let("f32", f"select({best}, {total}, {is_nan})"))

    def where(self, condition: str | None, state: State) -> State:
        """Emit the state if the condition holds, else the identity."""
        if condition is None:
            return state
        chosen = [f"select({none.text}, {x.text}, {condition})" for x, none in zip(state, self.start, strict=True)]
        return tuple([Number(x.dtype, self.shader.let(x.type, text)) for x, text in zip(state, chosen, strict=True)])

    def variables(self) -> list[str]:
        """Declare variables that hold the identity."""
        return [self.shader.var(wgsl_type(x.dtype), x.text) for x in self.start]

    def read(self, variables: Sequence[str]) -> State:
        """Emit the state that variables hold."""
        return tuple([Number(d, self.shader.let(wgsl_type(d), name)) for d, name in zip(self.dtypes, variables, strict=True)])

    def add(self, variables: Sequence[str], state: State) -> None:
        """Emit the combination of a state with what variables hold."""
        held = tuple([Number(d, name) for d, name in zip(self.dtypes, variables, strict=True)])
        for name, x in zip(variables, self.merge(held, state), strict=True):
            self.shader.emit(f"{name} = {x.text};")

    def result(self, state: State) -> Number:
        """Return the reduction's value."""
        return state[-1]


def _by_tree(texts: Sequence[str], both: Callable[[str, str], str]) -> str:
    if len(texts) == 1:
        return texts[0]
    half = (len(texts) + 1) // 2
    return both(_by_tree(texts[:half], both), _by_tree(texts[half:], both))
